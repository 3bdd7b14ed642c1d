"""E[(f(x) - f(y))^2] without cancellation, against formulas and rules that share nothing with it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf
from scipy.stats import multivariate_normal, norm

from netsor.expect.gaps import NearLaw, constant_jump, erf_gap, jump_gap, kink_gap, near_moments, slopes
from netsor.lang.pieces import Pieces

EPS = float(np.finfo(float).eps)


def law(q: float, separation: float, ratio: float = 0.4, slack: float = 0.0) -> NearLaw:
    """Var(x - y) = separation^2 q, of which the part ratio^2 is a difference of the deviations."""
    deviation = np.sqrt(q) * (1 + ratio * separation)
    return NearLaw(*(np.array(a) for a in (0.0, 0.0, q, deviation**2, separation**2 * q)), slack)


def covariance(near: NearLaw) -> np.ndarray:
    c = (near.q1 + near.q2 - near.gap) / 2
    return np.array([[near.q1, c], [c, near.q2]])


@pytest.mark.parametrize("q", [1e-3, 1.0, 1e4])
def test_far_apart(q: float) -> None:
    """Where nothing cancels, the differences of the closed forms."""
    near = law(q, 0.7)
    (q1, c), (_, q2) = covariance(near)
    angle = np.arccos(c / np.sqrt(q1 * q2))
    np.testing.assert_allclose(near.angle, angle, rtol=1e-13)

    def williams(q1: float, q2: float, c: float) -> float:
        return 2 / np.pi * np.arcsin(2 * c / np.sqrt((1 + 2 * q1) * (1 + 2 * q2)))

    wanted = williams(q1, q1, q1) + williams(q2, q2, q2) - 2 * williams(q1, q2, c)
    np.testing.assert_allclose(erf_gap(near), wanted, rtol=1e-11)
    relus = np.sqrt(q1 * q2) / (2 * np.pi) * (np.sin(angle) + (np.pi - angle) * np.cos(angle))
    np.testing.assert_allclose(kink_gap(0.0, 1.0, near), (q1 + q2) / 2 - 2 * relus, rtol=1e-12)
    np.testing.assert_allclose(kink_gap(1.0, 1.0, near), near.gap, rtol=1e-14)
    absolute = 2 / np.pi * np.sqrt(q1 * q2) * (np.sin(angle) + np.arcsin(np.cos(angle)) * np.cos(angle))
    np.testing.assert_allclose(kink_gap(-1.0, 1.0, near), q1 + q2 - 2 * absolute, rtol=1e-12)


@pytest.mark.parametrize("separation", [1e-3, 1e-6, 1e-9, 1e-13])
@pytest.mark.parametrize("q", [0.1, 1.0, 1e4])
def test_close_together(q: float, separation: float) -> None:
    """The first term in the separation: d E[f'^2] of functions that are smooth on its scale."""
    near = law(q, separation, ratio=0.0)
    np.testing.assert_allclose(near.angle, separation, rtol=separation + 4 * EPS)
    np.testing.assert_allclose(jump_gap(0.0, near), separation / np.pi, rtol=separation + 4 * EPS)
    np.testing.assert_allclose(kink_gap(0.0, 1.0, near), near.gap / 2, rtol=separation + 4 * EPS)
    slope = 4 / np.pi / np.sqrt(1 + 4 * q)  # E[erf'(x)^2]
    np.testing.assert_allclose(erf_gap(near), near.gap * slope, rtol=20 * q * separation**2 + 4 * EPS)


@pytest.mark.parametrize("m", [0.0, 0.3, -2.0])
@pytest.mark.parametrize("place", [0.0, 0.5])
def test_jumps_anywhere(m: float, place: float) -> None:
    near = law(1.3, 0.2)
    near = NearLaw(np.array(m), np.array(m + 0.01), near.q1, near.q2, near.gap)
    means = [m, m + 0.01]
    joint = multivariate_normal.cdf([place, place], means, covariance(near))
    one, two = (norm.cdf(place, a, np.sqrt(q)) for a, q in zip(means, (near.q1, near.q2), strict=True))
    np.testing.assert_allclose(jump_gap(place, near), one + two - 2 * joint, rtol=1e-9)


@pytest.mark.parametrize("separation", [1.2, 0.3, 1e-2, 1e-3, 1e-6, 1e-10, 1e-14])
@pytest.mark.parametrize("q", [0.1, 1.0, 1e4])
def test_the_rule_for_smooth_functions(q: float, separation: float) -> None:
    """On erf, whose gap has a formula; the error is reported, and small."""
    near = law(q, separation, ratio=-0.3)
    found = near_moments(erf, erf, near.m1, near.m2, *near.deviations, near.distance)
    wanted = erf_gap(near)
    assert abs(found.gap - wanted) <= found.gap_error + 1e-14 * wanted
    assert found.gap_error <= wanted * (1e-11 + 1e-14 / separation)
    (q1, c), (_, q2) = covariance(near)
    sine = 2 * c / np.sqrt((1 + 2 * q1) * (1 + 2 * q2))
    rounding = 4 * EPS / np.sqrt(1 - sine**2)  # of the arcsin
    assert abs(found.product - 2 / np.pi * np.arcsin(sine)) <= found.product_error + rounding
    assert found.product_error <= 1e-13


@pytest.mark.parametrize("distance", [2.0, 2.0 - 1e-12, 1.9, 1.0, 0.5])
def test_negative_correlations(distance: float) -> None:
    """Of two functions with a mean, against Gauss-Hermite nodes, which are good to 1e-6 for erf."""
    found = near_moments(
        erf, np.sin, np.array(0.0), np.array(0.7), np.array(2.0), np.array(1.5), np.array(distance)
    )
    t, weights = np.polynomial.hermite_e.hermegauss(150)
    rho = 1 - distance
    x, y = 2 * t[:, None], 0.7 + 1.5 * (rho * t[:, None] + np.sqrt(max(1 - rho**2, 0)) * t)
    wanted = np.sum(np.outer(weights, weights) * erf(x) * np.sin(y)) / (2 * np.pi)
    assert abs(found.product - wanted) <= found.product_error + 1e-6
    assert found.product_error <= 1e-13


def test_slack_moves_apart() -> None:
    """What rounding may have brought together."""
    for formula in (lambda x: jump_gap(0.0, x), erf_gap):
        for separation in (1e-3, 1e-9, 1e-14):
            moved, still = (formula(law(1.0, separation, slack=s)) for s in (1e-14, 0.0))
            assert moved > still


def test_what_has_a_formula() -> None:
    relu = Pieces((0.0,), ((0.0,), (0.0, 1.0)))
    assert constant_jump(Pieces((0.5,), ((-1.0,), (2.0,)))) == (0.5, 3.0)
    assert constant_jump(relu) is None
    assert slopes(relu) == (0.0, 1.0)
    assert slopes(Pieces((0.0,), ((1.0,), (1.0, 1.0)))) is None
    assert slopes(Pieces((0.5,), ((0.0,), (0.0, 1.0)))) is None
    assert constant_jump(None) is slopes(None) is None
