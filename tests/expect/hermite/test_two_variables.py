"""Hermite series in the plane against moments that are known."""

from __future__ import annotations

import numpy as np
import pytest

from netsor.expect.hermite.two_variables import PlanarFunction, planar_expectation
from netsor.expect.quadrature.kink_lines import Lines

SMOOTH = Lines.none()
STEPS = np.arange(-8, 8, 1 / 128)
GRID = STEPS, np.exp(-(STEPS**2) / 2) / np.sqrt(2 * np.pi) / 128


def covariances(count: int, rank: int = 4) -> np.ndarray:
    A = np.random.default_rng(rank).standard_normal((count, 4, rank + 1))
    return A @ np.swapaxes(A, 1, 2) / (rank + 1)


def wave(w: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> np.ndarray:
    """E[cos(w . z)]."""
    return np.cos(mean @ w) * np.exp(-np.einsum("i,nij,j->n", w, cov, w) / 2)


def test_waves_of_correlated_variables() -> None:
    """The product of two cosines is a sum of two."""
    u, v = np.array([0.8, -0.5]), np.array([0.3, 1.1])
    cov, mean = covariances(6), np.random.default_rng(1).standard_normal((6, 4))
    f, g = (PlanarFunction(lambda z, w=w: np.cos(w[0] * z[0] + w[1] * z[1]), SMOOTH) for w in (u, v))
    value, error, size = planar_expectation(f, g, mean, cov)
    truth = (wave(np.r_[u, v], mean, cov) + wave(np.r_[u, -v], mean, cov)) / 2
    assert np.all(np.abs(value - truth) <= error)
    assert np.all(error <= 1e-9 * size)


@pytest.mark.parametrize("searched", [False, True])
def test_a_jump_across_both_variables(searched: bool) -> None:
    """Where coordinates e of x and y are correlated by s and t: (1/4 + asin s / 2 pi) E[cos cos]."""
    M, s, t = np.array([[1.0, 0.6], [-0.3, 0.8]]), 0.7, -0.4
    inverse = np.linalg.inv(M)
    lines = None if searched else Lines(inverse[:1], np.zeros(1), np.zeros(1))

    def fn(z: np.ndarray) -> np.ndarray:
        e = np.einsum("ij,jnp->inp", inverse, z)
        return (e[0] > 0) * np.cos(e[1])

    f = PlanarFunction(fn, lines)
    cov = np.block([[M @ M.T, M @ np.diag([s, t]) @ M.T], [M @ np.diag([s, t]) @ M.T, M @ M.T]])[None]
    value, error, _ = planar_expectation(f, f, np.zeros((1, 4)), cov)
    truth = (0.25 + np.arcsin(s) / (2 * np.pi)) * (np.exp(-1 - t) + np.exp(-1 + t)) / 2
    assert abs(value[0] - truth) <= error[0] <= 1e-9


def test_equal_and_constant_variables() -> None:
    """E[x1^2 x2 y1] where y1 = x1 and y2 is a constant: 3 c q with c = E[x1 x2], q = E[x1^2]."""
    q, c = 0.9, 0.5
    cov = np.array([[[q, c, q, 0], [c, 1.2, c, 0], [q, c, q, 0], [0, 0, 0, 0]]])
    f = PlanarFunction(lambda z: z[0] ** 2 * z[1], SMOOTH)
    g = PlanarFunction(lambda z: z[0] + z[1], SMOOTH)
    value, error, _ = planar_expectation(f, g, np.array([[0, 0, 0, 2.0]]), cov)
    assert abs(value[0] - 3 * c * q) <= error[0] <= 1e-8


@pytest.mark.parametrize("steep", [3.0, 30.0])
def test_steep_functions_of_nearly_equal_inputs_have_honest_errors(steep: float) -> None:
    pair = np.array([[1.0, 0.999], [0.999, 1.0]])
    steps, weights = GRID
    e = np.stack(np.meshgrid(steps, steps, indexing="ij")).reshape(2, -1)
    x, y = np.linalg.cholesky(pair) @ e
    truth = np.outer(weights, weights).ravel() @ (np.tanh(steep * x) * np.tanh(steep * y))
    f = PlanarFunction(lambda z: np.tanh(steep * z[0]) * np.cos(z[1]), SMOOTH)
    cov = np.kron(pair, np.eye(2))
    value, error, size = planar_expectation(f, f, np.zeros((1, 4)), cov[None])
    exact = truth * (np.exp(-1 + 0.999) + np.exp(-1 - 0.999)) / 2
    assert abs(value[0] - exact) <= error[0]
    assert error[0] < 0.2 * size[0]


def test_what_has_no_rule_has_no_bound() -> None:
    """Kinks on a circle, and a function that overflows."""
    mean, cov = np.zeros((1, 4)), covariances(1)
    smooth = PlanarFunction(lambda z: np.tanh(z[0]), SMOOTH)
    for fn, lines in (
        (lambda z: (z[0] ** 2 + z[1] ** 2 < 1) * 1.0, None),
        (lambda z: np.exp(z[0] ** 4), SMOOTH),
    ):
        _, error, size = planar_expectation(PlanarFunction(fn, lines), smooth, mean, cov)
        assert np.isinf(error[0])
        assert size[0] == 0.0


def test_growth_beyond_the_plane_counts_as_error() -> None:
    """E[exp(a x1) exp(a y1)] = exp(a^2 (1 + c)), which for large a lies where no rule looks."""
    c, cov = 0.5, np.kron(np.array([[1.0, 0.5], [0.5, 1.0]]), np.eye(2))[None]
    for a in (1.0, 4.0, 8.0):
        f = PlanarFunction(lambda z, a=a: np.exp(a * z[0]), SMOOTH)
        value, error, _ = planar_expectation(f, f, np.zeros((1, 4)), cov)
        assert abs(value[0] - np.exp(a**2 * (1 + c))) <= error[0]
