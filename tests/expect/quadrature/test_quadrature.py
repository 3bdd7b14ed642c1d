"""Gaussian quadrature in a few dimensions: closed forms, conditional integrals, singular covariances.

Estimates must be honest: every comparison asks that the true error is below the reported one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.integrate import dblquad
from scipy.special import ndtr

from netsor.errors import DataError
from netsor.expect.closed.forms import find
from netsor.expect.points.normal import normal_points
from netsor.expect.quadrature import space as quadrature
from netsor.expect.quadrature.planes import Planes, find_planes
from netsor.expect.quadrature.space import gaussian_expectation
from netsor.lang.functions import FUNCTIONS

FLOOR = 3e-14  # rounding of the references, relative to E|f|
UNKNOWN = Planes(np.zeros((0, 2)), np.zeros(0), np.zeros(0))
XI, OMEGA = np.polynomial.legendre.leggauss(40)


def relu(x):
    return np.maximum(x, 0.0)


def density(x):
    return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def covariance(seed, d, rank=None):
    root = np.random.default_rng(seed).standard_normal((d, rank or d + 1))
    return root @ root.T / root.shape[1]


def honest(fn, mean, cov, true, asked=1e-10, **options):
    """The true error is below the reported one, and this one below what was asked for."""
    value, error = gaussian_expectation(fn, mean, cov, **options)
    np.testing.assert_array_less(np.abs(value - true), error + FLOOR * np.abs(true) + 1e-300)
    np.testing.assert_array_less(error, asked)
    return value, error


# Smooth functions.


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_waves_and_exponentials_in_any_dimension(d):
    mean, cov = np.linspace(-0.5, 0.7, d), covariance(d, d)
    a = np.linspace(1.0, -0.6, d) / d
    var = a @ cov @ a
    dot = lambda z: np.tensordot(a, z, 1)  # noqa: E731
    honest(lambda z: np.cos(dot(z)), mean, cov, np.exp(-var / 2) * np.cos(a @ mean))
    honest(lambda z: np.exp(dot(z)), mean, cov, np.exp(var / 2 + a @ mean))


def test_a_product_of_four_variables():
    """Isserlis: E[wxyz] = C12 C34 + C13 C24 + C14 C23, and m C23 for three variables, one of mean m."""
    cov = covariance(5, 4)
    true = cov[0, 1] * cov[2, 3] + cov[0, 2] * cov[1, 3] + cov[0, 3] * cov[1, 2]
    honest(lambda z: z[0] * z[1] * z[2] * z[3], np.zeros(4), cov, true)
    honest(lambda z: z[0] * z[1] * z[2], np.array([2.0, 0.0, 0.0]), cov[:3, :3], 2 * cov[1, 2])


def test_steep_exponentials_take_a_wider_range():
    honest(lambda z: np.exp(20 * z[0]), np.zeros(1), np.eye(1), np.exp(200.0), 1e-9 * np.exp(200.0))


def plain_grid(fn, mean, cov, half=9.0, count=641):
    """The trapezoid rule on a square grid, with Cholesky's factor."""
    t = np.linspace(-half, half, count)
    w = density(t) * (t[1] - t[0])
    e = np.stack(np.meshgrid(t, t, indexing="ij")).reshape(2, -1)
    z = mean[:, None] + np.linalg.cholesky(cov) @ e
    return float(np.outer(w, w).ravel() @ fn(z))


SMOOTH = {
    "tanh of a product": lambda z: np.tanh(z[0] * z[1]),
    "gate": lambda z: z[1] / (1 + np.exp(-z[0])),
    "rational": lambda z: 1 / (1 + z[0] ** 2 + z[1] ** 2),
    "softmax": lambda z: np.tanh(z[0]) / (1 + np.exp(z[1] - z[0])),
    "polynomial": lambda z: z[0] ** 4 * z[1] ** 2,
}


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_functions_of_two_variables(name):
    """Honest at every tolerance, and not more than 100 times too large on average."""
    too_large = []
    for seed in range(4):
        mean, cov = np.array([0.4, -0.3]) * seed, covariance(seed, 2)
        true = plain_grid(SMOOTH[name], mean, cov)
        scale = plain_grid(lambda z: np.abs(SMOOTH[name](z)), mean, cov)
        for tol in (1e-3, 1e-6, 1e-10):
            value, error = gaussian_expectation(SMOOTH[name], mean, cov, tol=tol)
            assert abs(value - true) <= error + FLOOR * scale
            assert error <= 2 * tol * scale
            too_large.append(error / max(abs(value - true), FLOOR * scale))
    assert np.exp(np.mean(np.log(too_large))) < 100


