"""Networks composed of many layers: against networks of finite width, the oracle and sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netsor as ns
from composed_case import EVERYTHING
from limit_cases import (
    GRAPH,
    SAMPLED_ERROR,
    SEQUENCES,
    VECTORS,
    Case,
    assert_agree,
    assert_simulated,
    scale_of,
)
from oracle_answers import oracle

# The network with a bit of everything


def test_everything_against_finite_width() -> None:
    assert_simulated(EVERYTHING, width=128, networks=160)


@pytest.mark.slow
def test_everything_against_the_oracle() -> None:
    """Two tokens each: more have too many variables for brute force."""
    inputs = [SEQUENCES[0][:2], SEQUENCES[1][:2]]
    found = ns.kernel(EVERYTHING.net).evaluate(inputs)
    wanted = oracle(ns.program(EVERYTHING.net, *inputs), samples=2**12)
    assert_agree(found, wanted.kernel, wanted.error.kernel)
    assert np.all(wanted.error.kernel <= 0.05 * scale_of(wanted.kernel)), "the comparison says little"


def test_everything_sampled_as_little_and_as_much_as_possible() -> None:
    """Only the families that meet in the user's function need samples; all of them may have them."""
    auto = ns.kernel(EVERYTHING.net).evaluate(EVERYTHING.inputs)
    every = ns.kernel(EVERYTHING.net, method="sample", points=2**10, seed=1).evaluate(EVERYTHING.inputs)
    few, all_of_them = auto.plan.sampling, every.plan.sampling
    assert few is not None
    assert all_of_them is not None
    assert len(few.families) < len(all_of_them.families)
    assert few.dimensions < all_of_them.dimensions
    assert_agree(auto, every.value, every.error)
    assert np.all(auto.error <= 1e-3 * scale_of(auto.value))
    with pytest.raises(ns.NetsorError, match="no exact method"):
        ns.kernel(EVERYTHING.net, method="exact")(EVERYTHING.inputs)


def test_everything_on_a_single_token() -> None:
    one = [SEQUENCES[3][:1], SEQUENCES[2][:1]]
    found = ns.kernel(EVERYTHING.net).evaluate(one)
    wanted = oracle(ns.program(EVERYTHING.net, *one), samples=2**12)
    assert_agree(found, wanted.kernel, wanted.error.kernel)


# Smaller compositions, which the oracle knows to many digits

IMAGES = list(np.random.default_rng(5).standard_normal((2, 2, 2, 2)))
ROWS, TOKENS = list(VECTORS[:2]), list(SEQUENCES[:2, :2])
GRAPHS = [(SEQUENCES[0], GRAPH), (SEQUENCES[1], GRAPH + np.eye(3))]
CASES: list[Case] = []


class Layers:
    """Fresh parameters for one network."""

    def __init__(self) -> None:
        self.W, self.W1, self.W2 = (ns.Matrix(name=name) for name in ("W", "W1", "W2"))
        self.v, self.u = ns.Matrix(rows=1, name="v"), ns.Matrix(0.5, rows=1, name="u")
        self.conv = ns.Conv2d(2, var_w=2.0, var_b=0.1)
        self.b = ns.Vector(0.5, mean=1.5, name="b")
        self.heads = ns.Attention(2, var_u=2.0)
        self.cell = ns.RNNCell(ns.erf)


def case(name: str, inputs: list[Any]) -> Callable[[Callable], Callable]:
    """Decorator: a function (x, layers) is a network of its own."""

    def add(fn: Callable) -> Callable:
        layers = Layers()
        CASES.append(Case(name, ns.network(lambda x: fn(x, layers)), inputs))
        return fn

    return add


@case("an activation plus its own average pool", IMAGES)
def _(image, n):
    h = ns.relu(n.conv(image))
    return n.v @ ns.flatten(h + ns.mean_pool(h, 2, 1, "same"))


@case("a nonlinearity, a pool, a nonlinearity", IMAGES)
def _(image, n):
    return n.v @ ns.tanh(ns.global_mean_pool(ns.relu(n.conv(image))))


@case("pixels as tokens of a recurrent network", IMAGES)
def _(image, n):
    state = 0
    for pixel in n.conv(image).reshape((4,))[:2]:
        state = n.cell(state, ns.relu(pixel))
    return n.v @ state


@case("x - relu(x)", ROWS)
def _(x, n):
    h = n.W @ x
    return n.v @ (h - ns.relu(h))


@case("product of dependent layers", ROWS)
def _(x, n):
    h = n.W @ x
    return n.v @ ns.relu(n.W1 @ (ns.relu(h + n.W2 @ x) * ns.tanh(h)))


@case("maximum of two layers", ROWS)
def _(x, n):
    h = n.W @ x
    return n.v @ ns.maximum(h, n.W2 @ x + h / 2)


@case("a gate with a moment", ROWS)
def _(x, n):
    h = ns.relu(n.W @ x)
    return n.v @ (h / ns.sqrt(1 + ns.mean(h * h)) + ns.tanh(n.W1 @ h))


@case("layernorm of a sum with a bias that has a mean", ROWS)
def _(x, n):
    h = ns.layernorm(n.W1 @ ns.tanh(n.W @ x) + n.b)
    return n.v @ (h * ns.relu(n.b)) + n.u @ h


@case("one matrix on two tokens of one input", TOKENS)
def _(x, n):
    return n.v @ ns.relu(ns.relu(n.W @ x[0]) - ns.relu(n.W @ x[1]))


@case("two heads over a recurrent network", TOKENS)
def _(x, n):
    first = n.cell(0, x[0])
    states = ns.stack([first, n.cell(first, x[1])])
    return n.v @ ns.relu(n.heads(states))


@case("a graph and its nodes' own features", GRAPHS[:1])
def _(graph, n):
    x, adjacency = graph
    h = n.W @ x
    return n.v @ ns.relu(ns.contract(adjacency, h) + ns.relu(h))


@case("layernorm on a graph", GRAPHS[1:])
def _(graph, n):
    x, adjacency = graph
    return n.v @ ns.mean(ns.erf(ns.layernorm(ns.contract(adjacency + np.eye(3), ns.tanh(n.W @ x)))), axis=0)


# Cubature over several variables with kinks is no better than samples.
CUBATURE = {
    "layernorm of a sum with a bias that has a mean",
    "one matrix on two tokens of one input",
    "a graph and its nodes' own features",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_composition_against_the_oracle(case: Case) -> None:
    found = ns.kernel(case.net).evaluate(case.inputs)
    wanted = oracle(ns.program(case.net, *case.inputs), samples=2**13)
    largest = SAMPLED_ERROR if case.name in CUBATURE else None
    assert_agree(found, wanted.kernel, wanted.error.kernel, largest=largest)
    assert np.all(found.error <= 5e-3 * scale_of(found.value).max())
    assert np.all(wanted.error.kernel <= 0.05 * scale_of(found.value).max()), "the comparison says little"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_composition_against_finite_width(case: Case) -> None:
    assert_simulated(case)
