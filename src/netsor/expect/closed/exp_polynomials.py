"""E[f(x) g(y)] and E[f(x)] for sums of terms p(x) exp(rate x - bend x^2) 1[u > knot], at any means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from netsor.expect.closed.arrays import Array, determinant, nowhere, ratio, root
from netsor.expect.closed.bivariate_normal import LARGEST
from netsor.expect.closed.gauss_legendre import integrate
from netsor.expect.closed.truncated_moments import HalfPlane, Quadrant, TruncatedGaussian, bent_law
from netsor.lang.array_api import array_namespace
from netsor.lang.exp_terms import ExpTerm, ExpTerms, InnerPiece

ONE = ExpTerm((1.0,))


def product(f: ExpTerms, g: ExpTerms, m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
    """Return E[f(x) g(y)], term by term; at most one of f and g may be complex."""
    return _real(Gaussian(m1, m2, q1, q2, c, determinant(q1, q2, c)).total(f, g))


def mean(f: ExpTerms, m: Array, q: Array) -> Array:
    """E[f(x)]."""
    return _real(_alone(m, q).total(f, (ONE,)))


def _alone(m: Array, q: Array) -> Gaussian:
    """The law of x and of y = 0."""
    return Gaussian(m, 0.0 * m, q, 0.0 * q, 0.0 * q, 0.0 * q)


def _either(law: Gaussian, piece: InnerPiece, term: ExpTerm | InnerPiece, value: Array) -> Array:
    """Return E[piece(x) term(y)]: an integral over the piece where that is short, else the given value."""
    xp = array_namespace(law.m1, law.q1)
    # Where the standard deviation of x is more than ten times the length of the piece, the given difference
    # of half lines would lose digits.
    wide = law.q1 > (10 * (piece.high - piece.low)) ** 2
    if nowhere(wide):
        return value
    terms = term.halves() if isinstance(term, InnerPiece) else [term]
    return xp.where(wide, sum(_along(law, piece, t, wide) for t in terms), value)


def _along(law: Gaussian, piece: InnerPiece, term: ExpTerm, wide: Array) -> Array:
    """int_low^high p(x) density(x) E[term(y) | x] dx, by Gauss-Legendre on panels."""
    xp = array_namespace(law.m1, law.q1, law.c)
    q = xp.where(wide, law.q1, 1.0)
    slope, residual = law.c / q, law.det / q
    ends = _panels(law, piece, term, slope, residual)
    start, length = ends[:-1, ...], ends[1:, ...] - ends[:-1, ...]

    def integrand(node: Array) -> Array:
        x = start + length * node
        given = _alone(law.m2 + slope * (x - law.m1), residual + 0.0 * x).expect(term, ONE)
        return length * xp.exp(-((x - law.m1) ** 2) / (2 * q)) * _horner(piece.coefs, x) * given

    return xp.sum(integrate(integrand, 12, start), axis=0) / xp.sqrt(2 * math.pi * q)


def _panels(law: Gaussian, piece: InnerPiece, term: ExpTerm, slope: Array, residual: Array) -> Array:
    """Ends of panels on which E[term(y) | x] is smooth: it varies where the mean of y passes the knot."""
    xp = array_namespace(law.m1, slope, residual)
    zero = 0.0 * (law.m1 + law.m2 + slope + residual)
    low, high = zero + piece.low, zero + piece.high
    if term.knot is None:
        return xp.stack([low, high])
    flat = slope == 0
    slope = xp.where(flat, 1.0, slope)
    centre = xp.where(flat, piece.low, law.m1 + (term.knot - law.m2) / slope)
    offsets = [reach * root(residual + term.noise) / slope for reach in (-9.0, -4.0, 0.0, 4.0, 9.0)]
    if term.rate:
        offsets += [reach / slope for reach in (-36.0, -9.0, -3.0, 3.0, 9.0, 36.0)]
    inside = [xp.clip(centre + offset, piece.low, piece.high) + zero for offset in offsets]
    return xp.sort(xp.stack([low, *inside, high]), axis=0)


def _real(x: Array) -> Array:
    xp = array_namespace(x)
    return xp.real(x) if xp.isdtype(x.dtype, "complex floating") else x


@dataclass(frozen=True)
class Gaussian:
    """Means, variances and covariance of (x, y), and the determinant q1 q2 - c^2."""

    m1: Array
    m2: Array
    q1: Array
    q2: Array
    c: Array
    det: Array
    _regions: dict[tuple[ExpTerm, ExpTerm], tuple[Gaussian, TruncatedGaussian]] = field(
        default_factory=dict, repr=False
    )

    def turned(self) -> Gaussian:
        """The law of (y, x)."""
        return Gaussian(self.m2, self.m1, self.q2, self.q1, self.c, self.det)

    def total(self, f: ExpTerms, g: ExpTerms) -> Array:
        """E[f(x) g(y)], term by term."""
        return sum((self.expect(s, t) for s in f for t in g), 0.0 * (self.m1 + self.m2 + self.c))

    def expect(self, s: ExpTerm | InnerPiece, t: ExpTerm | InnerPiece) -> Array:
        """Return E[s(x) t(y)], a sum of moments on the region where the indicators of s and t are 1."""
        if isinstance(s, InnerPiece):
            return _either(self, s, t, sum(self.expect(half, t) for half in s.halves()))
        if isinstance(t, InnerPiece):
            return _either(self.turned(), t, s, sum(self.expect(s, half) for half in t.halves()))
        key = replace(s, coefs=()), replace(t, coefs=())
        if key not in self._regions:
            self._regions[key] = self.region(s, t)
        law, region = self._regions[key]
        a, b = _recentred(s.upward().coefs, law.m1), _recentred(t.upward().coefs, law.m2)
        return sum(x * y * region.moment(i, j) for i, x in enumerate(a) for j, y in enumerate(b))

    def region(self, s: ExpTerm, t: ExpTerm) -> tuple[Gaussian, TruncatedGaussian]:
        """Return the law shifted by the exponentials of s and t, and centred where their indicators are 1.

        Reflect it first, so that both indicators point upwards.
        """
        law = Gaussian(
            s.side * self.m1, t.side * self.m2, self.q1, self.q2, s.side * t.side * self.c, self.det
        )
        s, t = s.upward(), t.upward()
        law, log_weight = law.tilted(s, t)
        mean, cov = (0.0 * law.m1, 0.0 * law.m2), (law.q1, law.c, law.q2)
        h, k = _threshold(s, law.m1, law.q1), _threshold(t, law.m2, law.q2)
        if h is None and k is None:
            return law, TruncatedGaussian(log_weight, mean, cov)
        if h is not None and k is not None:
            noises = s.noise, t.noise
            return law, Quadrant(log_weight, mean, cov, thresholds=(h, k), noises=noises, det=law.det)
        term, threshold, (a, b) = (s, h, cov[:2]) if k is None else (t, k, cov[1:])
        sd = root((law.q1 if k is None else law.q2) + term.noise)
        gains = ratio(a, sd), ratio(b, sd)
        return law, HalfPlane(log_weight, mean, cov, threshold=threshold, gains=gains)

    def tilted(self, s: ExpTerm, t: ExpTerm) -> tuple[Gaussian, Array]:
        """Return the law times the exponentials of s(x) and t(y), and the log of its weight."""
        m1, m2, q1, q2, c, det, bent = self.m1, self.m2, self.q1, self.q2, self.c, self.det, None
        if s.bend or t.bend:
            spread, exponent, m1, m2, q1, q2, c = bent_law(s.bend, t.bend, m1, m2, q1, q2, c, det)
            det, bent = det / spread, -array_namespace(spread).log(spread) / 2 - exponent
        a, b = s.rate, t.rate
        log_weight = a * (m1 + a * q1 / 2) + b * (m2 + b * q2 / 2) + a * b * c
        law = Gaussian(m1 + a * q1 + b * c, m2 + a * c + b * q2, q1, q2, c, det)
        return law, log_weight if bent is None else bent + log_weight


def _threshold(term: ExpTerm, m: Array, q: Array) -> Array | None:
    """Return (knot - m) / sd(u); if u is a constant, a far threshold on the side that the indicator says."""
    if term.knot is None:
        return None
    xp = array_namespace(m, q)
    sd, gap = root(q + term.noise), term.knot - m
    level = xp.real(gap) if xp.isdtype(gap.dtype, "complex floating") else gap
    outside = xp.where(level == 0, 1.0 - 2.0 * term.tie, xp.sign(level)) * LARGEST
    far = xp.abs(level) > LARGEST * sd
    return xp.where(far | (sd == 0), outside, gap / xp.where(sd == 0, 1.0, sd))


def _recentred(coefs: Sequence[complex], m: Array) -> list[Array]:
    """Return the coefficients of z -> p(m + z), which are p^(n)(m) / n!."""
    return [_horner([math.comb(k, n) * coefs[k] for k in range(n, len(coefs))], m) for n in range(len(coefs))]


def _horner(coefs: Sequence[complex], x: Array) -> Any:
    total = coefs[-1]
    for c in coefs[-2::-1]:
        total = total * x + c
    return total
