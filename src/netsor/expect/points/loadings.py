"""Joint Gaussian variables at sample points: z = M u, with u the dimensions of the points.

Variables come in families, which are independent, and their covariances become known one after the other.
With C = L L^T and an orthogonal Q, M = L Q: Q holds the axes that a small run has found, if there was one,
and for dimensions beyond those the principal axes of what is new at a step. The rows of M are all that is
needed to compute the values of a variable at any of the points, at any time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from concurrent.futures import Executor
from types import MappingProxyType
from typing import Any

import numpy as np

from netsor.expect.points.axes import Axes, Trail
from netsor.expect.points.gaussian import Chosen, GrowingFactor
from netsor.expect.points.normal import NormalPoints

__all__ = ["Held", "Loadings", "Noise"]

AT_LEAST = 32  # dimensions of noise that are made together, if there are so many
Family = Hashable
Held = dict[int, Chosen]


class Loadings:
    """The rows of M for the variables of one repeat, as they become known.

    dimensions  for each family, which dimensions of the points its columns are
    trails      for each family, how its variables were drawn, if somebody wants to learn the axes from it
    held        what was chosen at each step of a run like this one, or will be in the first
    sizes       of families, as far as they are known
    threads     for the work on one repeat

    >>> found = Loadings()
    >>> x = found.extend("a", np.zeros((1, 0)), np.eye(1))
    >>> found.extend("a", np.array([[2.0]]), np.array([[4.0]])), found.taken
    (array([[2.]]), 1)
    """

    def __init__(
        self,
        axes: Axes | None = None,
        taken: int = 0,
        learn: bool = False,
        held: Held | None = None,
        sizes: Mapping[Any, int] = MappingProxyType({}),
        threads: Executor | None = None,
    ) -> None:
        turns = axes.turns if axes else {}
        self.turns: dict[Family, np.ndarray] = {family: turn for family, (turn, _) in turns.items()}
        self.dimensions: dict[Family, np.ndarray] = {family: places for family, (_, places) in turns.items()}
        self.reach = axes.reach if axes else {}
        self.factors: dict[Family, GrowingFactor] = {}
        self.blocks: dict[Family, list[np.ndarray]] = {}
        self.taken = axes.dimensions if axes else taken
        self.trails: dict[Family, Trail] | None = {} if learn else None
        self.drawn, self.held, self.sizes, self.threads = 0, held, sizes, threads

    def extend(self, family: Family, cov_with_old: np.ndarray, cov_new: np.ndarray) -> np.ndarray:
        """Rows (new, dimensions of the family so far), from covariances (new, old) and (new, new)."""
        if family not in self.factors:
            self.factors[family] = GrowingFactor(most=self.sizes.get(family), threads=self.threads)
            self.blocks[family] = []
        factor, blocks = self.factors[family], self.blocks[family]
        turned = len(self.turns.get(family, ()))
        old = max(factor.rank, turned)
        held = None if self.held is None else self.held.get(self.drawn)
        weights, axes = factor.extend(cov_with_old, cov_new, held)
        if self.held is not None and factor.chosen is not None:
            self.held.setdefault(self.drawn, factor.chosen)
        fresh = max(factor.rank - old, 0)
        known = self.dimensions.setdefault(family, np.zeros(0, int))
        if fresh:
            blocks.append(axes if len(axes) == fresh else np.eye(fresh))
            self.dimensions[family] = np.append(known, np.arange(self.taken, self.taken + fresh))
            self.taken += fresh
        if self.trails is not None:
            trail = self.trails.setdefault(family, Trail())
            trail.rows.append(weights)
            trail.axes.append(axes)
            trail.times += [self.drawn] * len(axes)
        self.drawn += 1
        return self._turned(family, weights, turned)

    def _turned(self, family: Family, weights: np.ndarray, turned: int) -> np.ndarray:
        """L Q, up to the last column that is not zero."""
        known = min(turned, weights.shape[1])
        if turned and not self.blocks[family]:
            return weights @ self.turns[family][:known, : self.reach[family][known]]
        made = np.empty((len(weights), len(self.dimensions[family])))
        if turned:
            np.matmul(weights[:, :known], self.turns[family][:known], out=made[:, :turned])
        start = turned
        for block in self.blocks[family]:
            stop = start + len(block)
            np.matmul(weights[:, start:stop], block, out=made[:, start:stop])
            start = stop
        return made


class Noise:
    """The dimensions of the points of some repeats that their families use, at some of the points."""

    def __init__(self, points: list[NormalPoints], loadings: list[Loadings], places: slice) -> None:
        self.points, self.loadings, self.places = points, loadings, places
        self.count = places.stop - places.start
        self.values: dict[Family, np.ndarray] = {}
        self.known: dict[Family, list[int]] = {}  # how many dimensions for each repeat

    def mixed(self, family: Family, rows: list[np.ndarray]) -> np.ndarray:
        """The values (repeats, variables, points) of variables, from their rows of M in each repeat."""
        known = self.known.setdefault(family, [0] * len(self.points))
        made = np.empty((len(self.points), len(rows[0]), self.count))
        for k, own in enumerate(rows):
            size = own.shape[1]
            if size > known[k]:
                new = self.loadings[k].dimensions[family][known[k] : max(size, known[k] + AT_LEAST)]
                noise = self._room(family, known[k] + len(new))
                self.points[k].at(new, self.places, out=noise[k, known[k] : known[k] + len(new)])
                known[k] += len(new)
            np.matmul(own, self.values[family][k, :size] if size else np.zeros((0, self.count)), out=made[k])
        return made

    def _room(self, family: Family, size: int) -> np.ndarray:
        """The array of a family, with room for so many dimensions."""
        there = self.values.get(family)
        if there is None or size > there.shape[1]:
            made = np.empty((len(self.points), size if there is None else 2 * size, self.count))
            if there is not None:
                made[:, : there.shape[1]] = there
            self.values[family] = made
        return self.values[family]
