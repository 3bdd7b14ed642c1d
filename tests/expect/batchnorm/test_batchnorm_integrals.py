"""Batchnorm integrals: exact cases, the direction on a circle, the printed formula, and Monte Carlo."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.linalg import helmert

from netsor.errors import DataError
from netsor.expect.batchnorm import batch_law
from netsor.expect.batchnorm import second_moments as batchnorm_module
from netsor.expect.batchnorm.batch_law import GaussianBatch, Rule, batch_of, root_rule
from netsor.expect.batchnorm.second_moments import second_moments

EPS = float(np.finfo(float).eps)
RELU = (1.0, 0.0)
SLOPES = {"relu": (1.0, 0.0), "leaky": (1.0, 0.1), "abs": (1.0, -1.0), "identity": (1.0, 1.0)}
phi_slopes = pytest.mark.parametrize("slopes", SLOPES.values(), ids=SLOPES.keys())


def within_with_error(sigma, slopes=RELU):
    return batchnorm_module.within(batch_of(sigma, EPS), slopes)


def across_with_error(s11, s22, s12, slopes=RELU, tol=1e-10):
    return batchnorm_module.across(batch_of(s11, EPS), batch_of(s22, EPS), s12, slopes, tol)


def within(sigma, slopes=RELU):
    return within_with_error(sigma, slopes)[0]


def across(s11, s22, s12, slopes=RELU, tol=1e-10):
    return across_with_error(s11, s22, s12, slopes, tol)[0]


def joint(sizes: tuple[int, ...], rank: int, seed: int = 0) -> list[list[np.ndarray]]:
    """The blocks of a random covariance of this rank."""
    root = np.random.default_rng(seed).standard_normal((sum(sizes), rank))
    cuts = np.cumsum(sizes)[:-1]
    return [np.split(row, cuts, axis=1) for row in np.split(root @ root.T / rank, cuts)]


def phi(x: np.ndarray, slopes: tuple[float, float]) -> np.ndarray:
    return np.where(x > 0, slopes[0], slopes[1]) * x


def batchnorm(z: np.ndarray) -> np.ndarray:
    """Over axis 0."""
    y = z - z.mean(0)
    return y / np.sqrt((y**2).mean(0))


def scales(sigma: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
    """(E[bn_i^2] E[bn_j^2])^(1/2)."""
    roots = [np.sqrt(np.diagonal(within(s, (1.0, 1.0)))) for s in (sigma, sigma if other is None else other)]
    return np.outer(*roots)


# Exact cases.


def test_batch_of_two_is_plus_or_minus_one():
    sigma = np.array([[2.0, 0.3], [0.3, 1.0]])
    assert np.allclose(within(sigma), np.eye(2) / 2, atol=1e-13)
    assert np.allclose(within(sigma, (1.0, 1.0)), [[1, -1], [-1, 1]], atol=1e-13)


@pytest.mark.parametrize("rho", [0.0, 0.3, -0.9, 1 - 1e-6, 1.0, -1.0])
def test_two_batches_of_two_follow_the_arcsine_law(rho):
    """z_1 - z_2 and z'_1 - z'_2 are both positive with probability 1/4 + arcsin(rho) / 2 pi."""
    unit = np.array([[1.0, -1.0], [-1.0, 1.0]])
    p = 0.25 + np.arcsin(rho) / (2 * np.pi)
    value, error = across_with_error(3.0 * unit, 0.2 * unit, rho * np.sqrt(0.6) * unit)
    assert np.allclose(value, [[p, 0.5 - p], [0.5 - p, p]], rtol=0, atol=1e-11)
    assert error.max() <= 1e-10


@phi_slopes
def test_rank_one_batch_has_two_values(slopes):
    direction = np.array([0.3, -1.0, 2.0, 0.5])
    plus, minus = (phi(batchnorm(sign * direction), slopes) for sign in (1, -1))
    exact = (np.outer(plus, plus) + np.outer(minus, minus)) / 2
    assert np.allclose(within(np.outer(direction, direction), slopes), exact, rtol=0, atol=1e-11)


@phi_slopes
def test_independent_batches_are_a_product_of_means(slopes):
    """E[phi(bn_i)] = half (a - b) E|bn_i|, and E|bn_i| is found from a batch paired with itself reversed."""
    (s, _), _ = joint((3, 3), 8)
    value = across(s, s, np.zeros((3, 3)), slopes)
    mean = (slopes[0] - slopes[1]) / 2 * circle_mean(s)
    assert np.allclose(value, np.outer(mean, mean), rtol=0, atol=1e-11)


@phi_slopes
def test_all_directions_equally_likely(slopes):
    """sigma = I: the direction is uniform and all correlations are -1/(B-1)."""
    B = 7
    value = within(np.eye(B), slopes)
    a, b = slopes
    assert np.allclose(np.diagonal(value), (a**2 + b**2) / 2, rtol=1e-12)
    c = -1 / (B - 1)
    mixed = ((a + b) / 2) ** 2 * c + ((a - b) / 2) ** 2 * 2 / np.pi * (np.sqrt(1 - c**2) + c * np.arcsin(c))
    assert value[0, 1] == pytest.approx(mixed, rel=1e-12)


# A batch of three: the direction is a point of a circle.


def circle(count: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Angles, Gauss-Legendre weights between the kinks of relu, and unit vectors of sum zero (3, n)."""
    H = helmert(3).T
    kinks = np.sort(np.concatenate([np.arctan2(-H[:, 0], H[:, 1]), np.arctan2(H[:, 0], -H[:, 1])]))
    kinks = np.append(kinks, kinks[0] + 2 * np.pi)
    nodes, weights = np.polynomial.legendre.leggauss(count)
    angles = np.concatenate([(a + b) / 2 + (b - a) / 2 * nodes for a, b in pairwise(kinks)])
    measure = np.concatenate([(b - a) / 2 * weights for a, b in pairwise(kinks)])
    return angles, measure, H @ np.stack([np.cos(angles), np.sin(angles)])


