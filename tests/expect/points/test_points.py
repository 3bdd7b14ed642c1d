"""Sample points: normal marginals, independent blocks, and covariance factors that grow."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from netsor.errors import DataError
from netsor.expect.points.loadings import Loadings, Noise
from netsor.expect.points.pivoted_cholesky import GrowingFactor
from netsor.expect.points.sobol import NormalPoints, normal_points, uniform_points

RNG = np.random.default_rng(20240)


def random_covariance(size: int, rank: int) -> np.ndarray:
    root = RNG.standard_normal((size, rank))
    return root @ root.T / rank


class Sampler:
    """The variables of one family at points."""

    def __init__(self, points: NormalPoints) -> None:
        self.points, self.loadings = points, Loadings(used=points.used)
        self.noise = Noise([points], [self.loadings.dimensions], slice(0, points.count))

    def extend(self, cov_with_old: np.ndarray, cov_new: np.ndarray) -> np.ndarray:
        rows = self.loadings.extend("family", cov_with_old, cov_new)
        self.points.used = self.loadings.used
        return self.noise.variables("family", [rows])[0]


def sample(cov: np.ndarray, steps: list[int], count: int = 2**14, seed: int = 3) -> np.ndarray:
    """Samples of N(0, cov), made in steps of the sizes given."""
    sampler, rows, start = Sampler(NormalPoints(count, seed)), [], 0
    for step in steps:
        stop = start + step
        rows.append(sampler.extend(cov[start:stop, :start], cov[start:stop, start:stop]))
        start = stop
    return np.concatenate(rows)


def correlation_error(samples: np.ndarray, cov: np.ndarray) -> float:
    scale = np.sqrt(np.diagonal(cov))
    scale = np.where(scale > 0, scale, 1.0)
    return float(np.max(np.abs(samples @ samples.T / samples.shape[1] - cov) / np.outer(scale, scale)))


@pytest.mark.parametrize("count", [1, 7, 1000, 4096])
def test_points_are_finite_and_repeatable(count):
    points = normal_points(5, count, seed=1)
    assert points.shape == (5, count)
    assert np.isfinite(points).all()
    assert np.array_equal(points, normal_points(5, count, seed=1))
    assert not np.array_equal(points, normal_points(5, count, seed=2))


def test_points_have_normal_moments():
    z = normal_points(8, 2**14, seed=0)
    assert np.max(np.abs(z.mean(1))) < 1e-4
    assert np.max(np.abs((z**2).mean(1) - 1)) < 2e-3
    assert correlation_error(z, np.eye(8)) < 5e-3


def test_no_dimensions():
    assert first(NormalPoints(8, 0), 0).shape == (0, 8)


def first(points: NormalPoints, count: int) -> np.ndarray:
    """The first dimensions at all points."""
    found = np.empty((count, points.count))
    points.at(np.arange(count), slice(0, points.count), out=found)
    return found


@pytest.mark.parametrize("dimensions", [1, 15, 64, 100])
def test_few_dimensions_are_a_block_of_their_own(dimensions):
    """As many as are expected are one Sobol sequence; there may be more."""
    whole = first(NormalPoints(64, 5, dimensions=dimensions), 200)
    size = min(dimensions, 64)
    assert np.array_equal(whole[:size], normal_points(size, 64, [5, 0]))
    cells = np.sort((ndtr(whole) * 64).astype(int), axis=1)
    assert np.array_equal(cells, np.tile(np.arange(64), (200, 1)))


def test_further_blocks_are_in_an_order_of_their_own():
    rng = np.random.default_rng([5, 1])
    block = ndtri(uniform_points(64, 100, rng))
    assert np.array_equal(first(NormalPoints(100, 5), 128)[64:], block[:, rng.permutation(100)])


def test_blocks_are_independent():
    z = first(NormalPoints(2**12, 0), 1030)
    across = z[:16] @ z[64:80].T / z.shape[1]
    assert np.max(np.abs(across)) < 6 / 2**6
    assert np.std(across) < 2 / 2**6


def test_seeds_may_be_sequences():
    assert not np.array_equal(first(NormalPoints(8, [1, 2]), 3), first(NormalPoints(8, [1, 3]), 3))


def test_many_points_are_drawn_in_small_blocks():
    z = first(NormalPoints(2**20, 0), 10)
    assert z.shape == (10, 2**20)
    assert correlation_error(z, np.eye(10)) < 6e-3


@pytest.mark.parametrize("steps", [[24], [1] * 24, [5, 1, 10, 8]])
@pytest.mark.parametrize("rank", [1, 2, 10, 60])
def test_sample_covariance(steps, rank):
    cov = random_covariance(24, rank)
    samples = sample(cov, steps)
    assert correlation_error(samples, cov) < 0.02
    assert np.linalg.matrix_rank(samples, tol=1e-6) == min(rank, 24)


@pytest.mark.parametrize("steps", [[40], [1] * 40, [7, 20, 13]])
def test_factor_is_exact_whatever_the_steps(steps):
    """L L^T, read off with the identity as noise, is the covariance to rounding."""
    cov = random_covariance(40, 11)
    cov[3], cov[:, 3] = cov[17], cov[:, 17]

    class Identity(NormalPoints):
        def at(self, dimensions, points, out):
            out[...] = np.eye(64)[dimensions][:, points]

    sampler, rows, start = Sampler(Identity(64, 0)), [], 0
    for step in steps:
        stop = start + step
        rows.append(sampler.extend(cov[start:stop, :start], cov[start:stop, start:stop]))
        start = stop
    factor = np.concatenate(rows)
    assert np.allclose(factor @ factor.T, cov, rtol=0, atol=1e-11)
    assert sampler.loadings.used == 11


@pytest.mark.parametrize("steps", [[12], [1] * 12, [5, 1, 6]])
def test_growing_factor(steps):
    """Its rows multiply to the covariance, its axes sort the new columns by their variance."""
    cov, factor, rows, start = random_covariance(12, 7), GrowingFactor(), [], 0
    for step in steps:
        stop, old = start + step, factor.rank
        made, (_, axes) = factor.extend(cov[start:stop, :start], cov[start:stop, start:stop])
        variance = np.sum((made[:, old:] @ axes) ** 2, axis=0)
        assert np.all(np.diff(variance) <= 1e-12)
        np.testing.assert_allclose(axes @ axes.T, np.eye(len(axes)), atol=1e-12)
        rows.append(np.pad(made, [(0, 0), (0, 7 - made.shape[1])]))
        start = stop
    whole = np.concatenate(rows)
    assert (factor.rank, factor.size) == (7, 12)
    np.testing.assert_allclose(whole @ whole.T, cov, rtol=0, atol=1e-11)


def test_duplicates_have_identical_samples():
    cov = random_covariance(6, 4)
    twice = np.block([[cov, cov], [cov, cov]])
    for steps in ([12], [6, 6], [1] * 12):
        samples = sample(twice, steps, count=256)
        assert np.allclose(samples[:6], samples[6:], rtol=0, atol=1e-9)


def test_opposites_and_scales():
    scale = np.array([1.0, -1.0, 1e-9, 1e9])
    samples = sample(np.outer(scale, scale), [1, 1, 2], count=64)
    assert np.allclose(samples / scale[:, None], samples[0], rtol=1e-12)


def test_zero_variance_gives_zeros():
    cov = np.diag([1.0, 0.0, 2.0, 0.0])
    samples = sample(cov, [2, 2], count=64)
    assert not samples[[1, 3]].any()
    assert not sample(np.zeros((3, 3)), [1, 2], count=64).any()


def test_covariance_with_noise_keeps_the_variances():
    """A correlation above 1 by noise in the kernel is cut to 1: no NaN, no inflated variance."""
    cov = np.array([[1.0, 1.0 + 1e-6], [1.0 + 1e-6, 1.0]])
    samples = sample(cov, [1, 1], count=64)
    assert np.allclose(samples[0], samples[1], rtol=1e-12)


def test_nearly_equal_variables():
    """A difference of relative variance 1e-8 is kept."""
    cov = np.array([[1.0, 1.0], [1.0, 1.0 + 1e-8]])
    samples = sample(cov, [1, 1])
    assert np.mean((samples[1] - samples[0]) ** 2) == pytest.approx(1e-8, rel=1e-2)


def test_independent_vectors_share_a_stream():
    points = NormalPoints(2**12, 0)
    x = Sampler(points).extend(np.zeros((2, 0)), np.eye(2))
    y = Sampler(points).extend(np.zeros((2, 0)), np.eye(2))
    assert correlation_error(np.concatenate([x, y]), np.eye(4)) < 0.01


def test_wrong_shapes_and_nan_are_refused():
    sampler = Sampler(NormalPoints(8, 0))
    with pytest.raises(DataError, match="extend 0 variables"):
        sampler.extend(np.zeros((1, 1)), np.eye(1))
    with pytest.raises(DataError, match="not finite"):
        sampler.extend(np.zeros((1, 0)), np.full((1, 1), np.nan))


@pytest.mark.parametrize("count", [1, 3, 64, 1000])
def test_any_dimensions_of_some_points(count):
    whole = first(NormalPoints(count, 5, dimensions=40), 200)
    dimensions = np.random.default_rng(0).permutation(200)[:90]
    for places in (slice(0, count), slice(count // 3, 2 * count // 3 + 1)):
        found = np.empty((90, places.stop - places.start))
        NormalPoints(count, 5, dimensions=40).at(dimensions, places, out=found)
        np.testing.assert_array_equal(found, whole[dimensions, places])
