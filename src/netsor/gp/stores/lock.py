"""The lock of a store: one run writes it, or several runs that divide its tiles (`part`).

The operating system holds the lock, so it ends with the process. On a file system without locks two runs may
compute the same tiles twice, which is harmless because each tile is written as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from netsor.errors import DataError


@contextmanager
def writing(path: Path, shared: bool) -> Iterator[None]:
    """Hold the lock of the store at `path`: exclusively, or (`shared`) together with other shared holders."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with _opened(path / "writers.lock") as file:
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
    """Open the lock file. O_NONBLOCK matters if a named pipe has taken its place: opening it would hang."""
    try:
        return open(path, "a", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK, 0o666))
    except OSError as error:
        raise DataError(
            f"the lock {path} cannot be opened: {error.strerror or error}",
            remedy="A store is written by those who may write its folder. If it is no file, remove it.",
        ) from None
