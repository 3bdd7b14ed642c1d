"""Errors of a large matrix without a second matrix: rounding is an outer product of deviations."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

__all__ = ["Bound"]

ROWS = 64  # that are written out at a time


@dataclass(frozen=True)
class Bound:
    """An error for each entry, `left_i right_j + more_ij`.

    left, right  (rows,) and (columns,)
    more         (rows, columns), or None where rounding is all
    """

    left: np.ndarray
    right: np.ndarray
    more: np.ndarray | None = None

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Some rows, written out."""
        found = self.left[start:stop, None] * self.right
        return found if self.more is None else found + self.more[start:stop]

    def full(self) -> np.ndarray:
        """All of it."""
        return self.rows(0, len(self.left))

    @property
    def largest(self) -> float:
        if self.more is None:
            return float(self.left.max(initial=0.0)) * float(self.right.max(initial=0.0))
        return max((float(part.max(initial=0.0)) for part in self._parts()), default=0.0)

    @property
    def rms(self) -> float:
        """The root of the mean square."""
        if self.more is None:
            return sqrt(float(np.mean(self.left**2)) * float(np.mean(self.right**2)))
        return sqrt(sum(float(np.sum(part**2)) for part in self._parts()) / self.more.size)

    def relative(self, scale_left: np.ndarray, scale_right: np.ndarray) -> float:
        """The largest part of the scale `left_i right_j`; where that is 0, the largest error."""
        worst = 0.0
        for start, part in enumerate(self._parts()):
            scale = scale_left[start * ROWS : (start + 1) * ROWS, None] * scale_right
            worst = max(worst, float(np.max(part / np.where(scale > 0, scale, 1.0), initial=0.0)))
        return worst

    def _parts(self):
        return (self.rows(a, a + ROWS) for a in range(0, len(self.left), ROWS))
