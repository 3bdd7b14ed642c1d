"""Derivatives of batchnorm: on the sphere, in closed form, and by Monte Carlo."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import helmert

from brute_force import batchnorm_slopes, centred, on_the_sphere
from netsor.errors import LimitError
from netsor.expect.batchnorm.batch_law import batch_of, slope_rule
from netsor.expect.batchnorm.tangents import slope_moments

Slopes = tuple[float, float]
SLOPES = {"relu": (1.0, 0.0), "leaky": (1.0, 0.1), "abs": (1.0, -1.0), "identity": (1.0, 1.0)}
phi_slopes = pytest.mark.parametrize("slopes", SLOPES.values(), ids=SLOPES.keys())


def covariance(size: int, seed: int, rank: int | None = None) -> np.ndarray:
    root = np.random.default_rng(seed).standard_normal((size, rank or size + 2))
    return root @ root.T / size


H = helmert(4).T  # 3 dimensions of sum 0


@phi_slopes
def test_within_a_batch_of_four(slopes: Slopes) -> None:
    x, theta = covariance(3, 0), covariance(4, 1)
    sigma = H @ x @ H.T
    value, error = slope_moments(sigma, sigma, sigma, theta, (slopes, slopes))
    wanted = on_the_sphere(x, (H, H), batchnorm_slopes(theta, slopes, slopes), -2)
    assert np.abs(value - wanted).max() <= error.max() + 1e-11
    assert error.max() < 1e-11
    assert np.linalg.eigvalsh(value).min() > -1e-12


@phi_slopes
def test_across_batches_that_are_functions_of_each_other(slopes: Slopes) -> None:
    """The joint covariance has rank 3 of 6, at its edge; the slopes of the right batch are those of relu."""
    x, rng = covariance(3, 2), np.random.default_rng(4)
    right = helmert(5).T[:, :3] @ rng.standard_normal((3, 3))
    theta = rng.standard_normal((4, 3)) @ right.T  # directions are where the batches are
    both = (slopes, (1.0, 0.0))
    value, error = slope_moments(H @ x @ H.T, right @ x @ right.T, H @ x @ right.T, theta, both)
    wanted = on_the_sphere(x, (H, right), batchnorm_slopes(theta, *both), -2)
    assert np.abs(value - wanted).max() <= error.max()
    assert error.max() < 1e-6
    assert np.abs(value - wanted).max() < 1e-8


@pytest.mark.parametrize("size", [4, 5, 9])
def test_directions_that_are_equally_likely(size: int) -> None:
    """For sigma = I the direction is uniform, E[1/|y|^2] = 1/(r - 2), and fourth moments are known."""
    theta, r = centred(covariance(size, 5)), size - 1
    G = np.eye(size) - 1 / size
    value, error = slope_moments(np.eye(size), np.eye(size), np.eye(size), theta, ((1.0, 1.0), (1.0, 1.0)))
    wanted = theta * (1 - 2 / r) + (2 * theta + np.trace(theta) * G) / (r * (r + 2))
    np.testing.assert_allclose(value, size / (r - 2) * wanted, rtol=0, atol=1e-12 + error.max())


@pytest.mark.parametrize("sizes", [(4, 4), (6, 5)])
@pytest.mark.parametrize("slopes", [(1.0, 0.0), (1.0, 0.3)])
def test_monte_carlo_across_batches(sizes: tuple[int, int], slopes: Slopes) -> None:
    a, _ = sizes
    joint, theta = covariance(sum(sizes), 6), covariance(sum(sizes), 7)[:a, a:]
    value, error = slope_moments(joint[:a, :a], joint[a:, a:], joint[:a, a:], theta, (slopes, slopes))
    assert error.max() < 1e-8
    rng, root, found = np.random.default_rng(8), np.linalg.cholesky(joint), []
    for _ in range(8):
        y = rng.standard_normal((2**13, sum(sizes))) @ root.T
        left, right = (z - z.mean(1, keepdims=True) for z in (y[:, :a], y[:, a:]))
        found.append(batchnorm_slopes(theta, slopes, slopes)(left, right).mean(0))
    mean, deviation = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(8)
    assert np.sqrt(np.mean(((value - mean) / deviation) ** 2)) < 3


def test_a_batch_and_a_nearly_equal_one() -> None:
    """Across tends to within, like a root of the distance, and its bound knows of the rounding."""
    sigma, theta, relu = covariance(6, 9), covariance(6, 10), ((1.0, 0.0), (1.0, 0.0))
    within, _ = slope_moments(sigma, sigma, sigma, theta, relu)
    distances = []
    for gap in (1e-4, 1e-8, 1e-12):
        value, error = slope_moments(sigma, sigma, (1 - gap) * sigma, theta, relu)
        distances.append(np.abs(value - within).max())
        assert error.max() < 1e-4
    assert distances[0] > 30 * distances[1] > 900 * distances[2]


def test_symmetry_and_scale() -> None:
    joint, theta = covariance(9, 11), covariance(9, 12)[:5, 5:]
    one, two, cross = joint[:5, :5], joint[5:, 5:], joint[:5, 5:]
    both = ((1.0, 0.0), (1.0, -0.3))
    value, error = slope_moments(one, two, cross, theta, both)
    turned, _ = slope_moments(two, one, cross.T, theta.T, (both[1], both[0]))
    np.testing.assert_allclose(turned.T, value, rtol=0, atol=error.max())
    scaled, _ = slope_moments(4.0 * one, 9.0 * two, 6.0 * cross, 12.0 * theta, both)
    np.testing.assert_allclose(scaled, 2 * value, rtol=1e-9, atol=1e-12)


def test_ranks_without_a_second_moment() -> None:
    sigma, theta = covariance(5, 13, rank=2), covariance(5, 14)
    with pytest.raises(LimitError, match="span 2 dimensions"):
        slope_moments(sigma, sigma, sigma, theta, ((1.0, 0.0), (1.0, 0.0)))
    line = np.arange(5.0)
    sigma = np.outer(line, line)
    value, _ = slope_moments(sigma, sigma, sigma, 0.3 * sigma, ((1.0, 0.0), (1.0, 0.0)))
    assert not value.any()  # a sign does not move


def test_a_rule_serves_both_powers() -> None:
    batch = batch_of(covariance(5, 15), 2.0**-52)
    nodes, weights = slope_rule(batch, 1e-10)
    q = np.geomspace(1e-4, 5, 20)[:, None]
    parts = weights * np.exp(-nodes * q)
    np.testing.assert_allclose(parts.sum(1), q[:, 0] ** -0.5, rtol=1e-8)
    np.testing.assert_allclose((2 * nodes * parts).sum(1), q[:, 0] ** -1.5, rtol=1e-8)
