"""Closed forms of waves under a bell: f(x) = Re((a + a' x) exp(i w x)) exp(-b x^2).

Such functions are sin, cos, gabor and their derivatives.

With b = 0, u = w v c for the frequencies w and v, X = a exp(i w m1) and Y the same of y,

    E[f(x) g(y)] = exp(-(w^2 q1 + v^2 q2) / 2) (Re X Re Y cosh u + Im X Im Y sinh u)

if a' = 0. This is a single exponential if X and Y are known to be at 45 degrees, as for rbf. Otherwise
Re A Re B = (Re(A B) + Re(A conj B)) / 2 for the two waves. By Stein's lemma, for (x, y) minus their means,
G = E[exp(i w x + i v y)], s = w q1 + v c and t = v q2 + w c,

    E[x exp(..)] = i s G,      E[y exp(..)] = i t G,      E[x y exp(..)] = (c - s t) G.

A bell changes the law of (x, y) to another Gaussian law with a weight.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from netsor.expect.closed.arrays import Array, are_alike, number_of
from netsor.expect.closed.truncated_moments import bent
from netsor.lang.array_api import array_namespace
from netsor.lang.exp_terms import ExpTerm, ExpTerms

Pair = tuple[Any, Any]  # a real and an imaginary part


@dataclass(frozen=True)
class Wave:
    """Re((height + growth x) exp(i frequency x)) exp(-bend x^2)."""

    height: complex
    growth: complex
    frequency: float
    bend: float


def wave_of(terms: ExpTerms) -> Wave | None:
    """Return the function as one wave, or None; a wave of frequency 0 is a bell, which has its own rules."""
    match terms:
        case (ExpTerm((height, *growth), rate, knot=None, bend=bend),) if (
            rate and not complex(rate).real and bend >= 0 and len(growth) < 2
        ):
            return Wave(complex(height), complex(sum(growth)), complex(rate).imag, bend)
    return None


def mean_of_wave(f: Wave) -> Callable[[Array, Array], Array]:
    """Return the formula (m, q) -> E[f(x)]: the other wave is 1."""
    product = product_of_waves(f, Wave(1.0, 0.0, 0.0, 0.0), zero_mean=False)
    return lambda m, q: product(m, 0.0, q, 0.0 * q, 0.0 * q)


def product_of_waves(f: Wave, g: Wave, zero_mean: bool) -> Callable[..., Array]:
    """Return the formula (m1, m2, q1, q2, c) -> E[f(x) g(y)]; with `zero_mean` it does not read the means."""

    def formula(m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
        weight: Any = 1.0
        if zero_mean:
            m1 = m2 = None
        if f.bend or g.bend:
            weight, m1, m2, q1, q2, c = bent(f.bend, g.bend, m1, m2, q1, q2, c)
        xp, w, v = array_namespace(q1, q2, c), f.frequency, g.frequency
        x, y = _heights(f, number_of(m1)), _heights(g, number_of(m2))
        if not (f.growth or g.growth) and (only := _one_exponential(x[0], y[0])):
            height, side = only
            u = side * w * v * c
            return weight * height * xp.exp(-((w * w * q1 - u) + (v * v * q2 - u)) / 2)
        # cosh(u) may overflow where the product is small, so combine the exponents first.
        size = xp.abs(w * v * c)
        peak = weight * xp.exp(-((w * w * q1 - size) + (v * v * q2 - size)) / 2) / 2
        less = xp.expm1(-2 * size)
        if f.growth or g.growth:
            one, other = (_both(x, y, w, side * v, q1, q2, c, side) for side in (1, -1))
            first = c < 0 if w * v > 0 else c > 0  # which of the two G is the larger one
            return peak * (one + other + xp.where(first, other, one) * less)
        (x, x_turned), (y, y_turned) = x[0], y[0]
        sign = xp.sign(c) if w * v > 0 else -xp.sign(c)
        return peak * (x * y * (2 + less) - x_turned * y_turned * sign * less)

    return formula


def _one_exponential(x: Pair, y: Pair) -> tuple[float, int] | None:
    """Return (h, 1) or (h, -1) if Re X Re Y cosh u + Im X Im Y sinh u is h exp(u) or h exp(-u), else None."""
    if not all(isinstance(part, float) for part in (*x, *y)):
        return None
    even, odd = x[0] * y[0], x[1] * y[1]
    sides = (side for side in (1, -1) if are_alike(side * odd, even))
    return next((((even + side * odd) / 2, side) for side in sides), None)


def _heights(f: Wave, m: Any) -> tuple[Pair, Pair]:
    """Return the height and the growth of f at m, each as real and imaginary part."""
    growth = _turned(f.growth, f.frequency, m)
    height = _turned(f.height, f.frequency, m)
    return (height if m is None else (height[0] + growth[0] * m, height[1] + growth[1] * m)), growth


def _both(
    x: tuple[Pair, Pair], y: tuple[Pair, Pair], w: float, v: float, q1: Array, q2: Array, c: Array, side: int
) -> Array:
    """Return Re E[A B] / G, or Re E[A conj B] / G with side -1."""
    (a, a1), (b, b1) = x, y
    s, t = w * q1 + v * c, v * q2 + w * c
    total = a[0] * b[0] - side * a[1] * b[1] + (a1[0] * b1[0] - side * a1[1] * b1[1]) * (c - s * t)
    return total - (a1[1] * b[0] + side * a1[0] * b[1]) * s - (a[1] * b1[0] + side * a[0] * b1[1]) * t


def _turned(height: complex, frequency: float, m: Any) -> tuple[Any, Any]:
    """Return the real and the imaginary part of height exp(i frequency m)."""
    if m is None or isinstance(m, float):
        turned = height * cmath.exp(1j * frequency * (m or 0.0))
        return turned.real, turned.imag
    xp = array_namespace(m)
    cos, sin = xp.cos(frequency * m), xp.sin(frequency * m)
    return height.real * cos - height.imag * sin, height.real * sin + height.imag * cos
