"""Independent repeats of a sampled limit: some at a time, so that they fit in memory, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from netsor.limits.axes import Axes
from netsor.limits.engine import Engine
from netsor.limits.expectation import Record
from netsor.limits.moments import Moments
from netsor.limits.sampled import Sampler
from netsor.limits.scheduling import schedule_of
from netsor.threads import one_blas_thread

__all__ = ["Repeats"]

AT_ONCE = 2**17  # sample points of all repeats that are computed together
MEMORY = 2**28  # bytes for them
PILOT, NEVER = 2**9, 2**31  # points of the run that comes first, and a number that no repeat has


class Repeats:
    """Engines whose blocks have an axis of repeats, each with sample points of its own.

    engine   makes an engine that samples the families of a sampler
    """

    def __init__(self, engine: Callable[[Sampler], Engine], families: frozenset[str], seed: int) -> None:
        self.engine, self.families, self.seed = engine, families, seed
        self.schedule = schedule_of(engine(Sampler(families, 1, range(1), seed)), families)
        self.axes: Axes | None = None
        self.dimensions = 0

    def engines(self, points: int, repeats: range) -> Iterator[tuple[Engine, int]]:
        """Engines for some repeats each, and how many these are."""
        size = self.at_once(points)
        if self.schedule and not self.axes:
            self.axes = self.pilot(min(points, PILOT))
        for k in range(0, len(repeats), size):
            some = repeats[k : k + size]
            sampler = Sampler(
                self.families, points, some, self.seed, self.axes.dimensions if self.axes else 0
            )
            engine = self.engine(sampler)
            sampler.moments = self.moments(engine, sampler)
            yield engine, len(some)
            self.dimensions = sampler.dimensions

    def moments(self, engine: Engine, sampler: Sampler) -> Moments | None:
        if not self.schedule:
            return None
        with _threads(sampler.repeats) as (threads, workers):
            return Moments(self.schedule, engine, sampler.points, self.axes, threads, workers)

    def pilot(self, points: int) -> Axes | None:
        """What a small run of its own says about the directions of most variance."""
        sampler = Sampler(self.families, points, range(NEVER, NEVER + 1), self.seed)
        engine = self.engine(sampler)
        engine.expectations.record = Record()
        made = self.moments(engine, sampler)
        return made and made.axes

    def at_once(self, points: int) -> int:
        """How many repeats are computed together; it does not depend on the number of cores."""
        size = max(1, AT_ONCE // points)
        return min(size, max(1, MEMORY // self.schedule.bytes(points))) if self.schedule else size

    def values(
        self, quantity: Callable[[Engine, int], Any], points: int, repeats: range
    ) -> np.ndarray | None:
        """A quantity of the engine, (repeats, ...); None is a structural zero."""
        found = []
        for engine, count in self.engines(points, repeats):
            value = quantity(engine, count)
            if value is None:
                return None
            found.append(np.broadcast_to(value, (count, *value.shape[1:])))
        return np.concatenate(found)


@contextmanager
def _threads(repeats: int) -> Iterator[tuple[ThreadPoolExecutor, int]]:
    """Threads for all cores, each of which does its own linear algebra; for a single repeat one thread."""
    workers = min(os.cpu_count() or 1, repeats)
    limit = one_blas_thread() if workers > 1 else nullcontext()
    with limit, ThreadPoolExecutor(workers) as threads:
        yield threads, workers
