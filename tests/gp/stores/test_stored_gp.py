"""Gaussian processes from stores: weights, predictions and evidence against the matrix in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from each_case import run_cases
from netsor import zoo
from netsor.errors import DataError
from netsor.gp import InferenceError
from netsor.gp.stores import conjugate_gradients
from netsor.gp.stores.cholesky import StoredFactor
from netsor.gp.stores.conjugate_gradients import Gradients

pytest.importorskip("zarr")
pytest.importorskip("cloudpickle")
pytestmark = pytest.mark.usefixtures("small_tiles")

RNG = np.random.default_rng(6)
X, NEW = RNG.standard_normal((90, 4)), RNG.standard_normal((7, 4))
Y = np.stack([np.sin(X[:, 0]), X[:, 1] ** 2], axis=1) + 0.1 * RNG.standard_normal((90, 2))
SOLVERS: list[dict[str, Any]] = [
    {"solver": "cholesky"},
    {"solver": "pcg", "tol": 1e-11},
    {"solver": "pcg", "tol": 1e-11, "rank": 5},
    {},
]


def stored(path: Path, net: ns.Network | None = None, x: Any = X, tile: int = 16) -> ns.gp.Store:
    return ns.gp.store(ns.kernel(net or zoo.mlp(2)), x, path / "K.zarr", tile=tile)


@pytest.mark.parametrize("noise", [1e-2, 1e-5, np.linspace(1e-3, 1e-1, 90)], ids=["1e-2", "1e-5", "each"])
@pytest.mark.parametrize("options", SOLVERS, ids=lambda o: " ".join(map(str, o.values())) or "auto")
def test_a_stored_process_is_the_one_in_memory(options: dict[str, Any], noise: Any, tmp_path: Path) -> None:
    direct = ns.gp.fit(ns.kernel(zoo.mlp(2)), X, Y, noise=noise)
    model = ns.gp.fit(stored(tmp_path, tile=48), Y, noise=noise, **options)
    matrix = ns.kernel(zoo.mlp(2))(X) + np.diag(np.broadcast_to(model.nugget, 90))
    left = np.linalg.norm(Y - matrix @ model.alpha, axis=0) / np.linalg.norm(Y, axis=0)
    assert left.max() <= max(2 * model.residual, 1e-11)
    np.testing.assert_allclose(model.alpha, direct.alpha, rtol=0, atol=1e-6 * np.abs(direct.alpha).max())
    wanted, found = direct.predict(NEW), model.predict(NEW)
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.std, wanted.std, rtol=1e-5)
    np.testing.assert_allclose(model.mean(NEW), wanted.mean, rtol=0, atol=1e-7)
    assert found.sizes == wanted.sizes
    evidence = model.log_marginal_likelihood()
    assert abs(evidence.value - direct.log_marginal_likelihood()) <= evidence.error + 1e-6


DEGENERATE = {
    "repeated": np.repeat(X[:6], 5, axis=0),
    "one": X[:1],
    "zero": np.zeros((9, 4)),
    "huge": 1e6 * X,
}


@pytest.mark.parametrize("options", SOLVERS[:2], ids=lambda o: " ".join(map(str, o.values())))
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_kernels(case: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Against a solve by NumPy: singular kernels, one input, a kernel that is 0, a large one."""
    x = DEGENERATE[case]
    y = np.cos(np.arange(len(x)))
    store = stored(tmp_path, zoo.mlp(1, var_b=0.0), x)
    model = ns.gp.fit(store, y, noise=0.1, **options)
    matrix = store.read() + np.diag(np.broadcast_to(model.nugget, len(x)))
    assert np.linalg.norm(matrix @ model.alpha[:, 0] - y) <= max(2 * model.residual, 1e-11) * np.linalg.norm(
        y
    )
    evidence = model.log_marginal_likelihood()
    sign, size = np.linalg.slogdet(matrix)
    wanted = -0.5 * (y @ np.linalg.solve(matrix, y) + size + len(x) * np.log(2 * np.pi))
    assert sign == 1
    assert abs(evidence.value - wanted) <= evidence.error + 1e-9 * abs(wanted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Dask
def test_solves_on_a_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    direct = ns.gp.fit(ns.kernel(zoo.mlp(2)), X, Y, noise=1e-2)
    std, size = direct.predict(NEW).std, np.abs(direct.alpha).max()
    store = stored(tmp_path, tile=32)

    def check(options: dict[str, Any]) -> None:
        model = ns.gp.fit(store, Y, noise=1e-2, engine=client, **options)
        np.testing.assert_allclose(model.predict(NEW).std, std, rtol=1e-7)
        np.testing.assert_allclose(model.alpha, direct.alpha, rtol=0, atol=1e-8 * size)

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        run_cases(check, {str(options): options for options in SOLVERS[:3]})


def test_the_error_of_the_evidence_covers(tmp_path: Path) -> None:
    """Of many estimates the stated error is exceeded by no more than two standard errors are."""
    store = stored(tmp_path, tile=96)
    wanted = np.linalg.slogdet(store.read() + 1e-3 * np.eye(90))[1]
    found = [Gradients(store, np.array(1e-3), 2**20, 8, seed).log_determinant(8) for seed in range(20)]
    inside = [abs(one.value - wanted) <= one.error for one in found]
    assert np.mean(inside) >= 0.85
    spread = np.std([one.value for one in found])
    assert np.median([one.error for one in found]) < 6 * spread + 1e-6


def test_targets_are_flat_or_not_and_observed(tmp_path: Path) -> None:
    store = stored(tmp_path)
    model, direct = (
        ns.gp.fit(store, Y[:, 0], noise=0.1),
        ns.gp.fit(ns.kernel(zoo.mlp(2)), X, Y[:, 0], noise=0.1),
    )
    np.testing.assert_allclose(
        model.predict(NEW, observed=True).std, direct.predict(NEW, observed=True).std, rtol=1e-10
    )
    assert model.predict(NEW).mean.shape == (7,)
    each = ns.gp.fit(store, Y, noise=np.full(90, 0.1))
    with pytest.raises(DataError, match="the noise of new observations is not known"):
        each.predict(NEW, observed=True)


def test_several_outputs_and_prior_means(tmp_path: Path) -> None:
    W, v = ns.Matrix(1.0), ns.Matrix(1.0, rows=2)

    @ns.network
    def net(x):
        return v @ ns.relu(W @ x) + 0.5

    y = RNG.standard_normal(180)
    model = ns.gp.fit(stored(tmp_path, net), y, noise=0.1)
    wanted = ns.gp.fit(ns.kernel(net), X, y, noise=0.1).predict(NEW)
    found = model.predict(NEW)
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.std, wanted.std, rtol=1e-9)
    assert found.sizes == (2,) * 7


