"""E[(f(x) - f(y))^2] of jointly Gaussian x and y that are nearly equal, from the gap Var(x - y).

Near correlation 1 the covariance does not know the distance of x and y: its last digit is a distance of
1e-8. So everything here starts from q1 = Var(x), q2 = Var(y) and d = Var(x - y), and no formula loses its
digits.

    1 - rho = (d - (sqrt(q1) - sqrt(q2))^2) / (2 sqrt(q1 q2)),   sqrt(q1) - sqrt(q2) = (q1 - q2) / (sqrt(q1)
    + sqrt(q2))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import pi
from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from netsor.expect.quadrature.nodes import Function, call, eps_of
from netsor.lang.pieces import Pieces

__all__ = ["NearLaw", "constant_jump", "erf_gap", "jump_gap", "kink_gap", "near_moments", "slopes"]

Array = Any
REACH = 14  # of the rules, in standard deviations
LEVELS = range(2, 12)  # their steps are 2^-level
NARROW = 1.5  # steps: kernels that are narrower are not resolved by them
INNER, INNER_WEIGHTS = hermegauss(12)  # of a narrow kernel, in which f is smooth
ENTRIES = 2**20  # of arrays over nodes
SETTLED = 1e-12  # of a gap


@dataclass(frozen=True)
class NearLaw:
    """Means and variances of x and y, the gap Var(x - y), and the relative rounding `slack` to be counted.

    With slack, x and y are further apart by as much as rounding of q1 and q2 may have brought them together;
    with a negative one, closer together by as much as it may have moved them apart.
    """

    m1: Array
    m2: Array
    q1: Array
    q2: Array
    gap: Array
    slack: float = 0.0

    @cached_property
    def deviations(self) -> tuple[Array, Array]:
        return np.sqrt(self.q1), np.sqrt(self.q2)

    @cached_property
    def drop(self) -> Array:
        """sqrt(q1) - sqrt(q2)."""
        return (self.q1 - self.q2) / sum(self.deviations)

    @cached_property
    def distance(self) -> Array:
        """1 - rho."""
        one, two = self.deviations
        slip = self.slack * np.maximum(one, two)
        top = self.gap - self.drop**2 + (2 * np.abs(self.drop) + np.abs(slip)) * slip
        return np.clip(top / (2 * one * two), 0.0, 2.0)

    @cached_property
    def angle(self) -> Array:
        """arccos(rho)."""
        return 2 * np.arcsin(np.sqrt(self.distance / 2))


def jump_gap(place: float, law: NearLaw) -> Array:
    """P(x <= k < y) + P(y <= k < x), the gap of a step at k; at k = 0 and means 0 it is the angle over pi.

    With h = (k - m1) / s1 and k likewise for y it is 2 T(h, a) + 2 T(k, b) by Owen's function (Owen 1956),
    where a = ((k - h) + (1 - rho) h) / (h sqrt(1 - rho^2)), and 1 more if h and k have different signs.
    """
    from scipy.special import owens_t

    (one, two), s = law.deviations, law.distance
    h, k = (place - law.m1) / one, (place - law.m2) / two
    apart = (h * law.drop + (law.m1 - law.m2)) / two  # k - h
    apart = np.sign(apart) * np.maximum(np.abs(apart) + law.slack * (np.abs(h) + np.abs(k)), 0.0)
    centred, root = (h == 0) & (k == 0), np.sqrt(s * (2 - s))
    h, k = (np.where(a == 0, np.copysign(1e-200, b), a) for a, b in ((h, k), (k, h)))
    with np.errstate(all="ignore"):
        parts = owens_t(h, (apart + s * h) / (h * root)) + owens_t(k, (s * k - apart) / (k * root))
    general = 2 * parts + np.where(h * k < 0, 1.0, 0.0)
    return np.where(centred, law.angle / pi, np.where((s == 0) & (apart == 0), 0.0, general))


def kink_gap(below: float, above: float, law: NearLaw) -> Array:
    """Of f(x) = below x for x < 0 and above x for x > 0, at means 0: below above d + (above - below)^2 G.

    G = d / 2 - sqrt(q1 q2) (sin a - a cos a) / pi is that of relu (Cho and Saul 2009), with the angle a.
    """
    a, (one, two) = law.angle, law.deviations
    small = a**3 / 3 * (1 - a**2 / 10 * (1 - a**2 / 28 * (1 - a**2 / 54)))
    bend = np.where(a < 0.1, small, np.sin(a) - a * np.cos(a))
    return below * above * law.gap + (above - below) ** 2 * (law.gap / 2 - one * two * bend / pi)


def erf_gap(law: NearLaw) -> Array:
    """Of erf at means 0: 4 / pi (v - u), where cos v = 2 c / sqrt(AB), A = 1 + 2 q1 and B = 1 + 2 q2
    (Williams 1997).

    u is the mean of arccos(2 q1 / A) and arccos(2 q2 / B). With S = q1 + q2, D = q1 - q2 and
    e = (1 + 2 S) (1 - sqrt(1 - 4 D^2 / (1 + 2 S)^2)) it has cos(u)^2 = (4 q1 q2 + e / 2) / (AB), so
    cos(u)^2 - cos(v)^2 = (e / 2 - D^2 + 2 S d - d^2) / (AB), from which v - u follows.
    """
    total, drop, d = law.q1 + law.q2, law.q1 - law.q2, law.gap
    slip = law.slack * total
    product = (1 + 2 * law.q1) * (1 + 2 * law.q2)
    eta = (2 * drop / (1 + 2 * total)) ** 2
    e = (1 + 2 * total) * eta / (1 + np.sqrt(1 - eta))
    mean = np.sqrt((4 * law.q1 * law.q2 + e / 2) / product)
    slipped = (2 * np.abs(drop) + np.abs(slip)) * slip
    difference = (e / 2 - drop**2 + slipped + 2 * total * d - d**2) / product
    cosine = (total - d) / np.sqrt(product)
    sine2 = (1 + 2 * total - e / 2) / product
    u, v = np.arctan2(np.sqrt(sine2), mean), np.arctan2(np.sqrt(sine2 + difference), cosine)
    chord = np.where(cosine > 0, difference / (mean + np.abs(cosine)), mean - cosine)
    return 8 / pi * np.arcsin(np.clip(chord / (2 * np.sin((u + v) / 2)), 0.0, 1.0))


def constant_jump(f: Pieces | None) -> tuple[float, float] | None:
    """Place and size of the jump of a function that is constant but for one."""
    if f is None or len(f.knots) != 1 or any(len(p) > 1 for p in f.pieces):
        return None
    (below,), (above,) = f.pieces
    return f.knots[0], above - below


def slopes(f: Pieces | None) -> tuple[float, float] | None:
    """The slopes below and above 0 of a function that is linear on either side of it."""
    if f is None or f.knots not in ((), (0.0,)) or any(len(p) != 2 or p[0] for p in f.pieces if any(p)):
        return None
    below, above = ((*p, 0.0)[1] for p in (f.pieces[0], f.pieces[-1]))
    return below, above


# Any smooth functions


@dataclass(frozen=True)
class Moments:
    """E[f(x) g(y)] and E[(f(x) - g(y))^2], with bounds of their errors."""

    product: Array
    gap: Array
    product_error: Array
    gap_error: Array


def near_moments(
    f: Function, g: Function, m1: Array, m2: Array, s1: Array, s2: Array, distance: Array
) -> Moments:
    """Of smooth f and g, for deviations s1 and s2 and the correlation 1 - distance.

    By trapezoid rules: x on a grid, and given x a few nodes of y. Where that kernel is wider than the steps
    of the grid, y is on the grid too, and the double sum is a convolution. The step is halved until nothing
    changes; what the last halving has changed counts as error, and so does the rounding of f at x and of g
    at y.
    """
    shape = np.broadcast_shapes(*(np.shape(a) for a in (m1, m2, s1, s2, distance)))
    law = np.stack([np.broadcast_to(a, shape).reshape(-1) for a in (m1, m2, s1, s2, distance)], dtype=float)
    law[4] = np.clip(law[4], 0.0, 2.0)
    law[3], law[4] = np.where(law[4] > 1, -law[3], law[3]), np.minimum(law[4], 2 - law[4])
    found, change = np.zeros((3, law.shape[1])), np.full((3, law.shape[1]), np.inf)
    (noise, edge), moving = np.zeros((2, law.shape[1])), np.arange(law.shape[1])
    errors: tuple[Array, Array] = (change[1], change[2])
    for level in LEVELS:
        for some in np.array_split(moving, 1 + moving.size * 2 * REACH * 2**level // ENTRIES):
            new, noise[some], edge[some] = _at_level(f, g, law[:, some], level)
            change[:, some] = np.abs(new - found[:, some]) if level > LEVELS[0] else np.inf
            found[:, some] = new
        square, _, gap = found
        rounding = noise * np.sqrt(square) + edge, (2 * np.sqrt(np.abs(gap)) + noise) * noise + 2 * edge
        moving = np.nonzero((change[1] > rounding[0]) | (change[2] > SETTLED * gap + rounding[1]))[0]
        errors = change[1] + rounding[0], change[2] + rounding[1]
        if not moving.size:
            break
    return Moments(*(a.reshape(shape) for a in (*found[1:], *errors)))


def _at_level(f: Function, g: Function, law: Array, level: int) -> tuple[Array, Array, Array]:
    """(E[f^2] + E[g^2], E[f g], E[(f - g)^2]) by the rule of one step.

    With the norm of the rounding of f and g, and the part of the first sum that is at the ends of the grid or
    lost by cancellation.
    """
    m1, m2, s1, s2, s = law[..., None]
    step, shift = 2.0**-level, (0.618 * level) % 1.0  # so that rules share no nodes
    t = (np.arange(-REACH * 2**level, REACH * 2**level) + shift) * step
    weights, r = step * np.exp(-(t**2) / 2) / np.sqrt(2 * pi), np.sqrt(s * (2 - s))
    x, y = m1 + s1 * t, m2 + s2 * t
    left, right = call(f, x), call(g, y)
    square = (left**2 + right**2) @ weights
    gap, narrow = np.empty_like(square), r[:, 0] < NARROW * step
    if narrow.any():
        base, part = left[narrow], (m2 + s2 * (1 - s) * t)[narrow]
        inner = (s2 * r)[narrow]
        gap[narrow] = sum(
            weight / np.sqrt(2 * pi) * ((call(g, part + inner * z) - base) ** 2 @ weights)
            for z, weight in zip(INNER, INNER_WEIGHTS, strict=True)
        )
    if not narrow.all():
        gap[~narrow] = square[~narrow] - 2 * _convolved(
            left[~narrow], right[~narrow], s[~narrow], r[~narrow], t, step
        )
    noise = eps_of(t) ** 2 * 16 * (square + _slope(x, left) @ weights[1:] + _slope(y, right) @ weights[1:])
    edge = (left**2 + right**2) @ np.where(np.abs(t) > REACH - 1, weights, 0.0)
    edge = edge + np.where(narrow, 0.0, eps_of(t) * square)  # the difference of two sums cancels
    return np.stack([square, (square - gap) / 2, gap]), np.sqrt(noise), edge


def _slope(x: Array, f: Array) -> Array:
    """(x f'(x))^2 from the differences of neighbouring nodes: how rounding of x is amplified."""
    with np.errstate(all="ignore"):
        return np.nan_to_num((x[:, 1:] * np.diff(f) / np.diff(x)) ** 2)


def _convolved(left: Array, right: Array, s: Array, r: Array, t: Array, step: float) -> Array:
    """The double sum of f(t) g(u) and the density of t and u, whose exponent is -1/2 times

    (t^2 + u^2) / (1 + rho) + rho (t - u)^2 / (1 - rho^2).
    """
    decay = np.exp(-(t**2) / (2 * (2 - s)))
    size = 2 * t.size
    offsets = np.minimum(np.arange(size), size - np.arange(size)) * step
    kernel = np.exp(-(1 - s) * (offsets / r) ** 2 / 2)
    both = np.fft.irfft(np.fft.rfft(right * decay, size) * np.fft.rfft(kernel), size)[:, : t.size]
    return np.sum(left * decay * both, axis=1) * step**2 / (2 * pi * r[:, 0])
