"""Independent repeats of a sampled limit: some at a time, so that they fit in memory, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.lang.program import Program
from netsor.limits.assembly import Rows
from netsor.limits.nudges import STILL
from netsor.limits.on_numpy import kernel as on_numpy
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.on_numpy.recording import MEMORY, Recording, record
from netsor.limits.options import Options
from netsor.limits.recursion.recorder import Missing, Recorder
from netsor.limits.sampling.tables import Tables, tables_of
from netsor.limits.sampling.values import DRAWING, Drawing, Samples
from netsor.limits.tape.tape import Tape
from netsor.limits.tape.traced import Traced
from netsor.progress import bar

__all__ = ["Repeats"]

REST = 0.01  # of the work of tables: reading the kernel from them
RATE = 3e8  # multiply-adds in a second, about
AT_ONCE = 2**17  # sample points of all repeats that are computed together
Values = Mapping[str, Any]
Make = Callable[..., Recorder]


@dataclass(frozen=True)
class AtOnce:
    """What is recorded for some points and repeats: a kernel, or the array of a question; None is 0."""

    points: int
    repeats: int
    found: Recording | Traced | None

    @property
    def bytes(self) -> int:
        """Of workspace beside that of the tables."""
        if isinstance(self.found, Traced):
            return Prepared(self.found.tape, [self.found]).peak()
        return self.found.bytes if self.found else 0


class Repeats:
    """A kernel, or another quantity, whose blocks have an axis of repeats, each with points of its own.

    make      makes a recorder of the program
    families  that are sampled
    question  what is asked for in place of the kernel
    """

    def __init__(
        self,
        make: Make,
        program: Program,
        rows: Rows,
        options: Options,
        families: frozenset[str],
        question: tuple[Any, ...] | None = None,
    ) -> None:
        self.make, self.program, self.rows, self.options = make, program, rows, options
        self.families, self.question, self.errors = families, question, False
        size = 8 * rows.left_size * rows.right_size
        self.tables: Tables | None = (
            None
            if program.noise
            else tables_of(
                make(Tape(), samples=Samples(families, 1, 1)),
                families,
                size,
                options.memory,
                options.most_points,
            )
        )
        self.dimensions = 0
        self._known: dict[int, AtOnce | Missing] = {}

    def movable(self) -> Repeats:
        """The same with exact parts that can be moved by their errors, one repeat at a time."""
        made = copy(self)
        made.errors, made._known = True, {}
        return made

    # Recording

    def at(self, points: int) -> AtOnce | Missing:
        """What is recorded for so many points, for as many repeats at once as fit, or what is missing."""
        if points not in self._known:
            self._known[points] = self._within_memory(points)
        return self._known[points]

    def _within_memory(self, points: int) -> AtOnce | Missing:
        memory, repeats = self.options.memory, self._most(points)
        allowed = MEMORY if memory is None else memory
        while True:
            found = self._record(points, repeats)
            if isinstance(found, Missing) or found.bytes <= allowed or (repeats == 1 and memory is None):
                return found
            if repeats == 1:
                raise _no_room(found.bytes, allowed)
            repeats = max(1, min(repeats // 2, repeats * allowed // found.bytes))

    def _most(self, points: int) -> int:
        """How many repeats to compute together."""
        if self.errors:
            return 1
        if self.tables is not None:
            return min(self.tables.workspace(points).repeats, self.options.repeats)
        return min(max(1, AT_ONCE // points), self.options.repeats)

    def _record(self, points: int, repeats: int) -> AtOnce | Missing:
        samples, options = Samples(self.families, points, repeats), self.options

        def make(tape: Tape, most: int | None) -> Recorder:
            tape.opaque = True  # samples are joint over all inputs
            samples.drawn, samples.last, samples.tables = {}, None, None
            made = self.make(tape, errors=self.errors, samples=samples)
            if self.tables is not None:
                samples.tables = self.tables.recorded(made)
            return made

        if self.question is None:
            found = record(make, self.program, self.rows, options.memory, options.dtype)
            return found if isinstance(found, Missing) else AtOnce(points, repeats, found)
        recorder = make(Tape(dtype=options.dtype), None)
        asked = recorder.ask(*self.question)
        return recorder.missing or AtOnce(points, repeats, None if asked is None else asked.array)

    def recording(self, points: int) -> Recording:
        """That of a kernel."""
        found = self._there(points).found
        assert isinstance(found, Recording)
        return found

    def variables(self, points: int) -> int:
        """The Gaussian variables that are sampled, in tables and in blocks."""
        recorder = self.recording(points).recorder
        blocks = sum(recorder.entries(form) for forms in recorder.samples.drawn.values() for form in forms)
        return blocks + (self.tables.rows if self.tables is not None else 0)

    def bytes(self, points: int) -> int:
        """Of the workspace of tables."""
        return 0 if self.tables is None else self.tables.bytes(points, self._there(points).repeats)

    def is_zero(self, points: int) -> bool:
        """Whether what is asked for is a structural zero."""
        return self._there(points).found is None

    def _there(self, points: int) -> AtOnce:
        found = self.at(points)
        assert isinstance(found, AtOnce)
        return found

    def seconds(self, points: int, count: int) -> float:
        """How long so many repeats take, about."""
        at = self._there(points)
        found = at.found
        work = found.work if isinstance(found, Recording) else 0
        return -(-count // at.repeats) * work / RATE

    @property
    def compiled(self) -> bool:
        """Whether the tables have loops compiled by Numba."""
        return self.tables is not None and self.tables.compiled

    # Running

    def kernels(
        self, given: Values, points: int, numbers: range, shared: dict[str, Any]
    ) -> Iterator[np.ndarray]:
        """(some repeats, rows, columns) of the kernel at a time; all of a call have `shared` in common."""
        at, recording = self._there(points), self.recording(points)

        def run(values: Values) -> np.ndarray:
            return on_numpy.run(recording, values, self.options.dtype, at.repeats, lambda: None)

        yield from self._runs(at, given, numbers, run, shared)

    def quantities(
        self, given: Values, points: int, numbers: range, shared: dict[str, Any]
    ) -> Iterator[np.ndarray]:
        """(some repeats, inputs, ...) of what is asked for at a time."""
        at = self._there(points)
        asked = at.found
        assert isinstance(asked, Traced)
        prepared = Prepared(asked.tape, [asked])

        def run(values: Values) -> np.ndarray:
            found = on_numpy.single_values(prepared, values)[asked.step]
            return np.broadcast_to(found, (at.repeats, *found.shape[1:]))

        yield from self._runs(at, given, numbers, run, shared)

    def _runs(
        self,
        at: AtOnce,
        given: Values,
        numbers: range,
        run: Callable[[Values], np.ndarray],
        shared: dict[str, Any],
    ) -> Iterator[np.ndarray]:
        """Equal parts of the repeats; of the last part those that are asked for."""
        size, done = at.repeats, 0
        stages = self.tables.stages if self.tables is not None else 0
        runs, work = -(-len(numbers) // size), self.tables.schedule.work if self.tables is not None else 0
        rest = max(1.0, work * REST)
        total, seconds = runs * (stages + 1), self.seconds(at.points, len(numbers))
        with bar(
            self.options.progress, total, "sampling the kernel", lambda: seconds, runs * (work + rest)
        ) as advance:
            while done < len(numbers):
                some = range(numbers.start + done, numbers.start + done + size)
                nudge = {name: given.get(name, none) for name, none in STILL.items()}
                drawing = Drawing(self.options.seed, at.points, some, shared, advance, nudge)
                value = run({**given, DRAWING: drawing})
                self.dimensions = drawing.dimensions
                advance(work=rest)
                yield value[: len(numbers) - done]
                done += size


def _no_room(needed: int, memory: int) -> LimitError:
    return LimitError(
        f"sampling this kernel needs a workspace of more than {needed / 2**20:.3g} MB",
        remedy=f"memory={memory} allows {memory / 2**20:.3g} MB. Allow more, or take fewer inputs at a "
        "time, or fewer points.",
    )
