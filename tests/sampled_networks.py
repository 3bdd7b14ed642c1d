"""Networks with gates, whose vectors without index axes are sampled together, and inputs of two lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netsor as ns
from computations import computation
from limit_cases import hinge
from netsor import zoo
from netsor.limits.sampling.schedule import Schedule
from netsor.limits.sampling.tables import Tables

__all__ = [
    "FEW_NAMES",
    "INPUTS",
    "LONG",
    "NAMES",
    "NETWORKS",
    "SETS",
    "SHORT",
    "TOKENS",
    "last",
    "schedule",
    "sequence",
    "tables",
    "v",
]

TOKENS = np.random.default_rng(11).standard_normal((5, 6, 3))
LONG, SHORT = TOKENS[0][:4], TOKENS[1][:3]
v = ns.Matrix(0.7, rows=1, name="v")


def sequence(step: Callable[[Any, Any], Any], readout: Callable[[list[Any]], Any]) -> ns.Network:
    """A network that goes through its tokens with `step` and reads out all states."""

    @ns.network
    def net(tokens):
        state, states = 0, []
        for token in tokens:
            state = step(state, token)
            states.append(state)
        return readout(states)

    return net


def last(states: list[Any]) -> Any:
    return v @ states[-1]


def two_layers() -> ns.Network:
    first, second = ns.GRUCell(ns.erf, ns.erf_gate), ns.GRUCell(ns.tanh, ns.sigmoid, mean_b=0.3, name="2")

    @ns.network
    def net(tokens):
        s, t = 0, 0
        for token in tokens:
            s = first(s, token)
            t = second(t, s)
        return v @ (t + 0.5 * s)

    return net


def scaled_and_repeated() -> ns.Network:
    """A matrix twice in one form, factors, differences, and data as a coefficient."""
    W, U, b = ns.Matrix(0.9), ns.Matrix(1.1), ns.Vector(0.5, mean=0.2)

    def step(state, token):
        gate = ns.erf_gate(2 * (W @ state) - (W @ (6 * state * state)) / 2 + token[0] * (U @ token) - b)
        return gate - 0.3 * gate * state

    return sequence(step, last)


def several_functions(kinked: Callable[[Any], Any]) -> ns.Network:
    """One exact family with a closed form, a smooth function and kinks, not all of them in all parts."""
    cell_z, cell_h = (ns.RNNCell(lambda h: h, name=name) for name in "zh")

    def step(state, token):
        z, h = ns.erf_gate(cell_z(state, token)), cell_h(state, token)
        return z * state + (1 - z) * ns.erf(h) + 0.5 * z * ns.tanh(h) - 0.25 * kinked(h) + 0.1 * z

    return sequence(step, last)


def odd_and_even(mean: float) -> ns.Network:
    """An exact family with odd and even functions, which have moments with each other if there is a mean."""
    cell_z, cell_h = (ns.RNNCell(lambda h: h, name=name) for name in "zh")

    def step(state, token):
        z, h = ns.erf_gate(cell_z(state, token)), cell_h(state, token) + mean
        return z * state + (1 - z) * (ns.sin(h) + 0.5 * ns.cos(h))

    return sequence(step, last)


def independent_of_the_input() -> ns.Network:
    """The first steps are the same for all inputs."""
    cell, h0 = ns.GRUCell(ns.erf, ns.erf_gate), ns.Vector(0.8)

    @ns.network
    def net(tokens):
        state = ns.tanh(h0)
        for _ in range(2):
            state = cell(state, np.ones(3))
        for token in tokens:
            state = cell(state, token)
        return v @ state, v @ ns.relu(h0)

    return net


def products_of_states() -> ns.Network:
    """Vectors of two steps in one vector, and an output gate that not every vector has."""
    cell, gate, W = ns.GRUCell(ns.erf, ns.erf_gate), ns.RNNCell(ns.sigmoid, name="o"), ns.Matrix(1.0)

    def step(state, token):
        return cell(state, token)

    def readout(states):
        gated = gate(states[0], np.ones(3)) * states[-1]
        return v @ (states[-1] * ns.erf_gate(W @ gated)), v @ gated, v @ states[-1]

    return sequence(step, readout)


GRU, LSTM = ns.GRUCell(ns.erf, ns.erf_gate), ns.LSTMCell(ns.tanh, ns.sigmoid, mean_b=[0.0, 1.0, 0.2, 0.0])
NETWORKS: dict[str, ns.Network] = {
    "GRU": zoo.gru(var_w=[1.5, 1.0, 2.0], mean_b=[0.5, 0.0, -0.5]),
    "tanh GRU": zoo.gru(ns.tanh, ns.sigmoid, mean_b=[0.1, 0.0, 0.3]),
    "GRU, random state": zoo.gru(var_h0=0.5),
    "LSTM": zoo.lstm(var_w=[1.0, 2.0, 1.5, 1.0]),
    "mean of a GRU": sequence(GRU, lambda states: v @ ns.mean(ns.stack(states), axis=0)),
    "two GRU layers": two_layers(),
    "scaled and repeated": scaled_and_repeated(),
    "several functions": several_functions(ns.relu),
    "a function of a user": several_functions(lambda h: ns.nonlin(hinge, h)),
    "odd and even functions": odd_and_even(0.0),
    "odd and even functions, with a mean": odd_and_even(0.7),
    "independent of the input": independent_of_the_input(),
    "products of states": products_of_states(),
}
HEAVY = ("several functions", "a function of a user")
QUICK = ("GRU", "LSTM", "products of states")


def names(quick: Callable[[str], bool]) -> list[Any]:
    """All networks, of which the ordinary tests take the quick ones."""
    return [pytest.param(name, marks=() if quick(name) else pytest.mark.slow) for name in NETWORKS]


NAMES = names(lambda name: name not in HEAVY)
FEW_NAMES = names(lambda name: name in QUICK)
SETS = [LONG, SHORT, TOKENS[2][:4], TOKENS[3][:3], LONG]
INPUTS: dict[str, Any] = {
    "two lengths": SETS,
    "one length, and one of them twice": [*TOKENS[:3], TOKENS[0]],
    "one input": [LONG],
    "a single token": [SHORT[:1], LONG],
    "zeros": [0 * LONG, LONG],
}


def schedule(net: ns.Network, inputs: Any, **options: Any) -> Schedule | None:
    found = tables(net, inputs, **options)
    return found and found.schedule


def tables(net: ns.Network, inputs: Any, **options: Any) -> Tables | None:
    """The second moments that are computed together, if some are; no kernel is computed."""
    made = computation(ns.kernel(net, **options), inputs)
    assert not made.plan().exact
    return made.sampled.repeats.tables
