"""Gauss-Legendre quadrature with fixed nodes, elementwise on arrays."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cache

import numpy as np
from array_api_compat import is_jax_array

from netsor.expect.closed.arrays import Array
from netsor.lang.array_api import array_namespace


def integrate(f: Callable[[Array], Array], n: int, like: Array) -> Array:
    """int_0^1 f(x) dx with n nodes; `like` has the type and the number of axes of the values of f.

    Add node by node, so that no array is larger than a value of f. For JAX, whose compiler ensures that, the
    nodes are along a new first axis.
    """
    if not is_jax_array(like):
        return sum(weight * f(x) for x, weight in _legendre_rule(n))
    xp = array_namespace(like)
    nodes, weights = xp.reshape(xp.asarray(_legendre_rule(n), dtype=like.dtype).T, (2, n, *(1,) * like.ndim))
    return xp.sum(weights * f(nodes), axis=0)


@cache
def _legendre_rule(n: int) -> list[tuple[float, float]]:
    """Return Gauss-Legendre nodes and weights on [0, 1], exact to the last digit (NumPy's lose two)."""
    return [_refined(n, Decimal(float(x))) for x in np.polynomial.legendre.leggauss(n)[0]]


def _refined(n: int, x: Decimal) -> tuple[float, float]:
    """Return the root x of the Legendre polynomial after one step of Newton's method, and its weight."""
    value, slope = _polynomial(n, x)
    x -= value / slope
    slope = _polynomial(n, x)[1]
    return float((1 + x) / 2), float(1 / ((1 - x * x) * slope * slope))


def _polynomial(n: int, x: Decimal) -> tuple[Decimal, Decimal]:
    """P_n(x) and its derivative n (x P_n - P_(n-1)) / (x^2 - 1)."""
    before, now = Decimal(1), x
    for k in range(1, n):
        before, now = now, ((2 * k + 1) * x * now - k * before) / (k + 1)
    return now, n * (x * now - before) / (x * x - 1)
