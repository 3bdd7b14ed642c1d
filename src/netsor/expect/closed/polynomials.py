"""E[f(x) g(y)] of two polynomials: Mehler's series, which ends.

E[f g] = sum_k k! a_k b_k c^k with a_k = E[f^(k)(x)] / k!, a polynomial in mean and variance of x alone
(Mehler 1866). So a pair of inputs costs two operations for each degree. Bells, polynomials times exp(-b x^2),
are polynomials under another law.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import comb, factorial
from typing import Any

import numpy as np

from netsor.expect.closed.arrays import Array
from netsor.expect.closed.laws import bent
from netsor.lang.terms import Term, Terms

__all__ = ["bell_of", "bells", "polynomial_of", "polynomials"]

Coefs = tuple[float, ...]


def polynomial_of(terms: Terms) -> Coefs | None:
    """The ascending coefficients of a polynomial, or None if it is none."""
    bell = bell_of(terms)
    return bell[0] if bell and not bell[1] else None


def bell_of(terms: Terms) -> tuple[Coefs, float] | None:
    """The coefficients p and b >= 0 of p(x) exp(-b x^2), or None if it is none."""
    match terms:
        case (Term(coefs, knot=None) as term,) if not (term.is_complex or term.rate or term.bend < 0):
            return tuple(float(c.real) for c in coefs), term.bend
    return None


def polynomials(f: Coefs, g: Coefs, zero_mean: bool) -> Callable[..., Array]:
    """The formula (m1, m2, q1, q2, c) -> E[f(x) g(y)]; with `zero_mean` the means are not read."""

    def formula(m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
        sides = zip((f, g), (0.0, 0.0) if zero_mean else (m1, m2), (q1, q2), strict=True)
        a, b = (_derivatives(*side) for side in sides)
        total: Any = 0.0
        for k in reversed(range(min(len(a), len(b)))):
            total = _plus(_times(total, c), _times(_times(a[k], b[k]), float(factorial(k))))
        whole = np.broadcast_shapes(q1.shape, q2.shape, c.shape)
        return total if getattr(total, "shape", None) == whole else total + 0.0 * (q1 + q2 + c)

    return formula


def bells(f: tuple[Coefs, float], g: tuple[Coefs, float], zero_mean: bool) -> Callable[..., Array]:
    """The same for polynomials under bells, of which one at least is bent."""
    inner = polynomials(f[0], g[0], zero_mean)

    def formula(m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
        means = (None, None) if zero_mean else (m1, m2)
        weight, *law = bent(f[1], g[1], *means, q1, q2, c)
        return weight * inner(*law)

    return formula


def _times(x: Any, y: Any) -> Any:
    """x y; numbers that are 0 or 1 take no operation."""
    for a, b in ((x, y), (y, x)):
        if isinstance(a, float) and a in (0.0, 1.0):
            return b if a else 0.0
    return x * y


def _plus(x: Any, y: Any) -> Any:
    return y if isinstance(x, float) and x == 0 else x if isinstance(y, float) and y == 0 else x + y


def _derivatives(f: Coefs, m: Any, q: Array) -> list[Any]:
    """E[f^(k)(x)] / k! = sum_i C(i, k) f_i E[x^(i - k)] for every k."""
    moments: list[Any] = [1.0, m]
    for n in range(2, len(f)):
        moments.append(_plus(_times(m, moments[-1]), _times(_times(q, moments[-2]), n - 1.0)))
    found = []
    for k in range(len(f)):
        terms = (_times(moments[i - k], comb(i, k) * f[i]) for i in range(k, len(f)))
        found.append(reduce(_plus, terms, 0.0))
    return found