def test_a_gate_times_a_state_against_scipy():
    mean, cov = np.array([0.3, -0.2]), np.array([[1.2, 0.5], [0.5, 0.8]])
    inverse, det = np.linalg.inv(cov), np.linalg.det(cov)

    def integrand(y, x):
        z = np.array([x, y]) - mean
        return np.tanh(x * y) * x * np.exp(-z @ inverse @ z / 2) / (2 * np.pi * det**0.5)

    true, far = dblquad(integrand, -9, 9, -8, 8, epsabs=1e-9, epsrel=1e-9)[:2]
    value, error = gaussian_expectation(lambda z: np.tanh(z[0] * z[1]) * z[0], mean, cov)
    assert abs(value - true) <= error + far


# Kinks and jumps.


def conditional(inner, outer, mean, cov, breaks=()):
    """E[outer(y) E[f(x) | y]], inner(m, s) = E[f(x)] for x ~ N(m, s^2): Gauss-Legendre panels in y."""
    slope, spread = cov[0, 1] / cov[1, 1], cov[1, 1] ** 0.5
    rest = (cov[0, 0] - slope * cov[0, 1]) ** 0.5
    cuts = (np.asarray(breaks, float) - mean[1]) / spread
    edges = np.unique(np.concatenate([np.linspace(-12, 12, 97), cuts[np.abs(cuts) < 12]]))
    low, width = edges[:-1, None], np.diff(edges)[:, None]
    t = low + width * (XI + 1) / 2
    y = mean[1] + spread * t
    values = outer(y) * inner(mean[0] + slope * (y - mean[1]), rest)
    return float(np.sum(values * density(t) * width * OMEGA / 2))


def mean_relu(m, s):
    return m * ndtr(m / s) + s * density(m / s)


KINKED = {
    "relu tanh": (lambda z: relu(z[0]) * np.tanh(z[1]), mean_relu, np.tanh, ()),
    "step tanh": (lambda z: (z[0] > 0.37) * np.tanh(z[1]), lambda m, s: ndtr((m - 0.37) / s), np.tanh, ()),
    "step relu": (lambda z: (z[0] > 0.37) * relu(z[1]), lambda m, s: ndtr((m - 0.37) / s), relu, (0.0,)),
    "two steps": (
        lambda z: (z[0] > 0.37) & (z[1] < -0.2),
        lambda m, s: ndtr((m - 0.37) / s),
        lambda y: y < -0.2,
        (-0.2,),
    ),
}
SETTINGS = [
    (np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]])),
    (np.array([0.36159505, 1.3]), np.diag([0.8, 0.065])),  # a jump within 0.01 of the mean
    (np.array([0.5, -0.4]), np.array([[0.5, -0.68], [-0.68, 1.0]])),
]


@pytest.mark.parametrize("name", KINKED)
@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_products_with_kinks_against_conditional_integrals(name, setting):
    fn, inner, outer, breaks = KINKED[name]
    mean, cov = SETTINGS[setting]
    true = conditional(inner, outer, mean, cov, breaks)
    planes = find_planes(fn, mean, np.sqrt(np.diagonal(cov)))
    assert not planes.curved
    honest(fn, mean, cov, true, 1e-9, planes=planes, max_points=2**16)
    honest(fn, mean, cov, true, 1e-2, tol=1e-3, planes=planes)


