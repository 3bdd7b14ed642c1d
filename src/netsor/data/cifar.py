"""CIFAR-10 images from files of the user's own; nothing is downloaded."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from netsor.errors import DataError

__all__ = ["as_images", "cifar10", "read_batch"]

RECORD = 1 + 3 * 32 * 32
REMEDY = (
    "Give data_batch_1 or data_batch_1.bin of CIFAR-10, the folder that holds it, or a .npy array of images "
    "(images, 32, 32, 3)."
)


class _ArraysOnly(pickle.Unpickler):
    """Reads the arrays of the Python version of CIFAR-10 and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        arrays = module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
        if arrays and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not an array")


def cifar10(path: str | Path, count: int = 64) -> np.ndarray:
    """The first images: array (count, 32, 32, 3) with values in [0, 1]."""
    file = _find(Path(path))
    try:
        images = _read(file)
    except (OSError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(f"{file} holds no CIFAR-10 images ({error})", remedy=REMEDY) from None
    if images.ndim != 4 or len(images) < count:
        raise DataError(f"{file} has images of shape {images.shape}, not {count} of them", remedy=REMEDY)
    return images[:count]


def _find(path: Path) -> Path:
    """The first batch in a folder, or the file itself."""
    if path.is_dir():
        for folder in ("", "cifar-10-batches-py", "cifar-10-batches-bin"):
            for name in ("data_batch_1", "data_batch_1.bin"):
                if (path / folder / name).is_file():
                    return path / folder / name
    if not path.is_file():
        raise DataError(f"there are no CIFAR-10 images at {path}", remedy=REMEDY)
    return path


def _read(file: Path) -> np.ndarray:
    if file.suffix == ".npy":
        images = np.load(file, allow_pickle=False)
        return images.astype(float) / (255 if images.dtype == np.uint8 else 1)
    return as_images(read_batch(file)[0])


def read_batch(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 3,072 bytes and labels of one batch, in the binary or the Python version of CIFAR-10."""
    if file.suffix == ".bin":
        table = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, RECORD)
        return table[:, 1:], table[:, 0]
    with file.open("rb") as stream:
        stored = _ArraysOnly(stream, encoding="bytes").load()
    rows = np.asarray(stored[b"data"], np.uint8).reshape(-1, RECORD - 1)
    return rows, np.asarray(stored.get(b"labels", np.zeros(len(rows))))


def as_images(rows: np.ndarray) -> np.ndarray:
    """Rows of bytes as images (count, 32, 32, 3) with values in [0, 1]."""
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) / 255
