"""Tuning: find the network's variances and the noise that maximise the marginal likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import OptimizeResult, minimize

from netsor import arguments
from netsor.build.joint_program import as_inputs
from netsor.errors import DataError, warn
from netsor.gp.factor import InferenceError, check_noise
from netsor.gp.gradient import free_groups, jax_runs
from netsor.gp.objective import FAILED, NOISE, Objective
from netsor.gp.regression import GP, fit
from netsor.gp.targets import arrange, as_kernel, output_sizes
from netsor.limits.inputs import InputSet
from netsor.limits.kernel import KernelFn
from netsor.progress import bar

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Tuned:
    """The result of `tune`.

    Attributes
    ----------
    model : GP
        The Gaussian process with the best variances and noise.
    params : dict
        The variances by name.
    noise : float
        The variance of the noise.
    value, start : float
        The log marginal likelihood of the model, and at the start of the search.
    method : str
        "jax", "differences" or "nelder-mead".
    evaluations : int
        Number of kernel matrices computed, including those for differences. JAX counts a matrix with its
        gradient as one.
    converged : bool
        Whether the optimiser reports convergence.
    message : str
        The optimiser's reason to stop.
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


def tune(
    kernel: KernelFn,
    x: InputSet,
    y: ArrayLike | Sequence[ArrayLike],
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

    The search runs over logarithms, and is deterministic. A warning names the variances that end at a bound,
    because the data do not determine them.

    Parameters
    ----------
    kernel, x, y
        As for `ns.gp.fit`.
    noise, params
        The start of the search. Variances of 0 stay 0.
    fixed, tied
        Names of variances to keep, "noise" may be among them, and groups of names that change by a common
        factor, e.g. [["W1", "W2"], ["b*"]].
    bounds
        The smallest and the largest value of each variance.
    method
        "jax" or "differences": L-BFGS with compiled gradients, or differences of kernels on fixed sample
        points. "nelder-mead": without derivatives. "auto": "jax" if it is installed, the kernel has exact
        methods and it compiles in seconds, else "differences".
    restarts, seed
        Number of additional searches from random points near the start, and their seed. The best counts.
    steps
        The most iterations of a search.
    progress
        As for `ns.kernel`, or a function of (evaluations, log marginal likelihood).

    Returns
    -------
    Tuned
        The fitted model, and a report of the search.

    Raises
    ------
    DataError
        An argument is invalid.
    InferenceError
        The likelihood does not exist at any point of the search.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> x = np.linspace(-1, 1, 8)[:, None]
    >>> K = ns.kernel(ns.zoo.mlp(1))
    >>> tuned = ns.gp.tune(K, x, np.sin(x[:, 0]), fixed=["W1"], steps=3)
    >>> tuned.value > tuned.start
    True
    """
    arguments.choice("method", method, ("auto", "jax", "differences", "nelder-mead"))
    kernel, inputs = as_kernel(kernel), as_inputs(x)
    table, _ = arrange(y, output_sizes(kernel.net, inputs))
    given = arguments.mapping("params", params, '{"W1": 2.0}')
    values = {**kernel.params, **{k: arguments.number(k, v, least=0) for k, v in given.items()}}
    fixed = arguments.names("fixed", fixed)
    if "noise" in values:
        raise DataError("the network has a variance named `noise`", remedy="Give it another name.")
    start = check_noise(noise)
    if start.ndim or (start == 0 and "noise" not in fixed):
        raise DataError(
            f"noise={arguments.shown(noise)}",
            remedy='The search for a noise starts at a number > 0; fixed=["noise"] keeps 0.',
        )
    values["noise"] = float(start)
    objective = Objective(kernel, inputs, table, values, free_groups(values, tied, fixed))
    limits = _bounds(bounds)
    if method == "auto":
        runs = objective.exact and jax_runs(kernel, inputs, objective.network_part(values))
        method = "jax" if runs else "differences"
    user = progress if callable(progress) else None
    shown = False if user else arguments.flag("progress", progress, or_none=True)
    with bar(shown, 0, "tuning") as advance:
        most = arguments.whole("steps", steps, 1)
        search = _Search(objective, method, limits, most, user, advance)
        best = search.best(arguments.whole("restarts", restarts, 0), arguments.seed(seed))
    variances = {name: float(value) for name, value in objective.unpack(best.x).items()}
    _warn_of_bounds(objective, best.x, limits)
    model = fit(kernel, inputs, y, noise=variances["noise"], params=objective.network_part(variances))
    return Tuned(
        model=model,
        params=model.params,
        noise=variances["noise"],
        value=model.log_marginal_likelihood(),
        start=search.values[0],
        method=method,
        evaluations=objective.evaluations,
        converged=bool(best.success),
        message=str(best.message),
    )


@dataclass(eq=False)
class _Search:
    """Runs SciPy's optimisers, and reports to a user's function or a progress bar."""

    objective: Objective
    method: str
    limits: tuple[float, float]
    steps: int
    user: Progress | None
    advance: Callable[[str], None]
    values: list[float] = field(default_factory=list)  # log likelihoods

    def best(self, restarts: int, seed: int) -> OptimizeResult:
        """Run the searches from the start and from random points near it, and return the best."""
        spread = 2.0  # of log variances: a factor of 7 up or down
        start = self.objective.start
        near = start + np.random.default_rng(seed).uniform(-spread, spread, (restarts, len(start)))
        best = min(map(self.run, np.clip([start, *near], *self.limits)), key=lambda run: run.fun)
        if best.fun >= FAILED:
            raise InferenceError(
                "the marginal likelihood exists nowhere the search went",
                remedy="Start with a larger noise, or narrower bounds.",
            )
        return best

    def run(self, theta: np.ndarray) -> OptimizeResult:
        """Search from theta (k,)."""
        if not len(theta):
            self.values.append(-self.objective.value(theta))
            return OptimizeResult(x=theta, fun=-self.values[0], success=True, message="nothing is free")
        return self._without_gradient(theta) if self.method == "nelder-mead" else self._with_gradient(theta)

    def report(self, value: float) -> float:
        """Report a value of the objective, and return it."""
        self.values.append(-value)
        self.advance(f"log marginal likelihood {max(self.values):.6g}")
        if self.user:
            self.user(self.objective.evaluations, -value)
        return value

    def _with_gradient(self, theta: np.ndarray) -> OptimizeResult:
        """Run L-BFGS, in units that make all directions about equally steep."""
        if self.method == "jax":
            function, units = self.objective.with_jax(), np.ones(len(theta))
        else:
            function, units = self.objective.with_differences, self.objective.uncertainties(theta)

        def scaled(u: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = function(theta + units * u)
            return self.report(value), units * slope

        low, high = self.limits
        result = _minimize(
            scaled,
            np.zeros(len(theta)),
            3,
            # The likelihood of a sampled kernel varies with its points, typically by more than this.
            1e-6 if self.objective.exact else 1e-2,
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip((low - theta) / units, (high - theta) / units, strict=True)),
            options={"maxiter": self.steps, "ftol": 1e-12, "gtol": 1e-6, "maxls": 10},
        )
        result.x = np.clip(theta + units * result.x, *self.limits)
        return result

    def _without_gradient(self, theta: np.ndarray) -> OptimizeResult:
        """Run Nelder and Mead's search."""
        size, enough = len(theta), 1e-4  # in units of log likelihood: a simplex resolves no smaller gains
        corners = np.vstack([theta, theta + np.eye(size)])  # one unit of log variance along each axis
        corners[1:][corners[1:] > self.limits[1]] -= 2.0
        options = {
            "maxiter": self.steps * size,
            "maxfev": 2 * self.steps * size,
            "xatol": 1e-3,
            "fatol": enough,
            "initial_simplex": corners,
            "adaptive": size > 4,
        }
        search = {"method": "Nelder-Mead", "bounds": [self.limits] * size, "options": options}
        return _minimize(
            lambda theta: self.report(self.objective.value(theta)), theta, 20 * (size + 1), enough, **search
        )


def _minimize(function: Any, start: np.ndarray, window: int, enough: float, **options: Any) -> OptimizeResult:
    """SciPy's `minimize`, converged also when `window` iterations together gain less than `enough`."""
    values: list[float] = []

    def converged() -> bool:
        return len(values) > window and values[-1 - window] - values[-1] < enough

    def watch(intermediate_result: OptimizeResult) -> None:
        values.append(float(intermediate_result.fun))
        if converged():
            raise StopIteration  # SciPy's way to end a search

    result = minimize(function, start, callback=watch, **options)
    if converged():
        result.success, result.message = True, "converged"
    return result


def _warn_of_bounds(objective: Objective, theta: np.ndarray, limits: tuple[float, float]) -> None:
    """Warn of variances that ended at a bound, except a noise at the lower one: the data have no noise."""
    low, high = limits
    near = 0.05 * (high - low)  # within this distance of a bound the likelihood is flat
    values = objective.unpack(theta)
    extreme = [
        f"{' = '.join(group)} = {values[group[0]]:.3g}"
        for group, place in zip(objective.groups, theta, strict=True)
        if place > high - near or (place < low + near and group != NOISE)
    ]
    if extreme:
        warn(
            f"the likelihood is largest at the bounds of {', '.join(extreme)}",
            "The data do not determine these variances, and predictions may depend on the bounds. Fix some "
            '(fixed=["b1"]), tie them (tied=[["W*"], ["b*"]]), give other bounds=(low, high), or scale the '
            "targets to a variance near 1.",
        )


def _bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    remedy = "Give variances (low, high) with 0 < low < high."
    if not isinstance(bounds, Sequence) or isinstance(bounds, str | bytes) or len(bounds) != 2:
        raise DataError(f"bounds={arguments.shown(bounds)}", remedy=remedy)
    low = arguments.number("bounds=(low, high): low", bounds[0], above=0, remedy=remedy)
    high = arguments.number("bounds=(low, high): high", bounds[1], above=low, remedy=remedy)
    return float(np.log(low)), float(np.log(high))
