"""Clusters of Dask, for tiles and for solves: a client, errors in our words, tasks one window at a time."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from typing import Any

from netsor.errors import DataError

__all__ = ["completed", "connected", "is_dask", "keep_memory"]

AHEAD = 3  # tasks that wait at each thread of a worker
RETRIES = 3  # of a task whose worker is lost
TRIM, MMAP = (-1, 2**26), (-3, 2**25)  # options of malloc, and what glibc would raise them to by itself
CONNECT, ASK = 10, 5  # seconds that a scheduler has to answer; how often it is asked for its workers


def is_dask(engine: Any) -> bool:
    """Whether an engine is a client, or the address of a scheduler."""
    address = isinstance(engine, str) and ":" in engine
    return address or (hasattr(engine, "submit") and not isinstance(engine, type))


@contextmanager
def connected(engine: Any) -> Iterator[Any]:
    """A client, one of our own if the engine is an address; what a cluster can do to us in our words."""
    if find_spec("distributed") is None:
        raise DataError("distributed is missing", remedy="Install netsor[scale].")
    from distributed import Client, KilledWorker

    own = None
    try:
        if isinstance(engine, str):
            own = Client(engine, set_as_default=False, timeout=CONNECT)
        yield own or engine
    except KilledWorker as error:
        raise DataError(
            f"the workers of a tile were lost again and again: {error}",
            remedy="Is there enough memory? Smaller tiles need less. On machines that may go away raise "
            "Dask's distributed.scheduler.allowed-failures.",
        ) from error
    except (CancelledError, OSError, TimeoutError) as error:
        raise DataError(
            f"there is no connection to the Dask scheduler: {error}",
            remedy="All that is written is kept. Start the cluster, and run it again.",
        ) from error
    finally:
        if own is not None:
            own.close()


def completed(client: Any, task: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """The results of task(*item) as they come.

    A few tasks wait at each worker, however many there are, and however many workers come and go.
    """
    from distributed import as_completed

    waiting, going, room, asked = iter(items), as_completed(loop=client.loop), 0, 0.0
    while True:
        if time.monotonic() - asked > ASK:
            room, asked = AHEAD * max(1, sum(client.nthreads().values())), time.monotonic()
        for item in islice(waiting, max(0, room - going.count())):
            going.add(client.submit(task, *item, pure=False, retries=RETRIES))
        if going.is_empty():
            return
        yield next(going).result()


def keep_memory() -> None:
    """Let a worker use freed memory again, as any other process does.

    Dask starts workers with a low MALLOC_TRIM_THRESHOLD_, and glibc with any value of it maps every larger
    array anew, page by page: tiles took three times as long.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # there is none on other systems
    if mallopt is not None:
        mallopt(*MMAP)
        mallopt(*TRIM)
