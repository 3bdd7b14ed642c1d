"""Which directions of the noise get the first dimensions of the sample points.

Sobol points are most even in their first dimensions, and in few of them at a time (Caflisch, Morokoff and
Owen 1997). Variables that are drawn one after the other have a triangular factor, in which each of them
depends on few dimensions; but what all of them share, a bias above all, is spread over many. So the principal
axes with a large share of the variance come first, and the rest is triangular again. A small run that comes
before tells the axes. They need not be exact: independent standard normals stay so under any rotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import log
from typing import Any

import numpy as np

__all__ = ["Axes", "Trail"]

LARGE_SHARE = 0.2  # of the variance of all variables of a family
NOTHING = 1e-14  # a zero of a rotation, up to rounding
LARGEST_TURN = 512  # dimensions of a family; beyond, rotations cost more than they are worth


@dataclass
class Trail:
    """How the variables of a family were drawn: one entry for each step.

    rows    rows of the factor of their covariance, as long as the rank was then
    axes    the principal axes of the dimensions that were new
    """

    rows: list[np.ndarray] = field(default_factory=list)
    axes: list[np.ndarray] = field(default_factory=list)
    times: list[int] = field(default_factory=list)  # for each dimension, how many forms came before

    @property
    def rank(self) -> int:
        return len(self.times)

    @property
    def loadings(self) -> np.ndarray:
        return np.concatenate([np.pad(rows, [(0, 0), (0, self.rank - rows.shape[1])]) for rows in self.rows])


@dataclass(frozen=True)
class Dimension:
    """A dimension of the noise of a family, and how much of the variance of all its variables it has."""

    family: int
    number: int
    shared: bool
    variance: float
    time: int

    def order(self, largest: float) -> tuple[float, ...]:
        """What is shared by its variance; the others by time, but far smaller ones later: by powers of 4."""
        if self.shared:
            return (0, -self.variance, self.number, self.family)
        size = int(log(largest / self.variance, 4)) if self.variance > 1e-12 * largest else 20
        return (1, size, self.time, self.number, self.family)


@dataclass(frozen=True)
class Axes:
    """For each family a rotation, and which dimensions of the points it takes."""

    turns: dict[Any, tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, trails: Mapping[Any, Trail]) -> Axes:
        """The axes for variables like those that were drawn, by family."""
        turns: dict[Any, np.ndarray] = {}
        found: list[Dimension] = []
        for family, trail in sorted(trails.items()):
            if 0 < trail.rank <= LARGEST_TURN:
                turns[family], shared = _turn(trail)
                variance = np.sum((trail.loadings @ turns[family]) ** 2, axis=0)
                times = [0] * shared + trail.times
                found += [
                    Dimension(family, k, k < shared, v, times[k]) for k, v in enumerate(variance.tolist())
                ]
        largest = max((d.variance for d in found if not d.shared), default=1.0)
        found.sort(key=lambda d: d.order(largest))
        places = {family: np.zeros(len(turn), int) for family, turn in turns.items()}
        for place, d in enumerate(found):
            places[d.family][d.number] = place
        return cls({family: (turn, places[family]) for family, turn in turns.items()})

    @cached_property
    def reach(self) -> dict[Any, np.ndarray]:
        """For each family, how many columns the first rows of its rotation have before only zeros follow."""
        return {family: _reach(turn) for family, (turn, _) in self.turns.items()}

    @property
    def dimensions(self) -> int:
        return sum(len(turn) for turn, _ in self.turns.values())


def _reach(turn: np.ndarray) -> np.ndarray:
    large = np.abs(turn[:, ::-1]) > NOTHING
    columns = np.where(large.any(1), turn.shape[1] - large.argmax(1), 0)
    return np.concatenate([[0], np.maximum.accumulate(columns)])


def _turn(trail: Trail) -> tuple[np.ndarray, int]:
    """A rotation, the principal axes with a large share first, and their number.

    The rest is triangular by steps, with the principal axes of each step: the variables of several inputs
    mix, as there are pairs of dimensions in which Sobol points are less even.
    """
    loadings = trail.loadings
    variance, axes = np.linalg.eigh(loadings.T @ loadings)
    shared = int(np.sum(variance >= LARGE_SHARE * variance.sum()))
    from scipy.linalg import block_diag

    within = np.asarray(block_diag(*trail.axes))
    columns = np.concatenate([axes[:, ::-1][:, :shared], within], axis=1)
    return np.linalg.qr(columns[:, : trail.rank])[0], shared
