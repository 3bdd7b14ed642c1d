"""Joint Gaussian variables at sample points: z = M u, where u are the coordinates of the points.

Variables come in independent families, and their covariances become known one after the other. M = L Q with
C = L L^T; the orthogonal Q holds the principal axes of a pilot run, if there was one, and in further
dimensions the principal axes of the new variables of each step.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Executor
from types import MappingProxyType
from typing import Any

import numpy as np

from netsor.expect.points.pivoted_cholesky import GrowingFactor, Pivoting
from netsor.expect.points.principal_axes import PrincipalAxes, Trail
from netsor.expect.points.sobol import NormalPoints

Family = Hashable
FixedChoices = dict[int, Pivoting]  # by step; with the same choices, runs are smooth in the covariances
Dimensions = dict[Family, np.ndarray]  # by family, the dimensions of the points that the columns of M use


class Loadings:
    """The rows of M for the variables of one repeat, which become known step by step.

    axes     the principal axes of a pilot run
    used     number of dimensions of the points that are in use
    fixed    pivots and axes of an earlier, similar run; the first run fills them in
    sizes    by family, its final number of variables, if known
    threads  threads for the linear algebra of one repeat
    trails   by family, how its variables were drawn, if this run has to `learn` the principal axes

    >>> loadings = Loadings()
    >>> x = loadings.extend("a", np.zeros((1, 0)), np.eye(1))
    >>> loadings.extend("a", np.array([[2.0]]), np.array([[4.0]])), loadings.used
    (array([[2.]]), 1)
    """

    def __init__(
        self,
        axes: PrincipalAxes | None = None,
        used: int = 0,
        learn: bool = False,
        fixed: FixedChoices | None = None,
        sizes: Mapping[Any, int] = MappingProxyType({}),
        threads: Executor | None = None,
    ) -> None:
        axes = axes or PrincipalAxes({})
        self.rotations: Mapping[Any, tuple[np.ndarray, np.ndarray]] = axes.rotations
        self.widths: Mapping[Any, np.ndarray] = axes.widths
        self.dimensions: Dimensions = {f: dimensions for f, (_, dimensions) in axes.rotations.items()}
        self.factors: dict[Family, GrowingFactor] = {}
        self.blocks: dict[Family, list[np.ndarray]] = {}  # diagonal blocks of Q, after the rotation
        self.used = axes.dimensions or used
        self.trails: dict[Any, Trail] | None = {} if learn else None
        self.steps, self.fixed, self.sizes, self.threads = 0, fixed, sizes, threads

    def extend(self, family: Family, cov_with_old: np.ndarray, cov_new: np.ndarray) -> np.ndarray:
        """Return rows (new, dimensions of the family so far), from covariances (new, old) and (new, new)."""
        if family not in self.factors:
            self.factors[family] = GrowingFactor(most=self.sizes.get(family), threads=self.threads)
            self.blocks[family] = []
        factor = self.factors[family]
        rotated = len(self.rotations[family][0]) if family in self.rotations else 0
        old = max(factor.rank, rotated)
        rows, chosen = factor.extend(cov_with_old, cov_new, (self.fixed or {}).get(self.steps))
        if self.fixed is not None:
            self.fixed.setdefault(self.steps, chosen)
        fresh = max(factor.rank - old, 0)
        self.dimensions.setdefault(family, np.zeros(0, int))
        if fresh:
            self.blocks[family].append(chosen.axes if len(chosen.axes) == fresh else np.eye(fresh))
            new = np.arange(self.used, self.used + fresh)
            self.dimensions[family] = np.append(self.dimensions[family], new)
            self.used += fresh
        # Pilot runs record how variables were drawn, for the axes of the runs after them.
        if self.trails is not None:
            trail = self.trails.setdefault(family, Trail())
            trail.rows.append(rows)
            trail.axes.append(chosen.axes)
            trail.steps += [self.steps] * len(chosen.axes)
        self.steps += 1
        return self.rotate(family, rows, rotated)

    def rotate(self, family: Family, rows: np.ndarray, rotated: int) -> np.ndarray:
        """Return L Q up to its last nonzero column; the first `rotated` rows of Q are the rotation."""
        width = min(rotated, rows.shape[1])
        if rotated and not self.blocks[family]:
            return rows @ self.rotations[family][0][:width, : self.widths[family][width]]
        loadings = np.empty((len(rows), len(self.dimensions[family])))
        if rotated:
            np.matmul(rows[:, :width], self.rotations[family][0][:width], out=loadings[:, :rotated])
        start = rotated
        for block in self.blocks[family]:
            stop = start + len(block)
            np.matmul(rows[:, start:stop], block, out=loadings[:, start:stop])
            start = stop
        return loadings


class Noise:
    """The coordinates that the families of some repeats use, at a chunk of the points of each repeat."""

    def __init__(
        self, points: Sequence[NormalPoints], dimensions: Sequence[Dimensions], chunk: slice
    ) -> None:
        self.points, self.dimensions, self.chunk = points, dimensions, chunk
        self.count = chunk.stop - chunk.start
        self.values: dict[Family, np.ndarray] = {}  # (repeats, capacity, points)
        self.filled: dict[Family, list[int]] = {}  # number of dimensions with values, for each repeat

    def variables(self, family: Family, loadings: Sequence[np.ndarray]) -> np.ndarray:
        """Return values (repeats, variables, points) of variables, from their rows of M in each repeat."""
        filled = self.filled.setdefault(family, [0] * len(self.points))
        variables = np.empty((len(self.points), len(loadings[0]), self.count))
        for k, rows in enumerate(loadings):
            width = rows.shape[1]
            if width > filled[k]:
                # Fetch 32 dimensions at a time: points of a few dimensions take as long as those of many.
                new = self.dimensions[k][family][filled[k] : max(width, filled[k] + 32)]
                stop = filled[k] + len(new)
                self.points[k].at(new, self.chunk, out=self._with_capacity(family, stop)[k, filled[k] : stop])
                filled[k] = stop
            noise = self.values[family][k, :width] if width else np.zeros((0, self.count))
            np.matmul(rows, noise, out=variables[k])
        return variables

    def _with_capacity(self, family: Family, size: int) -> np.ndarray:
        """Return the values of a family, in an array with space for `size` dimensions."""
        values = self.values.get(family)
        if values is None or size > values.shape[1]:
            larger = np.empty((len(self.points), size if values is None else 2 * size, self.count))
            if values is not None:
                larger[:, : values.shape[1]] = values
            self.values[family] = larger
        return self.values[family]
