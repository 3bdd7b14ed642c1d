"""The errors of a large matrix without a second matrix: rounding is an outer product of two vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np

ROWS = 64  # rows that are expanded at a time: a few megabytes for a kernel of 10,000 inputs


@dataclass(frozen=True)
class Bound:
    """An error for each entry: `left_i right_j + more_ij`."""

    left: np.ndarray  # (rows,)
    right: np.ndarray  # (columns,)
    more: np.ndarray | None = None  # (rows, columns), or None if rounding is the only error

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the errors of the rows from start to stop."""
        rounding = self.left[start:stop, None] * self.right
        return rounding if self.more is None else rounding + self.more[start:stop]

    def full(self) -> np.ndarray:
        """Return the matrix of errors, (rows, columns)."""
        return self.rows(0, len(self.left))

    @property
    def largest(self) -> float:
        """The largest error of an entry."""
        if self.more is None:
            return float(self.left.max(initial=0.0)) * float(self.right.max(initial=0.0))
        return max((float(rows.max(initial=0.0)) for rows in self._row_blocks()), default=0.0)

    @property
    def rms(self) -> float:
        """The root mean square error."""
        if self.more is None:
            return sqrt(float(np.mean(self.left**2)) * float(np.mean(self.right**2)))
        return sqrt(sum(float(np.sum(rows**2)) for rows in self._row_blocks()) / self.more.size)

    def relative(self, scale_left: np.ndarray, scale_right: np.ndarray) -> float:
        """Return the largest error relative to the scale `left_i right_j`, or absolute where that is 0."""
        worst = 0.0
        for start, rows in enumerate(self._row_blocks()):
            scale = scale_left[start * ROWS : (start + 1) * ROWS, None] * scale_right
            worst = max(worst, float(np.max(rows / np.where(scale > 0, scale, 1.0), initial=0.0)))
        return worst

    def _row_blocks(self) -> Iterator[np.ndarray]:
        return (self.rows(a, a + ROWS) for a in range(0, len(self.left), ROWS))
