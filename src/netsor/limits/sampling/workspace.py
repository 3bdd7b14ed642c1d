"""How much of a sampled limit is computed at once: repeats, and entries of tables, within memory.

As many repeats as fit go together, each with its values at all points; the points of a single one are cut
into parts, so that threads have work. Nothing but rounding depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.points.axes import LARGEST_TURN
from netsor.expect.points.normal import BLOCK_DIMENSIONS
from netsor.limits.sampling.schedule import Core, Schedule, Step
from netsor.threads import cores

__all__ = ["NUMBER", "Needs", "Rooms", "Workspace", "pilot_workspace", "workspace"]

AT_ONCE = 2**17  # sample points of all repeats that are computed together
MEMORY = 2**28  # bytes for them, if nothing is said and one repeat does not need more
LARGEST_TABLE = 2**18  # products of parts at a time, for each repeat
SMALL_PART = 2**19  # bytes of a part of the points of the pilot run
LEAST_TABLE = 2**13  # products at a time in that run, unless one input needs more
PARTS, LEAST_PART = 4, 128  # parts of the points of one repeat; the points of one, unless there are fewer
FEWEST = 64  # the points of the smallest part of the pilot run
NUMBER = 8  # bytes
OBJECTS, STEP = 2**20, 2**16  # bytes of the program, its expressions, points as they are made, and the like


@dataclass(frozen=True)
class Workspace:
    """What is computed at once.

    repeats   independent randomisations that are computed together
    points    of each of them in one part
    table     products of two parts of vectors at a time
    workers   threads
    """

    repeats: int
    points: int
    table: int
    workers: int


@dataclass
class Rooms:
    """Large arrays of one run that serve the next one: memory that is new takes time.

    Every run writes the same entries before it reads them, and the others stay zero.
    """

    known: dict[Any, np.ndarray] = field(default_factory=dict)
    within: tuple[Any, ...] = ()

    def zeros(self, key: Any, shape: tuple[int, ...]) -> np.ndarray:
        place = (*self.within, key)
        if place not in self.known or self.known[place].shape != shape:
            self.known.pop(place, None)  # before there is another one
            self.known[place] = np.zeros(shape)
        return self.known[place]

    def inner(self, key: Any) -> Rooms:
        """The same rooms for a part of the work."""
        return Rooms(self.known, (*self.within, key))


@dataclass(frozen=True)
class Needs:
    """Bytes that a schedule needs; `result` is the size of what is computed for each repeat.

    fixed     whatever is done
    repeat    tables of a repeat, and what is computed of them at a time
    assembly  of a repeat, when its second moments are known
    point     values and noise of a repeat at a point
    states    of recursions, among these, which stay
    least, most   entries of the smallest table of products, and of the largest
    """

    fixed: int
    repeat: int
    assembly: int
    point: int
    states: int
    least: int
    most: int

    @classmethod
    def of(cls, schedule: Schedule, result: int) -> Needs:
        families, groups = schedule.families, schedule.groups
        drawn = [f.size for f in families if f.drawn]
        inputs = max(sum(_new(step) for step in steps) for steps in schedule.stages)
        largest = max(max(f.size, f.atoms) for f in families)
        moments = sum(f.atoms**2 for f in families) + sum(g.size**2 for g in groups)
        covariances = sum(f.size**2 for f in families if not f.drawn)
        turns = [n**2 for n in drawn if n <= LARGEST_TURN]
        series = 256 * sum(f.atoms for f in families)
        cores = [step.core for step in schedule.steps if step.core]
        counts = [(c.parts.stop - c.parts.start) // (c.rows.stop - c.rows.start) for c in cores]
        rows = [count * c.parts.stop for count, c in zip(counts, cores, strict=True)]
        states = sum(g.states for g in groups)
        recursive = [c for c in cores if groups[c.group].recursion]
        weights = max(map(_weights, recursive), default=0)
        values = sum(schedule.pools) + states + schedule.alive + 4 * inputs + sum(drawn)
        tables = moments + covariances + 2 * sum(n**2 for n in drawn) + series + 12 * inputs * largest
        tables += 2 * weights
        turning = 2 * sum(turns) + 8 * max(turns, default=0)
        return cls(
            fixed=OBJECTS + STEP * len(schedule.steps) + _bytes(schedule) + NUMBER * turning + 2 * result,
            repeat=NUMBER * tables,
            assembly=NUMBER * (moments + covariances) + 6 * result,
            point=NUMBER * values + 4 * -(-sum(drawn) // BLOCK_DIMENSIONS),
            states=NUMBER * states,
            least=max(rows),
            most=max(n * (c.rows.stop - c.rows.start) for n, c in zip(rows, cores, strict=True)),
        )

    def whole(self, points: int, table: int) -> int:
        """Bytes of a repeat with all its values."""
        working = self.repeat + points * self.point + 3 * NUMBER * table
        return max(working, self.assembly + points * self.states)


def workspace(memory: int | None, points: int, needs: Needs) -> Workspace:
    """As many repeats at once as fit, but one at least; it does not depend on the number of cores."""
    size, table = max(1, AT_ONCE // points), min(LARGEST_TABLE, needs.most)
    if memory is None:
        return _parted(max(1, min(size, MEMORY // needs.whole(points, table))), points, table)
    left = memory - needs.fixed
    if left < needs.whole(points, table):
        table = needs.least
    if left < needs.whole(points, table):
        least = needs.fixed + needs.whole(points, table)
        raise LimitError(
            f"sampling this kernel needs a workspace of {least / 2**20:.3g} MB",
            remedy=f"memory={memory} allows {memory / 2**20:.3g} MB. A repeat needs its values at all points "
            "at once: allow more, or take fewer points, or fewer or shorter inputs.",
        )
    return _parted(min(size, left // needs.whole(points, table)), points, table)


def _parted(repeats: int, points: int, table: int) -> Workspace:
    if repeats > 1:
        return Workspace(repeats, points, table, _cores(repeats))
    part = min(points, max(LEAST_PART, -(-points // PARTS)))
    return Workspace(1, part, table, _cores(-(-points // part)))


def pilot_workspace(points: int, needs: Needs) -> Workspace:
    """Small parts that depend on nothing: what the first run finds decides about everything else."""
    size = min(points, SMALL_PART // needs.point)
    size = max(size - size % FEWEST, min(points, FEWEST))
    return Workspace(1, size, max(needs.least, LEAST_TABLE), _cores(-(-points // size)))


def _cores(most: int) -> int:
    return max(1, min(cores(), most))


def _new(step: Step) -> int:
    """The inputs of a step."""
    return max([form.rows.stop - form.rows.start for form in step.forms], default=0)


def _weights(core: Core) -> int:
    """Entries of the tables that a recursion weighs new parts with: products of parts, and of atoms."""
    new, held = (some.stop - some.start for some in (core.parts, core.inner))
    return new * core.parts.stop + (held and (new + held) * (core.parts.stop + core.inner.stop))


def _bytes(schedule: Schedule) -> int:
    """Of the numbers of rows in a schedule, and of what is known of inputs."""
    lists = [parts for g in schedule.groups for parts in (g, g.inner) if parts]
    arrays = [x for parts in lists for x in (parts.sampled, parts.starts, *parts.atoms.values())]
    for link in (link for step in schedule.steps for form in step.forms for link in form.links):
        arrays += [link.other, link.other, link.columns, *(f.other for f in link.factors)]
    static = sum(2 * family.size**2 for family in schedule.families)
    return sum(x.nbytes for x in arrays) + NUMBER * static
