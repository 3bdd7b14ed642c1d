"""Covariances of Gaussian forms.

    cov(e, f)     bilinear; var_W E[h h'] for one matrix W; None where nothing is in common
    variance(e)   for every input

`e` belongs to the left input, `f` to the right one. Linear operations act on the result from the outside.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from netsor.lang.expr import Apply, Expr, Ref
from netsor.lang.index_maps import sum_, window, windows
from netsor.lang.ops import axes_of
from netsor.lang.program import Embedding, Input, LinComb, MatMul
from netsor.lang.types import Index
from netsor.limits.recursion.forms import LinearTerm
from netsor.limits.recursion.leaves import (
    embedded_mark,
    embedded_second,
    independent_matrices,
    normal_covariance,
    window_both_sides,
)
from netsor.limits.recursion.linear import combined, mapped
from netsor.limits.recursion.pairs import Pair, PerInput, PerPair
from netsor.limits.recursion.recorder import Asking, Recorder
from netsor.limits.recursion.values import OWN, Variance, constant
from netsor.limits.tape.traced import array_namespace

__all__ = ["cov", "fused", "is_sum", "leaf", "variance", "written_out"]


def cov(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Cov(e, f) of two affine expressions; None is a structural zero.

    Sums and factors come apart first, then index maps: those of independent matrices are fused.
    """
    forms = r.forms
    if not forms.sources(e) & forms.sources(f):
        return None
    back = r.known(cov, f, e, pair.flipped)
    if back is not None:
        return back.swapped
    e, f = written_out(r, e), written_out(r, f)
    if forms.is_long(e) or forms.is_long(f):  # part by part, so that what is shared is computed once
        side = 0 if forms.is_long(e) and (not forms.is_long(f) or forms.is_longer(e, f)) else 1
        return (yield from combined(r, side, e, f, pair, cov))
    if is_sum(e, forms.terms(e)) or is_sum(f, forms.terms(f)):
        return (yield from _of_sums(r, e, f, pair))
    joined = yield from fused(r, e, f, pair)
    if joined is not None:
        return joined
    if isinstance(e, Apply):
        return (yield from mapped(r, e, f, pair, cov))
    if isinstance(f, Apply):
        turned = yield cov, f, e, pair.flipped
        return None if turned is None else turned.swapped
    assert isinstance(e, Ref)
    assert isinstance(f, Ref)
    return (yield from leaf(r, e, f, pair))


