"""Fisher scoring: a search for the largest marginal likelihood that needs few kernels.

Minus the log likelihood f of the m columns of y ~ N(0, C), with alpha = C^-1 y and C_k = dC / d theta_k, has

    f_k = m/2 tr(C^-1 C_k) - 1/2 tr(alpha^T C_k alpha),      E f_jk = m/2 tr(C^-1 C_j C^-1 C_k) = I_jk,

and a step solves (I + damping diag I) step = -f' (Levenberg and Marquardt), within bounds. Each C_k takes one
kernel, so they are carried along: the kernel at theta + step, which is needed anyway, says what they come to
in the direction of the step, and Broyden's update puts just that right,

    K_k += (K(theta + step) - K(theta) - sum_j K_j step_j) w_k step_k / sum_j w_j step_j^2,     w_k = |K_k|^2.

When a step with slopes that were carried along fails, or no step would gain more, they are computed anew: the
search ends where none would with fresh slopes, or where several steps together gain next to nothing.

Osborne 1992, "Fisher's method of scoring"; Broyden 1965.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import OptimizeResult

from netsor.gp.factor import solve
from netsor.gp.objective import FAILED, Objective, Place

__all__ = ["Scoring", "gradient_and_information"]

LONGEST = 1.0  # in log variance: further away kernels are other kernels
LEAST, FIRST, MOST = 1e-9, 1e-3, 1e6  # damping: never less, at first, and then no step is left
POOR, GOOD = 0.25, 0.75  # of the gain that was foreseen
PATIENCE, NOTHING = 8, 1e-6  # steps that together gain less than that of log likelihood end the search


@dataclass(eq=False)
class Scoring:
    """The search.

    limits  of all of theta
    steps   that it takes at most
    enough  it ends where a step would gain less
    count   is told how many kernels were computed, and the last value
    """

    objective: Objective
    limits: tuple[float, float]
    steps: int
    enough: float
    count: Callable[[int, float], None]

    def search(self, theta: np.ndarray) -> OptimizeResult:
        place = self.at(theta)
        if place.value >= FAILED:
            return OptimizeResult(x=theta, fun=FAILED, success=False, message="no likelihood at the start")
        slopes, fresh, damping, before = self.slopes(place), True, FIRST, np.inf
        idle, mark = 0, place.value
        for _ in range(self.steps):
            model = self.model(place, slopes)
            if model.most() < self.enough or damping > MOST:
                if fresh or before - place.value < self.enough:
                    return OptimizeResult(x=place.theta, fun=place.value, success=True, message="converged")
                slopes, fresh, damping, before = self.slopes(place), True, FIRST, place.value
                continue
            step = model.step(damping)
            foreseen = model.gain(step)
            if foreseen <= 0:  # the bounds are in its way
                damping *= 10
                continue
            found = self.at(place.theta + step)
            idle, mark = (0, found.value) if found.value < mark - NOTHING else (idle + 1, mark)
            if idle == PATIENCE:
                best = min(place, found, key=lambda one: one.value)
                return OptimizeResult(x=best.theta, fun=best.value, success=True, message="converged")
            share = (place.value - found.value) / foreseen
            if share > GOOD:
                damping = max(damping / 10, LEAST)
            elif share < POOR and fresh:
                damping *= 10
            if share > 0:
                slopes = carried(slopes, found.matrix - place.matrix, step)
                place = found
            if share < POOR and (share > 0 or not fresh):
                if before - place.value < self.enough:
                    return OptimizeResult(x=place.theta, fun=place.value, success=True, message="converged")
                slopes, fresh, before = self.slopes(place), True, place.value
            elif share > 0:
                fresh = False
        return OptimizeResult(x=place.theta, fun=place.value, success=False, message="no more steps")

    def at(self, theta: np.ndarray) -> Place:
        place = self.objective.at(theta)
        self.count(1, place.value)
        return place

    def slopes(self, place: Place) -> np.ndarray:
        found = self.objective.slopes(place)
        self.count(len(self.objective.moving), place.value)
        return found

    def model(self, place: Place, slopes: np.ndarray) -> Quadratic:
        low, high = (limit - place.theta for limit in self.limits)
        return Quadratic(*gradient_and_information(self.objective, place, slopes), low, high)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """f near a place, as f' step + step I step / 2, and how far each coordinate may go."""

    gradient: np.ndarray
    information: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def free(self) -> np.ndarray:
        """Coordinates that move f, and that no bound holds."""
        held = np.where(self.gradient > 0, self.low >= 0, self.high <= 0)
        return ~held & (np.diagonal(self.information) > 0)

    def gain(self, step: np.ndarray) -> float:
        return float(-(self.gradient @ step + step @ self.information @ step / 2))

    def most(self) -> float:
        """The gain of the best step of any length."""
        step, free = np.zeros(len(self.gradient)), self.free
        step[free] = np.linalg.lstsq(self.information[np.ix_(free, free)], -self.gradient[free])[0]
        return self.gain(step)

    def step(self, damping: float) -> np.ndarray:
        """A step within bounds: what would go beyond stays there, and the others are solved for again."""
        damped = self.information + damping * np.diag(np.diagonal(self.information))
        low, high = np.maximum(self.low, -LONGEST), np.minimum(self.high, LONGEST)
        step, free = np.zeros(len(self.gradient)), self.free
        while free.any():
            right = self.gradient + damped[:, ~free] @ step[~free]
            step[free] = np.linalg.lstsq(damped[np.ix_(free, free)], -right[free])[0]
            inside = (step >= low) & (step <= high)
            step = np.clip(step, low, high)
            if inside[free].all():
                break
            free = free & inside
        return step


def gradient_and_information(
    objective: Objective, place: Place, slopes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """f' and I of the first lines, from the slopes dK of the kernel."""
    changes, columns = objective.changes(place, slopes), objective.y.shape[1]
    inside = np.stack([solve(place.lower, change) for change in changes])  # C^-1 C_k
    quadratic = np.einsum("im,kij,jm->k", place.alpha, changes, place.alpha)
    gradient = (columns * np.einsum("kii->k", inside) - quadratic) / 2
    return gradient, columns / 2 * np.einsum("aij,bji->ab", inside, inside)


def carried(slopes: np.ndarray, change: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Broyden's update, in units in which all slopes are of size 1: what hardly moves the kernel stays so."""
    weights = np.einsum("kij,kij->k", slopes, slopes) * step
    size = float(weights @ step)
    if not size:
        return slopes
    rest = change - np.tensordot(step, slopes, 1)
    return slopes + weights[:, None, None] * (rest / size)
