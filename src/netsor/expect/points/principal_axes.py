"""Which directions of the noise use the first dimensions of the sample points.

Sobol points are most even in their first dimensions, and in few of them at a time (Caflisch, Morokoff and
Owen 1997). In the triangular factor of variables that are drawn one after the other, each depends on few
dimensions, but what all have in common, such as a bias, is spread over many. So the principal axes with a
large part of the variance come first, and the others are triangular again. A small pilot run finds the axes;
any rotation is exact, because standard normals stay independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

LARGEST_ROTATION = 512  # dimensions of a family: larger rotations take more time than they save


@dataclass
class Trail:
    """How the variables of a family were drawn: one entry for each step.

    rows    rows of the factor of their covariance, (variables, rank at that step)
    axes    the principal axes of the new dimensions
    steps   for each dimension, the number of steps before it
    """

    rows: list[np.ndarray] = field(default_factory=list)
    axes: list[np.ndarray] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return len(self.steps)

    @property
    def factor(self) -> np.ndarray:  # shape: (variables, rank)
        return np.concatenate([np.pad(rows, [(0, 0), (0, self.rank - rows.shape[1])]) for rows in self.rows])


@dataclass(frozen=True)
class PrincipalAxes:
    """By family, a rotation of its noise, and the dimensions of the points that it uses."""

    rotations: dict[int, tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, trails: Mapping[int, Trail]) -> PrincipalAxes:
        """Return axes for variables like those that were drawn, by family."""
        trails = {family: trail for family, trail in trails.items() if 0 < trail.rank <= LARGEST_ROTATION}
        rotations: dict[int, np.ndarray] = {}
        directions = []
        for k, trail in trails.items():
            rotations[k], common = _rotation(trail)
            numbers, steps = np.arange(trail.rank), [0] * common + trail.steps
            # The variance that each direction of the noise contributes to all variables of the family.
            variances = np.sum((trail.factor @ rotations[k]) ** 2, axis=0)
            directions.append((0 * numbers + k, numbers, numbers < common, steps[: trail.rank], variances))
        if not directions:
            return cls({})
        family, number, is_common, step, variance = map(np.concatenate, zip(*directions, strict=True))
        # Common directions come first, by variance, then others by step, far smaller ones later.
        largest = variance[~is_common].max(initial=1e-300)
        size = np.log(largest / np.maximum(variance, 4.0**-20 * largest)) // np.log(4.0)
        order = np.lexsort((family, number, step, np.where(is_common, -variance, size), ~is_common))
        dimensions = np.argsort(order)
        return cls({k: (rotation, dimensions[family == k]) for k, rotation in rotations.items()})

    @cached_property
    def widths(self) -> dict[int, np.ndarray]:
        """By family, the width of the first k rows of its rotation without final zeros, for each k."""
        return {family: _widths(rotation) for family, (rotation, _) in self.rotations.items()}

    @property
    def dimensions(self) -> int:
        return sum(len(rotation) for rotation, _ in self.rotations.values())


def _widths(rotation: np.ndarray) -> np.ndarray:
    nonzero = np.abs(rotation[:, ::-1]) > 1e-14  # smaller entries are zeros of QR with rounding
    columns = np.where(nonzero.any(1), rotation.shape[1] - nonzero.argmax(1), 0)
    return np.concatenate([[0], np.maximum.accumulate(columns)])


def _rotation(trail: Trail) -> tuple[np.ndarray, int]:
    """Return a rotation whose first columns are the axes of most variance, and the number of these columns.

    The other columns are triangular by steps, with the principal axes of each step. These mix the variables
    of several inputs, because some pairs of dimensions of Sobol points are less even.
    """
    from scipy.linalg import block_diag

    factor = trail.factor
    variances, axes = np.linalg.eigh(factor.T @ factor)
    common = int(np.sum(variances >= 0.2 * variances.sum()))  # at most five directions
    columns = np.concatenate([axes[:, ::-1][:, :common], np.asarray(block_diag(*trail.axes))], axis=1)
    # The principal axes replace as many of the triangular directions, which QR finds to be dependent.
    return np.linalg.qr(columns[:, : trail.rank])[0], common
