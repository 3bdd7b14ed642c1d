"""CIFAR-10 images from files of the user's own; nothing is downloaded."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from netsor.errors import DataError


class _ArraysOnly(pickle.Unpickler):
    """Read the arrays of the Python version of CIFAR-10 and refuse everything else: a pickle can run code."""

    def find_class(self, module: str, name: str) -> object:
        arrays = module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
        if arrays and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not an array")


def cifar10(path: str | Path, count: int = 64) -> np.ndarray:
    """Read the first images of CIFAR-10.

    Parameters
    ----------
    path
        The file data_batch_1 or data_batch_1.bin, a folder that holds it, or a .npy array of images of
        shape (images, 32, 32, 3).
    count
        How many images to read.

    Returns
    -------
    np.ndarray
        Images of shape (count, 32, 32, 3) with values in [0, 1].

    Raises
    ------
    DataError
        If there is no such file, or if it does not hold so many images.
    """
    given = Path(path)
    file = find_batch(given, "data_batch_1") or given
    remedy = (
        "Give data_batch_1 or data_batch_1.bin of CIFAR-10, the folder that holds it, or a .npy array of "
        "images (images, 32, 32, 3)."
    )
    if not file.is_file():
        raise DataError(f"there are no CIFAR-10 images at {given}", remedy=remedy)
    try:
        if file.suffix == ".npy":
            stored = np.load(file, allow_pickle=False)
            images = stored.astype(float) / (255 if stored.dtype == np.uint8 else 1)
        else:
            images = as_images(read_batch(file)[0])
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file} holds no CIFAR-10 images ({error})", remedy=remedy) from None
    if images.ndim != 4 or len(images) < count:
        raise DataError(f"{file} has images of shape {images.shape}, not {count} of them", remedy=remedy)
    return images[:count]


def find_batch(folder: Path, name: str) -> Path | None:
    """Find a batch in a folder, or in those that the archives of CIFAR-10 unpack to."""
    places = [folder / inner for inner in ("", "cifar-10-batches-py", "cifar-10-batches-bin")]
    paths = [place / f"{name}{suffix}" for place in places for suffix in ("", ".bin")]
    return next((path for path in paths if path.is_file()), None)


def read_batch(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read rows of 3,072 bytes and labels, in the binary or the Python version; a ValueError if damaged."""
    if file.suffix == ".bin":  # each record is a label and three planes of 32 x 32 bytes
        table = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 1 + 3072)
        return table[:, 1:], table[:, 0]
    try:
        with file.open("rb") as stream:
            stored = _ArraysOnly(stream, encoding="bytes").load()
        rows = np.asarray(stored[b"data"], np.uint8).reshape(-1, 3072)
        return rows, np.asarray(stored.get(b"labels", np.zeros(len(rows))))
    except (KeyError, TypeError, pickle.UnpicklingError) as error:
        raise ValueError(str(error)) from None


def as_images(rows: np.ndarray) -> np.ndarray:
    """Rows of bytes, channel by channel, as images (count, 32, 32, 3) with values in [0, 1]."""
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) / 255