def _of_sums(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Of two sums, the sum over pairs of terms with something in common.

    If one side has more independent parts than the other, only that one is taken apart: a long sum then meets
    parts of itself only. So a state that grows by a term per layer takes a few new covariances per layer.
    """
    forms, sizes = r.forms, (len(r.forms.sources(e)), len(r.forms.sources(f)))
    ours, theirs = forms.terms(e), forms.terms(f)
    if is_sum(e, ours) and is_sum(f, theirs) and sizes[0] != sizes[1]:
        ours = ours if sizes[0] > sizes[1] else (LinearTerm(e),)
        theirs = theirs if sizes[1] > sizes[0] else (LinearTerm(f),)
    total: PerPair | None = None
    for t in ours:
        for u in theirs:
            if forms.sources(t.form) & forms.sources(u.form):
                block = yield cov, t.form, u.form, pair
                if block is not None:
                    block = yield from _scaled(r, block, (t, u))
                    if total is None:
                        total = block if t.sign == u.sign else -block
                    else:
                        total = total + block if t.sign == u.sign else total - block
    return None if total is None else total.widened(r.rank(e), r.rank(f))


def is_sum(e: Expr, terms: tuple[LinearTerm, ...]) -> bool:
    """Whether an expression is more than one term that is itself."""
    return len(terms) != 1 or terms[0].form is not e


def _scaled(r: Recorder, block: PerPair, terms: tuple[LinearTerm, LinearTerm]) -> Asking:
    for side, term in enumerate(terms):
        for factor, divides in term.factors:
            by = block.pair.side(side, (yield constant, factor))
            block = block / by if divides else block * by
    return block


def written_out(r: Recorder, e: Expr) -> Expr:
    """A LinComb as the expression that it is."""
    while isinstance(e, Ref) and isinstance(source := r.program.definitions.get(e.name), LinComb):
        e = source.expr
    return e


def fused(r: Recorder, e: Expr, f: Expr, pair: Pair, inner_of: Any = None) -> Asking:
    """Convolutions and joined heads: the matrices of a block are independent, so one sum is left."""
    match e, f:
        case Apply(op, (Ref(g),), attrs), Apply(op2, (Ref(k),), attrs2) if op is op2 and attrs == attrs2:
            matrix = r.matrix_of(g)
            if matrix is None or matrix != r.matrix_of(k):
                return None
            options, aligned = dict(attrs), (_aligned(r, g), _aligned(r, k))
            matrices = r.program.types[matrix].index
            if op is window and len(matrices) == options.get("dims") and aligned == (0, 0):
                # The variance comes last: a matrix and its direction in a tangent program share the sum.
                inner = yield from (inner_of or _second)(r, g, k, pair)
                kernel = r.ref_index(g)[: options["dims"]]
                made = window_both_sides(inner, _operand_index(r, g), _operand_index(r, k), kernel, options)
                return made if inner_of else made * r.factor(matrix, pair)
            axes, both = axes_of(options["axis"], r.rank(e.args[0])) if op is sum_ else (), min(aligned)
            if axes and axes == tuple(range(len(axes))) and len(axes) <= both == max(aligned):
                x, y = _windows_of(r, g, len(axes)), _windows_of(r, k, len(axes))
                if x and y and x.attrs == y.attrs and inner_of is None:
                    return (yield from _own_matrices(r, g, k, x, y, pair))
                inner = yield from (inner_of or _inner)(r, g, k, pair)
                left, right, n = _operand_index(r, g), _operand_index(r, k), len(axes)
                shared = matrices[:both]
                array = inner.spread((*shared, *left), (*shared, *right) if pair.tied else right)
                array = array_namespace(array).sum(array, axis=tuple(a + pair.batch for a in axes))
                rest = PerPair(array, pair, both - n + len(left), (both - n) * pair.tied + len(right))
                return independent_matrices(rest, matrices[n:], both - n, left, right)
    return None


def _windows_of(r: Recorder, g: str, dims: int) -> Apply | None:
    """The windows that a block of matrices multiplies, one for each place in each of them."""
    s = r.program.definitions[g]
    if isinstance(s, MatMul):
        x, rank = r.forms.resolved(Ref(s.operand)), 2 * dims
    else:
        assert isinstance(s, Input)
        assert isinstance(s.law, Embedding)
        x, rank = s.law.data, 2 * dims + 1
    if isinstance(x, Apply) and x.op is windows and _aligned(r, g) == 2 * dims and r.rank(x) == rank:
        return x
    return None


def _own_matrices(r: Recorder, g: str, k: str, e: Apply, f: Apply, pair: Pair) -> Asking:
    """A convolution with matrices for every place: that with shared ones where left and right are one."""
    matrix, tied, options = r.matrix_of(g), replace(pair, tied=True), e.options
    assert matrix is not None
    (x,), (y,), kernel = e.args, f.args, options.pop("kernel")
    s, t = r.program.definitions[g], r.program.definitions[k]
    if isinstance(s, Input) and isinstance(t, Input):
        one, two = (
            replace(v, name=f"{v.name} in windows", law=Embedding(matrix, data))
            for v, data in ((s, x), (t, y))
        )
        block, left, right = embedded_second(r, one, two, tied), r.index(x)[:-1], r.index(y)[:-1]
    else:
        block, left, right = (yield r.rules.second, x, y, tied), r.index(x), r.index(y)
    made = window_both_sides(block, left, right, kernel, {**options, "dims": len(kernel)})
    index = r.program.types[matrix].index[len(kernel) :]
    rest = PerPair(made.ranked(len(index), len(index)), pair, len(index), len(index) * pair.tied)
    return independent_matrices(rest * r.factor(matrix, pair), index, len(index), (), ())


def _aligned(r: Recorder, name: str) -> int:
    source = r.program.definitions[name]
    if isinstance(source, Input) and isinstance(source.law, Embedding):
        return source.law.aligned
    return source.aligned if isinstance(source, MatMul) else 0


def _operand_index(r: Recorder, name: str) -> tuple[int, ...]:
    """Index of the vectors that a matrix multiplies, without the aligned axes."""
    matrix = r.matrix_of(name)
    assert matrix is not None
    return r.ref_index(name)[len(r.program.types[matrix].index) :]


def leaf(r: Recorder, e: Ref, f: Ref, pair: Pair, inner_of: Any = None) -> Asking:
    """Covariance of two inputs or matrix products, from what `inner_of` (or `_inner`) says of them."""
    g, k = e.name, f.name
    matrix = r.matrix_of(g)
    if matrix is None:
        return normal_covariance(r, g, k, pair)
    if matrix != r.matrix_of(k):
        return None
    index, aligned = r.program.types[matrix].index, (_aligned(r, g), _aligned(r, k))
    if pair.tied and aligned[0] != aligned[1]:
        full = yield cov, e, f, pair.free
        return None if full is None else full.diagonal
    inner = yield from (inner_of or _inner)(r, g, k, pair)
    if not index:
        return inner
    return independent_matrices(inner, index, max(aligned), _operand_index(r, g), _operand_index(r, k))


def _inner(r: Recorder, g: str, k: str, pair: Pair) -> Asking:
    """var_W E[h h'] for g = W h and k = W h', for one matrix: axes (batch, aligned, left, right)."""
    matrix = r.matrix_of(g)
    assert matrix is not None
    block = yield from _second(r, g, k, pair)
    return block * r.factor(matrix, pair)


def _second(r: Recorder, g: str, k: str, pair: Pair) -> Asking:
    """The same without the variance."""
    matrix = r.matrix_of(g)
    assert matrix is not None
    aligned, index = (_aligned(r, g), _aligned(r, k)), r.program.types[matrix].index
    left, right = ((*index[:n], *_operand_index(r, x)) for n, x in zip(aligned, (g, k), strict=True))
    whole = not pair.tied and aligned[0] == len(left) == aligned[1] == len(right) > 0
    asked = replace(pair, tied=True) if whole else pair  # different members meet different matrices
    s, t = r.program.definitions[g], r.program.definitions[k]
    if isinstance(s, Input) and isinstance(t, Input):
        block = _with_rounding(r, embedded_second(r, s, t, asked), s, t)
    else:
        assert isinstance(s, MatMul)
        assert isinstance(t, MatMul)
        block = yield r.rules.second, Ref(s.operand), Ref(t.operand), asked
    if whole:
        block = PerPair(block.ranked(len(left), len(left)), pair, len(left), 0)
    elif any(aligned) and not pair.tied:
        block = _diagonal_of(block, left, right, aligned)
    return block


def _with_rounding(r: Recorder, block: PerPair, s: Input, t: Input) -> PerPair:
    """Products of data, moved by their rounding where it counts, in units of their lengths.

    Equal data have equal moves, but others do not: products that are equal by rounding alone are not equal.
    """
    if not r.notes.cancels:
        return block
    squares = [embedded_second(r, x, x, OWN) for x in (s, t)]
    facts = [*(PerInput(x.array, x.left) for x in squares), *(embedded_mark(r, x) for x in (s, t))]
    sides = (block.pair.side(k % 2, fact) for k, fact in enumerate(facts))
    return r.rounded(block, tuple(side.ranked(block.left, block.right) for side in sides))


def _diagonal_of(block: PerPair, left: Index, right: Index, aligned: tuple[int, int]) -> PerPair:
    """The members that meet one matrix: axes (batch, aligned, left, right)."""
    full, batch, both = block.spread(left, right), block.pair.batch, min(aligned)
    xp = array_namespace(full)
    for a in range(both):
        part = xp.linalg.diagonal(xp.moveaxis(full, (batch + a, batch + len(left)), (-2, -1)))
        full = xp.moveaxis(part, -1, batch + a)
    for a in range(both, aligned[1]):  # axes that only the right side shares with the matrices
        full = xp.moveaxis(full, batch + len(left) + a - both, batch + a)
    return PerPair(full, block.pair, max(aligned) + len(left) - aligned[0], len(right) - aligned[1])


def _as_large(turn: Any, variance: Any) -> Any:
    """Variances as they are; one that rounding made negative may be as large as it is, by turns."""
    return np.abs(variance) if turn else variance


def variance(r: Recorder, form: Expr) -> Asking:
    """Var of a form for every input."""
    found, rank = (yield cov, form, form, OWN), r.rank(form)
    if found is None:
        return PerInput(r.xp.zeros((1, 1, *(1,) * rank)), rank)
    array = found.ranked(rank, rank)
    if r.notes.cancels:
        array = r.tape.call(_as_large, (r.turn, array), array.shape)
    return PerInput(r.tape.call(Variance(form, r.padded), (array,), array.shape, kind="variance"), rank)
