"""Closed forms of powers, polynomials and waves, by integrals over an angle and by sums over a fine grid."""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import numpy as np
import pytest

from each_case import each_case
from netsor.expect.closed.recognition import recognised
from netsor.expect.closed.registry import find, find_mean
from netsor.lang import functions as fn
from netsor.lang import parse_expr

GRID = np.linspace(-13, 13, 601)  # for analytic functions the error of the sum is far below 1e-16
WEIGHTS = np.exp(-(GRID**2) / 2) / np.exp(-(GRID**2) / 2).sum()
CORRELATIONS = (-1.0, -0.9999, -0.6, 0.0, 0.3, 0.99, 1.0)


@cache
def quadrant(a: int, b: int, rho: float) -> float:
    """E[x^a y^b 1[x > 0] 1[y > 0]] for unit variances: in polar coordinates an integral over an angle."""
    angle = math.acos(rho)
    low, high = angle - math.pi / 2, math.pi / 2  # where cos(t) and cos(t - angle) are positive
    nodes, weights = np.polynomial.legendre.leggauss(60)
    t = low + (high - low) * (nodes + 1) / 2
    inner = weights @ (np.cos(t) ** a * np.cos(t - angle) ** b) * (high - low) / 2
    return float(inner) * 2 ** ((a + b) / 2) * math.gamma((a + b) / 2 + 1) / (2 * math.pi)


def rectified(degree: int, up: float, down: float) -> dict:
    """up x^degree for x > 0, down (-x)^degree for x < 0."""
    below = down * (-1) ** degree
    return {"knots": (0.0,), "pieces": ((0.0,) * degree + (below,), (0.0,) * degree + (up,))}


@each_case(("a", "b"), list(product(range(7), repeat=2)))
def test_powers(a, b):
    sides = [(1.0, 0.0), (1.0, 0.0 if a == 0 else -0.5)], [(1.0, 0.0), (0.3, 0.0 if b == 0 else 2.0)]
    q1, q2 = 1.7, 0.4
    for (u, d), (s, t), rho in product(*sides, CORRELATIONS):
        rule = find(fn.piecewise, rectified(a, u, d), fn.piecewise, rectified(b, s, t), zero_mean=True)
        assert rule is not None
        found = rule(0.0, 0.0, q1, q2, rho * math.sqrt(q1 * q2))
        same, other = quadrant(a, b, rho), quadrant(a, b, -rho)
        scale = q1 ** (a / 2) * q2 ** (b / 2)
        size = math.sqrt(quadrant(a, a, 1.0) * quadrant(b, b, 1.0)) * scale * (abs(u) + abs(d)) * (s + t)
        want = scale * ((u * s + d * t) * same + (u * t + d * s) * other)
        assert found == pytest.approx(want, abs=2e-14 * size)


def test_a_power_of_what_is_known_to_be_0():
    options = rectified(3, 1.0, 0.5)
    rule = find(fn.piecewise, options, fn.piecewise, options, zero_mean=True)
    assert rule is not None
    for q1, q2 in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)):
        assert rule(0.0, 0.0, q1, q2, 0.0) == 0


FUNCTIONS = [
    "sin(x)",
    "cos(x)",
    "sin(x)*gaussian(x)",
    "2*cos(1.5*x + 0.3)",
    "cos(-2*x)*gaussian(x, rate=0.3)",
    "x*sin(x)*gaussian(x)",
    "(x - 0.4)*cos(0.3 - 2*x)",
]
FUNCTIONS += ["gaussian(x, rate=0.6)", "x*gaussian(x)", "(x^2 - 0.4)*gaussian(x, rate=0.3)"]
FUNCTIONS += ["cos(1.3*x + 0.7853981633974483)", "sin(x + 0.7853981633974483)*gaussian(x)"]
FUNCTIONS += ["polynomial(x, coefs=[0.3, -1, 0.5, 0.2])", "polynomial(x, coefs=[0, 0, 0, 0, 0, 1])", "exp(x)"]


def known(text):
    found = recognised(parse_expr(text), "x")
    assert found is not None
    return found


@each_case(("f", "g"), list(product(FUNCTIONS, repeat=2)))
def test_pairs_on_a_grid(f, g):
    (one, p), (two, q) = known(f), known(g)
    rng = np.random.default_rng(0)
    for zero_mean in (False, True):
        (q1, q2), (m1, m2) = rng.uniform(0.1, 2, 2), rng.standard_normal(2) * (not zero_mean)
        rho = rng.uniform(-1, 1)
        x = m1 + np.sqrt(q1) * GRID[:, None]
        y = m2 + np.sqrt(q2) * (rho * GRID[:, None] + np.sqrt(1 - rho**2) * GRID)
        left, right = one.fn(x, **p), two.fn(y, **q)
        want = WEIGHTS @ (left * right) @ WEIGHTS
        size = np.sqrt((WEIGHTS @ left**2)[0] * (WEIGHTS @ right**2 @ WEIGHTS))
        rule = find(one, p, two, q, zero_mean)
        assert rule is not None
        assert rule(m1, m2, q1, q2, rho * np.sqrt(q1 * q2)) == pytest.approx(want, abs=1e-12 * size)


@each_case("f", FUNCTIONS)
def test_means_on_a_grid(f):
    one, options = known(f)
    want = WEIGHTS @ one.fn(0.7 + np.sqrt(1.3) * GRID, **options)
    mean = find_mean(one, options)
    assert mean is not None
    assert mean(0.7, 1.3) == pytest.approx(want, abs=1e-12)
