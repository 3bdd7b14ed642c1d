"""Expressions with closed forms, against quadrature that knows nothing of them."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import pytest
from scipy.integrate import quad

from each_case import each_case
from netsor.expect.closed.recognition import recognised
from netsor.expect.closed.registry import find, find_mean
from netsor.expect.hermite.expansion import series
from netsor.expect.hermite.mehler import pair_sum
from netsor.lang import Block, evaluate, parse_expr
from netsor.lang.analysis import about
from netsor.lang.expr import Apply, Const, Ref
from netsor.lang.functions import identity, polynomial, relu
from netsor.lang.ops import Function

BODIES = [
    "relu(x)^3",
    "x^8",
    "relu(x)*abs(x - 1)",
    "maximum(x, 0.5) - 2*relu(-x)",
    "hard_tanh(2*x + 1)*x",
    "x*gaussian(x)",
    "1 - erf_gate(x)",
    "x*erf_gate(2*x - 1)",
    "sin(2*x + 1)",
    "sin(3*x)^2",
    "x*cos(x)",
    "sin(x)*cos(2*x) + 0.3",
    "exp(-x)*relu(x)",
    "exp(0.5*x - 1)",
    "elu(x) - relu(x) + 1",
    "gaussian(x - 1)*step(x)",
]
PAIRS = list(combinations_with_replacement(BODIES, 2))
LAWS = [(0.0, 0.0, 1.0, 0.7, 0.4), (0.4, -0.3, 0.8, 1.3, -0.6), (-0.2, 0.1, 0.05, 1.0, 0.1)]


def value(text, x):
    return evaluate(parse_expr(text), {"x": Block(np.asarray(x, float), 0, True)}).array


def known(text):
    found = recognised(parse_expr(text), "x")
    assert found is not None
    return found


def kinks_of(text):
    kinks = about(parse_expr(text), "x").kinks
    assert kinks is not None
    return kinks


@each_case("text", BODIES)
@each_case(("m", "q"), [(0.0, 1.0), (0.7, 0.3), (-0.5, 2.0)])
def test_means(text, m, q):
    kinks = sorted((k - m) / math.sqrt(q) for k in kinks_of(text))

    def integrand(z):
        return float(value(text, m + math.sqrt(q) * z)) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    expected = quad(integrand, -13, 13, points=kinks or None, limit=500, epsabs=1e-12)[0]
    mean = find_mean(*known(text))
    assert mean is not None
    assert float(mean(m, q)) == pytest.approx(expected, rel=1e-9, abs=1e-10)


@cache
def expansion(text, m, q):
    return series(lambda x: value(text, x), np.asarray(m), np.asarray(q), kinks=kinks_of(text))


def check_pair(f, g, law):
    (one, p), (two, q) = known(f), known(g)
    rule = find(one, p, two, q, zero_mean=law[:2] == (0.0, 0.0))
    assert rule is not None
    m1, m2, q1, q2, c = law
    expected, error = pair_sum(expansion(f, m1, q1), expansion(g, m2, q2), np.asarray(c / math.sqrt(q1 * q2)))
    size = math.sqrt(float(expansion(f, m1, q1).square * expansion(g, m2, q2).square))
    assert abs(float(rule(*law)) - float(expected)) <= float(error) + 1e-11 * size


@each_case(("f", "g", "law"), [(*pair, LAWS[k % len(LAWS)]) for k, pair in enumerate(PAIRS)])
def test_pairs(f, g, law):
    check_pair(f, g, law)


@pytest.mark.slow
@each_case("law", LAWS)
@each_case(("f", "g"), PAIRS)
def test_pairs_at_every_law(f, g, law):
    check_pair(f, g, law)


@each_case("text", BODIES)
def test_functions_are_the_expressions(text):
    function, options = known(text)
    x = np.linspace(-3, 3, 101)
    np.testing.assert_allclose(function(x, **options), value(text, x), rtol=1e-12, atol=1e-13)


def test_names():
    assert known("x") == (identity, {})
    assert known("relu(x)") == (relu, {})
    assert known("x^2 - 1") == (polynomial, {"coefs": (-1.0, 0.0, 1.0)})
    assert known("x*gaussian(x)")[0].name == "x*gaussian(x)"


@each_case(
    "text",
    ["tanh(x)", "erf(x)^2", "erf(x^2)", "1/x", "x*tanh(x)", "exp(sin(x))", "sign(x)*sign(x)", "relu(x*y)"],
)
def test_expressions_without_a_closed_form(text):
    found = recognised(parse_expr(text), "x")
    assert found is None or find_mean(*found) is None


def test_a_function_of_the_user_is_not_recognised():
    own = Function("own", np.sin, user=True)
    assert recognised(Apply(own, (Ref("x"),)), "x") is None


def test_constants():
    assert recognised(Const(2.0), "x") == (polynomial, {"coefs": (2.0,)})
