"""Scrambled Sobol points: direction numbers, random linear scrambles and digital shifts.

Point i of a Sobol sequence in one dimension is the exclusive or of the direction numbers v_k over the binary
digits k of i that are 1. A random lower triangular matrix over {0, 1} with ones on its diagonal, applied to
the digits of all v_k (Matousek 1998), and a random digital shift make every point uniform and keep the points
as even as before. So any dimensions of any points can be computed separately, which `scipy.stats.qmc.Sobol`
cannot do. The direction numbers come from SciPy's table.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

BITS = 30  # binary digits of a coordinate, as in SciPy's table


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
