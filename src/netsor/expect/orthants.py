"""Orthant probabilities P(x_1 > 0, ..., x_d > 0) of a Gaussian vector, and products of erf gates.

In the correlations c_ij and h_i = mean_i / deviation_i:

    d = 1          Phi(h)
    d = 2, h = 0   1/4 + arcsin(c_12) / 2 pi
    d = 3, h = 0   1/8 + (arcsin(c_12) + arcsin(c_13) + arcsin(c_23)) / 4 pi
    d = 2          two values of Owen's T function                              (Owen 1956)
    d = 4, h = 0   the d = 3 formula + three 1-D integrals over a correlation   (Plackett 1954)
    otherwise      separation of variables, by randomised Sobol points          (Genz 1992)

Covariances may be singular. A variable of variance zero is its mean: positive or not.
"""

from __future__ import annotations

from itertools import combinations
from math import pi, prod
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy.special import log_ndtr, ndtr, ndtri, owens_t

from netsor.errors import DataError
from netsor.expect.points.sobol import uniform_points

__all__ = ["erf_gates", "orthant"]

Array = Any
EPS = float(np.finfo(float).eps)
SINGULAR = 64 * EPS
FAR = 40.0
CHUNK = 2**21


def orthant(
    cov: Array, mean: Array | None = None, *, points: int = 4096, repeats: int = 8, seed: int = 0
) -> tuple[Array, Array]:
    """P(x > 0 in all coordinates) for x ~ N(mean, cov), and its error, over any leading axes.

    `cov` is (..., d, d), `mean` (..., d) or None for zero. The error is an estimate for the integrals and the
    standard error over `repeats` independent scrambles of `points` points for the sampled ones; all
    problems of one call share their points.

    >>> value, error = orthant(np.eye(3) / 2 + 0.5)  # equal correlations 1/2: 1 / (d + 1)
    >>> round(float(value), 12)
    0.25
    """
    xp = array_namespace(cov) if mean is None else array_namespace(cov, mean)
    plain, centre = np.asarray(cov, float), np.asarray(0.0 if mean is None else mean, float)
    d = plain.shape[-1]
    if plain.shape[-2:] != (d, d) or not (np.isfinite(plain).all() and np.isfinite(centre).all()):
        raise DataError(
            f"an orthant probability of a covariance of shape {plain.shape}",
            remedy="Covariances are finite, of shape (..., d, d), with means of shape (..., d).",
        )
    lead = np.broadcast_shapes(plain.shape[:-2], centre.shape[:-1])
    plain = np.broadcast_to(plain, (*lead, d, d)).reshape(prod(lead), d, d)
    centre = np.broadcast_to(centre, (*lead, d)).reshape(prod(lead), d)
    value, error = _flat(*_standardise(plain, centre), points, repeats, seed)
    return tuple(xp.asarray(a.reshape(lead)) for a in (value, error))


def erf_gates(
    cov: Array, mean: Array | None = None, *, points: int = 4096, repeats: int = 8, seed: int = 0
) -> tuple[Array, Array]:
    """E[prod_i (1 + erf(x_i)) / 2] = P(y > 0), y ~ N(mean, cov + I/2), and its error, for x ~ N(mean, cov).

    (1 + erf(x)) / 2 = P(x + g > 0) with g ~ N(0, 1/2): Tensor Programs I, the erf lemma.
    """
    xp = array_namespace(cov)
    half = xp.asarray(np.eye(cov.shape[-1]) / 2, dtype=cov.dtype)
    return orthant(cov + half, mean, points=points, repeats=repeats, seed=seed)