@pytest.mark.parametrize("name", KINKED)
def test_a_jump_near_the_mean_shows_even_if_it_is_not_found(name):
    """Trapezoid rules that all have their nodes at odd multiples of step/2 would agree on a wrong value."""
    fn, inner, outer, breaks = KINKED[name]
    mean, cov = SETTINGS[1][0], np.diag([0.8, 0.9])
    true = conditional(inner, outer, mean, cov, breaks)
    honest(fn, mean, cov, true, 1.0, planes=UNKNOWN, max_points=2**14)


def test_closed_forms_of_pairs_at_many_covariances():
    rng = np.random.default_rng(1)
    root = rng.standard_normal((12, 2, 2))
    cov, mean = root @ np.swapaxes(root, 1, 2), rng.standard_normal((12, 2))
    rule = find(FUNCTIONS["relu"], {}, FUNCTIONS["hard_tanh"], {}, False)
    assert rule is not None
    true = rule(mean[:, 0], mean[:, 1], cov[:, 0, 0], cov[:, 1, 1], cov[:, 0, 1])
    honest(lambda z: relu(z[0]) * np.clip(z[1], -1, 1), mean, cov, true, 1e-9)


def larger(mean, cov):
    """E max(x, y) (Clark 1961)."""
    spread = np.sqrt(cov[0, 0] + cov[1, 1] - 2 * cov[0, 1])
    a = (mean[0] - mean[1]) / spread
    return mean[0] * ndtr(a) + mean[1] * ndtr(-a) + spread * density(a)


def maximum(z):
    return np.maximum(z[0], z[1])


@cache
def planes_of_maximum():
    return find_planes(maximum, np.zeros(2), np.ones(2))


@pytest.mark.parametrize("correlation", [0.0, 0.9, -0.99, 1 - 1e-6, 1 - 1e-10])
def test_the_larger_of_two(correlation):
    cov = np.array([[1.0, 1.5 * correlation], [1.5 * correlation, 2.25]])
    for mean in (np.zeros(2), np.array([0.2, -0.5])):
        honest(maximum, mean, cov, larger(mean, cov), planes=planes_of_maximum())


def test_the_largest_of_three():
    """E max = sum over pairs of sd(z_i - z_j) / (2 (2 pi)^(1/2)) for means 0."""
    cov = covariance(7, 3)
    pairs = [(0, 1), (0, 2), (1, 2)]
    true = sum(np.sqrt(cov[i, i] + cov[j, j] - 2 * cov[i, j]) for i, j in pairs) / np.sqrt(8 * np.pi)
    honest(lambda z: z.max(axis=0), np.zeros(3), cov, true, 1e-7, tol=1e-8)


def test_a_product_of_two_maxima():
    """max(x, y) = (x + y + |x - y|)/2, and E|u v| = 2/pi s t ((1 - c^2)^(1/2) + c arcsin c)."""
    cov = covariance(9, 4)
    sums, gaps = np.array([[1, 1, 0, 0], [0, 0, 1, 1]]), np.array([[1, -1, 0, 0], [0, 0, 1, -1]])
    gap = gaps @ cov @ gaps.T
    size = np.sqrt(gap[0, 0] * gap[1, 1])
    c = gap[0, 1] / size
    folded = 2 / np.pi * size * (np.sqrt(1 - c**2) + c * np.arcsin(c))
    true = ((sums @ cov @ sums.T)[0, 1] + folded) / 4
    fn = lambda z: np.maximum(z[0], z[1]) * np.maximum(z[2], z[3])  # noqa: E731
    honest(fn, np.zeros(4), cov, true, 1e-5, tol=1e-6, max_points=2**19)


CURVED = {
    "relu of a product": (
        lambda z: relu(z[0] * z[1] - 0.3),
        lambda mean, cov: conditional(
            lambda m, s: 1.0,
            lambda y: mean_relu(y * (mean[0] + 0.5 * y) - 0.3, np.abs(y) * 0.75**0.5),
            mean,
            cov,
            (0,),
        ),
    ),
    "a parabola": (
        lambda z: z[0] > z[1] ** 2,
        lambda mean, cov: conditional(
            lambda m, s: 1.0, lambda y: ndtr((mean[0] + 0.5 * y - y**2) / 0.75**0.5), mean, cov
        ),
    ),
}


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize("budget", [2**12, 2**16])
def test_curved_kinks_report_what_was_reached(name, budget):
    fn, reference = CURVED[name]
    mean, cov = np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]])
    planes = find_planes(fn, mean, np.ones(2))
    assert planes.curved
    _, error = honest(fn, mean, cov, reference(mean, cov), 0.1, max_points=budget, planes=planes)
    assert error > 1e-9


