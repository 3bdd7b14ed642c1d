"""Standard normal points from scrambled Sobol points (Owen 1995), handed out dimension by dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netsor.expect.points.sobol import (
    MOST_DIMENSIONS,
    as_uniform,
    points_at,
    scramble,
    scrambled,
    uniform_points,
)

__all__ = ["NormalPoints", "normal_points"]

BLOCK_DIMENSIONS = 64
BLOCK_VALUES = 2**23
AT_ONCE = 2**14  # values in a piece of work

Seed = int | Sequence[int]


def normal_points(dimensions: int, count: int, seed: Seed, *, sobol: bool = True) -> np.ndarray:
    """Standard normal points, shape (dimensions, count): ndtri of one scrambled Sobol sequence.

    Beyond the 21201 dimensions of the Sobol table, and with `sobol=False`, they are plain pseudo-random
    normals. A power of two is the best `count`.
    """
    rng = np.random.default_rng(seed)
    if not sobol or dimensions > MOST_DIMENSIONS:
        return rng.standard_normal((dimensions, count))
    if dimensions == 0:
        return np.empty((0, count))
    return _normals(uniform_points(dimensions, count, rng))


class NormalPoints:
    """Standard normal points whose dimensions are handed out on demand, each one once.

    The dimensions come in blocks. Within a block they are one scrambled Sobol sequence; every block has
    its own scramble, and from the second on its points are in a random order of its own, so that
    the blocks are independent (Latin supercube sampling, Owen 1998). The points depend on `count`,
    `seed`, `sobol` and `dimensions` only, not on how they are asked for. `dimensions` is how many are
    expected: where they are few, the first block has no more (0 if that is not known).
    """

    def __init__(self, count: int, seed: Seed, *, sobol: bool = True, dimensions: int = 0) -> None:
        self.count, self.seed, self.sobol = int(count), seed, sobol
        self.taken = 0
        self._size = int(np.clip(BLOCK_VALUES // max(self.count, 1), 1, BLOCK_DIMENSIONS))
        self._first = min(self._size, dimensions or self._size)
        self._number, self._block = -1, np.empty((0, self.count))
        self._scrambles: dict[int, Any] = {}

    def take(self, k: int) -> np.ndarray:
        """The next k dimensions, shape (k, count)."""
        points = np.empty((k, self.count))
        done = 0
        while done < k:
            number, start = divmod(self.taken + self._size - self._first, self._size)
            size, start = (self._size, start) if number else (self._first, self.taken)
            if number != self._number:
                self._number, self._block = number, self._draw(number, size)
            step = min(k - done, size - start)
            points[done : done + step] = self._map(self._block[start : start + step])
            done, self.taken = done + step, self.taken + step
        return points

    def at(self, dimensions: np.ndarray, places: slice, out: np.ndarray) -> None:
        """Any dimensions of some of the points, (dimensions, points): the same numbers as in `take`."""
        numbers, rows = np.divmod(dimensions + self._size - self._first, self._size)
        rows = np.where(numbers == 0, dimensions, rows)
        some = max(1, AT_ONCE // max(1, out.shape[1]))
        for number in np.unique(numbers).tolist():
            every = np.flatnonzero(numbers == number)
            for chosen in (every[k : k + some] for k in range(0, len(every), some)):
                out[chosen] = self._part(number, rows[chosen], places)

    def _part(self, number: int, rows: np.ndarray, places: slice) -> np.ndarray:
        size = self._size if number else self._first
        if not self.sobol:
            return self._draw(number, size)[rows, places]
        if number not in self._scrambles:
            rng = self._rng(number)
            made = scramble(size, self.count, rng)
            order = rng.permutation(self.count) if number else np.arange(self.count)
            self._scrambles[number] = *made, order.astype(np.uint32)
        directions, shifts, order = self._scrambles[number]
        return _normals(as_uniform(points_at(directions[rows], shifts[rows], order[places])))

    def _rng(self, number: int) -> np.random.Generator:
        words = [self.seed] if isinstance(self.seed, int | np.integer) else list(self.seed)
        return np.random.default_rng([*words, number])

    def _draw(self, number: int, size: int) -> np.ndarray:
        rng = self._rng(number)
        if not self.sobol:
            return rng.standard_normal((size, self.count))
        block = scrambled(size, self.count, rng)
        return block if number == 0 else block[:, rng.permutation(self.count)]

    def _map(self, block: np.ndarray) -> np.ndarray:
        """ndtri of the points: at most 6.3 in size, as they are at least 2^-31 from 0 and 1."""
        return _normals(as_uniform(block)) if self.sobol else block


def _normals(uniform: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri

    return ndtri(uniform, out=uniform)
