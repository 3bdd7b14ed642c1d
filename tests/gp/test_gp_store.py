"""Models on disk: read back whole, refused with another network, never half-written."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor import zoo
from netsor.errors import DataError
from netsor.files import write_npz

RNG = np.random.default_rng(8)
GRAPH = np.array([[0.0, 1.0], [1.0, 0.0]])
CASES: dict[str, tuple[Any, Any, Any]] = {
    "vectors": (lambda: zoo.mlp(2), RNG.standard_normal((5, 3)), RNG.standard_normal((5, 2))),
    "sequences": (zoo.simple_rnn, [RNG.standard_normal((t, 2)) for t in (2, 3)], RNG.standard_normal(5)),
    "graphs": (zoo.graph_conv, [(RNG.standard_normal((2, 3)), GRAPH)], RNG.standard_normal(2)),
}


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str, tmp_path: Path) -> None:
    build, x, y = CASES[name]
    K = ns.kernel(build(), points=2**8)
    model = ns.gp.fit(K, x, y, noise=0.1, params={"v": 2.0})
    model.save(tmp_path / "model.npz")
    again = ns.gp.load(tmp_path / "model.npz", build())
    assert isinstance(again, ns.gp.GP)
    assert again.kernel.options == K.options
    np.testing.assert_array_equal(again.lower, model.lower)
    one, two = model.predict(x, cov=True), again.predict(x, cov=True)
    np.testing.assert_array_equal(one.mean, two.mean)
    np.testing.assert_array_equal(one.cov, two.cov)
    assert again.log_marginal_likelihood() == model.log_marginal_likelihood()
    assert [p.name for p in tmp_path.iterdir()] == ["model.npz"]


def test_classifier_round_trip(tmp_path: Path) -> None:
    x, labels = RNG.standard_normal((6, 2)), np.array(["a", "b", "b", "a", "c", "c"])
    model = ns.gp.classify(ns.kernel(zoo.mlp(1)), x, labels)
    ns.gp.save(model, tmp_path / "model.npz")
    again = ns.gp.load(tmp_path / "model.npz", zoo.mlp(1))
    assert isinstance(again, ns.gp.Classifier)
    np.testing.assert_array_equal(again.probabilities(x), model.probabilities(x))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_another_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    ns.gp.fit(ns.kernel(zoo.mlp(2)), np.eye(3), np.ones(3), noise=0.1).save(path)
    for other in (zoo.mlp(3), zoo.mlp(2, ns.tanh), zoo.mlp(2, var_w=1.1)):
        with pytest.raises(DataError, match="is not the network that was saved"):
            ns.gp.load(path, other)


def test_no_code_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    ns.gp.fit(ns.kernel(zoo.mlp(1)), np.eye(3), np.ones(3), noise=0.1).save(path)
    with zipfile.ZipFile(path) as archive:
        assert all(archive.read(name).startswith(b"\x93NUMPY") for name in archive.namelist())
    with np.load(path, allow_pickle=False) as stored:
        assert all(stored[name].dtype.kind in "fU" for name in stored.files)


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    with pytest.raises(DataError, match="there is no file"):
        ns.gp.load(path, zoo.mlp(1))
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match="is not a saved model"):
        ns.gp.load(path, zoo.mlp(1))
    write_npz(path, {"facts": '{"format": 99}'}, sealed=True)
    with pytest.raises(DataError, match="has format 99"):
        ns.gp.load(path, zoo.mlp(1))
    ns.gp.fit(ns.kernel(zoo.mlp(1)), np.eye(3), np.ones(3), noise=0.1).save(path)
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(DataError, match="is not a saved model"):
        ns.gp.load(path, zoo.mlp(1))
