"""Independent repeats of a sampled limit: some at a time, so that they fit in memory, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from netsor.limits.methods.expectation import Record
from netsor.limits.recursion.engine import Engine
from netsor.limits.sampling.axes import Axes
from netsor.limits.sampling.moments import Moments
from netsor.limits.sampling.sampled import NoRoomError, Sampler
from netsor.limits.sampling.scheduling import schedule_of
from netsor.limits.sampling.workspace import Needs, Workspace, fixed_parts, whole_repeats, within
from netsor.progress import bar
from netsor.threads import one_blas_thread

__all__ = ["Repeats"]

PILOT, NEVER = 2**9, 2**31  # points of the run that comes first, and a number that no repeat has


class Repeats:
    """Engines whose blocks have an axis of repeats, each with sample points of its own.

    engine   makes an engine that samples the families of a sampler
    memory   bytes of workspace; with None as much as one repeat needs, and for several 256 MB
    result   bytes of what is computed for each repeat
    """

    def __init__(
        self,
        engine: Callable[[Sampler], Engine],
        families: frozenset[str],
        seed: int,
        memory: int | None = None,
        progress: bool | None = None,
        result: int = 0,
    ) -> None:
        self.engine, self.families, self.seed = engine, families, seed
        self.memory, self.progress = memory, progress
        self.schedule = schedule_of(engine(Sampler(families, 1, range(1), seed)), families)
        self.needs = Needs.of(self.schedule, result) if self.schedule else None
        self.axes: Axes | None = None
        self.dimensions = 0

    def values(self, quantity: Callable[[Engine, int], Any], points: int, repeats: range) -> Iterator[Any]:
        """A quantity of the engine, (some repeats, ...) at a time; None is a structural zero."""
        workspace = self.workspace(points)
        if self.schedule and not self.axes:
            self.axes = self.pilot(min(points, PILOT))
        done, size = 0, workspace.repeats
        stages = len(self.schedule.stages) if self.schedule else 0
        with bar(self.progress, -(-len(repeats) // size) * (stages + 1), "sampling the kernel") as advance:
            while done < len(repeats):
                some = repeats[done : done + size]
                try:
                    value = self.some_values(quantity, points, some, workspace, advance)
                except NoRoomError as error:
                    if len(some) == 1:
                        raise error.said(self.memory or 0) from None
                    size = len(some) // 2
                    continue
                advance()
                done += len(some)
                yield value

    def some_values(
        self,
        quantity: Callable[[Engine, int], Any],
        points: int,
        repeats: range,
        workspace: Workspace,
        advance: Callable[[], None],
    ) -> Any:
        dimensions = self.axes.dimensions if self.axes else 0
        sampler = Sampler(self.families, points, repeats, self.seed, dimensions, self.memory)
        engine = self.engine(sampler)
        if self.schedule:
            sampler.moments = self.moments(engine, sampler, workspace, advance)
            sampler.used = sampler.moments.bytes
        value = quantity(engine, len(repeats))
        self.dimensions = sampler.dimensions
        _release(engine, sampler)
        return value if value is None else np.broadcast_to(value, (len(repeats), *value.shape[1:]))

    def workspace(self, points: int) -> Workspace:
        if self.memory is None or self.needs is None:
            return whole_repeats(points, self.needs)
        return within(self.memory, points, self.needs)

    def pilot_workspace(self, points: int) -> Workspace:
        """What the first run finds decides about everything else, so its sums are always the same."""
        assert self.needs is not None
        return fixed_parts(self.memory, points, self.needs)

    def moments(
        self, engine: Engine, sampler: Sampler, workspace: Workspace, advance: Callable[[], None]
    ) -> Moments:
        assert self.schedule is not None
        with _threads(workspace.workers) as threads:
            return Moments(self.schedule, engine, sampler.points, self.axes, workspace, threads, advance)

    def pilot(self, points: int) -> Axes:
        """What a small run of its own says about the directions of most variance."""
        sampler = Sampler(self.families, points, range(NEVER, NEVER + 1), self.seed)
        engine = self.engine(sampler)
        engine.expectations.record = Record()
        trails = self.moments(engine, sampler, self.pilot_workspace(points), lambda: None).trails
        assert trails is not None
        _release(engine, sampler)
        return Axes.of(trails)


@contextmanager
def _threads(workers: int) -> Iterator[Executor]:
    """Threads, each of which does its own linear algebra; an interrupt cancels what has not begun."""
    pool = ThreadPoolExecutor(workers)
    try:
        with one_blas_thread() if workers > 1 else nullcontext():
            yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _release(engine: Engine, sampler: Sampler) -> None:
    """Break the circle of engine, expectations, sampler and moments, so that their tables go at once."""
    sampler.moments = None
    del engine.expectations