def test_little_memory_gives_the_same(tmp_path: Path) -> None:
    store = stored(tmp_path)
    block = 8 * store.grid.rows.chunk**2
    wanted = ns.gp.fit(ns.kernel(zoo.mlp(2)), X, Y, noise=0.01).predict(NEW)
    found = ns.gp.fit(store, Y, noise=0.01, solver="cholesky", memory=4 * block).predict(NEW)
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=0, atol=1e-9)
    with pytest.raises(DataError, match="four of them do not fit"):
        ns.gp.fit(store, Y, noise=0.02, solver="cholesky", memory=3 * block)


class StopError(Exception):
    pass


def test_a_factor_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = stored(tmp_path), []
    honest = StoredFactor._compute

    def dying(self: StoredFactor, i: int, j: int) -> None:
        if len(made) == 9:
            raise StopError
        made.append((i, j))
        honest(self, i, j)

    monkeypatch.setattr(StoredFactor, "_compute", dying)
    with pytest.raises(StopError):
        ns.gp.fit(store, Y, noise=0.01, solver="cholesky")
    first = made.copy()
    made.clear()
    monkeypatch.setattr(
        StoredFactor, "_compute", lambda self, i, j: (made.append((i, j)), honest(self, i, j))
    )
    model = ns.gp.fit(store, Y, noise=0.01, solver="cholesky")
    assert not set(first) & set(made)
    assert model.residual < 1e-11
    made.clear()
    ns.gp.fit(store, Y[:, 0], noise=0.01, solver="cholesky")
    assert not made
    ns.gp.fit(store, Y[:, 0], noise=0.02, solver="cholesky")
    assert made


def test_a_store_that_was_opened_needs_its_kernel_for_new_inputs(tmp_path: Path) -> None:
    path = stored(tmp_path).path
    model = ns.gp.fit(ns.gp.Store(path), Y, noise=0.1)
    with pytest.raises(DataError, match="Open it with the kernel"):
        model.predict(NEW)
    again = ns.gp.fit(ns.gp.Store(path, ns.kernel(zoo.mlp(2))), Y, noise=0.1)
    np.testing.assert_array_equal(again.alpha, model.alpha)
    assert again.predict(NEW).mean.shape == (7, 2)


def test_matrices_that_are_not_positive_are_refused(tmp_path: Path) -> None:
    x = np.concatenate([X, X[:1]])
    y = np.concatenate([Y, Y[:1]])
    store = stored(tmp_path, x=x)
    with pytest.raises(InferenceError, match="not positive definite"):
        ns.gp.fit(store, y, jitter=0.0, solver="cholesky")
    with pytest.raises(InferenceError, match="noise > 0"):
        ns.gp.fit(store, y, jitter=0.0, solver="pcg")
    y[-1] += 1.0
    with pytest.raises(DataError, match="are equal and have different targets"):
        ns.gp.fit(store, y)


def test_gradients_that_do_not_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conjugate_gradients, "MOST", 2)
    with pytest.raises(InferenceError, match="stop at a relative residual"):
        ns.gp.fit(stored(tmp_path), Y, noise=1e-6, solver="pcg", rank=3)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((Y,), {"solver": "svd"}, "solver='svd'"),
        ((X, Y), {}, "a store has its inputs"),
        ((Y[:5],), {}, "the targets have shape"),
        ((Y,), {"noise": -1.0}, "the noise is negative"),
    ],
)
def test_arguments_that_make_no_sense(arguments: Any, options: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=text):
        ns.gp.fit(stored(tmp_path), *arguments, **options)


def test_options_of_stores_are_refused_in_memory() -> None:
    with pytest.raises(DataError, match=r"solver=\.\.\. is for stores"):
        ns.gp.fit(ns.kernel(zoo.mlp(1)), X, Y, solver="pcg")  # type: ignore[call-overload]
    with pytest.raises(DataError, match="there are no targets"):
        ns.gp.fit(ns.kernel(zoo.mlp(1)), X)  # type: ignore[call-overload]
