"""The idx format and CIFAR-10, from files that the tests write by the formats' descriptions."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from netsor.data.labelled import labelled_cifar10, mnist, read_idx
from netsor.errors import DataError

RNG = np.random.default_rng(0)


def idx(array: np.ndarray, code: int) -> bytes:
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")]
)
def test_every_type_of_idx(code: int, dtype: str, tmp_path: Path) -> None:
    array = RNG.integers(0, 100, (3, 2, 4)).astype(dtype)
    (tmp_path / "plain").write_bytes(idx(array, code))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(idx(array, code)))
    for name in ("plain", "packed.gz"):
        found = read_idx(tmp_path / name)
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype


def test_mnist(tmp_path: Path) -> None:
    images, labels = RNG.integers(0, 256, (5, 4, 3)).astype("u1"), np.arange(5, dtype="u1")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images, 8))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels, 8)))
    found = mnist(tmp_path)
    np.testing.assert_allclose(found.images[..., 0] * 255, images)
    np.testing.assert_array_equal(found.labels, labels)
    with pytest.raises(DataError, match="no file t10k-images"):
        mnist(tmp_path, "test")
    with pytest.raises(DataError, match="part='all'"):
        mnist(tmp_path, "all")
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(idx(labels[:4], 8))
    with pytest.raises(DataError, match="labels of shape"):
        mnist(tmp_path)


@pytest.mark.parametrize(
    "raw", [b"", b"\0\0\x08", b"\1\0\x08\1", b"\0\0\x07\1\0\0\0\0", b"\0\0\x08\2\0\0\0\1"]
)
def test_bad_idx(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(raw)
    with pytest.raises(DataError):
        read_idx(tmp_path / "bad")
    (tmp_path / "short").write_bytes(idx(np.zeros(4, "u1"), 8)[:-1])
    with pytest.raises(DataError, match="cut short"):
        read_idx(tmp_path / "short")
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "missing")


def test_cifar10(tmp_path: Path) -> None:
    """Both versions: rows are red, green and blue planes, each row by row."""
    rows, labels = RNG.integers(0, 256, (4, 3072)).astype("u1"), np.array([3, 1, 9, 0])
    binary, python = tmp_path / "bin", tmp_path / "py"
    binary.mkdir()
    (python / "cifar-10-batches-py").mkdir(parents=True)
    for k in (1, 2):
        part = slice(2 * k - 2, 2 * k)
        table = np.hstack([labels[part, None].astype("u1"), rows[part]])
        (binary / f"data_batch_{k}.bin").write_bytes(table.tobytes())
        stored = {b"data": rows[part], b"labels": labels[part].tolist()}
        (python / "cifar-10-batches-py" / f"data_batch_{k}").write_bytes(pickle.dumps(stored, protocol=2))
    for folder in (binary, python):
        found = labelled_cifar10(folder)
        np.testing.assert_array_equal(found.labels, labels)
        for i, y, x, c in [(0, 0, 0, 0), (1, 5, 7, 1), (3, 31, 30, 2)]:
            assert found.images[i, y, x, c] == rows[i, 1024 * c + 32 * y + x] / 255
    with pytest.raises(DataError, match="no CIFAR-10 batch"):
        labelled_cifar10(tmp_path)
    with pytest.raises(DataError, match="part="):
        labelled_cifar10(binary, "valid")


class _Code:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("run",)


def test_a_pickle_of_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": _Code(), b"labels": [0]}))
    with pytest.raises(DataError, match="not a batch"):
        labelled_cifar10(tmp_path)
    assert capsys.readouterr().out == ""
