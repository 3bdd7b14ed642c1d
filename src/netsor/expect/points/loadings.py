"""Joint Gaussian variables at sample points: z = M u, where u are the coordinates of the points.

Variables come in independent families, and their covariances C become known one after the other. The rows of
M = [S L Q] have common directions S, which are known from the start, and continue a Cholesky factor L of
C - S S^T. The orthogonal Q holds the principal axes of the new variables of each step.

Sobol points are most even in their first dimensions, and in few of them at a time (Caflisch, Morokoff and
Owen 1997). So what all variables of a family have in common, such as a bias, takes the first dimensions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Executor
from types import MappingProxyType
from typing import Any

import numpy as np

from netsor.expect.points.normal import NormalPoints
from netsor.expect.points.pivoted_cholesky import GrowingFactor, Pivoting

Family = Hashable
FixedChoices = dict[int, Pivoting]  # by step; with the same choices, runs are smooth in the covariances
Dimensions = dict[Family, np.ndarray]  # by family, the dimensions of the points that the columns of M use


class Loadings:
    """The rows of M for the variables of one repeat, which become known step by step.

    common   by family, S of its variables: (variables, directions)
    used     number of dimensions of the points that are in use
    fixed    pivots and axes of an earlier, similar run; the first run fills them in
    threads  threads for the linear algebra of one repeat

    >>> loadings = Loadings()
    >>> x = loadings.extend("a", np.zeros((1, 0)), np.eye(1))
    >>> loadings.extend("a", np.array([[2.0]]), np.array([[4.0]])), loadings.used
    (array([[2.]]), 1)
    """

    def __init__(
        self,
        common: Mapping[Any, np.ndarray] = MappingProxyType({}),
        used: int = 0,
        fixed: FixedChoices | None = None,
        threads: Executor | None = None,
    ) -> None:
        self.common, self.used, self.fixed, self.threads = common, used, fixed, threads
        self.factors: dict[Family, GrowingFactor] = {}
        self.blocks: dict[Family, list[np.ndarray]] = {}  # diagonal blocks of Q
        self.steps = 0
        self.dimensions: Dimensions = {}
        for family, S in common.items():
            self.dimensions[family] = np.arange(self.used, self.used + S.shape[1])
            self.used += S.shape[1]

    def extend(self, family: Family, cov_with_old: np.ndarray, cov_new: np.ndarray) -> np.ndarray:
        """Return rows (new, dimensions of the family so far), from covariances (new, old) and (new, new)."""
        old = cov_with_old.shape[1]
        common = self.common.get(family)
        S = np.zeros((len(cov_new), 0)) if common is None else common[old : old + len(cov_new)]
        directions = S.shape[1]
        if family not in self.factors:
            most = None if common is None else len(common) + directions
            self.factors[family], self.blocks[family] = GrowingFactor(most, self.threads), []
            self.dimensions.setdefault(family, np.zeros(0, int))
            # The directions are variables that precede all others: S is the covariance with them.
            self.factors[family].extend(np.zeros((directions, 0)), np.eye(directions))
        factor = self.factors[family]
        before = factor.rank
        cov_with_old = np.concatenate([S, cov_with_old], axis=1)
        rows, chosen = factor.extend(cov_with_old, cov_new, (self.fixed or {}).get(self.steps))
        if self.fixed is not None:
            self.fixed.setdefault(self.steps, chosen)
        self.steps += 1
        fresh = factor.rank - before
        self.blocks[family].append(chosen.axes)
        new = np.arange(self.used, self.used + fresh)
        self.dimensions[family] = np.append(self.dimensions[family], new)
        self.used += fresh
        return self.rotate(family, rows)

    def rotate(self, family: Family, rows: np.ndarray) -> np.ndarray:
        """Return [S L Q] from the rows [S L]."""
        loadings = rows.copy()
        stop = rows.shape[1]
        for block in reversed(self.blocks[family]):
            start = stop - len(block)
            np.matmul(rows[:, start:stop], block, out=loadings[:, start:stop])
            stop = start
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