def _standardise(cov: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Correlations (n, d, d) and h = mean / deviation (n, d), at most 40 in size: Phi(-40) is 0 in effect.

    Correlations within rounding of 1 and -1 are set so, as arcsin would take the square root of the
    rounding. A variable of variance zero has no correlations, and h = 40 or -40 by the sign of its mean.
    """
    variance = np.maximum(np.diagonal(cov, axis1=-2, axis2=-1), 0.0)
    scale = np.sqrt(variance)
    fixed = scale == 0
    inverse = np.where(fixed, 0.0, 1 / np.where(fixed, 1.0, scale))
    c = cov * inverse[:, :, None] * inverse[:, None, :]
    c = np.where(np.abs(c) >= 1 - 4 * EPS, np.sign(c), c)
    d = np.arange(cov.shape[-1])
    c[:, d, d] = 1.0
    h = np.where(fixed, np.where(mean > 0, FAR, -FAR), np.clip(mean * inverse, -FAR, FAR))
    return c, h


def _flat(
    c: np.ndarray, h: np.ndarray, points: int, repeats: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each problem by the best method for its dimension and its means."""
    n, d = h.shape
    value, error = np.ones(n), np.zeros(n)
    central = np.all(h == 0, axis=1)
    if d == 1:
        value, error = ndtr(h[:, 0]), np.full(n, EPS)
    for where, formula, largest in ((central, _central, 4), (~central, _pair, 2)):
        if 1 < d <= largest and np.any(where):
            value[where], error[where] = formula(c[where], h[where])
    rest = (~central if d > 2 else np.zeros(n, bool)) | (central if d > 4 else np.zeros(n, bool))
    if np.any(rest):
        value[rest], error[rest] = _separated(c[rest], h[rest], points, repeats, seed)
    return value, error


# Closed forms and 1-D integrals.


def _central(c: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Zero means, d = 2, 3, 4."""
    d = c.shape[-1]
    value = 0.5**d + sum(np.arcsin(c[:, i, j]) for i, j in combinations(range(d), 2)) / (2 ** (d - 1) * pi)
    error = np.full(len(c), 4 * EPS)
    if d == 4:
        extra, error = _fourth_order(c)
        value = value + extra
        for i, j in combinations(range(4), 2):  # of two equal variables one is dropped
            copies = c[:, i, j] == 1
            keep = [k for k in range(4) if k != j]
            value[copies], error[copies] = _central(c[copies][:, keep][:, :, keep], h[copies][:, keep])
    opposites = np.min(c, axis=(1, 2)) == -1
    return np.where(opposites, 0.0, np.clip(value, 0.0, 0.5)), error


def _fourth_order(c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(1 / 4 pi^2) sum_j int_0^arcsin(c_1j) arcsin(r_kl) da, j = 2, 3, 4 and {k, l} the other two.

    On the way from x_1 independent of the rest to the correlations t c_1j, with t c_1j = sin(a),
    dP / d(t c_1j) = P(x_k > 0, x_l > 0 | x_1 = x_j = 0) / 2 pi cos(a), and r_kl is the correlation there.
    """
    total, coarse = np.zeros(len(c)), np.zeros(len(c))
    u, weights, wide = _double_exponential()
    for j, k, m in ((1, 2, 3), (2, 1, 3), (3, 1, 2)):
        end = np.arcsin(c[:, 0, j])[:, None]
        small = np.abs(end) < 1e-9
        t = np.where(small, u, np.sin(u * end) / np.where(small, 1.0, np.sin(end)))
        r = _conditional_correlation(c, j, k, m, t)
        f = np.arcsin(r) * end / (4 * pi**2)
        total, coarse = total + f @ weights, coarse + f @ wide
    return total, np.abs(total - coarse) ** 1.5 + SINGULAR


def _conditional_correlation(c: np.ndarray, j: int, k: int, m: int, t: np.ndarray) -> np.ndarray:
    """The correlation of x_k and x_m given x_1 and x_j, where x_1 has the correlations t c_1i.

    (1 - t^2 c_1j^2) cov(x_k, x_m | x_1, x_j) = c_km - c_jk c_jm
        - t^2 (c_km c_1j^2 + c_1k c_1m - c_1j (c_1k c_jm + c_jk c_1m)).
    Where it is 1 or -1 within rounding it is set so: arcsin would take the square root of the rounding.
    """
    a = c[:, 0, j]

    def moment(x: int, y: int) -> np.ndarray:
        p, q, v, w = c[:, 0, x], c[:, 0, y], c[:, j, x], c[:, j, y]
        constant, slope = c[:, x, y] - v * w, c[:, x, y] * a * a + p * q - a * (p * w + v * q)
        return constant[:, None] - t * t * slope[:, None]

    kk, mm, km = moment(k, k), moment(m, m), moment(k, m)
    product = kk * mm
    r = np.where(product > 0, km / np.sqrt(np.where(product > 0, product, 1.0)), 0.0)
    exact = product - km * km <= 16 * EPS * (np.abs(kk) + np.abs(mm))
    return np.clip(np.where(exact & (product > 0), np.sign(r), r), -1.0, 1.0)


def _pair(c: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """d = 2: (Phi(h) + Phi(k)) / 2 - T(h, a) - T(k, b) - 1/2 [h and k of opposite sign], Owen's T.

    a = (k - c h) / (h s), b = (h - c k) / (k s), s = (1 - c^2)^(1/2). At c = 1 it is Phi(min(h, k)), and at
    c = -1 it is Phi(h) - Phi(-k), if positive.
    """
    x, y, c = h[:, 0], h[:, 1], c[:, 0, 1]
    s = np.sqrt((1 - c) * (1 + c))
    opposite = (x * y < 0) | ((x * y == 0) & (x + y < 0))
    value = (ndtr(x) + ndtr(y) - opposite) / 2 - _owen(x, y, c, s) - _owen(y, x, c, s)
    value = np.where(c == 1, ndtr(np.minimum(x, y)), value)
    value = np.where(c == -1, ndtr(x) - ndtr(-y), value)
    return np.clip(value, 0.0, 1.0), np.full(len(h), 4 * EPS)


def _owen(x: np.ndarray, y: np.ndarray, c: np.ndarray, s: np.ndarray) -> np.ndarray:
    """T(x, (y - c x) / (x s)), with the limit T(0, +-oo) = +-1/4."""
    top, bottom = np.where(c > 0, (y - x) + (1 - c) * x, (y + x) - (1 + c) * x), x * s
    at = np.divide(top, bottom, out=np.copysign(np.inf, top), where=np.abs(bottom) > 1e-300 * np.abs(top))
    return owens_t(x, at)


def _double_exponential() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes in (0, 1), weights, and the weights of the rule with twice the step (Takahasi and Mori 1974)."""
    step = 1 / 16
    x = step * np.arange(-56, 57)
    inner = pi / 2 * np.sinh(x)
    nodes = 1 / (1 + np.exp(-2 * inner))
    weights = step * pi * np.cosh(x) * nodes / (1 + np.exp(2 * inner))
    wide = 2 * weights * (np.arange(len(x)) % 2 == 0)
    return nodes, weights, wide


# Separation of variables.


def _separated(
    c: np.ndarray, h: np.ndarray, points: int, repeats: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """E_u[prod_i Phi(b_i)]: x_i > 0 is y_i > -b_i, with b_i = (h_i + sum_j<i L_ij y_j) / L_ii.

    y_i is a standard normal above -b_i: -y_i = Phi^-1(u_i Phi(b_i)). The last one needs no point.
    """
    n, d = h.shape
    L, h = _ordered_factor(c, h)
    rng = np.random.default_rng(seed)
    means = np.empty((repeats, n))
    step = max(1, CHUNK // (d * points))
    for k in range(repeats):
        u = uniform_points(d - 1, points, rng)
        for start in range(0, n, step):
            part = slice(start, start + step)
            means[k, part] = _product(L[part], h[part], u)
    spread = np.std(means, axis=0, ddof=1) / repeats**0.5 if repeats > 1 else np.full(n, np.inf)
    return np.mean(means, axis=0), spread + d * EPS


def _product(L: np.ndarray, h: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The mean over the points u (d - 1, N) of prod_i Phi(b_i), for each of n problems."""
    n, d = h.shape
    y = np.empty((n, d - 1, u.shape[1]))
    product = np.ones((n, u.shape[1]))
    for i in range(d):
        above = h[:, i, None] + (L[:, i, None, :i] @ y[:, :i])[:, 0]
        scale = L[:, i, i, None]
        b = np.where(scale > 0, above / np.where(scale > 0, scale, 1.0), np.where(above > 0, FAR, -FAR))
        p = ndtr(b)
        product *= p
        if i < d - 1:
            y[:, i] = -ndtri(np.maximum(u[i] * p, 1e-300))
    return np.mean(product, axis=1)


def _ordered_factor(c: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Cholesky factor L (n, d, d) and h in an order that takes the least likely variable next.

    Given the ones before at their conditional means; this lowers the variance of the product (Gibson,
    Glasbey and Elston 1994). Variables fixed by the ones before come last, with L_ii = 0.
    """
    n, d = h.shape
    c, h = c.copy(), h.copy()
    L, centre = np.zeros_like(c), np.zeros((n, d))
    rows = np.arange(n)
    for i in range(d):
        left = np.maximum(np.diagonal(c, axis1=1, axis2=2)[:, i:] - np.sum(L[:, i:, :i] ** 2, axis=2), 0.0)
        free = left > SINGULAR
        root = np.sqrt(np.where(free, left, 1.0))
        b = (h[:, i:] + (L[:, i:, :i] @ centre[:, :i, None])[:, :, 0]) / root
        pick = i + np.argmin(np.where(free, b, np.inf), axis=1)
        for a in (h, L, c):
            a[rows, i], a[rows, pick] = a[rows, pick].copy(), a[rows, i].copy()
        c[rows, :, i], c[rows, :, pick] = c[rows, :, pick].copy(), c[rows, :, i].copy()
        chosen = (rows, pick - i)
        some = free[chosen]
        diagonal = np.where(some, root[chosen], 0.0)
        below = c[:, i + 1 :, i] - (L[:, i + 1 :, :i] @ L[:, i, :i, None])[:, :, 0]
        L[:, i + 1 :, i] = np.where(some[:, None], below / np.where(some, diagonal, 1.0)[:, None], 0.0)
        L[:, i, i] = diagonal
        bi = np.clip(b[chosen], -FAR, FAR)
        centre[:, i] = np.where(some, np.exp(-0.5 * bi**2 - 0.5 * np.log(2 * pi) - log_ndtr(bi)), 0.0)
    return L, h
