"""Rules in the plane for functions of two variables: closed forms, conditional integrals, singular matrices.

Estimates must be honest: every comparison asks that the true error is below the reported one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.integrate import dblquad
from scipy.special import ndtr

from netsor.errors import DataError
from netsor.expect.closed.registry import find
from netsor.expect.hermite import two_variables
from netsor.expect.hermite.two_variables import PlanarFunction, planar_expectation
from netsor.expect.quadrature.kink_lines import Lines, find_lines
from netsor.lang.functions import FUNCTIONS

FLOOR = 3e-14  # rounding of the references, relative to E|f|
UNKNOWN = replace(Lines.none(), incomplete=True)
ONE = PlanarFunction(lambda z: np.ones(z.shape[1:]), Lines.none())
XI, OMEGA = np.polynomial.legendre.leggauss(40)


def relu(x):
    return np.maximum(x, 0.0)


def density(x):
    return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def covariance(seed, d, rank=None):
    root = np.random.default_rng(seed).standard_normal((d, rank or d + 1))
    return root @ root.T / root.shape[1]


def gaussian_expectation(fn, mean, cov, lines=None, tol=1e-10):
    """E[fn(z)] for means (..., d) and covariances (..., d, d) with d <= 4 and rank two, and its error.

    The function is that of all variables, and the other factor is 1; more than two variables are a linear map
    of two.
    """
    mean, cov = np.broadcast_to(mean, cov.shape[:-1]), np.asarray(cov, float)
    lead, d = mean.shape[:-1], mean.shape[-1]
    means = np.pad(mean.reshape(-1, d), ((0, 0), (0, 4 - d)))
    covs = np.pad(cov.reshape(-1, d, d), ((0, 0), (0, 4 - d), (0, 4 - d)))
    value, error, _ = planar_expectation(PlanarFunction(fn, lines), ONE, means, covs, tol)
    return value.reshape(lead), error.reshape(lead)


def honest(fn, mean, cov, true, asked=1e-10, **options):
    """The true error is below the reported one, and this one below what was asked for."""
    value, error = gaussian_expectation(fn, mean, cov, **options)
    np.testing.assert_array_less(np.abs(value - true), error + FLOOR * np.abs(true) + 1e-300)
    np.testing.assert_array_less(error, asked)
    return value, error


# Smooth functions.


@pytest.mark.parametrize("d", [1, 2])
def test_waves_and_exponentials(d):
    mean, cov = np.linspace(-0.5, 0.7, d), covariance(d, d)
    a = np.linspace(1.0, -0.6, d) / d
    var = a @ cov @ a
    dot = lambda z: np.tensordot(a, z[:d], 1)  # noqa: E731
    honest(lambda z: np.cos(dot(z)), mean, cov, np.exp(-var / 2) * np.cos(a @ mean))
    honest(lambda z: np.exp(dot(z)), mean, cov, np.exp(var / 2 + a @ mean))


def test_steep_exponentials_take_a_wider_range():
    smooth, true = Lines.none(), np.exp(200.0)
    honest(lambda z: np.exp(20 * z[0]), np.zeros(1), np.eye(1), true, 1e-9 * true, lines=smooth)


def plain_grid(fn, mean, cov, half=10.0, count=713):
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
    lines = find_lines(fn, mean, np.sqrt(np.diagonal(cov)))
    assert not lines.incomplete
    honest(fn, mean, cov, true, 1e-9, lines=lines)
    honest(fn, mean, cov, true, 1e-2, tol=1e-3, lines=lines)


@pytest.mark.parametrize("name", KINKED)
def test_a_jump_near_the_mean_shows_even_if_it_is_not_found(name):
    """Trapezoid rules that all have their nodes at odd multiples of step/2 would agree on a wrong value."""
    fn, inner, outer, breaks = KINKED[name]
    mean, cov = SETTINGS[1][0], np.diag([0.8, 0.9])
    true = conditional(inner, outer, mean, cov, breaks)
    honest(fn, mean, cov, true, 1.0, lines=UNKNOWN)


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
def lines_of_maximum():
    return find_lines(maximum, np.zeros(2), np.ones(2))


@pytest.mark.parametrize("correlation", [0.0, 0.9, -0.99, 1 - 1e-6, 1 - 1e-10])
def test_the_larger_of_two(correlation):
    cov = np.array([[1.0, 1.5 * correlation], [1.5 * correlation, 2.25]])
    for mean in (np.zeros(2), np.array([0.2, -0.5])):
        honest(maximum, mean, cov, larger(mean, cov), lines=lines_of_maximum())


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
def test_curved_kinks_report_what_was_reached(name):
    fn, reference = CURVED[name]
    mean, cov = np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]])
    lines = find_lines(fn, mean, np.ones(2))
    assert lines.incomplete
    _, error = honest(fn, mean, cov, reference(mean, cov), 0.1, lines=lines)
    assert error > 1e-9


def test_lines_are_found():
    lines = find_lines(lambda z: np.maximum(z[0], 2 * z[1]) * (z[1] > 0.25), np.zeros(2), np.ones(2))
    rows = zip(lines.normals / lines.normals[:, 1:], lines.offsets / lines.normals[:, 1], strict=True)
    found = sorted((round(float(n[0]), 9), round(float(c), 9)) for n, c in rows)
    assert found == [(-0.5, 0.0), (0.0, 0.25)]
    assert lines.slack.max() < 1e-12
    assert len(find_lines(SMOOTH["gate"], np.zeros(2), np.ones(2))) == 0


# Degenerate covariances, and variances of all sizes.


def test_variables_that_are_equal_or_opposite():
    ones, lines = np.ones((2, 2)), lines_of_maximum()
    for scale in (1.0, 1e-12, 1e12):
        value, error = gaussian_expectation(maximum, np.zeros(2), scale * ones, lines=lines)
        assert abs(value) <= error + 1e-15 * scale**0.5 < 1e-11 * scale**0.5
        opposite = scale * np.array([[1.0, -1.0], [-1.0, 1.0]])
        true = np.sqrt(2 * scale / np.pi)
        honest(maximum, np.zeros(2), opposite, true, 1e-10 * true, lines=lines)
    doubled = np.array([[1.0, 2.0], [2.0, 4.0]])
    honest(maximum, np.zeros(2), doubled, 1 / np.sqrt(2 * np.pi), lines=lines)


def test_variances_of_very_different_sizes():
    honest(lambda z: (z[0] > 0) * z[1] ** 2, np.zeros(2), np.diag([1e12, 1e-12]), 0.5e-12, 1e-21)
    honest(lambda z: z[0] * z[1], np.zeros(2), 1e-30 * np.array([[1.0, 0.3], [0.3, 2.0]]), 3e-31, 1e-40)


def test_a_large_mean_costs_digits_and_says_so():
    cov = np.array([[1.0, 0.3], [0.3, 2.0]])
    _, error = honest(lambda z: (z[0] - z[1]) ** 2, np.full(2, 1e8), cov, 2.4, 1e-6, lines=UNKNOWN)
    assert error > 1e-9


# Batches and refusals.


def test_a_batch_is_its_entries(monkeypatch):
    rng = np.random.default_rng(4)
    root = rng.standard_normal((2, 3, 2, 2))
    root[0, 0] = 0
    root[1, 1, :, 1] = 0
    mean, cov = rng.standard_normal((3, 2)), root @ np.swapaxes(root, -1, -2)
    whole = gaussian_expectation(SMOOTH["gate"], mean, cov)
    monkeypatch.setattr(two_variables, "BLOCK", 512)
    parts = gaussian_expectation(SMOOTH["gate"], mean, cov)
    assert whole[0].shape == whole[1].shape == (2, 3)
    np.testing.assert_allclose(whole, parts, rtol=1e-9, atol=1e-14)
    for i, j in np.ndindex(2, 3):
        value, error = gaussian_expectation(SMOOTH["gate"], mean[j], cov[i, j])
        assert abs(value - whole[0][i, j]) <= error + whole[1][i, j]


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


def test_zero_is_zero():
    value, error = gaussian_expectation(lambda z: 0 * z[0], np.zeros(2), np.eye(2))
    assert value == 0 <= error < 1e-200


@pytest.mark.parametrize(
    ("mean", "cov", "message"),
    [
        (np.zeros(2), np.full((2, 2), np.nan), "not finite"),
        (np.zeros(2), np.array([[1.0, 2.0], [2.0, 1.0]]), "semidefinite"),
    ],
)
def test_bad_arguments_are_refused(mean, cov, message):
    with pytest.raises(DataError, match=message):
        gaussian_expectation(maximum, mean, cov)
