"""Hyperparameters: the variances of the network and the noise that maximise the marginal likelihood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from netsor import arguments
from netsor.build.network import as_inputs
from netsor.errors import DataError, LimitError
from netsor.gp.factor import InferenceError, check_noise, cholesky, likelihood, needed_jitter, solve
from netsor.gp.gradient import jax_runs
from netsor.gp.regression import GP, fit
from netsor.gp.targets import arrange, as_kernel, output_sizes
from netsor.lang.libraries import double_precision
from netsor.limits.kernel import KernelFn
from netsor.progress import bar

__all__ = ["Objective", "Tuned", "tune"]

METHODS = ("auto", "jax", "differences", "nelder-mead")
FAILED = 1e30  # in place of a likelihood that does not exist
SPREAD = 2.0  # restarts begin within this many units of log variance
FORWARD = 2.0**-24  # a step in log variance, near eps^(1/2): slopes have errors of about 1e-7

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Tuned:
    """What `tune` found.

    model        the Gaussian process with the best variances and noise
    value        its log marginal likelihood; `start` is the one before
    method       "jax", "differences" or "nelder-mead"
    evaluations  kernel matrices that were computed, those for differences among them (with JAX: together with
                 their gradient)
    converged    whether the optimiser says so
    """

    model: GP
    params: dict[str, float]
    noise: float
    value: float
    start: float
    method: str
    evaluations: int
    converged: bool
    message: str


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
    of the first. The noise is the group ("noise",). As in `fit` the diagonal is raised by the noise, but
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
        values = {name: float(value) for name, value in self.unpack(theta).items()}
        try:
            matrix = self.matrix(theta)
            nugget = max(values["noise"], self.jitter * float(np.trace(matrix)))
            lower = cholesky(matrix, nugget)
        except (InferenceError, LimitError):
            return Place(theta, FAILED)
        alpha = solve(lower, self.y)
        return Place(theta, -likelihood(lower, alpha, self.y), matrix, lower, alpha, nugget > values["noise"])

    def matrix(self, theta: np.ndarray) -> np.ndarray:
        values = {name: float(value) for name, value in self.unpack(theta).items()}
        return np.asarray(self.of_params(self.network_part(values)), np.float64)

    def differences(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient, from the derivatives of the kernel by differences: one kernel for each.

        With dC the derivative of the covariance C = K + noise of the m columns of y, and alpha = C^-1 y,

            gradient = m/2 tr(C^-1 dC) - 1/2 tr(alpha^T dC alpha).
        """
        place = self.at(theta)
        if place.value >= FAILED:
            return FAILED, np.zeros(len(theta))
        gradient, columns = np.zeros(len(theta)), self.y.shape[1]
        for k, group in enumerate(self.groups):
            change = self._change(place, k, group)
            quadratic = float(np.sum(place.alpha * (change @ place.alpha)))
            gradient[k] = (columns * float(np.trace(solve(place.lower, change))) - quadratic) / 2
        return place.value, gradient

    def _change(self, place: Place, k: int, group: tuple[str, ...]) -> np.ndarray:
        """dC by theta_k; the noise needs no kernel."""
        rows, noise = np.eye(len(self.y)), float(np.exp(place.theta[k]))
        if group == ("noise",):
            return np.zeros_like(rows) if place.raised else noise * rows
        moved = place.theta.copy()
        moved[k] += FORWARD
        change = (self.matrix(moved) - place.matrix) / FORWARD
        return change + self.jitter * float(np.trace(change)) * rows if place.raised else change

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


