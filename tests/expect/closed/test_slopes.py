"""Pairs of derivatives of smooth folds (Gaussians, gelu') at means 0, against plain quadrature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf

from brute_force import pair_moment
from each_case import each_case
from netsor.expect.closed.arc_cosine import slope_of
from netsor.expect.closed.recognition import recognised
from netsor.expect.closed.registry import ClosedExpectation, find
from netsor.lang import parse_expr

SLOPES = {
    "1.1283791670955126*gaussian(x)": lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x),
    "gaussian(x, rate=0.3)": lambda x: np.exp(-0.3 * x * x),
    "erf_gate(0.7071067811865476*x) + 0.3989422804014327*(x*gaussian(x, rate=0.5))": (
        lambda x: (1 + erf(x / np.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    ),
}
LAWS = [(1, 2, 0.3), (0.5, 0.7, -0.9), (4, 4, 1.0), (0, 1, 0.0), (3, 3, -1.0), (1e-8, 2, 0.5), (0, 0, 0.0)]


def rule_of(f: str, g: str) -> ClosedExpectation:
    """The rule of a pair at means 0, which compiled loops can have."""
    one, two = (recognised(parse_expr(text), "x") for text in (f, g))
    assert one is not None
    assert two is not None
    rule = find(*one, *two, zero_mean=True)
    assert rule is not None
    assert rule.elementary
    return rule


@each_case("law", LAWS)
@each_case("g", SLOPES)
@each_case("f", SLOPES)
def test_pairs_of_slopes(f: str, g: str, law: tuple[float, float, float]) -> None:
    rule, (q1, q2, rho) = rule_of(f, g), law
    c = rho * np.sqrt(q1 * q2)
    wanted = pair_moment(SLOPES[f], SLOPES[g], np.array([[q1, c], [c, q2]]))
    assert float(rule(0.0, 0.0, *map(np.float64, (q1, q2, c)))) == pytest.approx(wanted, abs=1e-13, rel=1e-12)


JUMPS = {  # with their value at 0
    "step(x)": (1.0, 0.0, 0.0),
    "sign(x)": (1.0, -1.0, 0.0),
    "0.2 + 0.8*step(x)": (1.0, 0.2, 0.2),
    "2.5 + 2*step(x)": (4.5, 2.5, 2.5),
}


@each_case("law", LAWS)
@each_case("g", JUMPS)
@each_case("f", JUMPS)
def test_pairs_of_jumps(f: str, g: str, law: tuple[float, float, float]) -> None:
    """By the probabilities of quadrants (Sheppard 1899); a variable without variance is 0."""
    rule, (q1, q2, rho) = rule_of(f, g), law
    (up, down, middle), (high, low, centre) = JUMPS[f], JUMPS[g]
    same = 1 / 4 + np.arcsin(rho) / (2 * np.pi)
    wanted = same * (up * high + down * low) + (0.5 - same) * (up * low + down * high)
    wanted = wanted if q1 else middle * (high + low) / 2
    wanted = wanted if q2 else (middle if q1 == 0 else (up + down) / 2) * centre
    c = rho * np.sqrt(q1 * q2)
    assert float(rule(0.0, 0.0, *map(np.float64, (q1, q2, c)))) == pytest.approx(wanted, abs=1e-13)


@each_case(
    "text",
    [
        "x*gaussian(x)",
        "gaussian(x) + gaussian(x, rate=0.5)",
        "gaussian(x) + step(x)",
        "gaussian(x)*step(x)",
        "erf_gate(x) + x*gaussian(x)",
        "erf_gate(0.7071067811865476*x) + 0.4*(x*gaussian(x, rate=0.5))",
        "exp(x)*gaussian(x)",
    ],
)
def test_what_is_no_slope_of_a_fold(text: str) -> None:
    found = recognised(parse_expr(text), "x")
    assert found is not None
    assert slope_of(found[0].about(found[1]).terms or ()) is None
