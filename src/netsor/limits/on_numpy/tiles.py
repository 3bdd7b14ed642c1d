"""A kernel matrix in NumPy, tile by tile.

A tile is a block of pairs of inputs that fits the cache. What a kernel needs is recorded once for inputs
of given shapes: a tape for single inputs, and one for the tiles of each pair of groups. A run computes the
single inputs, then the tiles on all cores; of a symmetric kernel only tiles on and above the diagonal. A
small kernel is a few strips of rows, each with a tape of its own.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.limits.on_numpy import fused
from netsor.limits.on_numpy.loops import is_available
from netsor.limits.on_numpy.places import Place, corner, part_of_block, write_block, write_numbers
from netsor.limits.recursion.engine import Engine
from netsor.limits.recursion.outputs import Rows, output_second
from netsor.limits.recursion.pairs import Pair
from netsor.limits.tape.tape import Span, Tape
from netsor.progress import bar
from netsor.threads import one_blas_thread

__all__ = ["Layout", "Recording", "lay_out", "record"]

Maker = Callable[[Tape, int | None], Engine]
MEMORY = 2**28  # bytes of workspace, if nothing is said and one pair of inputs does not need more
TILE = 2**16  # elements of the largest array of a tile
STRIP, STRIPS = 2**15, 3  # elements of that array for all pairs that make a strip of rows pay; how many do
FEWEST_FOR_THREADS = 2**17  # elements of that array of all tiles; with fewer, threads wait for each other
FEWEST_ENTRIES = 2**20  # of all pairs; with fewer, loops are not compiled at the first run
FEWEST_AGAIN = 2**14  # the same for later runs


@dataclass(frozen=True)
class Block:
    """Pairs of inputs of two groups, on and above the diagonal (`symmetric`) or all of them.

    elements  of the largest array, per pair of inputs
    corner    where they stand in the kernel, if there is one number for each pair, in order
    """

    outputs: tuple[tuple[int, ...], tuple[int, ...]]
    left: Span
    right: Span
    symmetric: bool
    elements: int
    corner: tuple[int, int] | None

    @property
    def size(self) -> int:
        """The elements of the largest array of all pairs of inputs."""
        return (self.left[1] - self.left[0]) * (self.right[1] - self.right[0]) * self.elements


@dataclass(frozen=True)
class Layout:
    """The blocks of a kernel matrix."""

    rows: Rows
    blocks: list[Block]

    @property
    def work(self) -> int:
        """The elements of arrays, for all pairs of outputs, that are so large that loops over them pay."""
        return sum(b.size * prod(map(len, b.outputs)) for b in self.blocks if b.size >= fused.LEAST_ELEMENTS)

    def is_worth_compiling(self, again: bool) -> bool:
        """Whether there is so much to do that a second spent on compiling loops is won back."""
        return is_available() and self.work > (FEWEST_AGAIN if again else FEWEST_ENTRIES)


def lay_out(make: Maker, rows: Rows) -> Layout:
    """The blocks of all pairs of groups; with one set of inputs, those on and above the diagonal."""
    engine, blocks = make(Tape(), None), []
    symmetric = rows.split is None
    for r in range(len(rows.groups)):
        for s in range(r if symmetric else 0, len(rows.groups)):
            left, right = rows.spans(r)[0], rows.spans(s)[1]
            outputs = (
                tuple(o for o in rows.groups[r].outputs if (rows.left[o][slice(*left)] >= 0).any()),
                tuple(p for p in rows.groups[s].outputs if (rows.right[p][slice(*right)] >= 0).any()),
            )
            if left[0] < left[1] and right[0] < right[1]:
                size, where = _elements(engine, outputs), corner(rows, outputs, left, right)
                blocks.append(Block(outputs, left, right, symmetric and r == s, size, where))
    return Layout(rows, blocks)


def _elements(engine: Engine, outputs: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    """The size of the largest array that a pair of inputs needs."""
    tape = Tape()
    output_second(engine, outputs[0][-1], outputs[1][-1], Pair(False, (0, 1), (1, 2), tape))
    engine.forget_tile()
    return tape.largest


@dataclass(frozen=True)
class Tiles:
    """Equal tiles with one recorded computation; `results` are the pairs of Outputs of its steps."""

    block: Block
    pair: Pair
    places: list[Place]
    tape: Tape
    results: dict[int, list[tuple[int, int]]]

    @property
    def diagonal(self) -> bool:
        return self.pair.rows == self.pair.cols


@dataclass
class Recording:
    """The computation of a kernel for inputs of given shapes."""

    layout: Layout
    single: Tape | None
    tiles: list[Tiles]
    compiled: bool
    workers: int

    def run(self, given: Mapping[str, Any], dtype: Any, progress: bool | None = None) -> np.ndarray:
        """(rows, columns) of the kernel."""
        rows = self.layout.rows
        out = np.zeros((rows.left_size, rows.right_size), dtype)
        jobs = [(tiles, place) for tiles in self.tiles for place in tiles.places]
        workers = min(self.workers, len(jobs))
        with bar(progress, len(jobs), "computing the kernel") as advance, one_blas_thread():
            singles = {} if self.single is None else _singles(self.single, given)
            if workers == 1:
                for job in jobs:
                    _run(out, rows, singles, *job)
                    advance()
            else:
                _run_all(out, rows, singles, jobs, workers, advance)
        return out


def record(
    make: Maker, layout: Layout, compiled: bool, memory: int | None, symbolic: bool, dtype: Any
) -> Recording:
    """Record the computation of all blocks, with a workspace of at most `memory` bytes.

    Without `symbolic`, what belongs to single inputs is computed at once: the recording serves these only.
    """
    allowed = MEMORY if memory is None else memory
    engine, single, tiles = _recorded_within(make, layout, Tape(compiled, dtype), allowed, None)
    peak = max((t.tape.peak() for t in tiles), default=0)
    if peak > allowed and memory is not None:
        raise LimitError(
            f"this kernel needs a workspace of {peak / 2**20:.2g} MB for one pair of inputs",
            remedy=f"memory={memory} allows {memory / 2**20:.2g} MB. Allow more.",
        )
    most = engine.most_inputs
    while symbolic and single.peak() > allowed and most > 2 and not single.opaque:
        most = max(2, min(most // 2, most * allowed // single.peak()))
        engine, single, tiles = _recorded_within(make, layout, Tape(compiled, dtype), allowed, most)
    size = sum(b.size / (2 if b.symmetric else 1) for b in layout.blocks)
    cores = (os.cpu_count() or 1) if size >= FEWEST_FOR_THREADS else 1
    workers = max(1, min(cores, allowed // max(1, peak)))
    return Recording(layout, single if symbolic else None, tiles, compiled, workers)


def _recorded_within(
    make: Maker, layout: Layout, single: Tape, memory: int, most: int | None
) -> tuple[Engine, Tape, list[Tiles]]:
    """The tapes, for tiles as large as fit, and for at most so many single inputs at a time."""
    size, engine = TILE, make(single, most)

    def blank() -> Tape:
        return Tape(single.compiled, single.dtype)

    while True:
        tiles = [t for block in layout.blocks for t in _tiles_of(engine, block, size, blank)]
        peak = max((t.tape.peak() for t in tiles), default=0)
        if peak <= memory or size == 1:
            single.prepare({k: x for t in tiles for k, x in t.tape.sources.items()}.values())
            return engine, single, tiles
        size = max(1, min(size // 2, size * memory // peak))


def _tiles_of(engine: Engine, block: Block, size: int, blank: Callable[[], Tape]) -> Iterator[Tiles]:
    step = max(1, int(np.sqrt(size / block.elements)))
    a, b = _spans(block.left, step), _spans(block.right, step)
    if not block.symmetric:
        cols = (b[0][0][0] + block.left[1], b[0][0][1] + block.left[1])
        places = [Place(x, y, (i, j)) for x, i in a for y, j in b]
        yield _recorded(engine, block, Pair(False, a[0][0], cols, blank()), places)
        return
    strips = _strips(block)
    if block.corner and block.size < FEWEST_FOR_THREADS and block.size <= size * len(strips):
        for rows in strips:
            cols = (rows[0], block.right[1])
            yield _recorded(engine, block, Pair(False, rows, cols, blank()), [Place(rows, cols)])
        return
    own = [Place(x, x, (i, i)) for x, i in a]
    yield _recorded(engine, block, Pair(False, a[0][0], a[0][0], blank()), own)
    places = [Place(x, y, (i, j)) for k, (x, i) in enumerate(a) for y, j in a[k + 1 :]]
    if places:
        yield _recorded(engine, block, Pair(False, a[0][0], a[-1][0], blank()), places)


def _strips(block: Block) -> list[Span]:
    """Equal parts of the rows of a small block; tiles from them to the right leave out most of one half."""
    start, stop = block.left
    parts = min(STRIPS, 1 + block.size // STRIP, stop - start)
    return list(pairwise(start + (stop - start) * k // parts for k in range(parts + 1)))


def _spans(span: Span, step: int) -> list[tuple[Span, int]]:
    """Equal parts of a span, at most so long; the last one overlaps the one before it by so many."""
    start, stop = span
    count = stop - start
    step = -(-count // -(-count // step))
    firsts = [(min(a, stop - step), a) for a in range(start, stop, step)]
    return [((first, first + step), a - first) for first, a in firsts]


def _recorded(engine: Engine, block: Block, pair: Pair, places: list[Place]) -> Tiles:
    tape = pair.tape
    assert tape is not None
    made, results = [], {}
    for o in block.outputs[0]:
        for p in block.outputs[1]:
            if pair.rows != pair.cols or p >= o:
                x = output_second(engine, o, p, pair)
                made.append(x)
                results.setdefault(x.step, []).append((o, p))
    engine.forget_tile()
    tape.prepare(made)
    return Tiles(block, pair, places, tape, results)


# Running


def _singles(tape: Tape, given: Mapping[str, Any]) -> dict[int, Any]:
    """What belongs to single inputs; if the tape is for fewer of them, some at a time."""
    names = tape.names()
    cut = {name: shape[0] for name, shape in names.items() if shape != np.shape(given[name])}
    parts = {name: -(-len(given[name]) // size) for name, size in cut.items()}
    if not parts:
        return dict(tape.run(given))
    whose, found = tape.dependence(parts.keys()), {}
    for k in range(max(parts.values())):
        some, starts = dict(given), {}
        for name, size in cut.items():
            starts[name] = min(k * size, len(given[name]) - size)
            some[name] = given[name][starts[name] : starts[name] + size]
        for step, value in tape.run(some):
            name = whose.get(step)
            if name is None or value.shape[1] == 1:
                found[step] = value
                continue
            if step not in found:
                found[step] = np.empty((value.shape[0], len(given[name]), *value.shape[2:]), value.dtype)
            found[step][:, starts[name] : starts[name] + value.shape[1]] = value
    return found


def _run_all(
    out: np.ndarray, rows: Rows, singles: Mapping[int, Any], jobs: list[Any], workers: int, advance: Any
) -> None:
    """All tiles on threads, this one among them; after an error or interrupt no further tile begins."""
    waiting, lock = deque(jobs), Lock()

    def work() -> None:
        try:
            while job := taken():
                _run(out, rows, singles, *job)
                with lock:
                    advance()
        finally:
            waiting.clear()

    def taken() -> Any:
        with lock:
            return waiting.popleft() if waiting else None

    pool = ThreadPoolExecutor(workers - 1)
    try:
        others = [pool.submit(work) for _ in range(workers - 1)]
        work()
        for other in others:
            other.result()
    finally:
        pool.shutdown()


def _run(out: np.ndarray, rows: Rows, singles: Mapping[int, Any], tiles: Tiles, place: Place) -> None:
    """Compute one tile and write it into the matrix, all columns of an Output at once."""
    pair = tiles.pair
    assert pair.rows is not None
    assert pair.cols is not None
    symmetric = rows.split is None
    values = _quietly(tiles.tape.run(singles, {pair.cols: place.cols, pair.rows: place.rows}))
    if tiles.block.corner:
        for _, block in values:
            write_numbers(out, tiles.block.corner, block, place, symmetric)
        return
    missing = Counter(o for pairs in tiles.results.values() for o, _ in pairs)
    waiting: dict[int, dict[int, np.ndarray]] = {o: {} for o in missing}
    for step, block in values:
        for o, p in tiles.results[step]:
            waiting[o][p] = part_of_block(block, rows, o, p, place)
            missing[o] -= 1
            if not missing[o]:
                write_block(out, rows, o, waiting.pop(o), place, tiles.diagonal)


def _quietly(results: Iterator[Any]) -> Iterator[Any]:
    """Without warnings, also in the threads of a pool: what is not finite is refused in the end."""
    with np.errstate(all="ignore"):
        yield from results