def circle_weights(sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The law of the direction: density (det M)^(-1/2) / (2 pi u^T M^-1 u), M = H^T sigma H."""
    angles, measure, unit = circle()
    H = helmert(3).T
    M = H.T @ sigma @ H
    u = np.stack([np.cos(angles), np.sin(angles)])
    density = 1 / (2 * np.pi * np.sqrt(np.linalg.det(M)) * np.sum(u * np.linalg.solve(M, u), axis=0))
    return density * measure, np.sqrt(3) * unit


def circle_mean(sigma: np.ndarray) -> np.ndarray:
    """E|bn_i|."""
    weights, bn = circle_weights(sigma)
    return np.abs(bn) @ weights


@phi_slopes
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_batch_of_three_on_the_circle(slopes, scale):
    (sigma, _), _ = joint((3, 1), 5, seed=2)
    sigma = sigma * np.outer([1, 1, scale], [1, 1, scale])
    weights, bn = circle_weights(sigma)
    h = phi(bn, slopes)
    value, error = within_with_error(sigma, slopes)
    assert np.allclose(value, (h * weights) @ h.T, rtol=0, atol=2e-12)
    assert error.max() < 1e-11


@phi_slopes
def test_two_batches_of_three_on_two_circles(slopes):
    """The lengths r, r' of y and y' integrate out in closed form at each pair of directions."""
    (s11, s12), (_, s22) = joint((3, 3), 9, seed=5)
    angles, measure, unit = circle(60)
    H = np.kron(np.eye(2), helmert(3).T)
    precision = np.linalg.inv(H.T @ np.block([[s11, s12], [s12.T, s22]]) @ H)
    u = np.stack([np.cos(angles), np.sin(angles)])
    a = np.sum(u * (precision[:2, :2] @ u), axis=0)[:, None]
    b = np.sum(u * (precision[2:, 2:] @ u), axis=0)[None, :]
    c = u.T @ precision[:2, 2:] @ u / np.sqrt(a * b)
    radial = (1 - c * np.arccos(c) / np.sqrt(1 - c**2)) / (a * b * (1 - c**2))
    weights = np.sqrt(np.linalg.det(precision)) / (2 * np.pi) ** 2 * radial * np.outer(measure, measure)
    assert weights.sum() == pytest.approx(1, rel=1e-13)
    h = phi(np.sqrt(3) * unit, slopes)
    value, error = across_with_error(s11, s22, s12, slopes)
    assert np.allclose(value, h @ weights @ h.T, rtol=0, atol=2e-11)
    assert error.max() < 1e-9


# The formulas as printed, with dense linear algebra at every node.


def relu_transform(cov: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1))
    roots = scale[..., :, None] * scale[..., None, :]
    c = np.clip(cov / roots, -1, 1)
    return roots / (2 * np.pi) * (np.sqrt(1 - c**2) + c * (np.pi - np.arccos(c)))


def test_printed_integral_within():
    B = 6
    (sigma, _), _ = joint((B, 1), 9, seed=3)
    G = np.eye(B) - 1 / B
    S = G @ sigma @ G
    x = np.arange(-34, 24, 0.25)
    s = np.exp(x)[:, None, None]
    inverse = np.linalg.inv(np.eye(B) + 2 * s * S)
    terms = relu_transform(S @ inverse) * (s * np.sqrt(np.linalg.det(inverse))[:, None, None])
    assert np.allclose(within(sigma), B * 0.25 * terms.sum(0), rtol=0, atol=1e-12)


def test_printed_integral_across():
    B1, B2 = 4, 5
    (s11, s12), (_, s22) = joint((B1, B2), 12, seed=4)
    G = np.eye(B1 + B2)
    G[:B1, :B1] -= 1 / B1
    G[B1:, B1:] -= 1 / B2
    S = G @ np.block([[s11, s12], [s12.T, s22]]) @ G
    step = 0.5
    x = np.arange(-46, 16, step)
    total = np.zeros((B1, B2))
    for s in np.exp(x):
        t = np.exp(x)
        D = np.concatenate([np.full((len(t), B1), s), np.repeat(t[:, None], B2, axis=1)], axis=1)
        inverse = np.linalg.inv(np.eye(B1 + B2) + 2 * S * D[:, None, :])
        weights = np.sqrt(s * t * np.linalg.det(inverse))
        total += np.einsum("n,nij->ij", weights, relu_transform(inverse @ S)[:, :B1, B1:])
    exact = np.sqrt(B1 * B2) / np.pi * step**2 * total
    assert np.allclose(across(s11, s22, s12), exact, rtol=0, atol=2e-9)


# Monte Carlo, in units of its standard error.


@phi_slopes
@pytest.mark.parametrize("rank", [3, 40])
def test_monte_carlo(slopes, rank):
    sizes, count = (5, 8), 200_000
    rng = np.random.default_rng(7)
    root = rng.standard_normal((sum(sizes), rank))
    cov = root @ root.T
    z = root @ rng.standard_normal((rank, count)) + np.repeat([3.0, -1.0], sizes)[:, None]
    h = np.concatenate([phi(batchnorm(part), slopes) for part in np.split(z, [5])])
    first, second = h @ h.T / count, h**2 @ (h**2).T / count
    deviation = np.sqrt(np.maximum(second - first**2, 0) / count)
    one, two, both = cov[:5, :5], cov[5:, 5:], cov[:5, 5:]
    rows = np.block([[within(one, slopes), across(one, two, both, slopes, tol=1e-8)]])
    rows = np.concatenate([rows.ravel(), within(two, slopes).ravel()])
    estimate = np.concatenate([first[:5].ravel(), first[5:, 5:].ravel()])
    units = np.concatenate([deviation[:5].ravel(), deviation[5:, 5:].ravel()])
    assert np.max(np.abs(rows - estimate) / (units + 1e-9)) < 4.5


# Invariances.


@phi_slopes
@pytest.mark.parametrize("size", [2, 3, 10, 64])
@pytest.mark.parametrize("rank", [1, 2, 200])
def test_identical_batches(slopes, size, rank):
    tol = 1e-6 if size == 64 and rank < 200 else 1e-10
    (sigma, _), _ = joint((size, 1), rank)
    value = across(sigma, sigma, sigma, slopes, tol=tol)
    assert np.max(np.abs(value - within(sigma, slopes)) / scales(sigma)) < tol


@pytest.mark.parametrize("size", [2, 3, 17, 64])
def test_trace_is_the_batch_size(size):
    (sigma, _), _ = joint((size, 1), 30)
    assert np.trace(within(sigma, (1.0, -1.0))) == pytest.approx(size, rel=1e-12)
    assert np.trace(within(sigma, (1.0, 1.0))) == pytest.approx(size, rel=1e-13)


@pytest.mark.parametrize("factor", [1e12, 1e-12])
def test_scale_does_not_matter(factor):
    (s11, s12), (_, s22) = joint((6, 9), 20)
    assert np.allclose(within(factor * s11), within(s11), rtol=1e-12)
    for one, two in ((factor, 1.0), (1.0, factor), (factor, factor)):
        scaled = across(one * s11, two * s22, np.sqrt(one * two) * s12)
        assert np.allclose(scaled, across(s11, s22, s12), rtol=1e-11)


def test_common_part_does_not_matter():
    (s11, s12), (_, s22) = joint((6, 9), 20)
    assert np.allclose(within(s11 + 1e4), within(s11), rtol=0, atol=1e-10)
    shift = 1e3 * np.random.default_rng(0).standard_normal(6)
    assert np.allclose(within(s11 + shift[:, None] + shift + 1e6), within(s11), rtol=0, atol=1e-8)
    assert np.allclose(across(s11 + 1e3, s22 + 1e3, s12 + 1e3), across(s11, s22, s12), rtol=0, atol=1e-10)


def test_transposed():
    (s11, s12), (_, s22) = joint((4, 7), 6)
    assert np.allclose(across(s11, s22, s12), across(s22, s11, s12.T).T, rtol=0, atol=1e-11)


def test_repeated_members():
    (sigma, _), _ = joint((4, 1), 10)
    order = [0, 1, 2, 3, 1, 1]
    repeated = sigma[np.ix_(order, order)]
    value = within(repeated)
    assert np.allclose(value[1], value[4], rtol=0, atol=1e-14)
    assert np.allclose(value[4], value[5], rtol=0, atol=1e-14)
    assert np.allclose(across(repeated, repeated, repeated), value, rtol=0, atol=1e-11)
    part = across(repeated, sigma, sigma[order])
    assert np.allclose(part[1], part[4], rtol=0, atol=1e-13)


def test_member_at_the_mean_of_its_batch():
    mix = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    value = within(mix @ mix.T)
    assert np.allclose(value[2], 0, atol=1e-7)
    assert np.allclose(value[:2, :2], 1.5 * np.eye(2) / 2, atol=1e-7)


def test_far_apart_scales():
    """Axes of variance 1 and v: E[v g^2 / (f^2 + v g^2)] = v^(1/2) / (1 + v^(1/2)), as sigma knows v."""
    H = helmert(3).T
    for v in (1e-4, 1e-8, 1e-11):
        sigma = H @ np.diag([1.0, v]) @ H.T
        value, error = within_with_error(sigma, (1.0, 1.0))
        small = np.array([0.0, 1.0]) @ H.T @ value @ H @ np.array([0.0, 1.0])
        assert small == pytest.approx(3 * np.sqrt(v) / (1 + np.sqrt(v)), rel=3e-16 / v + 1e-12)
        both, other = across_with_error(sigma, sigma, sigma, (1.0, 1.0))
        assert np.all(np.abs(both - value) <= error + other)


@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("rank", [1, 2, 5, 50])
def test_error_bound_holds(tol, rank):
    (s11, s12), (_, s22) = joint((5, 6), rank, seed=rank)
    value, error = across_with_error(s11, s22, s12, (1.0, 0.2), tol=tol)
    assert np.all(np.abs(value - across(s11, s22, s12, (1.0, 0.2), tol=1e-12)) <= error)
    assert np.max(error / scales(s11, s22)) <= tol


@pytest.mark.parametrize("rank", [1, 2, 5, 50])
def test_the_rule_within_against_a_finer_one(rank, monkeypatch):
    """The trapezoid rule in log s with a step of 1/16."""

    def finer(end):
        s = np.exp(np.arange(round(16 * (end + 45))) / 16 - 45)
        return s, s / 16

    ((s11,),) = joint((5,), rank, seed=rank)
    value, error = within_with_error(s11)
    assert np.max(error / scales(s11)) <= 1e-12
    monkeypatch.setattr(batch_law, "exponential_nodes", finer)
    assert np.all(np.abs(value - within(s11)) <= error)


# The sums of exponentials.


def batch_with(values: list[float]) -> GaussianBatch:
    H = helmert(len(values) + 1).T
    return batch_of(H @ np.diag(values) @ H.T, EPS)


def root_error(rule: Rule, q: np.ndarray) -> np.ndarray:
    """|delta| + delta^2 / 2."""
    parts = np.array_split(q, max(1, len(q) // 1000))
    deltas = [np.exp(-x[:, None] * rule[0]) @ rule[1] * np.sqrt(x) - 1 for x in parts]
    delta = np.abs(np.concatenate(deltas))
    return delta + delta**2 / 2


@pytest.mark.parametrize("target", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("rank", [1, 2, 7, 63, 400])
def test_rules_on_equal_eigenvalues(rank, target):
    """There |y|^2 is chi-squared and independent of the direction: its density gives E[f]."""
    batch = batch_with([1.0] * rank)
    q = np.exp(np.linspace(np.log(1e-30), np.log(300.0), 100_001))
    density = np.exp(rank / 2 * (np.log(q) - q + 1))
    assert np.sum(root_error(root_rule(batch, target), q) * density) / np.sum(density) <= target


@pytest.mark.parametrize("target", [1e-2, 1e-4])
@pytest.mark.parametrize("values", [[1.0, 1e-3], [1.0, 0.3, 0.1, 0.01], list(np.geomspace(1, 1e-5, 30))])
def test_rules_on_every_axis(values, target):
    """E[bn_k^2 f] / E[bn_k^2] for every axis k, by samples within four standard errors."""
    batch = batch_with(values)
    squares = np.random.default_rng(0).standard_normal((len(values), 200_000)) ** 2 * batch.values[:, None]
    q = squares.sum(axis=0)
    shares = len(batch.basis) * np.mean(squares / q, axis=1)
    assert np.allclose(shares, batch.squares, rtol=0.02)
    terms = squares / q * root_error(root_rule(batch, target), q) / np.mean(squares / q, axis=1)[:, None]
    assert np.all(terms.mean(axis=1) <= target + 4 * terms.std(axis=1) / np.sqrt(len(q)))


def test_large_batches_need_few_nodes():
    """|y|^2 is nearly constant there."""
    for rank, roots, all_nodes in ((15, 22, 42), (63, 15, 34), (255, 12, 31)):
        batch = batch_with([1.0] * rank)
        assert len(root_rule(batch, 1e-11)[0]) <= roots
        assert np.sum(batch.beyond > 1e-13) <= all_nodes


# Many batches.


def test_a_pair_and_its_transpose_are_computed_once(monkeypatch):
    """Three batches, the third a copy of the first: one pair across, and two batches are analysed."""
    (s11, s12), (_, s22) = joint((4, 4), 20)
    sigma = np.stack([s11, s22, s11])
    cross = np.stack([np.stack(row) for row in ((s11, s12, s11), (s12.T, s22, s12.T), (s11, s12, s11))])
    counts = {"across": 0, "batch_of": 0, "within": 0}

    def counted(name):
        original = getattr(batchnorm_module, name)

        def call(*args):
            counts[name] += 1
            return original(*args)

        return call

    for name in counts:
        monkeypatch.setattr(batchnorm_module, name, counted(name))
    value, error = second_moments(sigma[:, None], sigma, cross, (1.0, 0.0))
    assert counts == {"across": 1, "batch_of": 2, "within": 2}
    both = across(s11, s22, s12)
    for i, j, want in ((0, 0, within(s11)), (0, 1, both), (1, 0, both.T), (2, 1, both), (2, 0, within(s11))):
        assert np.allclose(value[i, j], want, rtol=0, atol=1e-15)
    assert np.array_equal(error[0, 1], error[1, 0].T)


def test_variances_by_differences_and_by_positive_terms(monkeypatch):
    """Both ways to the variances of the first batch."""
    (s11, s12), (_, s22) = joint((9, 7), 30)
    quick = across(s11, s22, s12)
    monkeypatch.setattr(batchnorm_module, "CANCELLATION", 0.0)
    assert np.allclose(quick, across(s11, s22, s12), rtol=0, atol=1e-14)


# Shapes, namespaces, errors.


def test_leading_axes():
    blocks = [joint((3, 4), 9, seed=k) for k in range(6)]
    s11, s12, s22 = (
        np.stack([b[i][j] for b in blocks]).reshape(2, 3, *blocks[0][i][j].shape)
        for i, j in ((0, 0), (0, 1), (1, 1))
    )
    value, error = second_moments(s11, s22, s12, RELU)
    assert value.shape == error.shape == (2, 3, 3, 4)
    assert np.array_equal(value[1, 2], across(s11[1, 2], s22[1, 2], s12[1, 2]))
    assert np.array_equal(second_moments(s11, s11, s11, RELU)[0][1, 0], within(s11[1, 0]))
    assert second_moments(s11[0, 0], s22, s12, RELU)[0].shape == (2, 3, 3, 4)


def test_single_precision():
    (s11, s12), (_, s22) = joint((3, 4), 9)
    s11, s22, s12 = (m.astype(np.float32) for m in (s11, s22, s12))
    value, error = second_moments(s11, s22, s12, RELU)
    exact = across(s11, s22, s12)
    assert np.allclose(value, exact, atol=1e-5)
    assert np.all(np.abs(value - exact) <= error)


@pytest.mark.parametrize(
    "sigma", [np.ones((3, 3)), np.zeros((4, 4)), 1e9 * np.ones((64, 64)), np.ones((1, 1))]
)
def test_equal_members_are_an_error(sigma):
    with pytest.raises(DataError, match="divides by the standard deviation"):
        within(sigma)
    with pytest.raises(DataError, match="zero there"):
        across(np.eye(2), sigma, np.zeros((2, len(sigma))))


def test_wrong_input_is_an_error():
    with pytest.raises(DataError, match="finite square"):
        within(np.ones((2, 3)))
    with pytest.raises(DataError, match="finite square"):
        within(np.full((2, 2), np.nan))
    with pytest.raises(DataError, match="between batches"):
        across(np.eye(2), np.eye(3), np.ones((3, 2)))
