"""A search that needs few kernels: it moves on an interpolation of all kernels seen near by.

The likelihood of a sampled kernel has long valleys and several optima, and its slopes take as many kernels as
there are variances. Between places theta_i the kernel is interpolated instead, one kernel a step, by cubes of
distances and a linear part,

    g(theta) = sum_i a_i |theta - theta_i|^3 + b + c theta,      sum_i a_i = 0,  sum_i a_i theta_i = 0,

for g the logarithms of its diagonal and its correlations, in which the variance of a readout is linear. The
largest likelihood of this kernel within a box is tried next; the box grows where the interpolation was right
and shrinks where it was not. Where no more is gained, or the box is small, kernels are added in directions in
which none is near by.

Wild, Regis and Shoemaker 2008, "ORBIT", with the kernel in the place of the objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from netsor.gp.objective import FAILED, NOISE, Objective, Place

__all__ = ["Exploring", "Interpolated"]

FIRST, LONGEST, WIDE, LEAST = 1.0, 2.0, 0.5, 0.1  # boxes: at first, at most, wide enough to end, and at least
NEAR, APART = 0.9, 0.1  # in log variance: near by, and far enough apart to say something of a direction
MOVE = 0.3  # in log variance, of kernels that are added
ENOUGH = 1e-2  # of log likelihood: what is left is for `Scoring`
POOR, GOOD = 0.25, 0.75  # of the gain that was foreseen
INNER = 100  # steps on the interpolation


@dataclass(eq=False)
class Exploring:
    """The search; several of them share what was seen.

    limits  of all of theta
    steps   that each search takes at most
    count   is told how many kernels were computed, and the last value
    """

    objective: Objective
    limits: tuple[float, float]
    steps: int
    count: Callable[[int, float], None]
    seen: list[Seen] = field(default_factory=list)

    def search(self, theta: np.ndarray) -> OptimizeResult:
        here = self.at(theta)
        if here.value >= FAILED:
            return OptimizeResult(x=theta, fun=FAILED, success=False, message="no likelihood at the start")
        here, _ = self.surround(here)
        radius = FIRST
        for _ in range(self.steps):
            guess = self.best(here, radius)
            gain = here.value - guess.fun
            if gain < ENOUGH and guess.status == 2 and radius > LEAST:  # the interpolation has no likelihood
                radius /= 2
                continue
            if gain < ENOUGH or radius < LEAST:
                here, added = self.surround(here)
                if not added and not LEAST <= radius < WIDE:
                    return OptimizeResult(x=here.theta, fun=here.value, success=True, message="converged")
                radius = max(radius, WIDE)
                continue
            found = self.at(guess.x)
            share = (here.value - found.value) / gain
            if share > GOOD:
                radius = min(2 * radius, LONGEST)
            elif share < POOR:
                radius /= 2
            here = found if share > 0 else here
        return OptimizeResult(x=here.theta, fun=here.value, success=False, message="no more steps")

    def at(self, theta: np.ndarray) -> Place:
        place = self.objective.at(theta)
        self.count(1, place.value)
        if place.value < FAILED:
            self.seen.append(Seen.of(place, self.objective.moving))
        return place

    def best(self, here: Place, radius: float) -> OptimizeResult:
        """The largest likelihood of the interpolated kernel not further than that along each axis."""
        centre = here.theta[self.objective.moving]
        self.seen.sort(key=lambda seen: float(np.linalg.norm(seen.at - centre)))
        del self.seen[5 * (len(centre) + 1) :]  # those far away would move the kernel here, and take memory
        low = np.maximum(here.theta - radius, self.limits[0])
        high = np.minimum(here.theta + radius, self.limits[1])
        return minimize(
            Interpolated(self.objective, self.seen),
            here.theta,
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(low, high, strict=True)),
            options={"maxiter": INNER},
        )

    def surround(self, here: Place) -> tuple[Place, int]:
        """Kernels in directions in which none is near by: the best place then, and how many there are."""
        moving = self.objective.moving
        ways = np.array([seen.at - here.theta[moving] for seen in self.seen])
        ways = ways[np.linalg.norm(ways, axis=1) < NEAR]
        _, sizes, axes = np.linalg.svd(ways)
        best, missing = here, axes[np.sum(sizes > APART) :]
        for axis in missing:
            ends = np.stack([here.theta, here.theta])
            ends[:, moving] += np.outer([MOVE, -MOVE], axis)
            ends = np.clip(ends, *self.limits)
            found = self.at(ends[np.argmax(np.linalg.norm(ends - here.theta, axis=1))])
            best = min(best, found, key=lambda place: place.value)
        return best, len(missing)


@dataclass(frozen=True, eq=False)
class Seen:
    """A kernel that was computed: where, the logarithms of its diagonal, and its correlations."""

    at: np.ndarray
    sizes: np.ndarray
    correlations: np.ndarray

    @classmethod
    def of(cls, place: Place, moving: list[int]) -> Seen:
        diagonal = np.diagonal(place.matrix)
        roots = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))  # of zero inputs there is nothing to divide
        return cls(place.theta[moving], 2 * np.log(roots), place.matrix / np.outer(roots, roots))


class Interpolated:
    """Minus the log likelihood of the interpolated kernel, and its gradient, as a function of theta."""

    def __init__(self, objective: Objective, seen: list[Seen]) -> None:
        self.objective = objective
        self.sizes = np.stack([s.sizes for s in seen])
        self.correlations = np.stack([s.correlations for s in seen])
        self.nodes = np.stack([s.at for s in seen])
        cubes = np.linalg.norm(self.nodes[:, None] - self.nodes, axis=-1) ** 3
        linear = np.hstack([np.ones((len(seen), 1)), self.nodes - self.nodes[0]])
        zeros = np.zeros((linear.shape[1], linear.shape[1]))
        system = np.block([[cubes, linear], [linear.T, zeros]])
        self.inverse = np.linalg.pinv(system, rcond=1e-14)[: len(seen)]

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        moving, slope = self.objective.moving, np.zeros(len(theta))
        weights, changes = self.weights(theta[moving])
        roots = np.exp(weights @ self.sizes / 2)
        scale = np.outer(roots, roots)
        matrix = np.tensordot(weights, self.correlations, 1) * scale
        place = self.objective.place(theta, matrix)
        if place.value >= FAILED:
            return FAILED, slope
        by_matrix, by_noise = self.objective.gradient(place)
        by_weight = np.einsum("nij,ij->n", self.correlations, by_matrix * scale)
        slope[moving] = (by_weight + self.sizes @ np.sum(by_matrix * matrix, axis=1)) @ changes
        if NOISE in self.objective.groups:
            slope[self.objective.groups.index(NOISE)] = by_noise
        return place.value, slope

    def weights(self, at: np.ndarray) -> tuple[Any, Any]:
        """Of the kernels that were seen, (seen,), and their changes, (seen, variances)."""
        ways = at - self.nodes
        far = np.linalg.norm(ways, axis=1)
        right = np.concatenate([far**3, [1.0], at - self.nodes[0]])
        slopes = np.vstack([3 * far[:, None] * ways, np.zeros((1, len(at))), np.eye(len(at))])
        return self.inverse @ right, self.inverse @ slopes
