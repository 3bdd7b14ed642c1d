"""Scrambled Sobol points: direction numbers, random linear scrambles and digital shifts.

Point i of a Sobol sequence in one dimension is the exclusive or of the direction numbers v_k over the
binary digits k of i that are 1. A random lower triangular matrix over {0, 1} with ones on its diagonal,
applied to the digits of all v_k (Matousek 1998), and a random number that all points are shifted by make
every point uniform and keep the points as even as they are. A scramble works on direction numbers alone.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

__all__ = ["BITS", "MOST_DIMENSIONS", "as_uniform", "points_at", "scramble", "scrambled", "uniform_points"]

BITS = 30
MOST_DIMENSIONS = 21201
ONES = np.uint32(1) << np.arange(BITS - 1, -1, -1, dtype=np.uint32)  # one for each digit, the largest first
ABOVE = np.uint32(2**BITS) - 2 * ONES  # all digits before each


@lru_cache(maxsize=32)
def direction_numbers(dimensions: int, count: int) -> np.ndarray:
    """v_k for k < count in units of 2^-30, shape (dimensions, count), from Joe and Kuo's table (2008).

    SciPy's sequence goes in the order of the Gray code, where points 2^k - 1 and 2^k differ by v_k.
    """
    from scipy.stats.qmc import Sobol

    sequence = Sobol(dimensions, scramble=False, bits=BITS)
    found = np.empty((dimensions, count), np.uint32)
    before, made = sequence.random(1), 1
    for k in range(count):
        if made < 2**k:
            sequence.fast_forward(2**k - 1 - made)
            before = sequence.random(1)
        after = sequence.random(1)
        found[:, k] = np.bitwise_xor(*((x[0] * 2**BITS).astype(np.uint32) for x in (before, after)))
        before, made = after, 2**k + 1
    return found


def scramble(dimensions: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scrambled direction numbers for so many points, and shifts (dimensions, 1)."""
    numbers = direction_numbers(dimensions, max(count - 1, 0).bit_length())
    rows = (rng.integers(0, 2**BITS, (dimensions, 1, BITS), dtype=np.uint32) & ABOVE) | ONES
    parity = np.bitwise_count(rows & numbers[:, :, None]).astype(np.uint32) & np.uint32(1)
    numbers = (parity * ONES).sum(axis=2, dtype=np.uint32)
    return numbers, rng.integers(0, 2**BITS, (dimensions, 1), dtype=np.uint32)


def first_points(numbers: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """All points of some direction numbers: twice as many for each of these."""
    dimensions, digits = numbers.shape
    points = np.empty((dimensions, 2**digits), np.uint32)
    points[:, :1] = shifts
    for k in range(digits):
        np.bitwise_xor(points[:, : 2**k], numbers[:, k : k + 1], out=points[:, 2**k : 2 ** (k + 1)])
    return points


def points_at(numbers: np.ndarray, shifts: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Some of the points: the exclusive or of what their lower and their higher digits give."""
    half = numbers.shape[1] // 2
    low = first_points(numbers[:, :half], shifts)
    high = first_points(numbers[:, half:], np.zeros_like(shifts))
    return np.take(low, places & (2**half - 1), axis=1) ^ np.take(high, places >> half, axis=1)


def scrambled(dimensions: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Scrambled points in units of 2^-30, shape (dimensions, count)."""
    return first_points(*scramble(dimensions, count, rng))[:, :count]


def as_uniform(points: np.ndarray) -> np.ndarray:
    """Numbers strictly within (0, 1): the middles of 2^30 cells."""
    return (points + 0.5) * 0.5**BITS


def uniform_points(dimensions: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Scrambled Sobol points strictly within (0, 1), shape (dimensions, count)."""
    return as_uniform(scrambled(dimensions, count, rng))
