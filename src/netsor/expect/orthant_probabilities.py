"""Orthant probabilities P(x_1 > 0, ..., x_d > 0) of Gaussian vectors of mean zero, and products of erf gates.

In the correlations c_ij:

    d = 1, 2, 3   2^-d + 2^(1-d) / pi times the sum of all arcsin(c_ij)
    d = 4         the same plus three 1-D integrals over a correlation    (Plackett 1954)

Covariances may be singular.
"""

from __future__ import annotations

from itertools import combinations
from math import pi

import numpy as np

from netsor.errors import DataError

Array = np.ndarray
EPS = float(np.finfo(float).eps)


def orthant(cov: Array) -> tuple[Array, Array]:
    """P(x > 0 in all coordinates) for x ~ N(0, cov), (..., d, d) with d <= 4, and an estimate of its error.

    Correlations within rounding of 1 or -1 are set to these values, because arcsin would turn the rounding
    into its square root. A variable of variance zero is not positive.

    >>> value, error = orthant(np.eye(3) / 2 + 0.5)  # equal correlations 1/2: 1 / (d + 1)
    >>> round(float(value), 12)
    0.25
    """
    d = cov.shape[-1]
    if cov.shape[-2:] != (d, d) or not np.isfinite(cov).all() or d > 4:
        raise DataError(
            f"an orthant probability of a covariance of shape {cov.shape}",
            remedy="Covariances are finite, of shape (..., d, d) with d up to 4.",
        )
    scale = np.sqrt(np.maximum(np.diagonal(cov, axis1=-2, axis2=-1), 0.0))
    inverse = 1 / np.where(scale == 0, 1.0, scale)
    c = cov * inverse[..., :, None] * inverse[..., None, :]
    value, error = _standard(np.where(np.abs(c) >= 1 - 4 * EPS, np.sign(c), c))
    return np.where(np.any(scale == 0, axis=-1), 0.0, value), error


def erf_gates(cov: Array) -> tuple[Array, Array]:
    """E[prod_i (1 + erf(x_i)) / 2] = P(y > 0), y ~ N(0, cov + I/2), and its error, for x ~ N(0, cov).

    (1 + erf(x)) / 2 = P(x + g > 0) with g ~ N(0, 1/2): Tensor Programs I, the erf lemma.
    """
    return orthant(cov + np.eye(cov.shape[-1]) / 2)


def _standard(c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities and their errors, (...,), for correlations (..., d, d)."""
    d = c.shape[-1]
    value = 0.5**d + sum(np.arcsin(c[..., i, j]) for i, j in combinations(range(d), 2)) / (
        2.0 ** (d - 1) * pi
    )
    value, error = np.full(c.shape[:-2], value), np.full(c.shape[:-2], 4 * EPS)
    if d == 4:
        extra, error[...] = _fourth_order(c)
        value += extra
        # The integrals are singular at correlation 1; but two equal variables are positive
        # together, so drop one.
        for i, j in combinations(range(4), 2):
            copies = c[..., i, j] == 1
            keep = [k for k in range(4) if k != j]
            value[copies], error[copies] = _standard(c[copies][:, keep][:, :, keep])
    # Opposite variables are never positive together.
    opposites = np.any(c == -1, axis=(-2, -1))
    return np.where(opposites, 0.0, np.clip(value, 0.0, 1.0)), error


def _fourth_order(c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(1 / 4 pi^2) sum_j int_0^arcsin(c_1j) arcsin(r_kl) da, j = 2, 3, 4 and {k, l} the other two.

    Move x_1 from independence to the correlations t c_1j, with t c_1j = sin(a). Along the way dP / d(t c_1j)
    = P(x_k > 0, x_l > 0 | x_1 = x_j = 0) / 2 pi cos(a), and r_kl is the correlation given these.
    """
    total, coarse = np.zeros((2, *c.shape[:-2]))
    u, weights, wide = _double_exponential()
    for j, k, m in ((1, 2, 3), (2, 1, 3), (3, 1, 2)):
        end = np.arcsin(c[..., 0, j])[..., None]
        small = np.abs(end) < 1e-9
        t = np.where(small, u, np.sin(u * end) / np.where(small, 1.0, np.sin(end)))
        r = _conditional_correlation(c, j, k, m, t)
        f = np.arcsin(r) * end / (4 * pi**2)
        total, coarse = total + f @ weights, coarse + f @ wide
    # Doubling the step of the double exponential rule halves the digits; 1.5 in place of 2 is cautious.
    return total, np.abs(total - coarse) ** 1.5 + 64 * EPS


def _conditional_correlation(c: np.ndarray, j: int, k: int, m: int, t: np.ndarray) -> np.ndarray:
    """The correlation of x_k and x_m given x_1 and x_j, where x_1 has the correlations t c_1i.

    (1 - t^2 c_1j^2) cov(x_k, x_m | x_1, x_j) = c_km - c_jk c_jm
        - t^2 (c_km c_1j^2 + c_1k c_1m - c_1j (c_1k c_jm + c_jk c_1m)).
    A value of 1 or -1 up to rounding is set to it, as in `orthant`.
    """
    a = c[..., 0, j]

    def moment(x: int, y: int) -> np.ndarray:
        p, q, v, w = c[..., 0, x], c[..., 0, y], c[..., j, x], c[..., j, y]
        constant, slope = c[..., x, y] - v * w, c[..., x, y] * a * a + p * q - a * (p * w + v * q)
        return constant[..., None] - t * t * slope[..., None]

    kk, mm, km = moment(k, k), moment(m, m), moment(k, m)
    product = kk * mm
    r = np.where(product > 0, km / np.sqrt(np.where(product > 0, product, 1.0)), 0.0)
    exact = product - km * km <= 16 * EPS * (np.abs(kk) + np.abs(mm))
    return np.clip(np.where(exact & (product > 0), np.sign(r), r), -1.0, 1.0)


def _double_exponential() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes in (0, 1), weights, and the weights of the rule with twice the step (Takahasi and Mori 1974)."""
    step = 1 / 16
    x = step * np.arange(-56, 57)
    inner = pi / 2 * np.sinh(x)
    nodes = 1 / (1 + np.exp(-2 * inner))
    weights = step * pi * np.cosh(x) * nodes / (1 + np.exp(2 * inner))
    wide = 2 * weights * (np.arange(len(x)) % 2 == 0)
    return nodes, weights, wide
