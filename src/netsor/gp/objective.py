"""The marginal likelihood of targets as a function of the variances of a network, and its gradient.

With C = K + nugget I, m columns of targets y and alpha = C^-1 y, minus the log likelihood f changes by

    df / d theta_k = sum_ij G_ij (dC / d theta_k)_ij,      G = (m C^-1 - alpha alpha^T) / 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.gp.factor import InferenceError, cholesky, likelihood, log_determinant, needed_jitter, solve
from netsor.gp.gradient import scaled
from netsor.lang.array_api import double_precision
from netsor.limits.kernel import KernelFn
from netsor.limits.kernel_tiles import of_params

FAILED = 1e30  # the value where the likelihood does not exist; finite, as optimisers need
NOISE = ("noise",)

ValueAndGradient = Callable[[np.ndarray], tuple[float, np.ndarray]]


@dataclass(frozen=True, eq=False)
class _Point:
    """The factorised covariance at theta, for the likelihood and its derivatives."""

    theta: np.ndarray  # (k,)
    matrix: np.ndarray  # K (rows, rows)
    noise: float
    raised: bool  # whether the nugget is the jitter, not the noise
    lower: np.ndarray  # the Cholesky factor of C (rows, rows)
    alpha: np.ndarray  # C^-1 y (rows, columns)
    value: float  # minus the log likelihood


@dataclass(eq=False)
class Objective:
    """Minus the log marginal likelihood as a function of theta, the logarithms of the free variances.

    Each entry of `groups` is a tuple of names that change by a common factor; theta is the logarithm of the
    first. The noise is the group `NOISE`. As in `fit`, the diagonal is raised by the noise or the jitter, the
    larger of the two. Here the jitter is a fixed fraction of the trace, so that it scales with the variances.
    """

    kernel: KernelFn
    inputs: list[Any]
    y: np.ndarray  # (rows, columns)
    values: dict[str, float]
    groups: list[tuple[str, ...]]
    jitter: float = field(init=False)
    evaluations: int = 0  # number of kernel matrices computed; JAX counts one with its gradient as one

    def __post_init__(self) -> None:
        self.y = self.y - self.kernel.mean(self.inputs)[:, None]
        result = self.kernel.evaluate(self.inputs, params=self.network_part(self.values))
        matrix = np.asarray(result.value, np.float64)
        trace = float(np.trace(matrix))
        self.jitter = needed_jitter(np.diagonal(matrix), result.bound.rms) / trace if trace > 0 else 0.0
        self.exact = result.plan.exact
        # One function for the whole search: it fixes sample points and methods, so the objective is smooth.
        self.of_params = of_params(self.kernel, self.inputs)

    @property
    def start(self) -> np.ndarray:
        return np.array([np.log(self.values[group[0]]) for group in self.groups])

    def unpack(self, theta: Any, exp: Callable[[Any], Any] = np.exp) -> dict[str, Any]:
        """All variances and the noise at theta, by name."""
        return scaled(self.values, self.groups, exp(theta))

    def network_part(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The variances without the noise."""
        return {name: value for name, value in values.items() if name != "noise"}

    def value(self, theta: np.ndarray) -> float:
        """Minus the log likelihood; `FAILED` if the matrix is not positive definite."""
        point = self._at(theta)
        return FAILED if point is None else point.value

    def with_differences(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient by differences of kernels: one kernel per group, none for the noise."""
        point = self._at(theta)
        if point is None:
            return FAILED, np.zeros(len(theta))
        columns, rows = self.y.shape[1], np.eye(len(self.y))
        # G of the module docstring; then each derivative is one elementwise product and sum.
        by_matrix = (columns * solve(point.lower, rows) - point.alpha @ point.alpha.T) / 2
        return point.value, np.array([np.sum(by_matrix * dC) for dC in self._slopes(point)])

    def uncertainties(self, theta: np.ndarray) -> np.ndarray:
        """The standard error of each theta, (1 + m/2 tr(C^-1 dC C^-1 dC))^-1/2 for m columns of targets.

        The trace is the Fisher information, the 1 that of a unit normal prior.
        """
        point = self._at(theta)
        if point is None:
            return np.ones(len(theta))
        inside = (solve(point.lower, dC) for dC in self._slopes(point))  # C^-1 dC
        return np.array([(1 + self.y.shape[1] / 2 * np.sum(part * part.T)) ** -0.5 for part in inside])

    def _at(self, theta: np.ndarray) -> _Point | None:
        """Factorise the covariance at theta; None if the likelihood does not exist there."""
        try:
            matrix, noise = self._matrix(theta), float(self.unpack(theta)["noise"])
            nugget = max(noise, self.jitter * float(np.trace(matrix)))
            lower = cholesky(matrix, nugget)
        except (LimitError, InferenceError):
            return None
        alpha = solve(lower, self.y)
        value = -float(likelihood(log_determinant(lower), alpha, self.y))
        return _Point(theta, matrix, noise, nugget > noise, lower, alpha, value)

    def _matrix(self, theta: np.ndarray) -> np.ndarray:
        """K at theta, (rows, rows)."""
        self.evaluations += 1
        values = {name: float(value) for name, value in self.unpack(theta).items()}
        return np.asarray(self.of_params(self.network_part(values)), np.float64)

    def _slopes(self, point: _Point) -> Iterator[np.ndarray]:
        """Yield dC / d theta_k (rows, rows) for each k."""
        step = 2.0**-24  # near eps^(1/2): truncation and rounding are both about 1e-7
        rows = np.eye(len(self.y))
        for k, group in enumerate(self.groups):
            slope = np.zeros_like(rows)
            if group != NOISE:
                moved = point.theta.copy()
                moved[k] += step
                slope = (self._matrix(moved) - point.matrix) / step
            # C = K + nugget I, and the nugget is jitter * trace(K) or the noise.
            if point.raised:
                slope += self.jitter * np.trace(slope) * rows
            elif "noise" in group:
                slope += point.noise * rows
            yield slope

    def with_jax(self) -> ValueAndGradient:
        """A compiled function of theta that returns value and gradient, by JAX."""
        import jax  # type: ignore[import-not-found]
        import jax.numpy as jnp  # type: ignore[import-not-found]
        from jax.scipy.linalg import cho_solve  # type: ignore[import-not-found]

        def negative(theta: Any) -> Any:
            values = self.unpack(theta, jnp.exp)
            matrix = jnp.asarray(self.kernel(self.inputs, params=self.network_part(values)))
            nugget = jnp.maximum(values["noise"], self.jitter * jnp.trace(matrix))
            lower = jnp.linalg.cholesky(matrix + nugget * jnp.eye(len(self.y)))
            alpha = cho_solve((lower, True), self.y)
            return -likelihood(log_determinant(lower, jnp.log), alpha, self.y)

        compiled = jax.jit(jax.value_and_grad(negative))

        def run(theta: np.ndarray) -> tuple[float, np.ndarray]:
            self.evaluations += 1
            with double_precision():
                value, slope = compiled(jnp.asarray(theta, jnp.float64))
            if not (np.isfinite(value) and np.isfinite(slope).all()):
                return FAILED, np.zeros(len(theta))
            return float(value), np.asarray(slope, np.float64)

        return run
