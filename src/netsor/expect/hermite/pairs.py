"""E[f(x) g(y)] for jointly Gaussian x, y from the Hermite series of f and g, with a bound of its error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from array_api_compat import is_jax_array

from netsor.expect.hermite.compiled import horner
from netsor.expect.hermite.jumps import at_index, singular_pair
from netsor.expect.hermite.series import Series, cut, rest_of_pair, rests_of, tails
from netsor.expect.quadrature.nodes import eps_of
from netsor.lang.libraries import array_namespace, is_traced

__all__ = ["pair_sum"]

Array = Any
PAIR_BLOCK = 2**15


def pair_sum(a: Series, b: Series, rho: Array, errors: bool = True) -> tuple[Array, Array]:
    """E[f(x) g(y)] for the series a of f and b of g and the correlation rho, and a bound of its error.

    The leading axes of a, b and rho broadcast. The sum_k a_k b_k rho^k is by Horner's rule. The error has
    |rho|^K tail_a tail_b for the rest of the sum and error_a |b| + |a| error_b for the coefficients (both
    Cauchy-Schwarz). At rho = 1 a series with itself gives E[f^2], which has no such rest. Without `errors`
    the bound is 0.
    """
    xp = array_namespace(a.coefs, b.coefs, rho)
    rho = xp.clip(rho, -1.0, 1.0)
    fixed = is_traced(a.coefs, b.coefs, rho) or 0 in (*a.tail.shape, *b.tail.shape, *rho.shape)
    blocks = [_whole(a, b, rho)] if fixed else _blocks(a, b, rho, errors)
    parts = [_pair_block(*block, errors) for block in blocks]
    values, bounds = zip(*parts, strict=True)
    return _join(values), _join(bounds) if errors else 0.0


def _join(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else array_namespace(*parts).concat(list(parts), axis=0)


def _blocks(
    a: Series, b: Series, rho: Array, tails: bool
) -> Iterator[tuple[Series, Series, Array, Array | None]]:
    """Cut the first axis so that a block of pairs stays in the cache; each block takes the terms it needs.

    The last part says which pairs are `_identical`, or None if no correlation is 1.
    """
    xp = array_namespace(rho)
    shape = np.broadcast_shapes(a.tail.shape, b.tail.shape, rho.shape)
    rows = shape[0] if shape else 1
    step, lengths = max(1, PAIR_BLOCK * rows // max(1, prod(shape))), _lengths(a, b)
    for at in range(0, rows, step):
        left, right, r = (_rows(x, shape, at, step) for x in (a, b, rho))
        top, same = float(xp.max(xp.abs(r))), None
        if top == 1:
            same = _identical(left, right, r)
            top = float(xp.max(xp.where(same, 0.0, xp.abs(r))))
        terms = _enough(lengths, top, eps_of(rho))
        yield cut(left, terms, tails), cut(right, terms, tails), r, same


def _whole(a: Series, b: Series, rho: Array) -> tuple[Series, Series, Array, Array]:
    most = min(a.coefs.shape[-1], b.coefs.shape[-1])
    return cut(a, most), cut(b, most), rho, _identical(a, b, rho)


def _rows(x: Any, shape: tuple[int, ...], at: int, step: int) -> Any:
    """Rows at ... at + step - 1 of what broadcasts to `shape` on its leading axes."""
    own = x.tail.shape if isinstance(x, Series) else x.shape
    whole = len(own) < len(shape) or not shape or own[0] == 1
    return x if whole else at_index(x, (slice(at, min(at + step, own[0])),))


def _lengths(a: Series, b: Series) -> list[tuple[int, float]]:
    """Numbers of terms, and the relative size of the rest of the sum at |rho| = 1."""
    most = min(a.coefs.shape[-1], b.coefs.shape[-1])
    left, right = (dict(x.rests or rests_of(x)) for x in (cut(a, most), cut(b, most)))
    return [(k, rest_of_pair(left[k], right[k])) for k in sorted(left.keys() & right.keys())]


def _enough(lengths: list[tuple[int, float]], top: float, eps: float) -> int:
    """The fewest terms whose rest is of the order of rounding for |rho| <= top, else all."""
    return next((k for k, rest in lengths if rest * top**k <= 16 * eps), lengths[-1][0])


def _identical(a: Series, b: Series, rho: Array) -> Array:
    """Where rho = 1 and both series are the same to the last bit: f(x) g(y) is then f(x)^2."""
    return (rho == 1) & (a.mark == b.mark) & (a.square == b.square)


def _pair_block(a: Series, b: Series, rho: Array, same: Array | None, errors: bool) -> tuple[Array, Array]:
    xp = array_namespace(rho)
    value = _horner(a, b, rho)
    jumps = None if a.jumps is None or b.jumps is None else (a.jumps, b.jumps)
    if jumps:
        value = value + singular_pair(*jumps, rho)
    if same is not None:
        value = xp.where(same, a.square, value)
    if not errors:
        return value, 0.0
    error = xp.abs(rho) ** a.coefs.shape[-1] * rest_of_pair(tails(a), tails(b))
    if jumps:
        error = error + 16 * eps_of(rho) * jumps[0].scale * jumps[1].scale
    if same is not None:
        error = xp.where(same, 0.0, error)
    return value, error + a.error * xp.sqrt(b.square) + xp.sqrt(a.square) * b.error


def _horner(a: Series, b: Series, rho: Array) -> Array:
    """sum_k a_k b_k rho^k; the singular parts, if both series have them, are left out."""
    jumps = None if a.jumps is None or b.jumps is None else (a.jumps, b.jumps)
    compiled = horner(a.coefs, b.coefs, rho) if isinstance(rho, np.ndarray) and not jumps else None
    if compiled is not None:
        return compiled
    factors = [(_terms_first(a.coefs), _terms_first(b.coefs), 1)]
    if jumps:
        factors.append((*(_terms_first(x.coefs) for x in jumps), -1))
    elif is_jax_array(rho):
        return _scanned(*factors[0][:2], rho)
    value = 0 * rho
    for k in reversed(range(a.coefs.shape[-1])):
        value = value * rho
        for x, y, sign in factors:
            value = value + sign * x[k, ...] * y[k, ...]
    return value


def _scanned(a: Array, b: Array, rho: Array) -> Array:
    """Horner's rule as one step of jax.lax.scan, which compiles fast."""
    from jax.lax import scan  # type: ignore[import-not-found]

    first = 0 * (rho + a[0, ...] + b[0, ...])
    return scan(lambda value, ab: (value * rho + ab[0] * ab[1], None), first, (a, b), reverse=True)[0]


def _terms_first(coefs: Array) -> Array:
    """A copy with the last axis first, so that each term is contiguous in memory."""
    xp = array_namespace(coefs)
    moved = xp.moveaxis(coefs, -1, 0)
    return xp.reshape(xp.reshape(moved, (-1,)), moved.shape)
