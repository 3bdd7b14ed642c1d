"""Hyperparameters: the variances of the network and the noise that maximise the marginal likelihood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from netsor import arguments
from netsor.build.network import as_inputs
from netsor.errors import DataError, warn
from netsor.gp.exploring import Exploring
from netsor.gp.factor import InferenceError, check_noise
from netsor.gp.gradient import jax_runs
from netsor.gp.objective import FAILED, NOISE, Objective
from netsor.gp.regression import GP, fit
from netsor.gp.scoring import Scoring
from netsor.gp.targets import arrange, as_kernel, output_sizes
from netsor.gp.tied import tied_groups
from netsor.limits.kernel import KernelFn
from netsor.progress import bar

__all__ = ["Tuned", "tune"]

METHODS = ("auto", "jax", "differences", "nelder-mead")
SPREAD = 2.0  # restarts begin within this many units of log variance
ENOUGH, COARSE = 1e-6, 1e-4  # of log likelihood: a search that gains less has ended; without derivatives
EXTREME = 0.05  # of the logarithmic range between the bounds: a variance so near to one of them is at it
EXPLORED = 1  # restarts where the kernel is sampled: with two, more than a tenth of Nelder and Mead's kernels

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
    restarts: int | None = None,
    seed: int = 0,
    steps: int = 200,
    progress: bool | Progress | None = None,
) -> Tuned:
    """Maximise the marginal likelihood over the variances of the network and the noise.

    noise, params  where the search starts; variances of 0 stay 0
    fixed          names that do not move, among them "noise"
    tied           groups of names that move by one common factor, e.g. [["W1", "W2"], ["b*"]]
    method         "jax": L-BFGS with compiled gradients; "differences": scoring (`netsor.gp.scoring`) with
                   differences of kernels, which with their seed fixed are smooth also where they are sampled,
                   there after searches on interpolated kernels (`netsor.gp.exploring`);
                   "nelder-mead": without derivatives; "auto": "jax" if it is installed, the kernel has exact
                   methods and it compiles in seconds, else "differences"
    restarts       more searches from random places near the start, drawn from `seed`; the best one counts.
                   None: 1 where "differences" are of a sampled kernel, whose likelihood has several optima
                   and whose searches share what they have seen; else 0
    steps          iterations of each search; it ends before where nothing is gained any more
    progress       as for `ns.kernel`, or a function of (evaluation, log marginal likelihood)

    The same arguments give the same result. A warning names the variances that ended at the bounds: the
    data do not determine them.
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
    if restarts is not None:
        restarts = arguments.whole("restarts", restarts, 0)
    with _shown(progress) as tell:
        search.tell = tell
        best = search.best(restarts, arguments.seed(seed))
    found = {name: float(value) for name, value in objective.unpack(best.x).items()}
    _warn_of_bounds(objective, best.x, (low, high))
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

    @property
    def explores(self) -> bool:
        """Whether searches run on interpolated kernels first: sampled ones have long valleys, many optima."""
        return self.method == "differences" and not self.objective.exact and bool(self.objective.moving)

    def best(self, restarts: int | None, seed: int) -> OptimizeResult:
        rng, start = np.random.default_rng(seed), self.objective.start
        more = (EXPLORED if self.explores else 0) if restarts is None else restarts
        others = start + rng.uniform(-SPREAD, SPREAD, (more, len(start)))
        function = self.function()
        search = Exploring(self.objective, self.limits, self.steps, self.count).search
        runs = [
            search(theta) if self.explores else self.run(function, theta)
            for theta in np.clip([start, *others], *self.limits)
        ]
        found = min(runs, key=lambda run: run.fun)
        if self.explores and found.fun < FAILED:
            found = self.run(function, found.x)
        if found.fun >= FAILED:
            raise InferenceError(
                "the marginal likelihood exists nowhere the search went",
                remedy="Start with a larger noise, or narrower bounds.",
            )
        return found

    def function(self) -> Callable[[np.ndarray], Any]:
        plain = self.objective.with_jax() if self.method == "jax" else self.objective.value

        def counted(theta: np.ndarray) -> Any:
            found = plain(theta)
            self.count(1, found[0] if isinstance(found, tuple) else found)
            return found

        return counted

    def count(self, kernels: int, value: float) -> None:
        """So many kernels more, the last with that likelihood."""
        self.evaluations += kernels
        self.first = value if np.isnan(self.first) else self.first
        self.tell(self.evaluations, -value)

    def run(self, function: Callable[[np.ndarray], Any], theta: np.ndarray) -> OptimizeResult:
        size = len(theta)
        if not size:
            value = self.objective.value(theta)
            self.first = value
            return OptimizeResult(x=theta, fun=value, success=True, message="nothing is free")
        if self.method == "differences":
            # That of a sampled kernel is another with other points, by 0.02 and more.
            enough = 1e-8 if self.objective.exact else 1e-2
            return Scoring(self.objective, self.limits, self.steps, enough, self.count).search(theta)
        box = [self.limits] * size
        if self.method == "jax":
            options = {"maxiter": self.steps, "ftol": 1e-12, "gtol": 1e-6, "maxls": 10}
            patience = _Patience(3, ENOUGH)
            return patience.judge(
                minimize(
                    function,
                    theta,
                    jac=True,
                    method="L-BFGS-B",
                    bounds=box,
                    options=options,
                    callback=patience,
                )
            )
        corners = np.vstack([theta, theta + np.eye(size)])  # a unit of log variance along each axis
        corners[1:][corners[1:] > self.limits[1]] -= 2.0
        options = {
            "maxiter": self.steps * size,
            "maxfev": 2 * self.steps * size,
            "xatol": 1e-3,
            "fatol": COARSE,
        }
        options |= {"initial_simplex": corners, "adaptive": size > 4}
        patience = _Patience(20 * (size + 1), COARSE)
        return patience.judge(
            minimize(function, theta, method="Nelder-Mead", bounds=box, options=options, callback=patience)
        )


