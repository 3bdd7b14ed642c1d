"""Engines that compute the tiles of a store: this process, several processes, or a Dask cluster.

The store is the only state. An engine distributes the missing tiles. Any of its processes may be killed at
any time; only the tiles in progress are lost.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

from netsor import arguments
from netsor.errors import DataError
from netsor.gp.stores.compute import compute_tile, read_networks
from netsor.gp.stores.grid import Tile
from netsor.gp.stores.store import Store, require_extra
from netsor.threads import THREADS, cores

if TYPE_CHECKING:
    from distributed import Client

Advance = Callable[[], None]

# None: this process. A number of processes, a client of Dask, or the address of its scheduler.
Engine: TypeAlias = "int | str | Client | None"


def compute_all(store: Store, tiles: list[Tile], engine: Engine, advance: Advance) -> None:
    """Compute the given tiles, and call `advance` after each."""
    if engine is None:
        with ThreadPoolExecutor(2) as pool:  # a tile is written while the next one is computed
            try:
                for _ in pool.map(lambda tile: compute_tile(store, *tile), tiles):
                    advance()
            finally:
                pool.shutdown(cancel_futures=True)
    elif arguments.is_integer(engine, 1):
        _in_processes(store, tiles, engine, advance)
    elif ":" in engine if isinstance(engine, str) else hasattr(type(engine), "submit"):
        packed_store = packed(store)
        with connected(engine) as client:
            for _ in completed(client, _compute_on_worker, ((packed_store, *tile) for tile in tiles)):
                advance()
    else:
        raise DataError(
            f"engine={arguments.shown(engine)}",
            remedy="Give None (this process), a number of processes, a Dask client or a scheduler's address.",
        )


def _in_processes(store: Store, tiles: list[Tile], count: int, advance: Advance) -> None:
    """Compute tiles in `count` processes; restart lost processes as long as some tile is finished."""
    packed_store = packed(store)
    while tiles:
        workers = min(count, len(tiles))
        threads = max(1, cores() // workers)
        # A forked process would inherit locks that threads hold, without the threads that release them.
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (threads,))
        try:
            for tile in as_completed([pool.submit(_compute, packed_store, *tile) for tile in tiles]):
                tile.result()
                advance()
            return
        except BrokenProcessPool as error:
            missing = set(store.missing())
            left = [tile for tile in tiles if tile in missing]
            if len(left) == len(tiles):
                raise DataError(
                    f"{len(left)} tiles of {store.path} are missing: the processes ended before one came",
                    remedy="All other tiles are kept. Is there enough memory for so many processes? A script "
                    'that starts processes has its calls under `if __name__ == "__main__":`.',
                ) from error
            tiles = left
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(threads: int) -> None:
    """Prepare a worker process, which exits with its parent, even if that is killed."""
    os.environ[THREADS] = str(threads)
    parent = parent_process()
    assert parent is not None
    Thread(target=lambda: (parent.join(), os._exit(2)), daemon=True).start()


def _compute_on_worker(packed_store: bytes, i: int, j: int) -> None:
    """Compute a tile with as many threads as the Dask worker has.

    Dask sets MALLOC_TRIM_THRESHOLD_ for its workers. With any value of it, glibc stops adapting its
    thresholds and maps every larger array anew, page by page, which makes tiles several times slower.
    """
    from distributed import get_worker

    os.environ[THREADS] = str(get_worker().state.nthreads)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if mallopt is not None:  # the values that glibc's own adaptation reaches
        mmap_threshold, trim_threshold = -3, -1
        mallopt(mmap_threshold, 2**25)
        mallopt(trim_threshold, 2**26)
    _compute(packed_store, i, j)


def _compute(packed_store: bytes, i: int, j: int) -> None:
    store = opened(packed_store)
    if not store.has(i, j):  # a lost process may have written it before it could report
        compute_tile(store, i, j)


def packed(store: Store) -> bytes:
    """Pickle a store with its kernel for another process; trace the network first, so workers need not."""
    import cloudpickle

    read_networks(store)
    return cloudpickle.dumps((store.path.resolve(), store.kernel))


@lru_cache(maxsize=4)
def opened(packed_store: bytes) -> Store:
    """Open a pickled store once per process."""
    import cloudpickle

    return Store(*cloudpickle.loads(packed_store))


# Clusters of Dask


@contextmanager
def connected(engine: Engine) -> Iterator[Any]:
    """Connect to a cluster, and translate its failures to errors with remedies."""
    require_extra("distributed")
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
    from distributed import as_completed as as_finished

    ahead, interval = 3, 5.0  # tasks for each thread of a worker; seconds until workers are counted again
    waiting, going, most, asked = iter(items), as_finished(loop=client.loop), 0, 0.0
    while True:
        if time.monotonic() - asked > interval:
            most, asked = ahead * max(1, sum(client.nthreads().values())), time.monotonic()
        for item in islice(waiting, max(0, most - going.count())):
            going.add(client.submit(task, *item, pure=False, retries=3))  # retry tasks of lost workers
        if going.is_empty():
            return
        yield next(going).result()
