"""Orthant probabilities: exact values, singular covariances, and integrals made another way."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.special import erf

from netsor.errors import DataError
from netsor.expect.orthant_probabilities import erf_gates, orthant

RNG = np.random.default_rng(11)


def random_covariances(count: int, d: int, rank: int | None = None) -> np.ndarray:
    root = RNG.standard_normal((count, d, rank or d))
    return root @ np.swapaxes(root, 1, 2)


def arc(angles: np.ndarray) -> float:
    """P(cos(a - angle) > 0 for all angles) for a uniform direction a: the orthant of rank two."""
    cuts = np.sort(np.concatenate([angles + np.pi / 2, angles - np.pi / 2]) % (2 * np.pi))
    cuts = np.append(cuts, cuts[0] + 2 * np.pi)
    middle, length = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
    inside = np.all(np.cos(middle[:, None] - angles) > 1e-9, axis=1)
    return float(length @ inside / (2 * np.pi))


@pytest.mark.parametrize("d", range(1, 5))
def test_equal_correlations_of_one_half(d):
    value, error = orthant(np.eye(d) / 2 + 0.5)
    assert abs(value - 1 / (d + 1)) <= 5 * error + 1e-15
    assert error < 2e-14


@pytest.mark.parametrize("d", range(1, 5))
def test_independent_variables(d):
    assert orthant(np.diag(np.arange(1.0, d + 1)))[0] == pytest.approx(0.5**d, abs=1e-15)


def test_four_variables_against_many_draws():
    cov, draws = random_covariances(20, 4), RNG.standard_normal((2**18, 4))
    for c, value in zip(cov, orthant(cov)[0], strict=True):
        seen = np.mean(np.all(draws @ np.linalg.cholesky(c).T > 0, axis=1))
        assert abs(seen - value) <= 5 * np.sqrt(value * (1 - value) / len(draws)) + 1e-5


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_variable_of_variance_zero_is_not_positive(d):
    larger = np.zeros((d + 1, d + 1))
    larger[:d, :d] = random_covariances(1, d)[0]
    assert orthant(larger)[0] == 0


def test_leading_axes():
    cov = random_covariances(6, 4).reshape(2, 3, 4, 4)
    value, error = orthant(cov)
    assert value.shape == error.shape == (2, 3)
    assert value[1, 2] == pytest.approx(orthant(cov[1, 2])[0], rel=1e-12)


def test_no_variables():
    assert np.array_equal(orthant(np.zeros((2, 0, 0)))[0], [1, 1])


@pytest.mark.parametrize("d", [2, 3, 4])
def test_rank_two_is_an_arc(d):
    """Singular for d > 2: correlations are 1 and -1, and the square root of rounding must not show."""
    for trial in range(100):
        angles = RNG.uniform(0, 2 * np.pi, d)
        if trial % 3 == 0:
            angles[-1] = angles[0]
        if trial % 5 == 0:
            angles[-1] = angles[0] + np.pi
        points = np.stack([np.cos(angles), np.sin(angles)], axis=1) * RNG.uniform(0.1, 10, (d, 1))
        assert orthant(points @ points.T)[0] == pytest.approx(arc(angles), abs=3e-13)


def test_four_variables_do_not_depend_on_their_order():
    """Each order is another integral: they agree to rounding."""
    cov = random_covariances(50, 4)
    values = [orthant(cov[:, p][:, :, p])[0] for p in map(list, permutations(range(4)))]
    assert np.max(np.ptp(values, axis=0)) < 1e-14


def test_four_variables_sum_to_one():
    """The 16 orthants of a Gaussian vector share out probability one."""
    cov = random_covariances(10, 4)
    signs = np.array(np.meshgrid(*[[1, -1]] * 4)).reshape(4, -1).T
    total = sum(orthant(cov * np.outer(s, s))[0] for s in signs)
    assert np.allclose(total, 1, rtol=0, atol=1e-14)


@pytest.mark.parametrize("d", [3, 4])
def test_repeated_variable(d):
    cov = random_covariances(10, d - 1)
    order = [0, *range(d - 1)]
    assert np.allclose(orthant(cov[:, order][:, :, order])[0], orthant(cov)[0], rtol=0, atol=1e-8)
    opposite = np.array([-1, *[1] * (d - 1)])
    assert np.allclose(orthant((cov[:, order][:, :, order]) * np.outer(opposite, opposite))[0], 0, atol=1e-8)


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_erf_gates_closed(d):
    """Against Gauss-Hermite quadrature of the product."""
    cov = random_covariances(1, d)[0] / d
    x, w = np.polynomial.hermite_e.hermegauss(60 if d < 4 else 24)
    w = w / np.sqrt(2 * np.pi)
    grid = np.stack(np.meshgrid(*[x] * d, indexing="ij")).reshape(d, -1)
    weights = np.prod(np.stack(np.meshgrid(*[w] * d, indexing="ij")).reshape(d, -1), axis=0)
    exact = weights @ np.prod((1 + erf(np.linalg.cholesky(cov) @ grid)) / 2, axis=0)
    assert erf_gates(cov)[0] == pytest.approx(exact, abs=1e-6)


def test_wrong_input_is_an_error():
    for cov in (np.ones((2, 3)), np.full((2, 2), np.nan), np.eye(5)):
        with pytest.raises(DataError, match="orthant probability"):
            orthant(cov)
