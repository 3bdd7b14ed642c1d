"""Sampled values of some repeats of a schedule: drawn, evaluated, multiplied and averaged over the points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import log
from operator import mul

import numpy as np

from netsor.expect.points import GrowingFactor, NormalPoints
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr
from netsor.limits.schedule import Core, Form, Row, Schedule, Step

__all__ = ["Axes", "Draws"]

LARGE_SHARE = 0.2  # of the variance of all variables of a family
LARGEST_TURN = 512  # dimensions of a family; beyond, rotations cost more than they are worth
LARGEST_TABLE = 2**21  # entries of products of parts at a time


@dataclass(frozen=True)
class Axes:
    """Rotations of the noise of each family that put what matters most into the first dimensions.

    Sobol points are most even in their first dimensions, and in few of them at a time (Caflisch, Morokoff
    and Owen 1997). Variables that are drawn one after the other have a triangular factor, in which each of
    them depends on few dimensions; but what all have in common, a bias above all, is spread over many. So
    the principal axes with a large share of the variance come first, and the rest is triangular again. A
    small run that comes before tells the axes. They need not be exact: any rotation of independent standard
    normals gives such normals.
    """

    turns: dict[int, tuple[np.ndarray, np.ndarray]]  # by family: a rotation, and its places in the points

    @classmethod
    def of(cls, draws: Draws) -> Axes:
        """The axes for variables like those that were drawn."""
        turns, order = {}, []
        for number, rows in enumerate(draws.loadings):
            if not rows or rows[-1].shape[1] > LARGEST_TURN:
                continue
            rank = rows[-1].shape[1]
            loadings = np.concatenate([np.pad(part, [(0, 0), (0, rank - part.shape[1])]) for part in rows])
            turns[number], shared = _turn(loadings, draws.axes[number])
            variance = np.sum((loadings @ turns[number]) ** 2, axis=0)
            times = [0] * shared + draws.times[number]
            order += [(k >= shared, -v, times[k], k, number) for k, v in enumerate(variance)]
        largest = max((-v for later, v, *_ in order if later), default=1.0)
        order.sort(
            key=lambda item: (item[0], _magnitude(-item[1], largest) if item[0] else item[1], *item[2:])
        )
        places = {(number, k): place for place, (*_, k, number) in enumerate(order)}
        return cls(
            {f: (turn, np.array([places[f, k] for k in range(len(turn))])) for f, turn in turns.items()}
        )

    @property
    def dimensions(self) -> int:
        return sum(len(turn) for turn, _ in self.turns.values())


def _turn(loadings: np.ndarray, steps: list[np.ndarray]) -> tuple[np.ndarray, int]:
    """A rotation, the principal axes with a large share first, and their number.

    The rest is triangular by steps, with the principal axes of each step: the variables of several inputs
    mix, as there are pairs of dimensions in which Sobol points are not even.
    """
    rank = loadings.shape[1]
    variance, axes = np.linalg.eigh(loadings.T @ loadings)
    shared = int(np.sum(variance >= LARGE_SHARE * variance.sum()))
    from scipy.linalg import block_diag

    within = np.asarray(block_diag(*steps))
    columns = np.concatenate([axes[:, ::-1][:, :shared], within], axis=1)
    return np.linalg.qr(columns[:, :rank])[0], shared


def _magnitude(variance: float, largest: float) -> int:
    """How many times smaller than the largest, in powers of 4; dimensions of one magnitude go by time."""
    return int(log(largest / variance, 4)) if variance > largest * 1e-12 else 20


class Draws:
    """The values of forms and of sampled rows: arrays (repeats, rows, points), all repeats alike.

    loadings   for each family, the rows of the covariance factor of the first repeat, step by step
    axes       the principal axes of what is new at each step
    times      for each new dimension, how many forms were drawn before
    """

    def __init__(self, schedule: Schedule, points: list[NormalPoints], axes: Axes | None = None) -> None:
        self.schedule, self.points, self.count = schedule, points, points[0].count
        sizes = [family.size if family.drawn else 0 for family in schedule.families]
        self.factors = [[GrowingFactor() for _ in points] if size else [] for size in sizes]
        self.noise = [np.empty((len(points), size, self.count)) for size in sizes]
        self.pools = [np.empty((len(points), size, self.count)) for size in schedule.pools]
        self.loadings: list[list[np.ndarray]] = [[] for _ in sizes]
        self.axes: list[list[np.ndarray]] = [[] for _ in sizes]
        self.times: list[list[int]] = [[] for _ in sizes]
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
        rows, noise = form.rows, self.noise[form.family]
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
                self.loadings[form.family].append(weights)
                self.axes[form.family].append(axes)
                self.times[form.family] += [self.drawn] * len(axes)
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
        step = max(1, LARGEST_TABLE // (len(pool) * count * new.stop))
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
