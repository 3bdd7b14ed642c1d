"""A centred Gaussian batch y, integrals over the law of q = |y|^2 / E|y|^2, and exponential sums for q^-1/2.

Integrals int_0^oo f(s) ds take the double exponential rule, the trapezoid rule in x with s = exp(x - exp(-x))
(Takahasi and Mori 1974). With the eigenvalues l_m of the batch, which add up to 1,

    E[exp(-s q)] = prod_m (1 + 2 s l_m)^(-1/2),    1/q = int_0^oo exp(-s q) ds.

The trapezoid rule of step h for

    q^(-1/2) = 2 c pi^(-1/2) int_0^oo cosh(x) exp(-q c^2 sinh(x)^2) dx

has the relative error delta(q). On the line Im x = v < pi/4 the integrand is at most exp(t q) cos(2 v)^(-1/2)
times as large, t = c^2 sin(v)^2; so without its end (Trefethen and Weideman 2014)

    |delta(q)| <= e exp(t q),    e = 2 cos(2 v)^(-1/2) / (exp(2 pi v / h) - 1).

Without the nodes above s, it is larger by at most 2 exp(-s q). For derivatives of batchnorm, the same nodes
serve q^(-3/2), the sum of 2 w_k s_k exp(-s_k q): there cos(2 v) has the power -3/2, t is larger by the factor
1 + 2 cos(2 v), and the nodes above s count with 9/4 exp(-s q / 2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import cos, log, pi, sin, sqrt

import numpy as np

from netsor.errors import DataError

Rule = tuple[np.ndarray, np.ndarray]  # nodes s_k and weights w_k


@dataclass(frozen=True)
class SlopeLaw:
    """The law of q with the weight 1/q, which has a finite mass E[1/q] for rank 3 or more.

    nodes, beyond  nodes s, and the fractions of E[1/q] that come from each node and those above
    rounding       the relative error of E[1/q] if each eigenvalue is off by the rounding of sigma, floor / 8
    """

    mass: float
    nodes: np.ndarray
    beyond: np.ndarray
    rounding: float


@dataclass(frozen=True, eq=False)
class GaussianBatch:
    """y = total^(1/2) basis diag(values)^(1/2) e with e ~ N(0, I_rank); the values ascend and add up to 1.

    squares  E[bn_k^2] for each column k of the basis, (rank,)
    rule     nodes and weights of int_0^oo E[y_k y_l exp(-s q)] ds
    beyond   the largest fraction over k of E[bn_k^2] that comes from each node and those above
    origin   the member that covariances are relative to
    floor    the rounding of the values, for numbers of precision `eps`
    """

    sigma: np.ndarray
    basis: np.ndarray
    values: np.ndarray
    total: float
    squares: np.ndarray
    rule: Rule
    beyond: np.ndarray
    origin: int
    floor: float
    eps: float
    roots: dict[float, Rule] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.basis)

    @property
    def scale(self) -> np.ndarray:
        """E[bn_i^2]^(1/2) for each member i."""
        return np.sqrt(self.basis**2 @ self.squares)

    @property
    def peak(self) -> np.ndarray:
        """The largest |bn_i| for each member i."""
        return np.sqrt(self.size * np.sum(self.basis**2, axis=1))

    @property
    def rounding(self) -> np.ndarray:
        """The relative error of E[bn_i^2] if each eigenvalue is off by the rounding of sigma, floor / 8."""
        parts = self.basis**2 @ (self.squares * np.minimum(1, self.floor / 8 / self.values))
        return parts / np.maximum(self.scale**2, 1e-300)

    @cached_property
    def slope_law(self) -> SlopeLaw:
        """E[1/q] = int prod_m (1 + 2 s l_m)^(-1/2) ds."""
        s, weights = exponential_nodes(75 / (len(self.values) / 2 - 1) - log(self.values[0]))
        growth = np.log1p(2 * s[:, None] * self.values)
        part = weights * np.exp(-0.5 * np.sum(growth, axis=1))
        beyond = np.cumsum(part[::-1])[::-1]
        # - d log E[1/q] / d log values[k], between 0 and 1
        sensitivities = np.sum(part[:, None] * -np.expm1(-growth), axis=0) / beyond[0] / 2
        rounding = float(np.sum(sensitivities * np.minimum(1, self.floor / 8 / self.values)))
        return SlopeLaw(float(beyond[0]), s, beyond / beyond[0], rounding)


def batch_of(sigma: np.ndarray, eps: float) -> GaussianBatch:
    """The eigenvalues of G sigma G = H (H^T sigma H) H^T, H an orthonormal basis of the vectors of sum 0.

    First subtract the member of least variance, which G cancels anyway: then members that are nearly equal
    lose no digits. Eigenvalues within the rounding of sigma count as zero.
    """
    B = len(sigma)
    if sigma.shape != (B, B) or not np.isfinite(sigma).all():
        raise DataError(
            f"a batch covariance of shape {sigma.shape} is not a finite square matrix",
            remedy="Batchnorm needs the covariance (B, B) of the preactivations of each batch.",
        )
    origin = int(np.argmin(np.diagonal(sigma)))
    H = _sum_zero_basis(B)
    floor = 8 * sqrt(B) * eps * float(np.max(np.diagonal(sigma)))
    inner = H.T @ relative(sigma, origin, origin) @ H
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    rank = int(np.sum(values > floor))
    if rank == 0:
        raise DataError(
            f"all {B} members of a batch have equal preactivations" if B > 1 else "a batch has one member",
            remedy="Batchnorm divides by the standard deviation over the batch, which is zero there: use "
            "batches with different members, or eps > 0.",
        )
    values, vectors = values[B - 1 - rank :], vectors[:, B - 1 - rank :]
    total = float(np.sum(values))
    values = values / total
    # E[bn_k^2] = B int l_k / (1 + 2 s l_k) prod_m (1 + 2 s l_m)^(-1/2) ds
    s, weights = exponential_nodes(80 / rank - log(values[0]))
    growth = np.log1p(2 * s[:, None] * values)
    parts = weights[:, None] * values * np.exp(-growth - 0.5 * np.sum(growth, axis=1, keepdims=True))
    beyond = np.cumsum(parts[::-1], axis=0)[::-1]
    most = np.max(beyond / beyond[0], axis=1)
    return GaussianBatch(
        sigma, H @ vectors, values, total, B * beyond[0], (s, weights), most, origin, floor / total, eps
    )


def relative(sigma: np.ndarray, row: int, column: int) -> np.ndarray:
    """cov(z_i - z_row, z'_j - z'_column): centring takes it to the same G sigma G'."""
    return (sigma - sigma[row]) - (sigma[:, column, None] - sigma[row, column])


