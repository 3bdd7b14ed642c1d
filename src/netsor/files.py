"""Files that are never half-written: everything goes to a temporary file that then takes the name."""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

__all__ = ["DAMAGED", "replacing", "write_csv", "write_npz", "write_text"]

DAMAGED = (  # what NumPy and zipfile raise on a damaged .npz file
    *(ValueError, KeyError, OSError, EOFError, NotImplementedError, RuntimeError),
    *(BadZipFile, struct.error, zlib.error),
)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; it takes the name when the block ends well, else it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """A text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_npz(path: Path, arrays: Mapping[str, np.ndarray | str | int | float]) -> None:
    """Named arrays."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **{name: np.asarray(array) for name, array in arrays.items()})  # type: ignore[arg-type]


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; numbers with all digits that a float64 has."""
    lines = [",".join(map(_cell, row)) for row in (header, *rows)]
    write_text(path, "\n".join(lines) + "\n")


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        return repr(float(value))
    text = str(value)
    return f'"{text}"' if "," in text else text
