"""A centred Gaussian batch y, the law of |y|^2, and rules for 1/|y|^2 and 1/|y| that fit this law.

A rule replaces 1/q or q^(-1/2) by a sum of exponentials w_k exp(-s_k q). It is the trapezoid rule for

    1/q      = int exp(-s q) ds,    s = c exp(x - exp(-x))                       (Takahasi and Mori 1974)
    q^(-1/2) = 2 c pi^(-1/2) int_0^oo cosh(x) exp(-q c^2 sinh(x)^2) dx

Its relative error delta(q) only matters where q = |y|^2 / E|y|^2 is likely to be: near 1 for a batch of many
members, so its rules are short. The bound is

    D = max over k of E[bn_k^2 f(q)] / E[bn_k^2],    f = |delta| + delta^2 / 2,

for the axes k of the batch. It also bounds E f(q), because the bn_k^2 add up to B. Chernoff bounds

    E[bn_k^2; q < a] <= exp(s a) E[bn_k^2 exp(-s q)],    E[bn_k^2; q > b] <= B E[y_k^2 exp(s q - s b)] / b,

turn into a bound on D: replace f by the least function above it that increases away from q = 1 on both sides.

For derivatives of batchnorm, one rule serves q^(-1/2) and q^(-3/2), the latter as the sum of
2 w_k s_k exp(-s_k q). The bound is on E[f(q)/q] / E[1/q] with f = delta^2; by Cauchy-Schwarz its root bounds
the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, log, pi, sqrt

import numpy as np

from netsor.errors import DataError

Rule = tuple[np.ndarray, np.ndarray]  # nodes s_k and weights w_k


@dataclass(frozen=True)
class ExponentialSum:
    """sum_k weights[k] exp(-nodes[k] q), with the bound D on its error."""

    nodes: np.ndarray
    weights: np.ndarray
    error: float


@dataclass(frozen=True)
class SquaredNormLaw:
    """The law of q: a grid down and up from 1, (2, points), and bounds on the mass beyond each point."""

    q: np.ndarray
    chances: np.ndarray

    def mean(self, f: np.ndarray) -> np.ndarray:
        """Return a bound on the mean of f, given on the grid as (2, points, ...): an array `(...)`."""
        above = np.maximum.accumulate(f, axis=1)
        grown = np.diff(above, axis=1) * self.chances[:, :-1].reshape(2, -1, *(1,) * (f.ndim - 2))
        return np.max(above[:, 0], axis=0) + np.sum(grown, axis=(0, 1))


@dataclass(frozen=True)
class SlopeLaw(SquaredNormLaw):
    """The law of q with the weight 1/q; its mass is E[1/q].

    sensitivities  - d log E[1/q] / d log values[k], between 0 and 1
    """

    mass: float
    sensitivities: np.ndarray


@dataclass(frozen=True, eq=False)
class GaussianBatch:
    """y = total^(1/2) basis diag(values)^(1/2) e with e ~ N(0, I_rank); the values ascend and add up to 1.

    squares  E[bn_k^2] for each column k of the basis, (rank,)
    law      the law of q, weighted by bn_k^2
    origin   the member that covariances are relative to
    floor    the rounding of the values, for numbers of precision `eps`
    """

    sigma: np.ndarray
    basis: np.ndarray
    values: np.ndarray
    total: float
    squares: np.ndarray
    law: SquaredNormLaw
    origin: int
    floor: float
    eps: float
    rules: dict[float, ExponentialSum] = field(default_factory=dict)

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

    def errors(self, rule: Rule, power: float) -> np.ndarray:
        """Return the bound D for q^-power and the rules that end at each node."""
        delta = np.abs(_sums(self.law, rule, power) - 1)
        return self.law.mean(delta + delta**2 / 2)

    @cached_property
    def slope_law(self) -> SlopeLaw:
        """The law of q with the weight 1/q, which has a finite mass for rank 3 or more."""
        return _slope_law(self.values)

    @property
    def slope_rounding(self) -> float:
        """The relative error of E[1/q] if each eigenvalue is off by the rounding of sigma, floor / 8."""
        return float(np.sum(self.slope_law.sensitivities * np.minimum(1, self.floor / 8 / self.values)))


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
    squares, beyond = _mean_squares(values, B)
    law = SquaredNormLaw(*_tails(values, np.log(np.max(_lifted(values) / (squares / B), axis=1)), *beyond))
    return GaussianBatch(sigma, H @ vectors, values, total, squares, law, origin, floor / total, eps)


def relative(sigma: np.ndarray, row: int, column: int) -> np.ndarray:
    """cov(z_i - z_row, z'_j - z'_column): centring takes it to the same G sigma G'."""
    return (sigma - sigma[row]) - (sigma[:, column, None] - sigma[row, column])


