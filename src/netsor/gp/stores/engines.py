"""Engines that compute the tiles of a store: this process, several processes, or a Dask cluster.

The store is the only state. An engine distributes the missing tiles. Any of its processes may be killed at
any time; only the tiles in progress are lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import get_context, parent_process
from threading import Thread

from netsor import arguments
from netsor.errors import DataError
from netsor.gp.stores.compute import compute_tile, read_networks
from netsor.gp.stores.dask import Engine, completed, connected, is_dask, keep_memory
from netsor.gp.stores.grid import Tile
from netsor.gp.stores.store import Store
from netsor.threads import THREADS, cores

Advance = Callable[[], None]


def compute_all(store: Store, tiles: list[Tile], engine: Engine, advance: Advance) -> None:
    """Compute the given tiles, and call `advance` after each."""
    if engine is None:
        _in_this_process(store, tiles, advance)
    elif isinstance(engine, int) and not isinstance(engine, bool) and engine >= 1:
        _in_processes(store, tiles, engine, advance)
    elif is_dask(engine):
        _on_cluster(store, tiles, engine, advance)
    else:
        raise DataError(
            f"engine={arguments.shown(engine)}",
            remedy="Give None (this process), a number of processes, a Dask client or a scheduler's address.",
        )


def _in_this_process(store: Store, tiles: list[Tile], advance: Advance) -> None:
    pool = ThreadPoolExecutor(2)  # a tile is written while the next one is computed
    try:
        for _ in pool.map(lambda tile: compute_tile(store, *tile), tiles):
            advance()
    finally:
        pool.shutdown(cancel_futures=True)


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
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(2)


def _on_cluster(store: Store, tiles: list[Tile], engine: Engine, advance: Advance) -> None:
    """Compute tiles on Dask workers, which read inputs from the store and write tiles to it."""
    packed_store = packed(store)
    with connected(engine) as client:
        for _ in completed(client, _compute_on_worker, ((packed_store, *tile) for tile in tiles)):
            advance()


def _compute_on_worker(packed_store: bytes, i: int, j: int) -> None:
    """Compute a tile with as many threads as the Dask worker has."""
    from distributed import get_worker

    os.environ[THREADS] = str(get_worker().state.nthreads)
    keep_memory()
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