@dataclass(eq=False)
class _Patience:
    """Ends a search of SciPy's when so many iterations together gain less than `enough`."""

    iterations: int
    enough: float
    values: list[float] = field(default_factory=list)
    ended: bool = False

    def __call__(self, intermediate_result: OptimizeResult) -> None:
        self.values.append(float(intermediate_result.fun))
        self.ended = len(self.values) > self.iterations and (
            self.values[-1 - self.iterations] - self.values[-1] < self.enough
        )
        if self.ended:
            raise StopIteration  # which ends a search of SciPy's

    def judge(self, result: OptimizeResult) -> OptimizeResult:
        """A search that was ended here has converged."""
        if self.ended:
            result.success, result.message = True, "converged"
        return result


def _warn_of_bounds(objective: Objective, theta: np.ndarray, limits: tuple[float, float]) -> None:
    """Name the variances that ended at the bounds; a noise at the lowest says that there is none."""
    low, high = limits
    near = EXTREME * (high - low)
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


def _groups(
    values: Mapping[str, float], fixed: Sequence[str], tied: Sequence[Sequence[str]]
) -> list[tuple[str, ...]]:
    """The names that move, tied ones together."""
    groups = tied_groups(tied, values)
    named = [name for group in groups for name in group]
    for name in fixed:
        if name not in values:
            raise DataError(f"there is no variance `{name}`", remedy=f"Known: {', '.join(values)}.")
    if len(set(named)) < len(named) or set(named) & set(fixed):
        raise DataError("a variance is tied twice, or tied and fixed", remedy="Name each variance once.")
    free = [name for name, value in values.items() if value > 0 and name not in fixed]
    groups = [tuple(name for name in group if name in free) for group in groups]
    return [g for g in groups if g] + [(name,) for name in free if name not in named]


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
