"""Independent repeats of a sampled limit: some at a time, so that they fit in memory, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.lang.program import Program
from netsor.limits.assembly import Rows
from netsor.limits.on_numpy import kernel as on_numpy
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.on_numpy.recording import MEMORY, record
from netsor.limits.options import Options
from netsor.limits.recursion.recorder import Missing, Recorder
from netsor.limits.sampling.tables import Tables, tables_of
from netsor.limits.sampling.values import DRAWING, Drawing, Samples
from netsor.limits.tape.tape import Tape
from netsor.progress import bar

__all__ = ["Repeats"]

AT_ONCE = 2**17  # sample points of all repeats that are computed together
Values = Mapping[str, Any]
Make = Callable[..., Recorder]


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
        self.families, self.question = families, question
        size = 8 * rows.left_size * rows.right_size
        self.tables: Tables | None = tables_of(
            make(Tape(), samples=self._samples(1, 1)), families, size, options.memory
        )
        self.points, self.dimensions = 0, 0

    def _samples(self, points: int, repeats: int) -> Samples:
        return Samples(self.families, points, repeats)

    # Recording

    def prepare(self, points: int) -> Missing | None:
        """Record for as many repeats at once as fit; what is missing if it cannot be."""
        if points == self.points:
            return None
        repeats = self._most(points)
        while True:
            found = self._record(points, repeats)
            if isinstance(found, Missing):
                return found
            allowed = MEMORY if self.options.memory is None else self.options.memory
            if self._bytes() <= allowed or repeats == 1:
                break
            repeats = max(1, min(repeats // 2, repeats * allowed // self._bytes()))
        if self.options.memory is not None and self._bytes() > self.options.memory:
            raise _no_room(self._bytes(), self.options.memory)
        self.points, self.at_once = points, repeats
        return None

    def _most(self, points: int) -> int:
        """How many repeats to compute together."""
        if self.tables is not None:
            return min(self.tables.workspace(points).repeats, self.options.repeats)
        return min(max(1, AT_ONCE // points), self.options.repeats)

    def _record(self, points: int, repeats: int) -> Missing | None:
        samples, options = self._samples(points, repeats), self.options

        def make(tape: Tape, most: int | None) -> Recorder:
            tape.opaque = True  # samples are joint over all inputs
            samples.drawn, samples.last, samples.tables = {}, None, None
            made = self.make(tape, samples=samples)
            if self.tables is not None:
                samples.tables = self.tables.recorded(made)
            return made

        if self.question is None:
            found = record(make, self.program, self.rows, options.memory, options.dtype)
            if isinstance(found, Missing):
                return found
            self.recording = found
            return None
        recorder = make(Tape(dtype=options.dtype), None)
        self.asked = recorder.ask(*self.question)
        self.prepared = Prepared(recorder.tape, [] if self.asked is None else [self.asked.array])
        return recorder.missing

    @property
    def compiled(self) -> bool:
        """Whether loops are compiled by Numba."""
        return self.recording.compiled or (self.tables is not None and self.tables.compiled)

    def _bytes(self) -> int:
        """Of workspace beside that of the tables."""
        return self.recording.bytes if self.question is None else self.prepared.peak()

    # Running

    def kernels(self, given: Values, points: int, numbers: range) -> Iterator[np.ndarray]:
        """(some repeats, rows, columns) of the kernel at a time."""

        def run(values: Values, repeats: int, advance: Callable[[], None]) -> np.ndarray:
            return on_numpy.run(self.recording, values, self.options.dtype, repeats, lambda: None)

        self.prepare(points)
        yield from self._runs(given, numbers, run)

    def quantities(self, given: Values, points: int, numbers: range) -> Iterator[np.ndarray]:
        """(some repeats, inputs, ...) of what is asked for at a time."""
        step = self.asked.array.step

        def run(values: Values, repeats: int, advance: Callable[[], None]) -> np.ndarray:
            found = on_numpy.single_values(self.prepared, values)[step]
            return np.broadcast_to(found, (repeats, *found.shape[1:]))

        self.prepare(points)
        yield from self._runs(given, numbers, run)

    def _runs(self, given: Values, numbers: range, run: Callable[..., np.ndarray]) -> Iterator[np.ndarray]:
        """Equal parts of the repeats; of the last part those that are asked for."""
        size, done, shared = self.at_once, 0, {}
        stages = self.tables.stages if self.tables is not None else 0
        with bar(
            self.options.progress, -(-len(numbers) // size) * (stages + 1), "sampling the kernel"
        ) as advance:
            while done < len(numbers):
                some = range(numbers.start + done, numbers.start + done + size)
                drawing = Drawing(self.options.seed, self.points, some, shared, advance)
                value = run({**given, DRAWING: drawing}, size, advance)
                self.dimensions = drawing.dimensions
                advance()
                yield value[: len(numbers) - done]
                done += size


def _no_room(needed: int, memory: int) -> LimitError:
    return LimitError(
        f"sampling this kernel needs a workspace of more than {needed / 2**20:.3g} MB",
        remedy=f"memory={memory} allows {memory / 2**20:.3g} MB. Allow more, or take fewer inputs at a "
        "time, or fewer points.",
    )
