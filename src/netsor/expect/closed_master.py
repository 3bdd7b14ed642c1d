"""E[f(x) g(y)] and E[f(x)] for sums of terms p(x) exp(rate x) 1[u > knot], at any means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from netsor.expect.bivariate import LARGEST
from netsor.expect.closed_arrays import Array, determinant, ratio, root
from netsor.expect.closed_laws import HalfPlane, Law, Plane, Quadrant
from netsor.expect.closed_terms import Term

__all__ = ["mean", "product"]


def product(
    f: Sequence[Term], g: Sequence[Term], m1: Array, m2: Array, q1: Array, q2: Array, c: Array
) -> Array:
    """E[f(x) g(y)], term by term; at most one of f and g may be complex."""
    laws = Gaussian(m1, m2, q1, q2, c, determinant(q1, q2, c))
    return _real(sum(laws.expect(s, t) for s in f for t in g))


def mean(f: Sequence[Term], m: Array, q: Array) -> Array:
    """E[f(x)]."""
    return product(f, [Term((1.0,))], m, 0.0 * m, q, 0.0 * q, 0.0 * q)


def _real(x: Array) -> Array:
    xp = array_namespace(x)
    return xp.real(x) if xp.isdtype(x.dtype, "complex floating") else x


@dataclass(frozen=True)
class Gaussian:
    """Means, variances, covariance of (x, y) and q1 q2 - c^2."""

    m1: Array
    m2: Array
    q1: Array
    q2: Array
    c: Array
    det: Array

    def expect(self, s: Term, t: Term) -> Array:
        """E[s(x) t(y)]: reflect so that all indicators are upward, shift the means by the exponentials."""
        law = Gaussian(
            s.side * self.m1, t.side * self.m2, self.q1, self.q2, s.side * t.side * self.c, self.det
        )
        s, t = s.upward(), t.upward()
        shifted, log_weight = law.tilted(s.rate, t.rate)
        region = shifted.region(s, t, log_weight)
        a, b = _recentred(s.coefs, shifted.m1), _recentred(t.coefs, shifted.m2)
        return sum(x * y * region.moment(i, j) for i, x in enumerate(a) for j, y in enumerate(b))

    def tilted(self, a: complex, b: complex) -> tuple[Gaussian, Array]:
        """The law with density times exp(a x + b y), and the log of its weight."""
        m1, m2, q1, q2, c = self.m1, self.m2, self.q1, self.q2, self.c
        if not (isinstance(a, complex) or isinstance(b, complex)):
            a, b = float(a), float(b)
        log_weight = a * (m1 + a * q1 / 2) + b * (m2 + b * q2 / 2) + a * b * c
        return Gaussian(m1 + a * q1 + b * c, m2 + a * c + b * q2, q1, q2, c, self.det), log_weight

    def region(self, s: Term, t: Term, log_weight: Array) -> Law:
        """The law of (x - m1, y - m2) on the set where the indicators of s and t are 1."""
        mean, cov = (0.0 * self.m1, 0.0 * self.m2), (self.q1, self.c, self.q2)
        h = _threshold(s, self.m1, self.q1)
        k = _threshold(t, self.m2, self.q2)
        if h is None and k is None:
            return Plane(log_weight, mean, cov)
        if k is None:
            su = root(self.q1 + s.noise)
            return HalfPlane(
                log_weight, mean, cov, threshold=h, gains=(ratio(self.q1, su), ratio(self.c, su))
            )
        if h is None:
            sv = root(self.q2 + t.noise)
            return HalfPlane(
                log_weight, mean, cov, threshold=k, gains=(ratio(self.c, sv), ratio(self.q2, sv))
            )
        return Quadrant(log_weight, mean, cov, h=h, k=k, t1=s.noise, t2=t.noise, det=self.det)


def _threshold(term: Term, m: Array, q: Array) -> Array | None:
    """(knot - m) / sd(u); where u is known it is far off, on the side that the indicator says."""
    if term.knot is None:
        return None
    xp = array_namespace(m, q)
    sd, gap = root(q + term.noise), term.knot - m
    level = xp.real(gap) if xp.isdtype(gap.dtype, "complex floating") else gap
    known = xp.where(level == 0, 1.0 - 2.0 * term.tie, xp.sign(level)) * LARGEST
    far = xp.abs(level) > LARGEST * sd
    return xp.where(far | (sd == 0), known, gap / xp.where(sd == 0, 1.0, sd))


def _recentred(coefs: Sequence[complex], m: Array) -> list[Array]:
    """Coefficients of z -> p(m + z), which are p^(n)(m) / n!."""
    return [_horner([math.comb(k, n) * coefs[k] for k in range(n, len(coefs))], m) for n in range(len(coefs))]


def _horner(coefs: Sequence[complex], x: Array) -> Any:
    total = coefs[-1]
    for c in coefs[-2::-1]:
        total = total * x + c
    return total
