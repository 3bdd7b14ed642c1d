"""The second moments of outputs, and where each stands among the rows of a kernel."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from netsor.build.network import Group, Joint
from netsor.lang.expr import Ref
from netsor.lang.program import Input, Normal, Output, Program, Term
from netsor.lang.sampling import input_covariance
from netsor.lang.types import Index
from netsor.limits.recursion.engine import Engine
from netsor.limits.recursion.pairs import Pair
from netsor.limits.tape.traced import array_namespace

__all__ = ["Rows", "output_index", "output_second"]

Array = Any


def output_index(program: Program, s: Output) -> Index:
    """The shape of an Output statement: the free axes of its readout, then those of its operand."""
    t = s.terms[0]
    return program.types[t.readout].index[t.aligned :] + program.types[t.operand].index[t.aligned :]


def output_second(engine: Engine, o: int, p: int, pair: Pair) -> Array:
    """E of the product of two outputs: axes (batch, left index, right index)."""
    outputs = engine.program.outputs
    parts = [_terms(engine, t, u, pair) for t in outputs[o].terms for u in outputs[p].terms]
    parts = [part for part in parts if part is not None]
    if not parts:
        rank = sum(len(output_index(engine.program, outputs[k])) for k in (o, p))
        return pair.lift(engine.xp.zeros((1,) * (pair.batch + rank)))
    return sum(parts[1:], parts[0])


def _terms(engine: Engine, t: Term, u: Term, pair: Pair) -> Array | None:
    """sum over aligned members of Cov(v, v') E[y y'], or None if the readouts are independent."""
    program = engine.program
    v, w = program.definitions[t.readout], program.definitions[u.readout]
    assert isinstance(v, Input)
    assert isinstance(w, Input)
    if t.width != u.width:
        return None
    left, right = program.types[t.operand].index, program.types[u.operand].index
    single = v.name == w.name and isinstance(v.law, Normal) and isinstance(v.law.cov, float)
    if single and t.aligned == u.aligned == len(left) == len(right) == len(program.types[v.name].index):
        var = pair.lift(engine.variance(v.name))
        if not left:
            return var * engine.second(Ref(t.operand), Ref(u.operand), pair, False)
        tied = engine.second(Ref(t.operand), Ref(u.operand), pair, True)
        xp, batch = array_namespace(tied), pair.batch
        tied = xp.broadcast_to(tied, (*tied.shape[:batch], *left))
        return var * xp.sum(tied, axis=tuple(range(batch, batch + len(left))))
    cov = input_covariance(program, v, w)
    if cov is None:
        return None
    scale = pair.lift(engine.variance(v.name)) if single else 1.0
    return scale * _general(engine, t, u, pair, np.eye(len(cov)) if single else cov)


def _general(engine: Engine, t: Term, u: Term, pair: Pair, cov: np.ndarray) -> Array:
    """The same for any covariance of the readouts, member by member of the aligned axes."""
    program, batch = engine.program, pair.batch
    (p1, q1, i1), (p2, q2, i2) = (_split_index(program, x) for x in (t, u))
    full = engine.second(Ref(t.operand), Ref(u.operand), pair, False)
    xp = array_namespace(full)
    full = xp.broadcast_to(full, (*full.shape[:batch], *p1, *i1, *p2, *i2))
    full = xp.reshape(full, (*full.shape[:batch], prod(p1), prod(i1), prod(p2), prod(i2)))
    table = cov.reshape(prod(p1), prod(q1), prod(p2), prod(q2))
    total: Any = None
    for a, b in zip(*np.nonzero(np.any(table, axis=(1, 3))), strict=True):
        weights = table[a, :, b, :].reshape((*(1,) * batch, prod(q1), 1, prod(q2), 1))
        member = full[(*(slice(None),) * batch, None, a, slice(None), None, b, slice(None))]
        part = xp.asarray(weights, dtype=full.dtype) * member
        total = part if total is None else total + part
    if total is None:
        total = xp.zeros((1,) * (batch + 4), dtype=full.dtype)
        return xp.broadcast_to(total, (*full.shape[:batch], prod(q1), prod(i1), prod(q2), prod(i2)))
    return xp.reshape(total, (*total.shape[:batch], *q1, *i1, *q2, *i2))


def _split_index(program: Program, t: Term) -> tuple[Index, Index, Index]:
    """Aligned axes, free axes of the readout, free axes of the operand."""
    v, y = program.types[t.readout].index, program.types[t.operand].index
    return v[: t.aligned], v[t.aligned :], y[t.aligned :]


class Rows:
    """Where the scalars of each Output statement stand among the rows and columns of the kernel.

    left, right  for each Output the row numbers (members of its group, index...); -1 where a member has none
    """

    def __init__(self, made: Joint, split: int | None) -> None:
        self.groups, self.split = made.groups, split
        shapes = [output_index(made.program, s) for s in made.program.outputs]
        total = sum(len(g.members) for g in made.groups)
        first = total if split is None else split
        self.left, self.left_size = _number(made.groups, shapes, 0, first)
        start = 0 if split is None else split
        self.right, self.right_size = _number(made.groups, shapes, start, total)

    def spans(self, r: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Positions within group r of the inputs that are rows, and of those that are columns."""
        members = self.groups[r].members
        if self.split is None:
            return (0, len(members)), (0, len(members))
        cut = sum(m < self.split for m in members)
        return (0, cut), (cut, len(members))


def _number(groups: tuple[Group, ...], shapes: list[Index], start: int, stop: int) -> tuple[list[Any], int]:
    """Row numbers (members of the group, index...) for each Output; -1 for inputs outside [start, stop)."""
    tables: list[np.ndarray] = [np.zeros(0, int)] * len(shapes)
    owner: dict[int, tuple[Group, int]] = {}
    for group in groups:
        for k, member in enumerate(group.members):
            owner[member] = (group, k)
        for o in group.outputs:
            tables[o] = np.full((len(group.members), *shapes[o]), -1)
    row = 0
    for member in range(start, stop):
        group, k = owner[member]
        for o in group.outputs_of(k):
            size = prod(shapes[o])
            tables[o][k] = np.arange(row, row + size).reshape(shapes[o])
            row += size
    return tables, row
