"""E[f(x) g(y)] = sum_k a_k b_k rho^k from the Hermite series of f and g (Mehler), with an error bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np
from array_api_compat import is_jax_array

from netsor.expect.hermite.expansion import Series, rest_of_pair, rests_of, truncated
from netsor.expect.hermite.singularities import singular_pair
from netsor.expect.quadrature.hermite_functions import eps_of
from netsor.lang.array_api import array_namespace, is_traced
from netsor.machine_code import compiled

Array = Any
LEAST_ELEMENTS = 2**13  # smaller blocks do not repay compiling, so NumPy computes them
TERMS = 8  # terms per pass over a row of pairs; zeros fill up to a multiple of it


def pair_sum(a: Series, b: Series, rho: Array, errors: bool = True) -> tuple[Array, Array]:
    """Return E[f(x) g(y)] for the series a of f and b of g and the correlation rho, and a bound of its error.

    The leading axes broadcast. The error is |rho|^K tail_a tail_b for the terms left out, plus
    error_a |b| + |a| error_b for the coefficients (both by Cauchy-Schwarz). At rho = 1, a series with itself
    gives E[f^2] and leaves nothing out. Without `errors`, the bound is 0.
    """
    xp = array_namespace(a.coefs, b.coefs, rho)
    rho = xp.clip(rho, -1.0, 1.0)
    fixed = is_traced(a.coefs, b.coefs, rho) or 0 in (*a.tail.shape, *b.tail.shape, *rho.shape)
    # Under a trace, and without entries, no choice can depend on values: take all terms in one block.
    if fixed:
        most = min(a.coefs.shape[-1], b.coefs.shape[-1])
        return _pair_block(truncated(a, most), truncated(b, most), rho, _identical(a, b, rho), errors)
    parts = [_pair_block(*block, errors) for block in _blocks(a, b, rho, errors)]
    if len(parts) == 1:
        return parts[0]
    values, bounds = zip(*parts, strict=True)
    return xp.concat(values, axis=0), xp.concat(bounds, axis=0) if errors else 0.0


def _blocks(
    a: Series, b: Series, rho: Array, tails: bool
) -> Iterator[tuple[Series, Series, Array, Array | None]]:
    """Divide the first axis so that a block of pairs stays in the cache; each block takes the terms it needs.

    The last item says which pairs are `_identical`, or is None if no correlation is 1.
    """
    xp = array_namespace(rho)
    shape = np.broadcast_shapes(a.tail.shape, b.tail.shape, rho.shape)
    rows = shape[0] if shape else 1
    step, lengths = max(1, 2**15 * rows // max(1, prod(shape))), _lengths(a, b)
    for at in range(0, rows, step):
        left, right, r = (_rows(x, shape, at, step) for x in (a, b, rho))
        top, same = float(xp.max(xp.abs(r))), None
        if top == 1:
            same = _identical(left, right, r)
            # A series with itself at correlation 1 is E[f^2] exactly, whatever the number of terms.
            top = float(xp.max(xp.where(same, 0.0, xp.abs(r))))
        # The fewest terms whose remainder is within rounding, else all terms.
        enough = (k for k, remainder in lengths if remainder * top**k <= 16 * eps_of(rho))
        terms = next(enough, lengths[-1][0])
        yield truncated(left, terms, tails), truncated(right, terms, tails), r, same


def _rows(x: Any, shape: tuple[int, ...], at: int, step: int) -> Any:
    """Return rows at ... at + step - 1 of a series or array that broadcasts to `shape`."""
    own_shape = x.tail.shape if isinstance(x, Series) else x.shape
    if len(own_shape) < len(shape) or not shape or own_shape[0] == 1:
        return x
    rows = slice(at, min(at + step, own_shape[0]))
    return x[rows] if isinstance(x, Series) else x[rows, ...]


def _lengths(a: Series, b: Series) -> list[tuple[int, float]]:
    """Return possible numbers of terms, each with the relative size of the remaining sum at |rho| = 1."""
    most = min(a.coefs.shape[-1], b.coefs.shape[-1])
    left, right = (dict(x.rests or rests_of(x)) for x in (truncated(a, most), truncated(b, most)))
    return [(k, rest_of_pair(left[k], right[k])) for k in sorted(left.keys() & right.keys())]


def _identical(a: Series, b: Series, rho: Array) -> Array:
    """Return where rho = 1 and both series agree to the last bit: there f(x) g(y) is f(x)^2."""
    return (rho == 1) & (a.mark == b.mark) & (a.square == b.square)


def _pair_block(a: Series, b: Series, rho: Array, same: Array | None, errors: bool) -> tuple[Array, Array]:
    xp, value = array_namespace(rho), _power_sum(a.coefs, b.coefs, rho)
    jumps = a.jumps and b.jumps and (a.jumps, b.jumps)
    if jumps:
        value = value - _power_sum(jumps[0].coefs, jumps[1].coefs, rho) + singular_pair(*jumps, rho)
    if same is not None:
        value = xp.where(same, a.square, value)
    if not errors:
        return value, 0.0
    error = xp.abs(rho) ** a.coefs.shape[-1] * rest_of_pair(a.tails, b.tails)
    if jumps:
        error = error + 16 * eps_of(rho) * jumps[0].scale * jumps[1].scale
    if same is not None:
        error = xp.where(same, 0.0, error)
    return value, error + a.error * xp.sqrt(b.square) + xp.sqrt(a.square) * b.error


def _power_sum(a: Array, b: Array, rho: Array) -> Array:
    """Return sum_k a_k b_k rho^k for coefficients (..., terms)."""
    value = horner(a, b, rho) if isinstance(rho, np.ndarray) else None
    if value is not None:
        return value
    a, b = _terms_first(a), _terms_first(b)
    if is_jax_array(rho):
        return _scanned(a, b, rho)
    value = 0 * rho
    for k in reversed(range(a.shape[0])):
        value = value * rho + a[k, ...] * b[k, ...]
    return value


def _scanned(a: Array, b: Array, rho: Array) -> Array:
    """Horner's rule as one step of jax.lax.scan, which compiles fast."""
    from jax.lax import scan  # type: ignore[import-not-found]

    first = 0 * (rho + a[0, ...] + b[0, ...])
    return scan(lambda value, ab: (value * rho + ab[0] * ab[1], None), first, (a, b), reverse=True)[0]


