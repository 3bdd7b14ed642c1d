"""Sampled kernels in tiles: one positive matrix for any tiling; errors cover what landmarks leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor import zoo
from netsor.errors import DataError, LimitError

pytest.importorskip("zarr")
pytest.importorskip("cloudpickle")
pytestmark = pytest.mark.usefixtures("small_tiles")

RNG = np.random.default_rng(4)
CENTRES = RNG.standard_normal((3, 3, 4))
X = np.stack([CENTRES[k % 3] + 0.7 * RNG.standard_normal((3, 4)) for k in range(14)])


def last(cell: Any, state: Any = 0) -> ns.Network:
    """The last state of a recurrent network."""
    v = ns.Matrix(1.0, rows=1, name="v")

    @ns.network
    def recurrent(tokens):
        s = state
        for token in tokens:
            s = cell(s, token)
        return v @ (s[0] if isinstance(s, tuple) else s)

    return recurrent


NETWORKS = {
    "gru": last(ns.GRUCell()),
    "gru, erf": last(ns.GRUCell(ns.erf, ns.erf_gate, var_w=4.0)),
    "gru, relu": last(ns.GRUCell(ns.relu, var_w=2.0)),
    "gru, step": last(ns.GRUCell(ns.tanh, ns.step, var_w=2.0)),
    "lstm": last(ns.LSTMCell(), (0, 0)),
    "all states": zoo.gru(),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("gru, erf", "all states") else pytest.mark.slow) for n in NETWORKS],
)
def test_any_tiling_gives_one_positive_matrix(name: str, tmp_path: Path) -> None:
    made = {}
    for tile in (3, 5, 14):
        K = ns.kernel(NETWORKS[name], points=2**6, repeats=4)
        made[tile] = ns.gp.store(K, X, tmp_path / f"{tile}.zarr", tile=tile, landmarks=4).read()
        np.testing.assert_array_equal(made[tile], made[tile].T)
    scale = np.abs(made[14]).max()
    for tile in (3, 5):
        np.testing.assert_allclose(made[tile], made[14], rtol=0, atol=1e-9 * scale)
    assert np.linalg.eigvalsh(made[3])[0] > -1e-12 * scale


def test_any_tiling_with_more_dimensions_than_variables(tmp_path: Path) -> None:
    x, made = np.random.default_rng(5).standard_normal((8, 3, 60)), []
    for tile in (2, 8):
        K = ns.kernel(NETWORKS["gru"], points=2**6, repeats=2)
        made.append(ns.gp.store(K, x, tmp_path / f"{tile}.zarr", tile=tile, landmarks=3).read())
    np.testing.assert_allclose(made[0], made[1], rtol=0, atol=1e-9 * np.abs(made[1]).max())


@pytest.mark.parametrize("landmarks", [2, 6])
@pytest.mark.parametrize("name", NETWORKS)
def test_errors_cover(name: str, landmarks: int, tmp_path: Path) -> None:
    """The difference to a kernel that is drawn jointly, with eight times the points."""
    K = ns.kernel(NETWORKS[name], points=2**8, repeats=16)
    found = ns.gp.store(K, X, tmp_path / "K.zarr", tile=7, landmarks=landmarks)
    wanted = ns.kernel(NETWORKS[name], points=2**11, seed=7).evaluate(X)
    size = found.grid.rows.chunk
    error = np.kron(found.errors(), np.ones((size, size)))[: len(wanted.value), : len(wanted.value)]
    floor = np.sqrt(np.mean(wanted.error**2)) + np.sqrt(np.mean(np.diagonal(error) ** 2))
    excess = np.abs(found.read() - wanted.value) / (error + 5 * floor)
    assert excess.max() < 1


def test_landmarks_alone_are_drawn_jointly(tmp_path: Path) -> None:
    """With all inputs as landmarks nothing is left out."""
    K = ns.kernel(NETWORKS["gru"], points=2**9)
    found = ns.gp.store(K, X, tmp_path / "K.zarr", tile=14, landmarks=14)
    wanted = ns.kernel(NETWORKS["gru"], points=2**12, seed=7).evaluate(X)
    assert np.all(np.abs(found.read() - wanted.value) < 8 * (found.largest_error() + wanted.error.max()))


def test_more_landmarks_have_smaller_errors(tmp_path: Path) -> None:
    K = ns.kernel(NETWORKS["gru, erf"], points=2**7, repeats=8)
    few, many = (
        np.median(ns.gp.store(K, X, tmp_path / f"{m}.zarr", tile=7, landmarks=m).errors()) for m in (2, 10)
    )
    assert many < few


@pytest.mark.parametrize("landmarks", [4, 10])
def test_predictions_from_a_sampled_store(landmarks: int, tmp_path: Path) -> None:
    """New inputs are drawn with the landmarks of the store, so all of it is one positive matrix."""
    K, y = ns.kernel(NETWORKS["gru"], points=2**8, repeats=8), np.sin(X[:10, 0, 0])
    store = ns.gp.store(K, X[:10], tmp_path / "K.zarr", tile=5, landmarks=landmarks)
    model = ns.gp.fit(store, y, noise=0.5)
    assert model.residual < 1e-10
    new = list(X[10:])
    cross = np.concatenate([block for _, block in model._cross(new)], axis=1)
    whole = np.block([[store.read(), cross.T], [cross, model._sampled(new, None)]])
    assert np.linalg.eigvalsh(whole)[0] > -1e-9
    wanted, found = ns.gp.fit(ns.kernel(NETWORKS["gru"]), X[:10], y, noise=0.5), model.predict(X[10:])
    off = 10 * store.largest_error() * np.abs(model.alpha).sum()
    np.testing.assert_allclose(found.mean, wanted.predict(X[10:]).mean, rtol=0, atol=off)
    np.testing.assert_allclose(found.std, wanted.predict(X[10:]).std, rtol=0.05)
    with pytest.raises(DataError, match="of one shape"):
        model.predict([X[0], X[1][:2]])


@pytest.mark.parametrize(
    ("net", "x", "y", "options", "text"),
    [
        (
            zoo.cnn(1, kernel=2, pool="max"),
            RNG.standard_normal((3, 2, 2, 1)),
            None,
            {"method": "sample"},
            "must be",
        ),
        (NETWORKS["gru"], X, None, {"tol": 0.01}, "no tolerance"),
        (NETWORKS["gru"], X, X, {}, "of one set"),
        (NETWORKS["gru"], [X[0], X[1][:2]], None, {}, "of one shape"),
    ],
)
def test_what_has_no_such_form_is_refused(
    net: ns.Network, x: Any, y: Any, options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(LimitError, match=text):
        ns.gp.store(ns.kernel(net, **options), x, tmp_path / "K.zarr", y)
    assert not list(tmp_path.iterdir())
