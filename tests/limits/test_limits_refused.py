"""What has no limit is refused with the reason, by every method, and never returned as NaN or infinity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netsor as ns
from limit_cases import SEQUENCES, VECTORS, assert_agree
from netsor import zoo

TOKENS = SEQUENCES[0]
A = VECTORS[0]
Phi = Callable[[Any], Any]


def one_layer(phi: Phi) -> ns.Network:
    W, v = ns.Matrix(), ns.Matrix(rows=1)
    return ns.network(lambda x: v @ phi(W @ x))


def user(fn: Callable[[np.ndarray], np.ndarray]) -> Phi:
    return lambda h: ns.nonlin(fn, h)


def attended(scale: str | float) -> ns.Network:
    return one_layer(lambda h: ns.attention(h, h, h, scale=scale))


ZERO_DIVISORS: dict[str, tuple[ns.Network, list[Any]]] = {
    "layernorm of zero": (zoo.layernorm_mlp(1, var_b=0.0), [A, 0 * A]),
    "layernorm of zero, after relu": (one_layer(lambda h: ns.layernorm(ns.relu(h))), [0 * A]),
    "layernorm of a constant": (one_layer(lambda h: ns.layernorm(ns.cos(h - h))), [A]),
    "transformer of zero": (zoo.transformer(), [TOKENS, 0 * TOKENS]),
    "batchnorm of equal members": (zoo.batchnorm_mlp(1), [TOKENS[[0, 0, 0]]]),
    "batchnorm of equal members, tanh": (zoo.batchnorm_mlp(1, ns.tanh), [TOKENS[[0, 0, 0]]]),
    "batchnorm of equal members in the second batch": (zoo.batchnorm_mlp(1), [TOKENS, TOKENS[[1, 1, 1]]]),
    "batchnorm of one member": (zoo.batchnorm_mlp(1), [TOKENS[:1]]),
    "batchnorm of one member, tanh": (zoo.batchnorm_mlp(1, ns.tanh), [TOKENS[:1]]),
    "batchnorm of nothing": (zoo.batchnorm_mlp(1, var_w=0.0), [TOKENS]),
    "division by a mean of zero": (one_layer(lambda h: h / ns.mean(h)), [A]),
}
NOT_A_NUMBER: dict[str, tuple[ns.Network, list[Any]]] = {
    "root of a Gaussian": (one_layer(ns.sqrt), [A]),
    "logarithm of a Gaussian": (one_layer(ns.log), [A]),
    "logarithm of a Gaussian, then bounded": (one_layer(lambda h: ns.tanh(ns.log(h))), [A]),
    "user function with NaN": (one_layer(user(lambda t: np.where(t > 0.5, np.nan, t))), [A]),
    "user function with NaN far out": (one_layer(user(lambda t: np.where(t > 4.0, np.nan, t))), [A]),
    "user function with infinity": (one_layer(user(lambda t: np.where(t > 0.5, np.inf, t))), [A]),
    "root of a negative moment": (one_layer(lambda h: h * ns.sqrt(ns.mean(h * h) - 10)), [A]),
    "logarithm of a negative moment": (one_layer(lambda h: h * ns.log(ns.mean(h * h) - 10)), [A]),
}
INFINITE: dict[str, tuple[ns.Network, list[Any]]] = {
    "exp(x^2)": (one_layer(lambda h: ns.exp(h**2)), [A]),
    "exp(x^2) of the user": (one_layer(user(lambda t: np.exp(t * t))), [A]),
    "divergent logits": (attended("1/sqrt(n)"), [TOKENS]),
    "inputs too large for floating point": (zoo.mlp(1), [1e200 * A]),
    "an exponential too large for floating point": (one_layer(ns.exp), [1e3 * A]),
}
POLES: dict[str, tuple[ns.Network, list[Any]]] = {
    "1/x": (one_layer(lambda h: 1 / h), [A]),
    "1/x of the user": (one_layer(user(lambda t: 1 / np.where(t == 0, 1.0, t))), [A]),
    "1/x^2": (one_layer(lambda h: 1 / h**2), [A]),
    "1/(x - 1)": (one_layer(lambda h: 1 / (h - 1)), [A]),
}
REFUSED = ZERO_DIVISORS | NOT_A_NUMBER | INFINITE | POLES


def assert_refused(compute: Callable[[], Any]) -> None:
    with pytest.raises(ns.NetsorError) as raised:
        compute()
    assert raised.value.what
    assert raised.value.remedy, "it does not say why, or what to do"


@pytest.mark.parametrize(("net", "inputs"), REFUSED.values(), ids=REFUSED)
def test_no_limit(net: ns.Network, inputs: list[Any]) -> None:
    assert_refused(lambda: ns.kernel(net)(inputs))


@pytest.mark.parametrize("name", [n for n in REFUSED if n not in POLES and "far out" not in n])
def test_no_limit_by_sampling(name: str) -> None:
    """Poles, and what happens far out, are the exceptions: no sample is likely to meet them."""
    net, inputs = REFUSED[name]
    assert_refused(lambda: ns.kernel(net, method="sample", points=2**6)(inputs))


@pytest.mark.parametrize("name", ["layernorm of zero", "logarithm of a Gaussian", "batchnorm of one member"])
def test_no_limit_between_two_sets_and_on_the_diagonal(name: str) -> None:
    net, inputs = REFUSED[name]
    assert_refused(lambda: ns.kernel(net)(inputs, inputs))
    assert_refused(lambda: ns.kernel(net).diag(inputs))


PROGRAM = """
Input g :: G(n) ~ N(0, 1)
Input W :: A(n, n) ~ N(0, 1/n)
c := Moment(g)
x := {}
h := MatMul(W, x)
"""


@pytest.mark.parametrize("body", ["log(g)", "1/g", "g/c", "g*sqrt(c - 1)"])
def test_no_limit_of_a_variable(body: str) -> None:
    """mu, Sigma and moments of single variables are refused in the same way."""
    limit = ns.limit(ns.parse(PROGRAM.format(body)))
    assert_refused(lambda: limit.sigma("h"))
    assert_refused(lambda: limit.moment("x", "x"))


def test_the_rest_of_a_program_without_a_limit() -> None:
    """Only what depends on the bad variable is refused."""
    limit = ns.limit(ns.parse(PROGRAM.format("log(g)")))
    assert limit.sigma("g") == 1.0
    assert limit.scalar("c") == 0.0


# What looks like it but has a limit


def test_normalisations_with_eps() -> None:
    """Nothing is divided by zero: equal members become 0, and so does a zero vector."""
    eps = 1e-3
    norm = one_layer(lambda h: ns.layernorm(h, eps=eps))
    q = A @ A / 4
    found = ns.kernel(norm).evaluate([A, 0 * A])
    np.testing.assert_allclose(found.value, [[q / (q + eps), 0], [0, 0]], rtol=1e-12, atol=1e-15)
    batch = ns.kernel(one_layer(lambda h: ns.tanh(ns.batchnorm(h, eps=eps)))).evaluate([TOKENS[[0, 0, 0]]])
    np.testing.assert_allclose(batch.value, np.zeros((3, 3)), rtol=0, atol=1e-12)


def test_attention_with_huge_logits_chooses_one_token() -> None:
    """Softmax at any number times q.k/n is a C-var: here all weight is on the token of largest q.k."""
    found = ns.kernel(attended(1e6)).evaluate([TOKENS])
    gram = TOKENS @ TOKENS.T / 3
    chosen = np.argmax(gram, axis=1)
    assert_agree(found, gram[np.ix_(chosen, chosen)])


def right_or_refused(phi: Phi, wanted: float) -> None:
    try:
        found = ns.kernel(one_layer(phi)).evaluate([A])
    except ns.NetsorError:
        return
    assert_agree(found, [[wanted]])
    assert np.all(found.error < 5e-2 * abs(wanted))


def test_poles_that_can_be_integrated() -> None:
    """log |z| has mean log(s) - (Euler + log 2) / 2 and variance pi^2 / 8; E |z|^(-2/5) is a Gamma function.

    Both have a limit. To refuse them is allowed, a NaN or a wrong number is not.
    """
    q = A @ A / 4
    mean = np.log(q) / 2 - (np.euler_gamma + np.log(2)) / 2
    right_or_refused(lambda h: ns.log(ns.abs(h)), mean**2 + np.pi**2 / 8)
    gamma_of_three_tenths = 2.9915689876875904
    wanted = (2 * q) ** -0.2 * gamma_of_three_tenths / np.sqrt(np.pi)
    right_or_refused(user(lambda t: np.abs(np.where(t == 0, 1.0, t)) ** -0.2), wanted)
