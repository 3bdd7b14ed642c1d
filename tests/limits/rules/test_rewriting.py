"""Each row of the rewriter is an equation on arrays, and its condition fails where it must."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.errors import LimitError
from netsor.lang import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Expr, Ref
from netsor.lang.program import LinComb, Nonlin, Program
from netsor.lang.rewrite import rewritten
from netsor.limits.rules import rewriting
from netsor.limits.rules.forms import Forms

PROGRAM = ns.parse("""
Data d = [0.5, 2]
Input g :: G(n)[3] ~ N(0, 1)
Input h :: G(n)[3] ~ N(0, 1)
Input k :: G(n) ~ N(0, 1)
Input l :: G(n)[1] ~ N(0, 1)
Input b :: G(n)[8] ~ N(0, 1)
Input t :: G(n)[8] ~ N(0, 1)
Input s :: G(n)[4] ~ N(0, 1)
y := relu(k)
masked := tanh(step(k - 0.3) * g)
dropped := exp(2 * step(k - 0.3) * g + h)
divided := g / step(k - 0.3)
linear := step(k - 0.3) * g + h
number := 2 * (k * 3)
plain := k * relu(k)
square := relu(k)^2
cube := relu(k)^3
fourth := k^4
quotient := relu(k) / d[0]
double := relu(k) + relu(k)
two := relu(k) + k
row := sum(relu(k) * relu(g) * h, axis=0)
row_of_one := sum(relu(l) * relu(g) * h, axis=0)
no_row := sum(relu(g) * h, axis=0)
form := sum(2 * g, axis=0)
product := relu(k) * sum(relu(g) * h, axis=0)
average := relu(k) * mean(relu(g) * h, axis=0)
of_form := relu(k) * sum(2 * g, axis=0)
no_sum := relu(k) * relu(l[0])
""")
FORMS = Forms(PROGRAM)
RNG = np.random.default_rng(3)
VALUES = {
    name: Block(RNG.normal(size=(*type_.index, 50)), len(type_.index), True)
    for name, type_ in PROGRAM.types.items()
} | {"d": Block(PROGRAM.data["d"], 1)}


def of(name: str, program: Program = PROGRAM) -> Any:
    source = program.definitions[name]
    assert isinstance(source, Nonlin | LinComb)
    return source.expr


def value(e: Expr) -> np.ndarray:
    with np.errstate(all="ignore"):
        block = evaluate(e, VALUES)
    return np.broadcast_to(block.array, (*FORMS.index(e), 50))


def assert_equal(e: Expr, other: Expr | None) -> None:
    assert other is not None
    assert other is not e
    np.testing.assert_allclose(value(other), value(e), rtol=1e-13)


def test_a_definition():
    assert rewriting.definition(PROGRAM, Ref("y")) == of("y")
    assert rewriting.definition(PROGRAM, Ref("k")) is None
    assert rewriting.definition(PROGRAM, of("y")) is None


@pytest.mark.parametrize("name", ["masked", "dropped"])
def test_a_mask_outside(name):
    e = of(name)
    other = rewriting.mask_outside(FORMS.masks, e)
    assert_equal(e, other)
    assert isinstance(other, Apply)
    assert other.op.name in ("mul", "add")


@pytest.mark.parametrize("name", ["divided", "linear", "y"])
def test_no_mask_outside(name):
    """By a mask nothing is divided, products with masks are multiplied out as they are, and y has no mask."""
    assert rewriting.mask_outside(FORMS.masks, of(name)) in (None, of(name))
    assert rewritten(of(name), [partial(rewriting.mask_outside, FORMS.masks)]) == of(name)


def test_a_number_outside():
    number, e = rewriting.number_outside(of("number"))
    assert number == 6
    assert e == Ref("k")
    assert rewriting.number_outside(of("plain")) == (1.0, of("plain"))


@pytest.mark.parametrize(
    ("row", "names", "others"),
    [
        (rewriting.power, ["square", "cube"], ["fourth", "plain"]),
        (rewriting.quotient, ["quotient"], ["plain"]),
        (rewriting.twice, ["double"], ["two", "plain"]),
    ],
)
def test_arithmetic(row, names, others):
    for name in names:
        assert_equal(of(name), row(of(name)))
    for name in others:
        assert row(of(name)) is None


@pytest.mark.parametrize("name", ["row", "row_of_one"])
def test_a_factor_outside(name):
    e, other = of(name), rewriting.factor_outside(FORMS, of(name))
    assert_equal(e, other)
    assert isinstance(other, Apply)
    assert other.op.name == "mul"


@pytest.mark.parametrize("name", ["no_row", "form", "product"])
def test_no_factor_outside(name):
    """Every factor varies along the sum, or the sum is Gaussian, or it is no sum."""
    assert rewriting.factor_outside(FORMS, of(name)) is None


@pytest.mark.parametrize("name", ["product", "average"])
def test_a_sum_outside(name):
    e, other = of(name), rewriting.sum_outside(FORMS, of(name))
    assert_equal(e, other)
    assert isinstance(other, Apply)
    assert other.op.name in ("sum", "mean")


@pytest.mark.parametrize("name", ["of_form", "no_sum", "row"])
def test_no_sum_outside(name):
    """The sum is Gaussian, there is none, or it is no product."""
    assert rewriting.sum_outside(FORMS, of(name)) is None


def test_both_ways():
    """A factor comes out of a sum, and goes back into it."""
    outside = rewriting.factor_outside(FORMS, of("row"))
    assert outside is not None
    assert_equal(of("row"), rewriting.sum_outside(FORMS, outside))


def slope(members: str) -> Expr:
    from netsor.lang.functions import d_batchnorm

    z, t = ("b", "t") if members == "b" else ("s", "s")
    return Apply(d_batchnorm, (Ref(z), Ref(t)), (("axis", (0,)),))


def with_slopes() -> Forms:
    forms = Forms(PROGRAM)
    forms.has_batchnorm_slopes = True
    return forms


def test_a_slope_of_batchnorm_in_arithmetic():
    forms = with_slopes()
    found = rewriting.batchnorm_slope(forms, frozenset(["b"]), slope("b"))
    assert found is not None
    assert found.batch == Ref("b")
    assert_equal(slope("b"), found.expr)


def test_no_slope_of_batchnorm():
    """Where the batch is not sampled, and there is none; it is refused where it spans too few dimensions."""
    assert rewriting.batchnorm_slope(with_slopes(), frozenset(["t"]), slope("b")) is None
    assert rewriting.batchnorm_slope(with_slopes(), frozenset(["b"]), Ref("b")) is None
    with pytest.raises(LimitError, match="spans 3 dimensions"):
        rewriting.batchnorm_slope(with_slopes(), frozenset(["s"]), slope("s"))
