"""The recorded computation of a kernel: a tape for single inputs, and one for the tiles of two groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from threading import Lock
from typing import Any

from netsor.errors import LimitError
from netsor.garbage import search_put_off
from netsor.lang.program import Program
from netsor.limits.assembly import Rows, Tile, Writer
from netsor.limits.notes import Notes
from netsor.limits.on_numpy import fused
from netsor.limits.on_numpy.compiled_loops import is_available
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.rules.output import output_own, output_second
from netsor.limits.rules.pairs import Pair
from netsor.limits.rules.recorder import Recorder
from netsor.limits.tape.tape import Span, Tape
from netsor.limits.tape.traced import Traced
from netsor.limits.tiling import TILE, Cut, side_of, strips, tiles
from netsor.threads import cores

Maker = Callable[[Tape, int | None], Recorder]
LARGER, FEW_TILES = 4, 16  # factor for the size of light tiles, and how many tiles there must be at least
SMALL_STEPS = 1 / 2  # average step, in elements per element of a tile: below it, threads wait for Python
LITTLE_WORK = 2**7  # multiply-adds per element of a tile: below it, threads wait for Python as well
MEMORY = 2**28  # default bytes of workspace; one pair of inputs may need more
FEWEST_FOR_THREADS = 2**17  # elements of all tiles: with fewer, starting threads takes longer than running
FEWEST_ENTRIES = 2**20  # elements of all pairs: with fewer, a first run does not repay compiling
FEWEST_AGAIN = 2**14  # elements of all pairs: with fewer, later runs do not repay it either


@dataclass(frozen=True)
class Between:
    """All pairs of inputs of two groups, or the pairs on and above the diagonal (`symmetric`).

    elements  number of elements of the largest array, per pair of inputs
    """

    outputs: tuple[tuple[int, ...], tuple[int, ...]]
    left: Span
    right: Span
    symmetric: bool
    writer: Writer
    elements: int

    @property
    def pairs(self) -> int:
        """Approximate number of pairs of inputs."""
        return self.size // self.elements // (2 if self.symmetric else 1)

    @property
    def size(self) -> int:
        """Number of elements of the largest array over all pairs of inputs."""
        return (self.left[1] - self.left[0]) * (self.right[1] - self.right[0]) * self.elements


@dataclass(frozen=True)
class Tiles:
    """Equal tiles with one recorded computation; `results` maps its steps to pairs of Outputs."""

    between: Between
    pair: Pair
    places: list[Tile]
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
    variances: dict[int, Traced] = field(default_factory=dict)  # by Output, to overwrite an inexact diagonal
    noisy: dict[tuple[int, int], Traced] = field(default_factory=dict)  # self blocks, if there is noise
    workers: int = 1
    allowed: int = MEMORY  # bytes of workspace that a run may take
    ran: bool = False
    lock: Any = field(default_factory=Lock, repr=False)  # notes collect the errors of one run at a time

    @property
    def notes(self) -> Notes:
        return self.recorder.notes

    @property
    def bytes(self) -> int:
        """Bytes of workspace of a run, beyond inputs and kernel."""
        return self.single.peak() + self.workers * max((t.prepared.peak() for t in self.tiles), default=0)

    @cached_property
    def probing_workers(self) -> int:
        """Number of threads of a probe within the allowed workspace; 0 if not even one tile fits."""
        peak = max((t.prepared.probing.peak() for t in self.tiles), default=0)
        return min(self.workers, self.allowed // max(1, peak))

    @property
    def work(self) -> int:
        """Approximate multiply-adds of a run."""
        return self.single.work + sum(t.prepared.work * len(t.places) for t in self.tiles)

    @property
    def cut(self) -> Cut:
        """The sizes of the tiles; a kernel small enough for strips counts as a single tile."""
        rows, cols = self.tiles[0].places[0].counts
        rows = cols if self.rows.symmetric else rows
        return Cut(rows, cols, self.rows.count, self.compiled, self.single.tape.compiled)

    @property
    def pays_compiling(self) -> bool:
        """Whether another run of the same shapes would repay compiling its loops."""
        return not self.compiled and _pays(self.betweens, FEWEST_AGAIN)


def _pays(betweens: list[Between], fewest: int) -> bool:
    """Return whether compiling pays: whether the arrays that are worth a loop have enough elements."""
    work = sum(b.size * prod(map(len, b.outputs)) for b in betweens if b.size >= fused.LEAST_ELEMENTS)
    return is_available() and work > fewest


def _pays_for_singles(betweens: list[Between], rows: Rows) -> bool:
    """Return whether there are so few pairs for each input that NumPy would be slow for single inputs."""
    return sum(between.pairs for between in betweens) < 500 * rows.count


@search_put_off()
def record(
    make: Maker,
    program: Program,
    rows: Rows,
    memory: int | None,
    dtype: Any,
    again: bool = False,
    cut: Cut | None = None,
    for_probes: bool = False,
) -> Recording:
    """Record the computation of all blocks, within `memory` bytes of workspace, or in the tiles of `cut`.

    With `for_probes`, probes keep within these bytes too; they hold more arrays at a time.
    """
    betweens = _betweens(make, program, rows)
    compiled = cut.compiled if cut else _pays(betweens, FEWEST_AGAIN if again else FEWEST_ENTRIES)
    singles = compiled and (cut.singles if cut else _pays_for_singles(betweens, rows))
    allowed, size, most, larger = MEMORY if memory is None else memory, TILE, None, cut is None
    # The sizes of arrays are only known after recording. So record, and again with other sizes if needed.
    while True:
        single = Tape(singles, dtype, rows.count / cut.inputs if cut else 1.0)
        recording = _recorded(make, rows, betweens, single, compiled, size, most, cut)
        prepared = [t.prepared.probing if for_probes else t.prepared for t in recording.tiles]
        peak = max((tile.peak() for tile in prepared), default=0)
        inputs_peak = (recording.single.probing if for_probes else recording.single).peak()
        if larger and any(_is_light(tiles, size) for tiles in recording.tiles):
            # Many light tiles: take larger ones, once.
            size, larger = LARGER * size, False
        elif peak > allowed and size > 1 and cut is None:
            # Too much memory: halve the tiles at least, or shrink them in proportion.
            size = max(1, min(size // 2, size * allowed // peak))
        elif peak > allowed and memory is not None:
            raise LimitError(
                f"this kernel needs a workspace of {peak / 2**20:.2g} MB for one pair of inputs",
                remedy=f"memory={memory} allows {memory / 2**20:.2g} MB. Allow more.",
            )
        elif inputs_peak > allowed and (most or recording.recorder.most_inputs) > 2 and not single.opaque:
            # The quantities of single inputs take too much memory: compute them for fewer inputs at a time.
            most = most or recording.recorder.most_inputs
            most = max(2, min(most // 2, most * allowed // inputs_peak))
        else:
            total = sum(b.pairs * b.elements for b in betweens)
            threads = cores() if total >= FEWEST_FOR_THREADS else 1
            recording.workers, recording.allowed = max(1, min(threads, allowed // max(1, peak))), allowed
            return recording


def _is_light(tiles: Tiles, size: int) -> bool:
    """Return whether there are many tiles with so little work that calls take much of the time.

    Without compiled loops each step has an array: larger tiles would gain little and need more memory.
    """
    prepared = tiles.prepared
    little = prepared.tape.compiled and prepared.work < LITTLE_WORK * size
    return len(tiles.places) > FEW_TILES and (little or prepared.elements < SMALL_STEPS * size)


def _betweens(make: Maker, program: Program, rows: Rows) -> list[Between]:
    """Return all pairs of groups; with one set of inputs, those on and above the diagonal."""
    flat = all(type_.index == () for type_ in program.types.values())
    recorder, betweens = None if flat else make(Tape(), None), []
    for r in range(len(rows.groups)):
        for s in range(r if rows.symmetric else 0, len(rows.groups)):
            left, right, tape = rows.spans(r)[0], rows.spans(s)[1], Tape()
            if left[0] < left[1] and right[0] < right[1]:
                outputs = rows.outputs(r, 0), rows.outputs(s, 1)
                if recorder is not None:
                    pair = Pair(False, False, (0, 1), (1, 2), tape)
                    recorder.ask(output_second, outputs[0][-1], outputs[1][-1], pair)
                    recorder.forget_tile()
                writer = Writer(rows, outputs, left, right)
                symmetric = rows.symmetric and r == s
                betweens.append(Between(outputs, left, right, symmetric, writer, tape.largest))
    return betweens


def _recorded(
    make: Maker,
    rows: Rows,
    betweens: list[Between],
    single: Tape,
    compiled: bool,
    size: int,
    most: int | None,
    cut: Cut | None,
) -> Recording:
    """Record the tapes, for tiles of at most `size` elements and at most `most` single inputs at a time."""
    recorder, tiles = make(single, most), []
    for between in betweens:
        for pair, places in _cut(between, size, cut):
            tiles.append(_record_tiles(recorder, between, pair, places, compiled))
    tapes = [t.prepared.tape for t in tiles]
    sources = {k: x for tape in tapes for k, x in tape.sources(tape.leaves).items()}
    variances, noisy = {}, {}
    if rows.symmetric and recorder.notes.diagonal:
        # Variances from single inputs, where nothing is nearly parallel to anything.
        blocks = {o: recorder.ask(output_own, o) for o in range(len(recorder.program.outputs))}
        variances = {o: block.array for o, block in blocks.items() if block is not None}
    if rows.symmetric and recorder.program.noise:
        # In blocks of an input with itself, both sides share noise that different inputs do not.
        pairs = [(o, p) for group in rows.groups for o in group.outputs for p in group.outputs]
        noisy = {(o, p): recorder.ask(output_second, o, p, Pair(True)).array for o, p in pairs}
    prepared = Prepared(single, [*sources.values(), *variances.values(), *noisy.values()])
    return Recording(rows, prepared, tiles, recorder, betweens, compiled, variances, noisy)


def _cut(between: Between, size: int, cut: Cut | None) -> list[tuple[Pair, list[Tile]]]:
    """Return the tiles, with a pair to record each kind of tile."""
    if cut is None and between.symmetric and between.writer.corner and between.size < FEWEST_FOR_THREADS:
        places = strips(between.left, between.size)
        if between.size <= size * len(places):
            return [(Pair(False, False, place.rows, place.cols), [place]) for place in places]
    spans = between.left, between.right
    step = side_of(between.elements, size)
    places = cut.tiles(*spans, between.symmetric) if cut else tiles(*spans, step, between.symmetric)
    first = places[0]
    # Off the diagonal, rows and columns are different spans, so that their steps do not merge.
    apart = (first.cols[0] + between.left[1], first.cols[1] + between.left[1])
    if not between.symmetric or all(len(outputs) == 1 for outputs in between.outputs):
        return [(Pair(False, False, first.rows, apart), places)]
    # Tiles on the diagonal need half of the pairs of Outputs: a recording of their own.
    diagonal = [place for place in places if place.rows == place.cols]
    above = [place for place in places if place.rows != place.cols]
    kinds = [(Pair(False, False, first.rows, first.rows), diagonal)]
    return kinds + ([(Pair(False, False, first.rows, apart), above)] if above else [])


def _record_tiles(
    recorder: Recorder, between: Between, pair: Pair, places: list[Tile], compiled: bool
) -> Tiles:
    tape = Tape(compiled, recorder.tape.dtype)
    pair = pair._replace(tape=tape)
    blocks, results = [], {}
    for o in between.outputs[0]:
        for p in between.outputs[1]:
            if pair.rows != pair.cols or p >= o:
                block = recorder.ask(output_second, o, p, pair)
                blocks.append(block.array)
                results.setdefault(block.array.step, []).append((o, p))
    recorder.forget_tile()
    return Tiles(between, pair, places, Prepared(tape, blocks), results)
