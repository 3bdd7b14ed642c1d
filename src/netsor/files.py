"""Write files that are never half-written: a temporary file takes the name when it is complete.

A sealed .npz file ends with the SHA-256 of all bytes before it, as the comment of its archive.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from netsor.errors import DataError, FileError

Arrays = Mapping[str, np.ndarray | str | int | float]
SEAL = hashlib.sha256().digest_size * 2  # hexadecimal digits
DAMAGED = (  # what NumPy, zipfile and zlib raise when they read a damaged .npy or .npz file
    *(ValueError, KeyError, OSError, EOFError, NotImplementedError, RuntimeError, AttributeError),
    *(TypeError, OverflowError, SyntaxError, MemoryError, BadZipFile, struct.error, zlib.error),
)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` if the block succeeds, and is removed otherwise.

    Errors of the operating system, also those raised in the block, become a `FileError`.
    """
    # In the same folder, so that renaming is atomic; of a long name the beginning, as names have a maximum.
    temporary = path.with_name(f".{path.stem[:40]}-{token_hex(8)}{path.suffix[:40]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            f"{_shown(path)} cannot be written: {error.strerror or error}",
            remedy="Nothing has changed. Make room, or give another path.",
        ) from error


def _shown(path: Path) -> str:
    """A path in a message, shortened to 200 characters."""
    text = str(path)
    return text if len(text) <= 200 else f"{text[:200]}..."


def read_regular(path: Path) -> bytes:
    """Read a regular file. Pipes and devices are refused, because reading them may block forever."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is not a file")
    with open(handle, "rb") as file:
        return file.read()


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_npz(path: Path, arrays: Arrays, *, sealed: bool = False) -> None:
    """Write named arrays; a sealed file is compressed."""
    with replacing(path) as temporary, temporary.open("w+b") as file:
        # np.savez before NumPy 2.2 leaves the archive open when the disk is full.
        with ZipFile(file, "w", ZIP_DEFLATED if sealed else ZIP_STORED) as archive:
            for name, array in arrays.items():
                # An entry of unknown size may have more than 2 GiB only with force_zip64.
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
        if sealed:
            file.seek(-2, os.SEEK_END)
            file.write(struct.pack("<H", SEAL))  # the length of the comment that ends the archive
            file.seek(0)
            seal = hashlib.file_digest(file, "sha256").hexdigest()
            file.write(seal.encode())


def read_sealed_npz(path: Path, remedy: str) -> dict[str, np.ndarray]:
    """Read the arrays of a sealed file; a changed file is refused before any of it is parsed."""
    try:
        content = read_regular(path)
    except FileNotFoundError:
        raise DataError(f"there is no file {_shown(path)}", remedy=remedy) from None
    except OSError as error:
        raise DataError(f"{_shown(path)} cannot be read: {error.strerror or error}", remedy=remedy) from None
    if hashlib.sha256(memoryview(content)[:-SEAL]).hexdigest().encode() != content[-SEAL:]:
        raise DataError(
            f"{_shown(path)} is not a saved model: its checksum is missing or wrong, so it is damaged or was "
            "written by an earlier version",
            remedy=remedy,
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; numbers have all digits of a float64."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_text(path, text.getvalue())
