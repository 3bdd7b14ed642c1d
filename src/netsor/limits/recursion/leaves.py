"""Covariances where the recursion ends: inputs, embeddings of data, and blocks of independent matrices."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Ref, refs
from netsor.lang.index_maps import window_options
from netsor.lang.program import Embedding, Input, Normal
from netsor.lang.sampling import input_covariance
from netsor.lang.types import Index
from netsor.limits.recursion.pairs import Pair, diagonal, pad_index
from netsor.limits.tape.tape import Span
from netsor.limits.tape.traced import array_namespace, tape_of
from netsor.limits.windows.shifts import Window, sum_over_windows

if TYPE_CHECKING:
    from netsor.limits.recursion.engine import Engine

__all__ = ["embedded_second", "independent_matrices", "normal_covariance", "window_both_sides"]

Array = Any
FEW = 4  # channels of data whose products are added one by one


def normal_covariance(engine: Engine, g: str, k: str, pair: Pair, tie: bool) -> Array | None:
    """Sigma_in of two inputs with explicit laws: the same for all inputs of the network."""
    s, t = engine.program.definitions[g], engine.program.definitions[k]
    assert isinstance(s, Input)
    if not isinstance(t, Input) or isinstance(t.law, Embedding):
        return None
    left, right = engine.index(Ref(g)), engine.index(Ref(k))
    ones = (1,) * pair.batch
    if g == k and isinstance(s.law, Normal) and isinstance(s.law.cov, float):
        var = engine.variance(g)
        if tie:
            return pair.lift(var * engine.xp.ones((*ones, *(1,) * len(left))))
        return pair.lift(var * engine.xp.asarray(np.eye(prod(left)).reshape((*ones, *left, *right))))
    sigma = input_covariance(engine.program, s, t)
    if sigma is None:
        return None
    full = engine.xp.asarray(sigma.reshape((*ones, *left, *right)))
    return pair.lift(diagonal(full, pair.batch, len(left), len(right)) if tie else full)


def embedded_second(engine: Engine, s: Input, t: Input, pair: Pair, tie: bool) -> Array:
    """x.x' / m of the data that one matrix multiplies: axes (batch, left, right), or tied."""
    x, y = (_data(engine, law) for law in (s.law, t.law))
    m = x.shape[-1]
    tape = pair.tape or tape_of(x, y)
    if tie and min(x.ndim, y.ndim) > 3 and tape and tape.compiled and m <= FEW:
        return _sum_of_products(x, y, pair)
    if pair.same:
        return _dots(x[0, ...], y[0, ...], tie)[None, ...] / m
    if pair.tape is None:
        return _cross_dots(_part(x, pair.rows), _part(y, pair.cols), tie)[None, ...] / m
    assert pair.rows is not None
    assert pair.cols is not None
    rows, cols = pair.rows, pair.cols
    batch = (1, *(1 if a.shape[1] == 1 else b - c for a, (c, b) in ((x, rows), (y, cols))))
    index = np.broadcast_shapes(x.shape[2:-1], y.shape[2:-1]) if tie else (*x.shape[2:-1], *y.shape[2:-1])

    left, right = pair.tape.reader(x), pair.tape.reader(y)

    def read(given: Any, spans: Mapping[Span, Span]) -> Array:
        parts = _part(left(given), spans[rows]), _part(right(given), spans[cols])
        return _cross_dots(*parts, tie)[None, ...] / m

    key, kind = (s.name, t.name, rows, cols, tie), ("dots", rows, cols, tie)
    return pair.tape.leaf(key, (*batch, *index), x.dtype, read, kind, (x, y))


def _sum_of_products(x: Array, y: Array, pair: Pair) -> Array:
    """The same, tied, as steps of the tape: one loop in place of a product of small matrices per index."""
    m, rank = x.shape[-1], max(x.ndim, y.ndim) - 3
    x, y = (pad_index(z, 2, z.ndim - 3, rank) for z in (x, y))
    total: Any = None
    for c in range(m):
        part = pair.left(x[..., c] / m) * pair.right(y[..., c])
        total = part if total is None else total + part
    return total


