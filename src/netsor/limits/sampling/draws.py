"""Sampled values of a schedule at some of the points: drawn, evaluated, multiplied and averaged."""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from netsor.expect.points.loadings import Loadings, Noise
from netsor.expect.points.normal import NormalPoints
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, subtrees
from netsor.limits.sampling.carried import Carried, reaching
from netsor.limits.sampling.nested import nested_sums
from netsor.limits.sampling.numbers import Numbers
from netsor.limits.sampling.recursions import recursive_sums, states_shape
from netsor.limits.sampling.schedule import Core, Form, Group, Row, Schedule, Step
from netsor.limits.sampling.workspace import Rooms

__all__ = ["Draws", "multiply"]

Mixtures = dict[Expr, list[np.ndarray]]  # for each form and repeat, its rows of loadings


class Draws:
    """The values of forms and of sampled rows: arrays (repeats, rows, points), all repeats alike.

    places   which of the points
    table    the most products of parts at a time, for each repeat
    carried  by how few points, if somebody wants to know
    rooms    where the states of recursions are
    """

    def __init__(
        self,
        schedule: Schedule,
        numbers: Numbers,
        points: list[NormalPoints],
        loadings: list[Loadings],
        places: slice,
        table: int,
        carried: Carried | None,
        rooms: Rooms,
    ) -> None:
        self.schedule, self.numbers, self.table, self.carried = schedule, numbers, table, carried
        self.count, self.noise = places.stop - places.start, Noise(points, loadings, places)
        self.pools = [np.empty((len(points), size, self.count)) for size in schedule.pools]
        self.values: dict[Expr, Block] = {}
        self.forms: set[Expr] = set()
        self.states = {
            number: rooms.zeros(("states", number), states_shape(group, len(points), self.count))
            for number, group in enumerate(schedule.groups)
            if group.recursion
        }

    def advance(self, steps: list[Step], mixtures: Mixtures) -> None:
        """Draw and evaluate what is new at some steps of one depth."""
        forms = [form for step in steps for form in step.forms if form.expr in mixtures]
        with np.errstate(all="ignore"):
            for form in sorted(forms, key=lambda form: form.family):
                self.draw(form, mixtures[form.expr])
            for step in steps:
                for row in step.rows:
                    assert step.core is not None
                    self.fill(self.schedule.groups[step.core.group].pool, row)
                for expr in step.expired:
                    self.values.pop(expr, None)

    def draw(self, form: Form, mixture: list[np.ndarray]) -> None:
        """Samples of a form."""
        made = self.noise.mixed(form.family, mixture)
        mean = self.numbers.means[form.family][form.rows, None]
        if mean.any():
            made += mean
        self.values[form.expr] = Block(made, 0, True)
        self.forms.add(form.expr)

    def fill(self, number: int, row: Row) -> None:
        """A row of sampled values in a pool."""
        pool = self.pools[number]
        pool[:, row.rows] = self.product(row, pool)
        if self.carried is not None and row.exprs:
            key = self.schedule.together[number], (number, row.rows.start)
            self.carried.add(key, row.exprs, pool[:, row.rows], lambda: self.further(row, pool))

    def product(self, row: Row, pool: np.ndarray) -> np.ndarray | float:
        factors = [self.value(expr).array for expr in row.exprs]
        if row.rest is not None:
            factors.append(pool[:, row.rest])
        return reduce(mul, factors) if factors else 1.0

    def further(self, row: Row, pool: np.ndarray) -> np.ndarray:
        """What a row would be at points that reach further; parts whose forms are gone stay as they are."""
        kept, inside = self.values, {node for expr in row.exprs for node in subtrees(expr)}
        gone = (inside & self.forms) - kept.keys()
        try:
            self.values = {
                e: Block(reaching(block.array), 0, True) if e in self.forms else block
                for e, block in kept.items()
                if e in self.forms or gone & set(subtrees(e))
            }
            made = self.product(row, pool)
        finally:
            self.values = kept
        return np.broadcast_to(made, pool[:, row.rows].shape)

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

    def moments(self, core: Core, pairs: list[np.ndarray], weights: Any) -> np.ndarray:
        """Sums over the points of a new core times each one so far: (repeats, inputs, rows so far).

        pairs     the expectations of exact atoms, by family
        weights   for a recursion, those of its parts
        """
        group, new = self.schedule.groups[core.group], core.parts
        pool = self.pools[group.pool]
        if weights is not None:
            sums = nested_sums if group.inner else recursive_sums
            return sums(group, core, pool, weights, self.states[core.group])
        inputs = core.rows.stop - core.rows.start
        count = (new.stop - new.start) // inputs
        made = np.empty((len(pool), inputs, core.rows.stop))
        step = max(1, self.table // (count * new.stop))
        with np.errstate(all="ignore"):
            for k in range(0, inputs, step):
                some = slice(k, min(k + step, inputs))
                parts = slice(new.start + count * some.start, new.start + count * some.stop)
                made[:, some] = self._moments(core, parts, pool, pairs)
        return made

    def _moments(self, core: Core, parts: slice, pool: np.ndarray, pairs: list[np.ndarray]) -> np.ndarray:
        """The same for some inputs, given by their parts."""
        group, stop = self.schedule.groups[core.group], core.parts.stop
        rows = group.sampled[parts]
        used = slice(int(rows[0]), int(rows[-1]) + 1) if core.plain else rows
        table = pool[:, used] @ pool[:, : stop if core.plain else core.upto].swapaxes(1, 2)
        if not core.plain:
            table = table[:, :, group.sampled[:stop]]
        multiply(table, group, self.numbers.constants[core.group], parts, slice(stop), pairs)
        if stop > core.rows.stop:
            count = (core.parts.stop - core.parts.start) // (core.rows.stop - core.rows.start)
            table = np.add.reduceat(table, group.starts[: core.rows.stop], axis=2)
            table = table.reshape(len(table), -1, count, core.rows.stop).sum(2)
        return table


def multiply(
    table: np.ndarray,
    group: Group,
    constants: np.ndarray | None,
    parts: slice,
    others: slice | np.ndarray,
    pairs: list[np.ndarray],
) -> None:
    """Multiply (repeats, parts, others) by the expectations of exact atoms, and by constants."""
    for family, atoms in group.atoms.items():
        table *= np.take(pairs[family][:, atoms[parts]], atoms[others], axis=2)  # faster than both at once
    if constants is not None:
        table *= constants[parts, None] * constants[others]
