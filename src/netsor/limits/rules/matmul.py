"""MatMul: covariance of the products of a matrix.

    Sigma(W h, W h') = var_W E[h h'],    0 for different matrices;    mu(W h) = 0

A block of matrices W_i has independent members. A convolution sums the products of a block of matrices over a
window, so its covariance is the same sum of E[h h'].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from netsor.lang.expr import Apply, Expr, Ref
from netsor.lang.index_maps import sum_, window, window_options
from netsor.lang.ops import axes_of
from netsor.lang.program import Embedding, Input, MatMul
from netsor.lang.types import Index
from netsor.limits.rules.forms import Forms
from netsor.limits.rules.input import embedded_mark, embedded_second, normal_covariance
from netsor.limits.rules.moment import OWN
from netsor.limits.rules.pairs import Pair, PerInput, PerPair
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.tape.traced import array_namespace
from netsor.limits.window_sums import Window, sum_over_windows


@dataclass(frozen=True)
class Fusion:
    """Two sums over the matrices of one block, of its products g and k.

        Cov(sum_i W_i h_i, sum_j W_j h'_j) = sum_i Cov(W_i h_i, W_i h'_i)

    The matrices are independent, so one sum of the two remains. It runs over the `axes` of the block, or over
    the window of a convolution if `axes` is 0.
    """

    g: str
    k: str
    matrix: str
    axes: int = 0


def fusion(forms: Forms, e: Expr, f: Expr) -> Fusion | None:
    """Return the fusion of two forms that are convolutions or sums over heads, or None if they are not."""
    match e, f:
        case Apply(op, (Ref(g),), attrs), Apply(op2, (Ref(k),), attrs2) if op is op2 and attrs == attrs2:
            matrix = forms.matrix_of(g)
        case _:
            return None
    if matrix is None or matrix != forms.matrix_of(k):
        return None
    options, aligned = dict(attrs), (_aligned(forms, g), _aligned(forms, k))
    if op is window and len(forms.program.types[matrix].index) == options.get("dims") and aligned == (0, 0):
        return Fusion(g, k, matrix)
    axes = axes_of(options["axis"], forms.rank(Ref(g))) if op is sum_ else ()
    if not axes or axes != tuple(range(len(axes))) or not len(axes) <= aligned[0] == aligned[1]:
        return None
    return Fusion(g, k, matrix, len(axes))


def fused(r: Recorder, e: Expr, f: Expr, both: Fusion, pair: Pair) -> Asking:
    """Return sum_i Cov(W_i h_i, W_i h'_i) for two sums over a block of matrices."""
    assert isinstance(e, Apply)
    g, k, n, aligned = both.g, both.k, both.axes, _aligned(r.forms, both.g)
    matrices, (left, right) = r.program.types[both.matrix].index, (_operand_index(r.forms, x) for x in (g, k))
    inner = yield from _second(r, g, k, pair)
    if not n:
        # Multiply by the variance last: in a tangent program, a matrix and its direction then share the sum.
        kernel = r.index(Ref(g))[: e.options["dims"]]
        return window_both_sides(inner, left, right, kernel, e.options) * r.factor(both.matrix, pair)
    inner = inner * r.factor(both.matrix, pair)
    shared = matrices[:aligned]
    array = inner.spread((*shared, *left), (*shared, *right) if pair.tied else right)
    array = array_namespace(array).sum(array, axis=tuple(a + pair.batch for a in range(n)))
    kept = aligned - n
    block = PerPair(array, pair, kept + len(left), kept * pair.tied + len(right))
    return independent_matrices(block, matrices[n:], kept, left, right)


def _aligned(forms: Forms, name: str) -> int:
    """Return how many index axes the operand shares with the block of matrices."""
    source = forms.program.definitions[name]
    if isinstance(source, Input) and isinstance(source.law, Embedding):
        return source.law.aligned
    return source.aligned if isinstance(source, MatMul) else 0


def _block_index(forms: Forms, name: str) -> Index:
    """Return the index of the block of matrices of a product."""
    matrix = forms.matrix_of(name)
    assert matrix is not None
    return forms.program.types[matrix].index


def _operand_index(forms: Forms, name: str) -> Index:
    """Return the index of the vectors that a matrix multiplies, without the aligned axes."""
    return forms.index(Ref(name))[len(_block_index(forms, name)) :]


def needs_diagonal(forms: Forms, g: str, k: str, pair: Pair) -> bool:
    """Return whether a tied block of two products has to be the diagonal of the free block."""
    return pair.tied and _aligned(forms, g) != _aligned(forms, k)


def leaf(r: Recorder, e: Ref, f: Ref, pair: Pair) -> Asking:
    """Return the covariance of two inputs or products with matrices; None is a structural zero."""
    g, k = e.name, f.name
    matrix = r.forms.matrix_of(g)
    if matrix is None:
        yield []
        return normal_covariance(r, g, k, pair)
    # Different matrices are independent: no covariance.
    if matrix != r.forms.matrix_of(k):
        return None
    if needs_diagonal(r.forms, g, k, pair):
        full = yield r.rules.cov, e, f, pair.free
        return None if full is None else full.diagonal
    index, aligned = r.program.types[matrix].index, max(_aligned(r.forms, x) for x in (g, k))
    inner = (yield from _second(r, g, k, pair)) * r.factor(matrix, pair)
    if not index:
        return inner
    return independent_matrices(inner, index, aligned, _operand_index(r.forms, g), _operand_index(r.forms, k))


def _second(r: Recorder, g: str, k: str, pair: Pair) -> Asking:
    """Return E[h h'] for g = W h and k = W h': axes (batch, aligned, left, right)."""
    aligned, (left, right) = (_aligned(r.forms, g), _aligned(r.forms, k)), _indices(r.forms, g, k)
    asked = operand_pair(r.forms, g, k, pair)
    match r.program.definitions[g], r.program.definitions[k]:
        case Input() as s, Input() as t:
            yield []
            block = _with_rounding(r, embedded_second(r, s, t, asked), s, t)
        case MatMul(operand=h), MatMul(operand=other):
            block = yield r.rules.second, Ref(h), Ref(other), asked
        case s, t:
            raise AssertionError(f"{s} and {t} cannot share a matrix")
    if asked is not pair:
        block = PerPair(block.ranked(len(left), len(left)), pair, len(left), 0)
    elif any(aligned) and not pair.tied:
        block = _diagonal_of(block, left, right, aligned)
    return block


def _indices(forms: Forms, g: str, k: str) -> tuple[Index, Index]:
    """Return the index shapes of the operands of g and k."""
    index = _block_index(forms, g)
    left, right = ((*index[: _aligned(forms, x)], *_operand_index(forms, x)) for x in (g, k))
    return left, right


def operand_pair(forms: Forms, g: str, k: str, pair: Pair) -> Pair:
    """Return the pair of E[h h'] for g = W h and k = W h': tied if each entry has a matrix of its own.

    Different matrices of a block are independent, so only equal indices count.
    """
    aligned = _aligned(forms, g)
    if pair.tied or not aligned or aligned != _aligned(forms, k):
        return pair
    left, right = _indices(forms, g, k)
    return pair._replace(tied=True) if aligned == len(left) == len(right) else pair


def _with_rounding(r: Recorder, block: PerPair, s: Input, t: Input) -> PerPair:
    """Attach the rounding of products of data as an error bound, in units of the lengths of the data.

    Probes perturb equal data alike and different data independently. Products that are equal by coincidence
    of rounding must not count as equal, so each vector is identified by a mark.
    """
    if not r.forms.may_cancel:
        return block
    squares = [embedded_second(r, x, x, OWN) for x in (s, t)]
    facts = [*(PerInput(x.array, x.left) for x in squares), *(embedded_mark(r, x) for x in (s, t))]
    sides = (block.pair.side(k % 2, fact) for k, fact in enumerate(facts))
    return r.rounded(block, tuple(side.ranked(block.left, block.right) for side in sides))


def _diagonal_of(block: PerPair, left: Index, right: Index, aligned: tuple[int, int]) -> PerPair:
    """Return the entries where both sides have the same matrix: axes (batch, aligned, left, right)."""
    full, batch, both = block.spread(left, right), block.pair.batch, min(aligned)
    xp = array_namespace(full)
    for a in range(both):
        part = xp.linalg.diagonal(xp.moveaxis(full, (batch + a, batch + len(left)), (-2, -1)))
        full = xp.moveaxis(part, -1, batch + a)
    for a in range(both, aligned[1]):  # axes that only the right operand shares with the matrices
        full = xp.moveaxis(full, batch + len(left) + a - both, batch + a)
    return PerPair(full, block.pair, max(aligned) + len(left) - aligned[0], len(right) - aligned[1])


def independent_matrices(inner: PerPair, index: Index, aligned: int, left: Index, right: Index) -> PerPair:
    """Expand the covariance of a product with a block of matrices: it is zero between different matrices.

    inner    axes (batch, aligned index, left, right)
    returns  axes (batch, index, left, index, right)
    """
    pair, batch, i, j = inner.pair, inner.pair.batch, len(left), len(right)
    extra, ranks = len(index) - aligned, (len(index) + i, len(index) + j)
    if pair.tied:
        array = inner.ranked(aligned + i, aligned + j)
        shape = array.shape
        new = (*shape[: batch + aligned], *(1,) * extra, *shape[batch + aligned :])
        return PerPair(array_namespace(array).reshape(array, new), pair, *ranks)
    array = inner.ranked(aligned + i, j)
    xp, shape = array_namespace(array), array.shape
    ours, theirs = shape[batch + aligned : batch + aligned + i], shape[batch + aligned + i :]
    new = (*shape[: batch + aligned], *(1,) * extra, *ours, *(1,) * len(index), *theirs)
    # 1 for a matrix of the block with itself, 0 for two different ones
    same = np.eye(prod(index)).reshape((*index, *(1,) * i, *index, *(1,) * j))
    return PerPair(xp.reshape(array, new) * xp.asarray(same, dtype=array.dtype), pair, *ranks)


def window_both_sides(inner: PerPair, left: Index, right: Index, kernel: Index, options: dict) -> PerPair:
    """Return sum_j block[o s + j d - p, o' s + j d - p]: a convolution on both sides, axis by axis.

    s, d and p are stride, dilation and padding. The matrices of the kernel are independent, so both sides
    have the same kernel position j. A sum over a rectangular kernel is a sum along each axis in turn.
    """
    pair, block = inner.pair, inner.spread(left, right)
    strides, dilations, padding = window_options(**options)
    windows = []
    for d, (k, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        sides = [(pair.batch + d, left[d])]
        if not pair.tied:
            sides.append((pair.batch + len(left) + d, right[d]))
        windows.append([Window(axis, n, k, stride, dilation, padding) for axis, n in sides])
    return PerPair(sum_over_windows(block, windows), pair, len(left), len(right))
