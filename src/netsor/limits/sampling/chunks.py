"""How many repeats and points to compute at once, and the values at a chunk of the sample points.

As many repeats as fit into memory are computed together, each with its values at all points. If only one
fits, its points are divided into chunks, one job for a thread each. The division changes results by rounding
only.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import reduce
from operator import mul

import numpy as np

from netsor.errors import LimitError
from netsor.expect.points.loadings import Dimensions, Noise
from netsor.expect.points.principal_axes import LARGEST_ROTATION
from netsor.expect.points.sobol import BLOCK_DIMENSIONS
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, subtrees
from netsor.limits.sampling.drawing import Drawing, reaching
from netsor.limits.sampling.recursions import Core, CoreGroup, in_order, recursive_sums, states_shape
from netsor.limits.sampling.schedule import Schedule
from netsor.limits.sampling.variables import Numbers, SampledRow, VectorStep, as_slice
from netsor.threads import cores, in_parts

FLOAT = 8  # bytes of a number
AT_ONCE = 2**17  # sample points of all repeats that are computed together: more save no time per point
MEMORY = 2**28  # default bytes for repeats that are computed together; one repeat may take more
LARGEST_TABLE = 2**18  # entries of a table of products, per repeat: it stays in the cache
LEAST_CHUNK = 128  # points: each chunk costs some hundred NumPy calls, whatever its size


# Memory


@dataclass(frozen=True)
class Needs:
    """Bytes that a schedule needs; `result` is the size of the results of each repeat.

    fixed     independent of repeats and points
    repeat    per repeat: its tables, and the largest temporary arrays
    assembly  per repeat: when its second moments are complete and blocks are read
    point     per repeat and point: values and noise
    states    the share of `point` that recursions keep until the end
    least, most   entries of the smallest and of the largest table of products
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
        inputs = max(sum(step.inputs for step in steps) for steps in schedule.stages)
        largest = max(max(f.size, f.atoms) for f in families)
        moments = sum(f.atoms**2 for f in families) + sum(g.size**2 for g in groups)
        covariances = sum(f.size**2 for f in families if not f.drawn)
        rotations = [n**2 for n in drawn if n <= LARGEST_ROTATION]
        series = 256 * sum(f.atoms for f in families)
        new_cores = [step.core for step in schedule.steps if step.core]
        rows = [core.parts_of_input * core.parts.stop for core in new_cores]
        states = sum(group.states for group in groups)
        recursive = [core.parts for core in new_cores if groups[core.group].recursion]
        weights = max(((parts.stop - parts.start) * parts.stop for parts in recursive), default=0)
        values = sum(schedule.pools) + states + schedule.alive + 4 * inputs + sum(drawn)
        tables = moments + covariances + 2 * sum(n**2 for n in drawn) + series + 12 * inputs * largest
        tables += 2 * weights
        rotating = 2 * sum(rotations) + 8 * max(rotations, default=0)
        numbers = 2 * sum(f.size**2 for f in families)
        arrays = [x for g in groups for x in (g.sampled, g.starts, *g.atoms.values())]
        # Objects of Python: the program, expressions, and points while they are made.
        objects = 2**20 + 2**16 * len(schedule.steps)
        return cls(
            fixed=objects + sum(x.nbytes for x in arrays) + FLOAT * (numbers + rotating) + 2 * result,
            repeat=FLOAT * tables,
            assembly=FLOAT * (moments + covariances) + 6 * result,
            point=FLOAT * values + 4 * -(-sum(drawn) // BLOCK_DIMENSIONS),
            states=FLOAT * states,
            least=max(rows),
            most=max(n * core.inputs for n, core in zip(rows, new_cores, strict=True)),
        )

    def whole(self, points: int, table: int) -> int:
        """Return the bytes of one repeat with all its values."""
        working = self.repeat + points * self.point + 3 * FLOAT * table
        return max(working, self.assembly + points * self.states)


@dataclass(frozen=True)
class Workspace:
    """How much is computed at once.

    repeats   repeats that are computed together
    points    points of each repeat in one chunk
    table     entries of a table of products of two parts, per repeat
    """

    repeats: int
    points: int
    table: int

    @property
    def threads(self) -> int:
        return cores()

    @classmethod
    def within(cls, memory: int | None, points: int, needs: Needs) -> Workspace:
        """Return the largest workspace within memory; it does not depend on the number of cores."""
        table = min(LARGEST_TABLE, needs.most)
        left = MEMORY if memory is None else memory - needs.fixed
        if memory is not None and left < needs.whole(points, table):
            table = needs.least
        whole = needs.whole(points, table)
        if memory is not None and left < whole:
            raise LimitError(
                f"sampling this kernel needs a workspace of {(needs.fixed + whole) / 2**20:.3g} MB",
                remedy=f"memory={memory} allows {memory / 2**20:.3g} MB. A repeat needs its values at all "
                "points at once: allow more, or take fewer points, or fewer or shorter inputs.",
            )
        repeats = max(1, min(AT_ONCE // points, left // whole))
        # One repeat has four chunks at least, so that four threads have work.
        size = points if repeats > 1 else min(points, max(LEAST_CHUNK, -(-points // 4)))
        return cls(repeats, size, table)

    @classmethod
    def of_pilot(cls, points: int, needs: Needs) -> Workspace:
        """Return small chunks whose size does not depend on memory or repeats.

        The pilot run determines the axes of all other runs, so its sums must always be the same.
        """
        fewest, chunk_bytes, least_table = 64, 2**19, 2**13
        size = min(points, chunk_bytes // needs.point)
        size = max(size - size % fewest, min(points, fewest))
        return cls(1, size, max(needs.least, least_table))


# Values


class PointChunk:
    """Values at a chunk of the points of some repeats: arrays (repeats, rows, points).

    products  by family, E of products of exact atoms: (repeats, atoms, atoms)
    table     largest number of products of parts at a time, per repeat
    """

    def __init__(
        self,
        schedule: Schedule,
        numbers: Numbers,
        products: list[np.ndarray],
        drawing: Drawing,
        dimensions: list[Dimensions],
        table: int,
        repeats: slice,
        points: slice,
    ) -> None:
        self.schedule, self.numbers, self.heavy, self.table = schedule, numbers, drawing.heavy, table
        self.repeats, self.products = repeats, [table[repeats] for table in products]
        members, count = repeats.stop - repeats.start, points.stop - points.start
        self.noise = Noise(drawing.points[repeats], dimensions[repeats], points)
        self.pools = [np.empty((members, size, count)) for size in schedule.pools]
        self.values: dict[Expr, Block] = {}
        self.forms: set[Expr] = set()
        self.states = {
            number: drawing.shared.zeros(
                ("states", repeats.start, points.start, number), states_shape(group, members, count)
            )
            for number, group in enumerate(schedule.groups)
            if group.recursion
        }

    def sums(
        self, steps: list[VectorStep], rows: list[dict[Expr, np.ndarray]], weights: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Draw the new variables; return for each new core its sums with all cores so far.

        rows     for each repeat, the loadings of the new forms that are drawn
        weights  for each new core, its `recursion_weights`
        """
        forms = [form for step in steps for form in step.forms if form.expr in rows[0]]
        with np.errstate(all="ignore"):
            # Draw family by family: the noise of a family is one array that grows.
            for form in sorted(forms, key=lambda form: form.family):
                samples = self.noise.variables(form.family, [k[form.expr] for k in rows[self.repeats]])
                mean = self.numbers.means[form.family][form.rows, None]
                if mean.any():
                    samples += mean
                self.values[form.expr] = Block(samples, 0, True)
                self.forms.add(form.expr)
            for step in steps:
                for row in step.rows:
                    assert step.core is not None
                    self._fill(self.schedule.groups[step.core.group].pool, row)
                for expr in step.expired:
                    self.values.pop(expr, None)
            cores = (step.core for step in steps if step.core)
            return [self._core_sums(core, w) for core, w in zip(cores, weights, strict=True)]

    def _fill(self, number: int, row: SampledRow) -> None:
        """Compute a row of sampled values in a pool, and note its heavy points."""
        pool = self.pools[number]
        pool[:, row.rows] = self._product(row, pool)
        if self.heavy is not None and row.exprs:
            key = self.schedule.together[number], (number, row.rows.start)
            self.heavy.add(key, row.exprs, pool[:, row.rows], lambda: self._further(row, pool))

    def _product(self, row: SampledRow, pool: np.ndarray) -> np.ndarray | float:
        factors = [self._value(expr).array for expr in row.exprs]
        if row.times is not None:
            factors.append(pool[:, row.times])
        return reduce(mul, factors) if factors else 1.0

    def _further(self, row: SampledRow, pool: np.ndarray) -> np.ndarray:
        """Return a row at points that reach further; values whose forms have been dropped stay."""
        values, inside = self.values, {node for expr in row.exprs for node in subtrees(expr)}
        dropped = (inside & self.forms) - values.keys()
        try:
            self.values = {
                e: Block(reaching(block.array), 0, True) if e in self.forms else block
                for e, block in values.items()
                if e in self.forms or dropped & set(subtrees(e))
            }
            product = self._product(row, pool)
        finally:
            self.values = values
        return np.broadcast_to(product, pool[:, row.rows].shape)

    def _value(self, node: Expr) -> Block:
        """Return the values of an expression; keep those of its parts while later steps need them."""
        if node not in self.values:
            if isinstance(node, Const):
                return Block(node.value, 0)
            assert isinstance(node, Apply)
            args = [self._value(a) for a in node.args]
            # An expression without sampled values is a constant, the same at all points.
            sampled = any(a.vector for a in args)
            self.values[node] = node.op.run(*args, **node.options) if sampled else evaluate(node, {})
        return self.values[node]

    def _core_sums(self, core: Core, weights: np.ndarray) -> np.ndarray:
        """Return sums over the points of a new core times each core: (repeats, inputs, rows so far)."""
        group, new, count = self.schedule.groups[core.group], core.parts, core.parts_of_input
        pool = self.pools[group.pool]
        if group.recursion:
            return recursive_sums(group, core, pool, weights[self.repeats], self.states[core.group])
        products = np.empty((len(pool), core.inputs, core.rows.stop))
        step = max(1, self.table // (count * new.stop))
        for k in range(0, core.inputs, step):
            stop = min(k + step, core.inputs)
            parts = slice(new.start + count * k, new.start + count * stop)
            products[:, k:stop] = self._products_of_parts(core, parts, pool)
        return products

    def _products_of_parts(self, core: Core, parts: slice, pool: np.ndarray) -> np.ndarray:
        """Return these sums for the inputs that own `parts`, from the products of all parts."""
        group, stop = self.schedule.groups[core.group], core.parts.stop
        rows = group.sampled[:stop]
        # Rows of the pool that are in order are read as a slice, without a copy.
        left, right = as_slice(rows[parts]), as_slice(rows)
        if isinstance(right, slice):
            table = pool[:, left] @ pool[:, right].swapaxes(1, 2)
        else:
            # Several parts may have the same row, so multiply rows, not parts.
            table = (pool[:, left] @ pool[:, : rows.max() + 1].swapaxes(1, 2))[:, :, rows]
        multiply(table, group, self.products, self.numbers.constants[core.group], parts, slice(stop))
        # Several parts of one core: add up their products.
        if stop > core.rows.stop:
            table = np.add.reduceat(table, group.starts[: core.rows.stop], axis=2)
            table = table.reshape(len(table), -1, core.parts_of_input, core.rows.stop).sum(2)
        return table


def recursion_weights(
    core: Core, group: CoreGroup, products: list[np.ndarray], constants: np.ndarray | None, threads: Executor
) -> np.ndarray:
    """Return the C of a recursion: E of exact atoms times constants, (repeats, new parts, parts)."""
    repeats = len(products[0])
    if group.recursion is None:
        return np.empty((repeats, 0, 0))
    order = in_order(group, core)
    weights = np.ones((repeats, core.parts.stop - core.parts.start, len(order)))

    def fill(part: slice) -> None:
        multiply(weights[part], group, [table[part] for table in products], constants, core.parts, order)

    in_parts(threads, repeats, 1, fill)
    return weights


def multiply(
    table: np.ndarray,
    group: CoreGroup,
    products: list[np.ndarray],
    constants: np.ndarray | None,
    new: slice,
    parts: slice | np.ndarray,
) -> None:
    """Multiply (repeats, new, parts) in place by the expectations of exact atoms and by constants."""
    for family, atoms in group.atoms.items():
        # One index at a time is faster than both at once.
        table *= np.take(products[family][:, atoms[new]], atoms[parts], axis=2)
    if constants is not None:
        table *= constants[new, None] * constants[parts]
