"""Input: mean and covariance of the vectors that a program starts with.

    mu(g) = mu_in(g),    Sigma(g, g') = Sigma_in(g, g')

Vectors with explicit laws have a given Sigma_in. An embedding A x of data, with entries of A drawn from
N(0, var / m), has var x.x' / m; `embedded_second` returns x.x' / m.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod
from operator import add
from typing import Any

import numpy as np

from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Ref, refs
from netsor.lang.input_laws import input_covariance
from netsor.lang.program import Embedding, Input, Law, Normal
from netsor.limits.rules.pairs import Pair, PerInput, PerPair, padded
from netsor.limits.rules.recorder import Recorder
from netsor.limits.tape.tape import Span
from netsor.limits.tape.traced import array_namespace

Array = Any


def normal_covariance(r: Recorder, g: str, k: str, pair: Pair) -> PerPair | None:
    """Return Sigma_in of two inputs with explicit laws, which all inputs of the network share."""
    s, t = r.program.definitions[g], r.program.definitions[k]
    assert isinstance(s, Input)
    if not isinstance(t, Input) or isinstance(t.law, Embedding):
        return None
    left, right, ones = r.index(Ref(g)), r.index(Ref(k)), (1,) * pair.batch
    # Noise of different inputs is independent, so tiles of different inputs have none.
    if isinstance(s.law, Normal) and s.law.each and not pair.same:
        return None if pair.is_tile else _of_noise(r, g, k, pair)
    # One variance for all entries: keep it as a factor, so that a run can be given another one.
    if g == k and isinstance(s.law, Normal) and isinstance(s.law.cov, float):
        if pair.tied:
            full = r.xp.ones((*ones, *(1,) * len(left)))
        else:
            full = r.xp.asarray(np.eye(prod(left)).reshape((*ones, *left, *right)))
        return PerPair(pair.shared(full), pair, len(left), len(right)) * r.factor(g, pair)
    sigma = input_covariance(r.program, s, t)
    if sigma is None:
        return None
    full = r.xp.asarray(sigma.reshape((*ones, *left, *right)))
    block = PerPair(full, pair.free, len(left), len(right))
    block = block.diagonal if pair.tied else block
    return PerPair(pair.shared(block.array), pair, len(left), len(right))


def _of_noise(r: Recorder, g: str, k: str, pair: Pair) -> PerPair | None:
    """Return the covariance of noise over all pairs of inputs: zero unless left and right input are equal."""
    block = normal_covariance(r, g, k, Pair(True, pair.tied))
    if block is None:
        return None
    n = r.setting.inputs[g]
    same = r.xp.asarray(np.eye(n).reshape((1, n, n, *(1,) * (block.array.ndim - 2))))
    return PerPair(same * block.array[:, :, None, ...], pair, block.left, block.right)


def embedded_second(r: Recorder, s: Input, t: Input, pair: Pair) -> PerPair:
    """Return x.x' / m for data x, x' that one matrix multiplies."""
    x, y = (embedded_data(r, law) for law in (s.law, t.law))
    m, left, right = x.shape[-1], x.ndim - 3, y.ndim - 3
    tape = pair.tape or r.tape
    # So few channels are added one at a time, without a product of matrices.
    if pair.tied and min(left, right) > 0 and tape.compiled and m <= 4:
        return _sum_of_products(x, y, pair)
    if pair.same:
        dots = _dots(x[0, ...], y[0, ...], pair.tied)
    elif pair.is_tile:
        return PerPair(_recorded_dots(pair, s.law, t.law, x, y) / m, pair, left, right)
    else:
        dots = _cross_dots(x[0, ...], y[0, ...], pair.tied)
    return PerPair(dots[None, ...] / m, pair, left, right)


def _recorded_dots(pair: Pair, s: Law, t: Law, x: Array, y: Array) -> Array:
    """Record the products of a tile, read from the data of all inputs.

    The directions of a tangent program embed the same data as their matrices, so they share the step.
    """
    rows, cols, tape, tied = pair.rows, pair.cols, pair.tape, pair.tied
    assert isinstance(s, Embedding)
    assert isinstance(t, Embedding)
    assert rows is not None
    assert cols is not None
    assert tape is not None
    batch = (1, *(1 if a.shape[1] == 1 else b - c for a, (c, b) in ((x, rows), (y, cols))))
    index = np.broadcast_shapes(x.shape[2:-1], y.shape[2:-1]) if tied else (*x.shape[2:-1], *y.shape[2:-1])

    def dots(spans: Mapping[Span, Span], x: Array, y: Array) -> Array:
        return _cross_dots(_part(x, spans[rows]), _part(y, spans[cols]), tied)[None, ...]

    key, kind = ("dots", s.data, t.data, rows, cols, tied), ("dots", rows, cols, tied)
    products = tape.leaf(key, (*batch, *index), x.dtype, (x, y), dots, kind)
    tape.costs[products.step] = x.shape[-1]
    return products


def _sum_of_products(x: Array, y: Array, pair: Pair) -> PerPair:
    """Return x.x' / m of a tied pair as one compiled loop, faster than small matrix products."""
    m, left, right = x.shape[-1], x.ndim - 3, y.ndim - 3
    lefts = (pair.left(PerInput(x[..., c] / m, left)) for c in range(m))
    return reduce(add, (one * pair.right(PerInput(y[..., c], right)) for c, one in enumerate(lefts)))


