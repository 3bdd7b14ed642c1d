"""The second moments of outputs."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from netsor.lang.expr import Ref
from netsor.lang.program import Input, Normal, Output, Program, Term
from netsor.lang.sampling import input_covariance
from netsor.lang.types import Index
from netsor.limits.recursion.pairs import Pair, PerPair
from netsor.limits.recursion.recorder import Asking, Recorder
from netsor.limits.recursion.values import OWN
from netsor.limits.tape.traced import array_namespace

__all__ = ["output_index", "output_own", "output_second", "output_tied"]


def output_index(program: Program, s: Output) -> Index:
    """The shape of an Output statement: the free axes of its readout, then those of its operand."""
    t = s.terms[0]
    return program.types[t.readout].index[t.aligned :] + program.types[t.operand].index[t.aligned :]


def output_second(r: Recorder, o: int, p: int, pair: Pair) -> Asking:
    """E of the product of two outputs."""
    outputs = r.program.outputs
    ranks = [len(output_index(r.program, outputs[k])) for k in (o, p)]
    total: PerPair | None = None
    for t in outputs[o].terms:
        for u in outputs[p].terms:
            part = yield from _terms(r, t, u, pair)
            total = part if total is None else total if part is None else total + part
    if total is None:
        zero = r.xp.zeros((1,) * (pair.batch + sum(ranks)))
        return PerPair(pair.shared(zero), pair, *ranks)
    return total.widened(*ranks)


def output_own(r: Recorder, o: int) -> Asking:
    """The variance of every member of an output; None where its readouts depend on each other."""
    return (yield output_tied, o, o, r.rules.second)


def output_tied(r: Recorder, o: int, p: int, moment: Any) -> Asking:
    """sum over readouts v of var_v moment(y, y'), for equal members of two outputs v^T y and v^T y'.

    A readout that only one of them has counts with its second moment. None where an output has a readout
    twice, or readouts depend on each other.
    """
    outputs, rank = r.program.outputs, len(output_index(r.program, r.program.outputs[o]))
    sides = [{t.readout: t for t in outputs[k].terms} for k in (o, p)]
    if any(len(side) < len(outputs[k].terms) for side, k in zip(sides, (o, p), strict=True)):
        return None
    total = PerPair(r.xp.zeros((1, 1, *(1,) * rank)), OWN, rank, rank)
    for name in sides[0] | sides[1]:
        v, (t, u) = r.program.definitions[name], (side.get(name) for side in sides)
        assert isinstance(v, Input)
        if not isinstance(v.law, Normal) or not isinstance(v.law.cov, float) or v.law.cross:
            return None
        one, two = t or u, u or t
        assert one is not None
        assert two is not None
        if (one.aligned, r.ref_index(one.operand)) != (two.aligned, r.ref_index(two.operand)):
            return None
        rule = moment if t and u else r.rules.second
        block: PerPair | None = yield rule, Ref(one.operand), Ref(two.operand), OWN
        if block is not None:
            total = total + _read_out(r, one, block) * r.factor(name, OWN)
    return total


def _read_out(r: Recorder, t: Term, block: PerPair) -> PerPair:
    """The sum over the aligned axes, with axes of length 1 for the free ones of the readout."""
    index, free = r.ref_index(t.operand), len(r.ref_index(t.readout)) - t.aligned
    array = block.spread(index, index)
    xp = array_namespace(array)
    array = xp.sum(array, axis=tuple(range(2, 2 + t.aligned))) if t.aligned else array
    rank = free + len(index) - t.aligned
    return PerPair(xp.reshape(array, (*array.shape[:2], *(1,) * free, *array.shape[2:])), OWN, rank, rank)


def _terms(r: Recorder, t: Term, u: Term, pair: Pair) -> Asking:
    """sum over aligned members of Cov(v, v') E[y y'], or None if the readouts are independent."""
    program, (y, z) = r.program, (Ref(t.operand), Ref(u.operand))
    v, w = program.definitions[t.readout], program.definitions[u.readout]
    assert isinstance(v, Input)
    assert isinstance(w, Input)
    if t.width != u.width:
        return None
    left, right = r.index(y), r.index(z)
    single = v.name == w.name and isinstance(v.law, Normal) and isinstance(v.law.cov, float)
    if single and t.aligned == u.aligned == len(left) == len(right) == len(program.types[v.name].index):
        var = r.factor(v.name, pair)
        if not left:
            return (yield r.rules.second, y, z, pair) * var
        tied: PerPair = yield r.rules.second, y, z, Pair(pair.same, True, pair.rows, pair.cols, pair.tape)
        array = tied.spread(left, right)
        axes = tuple(range(pair.batch, pair.batch + len(left)))
        return PerPair(array_namespace(array).sum(array, axis=axes), pair, 0, 0) * var
    cov = input_covariance(program, v, w)
    if cov is None:
        return None
    block = yield r.rules.second, y, z, pair
    if not single:
        return _general(program, t, u, block, cov)
    return _general(program, t, u, block, np.eye(len(cov))) * r.factor(v.name, pair)


def _general(program: Program, t: Term, u: Term, block: PerPair, cov: np.ndarray) -> PerPair:
    """The same for any covariance of the readouts, member by member of the aligned axes."""
    (p1, q1, i1), (p2, q2, i2) = (_split_index(program, x) for x in (t, u))
    full, batch = block.spread((*p1, *i1), (*p2, *i2)), block.pair.batch
    xp = array_namespace(full)
    full = xp.reshape(full, (*full.shape[:batch], prod(p1), prod(i1), prod(p2), prod(i2)))
    table = cov.reshape(prod(p1), prod(q1), prod(p2), prod(q2))
    total: Any = None
    for a, b in zip(*np.nonzero(np.any(table, axis=(1, 3))), strict=True):
        weights = table[a, :, b, :].reshape((*(1,) * batch, prod(q1), 1, prod(q2), 1))
        member = full[(*(slice(None),) * batch, None, int(a), slice(None), None, int(b), slice(None))]
        part = xp.asarray(weights, dtype=full.dtype) * member
        total = part if total is None else total + part
    if total is None:
        total = xp.zeros((1,) * (batch + 4), dtype=full.dtype)
        total = xp.broadcast_to(total, (*full.shape[:batch], prod(q1), prod(i1), prod(q2), prod(i2)))
    array = xp.reshape(total, (*total.shape[:batch], *q1, *i1, *q2, *i2))
    return PerPair(array, block.pair, len(q1) + len(i1), len(q2) + len(i2))


def _split_index(program: Program, t: Term) -> tuple[Index, Index, Index]:
    """Aligned axes, free axes of the readout, free axes of the operand."""
    v, y = program.types[t.readout].index, program.types[t.operand].index
    return v[: t.aligned], v[t.aligned :], y[t.aligned :]
