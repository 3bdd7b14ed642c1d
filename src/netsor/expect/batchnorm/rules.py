"""A centred Gaussian batch y, the law of |y|^2, and sums of exponentials for 1/|y|^2 and 1/|y| that suit it.

A rule is a sum over k of w_k exp(-s_k q) in place of 1/q or q^(-1/2). Its relative error delta(q) matters
only where q = |y|^2 / E|y|^2 is likely to be, and a batch of many members has q close to 1: the rules are as
short as the law of q allows. What is bounded is

    D = max over k of E[bn_k^2 f(q)] / E[bn_k^2],    f = |delta| + delta^2 / 2,

for the axes k of the batch; it also bounds E f(q), as the bn_k^2 add up to B. Bounds of Chernoff's kind,

    E[bn_k^2; q < a] <= exp(s a) E[bn_k^2 exp(-s q)],    E[bn_k^2; q > b] <= B E[y_k^2 exp(s q - s b)] / b,

turn into one on D: f is replaced by the least function above it that grows on both sides of q = 1.

For derivatives of batchnorm (`slope_rule`) one rule serves q^(-1/2) and q^(-3/2), the latter as the sum of
2 w_k s_k exp(-s_k q). There E[f(q)/q] / E[1/q] with f = delta^2 is bounded, whose root is the error by the
inequality of Cauchy and Schwarz. Small q matter more, so these rules are longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil, exp, log, pi, sqrt

import numpy as np

from netsor.errors import DataError

__all__ = ["Batch", "Rule", "batch_of", "reciprocal_rule", "relative", "root_rule", "slope_rule"]

POINTS = 48  # of the grid in log q, on each side of q = 1
NOWHERE = 1e-20  # chance beyond the grid
SPREAD = 50.0  # of the rules in s, where few nodes do; half and twice it need about one more
PANEL = 6.0  # in log s; longer ones have too many nodes to be found fast


@dataclass(frozen=True)
class Rule:
    """sum_k weights[k] exp(-nodes[k] q), with the bound D on its error."""

    nodes: np.ndarray
    weights: np.ndarray
    error: float


@dataclass(frozen=True)
class Law:
    """Where q is: a grid from 1 downwards and from 1 upwards (2, points), and bounds on what is beyond it."""

    q: np.ndarray
    chances: np.ndarray

    @property
    def unit(self) -> float:
        """The scale of s in the rules."""
        return SPREAD / float(self.q[1, -1])

    def mean(self, f: np.ndarray) -> np.ndarray:
        """A bound on the mean of f, which is given on the grid, (2, points, ...), for each index `...`."""
        above = np.maximum.accumulate(f, axis=1)
        grown = np.diff(above, axis=1) * self.chances[:, :-1].reshape(2, -1, *(1,) * (f.ndim - 2))
        return np.max(above[:, 0], axis=0) + np.sum(grown, axis=(0, 1))


@dataclass(frozen=True)
class SlopeLaw(Law):
    """The law of q with the weight 1/q; its mass is E[1/q], and `shares` those of the axes in it.

    shares  - d log E[1/q] / d log values[k], between 0 and 1
    """

    mass: float
    shares: np.ndarray


@dataclass(frozen=True, eq=False)
class Batch:
    """y = total^(1/2) basis diag(values)^(1/2) e with e ~ N(0, I_rank); the values ascend and add up to 1.

    shares   E[bn_k^2] along each column k of the basis
    beyond   log s, and the largest part over k that E[bn_k^2] = int ... ds has beyond s
    law      of q, with the weights bn_k^2
    origin   the member that covariances are taken relative to
    floor    the rounding of the values, for numbers of precision `eps`
    """

    sigma: np.ndarray
    basis: np.ndarray
    values: np.ndarray
    total: float
    shares: np.ndarray
    beyond: tuple[np.ndarray, np.ndarray]
    law: Law
    origin: int
    floor: float
    eps: float
    rules: dict[float, Rule] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.basis)

    @property
    def scale(self) -> np.ndarray:
        """E[bn_i^2]^(1/2) for each member i."""
        return np.sqrt(self.basis**2 @ self.shares)

    @property
    def peak(self) -> np.ndarray:
        """The largest |bn_i| for each member i."""
        return np.sqrt(self.size * np.sum(self.basis**2, axis=1))

    @property
    def rounding(self) -> np.ndarray:
        """The relative error of E[bn_i^2] from the rounding of sigma, floor / 8, in each eigenvalue."""
        parts = self.basis**2 @ (self.shares * np.minimum(1, self.floor / 8 / self.values))
        return parts / np.maximum(self.scale**2, 1e-300)

    def mean_error(self, sums: np.ndarray) -> np.ndarray:
        """The bound D for sums w_k exp(-s_k q) q^p on the grid, (2, points, ...), for each index `...`."""
        delta = np.abs(sums - 1)
        return self.law.mean(delta + delta**2 / 2)

    @cached_property
    def slope_law(self) -> SlopeLaw:
        """For a rank of 3 or more."""
        return _slope_law(self.values)

    @property
    def slope_rounding(self) -> float:
        """The relative error of E[1/q] from the rounding of sigma, floor / 8, in each eigenvalue."""
        return float(np.sum(self.slope_law.shares * np.minimum(1, self.floor / 8 / self.values)))


def batch_of(sigma: np.ndarray, eps: float) -> Batch:
    """The eigenvalues of G sigma G = H (H^T sigma H) H^T, H an orthonormal basis of the vectors of sum 0.

    Sigma is first taken relative to its member of least variance, which G cancels: members that have
    almost everything in common lose no digits then. Eigenvalues within the rounding of sigma are zero.
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
    shares, beyond = _shares(values, B)
    law = Law(*_tails(values, np.log(np.max(_lifted(values) / (shares / B), axis=1)), *beyond))
    return Batch(sigma, H @ vectors, values, total, shares, beyond, law, origin, floor / total, eps)


