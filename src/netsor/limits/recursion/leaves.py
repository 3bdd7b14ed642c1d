"""Covariances where the recursion ends: inputs, embeddings of data, and blocks of independent matrices."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Expr, refs
from netsor.lang.index_maps import window_options
from netsor.lang.program import Embedding, Input, Normal
from netsor.lang.sampling import input_covariance
from netsor.lang.types import Index
from netsor.limits.recursion.pairs import Pair, PerInput, PerPair, padded
from netsor.limits.recursion.recorder import Recorder
from netsor.limits.tape.tape import Span
from netsor.limits.tape.traced import array_namespace
from netsor.limits.windows.shifts import Window, sum_over_windows

__all__ = [
    "embedded_data",
    "embedded_mark",
    "embedded_second",
    "independent_matrices",
    "normal_covariance",
    "window_both_sides",
]

Array = Any
FEW = 4  # channels of data whose products are added one by one
MARK = 0x9E3779B97F4A7C15  # seed of a direction that nobody else draws
LARGE = 2**10  # products of a pair of inputs that are worth a product of matrices of their own


def normal_covariance(r: Recorder, g: str, k: str, pair: Pair) -> PerPair | None:
    """Sigma_in of two inputs with explicit laws: the same for all inputs of the network."""
    s, t = r.program.definitions[g], r.program.definitions[k]
    assert isinstance(s, Input)
    if not isinstance(t, Input) or isinstance(t.law, Embedding):
        return None
    left, right, ones = r.ref_index(g), r.ref_index(k), (1,) * pair.batch
    if isinstance(s.law, Normal) and s.law.each and not pair.same:
        return None if pair.is_tile else _of_noise(r, g, k, pair)
    if g == k and isinstance(s.law, Normal) and isinstance(s.law.cov, float):
        if pair.tied:
            full = r.xp.ones((*ones, *(1,) * len(left)))
        else:
            full = r.xp.asarray(np.eye(prod(left)).reshape((*ones, *left, *right)))
        var = r.variance(g)
        if isinstance(var, PerInput):
            return PerPair(pair.shared(full), pair, len(left), len(right)) * pair.left(var)
        return PerPair(pair.shared(var * full), pair, len(left), len(right))
    sigma = input_covariance(r.program, s, t)
    if sigma is None:
        return None
    full = r.xp.asarray(sigma.reshape((*ones, *left, *right)))
    block = PerPair(full, pair.free, len(left), len(right))
    block = block.diagonal if pair.tied else block
    return PerPair(pair.shared(block.array), pair, len(left), len(right))


def _of_noise(r: Recorder, g: str, k: str, pair: Pair) -> PerPair | None:
    """The covariance of what is drawn anew for each input, over all pairs of inputs."""
    own = normal_covariance(r, g, k, Pair(True, pair.tied))
    if own is None:
        return None
    n = r.inputs[g]
    same = r.xp.asarray(np.eye(n).reshape((1, n, n, *(1,) * (own.array.ndim - 2))))
    return PerPair(same * own.array[:, :, None, ...], pair, own.left, own.right)


def embedded_second(r: Recorder, s: Input, t: Input, pair: Pair) -> PerPair:
    """x.x' / m of the data that one matrix multiplies."""
    x, y = (embedded_data(r, law) for law in (s.law, t.law))
    m, left, right = x.shape[-1], x.ndim - 3, y.ndim - 3
    tape = pair.tape or r.tape
    if pair.tied and min(left, right) > 0 and tape.compiled and m <= FEW:
        return _sum_of_products(x, y, pair)
    if pair.same:
        dots = _dots(x[0, ...], y[0, ...], pair.tied)
    elif pair.is_tile:
        return PerPair(_recorded_dots(pair, _data(s), _data(t), x, y) / m, pair, left, right)
    else:
        dots = _cross_dots(x[0, ...], y[0, ...], pair.tied)
    return PerPair(dots[None, ...] / m, pair, left, right)


def _data(s: Input) -> Expr:
    """What is embedded: the directions of a tangent have the data of their matrices."""
    assert isinstance(s.law, Embedding)
    return s.law.data


def _recorded_dots(pair: Pair, e: Expr, f: Expr, x: Array, y: Array) -> Array:
    """The products of a tile, which are read from the data of all inputs."""
    rows, cols, tape, tied = pair.rows, pair.cols, pair.tape, pair.tied
    assert rows is not None
    assert cols is not None
    assert tape is not None
    batch = (1, *(1 if a.shape[1] == 1 else b - c for a, (c, b) in ((x, rows), (y, cols))))
    index = np.broadcast_shapes(x.shape[2:-1], y.shape[2:-1]) if tied else (*x.shape[2:-1], *y.shape[2:-1])
    left, right = tape.reader(x), tape.reader(y)

    def read(given: Any, spans: Mapping[Span, Span]) -> Array:
        return _cross_dots(_part(left(given), spans[rows]), _part(right(given), spans[cols]), tied)[None, ...]

    key, kind = ("dots", e, f, rows, cols, tied), ("dots", rows, cols, tied)
    made = tape.leaf(key, (*batch, *index), x.dtype, read, kind, (x, y))
    tape.costs[made.step] = x.shape[-1]
    return made


