"""Independent repeats of a sampled limit, on all cores: as many at a time as fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.lang.program import Program
from netsor.limits.assembly import Rows
from netsor.limits.error_probes import Probe
from netsor.limits.on_numpy import kernel as on_numpy
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.on_numpy.recording import MEMORY, Recording, record
from netsor.limits.options import Options
from netsor.limits.rules.recorder import Recorder
from netsor.limits.sampling.chunks import AT_ONCE
from netsor.limits.sampling.drawing import DRAWING, Drawing, Samples, SharedState
from netsor.limits.sampling.tables import Tables, no_progress
from netsor.limits.tape.tape import Tape
from netsor.limits.tape.traced import Traced
from netsor.progress import bar

Values = Mapping[str, Any]


@dataclass(frozen=True)
class RepeatRecording:
    """The recording of a kernel or of another quantity; `result` is None for a structural zero."""

    points: int
    repeats: int
    result: Recording | Traced | None

    @property
    def bytes(self) -> int:
        """Workspace in bytes, without the tables."""
        if isinstance(self.result, Traced):
            return Prepared(self.result.tape, [self.result]).peak()
        return self.result.bytes if self.result else 0

    @property
    def work(self) -> float:
        return self.result.work if isinstance(self.result, Recording) else 0.0

    def run(self, values: Values, options: Options) -> np.ndarray:
        """Return a kernel `(repeats, rows, columns)`, or another quantity `(repeats, inputs, ...)`."""
        if isinstance(self.result, Recording):
            return on_numpy.run(self.result, values, options.dtype, self.repeats, lambda: None)
        assert self.result is not None
        prepared = Prepared(self.result.tape, [self.result])
        array = on_numpy.single_values(prepared, values)[self.result.step]
        return np.broadcast_to(array, (self.repeats, *array.shape[1:]))


class Repeats:
    """A kernel, or another quantity, whose blocks have an axis of repeats, each with its own points.

    make      makes a recorder of the program
    families  the sampled families
    tables    tables of second moments of vectors, or None
    question  the rule and its arguments to compute in place of the kernel
    """

    def __init__(
        self,
        make: Callable[..., Recorder],
        program: Program,
        rows: Rows,
        options: Options,
        families: frozenset[str],
        tables: Tables | None,
        question: tuple[Any, ...] | None = None,
    ) -> None:
        self.make, self.program, self.rows, self.options = make, program, rows, options
        self.families, self.tables, self.question = families, tables, question
        self.dimensions = 0
        self._recordings: dict[int, RepeatRecording] = {}

    # Recording

    def at(self, points: int) -> RepeatRecording:
        """Return the recording for this number of points, with as many repeats at once as fit in memory."""
        if points not in self._recordings:
            self._recordings[points] = self._within_memory(points)
        return self._recordings[points]

    def _within_memory(self, points: int) -> RepeatRecording:
        memory, repeats = self.options.memory, self._most(points)
        allowed = MEMORY if memory is None else memory
        while True:
            recording = self._record(points, repeats)
            # Without a limit from the user, one repeat runs whatever it takes.
            if recording.bytes <= allowed or (repeats == 1 and memory is None):
                return recording
            if repeats == 1:
                raise _no_room(recording.bytes, allowed)
            repeats = max(1, min(repeats // 2, repeats * allowed // recording.bytes))

    def _most(self, points: int) -> int:
        """Return how many repeats to compute together."""
        if self.tables is not None:
            return min(self.tables.workspace(points).repeats, self.options.repeats)
        return min(max(1, AT_ONCE // points), self.options.repeats)

    def _record(self, points: int, repeats: int) -> RepeatRecording:
        samples, options = Samples(self.families, points, repeats), self.options

        def make(tape: Tape, most: int | None) -> Recorder:
            tape.opaque = True  # samples are joint over all inputs
            samples.drawn, samples.last, samples.tables = {}, None, None
            recorder = self.make(tape, samples=samples)
            if self.tables is not None:
                samples.tables = self.tables.recorded(recorder)
            return recorder

        if self.question is None:
            kernel = record(make, self.program, self.rows, options.memory, options.dtype)
            return RepeatRecording(points, repeats, kernel)
        recorder = make(Tape(dtype=options.dtype), None)
        answer = recorder.ask(*self.question)
        return RepeatRecording(points, repeats, None if answer is None else answer.array)

    def recording(self, points: int) -> Recording:
        """Return the recording of the kernel."""
        recording = self.at(points).result
        assert isinstance(recording, Recording)
        return recording

    def variables(self, points: int) -> int:
        """Return the number of sampled Gaussian variables, in tables and in blocks."""
        recorder = self.recording(points).recorder
        blocks = sum(
            recorder.setting.entries(form) for forms in recorder.samples.drawn.values() for form in forms
        )
        return blocks + (self.tables.rows if self.tables is not None else 0)

    def bytes(self, points: int) -> int:
        """Return the bytes of workspace of the tables."""
        return 0 if self.tables is None else self.tables.bytes(points, self.at(points).repeats)

    def is_zero(self, points: int) -> bool:
        """Return whether the quantity is a structural zero."""
        return self.at(points).result is None

    def seconds(self, points: int, count: int) -> float:
        """Return the approximate time that `count` repeats take."""
        recording, rate = self.at(points), 3e8  # multiply-adds per second on an ordinary machine
        return -(-count // recording.repeats) * recording.work / rate

    @property
    def compiled(self) -> bool:
        """Whether Numba compiles loops for the tables."""
        return self.tables is not None and self.tables.compiled

    # Running

    def probed(self, given: Values, points: int, shared: SharedState, probe: Probe) -> np.ndarray:
        """Return the kernel of the first repeat, with exact steps perturbed by their error bounds."""
        # Repeat 0 has the same points as in the run to compare with: the difference is not sampling noise.
        recording = self.recording(points)
        drawing = Drawing(self.options.seed, points, range(1), shared, no_progress)
        values = {**given, DRAWING: drawing}
        return on_numpy.run(recording, values, self.options.dtype, 1, lambda: None, probe)[0]

    def runs(self, given: Values, points: int, numbers: range, shared: SharedState) -> Iterator[np.ndarray]:
        """Yield results `(repeats, ...)` of equal chunks of repeats; drop the surplus of the last chunk.

        All runs of a call pass the same `shared`.
        """
        recording = self.at(points)
        size, stages, work = recording.repeats, 0, 0
        if self.tables is not None:
            stages, work = self.tables.stages, self.tables.schedule.work
        reading = max(1.0, 0.01 * work)  # reading the kernel from the tables takes about 1% of the work
        count, seconds = -(-len(numbers) // size), self.seconds(points, len(numbers))
        steps, total = count * (stages + 1), count * (work + reading)
        with bar(self.options.progress, steps, "sampling the kernel", lambda: seconds, total) as advance:
            for first in range(0, len(numbers), size):
                # All chunks have the recorded number of repeats, so the last one may compute too many.
                chunk = range(numbers.start + first, numbers.start + first + size)
                drawing = Drawing(self.options.seed, points, chunk, shared, advance)
                value = recording.run({**given, DRAWING: drawing}, self.options)
                self.dimensions = drawing.dimensions
                advance(work=reading)
                yield value[: len(numbers) - first]


def _no_room(needed: int, memory: int) -> LimitError:
    return LimitError(
        f"sampling this kernel needs a workspace of more than {needed / 2**20:.3g} MB",
        remedy=f"memory={memory} allows {memory / 2**20:.3g} MB. Allow more, or take fewer inputs at a "
        "time, or fewer points.",
    )