def relative(sigma: np.ndarray, row: int, column: int) -> np.ndarray:
    """cov(z_i - z_row, z'_j - z'_column): centring takes it to the same G sigma G'."""
    return (sigma - sigma[row]) - (sigma[:, column, None] - sigma[row, column])


def _sum_zero_basis(B: int) -> np.ndarray:
    """Orthonormal vectors of sum 0, shape (B, B - 1): vector k compares member k with those before it."""
    i, k = np.arange(B)[:, None], np.arange(1, B)
    return ((i < k) - np.where(i == k, k, 0)) / np.sqrt(k * (k + 1.0))


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


def _slope_law(values: np.ndarray) -> SlopeLaw:
    """E[1/q] = int prod_m (1 + 2 s l_m)^(-1/2) ds as in `_shares`; E[1/q; q > b] <= E[exp(t q - t b)] / b."""
    step = 0.25
    x = np.arange(-42.0, 75.0 / (len(values) / 2 - 1) - log(values[0]), step)
    growth = np.log1p(2 * np.exp(x)[:, None] * values)
    part = np.exp(x - 0.5 * np.sum(growth, axis=1))
    beyond = np.cumsum(part[::-1])[::-1]
    shares = np.sum(part[:, None] * -np.expm1(-growth), axis=0) / beyond[0] / 2
    return SlopeLaw(*_tails(values, np.zeros(1), x, beyond / beyond[0]), step * float(beyond[0]), shares)


EXPONENTS = np.linspace(0.02, 0.98, 25)[:, None]  # of exp(t q), relative to the largest that has a mean


def _lifted(values: np.ndarray) -> np.ndarray:
    """values / (1 - 2 t values) for each exponent t."""
    return values / (1 - EXPONENTS * values / values[-1])


