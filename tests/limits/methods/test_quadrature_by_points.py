"""Entries whose quadrature does not settle are sampled: against moments that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

import netsor as ns
from netsor.expect.hermite.two_variables import PlanarFunction, planar_expectation
from netsor.expect.points.sobol import normal_points
from netsor.expect.quadrature.kink_lines import MOST_LINES, find_lines
from netsor.limits.methods.quadrature import _sampled_where_unsettled


def test_only_rough_entries_are_sampled_and_lie_within_their_errors() -> None:
    """E[x^2 y] = m_y (q + m_x^2) + 2 m_x c, also where the covariance is singular."""
    mean = np.array([[0.3, -0.5], [1.0, 2.0], [0.0, 0.4]])
    cov = np.array([[[1.0, 0.6], [0.6, 2.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.5, 0.0], [0.0, 0.0]]])
    exact = mean[:, 1] * (cov[:, 0, 0] + mean[:, 0] ** 2) + 2 * mean[:, 0] * cov[:, 0, 1]
    rough = np.array([9.0, 9.0, exact[2]]), np.array([9.0, 9.0, 0.0])
    value, error = _sampled_where_unsettled("E[f]", lambda z: z[0] ** 2 * z[1], mean, cov, *rough)
    assert value[2] == exact[2]
    assert error[2] == 0.0
    assert np.all(np.abs(value - exact) <= error)
    assert np.all(error[:2] < 1e-2)


def test_samples_that_never_see_an_event_do_not_stand_for_it() -> None:
    """All samples are 0, so their spread says nothing: the quadrature and its error stay."""
    mean, cov = np.zeros((1, 2)), np.eye(2)[None]
    rough = np.array([58.0]), np.array([38.0])
    value, error = _sampled_where_unsettled("E[f]", lambda z: (z[0] > 9) * 1e6, mean, cov, *rough)
    assert value == 58.0
    assert error >= 58.0


def test_a_ratio_has_no_second_moment() -> None:
    U, V, v = ns.Matrix(1.0), ns.Matrix(1.0), ns.Matrix(1.0, rows=1)

    @ns.network
    def net(x):
        return v @ ns.nonlin(lambda a, b: a / b, U @ x, V @ x, name="ratio")

    with pytest.raises(ns.NetsorError, match="heavy tail"):
        ns.kernel(net)(np.ones((2, 1)))


def test_rare_events_of_two_variables_have_honest_errors() -> None:
    """P(a > 3, b > 3)^2 of one input, and of two whose variables are correlated by c, by SciPy."""
    U, V, v = ns.Matrix(1.0), ns.Matrix(1.0), ns.Matrix(1.0, rows=1)

    @ns.network
    def net(x):
        return v @ ns.nonlin(lambda a, b: 1e3 * ((a > 3) & (b > 3)), U @ x, V @ x, name="rare")

    found = ns.kernel(net).evaluate(np.array([[1.0, 1.0], [1.4, 0.2]]))
    corr = 0.8
    law: Any = multivariate_normal
    both = law([0, 0], [[1, corr], [corr, 1]]).cdf([-3, -3])
    truth = 1e6 * np.array([[norm.sf(3) ** 2, both**2], [both**2, norm.sf(3) ** 2]])
    assert np.all(np.abs(found.value - truth) <= found.error + 1e-5 * truth)
    assert np.diagonal(found.error).max() <= 1e-6


def test_a_function_with_more_lines_than_rules_can_be_split_at() -> None:
    """The search for lines ends, and the value is that of E[(a + b mod 1/3)^2] within its error."""
    wave = PlanarFunction(lambda z: np.mod(z[0] + z[1], 1 / 3), None)
    lines = find_lines(wave.fn, np.zeros(2), np.ones(2))
    assert lines.incomplete
    assert len(lines) <= 2 * MOST_LINES
    values = np.mod(np.sqrt(2) * normal_points(1, 2**20, (0, 0))[0], 1 / 3) ** 2
    same = np.kron(np.ones((2, 2)), np.eye(2))[None]
    value, error, _ = planar_expectation(wave, wave, np.zeros((1, 4)), same)
    assert abs(value - values.mean()) <= error + 1e-5
