"""Moments of a Gaussian pair (x, y) on the whole plane, a half plane or a quadrant of (u, v).

u = x + noise and v = y + noise. With F = x^i y^j times the indicators, Stein's lemma

    E[x F] = E[x] E[F] + Var(x) E[dF/dx] + Cov(x, y) E[dF/dy]

lowers the degree by one. The derivative of an indicator is a moment of the same kind on its edge, under the
law given u = threshold. Every law carries the log of its total weight, which includes the exponentials of x
and y (these shift the means) and the density at an edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from netsor.expect.closed.arrays import Array, determinant, ratio, root
from netsor.expect.closed.bivariate_normal import orthant, standardized
from netsor.expect.closed.special_functions import tail
from netsor.lang.array_api import array_namespace

Gains = tuple[Array, Array]


@dataclass(frozen=True)
class TruncatedGaussian:
    """Means and covariances (xx, xy, yy) of (x, y) on the whole plane, and the log of the weight."""

    log_weight: Array
    mean: tuple[Array, Array]
    cov: tuple[Array, Array, Array]
    _memo: dict[tuple[int, int], Array] = field(default_factory=dict, repr=False, compare=False)

    @property
    def weight(self) -> Array:
        """Probability of the region times the weight."""
        return array_namespace(self.log_weight).exp(self.log_weight)

    @cached_property
    def edges(self) -> list[tuple[Gains, TruncatedGaussian]]:
        """For each edge u = threshold: Cov(x, u) / sd(u), Cov(y, u) / sd(u), and the law on the edge."""
        return []

    def moment(self, i: int, j: int) -> Array:
        """weight * E[x^i y^j 1[region]]."""
        if (i, j) not in self._memo:
            self._memo[i, j] = self._lowered(i, j) if i or j else self.weight
        return self._memo[i, j]

    def _lowered(self, i: int, j: int) -> Array:
        axis = 0 if i else 1
        i, j = (i - 1, j) if i else (i, j - 1)
        total = self.mean[axis] * self.moment(i, j)
        if i:
            total = total + i * self.cov[axis] * self.moment(i - 1, j)
        if j:
            total = total + j * self.cov[axis + 1] * self.moment(i, j - 1)
        for gains, law in self.edges:
            total = total + gains[axis] * law.moment(i, j)
        return total


@dataclass(frozen=True, kw_only=True)
class HalfPlane(TruncatedGaussian):
    """The indicator of u > threshold, standardized, with gains Cov(x, u) / sd(u) and Cov(y, u) / sd(u)."""

    threshold: Array
    gains: Gains

    @property
    def weight(self) -> Array:
        return tail(self.log_weight, self.threshold)

    @cached_property
    def edges(self) -> list[tuple[Gains, TruncatedGaussian]]:
        (a, b), h = self.gains, self.threshold
        (m1, m2), (q1, c, q2) = self.mean, self.cov
        means, cov = (m1 + a * h, m2 + b * h), (q1 - a * a, c - a * b, q2 - b * b)
        return [(self.gains, TruncatedGaussian(on(self.log_weight, h), means, cov))]


@dataclass(frozen=True, kw_only=True)
class Quadrant(TruncatedGaussian):
    """The indicators of u > h and v > k, standardized; means are 0.

    thresholds  h and k
    noises      the variances of u - x and v - y
    det         the determinant q1 q2 - c^2 of the covariances of (x, y)
    """

    thresholds: tuple[Array, Array]
    noises: tuple[float, float]
    det: Array

    @cached_property
    def sds(self) -> tuple[Array, Array, Array]:
        """Standard deviations of u and v, and the root of the determinant of their covariances."""
        (q1, _, q2), (t1, t2) = self.cov, self.noises
        return root(q1 + t1), root(q2 + t2), root(self.det + t1 * q2 + t2 * q1 + t1 * t2)

    @cached_property
    def correlation(self) -> tuple[Array, Array]:
        """rho = corr(u, v) and sqrt(1 - rho^2)."""
        su, sv, volume = self.sds
        xp = array_namespace(su, sv, volume)
        rho = ratio(self.cov[1], su * sv)
        rho = xp.where(rho > 1, 1.0, xp.where(rho < -1, -1.0, rho))
        return rho, xp.where(su * sv == 0, 1.0, ratio(volume, su * sv))

    @property
    def weight(self) -> Array:
        return orthant(*self.thresholds, *self.correlation, self.log_weight)

    @cached_property
    def edges(self) -> list[tuple[Gains, TruncatedGaussian]]:
        return [self._edge(1), self._edge(-1)]

    def _edge(self, step: int) -> tuple[Gains, HalfPlane]:
        """The edge u = h, or v = k with step -1, which turns pairs of a quantity of x and one of y.

        Cov(x, y | u) = c t1 / Var(u) and Var(y | u) = (det + t1 q2) / Var(u).
        """
        (q1, c, q2), (t, _), (h, k) = self.cov[::step], self.noises[::step], self.thresholds[::step]
        su, volume = self.sds[0 if step == 1 else 1], self.sds[2]
        gains = ratio(q1, su), ratio(c, su)
        mean, residual = (gains[0] * h, gains[1] * h), (c * t, self.det + t * q2)
        cov = ratio(q1 * t, su * su), ratio(residual[0], su * su), ratio(residual[1], su * su)
        edge = {
            "threshold": standardized(h, k, *self.correlation),
            "gains": (ratio(residual[0], su * volume), ratio(residual[1], su * volume))[::step],
        }
        return gains[::step], HalfPlane(on(self.log_weight, h), mean[::step], cov[::step], **edge)


def on(log_weight: Array, h: Array) -> Array:
    """The log weight of the edge u = h: times the standard normal density at h."""
    return log_weight - h * h / 2 - math.log(2 * math.pi) / 2


def bent(a: float, b: float, m1: Any, m2: Any, q1: Array, q2: Array, c: Array) -> tuple[Any, ...]:
    """Weight, means, variances and covariance of the law times exp(-a x^2 - b y^2); means None are 0."""
    spread, exponent, *law = bent_law(a, b, m1, m2, q1, q2, c, determinant(q1, q2, c))
    xp = array_namespace(spread)
    weight = 1 / xp.sqrt(spread)
    return weight if exponent is None else weight * xp.exp(-exponent), *law


def bent_law(
    a: float, b: float, m1: Any, m2: Any, q1: Array, q2: Array, c: Array, det: Array
) -> tuple[Any, ...]:
    """Return the law times exp(-a x^2 - b y^2): s, t, and its means, variances and covariance.

    With B = diag(a, b), the covariance is S (I + 2 B S)^-1 and the mean m' = (I + 2 S B)^-1 m. The weight is
    s^(-1/2) exp(-t) with s = det(I + 2 B S) and t = m B m'. If the means are None, so is t.
    """
    spread, exponent = 1 + 2 * a * q1 + 2 * b * q2 + 4 * a * b * det, None
    if m1 is not None:
        x, y = (1 + 2 * b * q2) * m1 - 2 * b * c * m2, (1 + 2 * a * q1) * m2 - 2 * a * c * m1
        exponent, m1, m2 = (a * m1 * x + b * m2 * y) / spread, x / spread, y / spread
    return spread, exponent, m1, m2, (q1 + 2 * b * det) / spread, (q2 + 2 * a * det) / spread, c / spread
