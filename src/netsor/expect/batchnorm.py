"""Batchnorm followed by a positively homogeneous phi: E[phi(bn(y)) phi(bn(y'))^T] for Gaussian y, y'.

For the preactivations z of one neuron over a batch of B members,

    bn(z) = sqrt(B) y / |y|,    y = G z,    G = I - 1 1^T / B,

and phi has slope a on x > 0 and b on x < 0: relu (1, 0), leaky relu (1, b), abs (1, -1), identity (1, 1).
Then phi(bn(z)) = sqrt(B) phi(y) / |y|, and the division turns into exponentials that a Gaussian absorbs
(Tensor Programs I, "Batchnorm with Single Batch" and "with Multiple Batches"; Yang et al. 2019):

    within a batch     1/|y|^2 = int_0^oo exp(-s |y|^2) ds
    across batches     1/|y|   = pi^(-1/2) int_0^oo s^(-1/2) exp(-s |y|^2) ds    for y and for y'

so that every node of the quadrature needs the V-transform of phi at a shrunken covariance, which is closed.

The quadrature is a sum of exponentials: a trapezoid rule in log s within a batch, and across batches one in
x with s = c^2 sinh(x)^2, which has no slow tail at s = 0. Its error is known before any kernel is computed:
if sum_k w_k exp(-s_k q) equals 1/q, or q^(-1/2), up to a relative error delta for all q between `low`
and `high`, then entry (i, j) is wrong by at most delta plus the probability that |y|^2 is outside, both times
(E[bn_i^2] E[bn_j'^2])^(1/2). Low and high come from Chernoff bounds on the spectrum of the batch.

The mean of z over the network is taken to be zero after centring: a mean that is constant over the batch
drops out in G z, any other mean is outside these formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log, pi, prod, sqrt
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy.linalg import helmert

from netsor.errors import DataError

__all__ = ["across", "across_with_error", "within", "within_with_error"]

Array = Any
Slopes = tuple[float, float]
CHUNK = 2**18


def within(sigma: Array, slopes: Slopes = (1.0, 0.0), *, tol: float = 1e-12) -> Array:
    """E[phi(bn(z)) phi(bn(z))^T] for z ~ N(0, sigma), shape (..., B, B).

        B int_0^oo V_phi(S (I + 2 s S)^-1) det(I + 2 s S)^(-1/2) ds,    S = G sigma G.

    >>> K = within(np.array([[2.0, 0.3], [0.3, 1.0]]))  # a batch of two is normalised to +1 and -1
    >>> bool(np.allclose(K, [[0.5, 0.0], [0.0, 0.5]]))
    True
    """
    return within_with_error(sigma, slopes, tol=tol)[0]


def within_with_error(
    sigma: Array, slopes: Slopes = (1.0, 0.0), *, tol: float = 1e-12
) -> tuple[Array, Array]:
    """The kernel of `within` and a bound on the error of each entry, both (..., B, B).

    `tol` is the error asked for, relative to (E[bn_i^2] E[bn_j^2])^(1/2).
    """
    return _over_leading_axes(lambda s: _within_one(s, slopes, tol), sigma)


def across(
    sigma11: Array, sigma22: Array, sigma12: Array, slopes: Slopes = (1.0, 0.0), *, tol: float = 1e-10
) -> Array:
    """E[phi(bn(z)) phi(bn(z'))^T] for two batches, shape (..., B1, B2).

    (z, z') ~ N(0, [[sigma11, sigma12], [sigma12^T, sigma22]]); with S the same covariance, centred,

        (B1 B2)^(1/2) / pi int int (s t)^(-1/2) det(I + 2 D S)^(-1/2) V_phi(S (I + 2 D S)^-1)_12 ds dt

    where D = s I + t I on the two batches.
    """
    return across_with_error(sigma11, sigma22, sigma12, slopes, tol=tol)[0]


def across_with_error(
    sigma11: Array, sigma22: Array, sigma12: Array, slopes: Slopes = (1.0, 0.0), *, tol: float = 1e-10
) -> tuple[Array, Array]:
    """The kernel of `across` and a bound on the error of each entry, both (..., B1, B2).

    `tol` is the error asked for, relative to (E[bn_i^2] E[bn_j'^2])^(1/2).
    """
    return _over_leading_axes(lambda a, b, ab: _across_one(a, b, ab, slopes, tol), sigma11, sigma22, sigma12)


def _over_leading_axes(one: Callable[..., tuple[Array, Array]], *matrices: Array) -> tuple[Array, Array]:
    """`one` for every matrix of the leading axes: the quadrature nodes differ from one to the next."""
    xp = array_namespace(*matrices)
    lead = np.broadcast_shapes(*(m.shape[:-2] for m in matrices))
    if not lead:
        return one(*matrices)
    flat = [xp.reshape(xp.broadcast_to(m, (*lead, *m.shape[-2:])), (-1, *m.shape[-2:])) for m in matrices]
    results = [one(*(m[i, ...] for m in flat)) for i in range(prod(lead))]
    values, errors = (xp.stack([r[part] for r in results]) for part in (0, 1))
    return tuple(xp.reshape(a, (*lead, *a.shape[1:])) for a in (values, errors))


# The spectrum of a batch, and what it says about |y|^2.


@dataclass(frozen=True)
class Spectrum:
    """y = total^(1/2) basis diag(values)^(1/2) e with e ~ N(0, I_rank); the values ascend and add up to 1.

    `shares` is E[bn_k^2] along each column k of the basis, and `tails` what it has beyond each log s (see
    `_shares`); `origin` is the member that covariances are taken relative to, and `floor` the rounding
    of the values.
    """

    basis: Array
    values: Array
    total: float
    shares: np.ndarray
    tails: tuple[np.ndarray, np.ndarray]
    origin: int
    floor: float

    @property
    def plain(self) -> np.ndarray:
        """The values as a NumPy array."""
        return np.asarray(self.values)

    @property
    def scale(self) -> np.ndarray:
        """E[bn_i^2]^(1/2) for each member i."""
        return np.sqrt(np.asarray(self.basis) ** 2 @ self.shares)

    @property
    def rounding(self) -> np.ndarray:
        """The relative error of E[bn_i^2] from the rounding of sigma, floor / 8, in each eigenvalue."""
        parts = np.asarray(self.basis) ** 2 @ (self.shares * np.minimum(1, self.floor / 8 / self.plain))
        return parts / np.maximum(self.scale**2, 1e-300)


def _spectrum(sigma: Array) -> Spectrum:
    """The eigenvalues of G sigma G = H (H^T sigma H) H^T, H an orthonormal basis of the vectors of sum 0.

    Sigma is first taken relative to its member of least variance, which G cancels: members that have
    almost everything in common lose no digits then. Eigenvalues within the rounding of sigma are zero.
    """
    xp = array_namespace(sigma)
    plain = np.asarray(sigma)
    B = len(plain)
    if plain.shape != (B, B) or not np.isfinite(plain).all():
        raise DataError(
            f"a batch covariance of shape {plain.shape} is not a finite square matrix",
            remedy="Batchnorm needs the covariance (B, B) of the preactivations of each batch.",
        )
    origin = int(np.argmin(np.diagonal(plain)))
    helm = _like(xp, sigma, helmert(B).T.copy() if B > 1 else np.zeros((1, 0)))
    floor = 8 * sqrt(B) * float(xp.finfo(sigma.dtype).eps) * float(np.max(np.diagonal(plain)))
    values, vectors = xp.linalg.eigh(_symmetric(helm.T @ _relative(sigma, origin, origin) @ helm))
    rank = int(np.sum(np.asarray(values) > floor))
    if rank == 0:
        raise DataError(
            f"all {B} members of a batch have equal preactivations" if B > 1 else "a batch has one member",
            remedy="Batchnorm divides by the standard deviation over the batch, which is zero there: use "
            "batches with different members, or eps > 0.",
        )
    values, vectors = values[B - 1 - rank :], vectors[:, B - 1 - rank :]
    total = float(xp.sum(values))
    values = values / total
    shares, tails = _shares(np.asarray(values, float), B)
    return Spectrum(helm @ vectors, values, total, shares, tails, origin, floor / total)


def _relative(sigma: Array, row: int, column: int) -> Array:
    """cov(z_i - z_row, z'_j - z'_column): centring takes it to the same G sigma G'."""
    return (sigma - sigma[row : row + 1, :]) - (sigma[:, column : column + 1] - sigma[row, column])


def _shares(values: np.ndarray, B: int) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """kappa_k = E[bn_k^2] = B int l_k / (1 + 2 s l_k) prod_m (1 + 2 s l_m)^(-1/2) ds along axis k; sum B.

    Also (log s, the largest share over k that the integral has beyond s). The step 1/4 in log s is exact
    to 1e-16, as the integrand is analytic for |Im log s| < pi.
    """
    step = 0.25
    x = np.arange(-42.0, 10.0 - log(values[0]) + 80.0 / len(values), step)
    growth = np.log1p(2 * np.exp(x)[:, None] * values)
    parts = np.exp(x[:, None] + np.log(values) - growth - 0.5 * np.sum(growth, axis=1, keepdims=True))
    beyond = np.cumsum(parts[::-1], axis=0)[::-1]
    return B * step * beyond[0], (x, np.max(beyond / beyond[0], axis=1))


def _range(batch: Spectrum, tol: float) -> tuple[float, float]:
    """low and high with E[bn_k^2; |y|^2 < low] <= tol E[bn_k^2] for every axis k, and P(|y|^2 > high) <= tol.

    Below: 1{q < a} <= exp(s a - s q), and E[bn_k^2 exp(-s q)] is the part of the share beyond s.
    Above: P(q > b) <= exp(-s b) prod_k (1 - 2 s l_k)^(-1/2) for 2 s l_max < 1. Both at the best s of a grid.
    """
    x, beyond = batch.tails
    lows = (log(tol) - np.log(np.maximum(beyond, 1e-300))) * np.exp(-x)
    s = np.linspace(0.05, 0.95, 19)[:, None] / (2 * batch.plain[-1])
    highs = (-log(tol) - 0.5 * np.sum(np.log1p(-2 * s * batch.plain), axis=1)) / s[:, 0]
    return float(np.max(lows)), float(np.min(highs))


# Sums of exponentials for 1/q and q^(-1/2).


@dataclass(frozen=True)
class Rule:
    """sum_k weights[k] exp(-nodes[k] q), and the bound `error` on what it does to a kernel."""

    nodes: np.ndarray
    weights: np.ndarray
    error: float


def _reciprocal_rule(batch: Spectrum, tol: float) -> Rule:
    """1/q = int exp(x - q exp(x)) dx: the trapezoid rule, of relative error 2 |Gamma(1 + 2 pi i / h)|."""
    part = tol / 4
    low, high = _range(batch, part)
    step = pi**2 / log(40 / part)
    first, last = log(part / high), log(log(1 / part) / low)
    nodes = np.exp(np.arange(first, last + step, step))
    return _certified(nodes, step * nodes, 1.0, low, high, part)


def _root_rule(batch: Spectrum, tol: float) -> Rule:
    """q^(-1/2) = 2 c pi^(-1/2) int_0^oo cosh(x) exp(-q c^2 sinh(x)^2) dx: the trapezoid rule, c^2 = 2/high.

    The integrand is even in x and analytic for |Im x| < pi/4, so the error is about 8 exp(-pi^2 / 2h).
    """
    part = tol / 8
    low, high = _range(batch, part)
    step, c = pi**2 / 2 / log(9 / part), sqrt(2 / high)
    count = int(np.ceil(np.arcsinh(sqrt(log(0.1 / part) / low) / c) / step))
    x = step * np.arange(count + 1)
    weights = 2 * c / sqrt(pi) * step * np.cosh(x)
    weights[0] /= 2
    return _certified((c * np.sinh(x)) ** 2, weights, 0.5, low, high, part)


def _certified(
    nodes: np.ndarray, weights: np.ndarray, power: float, low: float, high: float, part: float
) -> Rule:
    """The rule with its error: the largest relative one between low and high, and both tails."""
    q = np.geomspace(low, high, 512)
    sums = np.exp(-q[:, None] * nodes) @ weights
    return Rule(nodes, weights, float(np.max(np.abs(sums * q**power - 1))) + 2 * part)


# The kernels.


def _within_one(sigma: Array, slopes: Slopes, tol: float) -> tuple[Array, Array]:
    """E[y y^T / |y|^2] is diagonal in the eigenbasis, the shares; E[|y| |y|^T / |y|^2] takes the nodes."""
    xp = array_namespace(sigma)
    batch = _spectrum(sigma)
    B, mean, half = sigma.shape[-1], *_parts(slopes)
    value = mean**2 * (batch.basis * _like(xp, sigma, batch.shares)) @ batch.basis.T
    bound = _rounding(sigma)
    if half:
        rule = _reciprocal_rule(batch, max(tol, bound))
        bound += rule.error
        s, w = (_like(xp, sigma, a) for a in (rule.nodes, rule.weights))
        for piece in _pieces(len(rule.nodes), B * B):
            grown = 1 + 2 * s[piece, None] * batch.values
            shrunk = batch.values / grown
            cov = (batch.basis * shrunk[:, None, :]) @ batch.basis.T
            var = shrunk @ batch.basis.T**2
            value = value + half**2 * B * _abs_sum(xp, w[piece] * _root_det(xp, grown), var, var, cov)
    return value, _bound(xp, sigma, slopes, bound, batch, batch)


def _across_one(
    sigma11: Array, sigma22: Array, sigma12: Array, slopes: Slopes, tol: float
) -> tuple[Array, Array]:
    """The sum over the nodes (s, t) of w_s w_t det^(-1/2) V_phi(Pi)_12.

    With y = F e and y' = F' e' in the eigenbases and R = cov(e, e'), the factor exp(-s |y|^2) makes
    cov(e) = A = (I + 2 s values)^-1 and cov(e, e') = A R. In the eigenbasis of the covariance that y' has
    then, the factor exp(-t |y'|^2) is diagonal for all t at once. The variances of y come from
    the batches in the other order, so that they too are sums of positive terms.
    """
    xp = array_namespace(sigma11, sigma22, sigma12)
    one, two = _spectrum(sigma11), _spectrum(sigma22)
    R = _correlation(xp, one, two, sigma12)
    (B1, B2), mean, half = sigma12.shape, *_parts(slopes)
    bound = _rounding(sigma12)
    first, second = (_root_rule(batch, max(tol, bound)) for batch in (one, two))
    s, ws, t, wt = (_like(xp, sigma12, a) for r in (first, second) for a in (r.nodes, r.weights))
    var1 = _other_variances(xp, two, one, R.T, t, s)
    rest = _conditional(xp, two, R)
    F = one.basis * xp.sqrt(one.values)
    RL = R * xp.sqrt(two.values)
    value = xp.zeros((B1, B2), dtype=sigma12.dtype)
    for piece in _pieces(len(first.nodes), len(second.nodes) * B1 * B2):
        grown = 1 + 2 * s[piece, None] * one.values
        mu, Q = _tilted(xp, rest, RL, grown)
        shrink = 1 / (1 + 2 * t[:, None] * mu[:, None, :])
        w = (ws[piece] * _root_det(xp, grown))[:, None] * wt * _root_det(xp, 1 / shrink)
        left, right = (F / grown[:, None, :]) @ RL @ Q, xp.matrix_transpose(two.basis @ Q)
        if mean:
            summed = left * (w[:, None, :] @ shrink)
            value = value + mean**2 * xp.sum(summed @ right, axis=0)
        if half:
            rows = left[:, None, :, :] * shrink[:, :, None, :]
            cov = xp.reshape(rows, (rows.shape[0], -1, rows.shape[-1])) @ right
            cov = xp.reshape(cov, (-1, B1, B2))
            v1 = xp.reshape(var1[piece, :, :], (-1, B1))
            v2 = xp.reshape((mu[:, None, :] * shrink) @ right**2, (-1, B2))
            value = value + half**2 * _abs_sum(xp, xp.reshape(w, (-1,)), v1, v2, cov)
    bound += first.error + second.error
    return sqrt(B1 * B2) * value, _bound(xp, sigma12, slopes, bound, one, two)


def _correlation(xp: Any, one: Spectrum, two: Spectrum, sigma12: Array) -> Array:
    """R = cov(e, e') (r1 x r2), its singular values cut at 1."""
    shape = (one.basis.shape[0], two.basis.shape[0])
    if sigma12.shape != shape or not np.isfinite(np.asarray(sigma12)).all():
        raise DataError(
            f"the covariance between batches of {shape[0]} and {shape[1]} has shape {tuple(sigma12.shape)}",
            remedy="It must be a finite matrix (B1, B2).",
        )
    left = one.basis / xp.sqrt(one.values * one.total)
    right = two.basis / xp.sqrt(two.values * two.total)
    u, c, vh = xp.linalg.svd(left.T @ _relative(sigma12, one.origin, two.origin) @ right, full_matrices=False)
    return (u * xp.where(c > 1, xp.ones_like(c), c)) @ vh


def _conditional(xp: Any, two: Spectrum, R: Array) -> Array:
    """The covariance of L e' given e, L (I - R^T R) L with L^2 = values; within rounding it is zero."""
    L = xp.sqrt(two.values)
    rest = xp.eye(R.shape[1], dtype=R.dtype) - R.T @ R
    values, vectors = xp.linalg.eigh(_symmetric(rest * L * L[:, None]))
    return (vectors * xp.where(values > two.floor, values, xp.zeros_like(values))) @ vectors.T


def _tilted(xp: Any, rest: Array, RL: Array, grown: Array) -> tuple[Array, Array]:
    """Eigenvalues (S, r) and vectors (S, r, r) of cov(L e') = rest + L R^T A R L for each A = 1/grown."""
    values, vectors = xp.linalg.eigh(_symmetric(rest + RL.T @ (RL / grown[:, :, None])))
    return xp.where(values > 0, values, xp.zeros_like(values)), vectors


def _other_variances(xp: Any, two: Spectrum, one: Spectrum, R: Array, t: Array, s: Array) -> Array:
    """The variances (S, T, B1) of y at all nodes, by the factor exp(-t |y'|^2) first; R = cov(e', e)."""
    mu, Q = _tilted(xp, _conditional(xp, one, R), R * xp.sqrt(one.values), 1 + 2 * t[:, None] * two.values)
    shrunk = mu[:, None, :] / (1 + 2 * s[:, None] * mu[:, None, :])
    return xp.permute_dims(shrunk @ xp.matrix_transpose(one.basis @ Q) ** 2, (1, 0, 2))


def _abs_sum(xp: Any, weights: Array, var1: Array, var2: Array, cov: Array) -> Array:
    """sum_n w_n E|x_i x'_j| over covariances (n, B1, B2) with the variances (n, B1) and (n, B2).

    E|x x'| = 2/pi (v v')^(1/2) ((1 - c^2)^(1/2) + c arcsin c),   c = cov / (v v')^(1/2).
    """
    root1, root2 = xp.sqrt(var1)[:, :, None], xp.sqrt(var2)[:, None, :]
    c = cov * _inverse(xp, root1) * _inverse(xp, root2)
    c = xp.clip(c, -1.0, 1.0)
    shape = xp.sqrt((1 - c) * (1 + c)) + c * xp.asin(c)
    return 2 / pi * xp.sum(shape * (root1 * weights[:, None, None]) * root2, axis=0)


def _inverse(xp: Any, x: Array) -> Array:
    """1/x, and 0 for 0: a member that is always at the mean of its batch."""
    return xp.where(x > 0, 1 / xp.where(x > 0, x, xp.ones_like(x)), xp.zeros_like(x))


def _root_det(xp: Any, grown: Array) -> Array:
    """prod(grown)^(-1/2) over the last axis."""
    return xp.exp(-0.5 * xp.sum(xp.log(grown), axis=-1))


def _parts(slopes: Slopes) -> tuple[float, float]:
    """phi(x) = (a + b)/2 x + (a - b)/2 |x|; the cross terms x |x'| have expectation zero."""
    a, b = slopes
    return (a + b) / 2, (a - b) / 2


def _bound(xp: Any, like: Array, slopes: Slopes, bound: float, one: Spectrum, two: Spectrum) -> Array:
    """The error of each entry: a relative bound times the largest slope squared, times the scales.

    To `bound` comes what the rounding of sigma does to its small eigenvalues, and by them to a member.
    """
    relative = bound + one.rounding[:, None] + two.rounding
    return _like(xp, like, max(abs(a) for a in slopes) ** 2 * relative * np.outer(one.scale, two.scale))


def _rounding(like: Array) -> float:
    """What rounding does to a kernel, relative to the scales."""
    return 64 * float(array_namespace(like).finfo(like.dtype).eps)


def _pieces(count: int, entries: int) -> Iterator[slice]:
    """Slices of range(count) with at most CHUNK entries each, or a single node."""
    step = max(1, CHUNK // entries)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _symmetric(matrix: Array) -> Array:
    return (matrix + array_namespace(matrix).matrix_transpose(matrix)) / 2


def _like(xp: Any, like: Array, values: np.ndarray) -> Array:
    return xp.asarray(values, dtype=like.dtype)
