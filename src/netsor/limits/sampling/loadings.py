"""How the sampled variables of one repeat are made of the dimensions of its points: z = mean + M u.

With a covariance C = L L^T and an orthogonal Q, M = L Q: Q holds the axes that a small run has found, and for
dimensions beyond those the principal axes of what is new at a step. The rows of M are all that is needed
to compute the values of a variable at any of the points, at any time.
"""

from __future__ import annotations

import numpy as np

from netsor.expect.points.gaussian import GrowingFactor
from netsor.limits.sampling.axes import Axes, Trail
from netsor.limits.sampling.schedule import Form, Schedule

__all__ = ["Loadings"]


class Loadings:
    """The rows of M for the forms of one repeat, as they become known.

    dimensions  for each family, which dimensions of the points its columns are
    trails      for each family, how its variables were drawn; kept only where there are no axes yet
    """

    def __init__(self, schedule: Schedule, axes: Axes | None) -> None:
        families = schedule.families
        self.factors = [GrowingFactor(most=family.size) for family in families]
        self.turns = {number: turn for number, (turn, _) in axes.turns.items()} if axes else {}
        self.reach = axes.reach if axes else {}
        self.blocks: list[list[np.ndarray]] = [[] for _ in families]
        self.dimensions = [np.zeros(0, int) for _ in families]
        for number, (_, places) in axes.turns.items() if axes else ():
            self.dimensions[number] = places
        self.taken = axes.dimensions if axes else 0
        self.trails = None if axes else [Trail() for _ in families]
        self.drawn = 0

    def extend(self, form: Form, cov: np.ndarray) -> np.ndarray:
        """The rows of a form, (inputs, dimensions of its family so far), from its covariances."""
        number, rows = form.family, form.rows
        factor, turned = self.factors[number], len(self.turns.get(number, ()))
        old = max(factor.rank, turned)
        weights, axes = factor.extend(cov[:, : rows.start], cov[:, rows])
        fresh = max(factor.rank - old, 0)
        if fresh:
            self.blocks[number].append(axes if len(axes) == fresh else np.eye(fresh))
            taken = np.arange(self.taken, self.taken + fresh)
            self.dimensions[number] = np.concatenate([self.dimensions[number], taken])
            self.taken += fresh
        if self.trails:
            trail = self.trails[number]
            trail.rows.append(weights)
            trail.axes.append(axes)
            trail.times += [self.drawn] * len(axes)
        self.drawn += 1
        return self._turned(number, weights, turned)

    def _turned(self, number: int, weights: np.ndarray, turned: int) -> np.ndarray:
        """L Q, up to the last column that is not zero."""
        known = min(turned, weights.shape[1])
        if turned and not self.blocks[number]:
            return weights @ self.turns[number][:known, : self.reach[number][known]]
        made = np.empty((len(weights), len(self.dimensions[number])))
        if turned:
            np.matmul(weights[:, :known], self.turns[number][:known], out=made[:, :turned])
        start = turned
        for block in self.blocks[number]:
            stop = start + len(block)
            np.matmul(weights[:, start:stop], block, out=made[:, start:stop])
            start = stop
        return made