def tune(
    kernel: KernelFn,
    x: Any,
    y: Any,
    *,
    noise: float = 1e-2,
    params: Mapping[str, float] | None = None,
    fixed: Sequence[str] = (),
    tied: Sequence[Sequence[str]] = (),
    bounds: tuple[float, float] = (1e-5, 1e5),
    method: str = "auto",
    restarts: int = 0,
    seed: int = 0,
    steps: int = 200,
    progress: bool | Progress | None = None,
) -> Tuned:
    """Maximise the marginal likelihood over the variances of the network and the noise.

    noise, params  where the search starts; variances of 0 stay 0
    fixed          names that do not move, among them "noise"
    tied           groups of names that move by one common factor, e.g. [["W1", "W2"], ["b1", "b2"]]
    method         "jax": L-BFGS with compiled gradients; "differences": L-BFGS with differences of kernels,
                   which with their seed fixed are smooth also where they are sampled;
                   "nelder-mead": without derivatives; "auto": "jax" if it is installed, the kernel has exact
                   methods and it compiles in seconds, else "differences"
    restarts       more searches from random places near the start, drawn from `seed`; the best one counts
    steps          iterations of each search
    progress       as for `ns.kernel`, or a function of (evaluation, log marginal likelihood)

    The same arguments give the same result.
    """
    kernel, inputs = as_kernel(kernel), as_inputs(x)
    table, _ = arrange(y, output_sizes(kernel.net, inputs))
    given = arguments.mapping("params", params, '{"W1": 2.0}')
    values = {**kernel.params, **{k: arguments.number(k, v, least=0) for k, v in given.items()}}
    fixed = arguments.names("fixed", fixed)
    if "noise" in values:
        raise DataError("the network has a variance named `noise`", remedy="Give it another name.")
    values["noise"] = _positive_noise(noise, fixed)
    objective = Objective(kernel, inputs, table, values, _groups(values, fixed, tied))
    low, high = _bounds(bounds)
    how = _method(method, objective)
    search = _Search(objective, how, (low, high), arguments.whole("steps", steps, 1))
    restarts = arguments.whole("restarts", restarts, 0)
    with _shown(progress) as tell:
        search.tell = tell
        best = search.best(restarts, arguments.seed(seed))
    found = {name: float(value) for name, value in objective.unpack(best.x).items()}
    model = fit(kernel, inputs, y, noise=found["noise"], params=objective.network_part(found))
    return Tuned(
        model,
        model.params,
        found["noise"],
        model.log_marginal_likelihood(),
        -search.first,
        how,
        search.evaluations,
        bool(best.success),
        str(best.message),
    )


@dataclass(eq=False)
class _Search:
    """Runs the optimiser and counts."""

    objective: Objective
    method: str
    limits: tuple[float, float]
    steps: int
    tell: Progress = lambda evaluation, value: None
    evaluations: int = 0
    first: float = np.nan

    def best(self, restarts: int, seed: int) -> OptimizeResult:
        rng, start = np.random.default_rng(seed), self.objective.start
        function = self.function()
        runs = []
        for k in range(1 + restarts):
            theta = start if k == 0 else start + rng.uniform(-SPREAD, SPREAD, len(start))
            runs.append(self.run(function, np.clip(theta, *self.limits)))
        found = min(runs, key=lambda run: run.fun)
        if found.fun >= FAILED:
            raise InferenceError(
                "the marginal likelihood exists nowhere the search went",
                remedy="Start with a larger noise, or narrower bounds.",
            )
        return found

    def function(self) -> Callable[[np.ndarray], Any]:
        if self.method == "jax":
            plain = self.objective.with_jax()
        else:
            plain = self.objective.differences if self.method == "differences" else self.objective.value
        moved = sum(group != ("noise",) for group in self.objective.groups)
        cost = 1 + moved if self.method == "differences" else 1

        def counted(theta: np.ndarray) -> Any:
            found = plain(theta)
            self.evaluations += cost
            value = found[0] if isinstance(found, tuple) else found
            self.first = value if np.isnan(self.first) else self.first
            self.tell(self.evaluations, -value)
            return found

        return counted

    def run(self, function: Callable[[np.ndarray], Any], theta: np.ndarray) -> OptimizeResult:
        size = len(theta)
        if not size:
            value = self.objective.value(theta)
            self.first = value
            return OptimizeResult(x=theta, fun=value, success=True, message="nothing is free")
        box = [self.limits] * size
        if self.method != "nelder-mead":
            # Of a sampled kernel the likelihood is not known better than that.
            options = {"maxiter": self.steps, "ftol": 1e-12 if self.objective.exact else 1e-5, "gtol": 1e-6}
            return minimize(function, theta, jac=True, method="L-BFGS-B", bounds=box, options=options)
        corners = np.vstack([theta, theta + np.eye(size)])  # a unit of log variance along each axis
        corners[1:][corners[1:] > self.limits[1]] -= 2.0
        options = {
            "maxiter": self.steps * size,
            "maxfev": 2 * self.steps * size,
            "xatol": 1e-3,
            "fatol": 1e-4,
        }
        options |= {"initial_simplex": corners, "adaptive": size > 4}
        return minimize(function, theta, method="Nelder-Mead", bounds=box, options=options)