def _part(x: Array, span: Span) -> Array:
    """Return the data of a tile, (inputs, index..., m)."""
    return x[0, ...] if x.shape[1] == 1 else x[0, span[0] : span[1], ...]


def embedded_data(r: Recorder, law: Any) -> Array:
    """Return the data of an embedding, (1, inputs, index..., m)."""
    assert isinstance(law, Embedding)
    key = ("embedded", law.data)
    if key not in r.facts:
        r.facts[key] = evaluate(law.data, {name: r.data[name].block for name in refs(law.data)}).array
    return r.facts[key]


def embedded_mark(r: Recorder, s: Input) -> PerInput:
    """Return one number for each vector of the embedded data: its product with a fixed random direction."""
    x = embedded_data(r, s.law)
    return PerInput(r.tape.call(_mark, (x,), x.shape[:-1]), x.ndim - 3)


def _mark(x: Array) -> Array:
    seed = 0x9E3779B97F4A7C15  # of a direction that nothing else draws
    direction = np.random.default_rng(seed).standard_normal(x.shape[-1]).astype(x.dtype)
    return np.sum(x * direction, axis=-1)  # not by BLAS, which may round equal rows differently


def _dots(x: Array, y: Array, tied: bool) -> Array:
    """Return x_i . y_j of each input with itself, for arrays (inputs, index..., m)."""
    xp = array_namespace(x, y)
    if tied:
        rank = max(x.ndim, y.ndim) - 2
        return xp.vecdot(padded(x, 1, x.ndim - 2, rank), padded(y, 1, y.ndim - 2, rank))
    a = xp.reshape(x, (x.shape[0], prod(x.shape[1:-1]), x.shape[-1]))
    b = xp.reshape(y, (y.shape[0], prod(y.shape[1:-1]), y.shape[-1]))
    out = xp.matmul(a, xp.matrix_transpose(b))
    return xp.reshape(out, (out.shape[0], *x.shape[1:-1], *y.shape[1:-1]))


def _cross_dots(x: Array, y: Array, tied: bool) -> Array:
    """Return x_i . y_j of all pairs of inputs: (left inputs, right inputs, left index..., right index...)."""
    xp = array_namespace(x, y)
    if tied:
        rank = max(x.ndim, y.ndim) - 2
        a, b = (xp.moveaxis(padded(z, 1, z.ndim - 2, rank), 0, -2) for z in (x, y))
        return xp.moveaxis(xp.matmul(a, xp.matrix_transpose(b)), (-2, -1), (0, 1))
    m, left, right = x.shape[-1], prod(x.shape[1:-1]), prod(y.shape[1:-1])
    # A batched product has its axes in the final order; for small blocks one product plus a move is faster.
    if left * right >= 1024:
        a, b = xp.reshape(x, (x.shape[0], 1, left, m)), xp.reshape(y, (1, y.shape[0], right, m))
        out = xp.matmul(a, xp.matrix_transpose(b))
        return xp.reshape(out, (x.shape[0], y.shape[0], *x.shape[1:-1], *y.shape[1:-1]))
    a, b = xp.reshape(x, (x.shape[0] * left, m)), xp.reshape(y, (y.shape[0] * right, m))
    out = xp.reshape(xp.matmul(a, b.T), (*x.shape[:-1], *y.shape[:-1]))
    return xp.moveaxis(out, x.ndim - 1, 1) if x.ndim > 2 else out
