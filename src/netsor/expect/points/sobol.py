"""Standard normal points from scrambled Sobol points (Owen 1995), in blocks of dimensions.

Point i of a Sobol sequence in one dimension is the exclusive or of the direction numbers v_k over the binary
digits k of i that are 1. A random lower triangular matrix over {0, 1} with ones on its diagonal, applied to
the digits of all v_k (Matousek 1998), and a random digital shift make every point uniform and keep the points
as even as before. So any dimensions of any points can be computed separately, which `scipy.stats.qmc.Sobol`
cannot do. The direction numbers come from SciPy's table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

BITS = 30  # binary digits of a coordinate, as in SciPy's table
BLOCK_DIMENSIONS = 64  # dimensions of one Sobol sequence, whose first dimensions are the most even ones
Seed = int | Sequence[int]


# Uniform points


@lru_cache(maxsize=32)
def direction_numbers(dimensions: int, count: int) -> np.ndarray:
    """Return v_k for k < count in units of 2^-30, (dimensions, count), from Joe and Kuo's table (2008)."""
    from scipy.stats.qmc import Sobol

    sequence = Sobol(dimensions, scramble=False, bits=BITS)
    numbers = np.empty((dimensions, count), np.uint32)
    before, drawn = sequence.random(1), 1
    for k in range(count):
        # SciPy's sequence is in Gray code order: points 2^k - 1 and 2^k differ by v_k.
        if drawn < 2**k:
            sequence.fast_forward(2**k - 1 - drawn)
            before = sequence.random(1)
        after = sequence.random(1)
        numbers[:, k] = np.bitwise_xor(*((x[0] * 2**BITS).astype(np.uint32) for x in (before, after)))
        before, drawn = after, 2**k + 1
    return numbers


def scramble(dimensions: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return scrambled direction numbers (dimensions, digits) for `count` points; shifts (dimensions, 1)."""
    numbers = direction_numbers(dimensions, max(count - 1, 0).bit_length())
    digits = np.uint32(1) << np.arange(BITS - 1, -1, -1, dtype=np.uint32)  # from the highest digit
    above = np.uint32(2**BITS) - 2 * digits  # for each digit, all higher digits
    matrix = (rng.integers(0, 2**BITS, (dimensions, 1, BITS), dtype=np.uint32) & above) | digits
    parity = np.bitwise_count(matrix & numbers[:, :, None]).astype(np.uint32) & np.uint32(1)
    numbers = (parity * digits).sum(axis=2, dtype=np.uint32)
    return numbers, rng.integers(0, 2**BITS, (dimensions, 1), dtype=np.uint32)


def first_points(numbers: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Return all points (dimensions, 2^digits) of direction numbers (dimensions, digits)."""
    dimensions, digits = numbers.shape
    points = np.empty((dimensions, 2**digits), np.uint32)
    points[:, :1] = shifts
    for k in range(digits):
        np.bitwise_xor(points[:, : 2**k], numbers[:, k : k + 1], out=points[:, 2**k : 2 ** (k + 1)])
    return points


def points_at(numbers: np.ndarray, shifts: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the points of given indices: the exclusive or of the points of their low and high digits."""
    half = numbers.shape[1] // 2
    low = first_points(numbers[:, :half], shifts)
    high = first_points(numbers[:, half:], np.zeros_like(shifts))
    return np.take(low, indices & (2**half - 1), axis=1) ^ np.take(high, indices >> half, axis=1)


def as_uniform(points: np.ndarray) -> np.ndarray:
    """Return numbers strictly between 0 and 1: the centres of 2^30 cells."""
    return (points + 0.5) * 0.5**BITS


def uniform_points(dimensions: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return scrambled Sobol points strictly between 0 and 1, (dimensions, count)."""
    return as_uniform(first_points(*scramble(dimensions, count, rng))[:, :count])


# Normal points


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
