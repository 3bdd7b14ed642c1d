"""Second moments of all vectors of a schedule, as one step of a recording.

A network that is a loop over tokens has many vectors without index axes, and needs the second moments of all
pairs of them. This step computes them together (`moments`); other steps read blocks from its tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from netsor.expect.points.principal_axes import PrincipalAxes
from netsor.lang.expr import Expr
from netsor.limits.error_probes import Probe
from netsor.limits.rules.pairs import Pair, PerPair
from netsor.limits.rules.recorder import Recorder
from netsor.limits.rules.setting import Setting
from netsor.limits.sampling.chunks import FLOAT, Needs, Workspace
from netsor.limits.sampling.drawing import Drawing, drawing_leaf
from netsor.limits.sampling.moments import Moments
from netsor.limits.sampling.numbers import Numbers, numbers_of
from netsor.limits.sampling.records import Schedule
from netsor.limits.sampling.schedule import schedule_of
from netsor.limits.tape.tape import Span
from netsor.limits.tape.traced import Traced
from netsor.threads import one_blas_thread


def tables_of(x: Setting, result: int, memory: int | None, points: int) -> Tables | None:
    """Return the tables of the vectors that outputs need, or None if no vector has a sampled part.

    result   bytes of the results of each repeat
    points   largest number of points of a repeat
    """
    # The states of recursions take much memory, but save most of the time.
    state_bytes = 2**31 if memory is None else memory // 2
    schedule = schedule_of(x, state_bytes // (FLOAT * points))
    return schedule and Tables(schedule, Needs.of(schedule, result), memory)


class Tables:
    """A schedule, and the memory that its tables and values may take."""

    def __init__(self, schedule: Schedule, needs: Needs, memory: int | None) -> None:
        self.schedule, self.needs, self.memory = schedule, needs, memory

    @property
    def stages(self) -> int:
        return len(self.schedule.stages)

    @property
    def rows(self) -> int:
        """Number of Gaussian variables that are sampled."""
        return sum(family.size for family in self.schedule.families if family.drawn)

    @property
    def compiled(self) -> bool:
        return any(group.recursion for group in self.schedule.groups)

    def workspace(self, points: int) -> Workspace:
        return Workspace.within(self.memory, points, self.needs)

    def bytes(self, points: int, repeats: int) -> int:
        """Return the bytes of workspace."""
        return self.needs.fixed + repeats * self.needs.whole(points, self.workspace(points).table)

    def recorded(self, r: Recorder) -> RecordedTables:
        """Record the step that computes the tables, and return a reader of its blocks."""
        for step in self.schedule.steps:
            for atom in step.atoms:
                for kind in atom.kinds:
                    r.notes.add(kind.product_name(atom), "closed form" if kind.rule else "Hermite series")
                    r.notes.inexact |= kind.is_inexact

        def run(probe: Probe | None, drawing: Drawing, numbers: Numbers) -> Moments:
            shared = drawing.shared
            if shared.axes is None and shared.landmarks is None:
                shared.axes = self._pilot(r, drawing, numbers)
            # With landmarks there are no axes: they would depend on the other inputs of the call.
            axes = shared.axes if shared.landmarks is None else None
            drawing.begin(axes.dimensions if axes else 0)
            return self._moments(r, drawing, numbers, axes, self.workspace(drawing.count), probe)

        arrays = (drawing_leaf(r), numbers_of(r, self.schedule))
        step = r.tape.call(partial(run, None), arrays, (), np.float64, bound=run)
        r.tape.costs[step.step] = r.samples.repeats * r.samples.points * self.schedule.work
        return RecordedTables(r, self.schedule, step)

    def _moments(
        self,
        r: Recorder,
        drawing: Drawing,
        numbers: Numbers,
        axes: PrincipalAxes | None,
        workspace: Workspace,
        probe: Probe | None = None,
    ) -> Moments:
        with _threads(workspace.threads) as threads:
            return Moments(r, self.schedule, numbers, drawing, axes, workspace, threads, probe)

    def _pilot(self, r: Recorder, drawing: Drawing, numbers: Numbers) -> PrincipalAxes:
        """Return the principal axes of the sampled variables, from a small run.

        The pilot run has points that no repeat uses. Its result determines all other samples, so it must not
        depend on memory or threads: it always adds up the same chunks.
        """
        points, repeat = min(drawing.count, 2**9), 2**31  # no repeat of a call has this number
        pilot = Drawing(
            drawing.seed, points, range(repeat, repeat + 1), drawing.shared, no_progress, is_pilot=True
        )
        trails = self._moments(r, pilot, numbers, None, Workspace.of_pilot(points, self.needs)).trails
        assert trails is not None
        return PrincipalAxes.of(trails)


class RecordedTables:
    """Blocks of second moments, read from the step that computes all of them.

    Shapes: `(repeats, inputs)` for an input with itself, else `(repeats, left inputs, right inputs)`.
    """

    def __init__(self, r: Recorder, schedule: Schedule, step: Traced) -> None:
        self.r, self.schedule, self.step = r, schedule, step

    def block(self, e: Expr, f: Expr, pair: Pair) -> PerPair | None:
        """Return E[e f], or None if the schedule does not have this moment."""
        left, right = (self.schedule.vectors.get(x) for x in (e, f))
        # A moment exists only for vectors that share a matrix, directly or through others.
        if left is None or right is None or left.cluster != right.cluster:
            return None
        sizes, repeats = (left.inputs, right.inputs), self.r.samples.repeats
        same, rows, cols, tape = pair.same, pair.rows, pair.cols, pair.tape
        if tape is None or rows is None or cols is None:
            shape = (repeats, max(sizes)) if same else (repeats, *sizes)
            array = self.r.tape.call(
                lambda moments: moments.block(left, right, same), (self.step,), shape, np.float64
            )
            return PerPair(array, pair, 0, 0)
        counts = (1 if n == 1 else span[1] - span[0] for n, span in zip(sizes, (rows, cols), strict=True))

        def tile(spans: Mapping[Span, Span], moments: Any) -> np.ndarray:
            return moments.block(left, right, False, spans[rows], spans[cols])

        key, shape = ("moments", e, f, pair), (repeats, *counts)
        return PerPair(tape.leaf(key, shape, np.float64, (self.step,), tile), pair, 0, 0)


def no_progress(work: float = 1.0) -> None:
    """Do nothing: the progress callback of runs that show no progress."""


@contextmanager
def _threads(workers: int) -> Iterator[Executor]:
    """Start threads with one BLAS thread each; an interrupt cancels the jobs that have not begun."""
    pool = ThreadPoolExecutor(workers)
    try:
        with one_blas_thread() if workers > 1 else nullcontext():
            yield pool
    finally:
        pool.shutdown(cancel_futures=True)