def _sum_zero_basis(B: int) -> np.ndarray:
    """Return orthonormal vectors of sum 0, (B, B - 1): vector k compares member k with those before it."""
    i, k = np.arange(B)[:, None], np.arange(1, B)
    return ((i < k) - np.where(i == k, k, 0)) / np.sqrt(k * (k + 1.0))


# Rules.


def exponential_nodes(end: float) -> Rule:
    """Return the double exponential rule for int_0^oo f(s) ds, up to log s = end."""
    step = 0.24  # exact to 1e-14 for means of exp(-s q), which are analytic in s where Re s > -1/4
    x = np.arange(-3.6, end, step)
    s = np.exp(x - np.exp(-x))
    return s, step * (1 + np.exp(-x)) * s


def root_rule(batch: GaussianBatch, target: float) -> Rule:
    """Return q^(-1/2) as a sum of exponentials; keep it with the batch, which is in many pairs.

    `target` bounds E[bn_k^2 f(q)] / E[bn_k^2] for all axes k, and so E[f(q)], with f = |delta| + delta^2 / 2.
    Half of it is for the nodes that are left out, with at most 4 exp(-s q) in f, and half for the step: the
    square of delta is below e exp(t q) too, on the line of half the exponent t.
    """
    if target not in batch.roots:
        t = _exponents(batch)
        spread = 1 - 2 * t[:, None] * batch.values
        # E[bn_k^2 exp(t q)] = E[bn_k^2] + int_0^t B E[y_k^2 exp(u q)] du, and the integrand grows.
        grown = np.max(batch.size * batch.values / batch.squares / spread, axis=1) * root_det(spread)
        top = batch.rule[0][np.argmax(batch.beyond <= target / 8)]
        batch.roots[target] = _sinh_rule(t, target / 4 / (1 + t * grown), float(top), 0.5)
    return batch.roots[target]


def slope_rule(batch: GaussianBatch, target: float) -> Rule:
    """Return q^(-1/2) and q^(-3/2) as sums of exponentials with the same nodes.

    `target` bounds (E[delta^2 / q] / E[1/q])^(1/2) for both: delta^2 is at most twice the squares of the
    errors of the step and of the nodes that are left out.
    """
    law, t = batch.slope_law, _exponents(batch)
    # E[exp(t q) / q] = E[1/q] + int_0^t E[exp(u q)] du, and the integrand grows.
    growth = 1 + t * root_det(1 - 2 * t[:, None] * batch.values) / law.mass
    top = law.nodes[np.argmax(law.beyond <= target**2 / 21)]
    return _sinh_rule(t / 2, target / 2 / np.sqrt(growth), float(top), 1.5)


def _exponents(batch: GaussianBatch) -> np.ndarray:
    """Exponents t for which exp(t q) has a mean, among which the shortest rule is chosen."""
    return np.linspace(0.04, 0.92, 23) / (2 * batch.values[-1])


def _sinh_rule(exponents: np.ndarray, errors: np.ndarray, top: float, power: float) -> Rule:
    """Nodes (c sinh(x))^2 up to `top`: the shortest rule with |delta| <= error exp(t q) for one of the pairs.

    The integrand is even in x, so the node 0 counts half.
    """
    v = 0.76  # a little below pi / 4
    c = np.sqrt(exponents if power == 0.5 else exponents / (1 + 2 * cos(2 * v))) / sin(v)
    steps = 2 * pi * v / np.log1p(2 * cos(2 * v) ** -power / errors)
    counts = np.ceil(np.arcsinh(sqrt(top) / c) / steps)
    best = np.argmin(counts)
    x, c = steps[best] * np.arange(counts[best] + 1), c[best]
    nodes, weights = (c * np.sinh(x)) ** 2, 2 * c / sqrt(pi) * steps[best] * np.cosh(x)
    weights[0] /= 2
    return nodes, weights


def root_det(grown: np.ndarray) -> np.ndarray:
    """prod(grown)^(-1/2) over the last axis."""
    return np.exp(-0.5 * np.sum(np.log(grown), axis=-1))
