"""How much of a sampled limit is computed at once: repeats, points, and entries of tables.

If the values of several repeats fit in memory, these go together. If those of one do not, its points are cut
into parts. Then either all values stay but not all the noise that they are made of, or only those at some
parts stay; the rest is computed again at each stage of the schedule. Nothing but rounding depends on it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from netsor.errors import LimitError
from netsor.expect.points.normal import BLOCK_DIMENSIONS
from netsor.limits.sampling.axes import LARGEST_TURN
from netsor.limits.sampling.schedule import Schedule, Step

__all__ = ["Needs", "Workspace", "fixed_parts", "least_memory", "whole_repeats", "within"]

AT_ONCE = 2**17  # sample points of all repeats that are computed together
MEMORY = 2**28  # bytes for them, if nothing is said and one repeat does not need more
LARGEST_TABLE = 2**18  # products of parts at a time, for each repeat
SMALL_PART = 2**19  # bytes
LEAST_TABLE = 2**13  # for small workspaces, unless one input needs more
PARTS, FINE_PARTS, FEWEST = 4, 8, 64  # parts of the points of one repeat; the points of the smallest part
NUMBER = 8  # bytes
OBJECTS, STEP = 2**20, 2**16  # bytes of the program, its expressions, points as they are made, and the like


@dataclass(frozen=True)
class Workspace:
    """What is computed at once.

    repeats   independent randomisations that are computed together
    points    of each of them at a time
    kept      how many such parts of the points keep their values
    noisy     how many of these keep the noise that values are made of
    table     products of two parts of vectors at a time
    workers   threads
    """

    repeats: int
    points: int
    kept: int
    noisy: int
    table: int
    workers: int


@dataclass(frozen=True)
class Needs:
    """Bytes that a schedule needs; `result` is the size of what is computed for each repeat.

    fixed     whatever is done
    axes      to find the axes, after the first run
    repeat    tables of a repeat, and what is computed of them at a time
    order     the order of the points of a repeat, for each of them
    assembly  of a repeat, when its second moments are known
    point     values of a repeat at a point that stay
    work      values that do not, while it is worked on
    noise     all noise of a repeat at a point
    family    the noise of a single family
    entry     of a table of products
    least, most   entries of the smallest such table, and of the largest
    """

    fixed: int
    axes: int
    repeat: int
    order: int
    assembly: int
    point: int
    work: int
    noise: int
    family: int
    entry: int
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
        loadings = 2 * sum(n**2 for n in drawn)
        turns = [n**2 for n in drawn if n <= LARGEST_TURN]
        series = 256 * sum(f.atoms for f in families)
        cores = [step.core for step in schedule.steps if step.core]
        counts = [(c.parts.stop - c.parts.start) // (c.rows.stop - c.rows.start) for c in cores]
        rows = [count * c.parts.stop for count, c in zip(counts, cores, strict=True)]
        states = sum(g.recursion.chains * g.size for g in groups if g.recursion)
        return cls(
            fixed=OBJECTS + STEP * len(schedule.steps) + _bytes(schedule) + NUMBER * sum(turns) + 2 * result,
            axes=NUMBER * (sum(turns) + 8 * max(turns, default=0)),
            repeat=NUMBER * (moments + covariances + loadings + series + 12 * inputs * largest),
            order=4 * -(-sum(drawn) // BLOCK_DIMENSIONS),
            assembly=NUMBER * moments + 6 * result,
            point=NUMBER * (sum(schedule.pools) + states + schedule.lasting),
            work=NUMBER * (schedule.alive - schedule.lasting + 4 * inputs),
            noise=NUMBER * sum(drawn),
            family=NUMBER * max(drawn),
            entry=3 * NUMBER,
            least=max(rows),
            most=max(n * (c.rows.stop - c.rows.start) for n, c in zip(rows, cores, strict=True)),
        )

    def tables(self, points: int) -> int:
        """Bytes of a repeat without values."""
        return self.repeat + points * self.order

    def part(self, points: int, table: int) -> int:
        """Bytes of all values at some points, and of products of them."""
        return points * (self.point + self.work + self.noise) + table * self.entry

    def whole(self, points: int, table: int) -> int:
        """Bytes of a repeat with all its values."""
        return max(self.tables(points) + self.part(points, table), self.assembly)


def whole_repeats(points: int, needs: Needs | None) -> Workspace:
    """As many repeats at once as fit, but one at least; it does not depend on the number of cores."""
    size = max(1, AT_ONCE // points)
    if needs is None:
        return Workspace(size, points, 1, 1, 0, 1)
    table = min(LARGEST_TABLE, needs.most)
    return _whole(min(size, MEMORY // needs.whole(points, table)), points, table)


def within(memory: int, points: int, needs: Needs) -> Workspace:
    """A workspace of at most so many bytes: whole repeats, or parts of one."""
    left, table = memory - needs.fixed, min(LARGEST_TABLE, needs.most)
    repeats = min(left // needs.whole(points, table), max(1, AT_ONCE // points))
    if repeats > 0:
        return _whole(repeats, points, table)
    _require(memory, points, needs)
    left -= needs.tables(points)
    table = max(needs.least, min(table, left // (16 * needs.entry)))
    found = _all_values(left, points, table, needs) or _some_values(left, points, table, needs, 2)
    found = found or _some_values(left, points, needs.least, needs, 1)
    assert found is not None
    return found


def fixed_parts(memory: int | None, points: int, needs: Needs) -> Workspace:
    """Parts that do not depend on the memory; only how many keep their values does."""
    table, size = max(needs.least, LEAST_TABLE), _fixed_size(points, needs)
    if memory is None:
        parts = -(-points // size)
        return Workspace(1, size, parts, parts, table, _cores(parts))
    _require(memory, points, needs)
    room = (memory - needs.fixed - needs.tables(points)) // needs.part(size, table)
    kept = max(0, room - 2)
    return Workspace(1, size, kept, kept, table, _cores(min(2, room)))


def _whole(repeats: int, points: int, table: int) -> Workspace:
    """Repeats with all their values; the points of a single one are cut, so that threads have work."""
    if repeats > 1:
        return Workspace(repeats, points, 1, 1, table, _cores(repeats))
    return Workspace(1, -(-points // PARTS), PARTS, PARTS, table, _cores(PARTS))


def _all_values(left: int, points: int, table: int, needs: Needs) -> Workspace | None:
    """All values are kept, and part of the noise; the rest is made again, for one family at a time."""
    left -= points * needs.point + 2 * table * needs.entry
    each = 2 * (needs.work + needs.family)
    size = _part_size(points, left // each)
    if size < min(points, 4 * FEWEST):  # larger parts with fewer values are faster
        return None
    noisy = (left - size * each) // (size * needs.noise)
    parts = -(-points // size)
    return Workspace(1, size, parts, min(noisy, parts), table, _cores(2))


def _some_values(left: int, points: int, table: int, needs: Needs, threads: int) -> Workspace | None:
    """Some values are kept, the others are made again."""
    left -= threads * table * needs.entry
    size = _part_size(points, left // (threads * needs.part(1, 0)))
    if not size:
        return None
    kept = (left - threads * needs.part(size, 0)) // (size * (needs.point + needs.noise))
    return Workspace(1, size, kept, kept, table, _cores(threads))


def _part_size(points: int, most: int) -> int:
    """How many points to take at a time, if there is room for so many; 0 is none at all."""
    size, least = min(-(-points // FINE_PARTS), most), min(points, FEWEST)
    return max(size - size % FEWEST, least) if most >= least else 0


def _fixed_size(points: int, needs: Needs) -> int:
    """Points of a small part, or as many as do not need more than little memory."""
    size = min(points, SMALL_PART // needs.part(1, 0))
    return max(size - size % FEWEST, min(points, FEWEST))


def least_memory(points: int, needs: Needs) -> int:
    """Bytes of the smallest workspace, which is that of the first run."""
    part = needs.part(_fixed_size(points, needs), max(needs.least, LEAST_TABLE))
    return needs.fixed + max(needs.tables(points) + part, needs.assembly, needs.axes)


def _require(memory: int, points: int, needs: Needs) -> None:
    """Raise if not even the smallest workspace fits."""
    least = least_memory(points, needs)
    if least > memory:
        raise LimitError(
            f"sampling this kernel needs a workspace of {least / 2**20:.3g} MB",
            remedy=f"memory={memory} allows {memory / 2**20:.3g} MB. The second moments of all vectors of "
            "all inputs are needed at once: allow more, or take fewer or shorter inputs.",
        )


def _cores(most: int) -> int:
    return max(1, min(os.cpu_count() or 1, most))


def _new(step: Step) -> int:
    """The inputs of a step."""
    return max([form.rows.stop - form.rows.start for form in step.forms], default=0)


def _bytes(schedule: Schedule) -> int:
    """Of the numbers of rows in a schedule, and of what is known of inputs."""
    arrays = [x for g in schedule.groups for x in (g.sampled, g.starts, *g.atoms.values())]
    for link in (link for step in schedule.steps for form in step.forms for link in form.links):
        arrays += [link.other, link.other, link.columns, *(f.other for f in link.factors)]
    static = sum(2 * family.size**2 for family in schedule.families)
    return sum(x.nbytes for x in arrays) + NUMBER * static