def test_planes_are_found():
    planes = find_planes(lambda z: np.maximum(z[0], 2 * z[1]) * (z[1] > 0.25), np.zeros(2), np.ones(2))
    rows = zip(planes.normals / planes.normals[:, 1:], planes.offsets / planes.normals[:, 1], strict=True)
    found = sorted((round(float(n[0]), 9), round(float(c), 9)) for n, c in rows)
    assert found == [(-0.5, 0.0), (0.0, 0.25)]
    assert planes.slack.max() < 1e-12
    assert len(find_planes(SMOOTH["gate"], np.zeros(2), np.ones(2))) == 0


# Degenerate covariances, and variances of all sizes.


def test_variables_that_are_equal_or_opposite():
    ones, planes = np.ones((2, 2)), planes_of_maximum()
    for scale in (1.0, 1e-12, 1e12):
        value, error = gaussian_expectation(maximum, np.zeros(2), scale * ones, planes=planes)
        assert abs(value) <= error + 1e-15 * scale**0.5 < 1e-11 * scale**0.5
        opposite = scale * np.array([[1.0, -1.0], [-1.0, 1.0]])
        true = np.sqrt(2 * scale / np.pi)
        honest(maximum, np.zeros(2), opposite, true, 1e-10 * true, planes=planes)
    doubled = np.array([[1.0, 2.0], [2.0, 4.0]])
    honest(maximum, np.zeros(2), doubled, 1 / np.sqrt(2 * np.pi), planes=planes)


def test_rank_two_in_four_variables():
    """z = (x, y, x + y, x - y): E[z1 z2 z3 z4] = E[x^3 y - x y^3] = 0, and z3 z4 = x^2 - y^2."""
    root = np.array([[1, 0], [0, 1], [1, 1], [1, -1]]) * np.array([1.0, 0.5])
    cov = root @ root.T
    honest(lambda z: z[2] * z[3] * z[0] ** 2, np.zeros(4), cov, 3 - 0.25)
    honest(lambda z: np.maximum(z[0], z[1]) - z[2] / 2, np.zeros(4), cov, larger(np.zeros(2), cov[:2, :2]))


def test_constants_are_variables_without_variance():
    mean = np.array([0.3, -0.4, 2.0, 1.0, 5.0])
    cov = np.zeros((5, 5))
    value, error = gaussian_expectation(lambda z: z[4] * np.maximum(z[0], z[2]), mean, cov)
    assert value == 10.0
    assert error < 1e-14
    cov[:2, :2] = [[1.0, 0.3], [0.3, 2.0]]
    true = 5 * larger(mean[:2], cov[:2, :2])
    honest(lambda z: z[4] * np.maximum(z[0], z[1]), mean, cov, true, 1e-9)


def test_variances_of_very_different_sizes():
    honest(lambda z: (z[0] > 0) * z[1] ** 2, np.zeros(2), np.diag([1e12, 1e-12]), 0.5e-12, 1e-21)
    honest(lambda z: z[0] * z[1], np.zeros(2), 1e-30 * np.array([[1.0, 0.3], [0.3, 2.0]]), 3e-31, 1e-40)


def test_a_large_mean_costs_digits_and_says_so():
    cov = np.array([[1.0, 0.3], [0.3, 2.0]])
    _, error = honest(lambda z: (z[0] - z[1]) ** 2, np.full(2, 1e8), cov, 2.4, 1e-6, planes=UNKNOWN)
    assert error > 1e-9


# Batches, budgets and refusals.


