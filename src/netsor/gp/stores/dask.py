"""Clusters of Dask: connect, explain failures, submit tasks a few at a time."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from netsor.errors import DataError

if TYPE_CHECKING:
    from distributed import Client

# None: this process. A number of processes, a client of Dask, or the address of its scheduler.
Engine: TypeAlias = "int | str | Client | None"


def is_dask(engine: object) -> bool:
    """Whether an engine is a Dask client or the address of a scheduler."""
    address = isinstance(engine, str) and ":" in engine
    return address or (hasattr(engine, "submit") and not isinstance(engine, type))


@contextmanager
def connected(engine: Engine) -> Iterator[Any]:
    """Connect to a cluster, and translate its failures to errors with remedies."""
    if find_spec("distributed") is None:
        raise DataError("distributed is missing", remedy="Install netsor[scale].")
    from distributed import Client, KilledWorker

    client = None
    try:
        if isinstance(engine, str):
            client = Client(engine, set_as_default=False, timeout=10)
        yield client or engine
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
        if client is not None:
            client.close()


def completed(client: Any, task: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield the results of task(*item) in the order in which they finish.

    Only a few tasks per worker are submitted at a time, so the scheduler's memory does not grow with the
    number of items, and workers may join and leave.
    """
    from distributed import as_completed

    ahead, interval = 3, 5.0  # tasks for each thread of a worker; seconds until workers are counted again
    waiting, going, most, asked = iter(items), as_completed(loop=client.loop), 0, 0.0
    while True:
        if time.monotonic() - asked > interval:
            most, asked = ahead * max(1, sum(client.nthreads().values())), time.monotonic()
        for item in islice(waiting, max(0, most - going.count())):
            going.add(client.submit(task, *item, pure=False, retries=3))  # retry tasks of lost workers
        if going.is_empty():
            return
        yield next(going).result()


def keep_memory() -> None:
    """Let a worker reuse freed memory, as other processes do.

    Dask sets MALLOC_TRIM_THRESHOLD_ for its workers. With any value of it, glibc stops adapting its
    thresholds and maps every larger array anew, page by page, which makes tiles several times slower.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if mallopt is not None:  # the values that glibc's own adaptation reaches
        mmap_threshold, trim_threshold = -3, -1
        mallopt(mmap_threshold, 2**25)
        mallopt(trim_threshold, 2**26)