def _sum_zero_basis(B: int) -> np.ndarray:
    """Return orthonormal vectors of sum 0, (B, B - 1): vector k compares member k with those before it."""
    i, k = np.arange(B)[:, None], np.arange(1, B)
    return ((i < k) - np.where(i == k, k, 0)) / np.sqrt(k * (k + 1.0))


def _mean_squares(values: np.ndarray, B: int) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """kappa_k = E[bn_k^2] = B int l_k / (1 + 2 s l_k) prod_m (1 + 2 s l_m)^(-1/2) ds along axis k; sum B.

    Also return (log s, the largest fraction over k of the integral beyond s). The step 1/4 in log s is exact
    to 1e-16, because the integrand is analytic for |Im log s| < pi.
    """
    step = 0.25
    x = np.arange(-42.0, 10.0 - log(values[0]) + 80.0 / len(values), step)
    growth = np.log1p(2 * np.exp(x)[:, None] * values)
    parts = np.exp(x[:, None] + np.log(values) - growth - 0.5 * np.sum(growth, axis=1, keepdims=True))
    beyond = np.cumsum(parts[::-1], axis=0)[::-1]
    return B * step * beyond[0], (x, np.max(beyond / beyond[0], axis=1))


def _slope_law(values: np.ndarray) -> SlopeLaw:
    """E[1/q] = int prod_m (1 + 2 s l_m)^(-1/2) ds as in `_mean_squares`.

    E[1/q; q > b] <= E[exp(t q - t b)] / b.
    """
    step = 0.25
    x = np.arange(-42.0, 75.0 / (len(values) / 2 - 1) - log(values[0]), step)
    growth = np.log1p(2 * np.exp(x)[:, None] * values)
    part = np.exp(x - 0.5 * np.sum(growth, axis=1))
    beyond = np.cumsum(part[::-1])[::-1]
    sensitivities = np.sum(part[:, None] * -np.expm1(-growth), axis=0) / beyond[0] / 2
    return SlopeLaw(
        *_tails(values, np.zeros(1), x, beyond / beyond[0]), step * float(beyond[0]), sensitivities
    )


# Exponents t of exp(t q) for Chernoff bounds, relative to the largest t for which exp(t q) has a mean.
EXPONENTS = np.linspace(0.02, 0.98, 25)[:, None]


def _lifted(values: np.ndarray) -> np.ndarray:
    """values / (1 - 2 t values) for each exponent t."""
    return values / (1 - EXPONENTS * values / values[-1])


