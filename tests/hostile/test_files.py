"""Paths that are files, folders or too long, and disks that are full: a NetsorError, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor import zoo
from netsor.errors import DataError, FileError, NetsorError
from netsor.files import write_csv, write_npz, write_text

resource = pytest.importorskip("resource")  # not on Windows

X = np.random.default_rng(2).standard_normal((6, 3))
Y = np.sin(X[:, 0])
LONG = "n" * 300
K = ns.kernel(zoo.mlp(1))
MODEL = ns.gp.fit(K, X, Y, noise=0.1)


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file can have more than so many bytes: the operating system refuses, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITERS: dict[str, Callable[[Path], Any]] = {
    "model": MODEL.save,
    "classifier": lambda path: ns.gp.save(ns.gp.classify(K, X, np.arange(6) % 2), path),
    "npz": lambda path: write_npz(path, {"x": X}),
    "text": lambda path: write_text(path, "x" * 1000),
    "csv": lambda path: write_csv(path, ["a"], [[1.5]] * 100),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_keeps_what_is_there(name: str, tmp_path: Path) -> None:
    file = tmp_path / "file.npz"
    file.write_bytes(b"before")
    with full_disk(100), pytest.raises(FileError, match="cannot be written: File too large"):
        WRITERS[name](file)
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("room", [0, 100, 300, 600])
def test_a_full_disk_and_a_store(room: int, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    path = tmp_path / "K.zarr"
    with full_disk(room), pytest.raises(DataError, match="cannot be written: File too large"):
        ns.gp.fit(ns.gp.store(K, X, path), Y, noise=0.1)
    np.testing.assert_array_equal(ns.gp.store(K, X, path).read(), K(X))
    assert [file.name for file in tmp_path.iterdir()] == ["K.zarr"]


@pytest.mark.parametrize("name", WRITERS)
def test_names_of_files(name: str, tmp_path: Path) -> None:
    """A name that the folder can hold can be written, whatever its temporary name is."""
    WRITERS[name](tmp_path / ("n" * 255))
    WRITERS[name](tmp_path / ("n" * 251 + ".npz"))
    WRITERS[name](tmp_path / ("n." + "x" * 253))
    assert len(list(tmp_path.iterdir())) == 3
    for path in (tmp_path / LONG, tmp_path / "new" / LONG / "file", tmp_path / "/".join(["a" * 200] * 30)):
        with pytest.raises(NetsorError, match=r"(?i)name too long"):
            WRITERS[name](path)
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / "below", tmp_path):
        with pytest.raises(NetsorError):
            WRITERS[name](path)


def test_names_of_stores(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"mine")
    wrong = {
        "file": "no store",
        "folder": "no store",
        "file/K.zarr": "cannot be written",
        LONG: "name too long",
        f"new/{LONG}/K.zarr": "name too long",
    }
    for path, words in wrong.items():
        with pytest.raises(NetsorError, match=f"(?i){words}"):
            ns.gp.store(K, X, tmp_path / path)
        with pytest.raises(NetsorError):
            ns.gp.Store(tmp_path / path)
    assert (tmp_path / "file").read_bytes() == (tmp_path / "folder" / "file").read_bytes() == b"mine"
    ns.gp.store(K, X, tmp_path / ("K" * 255))
    (tmp_path / "empty").mkdir()
    assert ns.gp.store(K, X, tmp_path / "empty").status().done == 1


@pytest.mark.parametrize("path", [LONG, "/".join(["a" * 200] * 30), "\ud800", "a\0b", ""])
def test_no_model_has_such_a_name(path: str) -> None:
    for call in (MODEL.save, lambda path: ns.gp.load(path, zoo.mlp(1)), ns.gp.Store):
        with pytest.raises(DataError, match="path="):
            call(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="it is not a file"):
        ns.gp.load(tmp_path / "pipe", zoo.mlp(1))


def square(x: np.ndarray) -> np.ndarray:
    return x * x


def test_long_names_in_networks(tmp_path: Path) -> None:
    """Of parameters, functions and the network itself: they are names as any other."""

    def build(length: int) -> ns.Network:
        W, b = ns.Matrix(1.0, name="W" * length), ns.Vector(0.1, name="b" * length)
        v = ns.Matrix(1.0, rows=1, name="v" * length)

        def network(x):
            return v @ ns.nonlin(square, W @ x + b, name="f" * length)

        network.__name__ = "n" * length
        return ns.network(network)

    net, short = build(300), build(1)
    np.testing.assert_array_equal(ns.kernel(net)(X), ns.kernel(short)(X))
    np.testing.assert_array_equal(
        ns.kernel(net)(X, params={"W" * 300: 2.0}), ns.kernel(short)(X, params={"W": 2.0})
    )
    assert np.isfinite(ns.simulate(net, X, 8)).all()
    model = ns.gp.fit(ns.kernel(net), X, Y, noise=0.1)
    model.save(tmp_path / "model.npz")
    again = ns.gp.load(tmp_path / "model.npz", net)
    np.testing.assert_array_equal(again.predict(X).mean, model.predict(X).mean)
    assert repr(net)
    assert ns.program(net, X[0])._repr_html_()
    if pytest.importorskip("zarr"):
        store = ns.gp.store(ns.kernel(net), X, tmp_path / "K.zarr")
        np.testing.assert_array_equal(store.read(), ns.kernel(short)(X))