def _sum_of_products(x: Array, y: Array, pair: Pair) -> PerPair:
    """The same, tied, as steps of the tape: one loop in place of a product of small matrices per index."""
    m, left, right = x.shape[-1], x.ndim - 3, y.ndim - 3
    total: Any = None
    for c in range(m):
        part = pair.left(PerInput(x[..., c] / m, left)) * pair.right(PerInput(y[..., c], right))
        total = part if total is None else total + part
    return total


def _part(x: Array, span: Span) -> Array:
    """The data of a tile: (inputs, index..., m)."""
    return x[0, ...] if x.shape[1] == 1 else x[0, span[0] : span[1], ...]


def embedded_data(r: Recorder, law: Any) -> Array:
    """The data of an embedding, (1, inputs, index..., m)."""
    assert isinstance(law, Embedding)
    key = ("embedded", law.data)
    if key not in r.facts:
        r.facts[key] = evaluate(law.data, {name: r.data[name].block for name in refs(law.data)}).array
    return r.facts[key]


def embedded_mark(r: Recorder, s: Input) -> PerInput:
    """A number for each vector of the data of an embedding by which equal ones are known: a product."""
    x = embedded_data(r, s.law)
    return PerInput(r.tape.call(_mark, (x,), x.shape[:-1]), x.ndim - 3)


def _mark(x: Array) -> Array:
    way = np.random.default_rng(MARK).standard_normal(x.shape[-1]).astype(x.dtype)
    return np.sum(x * way, axis=-1)  # not by BLAS, which may round equal rows differently


def _dots(x: Array, y: Array, tied: bool) -> Array:
    """x_i . y_j for the same input, arrays (inputs, index..., m)."""
    xp = array_namespace(x, y)
    if tied:
        rank = max(x.ndim, y.ndim) - 2
        return xp.vecdot(padded(x, 1, x.ndim - 2, rank), padded(y, 1, y.ndim - 2, rank))
    a = xp.reshape(x, (x.shape[0], prod(x.shape[1:-1]), x.shape[-1]))
    b = xp.reshape(y, (y.shape[0], prod(y.shape[1:-1]), y.shape[-1]))
    out = xp.matmul(a, xp.matrix_transpose(b))
    return xp.reshape(out, (out.shape[0], *x.shape[1:-1], *y.shape[1:-1]))


def _cross_dots(x: Array, y: Array, tied: bool) -> Array:
    """x_i . y_j for all pairs of inputs: axes (left inputs, right inputs, left index, right index)."""
    xp = array_namespace(x, y)
    if tied:
        rank = max(x.ndim, y.ndim) - 2
        a, b = (xp.moveaxis(padded(z, 1, z.ndim - 2, rank), 0, -2) for z in (x, y))
        out = xp.matmul(a, xp.matrix_transpose(b))
        return xp.moveaxis(out, (-2, -1), (0, 1))
    m, left, right = x.shape[-1], prod(x.shape[1:-1]), prod(y.shape[1:-1])
    if left * right >= LARGE:  # as they are to stand
        a, b = xp.reshape(x, (x.shape[0], 1, left, m)), xp.reshape(y, (1, y.shape[0], right, m))
        out = xp.matmul(a, xp.matrix_transpose(b))
        return xp.reshape(out, (x.shape[0], y.shape[0], *x.shape[1:-1], *y.shape[1:-1]))
    a, b = xp.reshape(x, (x.shape[0] * left, m)), xp.reshape(y, (y.shape[0] * right, m))
    out = xp.reshape(xp.matmul(a, b.T), (*x.shape[:-1], *y.shape[:-1]))
    return xp.moveaxis(out, x.ndim - 1, 1) if x.ndim > 2 else out


def independent_matrices(inner: PerPair, index: Index, aligned: int, left: Index, right: Index) -> PerPair:
    """The block of a product with a block of matrices: zero between different matrices.

    `inner` has axes (batch, aligned index, left, right); the result (batch, index, left, index, right).
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
    same = np.eye(prod(index)).reshape((*index, *(1,) * i, *index, *(1,) * j))
    return PerPair(xp.reshape(array, new) * xp.asarray(same, dtype=array.dtype), pair, *ranks)


def window_both_sides(inner: PerPair, left: Index, right: Index, kernel: Index, options: dict) -> PerPair:
    """sum_j block[o s + j d - p, o' s + j d - p]: a convolution on both sides, one axis after the other.

    The kernel's matrices are independent, so both sides see the same kernel position j, and the sum over
    positions of a rectangular kernel is a sum along each axis in turn.
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