def _part(x: Array, span: Span | None) -> Array:
    """The data of a tile: (inputs, index..., m)."""
    return x[0, ...] if span is None or x.shape[1] == 1 else x[0, span[0] : span[1], ...]


def _data(engine: Engine, law: Any) -> Array:
    """The data of an embedding, (1, inputs, index..., m)."""
    assert isinstance(law, Embedding)
    if law.data not in engine.embedded:
        value = evaluate(law.data, {name: engine.data[name] for name in refs(law.data)})
        engine.embedded[law.data] = value.array
    return engine.embedded[law.data]


def _dots(x: Array, y: Array, tie: bool) -> Array:
    """x_i . y_j for the same input, arrays (inputs, index..., m)."""
    xp = array_namespace(x, y)
    if tie:
        rank = max(x.ndim, y.ndim) - 2
        return xp.sum(pad_index(x, 1, x.ndim - 2, rank) * pad_index(y, 1, y.ndim - 2, rank), axis=-1)
    a = xp.reshape(x, (x.shape[0], prod(x.shape[1:-1]), x.shape[-1]))
    b = xp.reshape(y, (y.shape[0], prod(y.shape[1:-1]), y.shape[-1]))
    out = xp.matmul(a, xp.matrix_transpose(b))
    return xp.reshape(out, (out.shape[0], *x.shape[1:-1], *y.shape[1:-1]))


def _cross_dots(x: Array, y: Array, tie: bool) -> Array:
    """x_i . y_j for all pairs of inputs: axes (left inputs, right inputs, left index, right index)."""
    xp = array_namespace(x, y)
    if tie:
        rank = max(x.ndim, y.ndim) - 2
        a, b = (xp.moveaxis(pad_index(z, 1, z.ndim - 2, rank), 0, -2) for z in (x, y))
        out = xp.matmul(a, xp.matrix_transpose(b))
        return xp.moveaxis(out, (-2, -1), (0, 1))
    a = xp.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
    b = xp.reshape(y, (prod(y.shape[:-1]), y.shape[-1]))
    out = xp.reshape(xp.matmul(a, b.T), (*x.shape[:-1], *y.shape[:-1]))
    return xp.moveaxis(out, x.ndim - 1, 1)


def independent_matrices(
    inner: Array, batch: int, index: Index, aligned: int, ranks: tuple[int, int], tie: bool
) -> Array:
    """The block of a product with a block of matrices: zero between different matrices.

    `inner` has axes (batch, aligned index, left, right); the result (batch, index, left, index, right).
    """
    xp = array_namespace(inner)
    i, j = ranks
    extra = len(index) - aligned
    shape = inner.shape
    if tie:
        return xp.reshape(inner, (*shape[: batch + aligned], *(1,) * extra, *shape[batch + aligned :]))
    left, right = shape[batch + aligned : batch + aligned + i], shape[batch + aligned + i :]
    new = (*shape[: batch + aligned], *(1,) * extra, *left, *(1,) * len(index), *right)
    same = np.eye(prod(index)).reshape((*index, *(1,) * i, *index, *(1,) * j))
    return xp.reshape(inner, new) * xp.asarray(same, dtype=inner.dtype)


def window_both_sides(
    block: Array, batch: int, left: Index, right: Index, kernel: Index, options: dict, tie: bool
) -> Array:
    """sum_j block[o s + j d - p, o' s + j d - p]: a convolution on both sides, one axis after the other.

    The kernel's matrices are independent, so both sides see the same kernel position j, and the sum over
    positions of a rectangular kernel is a sum along each axis in turn.
    """
    xp = array_namespace(block)
    block = xp.broadcast_to(block, (*block.shape[:batch], *(left if tie else (*left, *right))))
    strides, dilations, padding = window_options(**options)
    windows = []
    for d, (k, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        sides = [(batch + d, left[d])]
        if not tie:
            sides.append((batch + len(left) + d, right[d]))
        windows.append([Window(axis, n, k, stride, dilation, padding) for axis, n in sides])
    return sum_over_windows(block, windows)
