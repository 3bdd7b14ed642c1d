"""Each rule of the table is an equation, and fits where it should and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from netsor.lang import Block, parse_expr
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Ref
from netsor.lang.functions import add, exp, mul
from netsor.lang.rewrite import (
    SIMPLER,
    ZERO,
    at_head,
    folded,
    rewritten,
    undefined,
    unit_factor,
    zero_factor,
    zero_summand,
)

X = np.random.default_rng(0).normal(size=7)
x = Ref("x")


@pytest.mark.parametrize(
    ("rule", "text", "simpler"),
    [
        (zero_factor, "0 * x", "0"),
        (zero_factor, "x * 0", "0"),
        (zero_factor, "0 / x", "0"),
        (zero_factor, "-(0 * 1)", None),
        (zero_factor, "1 * x", None),
        (zero_factor, "x / 0.5", None),
        (zero_summand, "0 + x", "x"),
        (zero_summand, "x + 0", "x"),
        (zero_summand, "x - 0", "x"),
        (zero_summand, "0 - x", "-x"),
        (zero_summand, "x + 1", None),
        (zero_summand, "0 * x", None),
        (unit_factor, "1 * x", "x"),
        (unit_factor, "x * 1", "x"),
        (unit_factor, "x / 1", "x"),
        (unit_factor, "x^1", "x"),
        (unit_factor, "1 / x", None),
        (unit_factor, "2 * x", None),
        (folded, "2 + 3", "5"),
        (folded, "exp(2 * 0)", None),
        (folded, "2 + x", None),
        (undefined, "x / 1", None),
        (undefined, "2 + x", None),
    ],
)
def test_a_rule(rule, text, simpler):
    e = parse_expr(text)
    assert isinstance(e, Apply)
    if simpler is None:
        assert rule(e) is None
    else:
        assert rule(e) == parse_expr(simpler)
        values = {"x": Block(X, 0, True)}
        one, two = (np.broadcast_to(evaluate(y, values).array, X.shape) for y in (e, rule(e)))
        np.testing.assert_allclose(one, two, rtol=1e-15)


def test_what_has_no_value_does_not_vanish():
    """0 exp(inf x) is no number, so it is not rewritten as 0."""
    e = Apply(mul, (ZERO, Apply(exp, (Apply(mul, (Const(np.inf), x)),))))
    simpler = rewritten(e, SIMPLER)
    assert isinstance(simpler, Const)
    assert np.isnan(simpler.value)


def test_arguments_come_first():
    assert rewritten(parse_expr("0 * x + 1 * exp(x - 0)"), SIMPLER) == parse_expr("exp(x)")


def test_the_first_rule_that_fits_is_taken():
    e = Apply(add, (ZERO, x))
    assert at_head(e, SIMPLER) is x
    assert at_head(e, (unit_factor,)) is e
    assert at_head(x, SIMPLER) is x