def _terms_first(coefs: Array) -> Array:
    """Return a copy with the last axis first, so that each term is contiguous in memory."""
    xp = array_namespace(coefs)
    moved = xp.moveaxis(coefs, -1, 0)
    return xp.reshape(xp.reshape(moved, (-1,)), moved.shape)


# The sum over all pairs as a loop compiled by Numba (the extra `fast`).


def horner(a: np.ndarray, b: np.ndarray, rho: np.ndarray) -> np.ndarray | None:
    """Return the sum for coefficients (..., 1, terms) and (1, ..., terms) of the two sides, or None.

    None means that nothing is to be gained, or that the arrays are not an outer product of left and right.
    """
    if rho.size < LEAST_ELEMENTS or rho.dtype not in (np.float64, np.float32) or find_spec("numba") is None:
        return None
    if not any(_is_split_at(a.shape[:-1], b.shape[:-1], rho.shape, d) for d in range(rho.ndim + 1)):
        return None
    left, right = (x.reshape(-1, x.shape[-1]) for x in (a, b))
    step, start = (2, 1) if _vanish(left, right, 0) else (2, 0) if _vanish(left, right, 1) else (1, 0)
    kept = (z[:, start::step] for z in (left, right))
    x, y = (np.pad(z, ((0, 0), (0, -z.shape[1] % TERMS))) for z in kept)
    table = np.ascontiguousarray(rho).reshape(len(left), len(right))
    out = np.empty_like(table)
    _loop()(x, np.ascontiguousarray(y.T), table, step, start, out)
    return out.reshape(rho.shape)


def _is_split_at(rows: tuple[int, ...], cols: tuple[int, ...], full: tuple[int, ...], d: int) -> bool:
    """Return whether the axes before d belong to the left side, and all others to the right side."""
    rows, cols = ((*(1,) * (len(full) - len(shape)), *shape) for shape in (rows, cols))
    return rows == (*full[:d], *(1,) * (len(full) - d)) and cols == (*(1,) * d, *full[d:])


def _vanish(left: np.ndarray, right: np.ndarray, parity: int) -> bool:
    """Return whether all terms of one parity are zero, as for odd and even functions."""
    return not (left[:, parity::2].any() and right[:, parity::2].any())


@cache
def _loop() -> Callable[..., Any]:
    """Horner's rule with TERMS terms per pass over a row of pairs, a loop that compilers vectorise."""

    def loop(left, right, rho, step, start, out):
        rows, terms = left.shape
        cols = rho.shape[1]
        power, total = np.empty(cols, rho.dtype), np.empty(cols, rho.dtype)
        for i in range(rows):
            for j in range(cols):
                c = rho[i, j]
                power[j] = c * c if step == 2 else c
                total[j] = 0.0
            for k in range(terms - TERMS, -1, -TERMS):
                for j in range(cols):
                    t = total[j]
                    for n in range(TERMS - 1, -1, -1):
                        t = t * power[j] + left[i, k + n] * right[k + n, j]
                    total[j] = t
            for j in range(cols):
                out[i, j] = total[j] * (rho[i, j] if start == 1 else 1.0)

    return compiled(loop, error_model="numpy", nogil=True, fastmath={"contract"})
