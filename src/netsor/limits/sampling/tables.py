"""Second moments of all vectors of a schedule, as one step of a recording.

Networks that are loops over tokens have many vectors without index axes, and all pairs of them matter. Their
second moments are computed together in tables (`moments`), and the rest of the recording reads blocks of
these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from netsor.expect.points.axes import Axes
from netsor.lang.expr import Expr
from netsor.limits.recursion.pairs import Pair, PerPair
from netsor.limits.recursion.recorder import Recorder
from netsor.limits.sampling.moments import Moments
from netsor.limits.sampling.numbers import Numbers, numbers_of
from netsor.limits.sampling.schedule import Schedule
from netsor.limits.sampling.scheduling import schedule_of
from netsor.limits.sampling.values import Drawing, drawing_leaf
from netsor.limits.sampling.workspace import NUMBER, Needs, Workspace, pilot_workspace, workspace
from netsor.limits.tape.tape import Span
from netsor.limits.tape.traced import Traced
from netsor.threads import one_blas_thread

__all__ = ["Tables", "tables_of"]

STATES = 2**31  # bytes of the states of recursions, if nothing is said: they save most of the time
PILOT, NEVER = 2**9, 2**31  # points of the run that comes first, and a number that no repeat has


def tables_of(
    r: Recorder, families: frozenset[str], result: int, memory: int | None, points: int
) -> Tables | None:
    """The tables of the vectors that outputs need, or None if there is nothing to sample in them.

    result   bytes of what is computed for each repeat
    points   of a repeat, at most
    """
    allowed = STATES if memory is None else memory // 2
    schedule = schedule_of(r, families, allowed // (NUMBER * points))
    return schedule and Tables(schedule, Needs.of(schedule, result), memory)


class Tables:
    """A schedule with the memory that it may have."""

    def __init__(self, schedule: Schedule, needs: Needs, memory: int | None) -> None:
        self.schedule, self.needs, self.memory = schedule, needs, memory

    @property
    def stages(self) -> int:
        return len(self.schedule.stages)

    @property
    def rows(self) -> int:
        """The Gaussian variables that are sampled."""
        return sum(family.size for family in self.schedule.families if family.drawn)

    @property
    def compiled(self) -> bool:
        return any(group.recursion for group in self.schedule.groups)

    def workspace(self, points: int) -> Workspace:
        return workspace(self.memory, points, self.needs)

    def bytes(self, points: int, repeats: int) -> int:
        """Of workspace."""
        return self.needs.fixed + repeats * self.needs.whole(points, self.workspace(points).table)

    def recorded(self, r: Recorder) -> RecordedTables:
        """The step that computes the tables, and what is read from them."""
        for step in self.schedule.steps:
            for atom in step.atoms:
                for peer in atom.peers:
                    r.notes.add(peer.what(atom), "closed form" if peer.rule else "Hermite series")
                    r.notes.inexact |= peer.is_inexact

        def run(drawing: Drawing, numbers: Numbers) -> Moments:
            axes = drawing.shared.get("axes")
            if drawing.shared.get("landmarks") is not None:
                axes = Axes({})  # those of a pilot run would depend on who is there
            elif axes is None:
                axes = drawing.shared["axes"] = self._pilot(r, drawing, numbers)
            drawing.begin(axes.dimensions)
            return self._moments(r, drawing, numbers, axes, self.workspace(drawing.count), drawing.advance)

        arrays = (drawing_leaf(r), numbers_of(r, self.schedule))
        step = r.tape.call(run, arrays, (), np.float64)
        r.tape.costs[step.step] = r.samples.repeats * r.samples.points * self.schedule.work
        return RecordedTables(r, self.schedule, step)

    def _moments(
        self,
        r: Recorder,
        drawing: Drawing,
        numbers: Numbers,
        axes: Axes | None,
        workspace: Workspace,
        advance: Callable[..., None],
    ) -> Moments:
        models = drawing.shared.setdefault("models", {})
        carried = None if axes is None else drawing.carried  # a pilot has few points
        with _threads(workspace.workers) as threads:
            return Moments(
                r,
                self.schedule,
                numbers,
                drawing.points,
                axes,
                workspace,
                threads,
                advance,
                models,
                carried,
                drawing.shared,
                drawing.nudge,
            )

    def _pilot(self, r: Recorder, drawing: Drawing, numbers: Numbers) -> Axes:
        """What a small run of its own says about the directions of most variance.

        What it finds decides about everything else, so its sums are always the same.
        """
        points = min(drawing.count, PILOT)
        small = Drawing(drawing.seed, points, range(NEVER, NEVER + 1), drawing.shared, _nobody)
        own = pilot_workspace(points, self.needs)
        trails = self._moments(r, small, numbers, None, own, _nobody).trails
        assert trails is not None
        return Axes.of(trails)


class RecordedTables:
    """Blocks of second moments, read from the step that computes all of them."""

    def __init__(self, r: Recorder, schedule: Schedule, step: Traced) -> None:
        self.r, self.schedule, self.step = r, schedule, step

    def has(self, e: Expr) -> bool:
        """Whether the schedule has second moments of a vector."""
        return e in self.schedule.states

    def block(self, e: Expr, f: Expr, pair: Pair) -> PerPair | None:
        """E[e f], or None if the schedule does not have it."""
        left, right = (self.schedule.states.get(x) for x in (e, f))
        if left is None or right is None or left.cluster != right.cluster:
            return None
        sizes, repeats = (left.inputs, right.inputs), self.r.samples.repeats
        same, rows, cols, tape = pair.same, pair.rows, pair.cols, pair.tape
        if tape is None or rows is None or cols is None:
            shape = (repeats, max(sizes)) if same else (repeats, *sizes)
            array = self.r.tape.call(
                lambda moments: moments.block(left, right, same, None, None), (self.step,), shape, np.float64
            )
            return PerPair(array, pair, 0, 0)
        counts = (1 if n == 1 else span[1] - span[0] for n, span in zip(sizes, (rows, cols), strict=True))
        read = tape.reader(self.step)

        def part(given: Any, spans: Mapping[Span, Span]) -> np.ndarray:
            return read(given).block(left, right, False, spans[rows], spans[cols])

        return PerPair(tape.leaf(("moments", e, f, pair), (repeats, *counts), np.float64, part), pair, 0, 0)


def _nobody(work: float = 1.0) -> None:
    """Stand in for a progress bar where nobody watches."""


@contextmanager
def _threads(workers: int) -> Iterator[Executor]:
    """Threads, each of which does its own linear algebra; an interrupt cancels what has not begun."""
    pool = ThreadPoolExecutor(workers)
    try:
        with one_blas_thread() if workers > 1 else nullcontext():
            yield pool
    finally:
        pool.shutdown(cancel_futures=True)
