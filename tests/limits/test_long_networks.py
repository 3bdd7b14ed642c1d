"""Depth without end: time and memory linear in it, and no depth of Python's stack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import netsor as ns
from effort import calls, peak

U, W, b, v = ns.Matrix(1.0), ns.Matrix(1.0), ns.Vector(0.1), ns.Matrix(1.0, rows=1)
rng = np.random.default_rng(0)


@ns.network
def last_state(tokens):
    state = None
    for token in tokens:
        state = ns.erf(U @ token + b if state is None else W @ state + U @ token + b)
    return v @ state


def by_hand(x: np.ndarray, y: np.ndarray) -> float:
    """The last state of both sentences, token after token (Williams 1997)."""
    xx, yy, xy = (np.einsum("ti,ti->t", p, q) / x.shape[1] + 0.1 for p, q in ((x, x), (y, y), (x, y)))
    q = r = c = 0.0
    for a, d, e in zip(xx, yy, xy, strict=True):
        q, r, c = q + a, r + d, c + e
        norms = np.sqrt((1 + 2 * q) * (1 + 2 * r))
        q, r, c = (
            2 / np.pi * np.arcsin(np.clip(s, -1, 1))
            for s in (2 * q / (1 + 2 * q), 2 * r / (1 + 2 * r), 2 * c / norms)
        )
    return float(c)


@pytest.mark.parametrize("length", [1, 100, pytest.param(2000, marks=pytest.mark.slow)])
def test_the_last_state_of_a_long_sentence(length: int) -> None:
    x, y = rng.standard_normal((2, length, 3))
    limit = sys.getrecursionlimit()
    K = ns.kernel(last_state)([x, y])
    assert K[0, 1] == pytest.approx(by_hand(x, y), rel=1e-10)
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    "net",
    [
        pytest.param(ns.zoo.mlp(depth=1500), id="mlp"),
        pytest.param(ns.zoo.resnet(depth=1500, var_w=1e-3), id="resnet", marks=pytest.mark.slow),
    ],
)
def test_deep_networks(net: ns.Network) -> None:
    K = ns.kernel(net)(rng.standard_normal((2, 3)))
    assert np.all(np.isfinite(K))


def first_call(kind: str, length: int) -> np.ndarray:
    if kind == "sentence":
        return ns.kernel(last_state)(list(rng.standard_normal((2, length, 3))))
    return ns.kernel(ns.zoo.mlp(depth=length))(rng.standard_normal((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("measure", [calls, peak])
@pytest.mark.parametrize("kind", ["sentence", "layers"])
def test_cost_is_linear(kind: str, measure: Callable[[Callable[[], object]], int]) -> None:
    """Calls of functions and memory of plan and first call."""
    first_call(kind, 10)
    short, long = (measure(partial(first_call, kind, length)) for length in (1000, 10_000))
    assert np.log10(long / short) <= 1.1


@pytest.mark.slow
def test_five_thousand_nested_functions() -> None:
    text = "Input g :: G(n) ~ N(0, 1)\ny := " + "tanh(" * 5000 + "g" + ")" * 5000
    found = ns.limit(ns.parse(text)).moment("y", "y")
    nodes = (np.arange(200_001) - 100_000) / 10_000
    values = nodes.copy()
    for _ in range(5000):
        values = np.tanh(values)
    assert found == pytest.approx(np.exp(-(nodes**2) / 2) @ values**2 / np.sqrt(2 * np.pi) / 10_000, rel=1e-8)


@pytest.mark.slow
def test_a_gru_of_two_hundred_tokens() -> None:
    net, x = ns.zoo.gru(), [rng.standard_normal((200, 3))]
    found = ns.kernel(net, points=64, repeats=4).evaluate(x)
    assert found.value.shape == (200, 200)
    assert np.linalg.eigvalsh(found.value).min() > -1e-9
