"""Labelled images from files of your own: the idx format of MNIST, and CIFAR-10. Nothing is downloaded."""

from __future__ import annotations

import gzip
import pickle
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from netsor.data.cifar import as_images, read_batch
from netsor.errors import DataError

__all__ = ["Labelled", "labelled_cifar10", "mnist", "read_idx"]

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MNIST_PARTS = {"train": "train", "test": "t10k"}
CIFAR_PARTS = {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}
CIFAR_FOLDERS = ("", "cifar-10-batches-py", "cifar-10-batches-bin")


@dataclass(frozen=True)
class Labelled:
    """Images of shape (count, height, width, channels) with values in [0, 1], and their labels."""

    images: np.ndarray
    labels: np.ndarray


def read_idx(path: str | Path) -> np.ndarray:
    """The array in an idx file, which may be compressed by gzip."""
    raw = _bytes(Path(path))
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES:
        raise DataError(f"{path} is not an idx file", remedy="It begins with two zeros, a type and a rank.")
    rank, kind = raw[3], np.dtype(IDX_TYPES[raw[2]])
    start = 4 + 4 * rank
    shape = struct.unpack(f">{rank}I", raw[4:start]) if len(raw) >= start else ()
    if len(raw) < start or len(raw) - start != prod(shape) * kind.itemsize:
        raise DataError(f"{path} is cut short or too long for its shape {shape}", remedy="Get it again.")
    return np.frombuffer(raw, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error})", remedy="Give the path of a file.") from None


def mnist(folder: str | Path, part: str = "train") -> Labelled:
    """The images and labels of MNIST, or of data in its format: part "train" or "test"."""
    prefix = _part(part, MNIST_PARTS)
    images, labels = (read_idx(_find_idx(Path(folder), f"{prefix}-{kind}")) for kind in ("images", "labels"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{folder} has images of shape {images.shape} and labels of shape {labels.shape}",
            remedy="They are (count, height, width) and (count,).",
        )
    return Labelled(images[..., None] / 255, labels.astype(np.int64))


def _find_idx(folder: Path, stem: str) -> Path:
    found = sorted(p for p in folder.glob(f"{stem}*") if p.is_file() and "idx" in p.name)
    if not found:
        raise DataError(
            f"there is no file {stem}-idx?-ubyte in {folder}", remedy="Give the folder with the four files."
        )
    return found[0]


def _part(part: str, known: dict[str, str]) -> str:
    if part not in known:
        raise DataError(f"part={part!r}", remedy=f"Choose one of {', '.join(known)}.")
    return known[part]


def labelled_cifar10(folder: str | Path, part: str = "train") -> Labelled:
    """The images and labels of CIFAR-10, in its Python or its binary version: part "train" or "test".

    Batches that are not there are left out, but one must be.
    """
    names = CIFAR_PARTS.get(part) or CIFAR_PARTS[_part(part, dict.fromkeys(CIFAR_PARTS, ""))]
    root = Path(folder)
    paths = [root / sub / f"{name}{end}" for name in names for sub in CIFAR_FOLDERS for end in ("", ".bin")]
    batches = [_cifar_batch(path) for path in paths if path.is_file()]
    if not batches:
        raise DataError(
            f"there is no CIFAR-10 batch in {folder}", remedy=f"Give the folder that holds {names[0]}."
        )
    rows, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return Labelled(as_images(rows), labels.astype(np.int64))


def _cifar_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        rows, labels = read_batch(path)
        if labels.shape != rows.shape[:1]:
            raise ValueError(f"{len(rows)} images and labels of shape {labels.shape}")
        return rows, labels
    except (OSError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(f"{path} is not a batch of CIFAR-10 ({error})", remedy="Get it again.") from None