def _groups(
    values: Mapping[str, float], fixed: Sequence[str], tied: Sequence[Sequence[str]]
) -> list[tuple[str, ...]]:
    """The names that move, tied ones together."""
    tied = tied_groups(tied)
    named = [name for group in tied for name in group]
    for name in (*fixed, *named):
        if name not in values:
            raise DataError(f"there is no variance `{name}`", remedy=f"Known: {', '.join(values)}.")
    if len(set(named)) < len(named) or set(named) & set(fixed):
        raise DataError("a variance is tied twice, or tied and fixed", remedy="Name each variance once.")
    free = [name for name, value in values.items() if value > 0 and name not in fixed]
    groups = [tuple(name for name in group if name in free) for group in tied]
    return [g for g in groups if g] + [(name,) for name in free if name not in named]


def tied_groups(tied: Any) -> list[tuple[str, ...]]:
    """Groups of names that move by one common factor."""
    if not isinstance(tied, str | bytes | Mapping) and isinstance(tied, Iterable):
        return [arguments.names("tied[...]", group) for group in tied]
    raise DataError(
        f"tied={arguments.shown(tied)}",
        remedy="Give groups of names, as in tied=[['W1', 'W2'], ['b1', 'b2']].",
    )


def _positive_noise(noise: Any, fixed: Sequence[str]) -> float:
    value = check_noise(noise)
    if value.ndim or (value == 0 and "noise" not in fixed):
        raise DataError(
            f"noise={arguments.shown(noise)}",
            remedy='The search for a noise starts at a number > 0; fixed=["noise"] keeps 0.',
        )
    return float(value)


def _bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    remedy = "Give variances (low, high) with 0 < low < high."
    if not isinstance(bounds, Sequence) or isinstance(bounds, str | bytes) or len(bounds) != 2:
        raise DataError(f"bounds={arguments.shown(bounds)}", remedy=remedy)
    low = arguments.number("bounds=(low, high): low", bounds[0], above=0, remedy=remedy)
    return float(np.log(low)), float(
        np.log(arguments.number("bounds=(low, high): high", bounds[1], above=low, remedy=remedy))
    )


def _method(method: str, objective: Objective) -> str:
    if arguments.choice("method", method, METHODS) != "auto":
        return method
    values = objective.network_part(objective.values)
    runs = objective.exact and jax_runs(objective.kernel, objective.inputs, values)
    return "jax" if runs else "differences"


@contextmanager
def _shown(progress: bool | Progress | None) -> Iterator[Progress]:
    """What is told of each evaluation."""
    if callable(progress):
        yield progress
        return
    best = -np.inf
    with bar(arguments.flag("progress", progress, or_none=True), 0, "tuning") as advance:

        def tell(evaluation: int, value: float) -> None:
            nonlocal best
            best = max(best, value)
            advance(f"log marginal likelihood {best:.6g}")

        yield tell
