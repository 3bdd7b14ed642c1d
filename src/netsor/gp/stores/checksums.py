"""Checksums of the files of a store.

Each file has its checksum in a second file with the suffix `.sum`: eight hexadecimal digits, the CRC-32 of
the file's key and bytes. The key is included so that swapped files are noticed. A chunk ends with a CRC-32C,
which Zarr compares whenever it reads the chunk; so for chunks our checksum covers only these four bytes.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from netsor.errors import DataError

SUM = ".sum"
CRC = 4  # bytes at the end of a chunk


def is_chunk(key: str) -> bool:
    """Whether a key names a chunk: array/c/0/1."""
    return "/c/" in key


def checksum(key: str, content: bytes | memoryview) -> bytes:
    """The checksum of a file's key and bytes."""
    whole = memoryview(content)
    return b"%08x" % zlib.crc32(whole[-CRC:] if is_chunk(key) else whole, zlib.crc32(key.encode()))


def damage(store: Path, key: str, what: str) -> DataError:
    """Return the error about a changed file; its remedy depends on the array."""
    array = key.split("/")[0]
    if is_chunk(key) and array.removesuffix("_error") in ("K", "NNGP"):
        remedy = (
            "Run ns.gp.store(..., verify=True), on the command line --verify: it computes such tiles again."
        )
    elif array.startswith("cholesky_"):
        remedy = f"Remove the folder {store / array}, and fit again."
    else:
        remedy = f"Remove the folder {store}, and store the kernel again."
    return DataError(f"{store / key} {what}", remedy=remedy)