def _tails(
    values: np.ndarray, logs_above: np.ndarray, x: np.ndarray, beyond: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The grid in q and the Chernoff bounds on what is beyond each of its points, at the best s of a grid.

    logs_above  for each exponent t, the logarithm of b E[exp(t q); q > b] with the weights of the law, beside
                that of prod (1 - 2 t values)^(-1/2)
    """
    logs, s = np.log(np.maximum(beyond, 1e-300)), np.exp(x)
    t = EXPONENTS / (2 * values[-1])
    tops = logs_above - 0.5 * np.sum(np.log(1 - 2 * t * values), axis=1)
    low = np.max((log(NOWHERE) - logs) / s)
    high = np.min((tops - log(NOWHERE)) / t[:, 0])
    ends = np.log([[min(low, 0.5)], [max(high, 2.0)]])
    q = np.exp(ends * np.linspace(0, 1, POINTS) ** 2)
    below = np.min(q[0][:, None] * s + logs, axis=1)
    above = np.min(tops - q[1][:, None] * t[:, 0], axis=1) - np.log(q[1])
    return q, np.exp(np.minimum(np.stack([below, above]), 0.0))


def root_rule(batch: Batch, target: float) -> Rule:
    """q^(-1/2) = 2 c pi^(-1/2) int_0^oo cosh(x) exp(-q c^2 sinh(x)^2) dx by the trapezoid rule.

    The integrand is even in x and analytic for |Im x| < pi/4, so that the error falls like exp(-pi^2 / 2h).
    """
    if target not in batch.rules:
        step = pi**2 / 2 / log(9 / target)
        while _roots(batch, step)[2][-1] > target / 2:
            step /= 1.08
        while _roots(batch, 1.08 * step)[2][-1] < target / 2:
            step *= 1.08
        nodes, weights, errors = _roots(batch, step)
        count = int(np.argmax(errors <= target)) + 1
        batch.rules[target] = Rule(nodes[:count], weights[:count], float(errors[count - 1]))
    return batch.rules[target]


def _roots(batch: Batch, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes, weights and the errors of the rules that end at each node."""
    nodes, weights = _root_nodes(batch.law, step)
    q = batch.law.q[:, :, None]
    return nodes, weights, batch.mean_error(np.cumsum(np.exp(-q * nodes) * weights * np.sqrt(q), axis=2))


def _root_nodes(law: Law, step: float) -> tuple[np.ndarray, np.ndarray]:
    c = sqrt(law.unit)
    x = step * np.arange(ceil(np.arcsinh(sqrt(50 / law.q.min()) / c) / step) + 1)
    nodes, weights = (c * np.sinh(x)) ** 2, 2 * c / sqrt(pi) * step * np.cosh(x)
    weights[0] /= 2
    return nodes, weights


def slope_rule(batch: Batch, target: float) -> Rule:
    """The same for q^(-1/2) and q^(-3/2) at once."""
    step = pi**2 / 2 / log(9 / target)
    while True:
        nodes, weights, errors = _slopes(batch.slope_law, step)
        if errors.min() <= target:
            count = int(np.argmax(errors <= target)) + 1
            return Rule(nodes[:count], weights[:count], float(errors[count - 1]))
        step /= 1.08


def _slopes(law: SlopeLaw, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes, weights and the errors of the rules that end at each node."""
    nodes, weights = _root_nodes(law, step)
    q = law.q[:, :, None]
    parts = np.exp(-q * nodes) * weights * np.sqrt(q)
    ones = (np.cumsum(p, axis=2) - 1 for p in (parts, 2 * q * nodes * parts))
    return nodes, weights, np.sqrt(law.mean(np.max([d * d for d in ones], axis=0)))


def reciprocal_rule(batch: Batch, target: float) -> Rule:
    """1/q = c int_0^X exp(x - q c (exp(x) - 1)) dx up to a small rest, by Gauss and Legendre's rule."""
    logs, beyond = batch.beyond
    last = int(np.argmax(beyond < target / 4))
    end, rest = exp(logs[last]), float(beyond[last])
    least, most = 4, 40
    while least < most:
        n = (least + most) // 2
        if _reciprocals(batch, n, end, rest).error <= target:
            most = n
        else:
            least = n + 1
    return _reciprocals(batch, most, end, rest)


def _reciprocals(batch: Batch, n: int, end: float, rest: float) -> Rule:
    """The rule with n nodes on each panel; `rest` is the error of the cut at s = `end`."""
    x, w = _panels(n, float(np.log1p(end / batch.law.unit)))
    nodes, weights = batch.law.unit * np.expm1(x), batch.law.unit * np.exp(x) * w
    sums = np.exp(-batch.law.q[..., None] * nodes) @ weights * batch.law.q
    cut = np.exp(-batch.law.q * end)
    return Rule(nodes, weights, float(batch.mean_error(sums + cut)) + rest)


def _panels(n: int, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss and Legendre's rule of n nodes on each of the equal panels of (0, end)."""
    count = ceil(end / PANEL)
    xi, w = _legendre(n)
    half = end / count / 2
    starts = 2 * half * np.arange(count)[:, None]
    return (starts + half * (1 + xi)).ravel(), np.tile(half * w, count)


@lru_cache
def _legendre(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(n)
