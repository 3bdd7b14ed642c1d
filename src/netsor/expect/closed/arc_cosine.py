"""Closed forms at zero mean for functions with their only kink at 0, sharp or smoothed.

Each is f(x) = up x^d 1[u > 0] + down (-x)^d 1[u < 0], where u = x + independent Gaussian noise of variance 0,
1/2 for erf, or 1 for gelu; with noise, d is 0 or 1. In E[f(x) g(y)] the four quadrants of (u, v) form pairs,
so only the even and the odd part in c of one quadrant are needed. Without noise, these are the arc-cosine
kernels of Cho & Saul (2009); for erf, the arcsine kernel of Williams (1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from netsor.expect.closed.arrays import Array, are_alike, determinant, ratio, root
from netsor.lang.array_api import array_namespace
from netsor.lang.exp_terms import ExpTerm, ExpTerms, InnerPiece


@dataclass(frozen=True)
class Fold:
    """up x^degree 1[u > 0] + down (-x)^degree 1[u < 0], with u = x + noise of the given variance.

    middle   the value at 0 of a function with a jump there, such as the slope of leaky_relu
    """

    degree: int
    up: float
    down: float
    noise: float = 0.0
    middle: float = 0.0


def fold_of(terms: ExpTerms) -> Fold | None:
    """Return the function as a fold, or None if it is none."""
    degrees, noises = set(), {t.noise for t in terms if isinstance(t, ExpTerm) and t.knot is not None}
    up = down = middle = 0.0
    for t in terms:
        if isinstance(t, InnerPiece) or t.rate or t.bend or t.knot not in (None, 0.0):
            return None
        *lower, top = t.coefs
        if any(lower) or isinstance(top, complex):
            return None
        degree = len(lower)
        degrees.add(degree)
        up += top if t.knot is None or t.side == 1 else 0.0
        down += top * (-1) ** degree if t.knot is None or t.side == -1 else 0.0
        middle += top * (1.0 if t.knot is None else t.tie)
    if len(degrees) != 1 or len(noises) > 1:
        return None
    degree, noise = degrees.pop(), max(noises, default=0.0)
    if degree > 1 and noise:
        return None
    return Fold(degree, up, down, noise, middle if degree == 0 and noise == 0 else 0.0)


def folded(f: Fold, g: Fold) -> Callable[..., Array] | None:
    """Return the formula (m1, m2, q1, q2, c) -> E[f(x) g(y)] at means 0; it ignores its first two arguments.

    Return None if one function has noise and the other is a power above 1, and for a jump with a value of its
    own together with a function that has no jump.
    """
    if max(f.degree, g.degree) > 1 and (f.noise or g.noise):
        return None
    if f.degree == g.degree == 0:
        return partial(_no_power, f, g)
    if f.middle or g.middle:
        return None
    if f.degree < g.degree:
        turned = folded(g, f)
        assert turned is not None
        return lambda m1, m2, q1, q2, c: turned(m2, m1, q2, q1, c)
    even = (f.up + f.down) * (g.up + g.down)
    odd = (f.up - f.down) * (g.up - g.down)
    if f.degree > 1:
        return partial(_powers, even, odd, f.degree, g.degree)
    return partial(_two_powers if g.degree else _one_power, even, odd, f.noise, g.noise)


def parallel_jumps(f: Fold, g: Fold) -> Callable[..., Array] | None:
    """Return the formula at correlation 1 or -1, the sign of c, for two jumps; None for other functions."""
    if f.degree or g.degree or f.noise or g.noise:
        return None
    up, down = f.up * g.up + f.down * g.down, f.up * g.down + f.down * g.up
    return lambda m1, m2, q1, q2, c: array_namespace(c).where(c < 0, down / 2, up / 2)


def slope_of(terms: ExpTerms) -> Fold | None:
    """Return the smooth fold whose derivative the function is (erf for a Gaussian, gelu for gelu'), or None.

    With the density p of the noise, the derivative is (up - down) p(x) at degree 0, and at degree 1
    up 1[u > 0] - down 1[u < 0] + (up + down) x p(x).
    """
    bells = [t for t in terms if isinstance(t, ExpTerm) and t.bend > 0 and t.knot is None and not t.rate]
    if len(bells) != 1 or bells[0].is_complex:
        return None
    (bell,) = bells
    noise = 1 / (2 * bell.bend)
    peak, *higher = (float(c.real) * math.sqrt(2 * math.pi * noise) for c in bell.coefs)
    without_bell = tuple(t for t in terms if t is not bell)
    if not without_bell and not any(higher):
        return Fold(0, peak, 0.0, noise)
    inner = fold_of(without_bell) if without_bell else None
    if inner is None or inner.degree or peak or not higher or any(higher[1:]):
        return None
    if are_alike(inner.noise, noise) and are_alike(inner.up - inner.down, higher[0]):
        return Fold(1, inner.up, -inner.down, noise)
    return None


def folded_slopes(f: Fold, g: Fold) -> Callable[..., Array]:
    """Return the formula of E[f'(x) g'(y)] at means 0 for smooth folds: d/dc E[f g] (Price 1958)."""
    if f.degree < g.degree:
        turned = folded_slopes(g, f)
        return lambda m1, m2, q1, q2, c: turned(m2, m1, q2, q1, c)
    even = (f.up + f.down) * (g.up + g.down)
    odd = (f.up - f.down) * (g.up - g.down)
    t1, t2 = f.noise, g.noise

    def formula(_m1: Array, _m2: Array, q1: Array, q2: Array, c: Array) -> Array:
        if f.degree > g.degree:
            return odd / math.sqrt(8 * math.pi) / root(q2 + t2) + 0.0 * c
        d = determinant(q1, q2, c)
        side = root(_noisy(d, q1, q2, t1, t2))
        if f.degree == 0:
            return odd / (2 * math.pi) / side
        v1, v2 = q1 + t1, q2 + t2
        edge = (q1 * (d + t1 * q2) / v1 + t2 * c * c / v2) / (side * side)
        bend = (1.0 - 2.0 * q1 / v1 + 2.0 * t2 / v2 + edge) * c / side
        return odd / 4 + even / (2 * math.pi) * (_angle(c, side) + bend)

    return formula


def _no_power(f: Fold, g: Fold, *law: Array) -> Array:
    """P(u > 0, v > 0) = 1/4 + arcsin(corr(u, v)) / (2 pi) (Sheppard 1899): E[f] E[g] and the odd part."""
    _, _, q1, q2, c = law
    odd = (f.up - f.down) * (g.up - g.down)
    angle = _angle(c, root(_noisy(determinant(q1, q2, c), q1, q2, f.noise, g.noise)))
    return _level(f, q1) * _level(g, q2) + odd / (2 * math.pi) * angle


def _level(f: Fold, q: Array) -> Array:
    """E[f(x)] of a jump."""
    there = _known(q, f.noise)
    mean = there * ((f.up + f.down) / 2)
    return mean + (1.0 - there) * f.middle if f.middle else mean


def _one_power(even: float, odd: float, t1: float, t2: float, *law: Array) -> Array:
    """E[x 1[u > 0] 1[v > 0]] = (q1 / sd(u) + c / sd(v)) / sqrt(8 pi), by Stein's lemma."""
    _, _, q1, q2, c = law
    still = ratio(q1, root(q1 + t1)) * _known(q2, t2)
    return (even * still + odd * ratio(c, root(q2 + t2))) / math.sqrt(8 * math.pi)


def _two_powers(even: float, odd: float, t1: float, t2: float, *law: Array) -> Array:
    """E[x y 1[u > 0] 1[v > 0]] = c P(u > 0, v > 0) + edges / (2 pi sqrt(det)), by Stein's lemma twice.

    det is the determinant of the covariances of (u, v), and with the determinant d of those of (x, y)
    edges = q1 (d + t1 q2) / Var(u) + t2 c^2 / Var(v).
    """
    _, _, q1, q2, c = law
    # One function is a multiple of x, so the expectation is a multiple of c.
    if even == 0:
        return odd / 4 * c
    d = determinant(q1, q2, c)
    det = _noisy(d, q1, q2, t1, t2)
    edge = side = root(det)
    if t1 or t2:
        edge = ratio(q1 * ratio(d + t1 * q2, q1 + t1) + t2 * ratio(c * c, q2 + t2), edge)
    return odd / 4 * c + even / (2 * math.pi) * (c * _angle(c, side) + edge)


def _powers(even: float, odd: float, a: int, b: int, *law: Array) -> Array:
    """M(a, b) = E[x^a y^b 1[x > 0] 1[y > 0]], without noise, by Stein's lemma: with the larger power n of x

    M(n, m) = (n - 1) q1 M(n - 2, m) + m c M(n - 1, m - 1) + [n = 1] q1 E[y^m 1[y > 0] delta(x)]
              + [m = 0] c E[x^(n-1) 1[x > 0] delta(y)].

    Each moment is stored as its even and its odd part in c.
    """
    _, _, q1, q2, c = law
    q, side = (q1, q2), root(determinant(q1, q2, c))
    roots = root(q1), root(q2)
    steep = tuple(ratio(1.0 + 0.0 * r, r) for r in roots)
    there = _known(q1, 0.0) * _known(q2, 0.0)
    moments: dict[tuple[int, int], tuple[Array, Array]] = {
        (0, 0): (there / 4, _angle(c, side) / (2 * math.pi)),
    }

    def moment(powers: tuple[int, int]) -> tuple[Array, Array]:
        if powers in moments:
            return moments[powers]
        i = 0 if powers[0] >= powers[1] else 1
        n, m = powers[i], powers[1 - i]
        parts: list[Any] = [0.0, 0.0]
        if n > 1:
            lower = moment((n - 2, m) if i == 0 else (m, n - 2))
            parts = [(n - 1) * q[i] * part for part in lower]
        else:
            parts[0] = there * roots[i] * math.prod([side * steep[i]] * m, start=_half(m))
        if m > 0:
            lower = moment((n - 1, m - 1) if i == 0 else (m - 1, n - 1))
            parts = [parts[0] + m * c * lower[1], parts[1] + m * c * lower[0]]
        else:
            edge = math.prod([side * steep[1 - i]] * (n - 1), start=_half(n - 1) * steep[1 - i])
            parts[1] = parts[1] + c * edge
        moments[powers] = parts[0], parts[1]
        return moments[powers]

    even_part, odd_part = moment((a, b))
    if even and odd:
        return even * even_part + odd * odd_part
    return even * even_part if even else odd * odd_part


def _half(n: int) -> float:
    """E[z^n 1[z > 0]] / sqrt(2 pi) for a standard Gaussian z."""
    return 2 ** (n / 2) * math.gamma((n + 1) / 2) / (math.sqrt(8) * math.pi)


def _noisy(det: Array, q1: Array, q2: Array, t1: float, t2: float) -> Array:
    """The determinant of the covariances of (u, v) from that of (x, y)."""
    return det + t1 * q2 + t2 * q1 + t1 * t2 if t1 or t2 else det


def _angle(c: Array, side: Array) -> Array:
    """arcsin(corr(u, v)) from the root of the determinant, accurate also near correlation 1 and -1."""
    xp = array_namespace(c, side)
    return xp.atan2(c, xp.where((side == 0) & (c == 0), 1.0, side))


def _known(q: Array, noise: float) -> Array:
    """Return 0 where u is the constant 0, so that 1[u > 0] and 1[u < 0] both vanish, else 1."""
    return array_namespace(q).astype(q + noise > 0, q.dtype)
