"""E[f(x) g(y)] of two polynomials: Mehler's series, which is finite.

E[f g] = sum_k k! a_k b_k c^k with a_k = E[f^(k)(x)] / k!, a polynomial in the mean and variance of x alone
(Mehler 1866). Bells, which are polynomials times exp(-b x^2), are polynomials under another law.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import comb, factorial
from typing import Any

import numpy as np

from netsor.expect.closed.arrays import Array
from netsor.expect.closed.truncated_moments import bent
from netsor.lang.exp_terms import ExpTerm, ExpTerms

Coefs = tuple[float, ...]


def polynomial_of(terms: ExpTerms) -> Coefs | None:
    """Return the ascending coefficients of a polynomial, or None if the terms are no polynomial."""
    bell = bell_of(terms)
    return bell[0] if bell and not bell[1] else None


def bell_of(terms: ExpTerms) -> tuple[Coefs, float] | None:
    """Return the coefficients of p and b >= 0 for p(x) exp(-b x^2), or None if the terms are no bell."""
    match terms:
        case (ExpTerm(coefs, knot=None) as term,) if not (term.is_complex or term.rate or term.bend < 0):
            return tuple(float(c.real) for c in coefs), term.bend
    return None


def polynomials(f: Coefs, g: Coefs, zero_mean: bool) -> Callable[..., Array]:
    """Return the formula (m1, m2, q1, q2, c) -> E[f(x) g(y)]; with `zero_mean` it does not read the means."""

    def formula(m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
        sides = zip((f, g), (0.0, 0.0) if zero_mean else (m1, m2), (q1, q2), strict=True)
        a, b = (_derivatives(*side) for side in sides)
        total: Any = 0.0
        for k in reversed(range(min(len(a), len(b)))):
            total = _plus(_times(total, c), _times(_times(a[k], b[k]), float(factorial(k))))
        # Formulas without c or without a variance still have the shape of the whole block.
        whole = np.broadcast_shapes(q1.shape, q2.shape, c.shape)
        return total if getattr(total, "shape", None) == whole else total + 0.0 * (q1 + q2 + c)

    return formula


def bells(f: tuple[Coefs, float], g: tuple[Coefs, float], zero_mean: bool) -> Callable[..., Array]:
    """Return the formula for polynomials under bells, at least one of which has b > 0."""
    inner = polynomials(f[0], g[0], zero_mean)

    def formula(m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
        means = (None, None) if zero_mean else (m1, m2)
        weight, *law = bent(f[1], g[1], *means, q1, q2, c)
        return weight * inner(*law)

    return formula


def _times(x: Any, y: Any) -> Any:
    """Return x y; products with the numbers 0 and 1 take no operation, so recorded formulas are short."""
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
    derivatives = []
    for k in range(len(f)):
        terms = (_times(moments[i - k], comb(i, k) * f[i]) for i in range(k, len(f)))
        derivatives.append(reduce(_plus, terms, 0.0))
    return derivatives
