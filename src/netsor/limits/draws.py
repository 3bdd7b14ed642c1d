"""Sampled values of some repeats of a schedule: drawn, evaluated, multiplied and averaged over the points."""

from __future__ import annotations

from functools import reduce
from operator import mul

import numpy as np

from netsor.expect.points import GrowingFactor, NormalPoints
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr
from netsor.limits.axes import Axes, Trail
from netsor.limits.schedule import Core, Form, Row, Schedule, Step

__all__ = ["Draws"]

LARGEST_TABLE = 2**18  # products of parts at a time, for each repeat


class Draws:
    """The values of forms and of sampled rows: arrays (repeats, rows, points), all repeats alike.

    trails   for each family, how its variables were drawn in the first repeat
    """

    def __init__(self, schedule: Schedule, points: list[NormalPoints], axes: Axes | None = None) -> None:
        self.schedule, self.points, self.count = schedule, points, points[0].count
        sizes = [family.size if family.drawn else 0 for family in schedule.families]
        self.factors = [[GrowingFactor() for _ in points] if size else [] for size in sizes]
        self.noise = [np.empty((len(points), size, self.count)) for size in sizes]
        self.pools = [np.empty((len(points), size, self.count)) for size in schedule.pools]
        self.trails = [Trail() for _ in sizes]
        self.drawn = 0
        self.values: dict[Expr, Block] = {}
        self.made = [0] * len(sizes)  # dimensions of noise that are there from the start
        if axes:
            self.turn(axes)

    def turn(self, axes: Axes) -> None:
        """Take the noise of all families at once."""
        for k, points in enumerate(self.points):
            noise = points.take(axes.dimensions)
            for number, (rotation, places) in axes.turns.items():
                self.made[number] = len(rotation)
                np.matmul(rotation, noise[places], out=self.noise[number][k, : len(rotation)])

    def advance(
        self, step: Step, core: Core, sigmas: list[np.ndarray], pairs: list[np.ndarray]
    ) -> np.ndarray:
        """Draw and evaluate what is new, and the moments of the new core with all so far."""
        with np.errstate(all="ignore"):
            for form in step.forms:
                if self.schedule.families[form.family].drawn:
                    self.draw(form, sigmas[form.family])
            pool = self.pools[self.schedule.groups[core.group].pool]
            for row in step.rows:
                self.fill(pool, row)
            for expr in step.expired:
                self.values.pop(expr, None)
            return self.moments(core, pool, pairs)

    def draw(self, form: Form, sigma: np.ndarray) -> None:
        """Samples of a form, given all forms of its family so far."""
        rows, noise, trail = form.rows, self.noise[form.family], self.trails[form.family]
        mean = self.schedule.families[form.family].mean[rows, None]
        made = np.empty((len(self.points), rows.stop - rows.start, self.count))
        for k, factor in enumerate(self.factors[form.family]):
            old = max(factor.rank, self.made[form.family])
            weights, axes = factor.extend(sigma[k, rows, : rows.start], sigma[k, rows, rows])
            if factor.rank > old:
                fresh = self.points[k].take(factor.rank - old)
                noise[k, old : factor.rank] = axes @ fresh if len(axes) == len(fresh) else fresh
            np.matmul(weights, noise[k, : factor.rank], out=made[k])
            if k == 0:
                trail.rows.append(weights)
                trail.axes.append(axes)
                trail.times += [self.drawn] * len(axes)
        self.drawn += 1
        if mean.any():
            made += mean
        self.values[form.expr] = Block(made, 0, True)

    def fill(self, pool: np.ndarray, row: Row) -> None:
        """A row of sampled values."""
        factors = [self.value(expr).array for expr in row.exprs]
        if row.rest is not None:
            factors.append(pool[:, row.rest])
        if not factors:
            pool[:, row.rows] = 1.0
        elif len(factors) == 1:
            pool[:, row.rows] = factors[0]
        else:
            np.multiply(reduce(mul, factors[:-1]), factors[-1], out=pool[:, row.rows])

    def value(self, node: Expr) -> Block:
        """The values of an expression; those of its parts are kept while they are needed."""
        if node not in self.values:
            if isinstance(node, Const):
                return Block(node.value, 0)
            assert isinstance(node, Apply)
            args = [self.value(a) for a in node.args]
            known = any(a.vector for a in args)
            self.values[node] = node.op.run(*args, **node.options) if known else evaluate(node, {})
        return self.values[node]

    def moments(self, core: Core, pool: np.ndarray, pairs: list[np.ndarray]) -> np.ndarray:
        """E of the new core times each one so far: (repeats, inputs, rows so far)."""
        inputs, new = core.rows.stop - core.rows.start, core.parts
        count = (new.stop - new.start) // inputs
        made = np.empty((len(pool), inputs, core.rows.stop))
        step = max(1, LARGEST_TABLE // (count * new.stop))
        for k in range(0, inputs, step):
            some = slice(k, min(k + step, inputs))
            made[:, some] = self._moments(core, slice(count * some.start, count * some.stop), pool, pairs)
        return made

    def _moments(self, core: Core, some: slice, pool: np.ndarray, pairs: list[np.ndarray]) -> np.ndarray:
        """The same for some inputs, given by their parts."""
        group, stop = self.schedule.groups[core.group], core.parts.stop
        parts = slice(core.parts.start + some.start, core.parts.start + some.stop)
        rows = group.sampled[parts]
        used = slice(int(rows[0]), int(rows[-1]) + 1) if core.plain else rows
        table = pool[:, used] @ pool[:, : stop if core.plain else core.upto].swapaxes(1, 2)
        table /= self.count
        if not core.plain:
            table = table[:, :, group.sampled[:stop]]
        for family, atoms in group.atoms.items():
            table *= pairs[family][:, atoms[parts, None], atoms[:stop]]
        if group.constants is not None:
            table *= group.constants[parts, None] * group.constants[:stop]
        if stop > core.rows.stop:
            count = (core.parts.stop - core.parts.start) // (core.rows.stop - core.rows.start)
            table = np.add.reduceat(table, group.starts[: core.rows.stop], axis=2)
            table = table.reshape(len(table), -1, count, core.rows.stop).sum(2)
        return table
