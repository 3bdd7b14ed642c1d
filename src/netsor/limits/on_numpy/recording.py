"""The computation of a kernel for inputs of given shapes, recorded: a tape for what belongs to single inputs,
and one for the tiles of each pair of groups.

Nothing here has values. What a recording says (which expectations, which methods, how many steps and bytes)
is the plan; to run it is to carry the plan out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from threading import Lock
from typing import Any

from netsor.errors import LimitError
from netsor.garbage import search_put_off
from netsor.lang.program import Program
from netsor.limits.assembly import Place, Rows, Writer
from netsor.limits.notes import Notes
from netsor.limits.on_numpy import fused
from netsor.limits.on_numpy.loops import is_available
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.recursion.outputs import output_own, output_second
from netsor.limits.recursion.pairs import Pair
from netsor.limits.recursion.recorder import Missing, Recorder
from netsor.limits.tape.tape import Span, Tape
from netsor.limits.tape.traced import Traced
from netsor.limits.tiling import TILE, Cut, side_of, strips, tiles
from netsor.threads import cores

__all__ = ["MEMORY", "Between", "Maker", "Recording", "Tiles", "record"]

Maker = Callable[[Tape, int | None], Recorder]
LARGER, FEW_TILES = 4, 16  # how much larger light tiles are, and how many are left as they are
SMALL_STEPS = 1 / 2  # elements of a step, on average, beside those of a tile: threads wait for each other
LITTLE_WORK = 2**7  # multiply-adds of a tile, beside its elements: likewise
MEMORY = 2**28  # bytes of workspace, if nothing is said and one pair of inputs does not need more
FEWEST_FOR_THREADS = (
    2**17
)  # elements of the largest array of all tiles; with fewer, threads wait for each other
FEWEST_ENTRIES = 2**20  # of all pairs; with fewer, loops are not compiled at the first run
FEWEST_AGAIN = 2**14  # the same for later runs


@dataclass(frozen=True)
class Between:
    """All pairs of inputs of two groups, or those on and above the diagonal (`symmetric`).

    elements  of the largest array, for each pair of inputs
    """

    outputs: tuple[tuple[int, ...], tuple[int, ...]]
    left: Span
    right: Span
    symmetric: bool
    writer: Writer
    elements: int

    @property
    def size(self) -> int:
        """The elements of the largest array of all pairs of inputs."""
        return (self.left[1] - self.left[0]) * (self.right[1] - self.right[0]) * self.elements

    @property
    def single(self) -> bool:
        """Whether there is one Output on either side."""
        return all(len(outputs) == 1 for outputs in self.outputs)


@dataclass(frozen=True)
class Tiles:
    """Equal tiles with one recorded computation; `results` are the pairs of Outputs of its steps."""

    between: Between
    pair: Pair
    places: list[Place]
    prepared: Prepared
    results: dict[int, list[tuple[int, int]]]


@dataclass
class Recording:
    """The computation of a kernel for inputs of given shapes."""

    rows: Rows
    single: Prepared
    tiles: list[Tiles]
    recorder: Recorder
    betweens: list[Between]
    compiled: bool
    own: dict[int, Traced] = field(default_factory=dict)  # the variances of outputs, if they are to be exact
    noisy: dict[tuple[int, int], Traced] = field(default_factory=dict)  # blocks of an input with itself
    workers: int = 1
    ran: bool = False
    lock: Any = field(default_factory=Lock, repr=False)  # errors are noted by one run at a time

    @property
    def notes(self) -> Notes:
        return self.recorder.notes

    @property
    def bytes(self) -> int:
        """The workspace of a run, beyond inputs and kernel."""
        return self.single.peak() + self.workers * max((t.prepared.peak() for t in self.tiles), default=0)

    @property
    def work(self) -> int:
        """The numbers that a run computes."""
        return self.single.work + sum(t.prepared.work * len(t.places) for t in self.tiles)

    @property
    def cut(self) -> Cut:
        """How the pairs are cut; strips are for kernels so small that one tile has them all."""
        rows, cols = self.tiles[0].places[0].counts
        rows = cols if self.rows.symmetric else rows
        return Cut(rows, cols, self.rows.count, self.compiled)

    @property
    def pays_compiling(self) -> bool:
        """Whether another run of the same shapes would win back what compiling its loops costs."""
        return not self.compiled and _pays(self.betweens, FEWEST_AGAIN)


def _pays(betweens: list[Between], fewest: int) -> bool:
    """Whether arrays that are worth a loop have so many elements that compiling is won back."""
    work = sum(b.size * prod(map(len, b.outputs)) for b in betweens if b.size >= fused.LEAST_ELEMENTS)
    return is_available() and work > fewest


@search_put_off()
def record(
    make: Maker,
    program: Program,
    rows: Rows,
    memory: int | None,
    dtype: Any,
    again: bool = False,
    cut: Cut | None = None,
) -> Recording | Missing:
    """Record the computation of all blocks, with a workspace of at most `memory` bytes, or cut as is said."""
    betweens = _betweens(make, program, rows)
    if isinstance(betweens, Missing):
        return betweens
    compiled = cut.compiled if cut else _pays(betweens, FEWEST_AGAIN if again else FEWEST_ENTRIES)
    allowed, size, most = MEMORY if memory is None else memory, TILE, None
    larger = cut is None
    while True:
        single = Tape(compiled, dtype, rows.count / cut.inputs if cut else 1.0)
        made = _recorded(make, rows, betweens, single, size, most, cut)
        if isinstance(made, Missing):
            return made
        peak, own = max((t.prepared.peak() for t in made.tiles), default=0), made.single.peak()
        if larger and any(_is_light(tiles, size) for tiles in made.tiles):
            size, larger = LARGER * size, False
        elif peak > allowed and size > 1 and cut is None:
            size = max(1, min(size // 2, size * allowed // peak))
        elif peak > allowed and memory is not None:
            raise _no_room(peak, memory)
        elif own > allowed and (n := most or made.recorder.most_inputs) > 2 and not single.opaque:
            most = max(2, min(n // 2, n * allowed // own))
        else:
            total = sum(b.size / (2 if b.symmetric else 1) for b in betweens)
            threads = cores() if total >= FEWEST_FOR_THREADS else 1
            made.workers = max(1, min(threads, allowed // max(1, peak)))
            return made


def _is_light(tiles: Tiles, size: int) -> bool:
    """Whether there are many tiles with so little to do that calling their steps takes much of the time.

    Without compiled loops there is an array for each step: larger ones would win little and need more memory.
    """
    made = tiles.prepared
    little = made.tape.compiled and made.work < LITTLE_WORK * size
    return len(tiles.places) > FEW_TILES and (little or made.elements < SMALL_STEPS * size)


def _no_room(peak: int, memory: int) -> LimitError:
    return LimitError(
        f"this kernel needs a workspace of {peak / 2**20:.2g} MB for one pair of inputs",
        remedy=f"memory={memory} allows {memory / 2**20:.2g} MB. Allow more.",
    )


def _betweens(make: Maker, program: Program, rows: Rows) -> list[Between] | Missing:
    """All pairs of groups; with one set of inputs, those on and above the diagonal."""
    flat = all(type_.index == () for type_ in program.types.values())
    recorder, found = None if flat else make(Tape(), None), []
    for r in range(len(rows.groups)):
        for s in range(r if rows.symmetric else 0, len(rows.groups)):
            left, right = rows.spans(r)[0], rows.spans(s)[1]
            if left[0] < left[1] and right[0] < right[1]:
                outputs = rows.outputs(r, 0), rows.outputs(s, 1)
                elements = 1 if recorder is None else _elements(recorder, outputs)
                if recorder is not None and recorder.missing:
                    return recorder.missing
                writer = Writer(rows, outputs, left, right)
                found.append(Between(outputs, left, right, rows.symmetric and r == s, writer, elements))
    return found


def _elements(recorder: Recorder, outputs: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    """The size of the largest array that a pair of inputs needs."""
    tape = Tape()
    recorder.ask(output_second, outputs[0][-1], outputs[1][-1], Pair(False, False, (0, 1), (1, 2), tape))
    recorder.forget_tile()
    return tape.largest


def _recorded(
    make: Maker,
    rows: Rows,
    betweens: list[Between],
    single: Tape,
    size: int,
    most: int | None,
    cut: Cut | None,
) -> Recording | Missing:
    """The tapes, for tiles of at most so many elements, and for at most so many single inputs at a time."""
    recorder, found = make(single, most), []
    for between in betweens:
        for pair, places in _cut(between, size, cut):
            found.append(_record_tiles(recorder, between, pair, places))
            if recorder.missing:
                return recorder.missing
    sources = {k: x for t in found for k, x in t.prepared.tape.sources.items()}
    own = _own(recorder) if rows.symmetric and recorder.notes.diagonal else {}
    noisy = _noisy(recorder, rows) if rows.symmetric and recorder.program.noise else {}
    if recorder.missing:
        return recorder.missing
    prepared = Prepared(single, [*sources.values(), *own.values(), *noisy.values()])
    return Recording(rows, prepared, found, recorder, betweens, single.compiled, own, noisy)


def _noisy(recorder: Recorder, rows: Rows) -> dict[tuple[int, int], Traced]:
    """The blocks of inputs with themselves, which share the noise that other inputs do not."""
    pairs = [(o, p) for group in rows.groups for o in group.outputs for p in group.outputs]
    made = {(o, p): recorder.ask(output_second, o, p, Pair(True)) for o, p in pairs}
    return {} if recorder.missing else {pair: block.array for pair, block in made.items()}


def _own(recorder: Recorder) -> dict[int, Traced]:
    """The variances of outputs from single inputs alone, where nothing is nearly parallel."""
    made = {o: recorder.ask(output_own, o) for o in range(len(recorder.program.outputs))}
    return {o: block.array for o, block in made.items() if block is not None}


def _cut(between: Between, size: int, cut: Cut | None) -> list[tuple[Pair, list[Place]]]:
    """The tiles, and the pair that each kind of them is recorded with.

    Tiles on the diagonal need half of the pairs of Outputs, which pays where there are several.
    """
    if cut is None and between.symmetric and between.writer.corner and between.size < FEWEST_FOR_THREADS:
        found = strips(between.left, between.size)
        if between.size <= size * len(found):
            return [(Pair(False, False, place.rows, place.cols), [place]) for place in found]
    spans = between.left, between.right
    if cut is None:
        places = tiles(*spans, side_of(between.elements, size), between.symmetric)
    else:
        places = cut.tiles(*spans, between.symmetric)
    first = places[0]
    apart = (
        first.cols[0] + between.left[1],
        first.cols[1] + between.left[1],
    )  # rows and columns are two spans
    if not between.symmetric or between.single:
        return [(Pair(False, False, first.rows, apart), places)]
    own = [place for place in places if place.rows == place.cols]
    others = [place for place in places if place.rows != place.cols]
    found = [(Pair(False, False, first.rows, first.rows), own)]
    return found + ([(Pair(False, False, first.rows, apart), others)] if others else [])


def _record_tiles(recorder: Recorder, between: Between, pair: Pair, places: list[Place]) -> Tiles:
    tape = Tape(recorder.tape.compiled, recorder.tape.dtype)
    pair = Pair(pair.same, pair.tied, pair.rows, pair.cols, tape)
    made, results = [], {}
    for o in between.outputs[0]:
        for p in between.outputs[1]:
            if pair.rows != pair.cols or p >= o:
                block = recorder.ask(output_second, o, p, pair)
                if recorder.missing:
                    return Tiles(between, pair, places, Prepared(tape, ()), {})
                made.append(block.array)
                results.setdefault(block.array.step, []).append((o, p))
    recorder.forget_tile()
    return Tiles(between, pair, places, Prepared(tape, made), results)
