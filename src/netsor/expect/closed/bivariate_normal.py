"""P(u > h, v > k) for standard normal u, v of correlation rho, relatively accurate in the tails.

In polar coordinates around the mean, the ray to the corner of the quadrant splits it into two parts, one for
each edge (Owen, "Tables for computing bivariate normal probabilities", Ann. Math. Stat. 27, 1956):

    P(u > h, v > k) = S(h, (k - rho h) / sigma) + S(k, (h - rho k) / sigma) + 1[h < 0 and k < 0],
    S(h, b) = (1 / 2 pi) exp(-h^2 / 2) int_b^oo exp(-t^2 / 2) h / (h^2 + t^2) dt,  sigma^2 = 1 - rho^2.

S(h, b) is odd in h, and S(h, b) + S(h, -b) = P(z > h) for h > 0. Far from its poles, Gauss-Legendre
quadrature with fixed nodes gives the integral. Near them, where h and k are small, it gives the difference to
the probability 1/4 + arcsin(rho) / (2 pi) at h = k = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from netsor.expect.closed.gauss_legendre import integrate
from netsor.expect.closed.special_functions import tail, with_derivative
from netsor.lang.array_api import array_namespace

Array = Any
Edges = Sequence[Sequence[Array]]
LARGEST = 1e8  # largest threshold in standard deviations; beyond, probabilities are 0 or 1 in floating point


def _side(x: Array) -> Array:
    """-1 for x < 0, else 1."""
    return 1.0 - 2.0 * array_namespace(x).astype(x < 0, x.dtype)


def standardized(h: Array, k: Array, rho: Array, sigma: Array) -> Array:
    """(k - rho h) / sigma, the threshold of v given u = h, without cancellation near rho = 1 and -1."""
    xp = array_namespace(h, k, rho)
    side = _side(rho)
    gap = k - side * h
    threshold = gap / xp.where(sigma > 1e-20, sigma, 1e-20) + side * h * sigma / (1 + xp.abs(rho))
    return xp.clip(threshold, -LARGEST, LARGEST)


def _orthant_derivative(value: Array, arguments: Any, tangents: Any) -> Array:
    """d P = -density(h) P(v > k | u = h) dh - (the same for k) + density(h, k) d rho."""
    (h, k, rho, sigma, log_scale), (dh, dk, d_rho, d_sigma, d_scale) = arguments, tangents
    b, a = standardized(h, k, rho, sigma), standardized(k, h, rho, sigma)
    on_h = tail(log_scale - h * h / 2, b) / math.sqrt(2 * math.pi)
    on_k = tail(log_scale - k * k / 2, a) / math.sqrt(2 * math.pi)
    corner = array_namespace(h, b).exp(log_scale - (h * h + b * b) / 2) / (2 * math.pi)
    return value * d_scale - on_h * dh - on_k * dk + corner * (sigma * d_rho - rho * d_sigma)


@with_derivative(_orthant_derivative)
def orthant(h: Array, k: Array, rho: Array, sigma: Array, log_scale: Array) -> Array:
    """exp(log_scale) P(u > h, v > k), with sigma = sqrt(1 - rho^2) given as accurately as it is known.

    The scale may be far outside the floating-point range, if the probability brings the product back into it.
    """
    xp = array_namespace(h, k, rho, sigma)
    zero = 0.0 * (h + k + rho + sigma)
    b, a = standardized(h, k, rho, sigma), standardized(k, h, rho, sigma)
    edges, log_scale = ((h + zero, b), (k + zero, a)), log_scale + zero
    near = h * h + b * b < 4.0  # the square of the distance of the corner from the mean
    close = _near([[xp.where(near, v, 0.0) for v in edge] for edge in edges], xp.atan2(rho, sigma))
    scale = xp.exp(xp.where(near, log_scale, 0.0))
    distant = _far([[xp.where(near, 2.0, v) for v in edge] for edge in edges], log_scale)
    return xp.where(near, scale * close, distant)


def _near(edges: Edges, angle: Array) -> Array:
    """The probability at h = k = 0, and the integral of its derivative as h and k grow in proportion:

    1/4 + arcsin(rho) / (2 pi) - sum over (h, b) of h / sqrt(2 pi) int_0^1 exp(-h^2 x^2 / 2) P(z > b x) dx.
    """
    total = 0.25 + angle / (2 * math.pi)
    for h, b in edges:
        integral = integrate(lambda x, h=h, b=b: tail(-((h * x) ** 2) / 2, b * x), 14, h)
        total = total - h * integral / math.sqrt(2 * math.pi)
    return total


def _far(edges: Edges, log_scale: Array) -> Array:
    """exp(log_scale) times the sum of S(h, b) over the edges, plus 1 if both h < 0."""
    xp = array_namespace(log_scale)
    inside = (edges[0][0] < 0) & (edges[1][0] < 0)
    whole = xp.where(inside, xp.exp(xp.where(inside, log_scale, 0.0)), 0.0)
    return whole + sum(_edge(h, b, log_scale) for h, b in edges)


def _edge(h: Array, b: Array, log_scale: Array) -> Array:
    """exp(log_scale) S(h, b), with S(0, b) the limit from h > 0."""
    xp = array_namespace(h, b)
    p, a = xp.abs(h), xp.abs(b)
    part = xp.exp(log_scale - (h * h + b * b) / 2) / (2 * math.pi) * _integral(p, a)
    back = tail(xp.where(b < 0, log_scale, 0.0), p) - part
    return _side(h) * xp.where(b < 0, back, part)


def _integral(h: Array, b: Array) -> Array:
    """int_0^oo exp(-b z - z^2 / 2) h / (h^2 + (b + z)^2) dz."""
    xp = array_namespace(h, b)
    end = 76.0 / (xp.sqrt(b * b + 76.0) + b)  # where the exponential has fallen to exp(-38)

    def integrand(x: Array) -> Array:
        z = end * x
        return xp.exp(-z * (b + z / 2)) * h / (h * h + (b + z) ** 2)

    return end * integrate(integrand, 26, h)


def covariance(h: Array, k: Array, rho: Array, sigma: Array) -> Array:
    """P(u > h, v > k) - P(u > h) P(v > k), relatively accurate also for small rho."""
    xp = array_namespace(h, k, rho, sigma)
    low = xp.abs(rho) < 0.7
    # Away from small correlations, the difference of probabilities loses no digits.
    difference = orthant(h, k, rho, sigma, 0.0 * h) - tail(0.0 * h, h) * tail(0.0 * k, k)
    return xp.where(low, _plackett(h, k, xp.where(low, xp.atan2(rho, sigma), 0.0)), difference)


def _plackett(h: Array, k: Array, angle: Array) -> Array:
    """int_0^angle exp(-(h^2 + k^2 - 2 h k sin t) / (2 cos^2 t)) dt / (2 pi), with rho = sin(angle).

    Plackett (1954); quadrature in t as in Drezner and Wesolowsky (1990).
    """
    xp = array_namespace(h, k, angle)

    def integrand(x: Array) -> Array:
        sine = xp.sin(angle * x)
        return xp.exp((h * k * sine - (h * h + k * k) / 2) / (1 - sine * sine))

    return angle * integrate(integrand, 20, h) / (2 * math.pi)
