"""Labelled images from files of your own: the idx format of MNIST, and CIFAR-10. Nothing is downloaded."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from netsor.arguments import choice
from netsor.data.cifar import as_images, find_batch, read_batch
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
    images, labels = (read_idx(_find_idx(Path(folder), f"{prefix}-{kind}")) for kind in ("images", "labels"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{folder} has images of shape {images.shape} and labels of shape {labels.shape}",
            remedy="They are (count, height, width) and (count,).",
        )
    return Labelled(images[..., None] / 255, labels.astype(np.int64))


def _find_idx(folder: Path, stem: str) -> Path:
    paths = sorted(path for path in folder.glob(f"{stem}*") if path.is_file() and "idx" in path.name)
    if not paths:
        raise DataError(
            f"there is no file {stem}-idx?-ubyte in {folder}", remedy="Give the folder with the four files."
        )
    return paths[0]


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
    paths = [path for name in names if (path := find_batch(Path(folder), name))]
    if not paths:
        raise DataError(
            f"there is no CIFAR-10 batch in {folder}", remedy=f"Give the folder that holds {names[0]}."
        )
    batches = []
    for path in paths:
        try:
            rows, labels = read_batch(path)
            if labels.shape != rows.shape[:1]:
                raise ValueError(f"{len(rows)} images and labels of shape {labels.shape}")
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path} is not a batch of CIFAR-10 ({error})", remedy="Get it again.") from None
        batches.append((rows, labels))
    rows, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return Labelled(as_images(rows), labels.astype(np.int64))
