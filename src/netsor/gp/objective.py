"""The marginal likelihood of targets as a function of the variances of a network, and what it changes by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.gp.factor import InferenceError, cholesky, likelihood, needed_jitter, solve
from netsor.lang.libraries import double_precision
from netsor.limits.kernel import KernelFn

__all__ = ["FAILED", "NOISE", "Objective", "Place"]

FAILED = 1e30  # in place of a likelihood that does not exist
FORWARD = 2.0**-24  # a step in log variance, near eps^(1/2): slopes have errors of about 1e-7
NOISE = ("noise",)


@dataclass(frozen=True, eq=False)
class Place:
    """Where a search is: minus the log likelihood, the kernel, and the factor of the covariance C.

    alpha   C^-1 y
    raised  whether the diagonal is raised by the jitter, and not by the noise
    """

    theta: np.ndarray
    value: float
    matrix: Any = None
    lower: Any = None
    alpha: Any = None
    raised: bool = False


@dataclass(eq=False)
class Objective:
    """Minus the log marginal likelihood as a function of theta, the logarithms of what is free.

    Each entry of `groups` is a tuple of names that move by one common factor, and theta is the logarithm
    of the first. The noise is the group `NOISE`. As in `fit` the diagonal is raised by the noise, but
    at least by the jitter, here as a fixed part of the trace so that it moves with the variances.
    """

    kernel: KernelFn
    inputs: list[Any]
    y: np.ndarray
    values: dict[str, float]
    groups: list[tuple[str, ...]]
    jitter: float = field(init=False)

    def __post_init__(self) -> None:
        self.y = self.y - self.kernel.mean(self.inputs)[:, None]
        result = self.kernel.evaluate(self.inputs, params=self.network_part(self.values))
        matrix = np.asarray(result.value, np.float64)
        trace = float(np.trace(matrix))
        self.jitter = needed_jitter(np.diagonal(matrix), result.bound.rms) / trace if trace > 0 else 0.0
        self.exact = result.plan.exact
        self.of_params = self.kernel.of_params(self.inputs)

    @property
    def start(self) -> np.ndarray:
        return np.array([np.log(self.values[group[0]]) for group in self.groups])

    def unpack(self, theta: Any, exp: Callable[[Any], Any] = np.exp) -> dict[str, Any]:
        """All variances, and the noise, at theta."""
        moved: dict[str, Any] = dict(self.values)
        for k, group in enumerate(self.groups):
            for name in group:
                moved[name] = exp(theta[k]) * (self.values[name] / self.values[group[0]])
        return moved

    def network_part(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name != "noise"}

    def value(self, theta: np.ndarray) -> float:
        """With NumPy; a matrix that is not positive definite counts as very unlikely."""
        return self.at(theta).value

    def at(self, theta: np.ndarray) -> Place:
        """The likelihood, and what its derivatives are made of."""
        try:
            matrix = self.matrix(theta)
        except LimitError:
            return Place(theta, FAILED)
        return self.place(theta, matrix)

    def place(self, theta: np.ndarray, matrix: np.ndarray) -> Place:
        """The same for a kernel that is known."""
        noise = float(self.unpack(theta)["noise"])
        nugget = max(noise, self.jitter * float(np.trace(matrix)))
        try:
            lower = cholesky(matrix, nugget)
        except InferenceError:
            return Place(theta, FAILED)
        alpha = solve(lower, self.y)
        return Place(theta, -likelihood(lower, alpha, self.y), matrix, lower, alpha, nugget > noise)

    def gradient(self, place: Place) -> tuple[np.ndarray, float]:
        """By the entries of the kernel, (rows, rows), and by the logarithm of the noise."""
        rows, columns = np.eye(len(self.y)), self.y.shape[1]
        found = (columns * solve(place.lower, rows) - place.alpha @ place.alpha.T) / 2
        trace = float(np.trace(found))
        if place.raised:
            return found + self.jitter * trace * rows, 0.0
        return found, float(self.unpack(place.theta)["noise"]) * trace

    def matrix(self, theta: np.ndarray) -> np.ndarray:
        values = {name: float(value) for name, value in self.unpack(theta).items()}
        return np.asarray(self.of_params(self.network_part(values)), np.float64)

    def slopes(self, place: Place) -> np.ndarray:
        """(groups, rows, rows): dK by theta, by differences, one kernel each; the noise needs none."""
        found = np.zeros((len(self.groups), *place.matrix.shape))
        for k in self.moving:
            moved = place.theta.copy()
            moved[k] += FORWARD
            found[k] = (self.matrix(moved) - place.matrix) / FORWARD
        return found

    @property
    def moving(self) -> list[int]:
        """The groups that the kernel depends on."""
        return [k for k, group in enumerate(self.groups) if group != NOISE]

    def changes(self, place: Place, slopes: np.ndarray) -> np.ndarray:
        """dC by theta, from dK: the diagonal is raised by the noise, or by a part of the trace."""
        rows, found = np.eye(len(self.y)), slopes
        if place.raised:
            found = found + self.jitter * np.einsum("kii->k", slopes)[:, None, None] * rows
        elif NOISE in self.groups:
            k = self.groups.index(NOISE)
            found = found.copy()
            found[k] = np.exp(place.theta[k]) * rows
        return found

    def with_jax(self) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        """Value and gradient by JAX, compiled."""
        import jax  # type: ignore[import-not-found]
        import jax.numpy as jnp  # type: ignore[import-not-found]
        from jax.scipy.linalg import cho_solve  # type: ignore[import-not-found]

        def negative(theta: Any) -> Any:
            values = self.unpack(theta, jnp.exp)
            matrix = jnp.asarray(self.kernel(self.inputs, params=self.network_part(values)))
            nugget = jnp.maximum(values["noise"], self.jitter * jnp.trace(matrix))
            lower = jnp.linalg.cholesky(matrix + nugget * jnp.eye(len(self.y)))
            rows, targets = self.y.shape
            constant = jnp.sum(jnp.log(jnp.diagonal(lower))) + rows / 2 * np.log(2 * np.pi)
            return 0.5 * jnp.sum(self.y * cho_solve((lower, True), self.y)) + targets * constant

        compiled = jax.jit(jax.value_and_grad(negative))

        def run(theta: np.ndarray) -> tuple[float, np.ndarray]:
            with double_precision():
                value, slope = compiled(jnp.asarray(theta, jnp.float64))
            if not (np.isfinite(value) and np.isfinite(slope).all()):
                return FAILED, np.zeros(len(theta))
            return float(value), np.asarray(slope, np.float64)

        return run
