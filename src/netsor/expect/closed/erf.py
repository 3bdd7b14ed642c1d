"""Expectations of erf (Williams, Computing with infinite networks, 1997), at any means.

    E[erf(x)]        = erf(m / sqrt(1 + 2 q))
    E[erf(x) erf(y)] = 2/pi arcsin(2 c / sqrt((1 + 2 q1) (1 + 2 q2)))    at means 0

erf is the step function smoothed by Gaussian noise: erf(x) = 2 P(x + noise > 0) - 1 with noise of variance
1/2. So its second moment is that of two steps, a bivariate normal probability. At means 0 the same fact gives
the arcsine, in `arc_cosine`. As a sum of probabilities erf would lose all digits where x and y are small.
"""

from __future__ import annotations

from netsor.expect.closed import bivariate_normal
from netsor.expect.closed.arrays import Array, determinant
from netsor.lang import array_api
from netsor.lang.array_api import array_namespace


def erf_mean(m: Array, q: Array) -> Array:
    """E[erf(x)] = erf(m / sqrt(1 + 2 q))."""
    return array_api.erf(m / array_namespace(q).sqrt(1 + 2 * q))


def erf_erf(m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
    """E[erf(x)] E[erf(y)] + 4 Cov(1[u > 0], 1[v > 0]), where u = x + noise of variance 1/2."""
    xp = array_namespace(q1, q2, c)
    su, sv = xp.sqrt(q1 + 0.5), xp.sqrt(q2 + 0.5)
    sigma = xp.sqrt(determinant(q1, q2, c) + (q1 + q2 + 0.5) / 2) / (su * sv)
    covariance = bivariate_normal.covariance(-m1 / su, -m2 / sv, c / (su * sv), sigma)
    return erf_mean(m1, q1) * erf_mean(m2, q2) + 4 * covariance
