"""One run at a time writes a store, or several that have divided its tiles (`part`).

The lock is one of the operating system, so it ends with the process, however that ends. Where a file system
has none, nothing is locked: every tile is written whole, so two runs only do the same work twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from netsor.errors import DataError

__all__ = ["writing"]

NAME = "writers.lock"


@contextmanager
def writing(path: Path, shared: bool) -> Iterator[None]:
    """Hold the store at `path`, alone or (`shared`) with others that do so, too."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with _opened(path / NAME) as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"another process is writing {path}",
                remedy="Wait for it (`netsor status` shows how far it is), or let several share the work: "
                "part=(1, 2) and part=(2, 2), on the command line --part 1/2 and --part 2/2.",
            ) from None
        except OSError as error:
            if error.errno not in (getattr(os, "ENOTSUP", 95), 37, 38, 95):  # no locks on this file system
                raise
        yield


def _opened(path: Path) -> TextIO:
    """The file of the lock; a pipe in its place would be waited for."""
    try:
        return open(path, "a", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK, 0o666))
    except OSError as error:
        raise DataError(
            f"the lock {path} cannot be opened: {error.strerror or error}",
            remedy="A store is written by those who may write its folder. If it is no file, remove it.",
        ) from None
