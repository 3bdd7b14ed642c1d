"""Scrambled Sobol points: the table, the evenness that a scramble keeps, and uniform points."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats.qmc import Sobol, discrepancy

from netsor.expect.points.sobol import BITS, direction_numbers, first_points, scramble, uniform_points


def plain_points(dimensions: int, digits: int) -> np.ndarray:
    """Point i as the exclusive or of the direction numbers of its binary digits, written out."""
    numbers = direction_numbers(dimensions, digits)
    points = np.zeros((2**digits, dimensions), np.uint32)
    for i in range(2**digits):
        for k in range(digits):
            if i >> k & 1:
                points[i] ^= numbers[:, k]
    return points * 0.5**BITS


@pytest.mark.parametrize(("dimensions", "digits"), [(1, 0), (1, 5), (5, 3), (16, 10), (64, 7)])
def test_direction_numbers_are_those_of_scipy(dimensions: int, digits: int) -> None:
    wanted = Sobol(dimensions, scramble=False, bits=BITS).random_base2(digits)
    found = plain_points(dimensions, digits)
    assert set(map(tuple, found)) == set(map(tuple, wanted))


@pytest.mark.parametrize("count", [1, 2, 3, 100, 1024])
def test_points_are_within_the_cube_and_repeatable(count: int) -> None:
    points = uniform_points(7, count, np.random.default_rng(1))
    assert points.shape == (7, count)
    assert points.min() > 0
    assert points.max() < 1
    assert np.array_equal(points, uniform_points(7, count, np.random.default_rng(1)))
    assert not np.array_equal(points, uniform_points(7, count, np.random.default_rng(2)))


def test_every_dimension_is_stratified() -> None:
    """One point in each of the 2^10 intervals, and so for the first 2^k points: a scramble keeps that."""
    points = uniform_points(40, 2**10, np.random.default_rng(0))
    for count in (2**10, 2**7):
        cells = np.sort((points[:, :count] * count).astype(int), axis=1)
        assert np.array_equal(cells, np.tile(np.arange(count), (40, 1)))


def test_the_first_two_dimensions_are_a_net() -> None:
    """One point in each rectangle of area 2^-8, of any shape."""
    points = uniform_points(2, 2**8, np.random.default_rng(3))
    for k in range(9):
        cells = (points[0] * 2**k).astype(int) * 2 ** (8 - k) + (points[1] * 2 ** (8 - k)).astype(int)
        assert len(set(cells)) == 2**8


def test_each_point_is_uniform_over_scrambles() -> None:
    rng = np.random.default_rng(0)
    points = np.stack([uniform_points(3, 8, rng) for _ in range(4000)])
    assert np.all(np.abs(points.mean(0) - 0.5) < 5 / np.sqrt(12 * 4000))
    assert np.allclose(points.var(0) * 12, 1, atol=0.08)
    digits = first_points(*scramble(3, 8, rng))
    assert digits.dtype == np.uint32
    assert digits.max() < 2**BITS


def test_as_even_as_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    ours = np.mean([discrepancy(uniform_points(6, 128, rng).T) for _ in range(100)])
    theirs = np.mean([discrepancy(Sobol(6, bits=BITS, rng=rng).random(128)) for _ in range(100)])
    assert ours == pytest.approx(theirs, rel=0.05)


def test_integrals_of_smooth_functions_converge_fast() -> None:
    """The root mean square error over scrambles falls faster than 1/N, where random points give 1/sqrt(N)."""

    def error(count: int) -> float:
        rng = np.random.default_rng(5)
        means = [np.prod(1 + (uniform_points(4, count, rng) - 0.5), axis=0).mean() - 1 for _ in range(50)]
        return float(np.sqrt(np.mean(np.square(means))))

    assert error(2**12) < error(2**6) / 2**6
