"""A kernel with sampled families: independent repeats, their mean, and its error.

As many repeats as fit into memory run at a time, on all cores. Their spread is the standard error. To it come
an error for what no point has seen, and the errors of the exact parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.points.landmark_loadings import Landmarks
from netsor.lang.program import Program
from netsor.limits.assembly import Rows
from netsor.limits.error_probes import Probe, error_of, probes
from netsor.limits.finite import finite, in_range
from netsor.limits.on_numpy import kernel as on_numpy
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.on_numpy.recording import MEMORY, Recording, record
from netsor.limits.options import Options
from netsor.limits.plan import Plan, Sampling, require_patience
from netsor.limits.result import Bound, Result, Scale, plan_of
from netsor.limits.rules.recorder import Recorder
from netsor.limits.sampling.chunks import AT_ONCE
from netsor.limits.sampling.drawing import DRAWING, Drawing, HeavyPoints, Samples, SharedState
from netsor.limits.sampling.tables import Tables
from netsor.limits.tape.tape import Tape
from netsor.limits.tape.traced import Traced
from netsor.progress import bar

Values = Mapping[str, Any]


# The mean of repeats and its error


class Averages:
    """Mean and squared deviations of repeats, updated without cancellation (Welford 1962)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0  # an array after the first repeat
        self.squares: Any = 0.0

    def add(self, repeats: np.ndarray) -> None:
        """Add the values of further repeats, `(repeats, ...)`."""
        for value in repeats:
            self.count += 1
            change = value - self.mean
            self.mean = self.mean + change / self.count
            change *= value - self.mean  # in place, to avoid another matrix of the kernel's size
            self.squares += change

    @property
    def error(self) -> np.ndarray:
        """Standard error of the mean, with Student's factor for few repeats.

        Twice this error covers as much probability as two standard deviations of a normal law.
        """
        from scipy.special import ndtr, stdtrit  # slow to load, and only sampled limits need it

        factor = float(stdtrit(self.count - 1, ndtr(2.0))) / 2.0
        return factor * np.sqrt(self.squares / (self.count * (self.count - 1)))


# Repeats


@dataclass(frozen=True)
class RepeatRecording:
    """The recording of a kernel or of another quantity; `result` is None for a structural zero."""

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


