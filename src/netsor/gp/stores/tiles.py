"""Who computes the tiles of a store: whoever calls `compute_tile`.

The store is the only state. An engine hands out the tiles that are not there, and any of its parts may be
killed at any time: what is lost are the tiles under way.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from math import isqrt
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

import netsor
from netsor import arguments
from netsor.errors import DataError, LimitError, NetsorError
from netsor.gp.stores.dask import completed, connected, is_dask, keep_memory
from netsor.gp.stores.grid import Axis, Grid
from netsor.gp.stores.identity import check_same_store, identity
from netsor.gp.stores.landmarks import with_landmarks
from netsor.gp.stores.lock import writing
from netsor.gp.stores.store import NNGP, Store, require_extra
from netsor.gp.targets import as_kernel, output_sizes
from netsor.limits import KernelFn
from netsor.limits.on_numpy.loops import is_available
from netsor.limits.tiling import Cut
from netsor.progress import bar
from netsor.threads import THREADS, cores

__all__ = ["compute_tile", "compute_tiles", "opened", "packed", "store"]

ROWS = 2048  # of a tile, if nothing is said and that is not too much work
WORK = 2**36  # multiply-adds of a tile, if nothing is said: some minutes
POLL = 0.2  # seconds
ALL, LANDMARKS, SAMPLED = 256, 32, 64  # of sampled kernels: inputs that are drawn jointly if there are no
# more, else those that all tiles share, and those of a tile

Tile = tuple[int, int]
Advance = Callable[[], None]


def packed(held: Store) -> bytes:
    """A store with its kernel, as it travels to other processes; there it is opened once.

    The network is read here, for tiles on and off the diagonal.
    """
    import cloudpickle

    for i, j in held.grid.tiles()[: 0 if held.landmarks else 2]:
        x, y, _ = _inputs(held, i, j)
        for own in _kernels(held):
            own.kernel.read(x, y, own.cut, params=own.params)
    return cloudpickle.dumps((held.path.resolve(), held.kernel))


@lru_cache(maxsize=4)
def opened(what: bytes) -> Store:
    """The store of some bytes, in this process."""
    import cloudpickle

    return Store(*cloudpickle.loads(what))


_ONE = Lock()  # a process computes one tile at a time, with all its threads; another one may be written


def compute_tile(held: Store, i: int, j: int) -> None:
    """Compute a tile and write it. Its numbers depend on nothing but the store and its place."""
    if held.cut.compiled and not is_available():
        raise DataError(
            f"{held.path} is computed by compiled loops, and there is no Numba here",
            remedy="Other loops have other roundings. Install netsor[fast].",
        )
    for own in _kernels(held):
        with _ONE:
            value, error = (_sampled_tile if held.landmarks else _exact_tile)(own, i, j)
        held.write(i, j, own.name, value, error)


def _kernels(held: Store) -> list[Store]:
    """The kernels of a store; K comes last: where it is, all are."""
    return [held.nngp, held] if NNGP in held.identity["kernels"] else [held]


def compute_tiles(held: Store, tiles: Iterable[Tile]) -> Iterator[None]:
    """Compute some tiles, each of them written while the next one is computed."""
    pool = ThreadPoolExecutor(2)
    try:
        yield from pool.map(lambda tile: compute_tile(held, *tile), tiles)
    finally:
        pool.shutdown(cancel_futures=True)


def _exact_tile(held: Store, i: int, j: int) -> tuple[np.ndarray, float]:
    """A tile and its largest error."""
    x, y, block = _inputs(held, i, j)
    result = held.kernel.part(x, y, held.cut, params=held.params)
    return result.value[block], result.bound.largest


def _sampled_tile(held: Store, i: int, j: int) -> tuple[np.ndarray, float]:
    """A tile of a kernel that is sampled: landmarks come first, and all others of the tile after them."""
    ((a, b), at), ((c, d), to) = held.grid.rows.inputs(i), held.grid.rows.inputs(j)
    result, rows, cols = with_landmarks(held, np.arange(a, b), np.arange(c, d))
    block = np.ix_(rows[slice(*at)], cols[slice(*to)])
    return result.value[block], float(result.error[block].max())


def _inputs(held: Store, i: int, j: int) -> tuple[Any, Any, tuple[slice, slice]]:
    """The inputs of a tile (of one on the diagonal one set), and where it stands in their kernel."""
    grid = held.grid
    (rows, at), (cols, to) = grid.rows.inputs(i), grid.cols.inputs(j)
    y = None if grid.symmetric and i == j else held.inputs(1, *cols)
    return held.inputs(0, *rows), y, (slice(*at), slice(*to))


def store(
    kernel: KernelFn,
    x: Any,
    path: str | Path,
    y: Any = None,
    *,
    tile: int | None = None,
    engine: Any = None,
    part: tuple[int, int] | None = None,
    params: Mapping[str, float] | None = None,
    landmarks: int | None = None,
    verify: bool = False,
    progress: bool | None = None,
) -> Store:
    """Compute the kernel matrix of x (or between x and y) into a store, or go on with one that is there.

    Beside a tangent kernel the kernel of the network itself is kept: `store.nngp` is a store of that.

    path      a folder, K.zarr
    tile      about how many inputs a tile has on either side
    engine    None: this process; a number of processes; a Dask client, or the address of a scheduler
    part      (k, N): the k-th of N equal parts, for processes that know nothing of each other
    params    variances in place of the network's own
    landmarks  inputs that sampled tiles have in common: all up to 256, else 32. More of them, smaller errors
    verify    read all tiles that are there, and compute damaged ones again

    Needs the extra `scale`. A store of another kernel is refused. `ns.gp.fit(store, y)` goes on with it.
    """
    require_extra("zarr", "cloudpickle")
    kernel = as_kernel(kernel)
    path, used = arguments.file("path", path), arguments.mapping("params", params, '{"W1": 2.0}')
    part, verify = _part(part), arguments.flag("verify", verify)
    x, y = _as_set(x), None if y is None else _as_set(y)
    cut, marks = kernel.cut(x, y, params=used), 0
    if cut is None:
        _require_landmarks(kernel, x, y)
        cut, marks = Cut(1, 1, len(x), False), _landmarks(len(x), landmarks)
    there = (path / "zarr.json").exists()
    cut = Store(path).cut if there else cut  # numbers depend on it: all tiles have that of the first run
    grid = _grid(kernel, x, y, cut, tile)
    facts = identity(kernel, x, y, cut, (grid.rows.chunk, grid.cols.chunk), used, marks)
    if not there:
        Store.create(path, facts, grid, _means(kernel, x), x, y)
    check_same_store(facts, Store(path).identity, path)
    held = Store(path, kernel)
    with writing(path, shared=part is not None):
        if part is None:
            held.clean()
        if verify:
            for i, j in held.damaged():
                held.remove(i, j)
        own = held.grid.tiles() if part is None else held.grid.part(*part)
        missing = set(held.missing())
        todo = [t for t in own if t in missing]
        with bar(progress, len(todo), f"computing {path.name}") as advance:
            _run(held, todo, engine, advance)
    return held


def _landmarks(count: int, given: int | None) -> int:
    """How many inputs all tiles share."""
    if given is None:
        return count if count <= ALL else LANDMARKS
    return min(count, arguments.whole("landmarks", given, 1))


def _require_landmarks(kernel: KernelFn, x: Any, y: Any) -> None:
    """Refuse a sampled kernel whose tiles would not belong to one matrix."""
    remedy = "Compute it in memory, K(x), where all points are drawn jointly."
    if kernel.options.tol is not None:
        raise LimitError("a sampled store has no tolerance", remedy="Give points= in its place.")
    if y is not None or not isinstance(x, np.ndarray):
        raise LimitError("a sampled store is of one set of inputs, of one shape", remedy=remedy)
    if not kernel.has_landmarks(x[:2]):
        raise LimitError(
            "this kernel must be sampled, and its tiles would not belong to one matrix", remedy=remedy
        )


def _part(part: Any) -> tuple[int, int] | None:
    """(k, N), or None for the whole."""
    if part is None or (isinstance(part, tuple) and len(part) == 2 and all(type(k) is int for k in part)):
        return part
    raise DataError(
        f"part={arguments.shown(part)}", remedy="Give (k, N): the k-th of N parts, as in part=(1, 8)."
    )


def _as_set(inputs: Any) -> Any:
    """Inputs of one shape as an array, others as a list."""
    if isinstance(inputs, np.ndarray) and inputs.ndim and len(inputs):
        return inputs
    plain = isinstance(inputs, list) and not any(isinstance(z, tuple) for z in inputs)
    if plain and len({np.shape(z) for z in inputs}) == 1:
        return np.stack([np.asarray(z) for z in inputs])
    if isinstance(inputs, list) and inputs:
        return inputs
    raise DataError(
        f"the set of inputs is {arguments.a_type(inputs)}", remedy="Give an array or a list of inputs."
    )


def _grid(kernel: KernelFn, x: Any, y: Any, cut: Cut, tile: int | None) -> Grid:
    """The tiles: whole tiles of the kernel's own, so that they have the numbers of the matrix in memory."""
    tile = None if tile is None else arguments.whole("tile", tile, 1)
    rows = _sizes(kernel, x)
    cols = rows if y is None else _sizes(kernel, y)
    side = tile or _side(kernel, x, max(rows.mean(), cols.mean()))
    axes = []
    for sizes, step in ((rows, cut.rows), (cols, cut.cols)):
        inputs = min(len(sizes), max(1, side // step) * step)
        axes.append(Axis(sizes, max(int(sizes[:inputs].sum()), int(sizes.max())), step))
    return Grid(axes[0], axes[1], y is None)


def _sizes(kernel: KernelFn, inputs: Any) -> np.ndarray:
    """Rows of each input."""
    if isinstance(inputs, np.ndarray):
        return np.full(len(inputs), output_sizes(kernel.net, [inputs[0]])[0])
    return np.array(output_sizes(kernel.net, inputs))


def _means(kernel: KernelFn, inputs: Any) -> np.ndarray:
    """Prior means of the rows."""
    if isinstance(inputs, np.ndarray):
        return np.tile(kernel.mean(inputs[:1]), len(inputs))
    return kernel.mean(inputs)


def _side(kernel: KernelFn, x: Any, rows: float) -> int:
    """How many inputs a tile has if nothing is said."""
    plan = kernel.plan(x[:2])
    if plan.sampling:
        return len(x) if len(x) <= ALL else SAMPLED
    pair = plan.work / 3
    return max(1, min(int(ROWS / rows), isqrt(int(WORK / max(1.0, pair)))))


# Engines


def _run(held: Store, todo: list[Tile], engine: Any, advance: Advance) -> None:
    if engine is None:
        _here(held, todo, advance)
    elif isinstance(engine, int) and not isinstance(engine, bool) and engine >= 1:
        _processes(held, todo, engine, advance)
    elif is_dask(engine):
        _dask(held, todo, engine, advance)
    else:
        raise DataError(
            f"engine={arguments.shown(engine)}",
            remedy="Give None (this process), a number of processes, a Dask client or a scheduler's address.",
        )


def _here(held: Store, todo: Iterable[Tile], advance: Advance) -> None:
    for _ in compute_tiles(held, todo):
        advance()


def _processes(held: Store, todo: list[Tile], count: int, advance: Advance) -> None:
    """Processes of this machine; as long as some tile comes, lost ones are replaced."""
    while todo:
        ends = _crew(held, todo, min(count, len(todo)), advance)
        missing = set(held.missing())
        left = [tile for tile in todo if tile in missing]
        said = next((text for code, text in ends if code > 0), None)
        if said is not None:
            raise NetsorError(said.strip() or "a worker failed")
        if len(left) == len(todo):
            codes = ", ".join(_ended(code) for code, _ in ends)
            raise DataError(
                f"{len(left)} tiles of {held.path} are missing: the workers ended with {codes}",
                remedy="All other tiles are kept. Is there enough memory for so many processes?",
            )
        todo = left


def _ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def _crew(held: Store, todo: list[Tile], count: int, advance: Advance) -> list[tuple[int, str]]:
    """Some processes with equal shares of the tiles; the exit code of each, and what it said."""
    what, threads = packed(held), max(1, cores() // count)
    env = {**os.environ, THREADS: str(threads), "OPENBLAS_NUM_THREADS": "1"}
    crew, done = [], len(held.done())
    with tempfile.TemporaryDirectory() as folder:
        try:
            for k in range(count):
                said = Path(folder) / str(k)
                with said.open("wb") as errors:
                    worker = subprocess.Popen(
                        _command(),
                        stdin=subprocess.PIPE,
                        stderr=errors,
                        env=env,
                    )
                crew.append((worker, said))
                _send(worker, what, todo[k::count])
            while any(worker.poll() is None for worker, _ in crew):
                time.sleep(POLL)
                now = len(held.done())
                for _ in range(done, now):
                    advance()
                done = max(done, now)
        finally:
            for worker, _ in crew:
                worker.terminate()
                worker.wait()
                assert worker.stdin is not None
                worker.stdin.close()
        return [(worker.returncode, said.read_text(errors="replace")) for worker, said in crew]


def _command() -> list[str]:
    """How a worker is started. Its own paths come first, so a file in the current folder hides no package;
    those of this process follow, for the modules of the network.
    """
    root = str(Path(netsor.__file__).resolve().parents[1])  # of this netsor, where another one is installed
    start = (
        f"import sys; root = {root!r}; sys.path[:0] = [] if root in sys.path else [root]; "
        "sys.path += sys.argv[1:]; from netsor.gp.stores.worker import main; sys.exit(main())"
    )
    isolated = ["-E"] if sys.flags.ignore_environment else []
    return [sys.executable, "-P", *isolated, "-c", start, *map(os.path.abspath, sys.path)]


def _send(worker: subprocess.Popen, what: bytes, tiles: list[Tile]) -> None:
    """The job and the tiles of a worker. The pipe stays open: when it closes, we are gone."""
    assert worker.stdin is not None
    try:
        pickle.dump((what, tiles), worker.stdin)
        worker.stdin.flush()
    except BrokenPipeError:  # it ended at once; its exit code says why
        pass


def _remote(what: bytes, i: int, j: int) -> None:
    """A tile in a Dask worker, with as many threads as the worker has."""
    from distributed import get_worker

    os.environ[THREADS] = str(get_worker().state.nthreads)
    keep_memory()
    held = opened(what)
    if not held.has(i, j):  # made by a worker that was lost before it could say so
        compute_tile(held, i, j)


def _dask(held: Store, todo: list[Tile], engine: Any, advance: Advance) -> None:
    """On the workers of a cluster, which read inputs from the store and write their tiles there."""
    what = packed(held)
    with connected(engine) as client:
        for _ in completed(client, _remote, ((what, *tile) for tile in todo)):
            advance()
