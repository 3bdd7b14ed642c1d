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
from netsor.limits.rules.pairs import Pair, PerInput, PerPair, padded
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.tape.traced import array_namespace
from netsor.limits.window_sums import Window, sum_over_windows


@dataclass(frozen=True)
class MatrixProduct:
    """A G-var W h with a block of matrices W."""

    source: MatMul | Input
    matrix: str
    index: Index  # of the block
    aligned: int  # number of its first axes that h shares
    free: Index  # the index of h without these axes

    @property
    def operand_index(self) -> Index:
        return (*self.index[: self.aligned], *self.free)


def matrix_product(forms: Forms, e: Expr) -> MatrixProduct | None:
    """Return what a G-var is a product of; None if it is none."""
    source = forms.program.definitions.get(e.name) if isinstance(e, Ref) else None
    match source:
        case MatMul(matrix=matrix, aligned=aligned) | Input(law=Embedding(matrix=matrix, aligned=aligned)):
            index = forms.program.types[matrix].index
            return MatrixProduct(source, matrix, index, aligned, forms.index(e)[len(index) :])
    return None


def fusion(forms: Forms, e: Expr, f: Expr) -> tuple[MatrixProduct, MatrixProduct, int] | None:
    """Return the products of two convolutions or sums over heads, over the matrices of one block; else None.

        Cov(sum_i W_i h_i, sum_j W_j h'_j) = sum_i Cov(W_i h_i, W_i h'_i)

    The third value is the number of axes of the block that i runs over, or 0 for a window.
    """
    match e, f:
        case Apply(op, (x,), attrs), Apply(op2, (y,), attrs2) if op is op2 and attrs == attrs2:
            g, k, options = matrix_product(forms, x), matrix_product(forms, y), dict(attrs)
        case _:
            return None
    if g is None or k is None or g.matrix != k.matrix:
        return None
    if op is window and len(g.index) == options.get("dims") and g.aligned == k.aligned == 0:
        return g, k, 0
    axes = axes_of(options["axis"], forms.rank(x)) if op is sum_ else ()
    is_shared = axes == tuple(range(len(axes))) and len(axes) <= g.aligned == k.aligned
    return (g, k, len(axes)) if axes and is_shared else None


def fused(r: Recorder, e: Apply, g: MatrixProduct, k: MatrixProduct, n: int, pair: Pair) -> Asking:
    """Return sum_i Cov(W_i h_i, W_i h'_i) for two sums like `e` over n axes of a block, or over a window."""
    inner = yield from _second(r, g, k, pair)
    if not n:
        # Multiply by the variance last: in a tangent program, a matrix and its direction then share the sum.
        return window_both_sides(inner, g.free, k.free, g.index, e.options) * r.factor(g.matrix, pair)
    inner = inner * r.factor(g.matrix, pair)
    array = inner.spread(g.operand_index, k.operand_index if pair.tied else k.free)
    array = array_namespace(array).sum(array, axis=tuple(a + pair.batch for a in range(n)))
    kept = g.aligned - n
    block = PerPair(array, pair, kept + len(g.free), kept * pair.tied + len(k.free))
    return independent_matrices(block, g.index[n:], kept, g.free, k.free)


def leaf(r: Recorder, e: Ref, f: Ref, pair: Pair) -> Asking:
    """Return the covariance of two inputs or products with matrices; None is a structural zero."""
    g, k = matrix_product(r.forms, e), matrix_product(r.forms, f)
    if g is None:
        yield []
        return normal_covariance(r, e.name, f.name, pair)
    # Different matrices are independent: no covariance.
    if k is None or g.matrix != k.matrix:
        return None
    if pair.tied and g.aligned != k.aligned:
        full = yield r.rules.cov, e, f, pair.free
        return None if full is None else full.diagonal
    inner = (yield from _second(r, g, k, pair)) * r.factor(g.matrix, pair)
    if not g.index:
        return inner
    return independent_matrices(inner, g.index, max(g.aligned, k.aligned), g.free, k.free)


def _second(r: Recorder, g: MatrixProduct, k: MatrixProduct, pair: Pair) -> Asking:
    """Return E[h h'] for g = W h and k = W h': axes (batch, aligned, left, right)."""
    left, right = g.operand_index, k.operand_index
    # Different matrices of a block are independent: if each entry has its own, only equal indices count.
    ties = not pair.tied and 0 < g.aligned == k.aligned == len(left) == len(right)
    asked = pair._replace(tied=True) if ties else pair
    match g.source, k.source:
        case Input() as s, Input() as t:
            yield []
            block = _with_rounding(r, embedded_second(r, s, t, asked), s, t)
        case MatMul(operand=h), MatMul(operand=other):
            block = yield r.rules.second, Ref(h), Ref(other), asked
        case s, t:
            raise AssertionError(f"{s} and {t} cannot share a matrix")
    if ties:
        return PerPair(block.ranked(len(left), len(left)), pair, len(left), 0)
    if (g.aligned or k.aligned) and not pair.tied:
        return _diagonal_of(block, left, right, (g.aligned, k.aligned))
    return block


def _with_rounding(r: Recorder, block: PerPair, s: Input, t: Input) -> PerPair:
    """Attach the rounding of products of data as an error bound, in units of the lengths of the data.

    Marks tell probes which data are equal: products may be equal by coincidence of rounding.
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
        return PerPair(
            padded(inner.ranked(aligned + i, aligned + j), batch + aligned, 0, extra), pair, *ranks
        )
    array = padded(inner.ranked(aligned + i, j), batch + aligned + i, 0, len(index))
    array = padded(array, batch + aligned, 0, extra)
    # 1 for a matrix of the block with itself, 0 for two different ones
    same = np.eye(prod(index)).reshape((*index, *(1,) * i, *index, *(1,) * j))
    return PerPair(array * array_namespace(array).asarray(same, dtype=array.dtype), pair, *ranks)


def window_both_sides(inner: PerPair, left: Index, right: Index, kernel: Index, options: dict) -> PerPair:
    """Return the sum over the windows of a convolution on both sides, see `window_sums`."""
    pair, block = inner.pair, inner.spread(left, right)
    strides, dilations, padding = window_options(**options)
    windows = []
    for d, (k, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        sides = [(pair.batch + d, left[d])]
        if not pair.tied:
            sides.append((pair.batch + len(left) + d, right[d]))
        windows.append([Window(axis, n, k, stride, dilation, padding) for axis, n in sides])
    return PerPair(sum_over_windows(block, windows), pair, len(left), len(right))
