"""Limits with means, covariances and widths of all kinds: hand formulas, the oracle and finite widths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netsor as ns
from brute_force import arc_cosine, mean_of, pair_moments
from limit_cases import SEQUENCES, VECTORS, assert_agree, scale_of
from oracle_answers import oracle

TOKENS = SEQUENCES[0]
A, B = VECTORS[0], VECTORS[1]
GRAM = VECTORS @ VECTORS.T / 4
Phi = Callable[[Any], Any]


def against_oracle(net: ns.Network, inputs: list[Any], samples: int = 2**13) -> None:
    found = ns.kernel(net).evaluate(inputs)
    wanted = oracle(ns.program(net, *inputs), samples=samples)
    assert_agree(found, wanted.kernel, wanted.error.kernel)


def relu(z: np.ndarray) -> np.ndarray:
    return np.maximum(z, 0)


# Means and covariances of inputs


@pytest.mark.parametrize("var", [0.5, 0.0])
@pytest.mark.parametrize("phi", [ns.relu, ns.tanh], ids=lambda phi: phi.name)
def test_biases_with_a_mean(phi: Phi, var: float) -> None:
    b, W1, W2, v = ns.Vector(var, mean=-0.7), ns.Matrix(), ns.Matrix(1.5), ns.Matrix(rows=1)
    against_oracle(ns.network(lambda x: v @ phi(W2 @ phi(W1 @ x + b) + b)), [A, B])


def rectified(cov: np.ndarray, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """E relu(z) relu(z') for all pairs and E relu(z), for z ~ N(mean, cov)."""
    tops = [mean_of(relu, mean, q, [0.0]) for q in np.diag(cov)]
    return pair_moments(relu, cov, mean, [0.0]), np.array(tops)


def test_residual_network_with_means() -> None:
    """x + relu(W x + b) with E x = 0.6 and E b = -0.4: the cross terms E[x] E[relu'] do not vanish.

    W x has covariance E[x x'], uncentred; after a block E x has grown by E relu.
    """
    U, W1, W2, v = ns.Matrix(), ns.Matrix(0.5), ns.Matrix(0.8), ns.Matrix(rows=1)
    a, b1, b2 = ns.Vector(0.2, mean=0.6), ns.Vector(0.3, mean=-0.4), ns.Vector(0.3, mean=-0.4)

    @ns.network
    def net(x):
        x = U @ x + a
        x = x + ns.relu(W1 @ x + b1)
        return v @ (x + ns.relu(W2 @ x + b2))

    second, first = GRAM + 0.2 + 0.6**2, np.full(3, 0.6)  # E[x x'] and E[x]
    for var in (0.5, 0.8):
        pairs, tops = rectified(var * second + 0.3, -0.4)
        cross = np.outer(first, tops)
        second, first = second + cross + cross.T + pairs, first + tops
    found = ns.kernel(net).evaluate(VECTORS)
    np.testing.assert_allclose(found.value, second, rtol=1e-11)
    assert np.all(found.error <= 1e-9 * second)


def test_dense_sums_with_means() -> None:
    """W (x1 + x2) reads the sum of all earlier layers: E[(x1 + x2)(x1' + x2')] has E[x1] E[x2'] in it."""
    W, v = [ns.Matrix(var) for var in (1.0, 0.7, 0.4)], ns.Matrix(rows=1)
    b = [ns.Vector(0.3, mean=0.5) for _ in W]

    @ns.network
    def net(x):
        first = ns.relu(W[0] @ x + b[0])
        second = ns.relu(W[1] @ first + b[1])
        return v @ ns.relu(W[2] @ (first + second) + b[2])

    one, top_one = rectified(GRAM + 0.3, 0.5)
    two, top_two = rectified(0.7 * one + 0.3, 0.5)
    cross = np.outer(top_one, top_two)
    wanted, _ = rectified(0.4 * (one + two + cross + cross.T) + 0.3, 0.5)
    np.testing.assert_allclose(ns.kernel(net)(VECTORS), wanted, rtol=1e-11)


def test_one_bias_in_all_blocks() -> None:
    """Then the state and its next update are dependent through the bias as well."""
    U, W1, W2, v = ns.Matrix(), ns.Matrix(0.5), ns.Matrix(0.8), ns.Matrix(rows=1)
    b = ns.Vector(0.3, mean=-0.4)

    @ns.network
    def net(x):
        x = U @ x + b
        for W in (W1, W2):
            x = x + ns.tanh(W @ x + b)
        return v @ x

    against_oracle(net, [A, B], 2**15)


def test_a_vector_with_a_covariance_matrix() -> None:
    cov = np.array([[1.0, 0.5, 0.2], [0.5, 2.0, -0.3], [0.2, -0.3, 0.7]])
    W, v = ns.Matrix(), ns.Matrix(rows=1)
    for matrix in (cov, np.ones((3, 3)), np.zeros((3, 3))):
        b = ns.Vector(matrix, mean=np.array([0.1, -0.2, 0.3]))
        against_oracle(ns.network(lambda x, b=b: v @ ns.tanh(W @ x + b)), [TOKENS])
        against_oracle(ns.network(lambda x, b=b: v @ (ns.relu(W @ x) * b)), [TOKENS[:, :1]])


CORRELATED = """
Input g :: G(n)[2] ~ N([0.5, -1], {cov})
Input h :: G(n) ~ N(0.2, 1, g: [{first}, {second}])
Input W :: A(n, n) ~ N(0, 2/n)
Input v :: G(n) ~ N(0, 1)
x := relu(g[0])*tanh(h) + g[1]
m := MatMul(W, x)
y := relu(m + h)
Output v^T y / sqrt(n)
"""


@pytest.mark.parametrize(
    ("cov", "cross"),
    [
        ([[1.0, 0.3], [0.3, 2.0]], [0.5, -0.4]),
        ([[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0]),  # one vector, three times
        ([[1.0, -1.0], [-1.0, 1.0]], [0.5, -0.5]),
        ([[0.0, 0.0], [0.0, 4.0]], [0.0, 2.0]),
    ],
    ids=["regular", "equal", "opposite", "constant"],
)
def test_inputs_with_any_joint_covariance(cov: list[list[float]], cross: list[float]) -> None:
    program = ns.parse(CORRELATED.format(cov=cov, first=cross[0], second=cross[1]))
    found, wanted = ns.limit(program).kernel(), oracle(program, samples=2**13)
    assert_agree(found, wanted.kernel, wanted.error.kernel)


# Several widths


def test_two_widths() -> None:
    """The kernel of two readouts over different widths is a sum; a matrix between widths has its own."""
    U, W, r, v = ns.Matrix(rows="n1"), ns.Matrix(1.3, rows="n2"), ns.Matrix(0.5, rows=1), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        near = ns.tanh(U @ x)
        return r @ near + v @ ns.relu(W @ near)

    inner = pair_moments(np.tanh, GRAM)
    np.testing.assert_allclose(ns.kernel(net)(VECTORS), 0.5 * inner + arc_cosine(1.3 * inner), rtol=1e-11)
    widths = {"n1": 300, "n2": 100}
    kernels = ns.empirical_kernel(net, VECTORS, widths, 200, seed=0)
    spread = kernels.std(0, ddof=1) / np.sqrt(200)
    gap = np.abs(kernels.mean(0) - 0.5 * inner - arc_cosine(1.3 * inner))
    assert np.all(gap <= 5 * spread + 0.01 * scale_of(inner))


def test_there_and_back_through_a_narrower_width() -> None:
    """Three widths, moments over two of them, and a bias of each."""
    down, up = ns.Matrix(rows="k"), ns.Matrix(2.0, rows="n", cols="k")
    U, v, b = ns.Matrix(rows="n"), ns.Matrix(rows=1), ns.Vector(0.3, mean=0.2, width="k")

    @ns.network
    def net(x):
        wide = ns.relu(U @ x)
        narrow = ns.layernorm(down @ wide) + b
        return v @ (ns.tanh(up @ narrow) + wide / ns.sqrt(ns.mean(wide * wide)))

    against_oracle(net, [A, B])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_later_calls_read_arrays_as_the_first_one(count: int) -> None:
    """One input and several, one set and two, rows and columns first, whole numbers, and single ones."""
    images = np.random.default_rng(count).standard_normal((2 * count, 4, 5, 2))
    K = ns.kernel(ns.zoo.cnn(1))
    K(images[:count]), K(images[:count], images[count:])
    for x in (images, np.asfortranarray(images), images.round().astype(int), images.astype(np.float32)):
        first, second = x[:count], x[count:]
        new = ns.kernel(ns.zoo.cnn(1))
        np.testing.assert_allclose(K(first), new(list(first)), rtol=1e-13)
        np.testing.assert_allclose(K(first, second), new(list(first), list(second)), rtol=1e-13)
    with pytest.raises(ns.NetsorError, match="NaN"):
        K(np.where(images[:count] == images[0, 0, 0, 0], np.nan, images[:count]))