def test_a_batch_is_its_entries(monkeypatch):
    rng = np.random.default_rng(4)
    root = rng.standard_normal((2, 3, 2, 2))
    root[0, 0] = 0
    root[1, 1, :, 1] = 0
    mean, cov = rng.standard_normal((3, 2)), root @ np.swapaxes(root, -1, -2)
    whole = gaussian_expectation(SMOOTH["gate"], mean, cov)
    monkeypatch.setattr(quadrature, "BLOCK", 512)
    parts = gaussian_expectation(SMOOTH["gate"], mean, cov)
    assert whole[0].shape == whole[1].shape == (2, 3)
    np.testing.assert_allclose(whole, parts, rtol=1e-9, atol=1e-14)
    for i, j in np.ndindex(2, 3):
        value, error = gaussian_expectation(SMOOTH["gate"], mean[j], cov[i, j])
        assert abs(value - whole[0][i, j]) <= error + whole[1][i, j]


def test_rules_stay_within_the_budget():
    most = 0

    def fn(z):
        nonlocal most
        most = max(most, z.shape[2])
        return np.tanh(30 * z[0] * z[1])

    _, error = gaussian_expectation(fn, np.zeros(2), np.eye(2), max_points=5000)
    assert 2500 < most <= 5000
    assert error > 1e-6
    assert gaussian_expectation(fn, np.zeros(2), np.eye(2), max_points=100)[1] == np.inf


def test_what_is_not_finite_comes_out():
    for fn in (
        lambda z: np.log(z[0]),
        lambda z: np.exp(z[0] ** 2),
        lambda z: np.where(z[0] > 2, np.inf, z[0]),
    ):
        value, error = gaussian_expectation(fn, np.zeros((2, 1)), np.array([[[1.0]], [[400.0]]]))
        assert not np.isfinite(value).any()
        assert (error == np.inf).all()
    assert gaussian_expectation(lambda z: 1 / z[0], np.zeros(1), np.zeros((1, 1))) == (np.inf, np.inf)


def test_nothing_gives_nothing():
    assert gaussian_expectation(maximum, np.zeros((0, 2)), np.zeros((0, 2, 2)))[0].shape == (0,)
    value, error = gaussian_expectation(lambda z: 0 * z[0], np.zeros(2), np.eye(2))
    assert value == 0 <= error < 1e-200


@pytest.mark.parametrize(
    ("mean", "cov", "message"),
    [
        (np.zeros(2), np.eye(3), "do not match"),
        (np.zeros(2), np.full((2, 2), np.nan), "not finite"),
        (np.zeros(2), np.array([[1.0, 2.0], [2.0, 1.0]]), "semidefinite"),
        (np.zeros(2), np.array([[0.0, 1.0], [1.0, 1.0]]), "semidefinite"),
        (np.zeros(5), np.eye(5), "rank 5"),
    ],
)
def test_bad_arguments_are_refused(mean, cov, message):
    with pytest.raises(DataError, match=message):
        gaussian_expectation(maximum, mean, cov)


@pytest.mark.slow
@pytest.mark.parametrize("d", [3, 4])
def test_against_scrambled_sobol_points(d):
    """Eight randomisations of 2^17 points; their spread is the error of the reference."""
    mean, cov = np.linspace(-0.4, 0.5, d), covariance(d + 20, d)
    functions = [
        lambda z: np.tanh(z[0] * z[1] + z[2]),
        lambda z: relu(z[0]) * np.tanh(z[1]) * np.maximum(z[1], z[2]),
        lambda z: z.max(axis=0),
        lambda z: np.maximum(z[0], z[1]) * np.maximum(z[2], z[-1]),
    ]
    root = np.linalg.cholesky(cov)
    samples = [mean[:, None] + root @ normal_points(d, 2**17, seed) for seed in range(8)]
    for fn in functions:
        runs = np.array([np.mean(fn(z)) for z in samples])
        value, error = gaussian_expectation(fn, mean, cov, tol=1e-8)
        assert abs(value - runs.mean()) <= error + 5 * runs.std(ddof=1) / np.sqrt(len(runs))