@dataclass
class Repeats:
    """A kernel, or another quantity, whose blocks have an axis of repeats, each with its own points.

    make      makes a recorder of the program
    families  the sampled families
    tables    tables of second moments of vectors, or None
    question  the rule and its arguments to compute in place of the kernel
    """

    make: Callable[..., Recorder]
    program: Program
    rows: Rows
    options: Options
    families: frozenset[str]
    tables: Tables | None
    question: tuple[Any, ...] | None = None
    dimensions: int = 0  # of the points that the last run used
    _recordings: dict[int, RepeatRecording] = field(default_factory=dict)

    # Recording

    def at(self, points: int) -> RepeatRecording:
        """Return the recording for this number of points, with as many repeats at once as fit in memory."""
        if points not in self._recordings:
            self._recordings[points] = self._within_memory(points)
        return self._recordings[points]

    def _within_memory(self, points: int) -> RepeatRecording:
        memory = self.options.memory
        allowed = MEMORY if memory is None else memory
        most = max(1, AT_ONCE // points) if self.tables is None else self.tables.workspace(points).repeats
        repeats = min(most, self.options.repeats)
        while True:
            recording = self._record(points, repeats)
            # Without a limit from the user, one repeat runs whatever it takes.
            if recording.bytes <= allowed or (repeats == 1 and memory is None):
                return recording
            if repeats == 1:
                needed = f"{recording.bytes / 2**20:.3g} MB"
                raise LimitError(
                    f"sampling this kernel needs a workspace of more than {needed}",
                    remedy=f"memory={allowed} allows {allowed / 2**20:.3g} MB. Allow more, or take fewer "
                    "inputs at a time, or fewer points.",
                )
            repeats = max(1, min(repeats // 2, repeats * allowed // recording.bytes))

    def _record(self, points: int, repeats: int) -> RepeatRecording:
        samples, options = Samples(self.families, points, repeats), self.options

        def make(tape: Tape, most: int | None) -> Recorder:
            tape.opaque = True  # samples are joint over all inputs
            samples.drawn, samples.last, samples.block = {}, None, None
            recorder = self.make(tape, samples=samples)
            if self.tables is not None:
                samples.block = self.tables.recorded(recorder)
            return recorder

        if self.question is None:
            kernel = record(make, self.program, self.rows, options.memory, options.dtype)
            return RepeatRecording(repeats, kernel)
        recorder = make(Tape(dtype=options.dtype), None)
        answer = recorder.ask(*self.question)
        return RepeatRecording(repeats, None if answer is None else answer.array)

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

    def seconds(self, points: int, count: int) -> float:
        """Return the approximate time that `count` repeats take."""
        recording, rate = self.at(points), 3e8  # multiply-adds per second on an ordinary machine
        return -(-count // recording.repeats) * recording.work / rate

    # Running

    def probed(self, given: Values, points: int, shared: SharedState, probe: Probe) -> np.ndarray:
        """Return the kernel of the first repeat, with exact steps perturbed by their error bounds."""
        # Repeat 0 has the same points as in the run to compare with: the difference is not sampling noise.
        values = {**given, DRAWING: Drawing(self.options.seed, points, range(1), shared)}
        return on_numpy.run(self.recording(points), values, self.options.dtype, 1, lambda: None, probe)[0]

    def runs(self, given: Values, points: int, numbers: range, shared: SharedState) -> Iterator[np.ndarray]:
        """Yield results `(repeats, ...)` of equal chunks of repeats; drop the surplus of the last chunk.

        All runs of a call pass the same `shared`.
        """
        recording = self.at(points)
        size, stages, work = recording.repeats, 0, 0
        if self.tables is not None:
            stages, work = len(self.tables.schedule.stages), self.tables.schedule.work
        reading = max(1.0, 0.01 * work)  # reading the kernel from the tables takes about 1% of the work
        count, seconds = -(-len(numbers) // size), self.seconds(points, len(numbers))
        steps, total = count * (stages + 1), count * (work + reading)
        with bar(self.options.progress, steps, "sampling the kernel", lambda: seconds, total) as advance:
            for first in numbers[::size]:
                # All chunks have the recorded number of repeats, so the last one may compute too many.
                drawing = Drawing(self.options.seed, points, range(first, first + size), shared, advance)
                value = recording.run({**given, DRAWING: drawing}, self.options)
                self.dimensions = drawing.dimensions
                advance(work=reading)
                yield value[: numbers.stop - first]

    def mean(self, given: Values) -> np.ndarray | None:
        """Return the mean of the quantity over all repeats, (inputs, ...); None is a structural zero."""
        points, average, shared = self.options.first_points, Averages(), SharedState()
        if self.at(points).result is None:
            return None
        for values in self.runs(given, points, range(self.options.repeats), shared):
            average.add(values)
        shared.heavy.weight()  # raises LimitError if a few points dominate
        return finite(average.mean)


# The kernel


class SampledKernel:
    """The mean over repeats, with its error; `reasons` says why its families are sampled."""

    def __init__(self, repeats: Repeats, reasons: tuple[str, ...]) -> None:
        self.repeats, self.reasons = repeats, reasons
        self.options, self.symmetric = repeats.options, repeats.rows.symmetric
        self.statements = len(repeats.program.statements)

    def plan(self, points: int, count: int) -> Plan:
        """Return the plan of `count` repeats with this number of points each."""
        repeats, rows = self.repeats, self.repeats.rows
        plan = plan_of(repeats.recording(points), self.statements, (rows.left_size, rows.right_size))
        families, variables = tuple(sorted(repeats.families)), repeats.variables(points)
        sampling = Sampling(families, self.reasons, points, count, variables, repeats.dimensions)
        plan = replace(plan, sampling=sampling, seconds=repeats.seconds(points, count))
        if repeats.tables is None:
            return plan
        memory = plan.bytes + repeats.tables.bytes(points, repeats.at(points).repeats)
        return replace(plan, compiled=plan.compiled or repeats.tables.compiled, bytes=memory)

    def result(self, given: Values, errors: bool, shared: SharedState | None = None) -> Result:
        """Return the kernel; add points and repeats until the tolerance is reached.

        shared   choices of the first of several calls, which the others reuse
        """
        options, shared = self.options, shared or SharedState()
        shared.heavy = HeavyPoints()
        points, numbers, average = options.first_points, range(options.repeats), Averages()
        exact = None if errors or options.tol is not None else 0.0
        require_patience(self.plan(points, len(numbers)), options.confirm)
        while True:
            exact = self._add(average, given, points, numbers, shared, exact)
            scale, bound, weight = self._bound(average, shared, exact)
            more = options.further(points, average.count, bound.relative(scale.left, scale.right))
            if more is None:
                shared.arrays.clear()
                plan = self._explained(self.plan(points, average.count), weight, exact)
                return Result.of(average.mean, bound, plan)
            if more[0] == points:
                numbers = range(average.count, more[1])
            else:
                # More points start again, since points of different counts do not combine.
                points, numbers, average = more[0], range(more[1]), Averages()
                shared.heavy = HeavyPoints()

    def part(self, given: Values, landmarks: Landmarks) -> Result:
        """Return a kernel block of landmarks and other inputs, which are drawn as in any other block."""
        shared, average, points = SharedState(landmarks=landmarks), Averages(), self.options.first_points
        exact = self._add(average, given, points, range(self.options.repeats), shared, None)
        _, bound, _ = self._bound(average, shared, exact)
        return Result(average.mean, bound, self.plan(points, average.count))

    def _add(
        self,
        average: Averages,
        given: Values,
        points: int,
        numbers: range,
        shared: SharedState,
        exact: np.ndarray | float | None,
    ) -> np.ndarray | float:
        """Add repeats to an average; return the error of exact methods, from the first repeat if None."""
        for kernels in self.repeats.runs(given, points, numbers, shared):
            average.add(in_range(kernels))
            exact = self._exact_error(given, shared, kernels[0]) if exact is None else exact
        assert exact is not None
        return exact

    def _bound(
        self, average: Averages, shared: SharedState, exact: np.ndarray | float
    ) -> tuple[Scale, Bound, float]:
        """Return the scale of the entries, the bound of all errors, and the weight of the heaviest point."""
        weight, scale, error = shared.heavy.weight(), Scale.of(average.mean, self.symmetric), average.error
        # A point that dominates makes the spread of the repeats too small, so take the larger error.
        # For exp(s x), step(x - s) and products of these, the kernel is off by half to all of the heaviest
        # point, whatever s: hence 0.7. Large weights vary much between seeds, and the smallest of them
        # understate the error several times, so the factor grows with the weight.
        if weight:
            error = np.maximum(error, weight * (0.7 + 10.0 * weight) * scale.products())
        error = error + exact
        if shared.landmarks is not None:
            # By Price's theorem, E[f g] changes with the covariance by the product of the slopes of f and g.
            # Slopes are at most 1 for gates and states, so the dropped covariance itself is a bound.
            outputs = len(average.mean) // len(shared.dropped)
            error += np.kron(shared.dropped, np.ones((outputs, outputs))) * scale.products()
        return scale, scale.rounding(self.statements, self.options.dtype, error), weight

    def _explained(self, plan: Plan, weight: float, exact: np.ndarray | float) -> Plan:
        """Return the plan with the notes of a run."""
        if np.any(exact):
            notes = self.repeats.recording(self.options.first_points).notes
            plan = replace(plan, expectations=notes.expectations(), remarks=tuple(notes.remarks))
        if weight > 0.02:
            remark = f"one sample point carries {weight:.0%} of a second moment: errors are larger"
            plan = replace(plan, remarks=(*plan.remarks, remark))
        return plan

    def _exact_error(self, given: Values, shared: SharedState, still: np.ndarray) -> np.ndarray | float:
        """Return the error of exact methods: how much perturbing them moves the first repeat.

        still   the kernel of the first repeat without perturbation, (rows, columns)
        """
        points = self.options.first_points
        recorder = self.repeats.recording(points).recorder
        notes, cancels = recorder.notes, recorder.forms.may_cancel
        if not notes.inexact and not cancels:
            return 0.0
        # Perturb with heavy points of their own, so that those of the kernel are not counted twice.
        apart = replace(shared, heavy=HeavyPoints())
        notes.errors.clear()
        counts = partial(Scale.of(still, self.symmetric).counts, self.statements, self.options.dtype)
        error = error_of(
            probes(lambda p: self.repeats.probed(given, points, apart, p) - still, notes, cancels, counts)
        )
        return 0.0 if error is None else error

    @property
    def has_landmarks(self) -> bool:
        """Whether inputs can be drawn given landmarks: one shape, and everything sampled is in tables."""
        if len(self.repeats.rows.groups) > 1 or self.repeats.tables is None:
            return False
        recorder = self.repeats.recording(self.options.first_points).recorder
        return not any(recorder.samples.drawn.values())
