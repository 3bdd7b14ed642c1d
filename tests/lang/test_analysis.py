"""Static facts about expressions, against their values; and piecewise polynomials."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsor.expect.quadrature.kinks import find_kinks
from netsor.lang import Block, evaluate, parse_expr
from netsor.lang.analysis import about, has_user_function, is_smooth_node
from netsor.lang.expr import Apply, Const, Expr, Ref, subtrees
from netsor.lang.facts import Growth
from netsor.lang.functions import ARITHMETIC, FUNCTIONS, add, div, maximum, minimum, mul, neg, pow_, sub
from netsor.lang.ops import Function
from netsor.lang.piecewise_polynomials import PiecewisePolynomial

X = Ref("x")


def value(expr, x):
    with np.errstate(all="ignore"):
        return np.broadcast_to(evaluate(expr, {"x": Block(x, 0, True), "c": Block(0.7, 0)}).array, x.shape)


def is_smooth(e: Expr) -> bool:
    """Whether all functions in an expression are smooth."""
    return all(is_smooth_node(node) for node in subtrees(e) if isinstance(node, Apply))


KNOWN = [  # text, kinks, jumps, growth, parity
    ("relu(x)^3", (0.0,), (), "POLYNOMIAL", 0),
    ("abs(x)*x", (0.0,), (), "POLYNOMIAL", -1),
    ("relu(x) + relu(-x) - abs(x)", (), (), "BOUNDED", 1),
    ("relu(x) - relu(-x)", (), (), "LINEAR", -1),
    ("step(2*x - 1)", (0.5,), (0.5,), "BOUNDED", 0),
    ("sign(x)*x", (0.0,), (), "LINEAR", 1),
    ("maximum(x, 1)", (1.0,), (), "LINEAR", 0),
    ("minimum(maximum(x^2, 1), 4)", (-2.0, -1.0, 1.0, 2.0), (), "BOUNDED", 1),
    ("hard_tanh(x^2 - 2)", (-math.sqrt(3), -1.0, 1.0, math.sqrt(3)), (), "BOUNDED", 1),
    ("tanh(x)^2 - 1", (), (), "BOUNDED", 1),
    ("exp(-x^2)", (), (), "BOUNDED", 1),
    ("exp(x) + x^4", (), (), "EXPONENTIAL", 0),
    ("exp(x^2)", (), (), "UNKNOWN", 1),
    ("sqrt(1 + x^2)", (), (), "POLYNOMIAL", 1),
    ("x / (1 + exp(-x))", (), (), "LINEAR", 0),
    ("1 / (1 + exp(-x))", (), (), "BOUNDED", 0),
    ("log(1 + exp(x))", (), (), "EXPONENTIAL", 0),
    ("tanh(relu(x))", (0.0,), (), "BOUNDED", 0),
    ("tanh(x) * step(x - 1)", (1.0,), (1.0,), "BOUNDED", 0),
    ("relu(tanh(x))", None, (), "BOUNDED", 0),
    ("sign(tanh(x))", None, None, "BOUNDED", -1),
    ("1 / x", None, None, "UNKNOWN", 0),
    ("sqrt(x)", None, None, "UNKNOWN", 0),
    ("log(relu(x))", None, None, "UNKNOWN", 0),
    ("2^x", (), (), "EXPONENTIAL", 0),
    ("c * relu(x)", (0.0,), (), "LINEAR", 0),
    ("relu(x - c)", None, (), "LINEAR", 0),
    ("tanh(x - c)", (), (), "BOUNDED", 0),
]


@pytest.mark.parametrize(("text", "kinks", "jumps", "growth", "parity"), KNOWN)
def test_expressions(text, kinks, jumps, growth, parity):
    found = about(parse_expr(text), "x")
    if kinks is None:
        assert found.kinks is None
    else:
        assert isinstance(found.kinks, tuple)
        np.testing.assert_allclose(found.kinks, kinks, atol=1e-9)
    assert found.jumps == jumps
    assert found.growth.name == growth
    assert found.parity == parity


def test_nothing_is_known_of_a_function_of_the_user():
    own = Function("own", np.tanh, user=True)
    found = about(Apply(own, (X,)), "x")
    assert (found.kinks, found.jumps, found.growth) == (None, None, Growth.UNKNOWN)
    assert about(Apply(add, (Apply(own, (X,)), X)), "x").kinks is None
    assert about(Apply(FUNCTIONS["tanh"], (Apply(own, (X,)),)), "x").growth == Growth.BOUNDED
    assert not is_smooth(Apply(own, (X,)))
    assert has_user_function(Apply(add, (X, Apply(own, (X,)))))
    assert not has_user_function(parse_expr("tanh(x)"))


def test_smooth_expressions_of_several_variables():
    assert is_smooth(parse_expr("tanh(x) * y + sin(x - y)"))
    assert not is_smooth(parse_expr("relu(x) * y"))
    assert not is_smooth(parse_expr("x / y"))
    assert is_smooth(parse_expr("(1 - tanh(x)^2) * y^3"))
    assert not is_smooth(parse_expr("x^0.5 * y"))
    assert not is_smooth(parse_expr("x^y"))


numbers = st.integers(-4, 4).map(lambda n: Const(n / 2))
unary = st.sampled_from([f for f in FUNCTIONS.values() if f.arity == 1 and f.name not in ("exp", "log")])
binary = st.sampled_from([add, sub, mul, maximum, minimum, div])


def trees(parts):
    return st.one_of(
        st.builds(lambda f, x: Apply(f, (x,)), unary, parts),
        st.builds(lambda x: Apply(neg, (x,)), parts),
        st.builds(lambda f, x, y: Apply(f, (x, y)), binary, parts, parts),
        st.builds(lambda x, n: Apply(pow_, (x, Const(float(n)))), parts, st.integers(0, 3)),
    )


expressions = st.recursive(st.one_of(st.just(X), st.just(X), numbers), trees, max_leaves=5)


@settings(max_examples=150, deadline=None)
@given(expressions)
def test_random_expressions(expr):
    """What is said holds: no kinks but the known ones, values in the range, parity, the pieces."""
    found = about(expr, "x")
    x = np.concatenate([np.linspace(-9, 9, 1237) + 1e-4, [1e-5, 40.3, -38.7]])  # not at knots
    y = value(expr, x)
    ok = np.isfinite(y)
    slack = 1e-9 * (1 + np.abs(y))
    assert np.all((y >= found.range[0] - slack)[ok])
    assert np.all((y <= found.range[1] + slack)[ok])
    if found.kinks is not None and ok.all():
        apart = np.diff([-np.inf, *found.kinks, np.inf]).min() > 0.2
        seen = find_kinks(lambda z: value(expr, z), -9.0, 9.0) if apart else ()
        # A jump of the third derivative of numbers of order 100 shows from their rounding^(1/3) on, 3e-5.
        assert all(min(abs(k - known) for known in (*found.kinks, np.inf)) < 1e-4 for k in seen)
    if found.parity and ok.all():
        away = np.abs(x) > 1e-3
        mirrored = value(expr, -x)
        close = np.abs(mirrored - found.parity * y) <= 1e-7 * (1 + np.abs(y))
        near = np.any([np.abs(np.abs(x) - abs(k)) < 1e-6 for k in found.kinks or ()], axis=0)
        assert np.all(close | near | ~away)
    if found.pieces:
        far = np.all([np.abs(x - k) > 1e-6 for k in found.pieces.knots], axis=0) | (not found.pieces.knots)
        made = np.asarray([found.pieces(z) for z in x])
        jumps = np.any([np.abs(x - k) < 1e-6 for k in found.jumps], axis=0) if found.jumps else False
        assert np.all((np.abs(made - y) <= 1e-8 * (1 + np.abs(y)))[far & ~np.asarray(jumps) & ok])


def test_every_operation_is_covered():
    """Arithmetic has rules of its own; all other functions have one argument."""
    for f in (*FUNCTIONS.values(), *ARITHMETIC.values()):
        found = about(Apply(f, (X,) * f.arity), "x")
        assert found.kinks is not None or f.name in ("div", "pow", "sqrt", "log"), f.name


RELU = PiecewisePolynomial((0.0,), ((0.0,), (0.0, 1.0)))


def test_composition_of_piecewise_polynomials():
    square = PiecewisePolynomial((), ((-1.0, 0.0, 1.0),))
    ring = square.then(RELU)
    assert ring.knots == pytest.approx((-1.0, 1.0))
    assert [ring(x) for x in (-2.0, 0.0, 3.0)] == pytest.approx([3.0, 0.0, 8.0])
    assert ring.jumps == ()
    assert (RELU - RELU).knots == ()


def test_homogeneous_pieces():
    assert RELU.slopes == (1.0, 0.0)
    assert (RELU + RELU).slopes == (2.0, 0.0)
    assert (RELU + PiecewisePolynomial((), ((1.0,),))).slopes is None
    assert PiecewisePolynomial((1.0,), ((0.0, 1.0), (0.0, 2.0))).slopes is None
