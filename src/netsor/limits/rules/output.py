"""Output: second moments of the outputs v^T y / sqrt(n) of a network.

E[(v^T y)(v'^T y')] / n  converges to  Cov(v, v') E[y y']
"""

from __future__ import annotations

from functools import reduce
from math import prod
from operator import add

import numpy as np

from netsor.lang.expr import Ref
from netsor.lang.input_laws import input_covariance
from netsor.lang.program import Input, Normal, Output, Program, Term
from netsor.lang.types import Index
from netsor.limits.rules.moment import OWN
from netsor.limits.rules.pairs import Pair, PerPair
from netsor.limits.rules.recorder import Asking, Recorder, zero
from netsor.limits.tape.traced import array_namespace


def output_index(program: Program, s: Output) -> Index:
    """Return the shape of an Output: the free axes of its readout, then those of its operand."""
    t = s.terms[0]
    return program.types[t.readout].index[t.aligned :] + program.types[t.operand].index[t.aligned :]


def output_second(r: Recorder, o: int, p: int, pair: Pair) -> Asking:
    """Return E of the product of two outputs, by their numbers."""
    outputs = r.program.outputs
    ranks = [len(output_index(r.program, outputs[k])) for k in (o, p)]
    terms = [(t, u) for t in outputs[o].terms for u in outputs[p].terms]
    dependent = [(t, u, asked) for t, u in terms if (asked := operands(r.program, t, u, pair))]
    blocks = yield [(r.rules.second, *asked) for *_, asked in dependent]
    parts = [_read_out(r, t, u, block, pair) for (t, u, _), block in zip(dependent, blocks, strict=True)]
    return reduce(add, parts).widened(*ranks) if parts else zero(r, pair, *ranks)


def output_own(r: Recorder, o: int) -> Asking:
    """Return the variance of every entry of an output: sum over its readouts v of var_v E[y^2].

    None: it uses a readout twice, or readouts are correlated, so cross terms count.
    """
    output, rank = r.program.outputs[o], len(output_index(r.program, r.program.outputs[o]))
    if len({t.readout for t in output.terms}) < len(output.terms):
        return None
    laws = [_readout(r.program, t).law for t in output.terms]
    if not all(isinstance(law, Normal) and isinstance(law.cov, float) and not law.cross for law in laws):
        return None
    blocks = yield [(r.rules.second, Ref(t.operand), Ref(t.operand), OWN) for t in output.terms]
    parts = [_own_part(r, t, block) for t, block in zip(output.terms, blocks, strict=True)]
    return reduce(add, parts, zero(r, OWN, rank, rank))


def _own_part(r: Recorder, t: Term, block: PerPair) -> PerPair:
    """Sum over the aligned axes; add axes of length 1 for the free axes of the readout."""
    index, free = r.index(Ref(t.operand)), len(r.index(Ref(t.readout))) - t.aligned
    array = block.spread(index, index)
    xp = array_namespace(array)
    array = xp.sum(array, axis=tuple(range(2, 2 + t.aligned))) if t.aligned else array
    array = xp.reshape(array, (*array.shape[:2], *(1,) * free, *array.shape[2:]))
    rank = free + len(index) - t.aligned
    return PerPair(array, OWN, rank, rank) * r.factor(t.readout, OWN)


def operands(program: Program, t: Term, u: Term, pair: Pair) -> tuple[Ref, Ref, Pair] | None:
    """Return the operands whose E[y y'] two terms need, and their pair; None if the terms are independent."""
    y, z = Ref(t.operand), Ref(u.operand)
    # Readouts of different widths are different vectors, and independent.
    if t.width != u.width:
        return None
    if _is_single(program, t, u):
        return y, z, pair._replace(tied=True) if program.types[y.name].index else pair
    cov = input_covariance(program, _readout(program, t), _readout(program, u))
    return None if cov is None else (y, z, pair)


def _is_single(program: Program, t: Term, u: Term) -> bool:
    """Return whether both terms have the same readout, with an independent vector for each operand entry."""
    if t.readout != u.readout or not _has_one_variance(_readout(program, t)):
        return False
    ranks = {len(program.types[name].index) for name in (t.readout, t.operand, u.operand)}
    return ranks == {t.aligned} == {u.aligned}


def _readout(program: Program, t: Term) -> Input:
    readout = program.definitions[t.readout]
    assert isinstance(readout, Input)
    return readout


def _has_one_variance(v: Input) -> bool:
    return isinstance(v.law, Normal) and isinstance(v.law.cov, float)


def _read_out(r: Recorder, t: Term, u: Term, block: PerPair, pair: Pair) -> PerPair:
    """Return the sum over aligned indices of Cov(v, v') E[y y']."""
    program, v, w = r.program, _readout(r.program, t), _readout(r.program, u)
    if _is_single(program, t, u):
        left, right = r.index(Ref(t.operand)), r.index(Ref(u.operand))
        if left:
            array = block.spread(left, right)
            axes = tuple(range(pair.batch, pair.batch + len(left)))
            block = PerPair(array_namespace(array).sum(array, axis=axes), pair, 0, 0)
        return block * r.factor(v.name, pair)
    cov = input_covariance(program, v, w)
    assert cov is not None
    if v.name != w.name or not _has_one_variance(v):
        return _general(program, t, u, block, cov)
    return _general(program, t, u, block, np.eye(len(cov))) * r.factor(v.name, pair)


def _general(program: Program, t: Term, u: Term, block: PerPair, cov: np.ndarray) -> PerPair:
    """Return the same sum for any covariance (left index, right index) of the readouts."""
    (p1, q1, i1), (p2, q2, i2) = (_split_index(program, x) for x in (t, u))
    full, batch = block.spread((*p1, *i1), (*p2, *i2)), block.pair.batch
    xp = array_namespace(full)
    full = xp.reshape(full, (*full.shape[:batch], prod(p1), prod(i1), prod(p2), prod(i2)))
    table = cov.reshape(prod(p1), prod(q1), prod(p2), prod(q2))
    parts = []
    # Only entries of the covariance that are not 0 contribute: readouts are mostly independent.
    for a, b in zip(*np.nonzero(np.any(table, axis=(1, 3))), strict=True):
        weights = table[a, :, b, :].reshape((*(1,) * batch, prod(q1), 1, prod(q2), 1))
        member = full[(*(slice(None),) * batch, None, int(a), slice(None), None, int(b), slice(None))]
        parts.append(xp.asarray(weights, dtype=full.dtype) * member)
    shape = (*full.shape[:batch], prod(q1), prod(i1), prod(q2), prod(i2))
    total = reduce(add, parts) if parts else xp.zeros(shape, dtype=full.dtype)
    array = xp.reshape(total, (*total.shape[:batch], *q1, *i1, *q2, *i2))
    return PerPair(array, block.pair, len(q1) + len(i1), len(q2) + len(i2))


def _split_index(program: Program, t: Term) -> tuple[Index, Index, Index]:
    """Return the aligned axes, the free axes of the readout, and the free axes of the operand."""
    v, y = program.types[t.readout].index, program.types[t.operand].index
    return v[: t.aligned], v[t.aligned :], y[t.aligned :]
