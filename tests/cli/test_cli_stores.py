"""Stores on the command line: kernel, status, fit, predict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import netsor as ns
from netsor.cli import app
from netsor.limits.on_numpy import recording

pytest.importorskip("zarr")
pytest.importorskip("cloudpickle")

RNG = np.random.default_rng(9)
X, NEW = RNG.standard_normal((60, 3)), RNG.standard_normal((4, 3))
Y = np.sin(X[:, 0])
NETWORK = """
import numpy as np
import netsor as ns

W, v = ns.Matrix(1.5), ns.Matrix(1.0, rows=1)


def layer(x):
    return ns.relu(W @ x)


@ns.network
def net(x):
    return v @ layer(W @ layer(W @ ns.relu(U @ x)))


U = ns.Matrix(1.0)
other = ns.zoo.mlp(1)
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recording, "TILE", 64)
    monkeypatch.setattr(recording, "FEWEST_FOR_THREADS", 0)
    Path("net.py").write_text(NETWORK)
    np.save("x.npy", X)
    np.save("new.npy", NEW)
    np.save("y.npy", Y)


def run(line: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == code, result.output
    return result.output


def test_from_the_network_to_predictions() -> None:
    assert "tiles, complete" in run("kernel net.py:net x.npy -o K.zarr --tile 16")
    assert "kernel of net, 60 x 60" in run("status K.zarr")
    from netsor.cli.loading import load_network

    K = ns.kernel(load_network("net.py:net"))
    np.testing.assert_array_equal(ns.gp.Store("K.zarr").read(), K(X))
    wanted = ns.gp.fit(K, X, Y, noise=0.01)
    for solver in ("cholesky", "pcg"):
        said = run(f"fit K.zarr y.npy --noise 0.01 --solver {solver} --memory 1MB -o {solver}.npz")
        assert f"wrote {solver}.npz: {solver}" in said
        assert ("log marginal likelihood" in said) == (solver == "cholesky")  # of pcg: 40 more passes
        run(f"predict net.py:net K.zarr new.npy --model {solver}.npz -o {solver}_new.npz")
        with np.load(f"{solver}_new.npz") as found:
            np.testing.assert_allclose(found["mean"], wanted.predict(NEW).mean, rtol=0, atol=1e-6)
            np.testing.assert_allclose(found["std"], wanted.predict(NEW).std, rtol=1e-5)
    assert "0 files of targets" in run("fit K.zarr", 1)
    assert "2 files of targets" in run("fit K.zarr y.npy --labels y.npy", 1)
    said = run("fit K.zarr --labels y.npy --noise 0.01 --solver pcg --likelihood").split()
    value, error = float(said[-3]), float(said[-1])
    assert abs(value - wanted.log_marginal_likelihood()) < 3 * error + 1e-3


def test_both_kernels_of_a_tangent_store() -> None:
    run("kernel net.py:other x.npy -o T.zarr --tile 16 --ntk")
    for flag, K in (("", ns.ntk(ns.zoo.mlp(1))), (" --nngp", ns.kernel(ns.zoo.mlp(1)))):
        run(f"fit T.zarr y.npy --noise 0.1{flag}")
        run(f"predict net.py:other T.zarr new.npy{flag} -o found.npz")
        with np.load("found.npz") as found:
            wanted = ns.gp.fit(K, X, Y, noise=0.1).predict(NEW)
            np.testing.assert_allclose(found["mean"], wanted.mean, rtol=0, atol=1e-9)
            np.testing.assert_allclose(found["std"], wanted.std, rtol=1e-7)


def test_workers_and_parts_and_going_on() -> None:
    """The file of the network cannot be imported by the workers: its code travels."""
    run("kernel net.py:net x.npy -o A.zarr --tile 16 --workers 2")
    for k in (2, 1):
        run(f"kernel net.py:net x.npy -o B.zarr --tile 16 --part {k}/2")
    np.testing.assert_array_equal(ns.gp.Store("A.zarr").read(), ns.gp.Store("B.zarr").read())
    said = run("kernel net.py:net x.npy -o A.zarr --tile 16", 1)
    assert "is there already" in said
    assert "--resume" in said
    run("kernel net.py:net x.npy -o A.zarr --tile 16 --resume --verify")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("kernel net.py:net x.npy -o K.npz --workers 2", "are for stores"),
        ("kernel net.py:net x.npy -o K.zarr --workers 2 --scheduler tcp://127.0.0.1:1", "Give one of them"),
        ("kernel net.py:net x.npy -o K.zarr --part 3", "Write k/N"),
        ("status nothing.zarr", "there is no store"),
        ("fit nothing.zarr y.npy", "there is no store"),
    ],
)
def test_wrong_usage(line: str, text: str) -> None:
    assert text in run(line, 1)
    assert not Path("K.zarr").exists()


def test_wrong_usage_of_a_store() -> None:
    run("kernel net.py:net x.npy -o K.zarr --tile 16")
    assert "differs in" in run("kernel net.py:other x.npy -o K.zarr --tile 16 --resume", 1)
    assert "--memory 3" in run("fit K.zarr y.npy --noise 0.1 --memory 3", 1)
    assert "there is no file model.npz" in run("predict net.py:net K.zarr new.npy", 1)
    run("fit K.zarr y.npy --noise 0.1")
    assert "differs in" in run("predict net.py:other K.zarr new.npy", 1)
    Path("model.npz").write_bytes(b"no")
    assert "is not a saved model" in run("predict net.py:net K.zarr new.npy", 1)
