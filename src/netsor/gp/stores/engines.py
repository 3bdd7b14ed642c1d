"""Computation of the tiles of a store by engines: this process, several processes, or a Dask cluster.

The store is the only state. If a process is killed, only its tiles in progress are lost.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice, starmap
from multiprocessing import get_context, parent_process
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from netsor import arguments
from netsor.errors import DataError
from netsor.expect.points.landmark_loadings import Landmarks
from netsor.gp.stores.grid import Tile
from netsor.gp.stores.store import NNGP, Store, require_extra
from netsor.limits import kernel_tiles
from netsor.limits.on_numpy.compiled_loops import is_available
from netsor.limits.result import Result
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

    for i, j in store.grid.tiles()[: 0 if store.landmarks else 2]:  # one on and one off the diagonal
        x, y, _ = _inputs(store, i, j)
        for member in _kernels(store):
            kernel_tiles.read_network(member.kernel, x, y, member.cut, member.params)
    return cloudpickle.dumps((store.path.resolve(), store.kernel))


@lru_cache(maxsize=4)
def opened(packed_store: bytes) -> Store:
    """Open a pickled store once per process."""
    return Store(*pickle.loads(packed_store))


_ONE_AT_A_TIME = Lock()  # a tile uses all threads of the process, while another tile may be written


def compute_tile(store: Store, i: int, j: int) -> None:
    """Compute tile (i, j) and write it. Its numbers depend only on the store's identity, i and j."""
    if store.cut.compiled and not is_available():
        raise DataError(
            f"{store.path} is computed by compiled loops, and there is no Numba here",
            remedy="Other loops have other roundings. Install netsor[fast].",
        )
    for member in _kernels(store):
        with _ONE_AT_A_TIME:
            value, error = _tile(member, i, j)
        member.write(i, j, value, error)


def _kernels(store: Store) -> list[Store]:
    """The kernels of a store. K comes last, so a tile with K is complete."""
    return [store.nngp, store] if NNGP in store.identity["kernels"] else [store]


def _tile(store: Store, i: int, j: int) -> tuple[np.ndarray, float]:
    """The numbers of a tile, and its largest error."""
    if not store.landmarks:
        x, y, block = _inputs(store, i, j)
        result = kernel_tiles.tile(store.kernel, x, y, store.cut, store.params)
        return result.value[block], result.bound.largest
    ((a, b), at), ((c, d), to) = store.grid.rows.inputs(i), store.grid.rows.inputs(j)
    result, rows, cols = with_landmarks(store, np.arange(a, b), np.arange(c, d))
    entries = np.ix_(rows[at], cols[to])
    return result.value[entries], float(result.error[entries].max())


def _inputs(store: Store, i: int, j: int) -> tuple[Any, Any, tuple[slice, slice]]:
    """The inputs x, y of a tile (y is None on the diagonal), and the tile's slices in their kernel matrix."""
    grid = store.grid
    (rows, at), (cols, to) = grid.rows.inputs(i), grid.cols.inputs(j)
    y = None if grid.symmetric and i == j else store.inputs(1, *cols)
    return store.inputs(0, *rows), y, (at, to)


def with_landmarks(
    store: Store, left: np.ndarray, right: np.ndarray, new: np.ndarray | None = None
) -> tuple[Result, np.ndarray, np.ndarray]:
    """Compute the kernel of the landmarks and of some inputs; return it with the rows of `left` and `right`.

    left, right  numbers of inputs; number count + k is `new[k]`, where the store has count inputs

    The landmarks come first, and every other input is drawn given the landmarks alone. So a draw does not
    depend on the other inputs, and blocks of different calls belong to one positive semi-definite matrix.
    """
    count = store.identity["inputs"]["x"]["count"]
    marks = np.unique(np.linspace(0, count - 1, store.landmarks).round().astype(int))  # evenly spaced
    drawn = np.setdiff1d(np.union1d(left, right), marks)
    order = np.concatenate([marks, drawn]).tolist()
    x = np.concatenate(
        [store.inputs(0, k, k + 1) if new is None or k < count else new[k - count][None] for k in order]
    )
    result = kernel_tiles.landmark_tile(store.kernel, x, Landmarks(len(marks), drawn), store.params)
    place = {k: n for n, k in enumerate(order)}
    size = int(store.grid.rows.sizes[0])
    rows, cols = (
        np.concatenate([place[int(k)] * size + np.arange(size) for k in numbers]) for numbers in (left, right)
    )
    return result, rows, cols


@contextmanager
def connected(engine: Engine) -> Iterator[Any]:
    """Connect to a cluster, and translate its failures to errors with remedies; yield None for no engine."""
    if engine is None:
        yield None
        return
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
    """Yield the results of task(*item) in the order in which they finish; compute them here without a client.

    Only a few tasks per worker are submitted at a time, so the scheduler's memory does not grow with the
    number of items, and workers may join and leave.
    """
    if client is None:
        yield from starmap(task, items)
        return
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
