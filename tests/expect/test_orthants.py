"""Orthant probabilities: exact values, singular covariances, and integrals made another way."""

from __future__ import annotations

from itertools import permutations

import array_api_strict
import numpy as np
import pytest
from scipy.special import erf, ndtr
from scipy.stats import multivariate_normal

from netsor.errors import DataError
from netsor.expect.orthants import erf_gates, orthant

RNG = np.random.default_rng(11)


def random_covariances(count: int, d: int, rank: int | None = None) -> np.ndarray:
    root = RNG.standard_normal((count, d, rank or d))
    return root @ np.swapaxes(root, 1, 2)


def line() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the standard normal: the trapezoid rule, exact for smooth functions."""
    x = np.linspace(-10, 10, 2001)
    return x, 0.01 * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def arc(angles: np.ndarray) -> float:
    """P(cos(a - angle) > 0 for all angles) for a uniform direction a: the orthant of rank two."""
    cuts = np.sort(np.concatenate([angles + np.pi / 2, angles - np.pi / 2]) % (2 * np.pi))
    cuts = np.append(cuts, cuts[0] + 2 * np.pi)
    middle, length = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
    inside = np.all(np.cos(middle[:, None] - angles) > 1e-9, axis=1)
    return float(length @ inside / (2 * np.pi))


@pytest.mark.parametrize("d", range(1, 10))
def test_equal_correlations_of_one_half(d):
    value, error = orthant(np.eye(d) / 2 + 0.5)
    assert abs(value - 1 / (d + 1)) <= 5 * error + 1e-15
    assert error < 2e-14 if d <= 4 else error < 2e-5


@pytest.mark.parametrize("d", range(1, 7))
def test_independent_variables(d):
    mean = np.linspace(-1, 1.5, d)
    value, error = orthant(np.diag(np.arange(1.0, d + 1)), mean)
    assert abs(value - np.prod(ndtr(mean / np.sqrt(np.arange(1.0, d + 1))))) <= 5 * error + 1e-15


def test_no_variables():
    value, error = orthant(np.zeros((2, 0, 0)))
    assert np.array_equal(value, [1, 1])
    assert np.array_equal(error, [0, 0])


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


def test_rank_two_in_many_dimensions_is_sampled():
    angles = RNG.uniform(-0.7, 0.7, 6)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    value, error = orthant(points @ points.T)
    assert abs(value - arc(angles)) <= 5 * error
    assert error < 1e-3


def test_four_variables_do_not_depend_on_their_order():
    """Each order is another integral: they agree to rounding."""
    cov = random_covariances(50, 4)
    values = [orthant(cov[:, p][:, :, p])[0] for p in map(list, permutations(range(4)))]
    assert np.max(np.ptp(values, axis=0)) < 1e-14


def test_four_variables_against_the_sampled_method():
    cov = random_covariances(20, 4)
    value, _ = orthant(cov)
    sampled, error = orthant(cov, np.full(4, 1e-300), repeats=32)
    assert np.max(np.abs(value - sampled) / error) < 5


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


def test_repeated_variables_when_sampled():
    cov, mean = random_covariances(1, 3)[0], np.array([0.3, 0.1, 0.8])
    order = [0, 1, 2, 1, 0, 0]
    once, error = orthant(cov, mean)
    many, other = orthant(cov[np.ix_(order, order)], mean[order])
    assert abs(once - many) <= 5 * (error + other)


@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-12, 1e-6, 0.1])
def test_two_variables_near_correlation_one(gap):
    cov = np.array([[1.0, 1 - gap], [1 - gap, 1.0]])
    x, w = line()
    for mean in ([0.3, 0.3], [0.3, 0.31], [1.0, -1.0], [0.0, 1.0], [0.0, -2.0], [-3.0, -3.0]):
        value, _ = orthant(cov, np.array(mean))
        assert min(ndtr(mean)) - 0.5 * np.sqrt(gap) - 1e-15 <= value <= min(ndtr(mean)) + 1e-15
        if gap == 0.1:
            shared = ndtr((np.array(mean)[:, None] + np.sqrt(0.9) * x) / np.sqrt(0.1))
            assert value == pytest.approx(w @ (shared[0] * shared[1]), abs=1e-14)


def test_two_variables_with_means():
    cov, mean = random_covariances(100, 2), 2 * RNG.standard_normal((100, 2))
    exact = [multivariate_normal(np.zeros(2), c).cdf(m) for c, m in zip(cov, mean, strict=True)]
    assert np.allclose(orthant(cov, mean)[0], exact, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [3, 5, 9])
def test_means_and_equal_correlations(d):
    """x_i = m_i + c^(1/2) g + (1 - c)^(1/2) e_i: a 1-D integral over g."""
    c, mean = 0.4, np.linspace(-0.5, 1.0, d)
    x, w = line()
    exact = w @ np.prod(ndtr((mean[:, None] + np.sqrt(c) * x) / np.sqrt(1 - c)), axis=0)
    value, error = orthant((1 - c) * np.eye(d) + c, mean)
    assert abs(value - exact) <= 5 * error
    assert error < 1e-4 * value


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_zero_variance_is_a_fact(d):
    """A fixed positive variable changes nothing, a fixed one at zero or below leaves nothing."""
    cov, mean = random_covariances(1, d)[0], RNG.standard_normal(d)
    larger = np.zeros((d + 1, d + 1))
    larger[:d, :d] = cov
    value, error = orthant(cov, mean)
    with_fact, other = orthant(larger, np.append(mean, 0.7))
    assert abs(value - with_fact) <= 5 * (error + other) + 1e-15
    for m in (0.0, -0.7):
        assert orthant(larger, np.append(mean, m))[0] == pytest.approx(0, abs=1e-300)


def test_far_tails_are_finite():
    for d in (2, 3, 6):
        for m in (-60.0, -30.0, 30.0, 60.0):
            value, error = orthant(np.eye(d) / 2 + 0.5, np.full(d, m))
            assert value == pytest.approx(float(m > 0), abs=1e-15)
            assert np.isfinite(error)


def test_leading_axes_and_seeds():
    cov, mean = random_covariances(6, 5).reshape(2, 3, 5, 5), RNG.standard_normal((3, 5))
    value, error = orthant(cov, mean)
    assert value.shape == error.shape == (2, 3)
    assert value[1, 2] == pytest.approx(orthant(cov[1, 2], mean[2])[0], rel=1e-12)
    assert not np.array_equal(value, orthant(cov, mean, seed=1)[0])
    mixed, _ = orthant(cov, np.array([0.0, 1.0, 0.0])[:, None] * mean)
    assert np.allclose(mixed[:, [0, 2]], orthant(cov[:, [0, 2]])[0], rtol=1e-12)


def test_standard_error_is_honest():
    d, count = 6, 60
    exact = 1 / (d + 1)
    units = [
        (v - exact) / e for v, e in (orthant(np.eye(d) / 2 + 0.5, points=256, seed=s) for s in range(count))
    ]
    assert 0.7 < np.sqrt(np.mean(np.square(units))) < 1.7


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


def test_erf_gates_of_equal_variables():
    """E[((1 + erf(g))/2)^d], g ~ N(m, v)."""
    d, v, m = 7, 0.6, 0.2
    x, w = line()
    exact = w @ ((1 + erf(m + np.sqrt(v) * x)) / 2) ** d
    value, error = erf_gates(np.full((d, d), v), np.full(d, m))
    assert abs(value - exact) <= 5 * error
    assert error < 1e-4 * value


def test_array_namespace_is_kept():
    cov = array_api_strict.asarray(np.eye(3) / 2 + 0.5)
    value, _ = orthant(cov)
    assert isinstance(value, type(cov))
    assert float(value) == pytest.approx(0.25)
    assert isinstance(erf_gates(cov)[0], type(cov))


def test_wrong_input_is_an_error():
    for cov in (np.ones((2, 3)), np.full((2, 2), np.nan)):
        with pytest.raises(DataError, match="orthant probability"):
            orthant(cov)
