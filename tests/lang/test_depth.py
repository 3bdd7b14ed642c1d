"""Depth without end: no pass over programs recurses in Python, and shared parts are visited once."""

import copy
import sys

import numpy as np
import pytest

import netsor as ns
from effort import calls
from netsor.lang.expr import Apply, Const, Ref, count_terms, refs
from netsor.lang.functions import add, tanh
from netsor.lang.lower import VARIANTS

HEAD = "Input x0 :: G(n) ~ N(0, 1)\nInput v :: G(n) ~ N(0, 1)\n"


def lines(rule: str, count: int) -> str:
    body = "\n".join(f"x{i + 1} := {rule.replace('x', f'x{i}')}" for i in range(count))
    return f"{HEAD}{body}\nOutput v^T x{count} / sqrt(n)\n"


def nested(count: int) -> str:
    return f"{HEAD}y := {'tanh(' * count}x0{')' * count}\nOutput v^T y / sqrt(n)\n"


def every_reading(program: ns.Program) -> None:
    """Everything that the language does with a program; the recursion limit stays what it is."""
    limit = sys.getrecursionlimit()
    assert ns.parse(program.show()) == program
    repr(program), hash(program), program.canonical(), program.widths
    for variant in VARIANTS:
        lowered = program.lower(variant)
        lowered.check()
        assert program.lower(variant) == lowered
    program.expand().check()
    assert np.isfinite(ns.simulate(program, width=4, seed=0)).all()
    assert np.isfinite(ns.empirical_kernel(program, width=4, seed=0)).all()
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(nested(5000), marks=pytest.mark.slow),
        HEAD + "y := " + " + ".join(["tanh(x0)"] * 2000) + "\nOutput v^T y / sqrt(n)\n",
        pytest.param(
            HEAD + "y := tanh(" + "-" * 5000 + "x0)\nOutput v^T y / sqrt(n)\n", marks=pytest.mark.slow
        ),
        HEAD + "y := tanh(" + "(" * 5000 + "x0" + ")" * 5000 + ")\nOutput v^T y / sqrt(n)\n",
        lines("tanh(x)", 2000),
        lines("x + tanh(x)", 500).replace("Output", "# a skip connection in every line\nOutput"),
    ],
    ids=["nested", "sum", "minus", "brackets", "lines", "skips"],
)
def test_depth_is_no_limit(text: str) -> None:
    every_reading(ns.parse(text))


@pytest.mark.slow
def test_a_long_rnn_is_read_and_simulated() -> None:
    x = np.random.default_rng(0).standard_normal((3000, 2))
    program = ns.program(ns.zoo.simple_rnn(), x)
    assert ns.parse(program.show()) == program
    assert np.isfinite(ns.simulate(program, width=4, seed=0)).all()
    program.lower("netsor-minus").check()


@pytest.mark.parametrize("variant", ["netsor", "netsor-minus"])
def test_doublings_are_work_on_a_graph(variant: str) -> None:
    program = ns.parse(lines("tanh(x)*x", 30))
    lowered = program.lower(variant)
    lowered.check()
    assert ns.simulate(lowered, width=5, seed=1) == pytest.approx(ns.simulate(program, width=5, seed=1))
    lowered.expand().check()
    assert len(repr(lowered)) < 2000
    with pytest.raises(ns.NetsorError, match=r"terms, more than.*\n.*names"):
        lowered.show()


def test_sums_that_double_stay_small() -> None:
    program = ns.parse(lines("x + x", 60))
    assert program.lower("netsor-minus").check()
    assert ns.simulate(program, width=2, seed=0) == pytest.approx(
        2.0**60 * ns.simulate(ns.parse(lines("1*x", 1)), width=2, seed=0)
    )


def test_data_may_be_computed_in_many_steps() -> None:
    W, v = ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        for _ in range(3000):
            x = x + x / 2
        return v @ ns.tanh(W @ x)

    assert len(ns.program(net, [1e-300, 0.0]).statements) == 5


def test_equal_expressions_are_one() -> None:
    x = Ref("x")
    assert Apply(tanh, (x,)) is Apply(tanh, (Ref("x"),))
    assert Const(0.0) is not Const(-0.0)
    assert Const(1) is Const(1.0)
    total = x
    for _ in range(100):
        total = Apply(add, (total, total))
    assert copy.deepcopy(total) is total
    assert count_terms(total) == 2**101 - 1
    assert refs(total) == ["x"]
    assert "terms" in repr(total)


def test_options_that_differ_in_type_are_two() -> None:
    """`sum(x, axis=0.0)` is refused, whatever was read before it."""
    good, bad = "y := sum(tanh(g), axis=0)", "y := sum(tanh(g), axis=0.0)"
    head = "Input g :: G(n)[2] ~ N(0, 1)\n"
    kept = ns.parse(head + good)
    with pytest.raises(ns.NetsorError, match=r"no axis 0\.0"):
        ns.parse(head + bad)
    assert ns.parse(head + good) == kept


def test_reading_an_rnn_is_linear_in_its_length() -> None:
    """Four times the tokens are four times the calls of functions, and no more."""
    cell, v = ns.RNNCell(ns.erf), ns.Matrix(rows=1)

    @ns.network
    def last(tokens):
        state = 0
        for token in tokens:
            state = cell(state, token)
        return v @ state

    x = np.random.default_rng(0).standard_normal((600, 2))
    short, long = (calls(lambda length=length: ns.program(last, x[:length])) for length in (150, 600))
    assert long / short < 4.1
