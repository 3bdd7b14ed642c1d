"""Sums that are much smaller than their terms: the rounding of these is part of the error.

Kernels in single precision are compared with those in double precision, whose rounding is 5e8 times smaller.
"""

from collections.abc import Callable

import numpy as np
import pytest

import netsor as ns

U, W, v = ns.Matrix(1.5), ns.Matrix(1.0), ns.Matrix(1.0, rows=1)


def difference(phi: Callable) -> ns.Network:
    @ns.network
    def net(tokens):
        a = phi(U @ tokens)
        return v @ (a[0] - a[1])

    return net


def centred(phi: Callable) -> ns.Network:
    @ns.network
    def net(tokens):
        a = phi(U @ tokens)
        return v @ (a[0] - ns.mean(a, axis=0))

    return net


def above_a_difference(phi: Callable) -> ns.Network:
    @ns.network
    def net(tokens):
        a = phi(U @ tokens)
        return v @ phi(W @ (a[0] - a[1]))

    return net


def pooled(phi: Callable) -> ns.Network:
    @ns.network
    def net(tokens):
        return v @ ns.mean(phi(U @ tokens), axis=0)

    return net


def normalised(phi: Callable) -> ns.Network:
    """Its variance is the difference of two numbers that are a thousand times larger."""
    b = ns.Vector(0.1, mean=30.0)

    @ns.network
    def net(tokens):
        return v @ phi(W @ ns.layernorm(ns.relu(U @ tokens[0] + b)))

    return net


def sentences(seed: int, sign: float = 1.0) -> np.ndarray:
    """Six of three tokens that differ from each other by 1e-5 to 1 of their length; one has another sign."""
    rng = np.random.default_rng(seed)
    base, sizes = rng.standard_normal((1, 1, 6)), 10.0 ** rng.uniform(-5, 0, (6, 1, 1))
    return (base + sizes * rng.standard_normal((6, 3, 6))) * np.array([1.0, 1.0, sign])[:, None]


@pytest.mark.parametrize("kernel", [ns.kernel, ns.ntk], ids=["nngp", "ntk"])
@pytest.mark.parametrize("phi", [ns.relu, ns.tanh, ns.erf, ns.exp, ns.step], ids=str)
@pytest.mark.parametrize("make", [difference, centred, above_a_difference, pooled, normalised])
def test_rounding_of_terms_counts(make: Callable, phi: Callable, kernel: Callable) -> None:
    shares, net = [], make(phi)
    for seed in range(4):
        x = sentences(seed, -1.0 if make is pooled else 1.0)
        found = kernel(net, dtype="float32").evaluate(x)
        shares.append(np.abs(found.value - kernel(net)(x)) / found.error)
    rough = (
        make is above_a_difference and phi is ns.step
    )  # c and its rounding are of one size, and below a root
    assert np.max(shares) <= (3 if rough else 1)
    assert np.mean(np.array(shares) <= 1) >= 0.98


def hinges(a: np.ndarray, b: np.ndarray, cov: np.ndarray) -> np.ndarray:
    """E[relu(x) relu(y)] from variances and covariance (Cho and Saul 2009)."""
    root = np.sqrt(a * b)
    c = np.clip(cov / root, -1, 1)
    return root / (2 * PI) * (np.sqrt((1 - c) * (1 + c)) + c * (PI - np.arccos(c)))


PI = np.longdouble("3.14159265358979323846264338327950288")


@pytest.mark.skipif(bool(np.finfo(np.longdouble).eps > 1e-18), reason="long doubles have no more digits here")
@pytest.mark.parametrize("length", [1.0, None])
@pytest.mark.parametrize("gap", [1e-6, 1e-7, 3e-8, 1e-8, 5e-9])
def test_tokens_that_differ_by_less_than_their_rounding(gap: float, length: float | None) -> None:
    """Their products may be equal to the last digit, and are not equal: against more digits."""
    shares = []
    for seed in range(8):
        base, way, other = np.random.default_rng(seed).standard_normal((3, 6))
        way -= (way @ base) / (base @ base) * base
        x = np.array([[base, base + gap * way], [base, other]])
        if length:  # all tokens on a sphere: their lengths do not tell them apart
            x *= length / np.linalg.norm(x, axis=-1, keepdims=True)
        found = ns.kernel(above_a_difference(ns.relu)).evaluate(x)
        tokens = x.reshape(4, 6).astype(np.longdouble)
        first = 1.5 * np.sum(tokens[:, None] * tokens, axis=-1) / 6
        q = np.diagonal(first)
        second = hinges(q[:, None], q, first).reshape(2, 2, 2, 2)
        differences = second[:, 0, :, 0] - second[:, 0, :, 1] - second[:, 1, :, 0] + second[:, 1, :, 1]
        q = np.diagonal(differences)
        shares.append(np.abs(found.value - hinges(q[:, None], q, differences)) / found.error)
    assert np.max(shares) <= 1


@pytest.mark.parametrize("gap", [1e-9, 1e-10, 1e-12, 1e-14])
def test_tokens_that_are_nearly_equal(gap: float) -> None:
    """E (relu(x) - relu(y))^2 is half of the variance of x - y then; that of equal ones is known to be 0."""
    base, way = np.random.default_rng(0).standard_normal((2, 6))
    token = base + gap * way
    found = ns.kernel(above_a_difference(ns.relu)).evaluate([[base, token], [base, base]])
    wanted = 1.5 * np.sum((token - base) ** 2) / 6 / 4
    assert abs(found.value[0, 0] - wanted) <= found.error[0, 0] + 10 * gap * wanted
    assert found.error[0, 0] < 1e-13
    assert found.value[1, 1] == found.error[1, 1] == 0


def test_what_cancels_to_nothing_has_an_error() -> None:
    """Tokens that are equal but for rounding: the kernel is 0, and nobody can say so from its terms."""
    x = np.random.default_rng(0).standard_normal((3, 1, 5)) * np.array([1.0, 1.0 + 1e-15])[:, None]
    found = ns.kernel(difference(ns.relu)).evaluate(x)
    assert np.all(np.abs(found.value) <= found.error)
    assert 0 < found.error.max() < 1e-13


def test_programs_whose_sums_are_independent_are_run_once() -> None:
    """A bias, a residual: their variances add up, and the allowance for rounding is enough."""
    h = np.random.default_rng(0).standard_normal((4, 3))
    assert ns.kernel(ns.zoo.mlp(3)).evaluate(h).bound.more is None
    assert ns.kernel(ns.zoo.resnet(2)).evaluate(h).bound.more is None
