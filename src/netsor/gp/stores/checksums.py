"""Checksums of the files of a store.

Beside each file stands its checksum, in a file with the suffix `.sum`: eight hexadecimal digits over the
place of the file in the store and its bytes, so a file in the place of another one is noticed, too. A chunk
ends with a CRC-32C of its own, which Zarr compares whenever it reads the chunk; there the checksum is over
these four bytes alone, and costs nothing.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from netsor.errors import DataError

__all__ = ["CRC", "DIGITS", "SUM", "checksum", "damage", "is_chunk"]

SUM, DIGITS = ".sum", 8
CRC = 4  # bytes at the end of a chunk
AGAIN = "Run ns.gp.store(..., verify=True), on the command line --verify: it computes such tiles again."


def is_chunk(key: str) -> bool:
    """Whether a key is the place of a chunk: array/c/0/1."""
    return "/c/" in key


def checksum(key: str, content: bytes | memoryview) -> bytes:
    """The checksum of a file at its place."""
    whole = memoryview(content)
    return b"%08x" % zlib.crc32(whole[-CRC:] if is_chunk(key) else whole, zlib.crc32(key.encode()))


def damage(store: Path, key: str, what: str) -> DataError:
    """The error of a file that is not as it was written, with what can be done about its array."""
    array = key.split("/")[0]
    if is_chunk(key) and array.removesuffix("_error") in ("K", "NNGP"):
        remedy = AGAIN
    elif array.startswith("cholesky_"):
        remedy = f"Remove the folder {store / array}, and fit again."
    else:
        remedy = f"Remove the folder {store}, and store the kernel again."
    return DataError(f"{store / key} {what}", remedy=remedy)