def _tails(
    values: np.ndarray, logs_above: np.ndarray, x: np.ndarray, beyond: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid in q, and Chernoff bounds on the mass beyond each point, at the best s of a grid.

    logs_above  for each exponent t, the logarithm of b E[exp(t q); q > b] with the weights of the law,
                without that of prod (1 - 2 t values)^(-1/2)
    """
    logs, s = np.log(np.maximum(beyond, 1e-300)), np.exp(x)
    t = EXPONENTS / (2 * values[-1])
    tops = logs_above - 0.5 * np.sum(np.log(1 - 2 * t * values), axis=1)
    nowhere = log(1e-20)  # the probability beyond the end of the grid
    low, high = np.max((nowhere - logs) / s), np.min((tops - nowhere) / t[:, 0])
    ends = np.log([[min(low, 0.5)], [max(high, 2.0)]])
    q = np.exp(ends * np.linspace(0, 1, 48) ** 2)
    below = np.min(q[0][:, None] * s + logs, axis=1)
    above = np.min(tops - q[1][:, None] * t[:, 0], axis=1) - np.log(q[1])
    return q, np.exp(np.minimum(np.stack([below, above]), 0.0))


# Rules.


def root_rule(batch: GaussianBatch, target: float) -> ExponentialSum:
    """Return q^(-1/2) as a sum of exponentials; keep it with the batch, which is in many pairs."""
    if target not in batch.rules:
        batch.rules[target] = _shortest(
            lambda step: _root_nodes(batch.law, step), lambda rule: batch.errors(rule, 0.5), 5.0, target
        )
    return batch.rules[target]


def reciprocal_rule(batch: GaussianBatch, target: float) -> ExponentialSum:
    """Return 1/q as a sum of exponentials."""
    return _shortest(
        lambda step: _reciprocal_nodes(batch.law, step), lambda rule: batch.errors(rule, 1.0), 9.0, target
    )


def slope_rule(batch: GaussianBatch, target: float) -> ExponentialSum:
    """Return q^(-1/2) and q^(-3/2) as sums of exponentials with the same nodes."""
    law = batch.slope_law

    def errors(rule: Rule) -> np.ndarray:
        nodes, weights = rule
        deltas = (_sums(law, rule, 0.5) - 1, _sums(law, (nodes, 2 * nodes * weights), 1.5) - 1)
        return np.sqrt(law.mean(np.max([delta**2 for delta in deltas], axis=0)))

    return _shortest(lambda step: _root_nodes(law, step), errors, 5.0, target)


def _shortest(
    rule: Callable[[float], Rule], errors: Callable[[Rule], np.ndarray], decay: float, target: float
) -> ExponentialSum:
    """Return the rule of the largest step that reaches the target, cut at the node where it does.

    The error falls approximately like exp(-decay / step), which predicts the step to try next.
    """
    step = decay / log(9 / target)
    while True:
        nodes, weights = rule(step)
        bounds = errors((nodes, weights))
        if bounds.min() <= target / 2:
            count = int(np.argmax(bounds <= target)) + 1
            return ExponentialSum(nodes[:count], weights[:count], float(bounds[count - 1]))
        step /= 1.08


def _sums(law: SquaredNormLaw, rule: Rule, power: float) -> np.ndarray:
    """q^power times the sums of exponentials that end at each node, shape (2, points, nodes)."""
    nodes, weights = rule
    q = law.q[:, :, None]
    return np.cumsum(np.exp(-q * nodes) * weights, axis=2) * q**power


def _root_nodes(law: SquaredNormLaw, step: float) -> Rule:
    """Nodes (c sinh(x))^2. The integrand is even in x, so the node 0 counts half.

    Rules are shortest with c^2 q = 50 at the largest q, but other values are not much worse.
    """
    c = sqrt(50 / law.q.max())
    x = step * np.arange(ceil(np.arcsinh(sqrt(50 / law.q.min()) / c) / step) + 1)
    nodes, weights = (c * np.sinh(x)) ** 2, 2 * c / sqrt(pi) * step * np.cosh(x)
    weights[0] /= 2
    return nodes, weights


def _reciprocal_nodes(law: SquaredNormLaw, step: float) -> Rule:
    """Nodes c exp(x - exp(-x)) above rounding; rules are short with c q = 20 at the largest q."""
    c = 20 / law.q.max()
    x = step * np.arange(-ceil(3.6 / step), ceil(log(50 / law.q.min() / c) / step) + 1)
    nodes = c * np.exp(x - np.exp(-x))
    return nodes, step * (1 + np.exp(-x)) * nodes
