"""Products over two variables of each of two inputs: which way they are taken, and how often."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import netsor as ns
from netsor.limits.methods import quadrature

X = np.random.default_rng(0).standard_normal((3, 4))


def network(body: Callable, mean: float = 0.0) -> ns.Network:
    U, V, v = ns.Matrix(2.0), ns.Matrix(1.0), ns.Matrix(1.0, rows=1)
    bias = ns.Vector(0.3, mean)

    @ns.network
    def net(x):
        return v @ ns.tanh(body(U @ x + bias if mean else U @ x, V @ x))

    return net


@pytest.mark.parametrize(
    "body",
    [
        lambda a, b: ns.tanh(a) * ns.erf(b),
        lambda a, b: ns.relu(a) * ns.tanh(b),
        lambda a, b: ns.maximum(a, b),
    ],
)
def test_they_are_exact_and_agree_with_samples(body: Callable) -> None:
    found = ns.kernel(network(body)).evaluate(X)
    sampled = ns.kernel(network(body), method="sample", seed=1, points=4096).evaluate(X)
    assert found.error.max() <= 1e-8
    assert np.all(np.abs(found.value - sampled.value) <= 5 * (found.error + sampled.error))


@pytest.mark.parametrize("mean", [0.0, 1.5])
@pytest.mark.parametrize("body", [lambda a, b: ns.relu(a) * ns.tanh(b), lambda a, b: ns.maximum(a, b)])
def test_equal_opposite_zero_tiny_and_large_inputs(body: Callable, mean: float) -> None:
    x = np.stack([X[0], X[0], -X[0], 0 * X[0], 1e-6 * X[0], 30 * X[0]])
    found = ns.kernel(network(body, mean)).evaluate(x)
    sampled = ns.kernel(network(body, mean), method="sample", seed=1, points=4096).evaluate(x)
    assert found.plan.exact
    assert np.all(np.abs(found.value - sampled.value) <= 5 * (found.error + sampled.error))
    assert np.all(np.abs(found.value[0] - found.value[1]) <= found.error[0] + found.error[1])


def test_equal_entries_are_integrated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    integrate = quadrature.Product.expectation

    def counted(self, mean, cov):
        taken.append(len(mean))
        return integrate(self, mean, cov)

    monkeypatch.setattr(quadrature.Product, "expectation", counted)
    K = ns.kernel(network(lambda a, b: ns.tanh(a) * ns.erf(b)))
    K.evaluate(X[[0, 1, 0]])
    assert sum(taken) <= 2 + 4  # inputs with themselves, and pairs
    first = sum(taken)
    K.evaluate(X[[0, 1, 0]])
    assert sum(taken) == first


@pytest.mark.parametrize(
    ("body", "exact"),
    [
        (lambda a, b: ns.maximum(ns.tanh(a), b), False),
        (lambda a, b: ns.sign(ns.sin(a) - b), False),
        (lambda a, b: ns.maximum(ns.relu(a), 1 - b), True),
    ],
)
def test_kinks_on_curves_are_sampled_and_the_plan_says_so(body: Callable, exact: bool) -> None:
    K = ns.kernel(network(body))
    assert K.plan(X).exact is exact
    assert K.evaluate(X).plan.exact is exact


def test_errors_do_not_cancel_where_a_program_subtracts(monkeypatch: pytest.MonkeyPatch) -> None:
    """E[(a_0 - a_1) (a_0' - a_1')] of expectations that are all too large, or too small, by 1e-4."""
    U, V, v = ns.Matrix(2.0), ns.Matrix(1.0), ns.Matrix(1.0, rows=1)

    @ns.network
    def difference(tokens):
        a = ns.tanh(ns.tanh(U @ tokens) * ns.erf(V @ tokens))
        return v @ (a[0] - a[1])

    integrate, rng = quadrature.Product.expectation, np.random.default_rng(0)
    tokens = np.random.default_rng(1).standard_normal((3, 2, 4))
    wanted = ns.kernel(difference)(tokens)

    def rough(self, mean, cov):
        value, error = integrate(self, mean, cov)
        return value + 1e-4 * rng.choice([-1.0, 1.0], len(value)), error + 1e-4

    monkeypatch.setattr(quadrature.Product, "expectation", rough)
    found = ns.kernel(difference).evaluate(tokens)
    off = np.abs(found.value - wanted)
    assert off.max() > 1e-5
    assert np.all(off <= 2 * found.error)
    assert found.error.max() < 1e-2
