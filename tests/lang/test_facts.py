"""Every fact about every function of the language, checked by numbers: a wrong entry fails.

A new function is tested for free at its default options; further options stand in `OPTIONS`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from each_case import each_case
from netsor.expect.quadrature.kinks import find_kinks
from netsor.lang import Block, evaluate
from netsor.lang.exp_terms import InnerPiece
from netsor.lang.expr import Ref
from netsor.lang.facts import UNKNOWN, Growth
from netsor.lang.functions import ARITHMETIC, FUNCTIONS
from netsor.lang.ops import Function
from netsor.lang.symbols import partial_derivatives

OPTIONS = {
    "leaky_relu": [{"slope": 0.3}, {"slope": -1.0}, {"slope": 1.0}],
    "gaussian": [{"rate": 0.5}, {"rate": 0.0}, {"rate": -0.1}],
    "elu": [{"alpha": 0.4}, {"alpha": -0.7}],
    "hard_tanh": [{"low": -0.8, "high": 1.2}, {"low": 0.0, "high": math.inf}, {"low": -math.inf}],
    "polynomial": [{"coefs": (3.0,)}, {"coefs": (1.0, 0.0, 2.0)}, {"coefs": (0.0, -1.0, 0.0, 0.5)}],
    "piecewise": [
        {"knots": (-1.0, 0.5), "pieces": ((1.0, 0.5), (0.2, 0.0, 0.3), (0.175, 0.2))},
        {"knots": (-1.0, 0.5), "pieces": ((1.0, 0.5), (0.2, -1.0), (2.0,))},
        {"knots": (0.3,), "pieces": ((0.0, 1.0), (0.0, 1.0))},
    ],
}
CASES: list[Any] = [
    pytest.param(f, options, id=f"{name} {options or ''}")
    for name, f in {**FUNCTIONS, **ARITHMETIC}.items()
    for options in [{}, *OPTIONS.get(name, [])]
]
UNARY = [case for case in CASES if case.values[0].arity == 1]


def points(f, options, count=400, away=2e-3):
    """Random places of the domain that are not near a kink or a pole."""
    facts = f.about(options)
    x = np.random.default_rng(0).uniform(-6, 6, count)
    x = x[(x > facts.domain[0] + away) & (x < facts.domain[1] - away)]
    rough = (*(facts.kinks or ()), *(facts.poles or ()))
    return x[np.all([np.abs(x - k) > away for k in rough], axis=0)] if rough else x


def slope(f, x, step=1e-4):
    """Central differences, extrapolated once."""
    fine, coarse = ((f(x + h) - f(x - h)) / (2 * h) for h in (step, 2 * step))
    return (4 * fine - coarse) / 3


@each_case(("f", "options"), UNARY)
def test_derivative(f, options):
    x = points(f, options)
    expected = slope(lambda z: f(z, **options), x)
    found = np.broadcast_to(f.about(options).derivative(x), x.shape)
    np.testing.assert_allclose(found, expected, atol=2e-7, rtol=1e-7)
    (expr,) = partial_derivatives(f, (Ref("x"),), options)
    same = np.broadcast_to(evaluate(expr, {"x": Block(x, 0, True)}).array, x.shape)
    np.testing.assert_allclose(same, found, atol=1e-12, rtol=1e-12)


@each_case(("f", "options"), [case for case in CASES if case.values[0].arity == 2])
def test_partial_derivatives(f, options):
    rng = np.random.default_rng(1)
    x, y = rng.uniform(0.2, 3, (2, 200))
    x, y = x[np.abs(x - y) > 1e-2], y[np.abs(x - y) > 1e-2]
    expected = slope(lambda z: f(z, y), x), slope(lambda z: f(x, z), y)
    trees = partial_derivatives(f, (Ref("x"), Ref("y")), options)
    for tree, found, truth in zip(trees, f.about(options).derivative(x, y), expected, strict=True):
        np.testing.assert_allclose(np.broadcast_to(found, x.shape), truth, rtol=1e-7, atol=1e-9)
        value = evaluate(tree, {"x": Block(x, 0, True), "y": Block(y, 0, True)}).array
        np.testing.assert_allclose(np.broadcast_to(value, x.shape), found, rtol=1e-12)


def test_equal_arguments_share_the_derivative_of_a_maximum():
    for f in (FUNCTIONS["maximum"], FUNCTIONS["minimum"]):
        derivative = f.about().derivative
        assert derivative is not None
        assert derivative(np.ones(2), np.ones(2))[0].tolist() == [0.5, 0.5]


@each_case(("f", "options"), UNARY)
def test_kinks(f, options):
    facts = f.about(options)
    low = 0.5 if facts.domain[0] == 0 else -50.0
    found = find_kinks(lambda x: f(x, **options), low, 50.0)
    inside = [k for k in facts.kinks if low < k < 50]
    np.testing.assert_allclose(found, inside, atol=1e-9)


@each_case(("f", "options"), UNARY)
def test_jumps(f, options):
    facts = f.about(options)
    assert set(facts.jumps) <= set(facts.kinks)
    for k in facts.kinks:
        gap = abs(f(k + 1e-9, **options) - f(k - 1e-9, **options))
        assert (gap > 1e-6) == (k in facts.jumps)


@each_case(("f", "options"), UNARY)
def test_poles(f, options):
    for pole in f.about(options).poles:
        near, far = (abs(f.about(options).derivative(np.asarray(pole + h))) for h in (1e-8, 1e-4))
        assert near > 50 * far


@each_case(("f", "options"), UNARY)
def test_range(f, options):
    low, high = f.about(options).range
    x = np.concatenate(
        [np.linspace(-60, 60, 240_001), [1e-20], *(s * np.logspace(2, 8, 99) for s in (1, -1))]
    )
    x = x[x > f.about(options).domain[0]]
    with np.errstate(over="ignore"):
        values = f(x, **options)
    assert values.min() >= low - 1e-12
    assert values.max() <= high + 1e-12
    assert np.isinf(low) or values.min() - low <= 1e-6
    assert np.isinf(high) or high - values.max() <= 1e-6


@each_case(("f", "options"), UNARY)
def test_growth(f, options):
    facts, r = f.about(options), np.asarray([10.0, 100.0, 600.0])
    x = np.concatenate([r] if facts.domain[0] == 0 else [r, -r]).reshape(-1, 3)
    with np.errstate(over="ignore"):
        sizes = np.abs(f(x, **options)).max(axis=0)
    if facts.growth == Growth.UNKNOWN:
        assert np.isinf(sizes[-1])
    if facts.growth == Growth.EXPONENTIAL:
        assert np.all(np.log(sizes) <= 1.01 * r)
        assert sizes[1] > 1e6
    if facts.growth == Growth.POLYNOMIAL:
        assert np.log(sizes[2] / sizes[1]) <= 12 * np.log(r[2] / r[1])
        assert sizes[1] > 20 * sizes[0]
    if facts.growth == Growth.LINEAR:
        assert sizes[2] / sizes[1] <= 1.1 * r[2] / r[1]
        assert sizes[2] > sizes[0] + 2
    assert (facts.growth == Growth.BOUNDED) == all(map(math.isfinite, facts.range))


@each_case(("f", "options"), UNARY)
def test_parity(f, options):
    facts, x = f.about(options), np.linspace(0.01, 5, 500)
    if facts.domain[0] == 0:
        assert facts.parity == 0
        return
    right, left = f(x, **options), f(-x, **options)
    even, odd = (np.allclose(left, s * right, rtol=1e-14, atol=1e-15) for s in (1, -1))
    assert facts.parity == (1 if even else -1 if odd else 0)


@each_case(("f", "options"), UNARY)
def test_monotone(f, options):
    facts, x = f.about(options), np.linspace(-20, 20, 100_001)
    steps = np.diff(f(x[x > facts.domain[0]], **options))
    rises, falls = np.all(steps >= -1e-14), np.all(steps <= 1e-14)
    assert facts.monotone == (1 if rises else -1 if falls else 0)


@each_case(("f", "options"), UNARY)
def test_slopes(f, options):
    facts, x = f.about(options), np.linspace(0.01, 5, 100)
    if facts.slopes is not None:
        np.testing.assert_allclose(f(x, **options), facts.slopes[0] * x, rtol=1e-15)
        np.testing.assert_allclose(f(-x, **options), -facts.slopes[1] * x, rtol=1e-15)
    elif facts.domain[0] < 0:
        both = np.concatenate([x, -x])
        assert not np.allclose(f(2 * both, **options), 2 * f(both, **options), rtol=1e-9)


@each_case(("f", "options"), [c for c in UNARY if c.values[0].about(c.values[1]).pieces])
def test_pieces(f, options):
    pieces, x = f.about(options).pieces, np.concatenate([np.linspace(-3, 3, 61) + 0.01, [0.5, -1.0]])
    np.testing.assert_allclose([pieces(z) for z in x], f(x, **options), rtol=1e-13, atol=1e-13)


def value(term, x):
    """A term, the noise integrated out."""
    if isinstance(term, InnerPiece):
        return np.polynomial.polynomial.polyval(x, term.coefs) * ((x > term.low) & (x <= term.high))
    shown = 1.0
    if term.knot is not None and term.noise:
        shown = ndtr(term.side * (x - term.knot) / math.sqrt(term.noise))
    elif term.knot is not None:
        shown = np.where(x == term.knot, term.tie, term.side * (x - term.knot) > 0)
    power = np.polynomial.polynomial.polyval(x, term.coefs)
    return np.real(power * np.exp(term.rate * x - term.bend * x * x)) * shown


@each_case(("f", "options"), [c for c in UNARY if c.values[0].about(c.values[1]).terms])
def test_terms(f, options):
    facts, x = f.about(options), np.concatenate([np.linspace(-4, 4, 801), [0.0, 1.0, -1.0]])
    total = sum(value(term, x) for term in facts.terms)
    np.testing.assert_allclose(total, f(x, **options), rtol=1e-13, atol=1e-13)
    if facts.near:
        x = x[np.abs(x) < 0.1]
        np.testing.assert_allclose(sum(value(term, x) for term in facts.near), f(x, **options), atol=1e-10)


def test_every_function_has_a_derivative():
    assert all(f.about().derivative for f in (*FUNCTIONS.values(), *ARITHMETIC.values()))


def test_nothing_is_known_of_a_function_of_the_user():
    own = Function("relu", lambda x: x, user=True)
    assert own.about() is UNKNOWN
    assert own.about().kinks is None
    assert not own.about().is_smooth
    with pytest.raises(ValueError, match="no derivative"):
        partial_derivatives(own, (Ref("x"),), {})
