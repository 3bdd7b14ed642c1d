"""Standard normal points from scrambled Sobol points (Owen 1995), in blocks of dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netsor.expect.points.sobol import as_uniform, points_at, scramble, uniform_points

BLOCK_DIMENSIONS = 64  # dimensions of one Sobol sequence, whose first dimensions are the most even ones
Seed = int | Sequence[int]


def normal_points(dimensions: int, count: int, seed: Seed) -> np.ndarray:
    """Return standard normal points, (dimensions, count), of one scrambled Sobol sequence."""
    return _normals(uniform_points(dimensions, count, np.random.default_rng(seed)))


class NormalPoints:
    """Standard normal points of any number of dimensions, of which any part can be computed.

    The dimensions come in blocks, each of them a Sobol sequence with a scramble and (from the second block
    on) a random order of its own, so that the blocks are independent (Latin supercube sampling, Owen 1998).
    If few `dimensions` are expected, the first block has no more (0 means unknown). `used` is the number of
    dimensions that variables have taken so far.
    """

    def __init__(self, count: int, seed: Seed, *, dimensions: int = 0) -> None:
        self.count, self.seed, self.used = int(count), seed, 0
        most_values = 2**23  # values of a block: bounds the memory that a scramble of many points takes
        self._size = int(np.clip(most_values // max(self.count, 1), 1, BLOCK_DIMENSIONS))
        self._first = min(self._size, dimensions or self._size)
        self._scrambles: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def at(self, dimensions: np.ndarray, points: slice, out: np.ndarray) -> None:
        """Write the values of some dimensions at some of the points into `out` (dimensions, points)."""
        blocks, rows = np.divmod(dimensions + self._size - self._first, self._size)
        rows = np.where(blocks == 0, dimensions, rows)
        step = max(1, 2**14 // max(1, out.shape[1]))  # pieces that stay in the cache
        for block in np.unique(blocks).tolist():
            places = np.flatnonzero(blocks == block)
            for piece in (places[k : k + step] for k in range(0, len(places), step)):
                out[piece] = self._values(block, rows[piece], points)

    def _values(self, block: int, rows: np.ndarray, points: slice) -> np.ndarray:
        if block not in self._scrambles:
            words = [self.seed] if isinstance(self.seed, int | np.integer) else list(self.seed)
            rng = np.random.default_rng([*words, block])
            numbers = scramble(self._size if block else self._first, self.count, rng)
            order = rng.permutation(self.count) if block else np.arange(self.count)
            self._scrambles[block] = *numbers, order.astype(np.uint32)
        directions, shifts, order = self._scrambles[block]
        return _normals(as_uniform(points_at(directions[rows], shifts[rows], order[points])))


def _normals(uniform: np.ndarray) -> np.ndarray:
    """Return normal numbers. They are at most 6.3 in size, as `uniform` is at least 2^-31 from 0 and 1."""
    from scipy.special import ndtri

    return ndtri(uniform, out=uniform)
