"""Images from files of your own: the idx format of MNIST, and CIFAR-10. Nothing is downloaded."""

from __future__ import annotations

import gzip
import pickle
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from netsor.arguments import choice
from netsor.errors import DataError


@dataclass(frozen=True)
class Labelled:
    """Images of shape (count, height, width, channels) with values in [0, 1], and their labels."""

    images: np.ndarray
    labels: np.ndarray


def read_idx(path: str | Path) -> np.ndarray:
    """Read an idx file, which may be compressed by gzip.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    np.ndarray
        The array, in the byte order of this machine.

    Raises
    ------
    DataError
        If the file cannot be read or is no complete idx file.
    """
    # Two zeros, a byte for the type, a byte for the rank, the shape as big-endian integers of four bytes,
    # and the numbers.
    types = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
    try:
        content = Path(path).read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error})", remedy="Give the path of a file.") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in types:
        raise DataError(f"{path} is not an idx file", remedy="It begins with two zeros, a type and a rank.")
    rank, dtype = content[3], np.dtype(types[content[2]])
    start = 4 + 4 * rank
    shape = struct.unpack(f">{rank}I", content[4:start]) if len(content) >= start else ()
    if len(content) < start or len(content) - start != prod(shape) * dtype.itemsize:
        raise DataError(f"{path} is cut short or too long for its shape {shape}", remedy="Get it again.")
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def mnist(folder: str | Path, part: str = "train") -> Labelled:
    """Read MNIST, or other data in its format.

    Parameters
    ----------
    folder
        The folder with the four idx files.
    part
        "train" or "test".

    Returns
    -------
    Labelled
        The images, with one channel, and their labels.

    Raises
    ------
    DataError
        If a file is missing or damaged, or if images and labels do not belong together.
    """
    prefix = {"train": "train", "test": "t10k"}[choice("part", part, ("train", "test"))]
    arrays = []
    for stem in (f"{prefix}-images", f"{prefix}-labels"):
        paths = sorted(p for p in Path(folder).glob(f"{stem}*") if p.is_file() and "idx" in p.name)
        if not paths:
            raise DataError(
                f"there is no file {stem}-idx?-ubyte in {folder}",
                remedy="Give the folder with the four files.",
            )
        arrays.append(read_idx(paths[0]))
    images, labels = arrays
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{folder} has images of shape {images.shape} and labels of shape {labels.shape}",
            remedy="They are (count, height, width) and (count,).",
        )
    return Labelled(images[..., None] / 255, labels.astype(np.int64))


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
    file = _find_batch(Path(path), "data_batch_1") or Path(path)
    remedy = (
        "Give data_batch_1 or data_batch_1.bin of CIFAR-10, the folder that holds it, or a .npy array of "
        "images (images, 32, 32, 3)."
    )
    if not file.is_file():
        raise DataError(f"there are no CIFAR-10 images at {path}", remedy=remedy)
    try:
        stored = np.load(file, allow_pickle=False) if file.suffix == ".npy" else _read_batch(file).images
        images = stored.astype(float) / (255 if stored.dtype == np.uint8 else 1)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file} holds no CIFAR-10 images ({error})", remedy=remedy) from None
    if images.ndim != 4 or len(images) < count:
        raise DataError(f"{file} has images of shape {images.shape}, not {count} of them", remedy=remedy)
    return images[:count]


def labelled_cifar10(folder: str | Path, part: str = "train") -> Labelled:
    """Read CIFAR-10, in its Python or its binary version.

    Parameters
    ----------
    folder
        The folder with the batches. Missing batches are left out, but there must be one.
    part
        "train" or "test".

    Returns
    -------
    Labelled
        The images, with three channels, and their labels.

    Raises
    ------
    DataError
        If there is no batch, or if one is damaged.
    """
    training = [f"data_batch_{k}" for k in range(1, 6)]
    names = training if choice("part", part, ("train", "test")) == "train" else ["test_batch"]
    paths = [path for name in names if (path := _find_batch(Path(folder), name))]
    if not paths:
        remedy = f"Give the folder that holds {names[0]}."
        raise DataError(f"there is no CIFAR-10 batch in {folder}", remedy=remedy)
    batches = []
    for path in paths:
        try:
            batches.append(_read_batch(path))
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path} is not a batch of CIFAR-10 ({error})", remedy="Get it again.") from None
    images = np.concatenate([batch.images for batch in batches])
    return Labelled(images / 255, np.concatenate([batch.labels for batch in batches]))


class _ArraysOnly(pickle.Unpickler):
    """Read the arrays of the Python version of CIFAR-10 and refuse everything else: a pickle can run code."""

    def find_class(self, module: str, name: str) -> object:
        module = module.replace("numpy.core", "numpy._core")  # its name before NumPy 2
        allowed = ("numpy._core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype", "_codecs.encode")
        if f"{module}.{name}" in allowed:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not an array")


def _find_batch(folder: Path, name: str) -> Path | None:
    """Find a batch in a folder, or in those that the archives of CIFAR-10 unpack to."""
    places = [folder / inner for inner in ("", "cifar-10-batches-py", "cifar-10-batches-bin")]
    paths = [place / f"{name}{suffix}" for place in places for suffix in ("", ".bin")]
    return next((path for path in paths if path.is_file()), None)


def _read_batch(file: Path) -> Labelled:
    """Read images of bytes, in the binary or the Python version; raise a ValueError if they are damaged."""
    if file.suffix == ".bin":  # each record is a label and three planes of 32 x 32 bytes
        table = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 1 + 3072)
        rows, labels = table[:, 1:], table[:, 0]
    else:
        try:
            with file.open("rb") as stream:
                stored = _ArraysOnly(stream, encoding="bytes").load()
            rows = np.asarray(stored[b"data"], np.uint8).reshape(-1, 3072)
            labels = np.asarray(stored.get(b"labels", np.zeros(len(rows))))
        except (KeyError, TypeError, pickle.UnpicklingError) as error:
            raise ValueError(str(error)) from None
    if labels.shape != rows.shape[:1]:
        raise ValueError(f"{len(rows)} images and labels of shape {labels.shape}")
    return Labelled(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels.astype(np.int64))
