"""Dropout and noise: limits against simulations in plain NumPy and in netsor, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns

RNG = np.random.default_rng(3)
VECTORS = RNG.standard_normal((3, 4))
KEEP = 0.6


def network(**options):
    W, U, v = ns.Matrix(2.0), ns.Matrix(1.5), ns.Matrix(rows=1)
    first, second = ns.Dropout(KEEP), ns.Dropout(0.8)

    @ns.network
    def net(x):
        return v @ second(ns.relu(W @ first(ns.erf(U @ x))))

    return net


def plain_kernel(x, width, samples):
    """The kernel of random networks given their bodies, one after the other, with nothing of netsor."""
    rng, found, n = np.random.default_rng(0), [], width
    erf = np.vectorize(__import__("math").erf)
    for _ in range(samples):
        U = rng.standard_normal((n, x.shape[1])) * np.sqrt(1.5 / x.shape[1])
        W = rng.standard_normal((n, n)) * np.sqrt(2.0 / n)
        h = erf(x @ U.T)
        h = h * (rng.random(h.shape) < KEEP) / KEEP
        h = np.maximum(h @ W.T, 0)
        h = h * (rng.random(h.shape) < 0.8) / 0.8
        found.append(h @ h.T / n)
    return np.array(found)


def assert_simulated(kernel, draws):
    mean, error = draws.mean(0), draws.std(0, ddof=1) / np.sqrt(len(draws))
    assert np.abs((kernel - mean) / error).max() < 4.5


def test_equal_inputs_have_masks_of_their_own():
    x = np.concatenate([VECTORS, VECTORS[:1]])
    net = network()
    kernel = ns.kernel(net)(x)
    assert_simulated(kernel, plain_kernel(x, 300, 60))
    assert_simulated(kernel, ns.empirical_kernel(net, x, 300, 60, seed=0))
    assert kernel[0, 3] < 0.9 * kernel[0, 0] == pytest.approx(0.9 * kernel[3, 3], rel=1e-12)


def test_other_inputs_do_not_know_of_it():
    net, K = network(), ns.kernel(network())
    np.testing.assert_allclose(K(VECTORS, VECTORS)[0, 1:], K(VECTORS)[0, 1:], rtol=1e-13)
    np.testing.assert_allclose(K.diag(VECTORS), np.diag(K(VECTORS)), rtol=1e-13)
    assert_simulated(ns.kernel(net)(VECTORS), ns.empirical_kernel(net, VECTORS, 300, 60, seed=1))


def pixels():
    conv, mix, drop, v = ns.Conv2d(2, padding="circular"), ns.Conv2d(2), ns.Dropout(KEEP), ns.Matrix(rows=1)
    return ns.network(lambda x: v @ ns.global_mean_pool(ns.relu(mix(drop(ns.relu(conv(x)))))))


def tokens():
    cell, drop, v = ns.RNNCell(), ns.Dropout(KEEP), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        state, states = 0, []
        for token in x:
            state = drop(cell(state, token))
            states.append(state)
        return v @ ns.stack(states)

    return net


def inside():
    W, U, v, drop = ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1), ns.Dropout(KEEP)
    return ns.network(lambda x: v @ ns.tanh(W @ ns.tanh(drop(U @ x))))  # a function of two variables


def gaussian():
    W, v, noise = ns.Matrix(), ns.Matrix(rows=1), ns.Vector(0.5, 0.2, each=True)
    return ns.network(lambda x: v @ ns.relu(W @ x + noise))


def biased():
    W, v, bias = ns.Matrix(), ns.Matrix(rows=1), ns.Vector(0.4, 0.1)
    noise = ns.Vector(0.5, 0.2, each=True)
    return ns.network(lambda x: v @ ns.relu(W @ x + bias + noise))


def masked_and_biased():
    W, v, bias, drop = ns.Matrix(), ns.Matrix(rows=1), ns.Vector(0.4, 0.1), ns.Dropout(KEEP)
    return ns.network(lambda x: v @ ns.sigmoid(drop(W @ x) + bias))


CASES = {
    "pixels": (pixels, RNG.standard_normal((3, 3, 2, 2))),
    "tokens": (tokens, [RNG.standard_normal((3, 2)), RNG.standard_normal((2, 2))]),
    "inside": (inside, VECTORS),
    "gaussian": (gaussian, VECTORS),
    "biased": (biased, VECTORS),  # the covariance of the noise was taken for that of noise and bias
    "masked_and_biased": (masked_and_biased, VECTORS),
}


@pytest.mark.parametrize("name", CASES)
def test_limit_and_simulation(name):
    make, x = CASES[name]
    net = make()
    found = ns.kernel(net, method="sample" if name == "inside" else "auto", seed=0).evaluate(x)
    draws = ns.empirical_kernel(net, x, 400, 60, seed=0)
    mean, error = draws.mean(0), draws.std(0, ddof=1) / np.sqrt(len(draws))
    assert np.abs((found.value - mean) / np.hypot(error, found.error)).max() < 4.5


@pytest.mark.parametrize("name", ["pixels", "gaussian", "biased", "masked_and_biased"])
def test_all_sampled_is_the_same(name):
    make, x = CASES[name]
    net = make()
    exact = ns.kernel(net)(x)
    sampled = ns.kernel(net, method="sample", seed=0).evaluate(x)
    assert np.abs((sampled.value - exact) / sampled.error).max() < 6


def over_masks(f, g, x, shared):
    """E[f(m h) g(m' h')] of two inputs: all masks, with quadrature over h and h' for each."""
    nodes = np.linspace(-9, 9, 401)
    weights = np.exp(-(nodes**2) / 2)
    weights /= weights.sum()
    root = np.linalg.cholesky(x @ x.T / x.shape[1] + 1e-14 * np.eye(2))
    h = root[0, 0] * nodes[:, None] + 0 * nodes
    k = root[1, 0] * nodes[:, None] + root[1, 1] * nodes
    total, chances = 0.0, (1 - KEEP, KEEP)
    for m in (0, 1):
        for n in (m,) if shared else (0, 1):
            chance = chances[m] * (1.0 if shared else chances[n])
            total += chance * (weights @ (f(m, h * m / KEEP) * g(n, k * n / KEEP)) @ weights)
    return total


SMOOTH = {
    "sigmoid": (ns.sigmoid, lambda z: 1 / (1 + np.exp(-z)), lambda z: np.exp(-z) / (1 + np.exp(-z)) ** 2),
    "tanh": (ns.tanh, np.tanh, lambda z: 1 / np.cosh(z) ** 2),
    "quotient": (lambda h: h / (1 + h * h), lambda z: z / (1 + z**2), lambda z: (1 - z**2) / (1 + z**2) ** 2),
    "user": (
        lambda h: ns.nonlin(lambda z: np.cos(z) + 0.1, h),
        lambda z: np.cos(z) + 0.1,
        lambda z: -np.sin(z),
    ),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_functions_of_masked_vectors_are_exact(name):
    """phi(m h) is m phi(h) + (1 - m) phi(0)."""
    phi, value, slope = SMOOTH[name]
    W, v, drop = ns.Matrix(), ns.Matrix(rows=1), ns.Dropout(KEEP)
    net, x = ns.network(lambda x: v @ phi(drop(W @ x))), 0.5 * VECTORS[:2]
    found = ns.ntk(net).evaluate(x)
    assert found.plan.exact
    for i, j in ((0, 0), (0, 1)):
        both = x[[i, j]]
        kernel = over_masks(lambda m, z: value(z), lambda m, z: value(z), both, i == j)
        slopes = over_masks(lambda m, z: m * slope(z), lambda m, z: m * slope(z), both, i == j) / KEEP**2
        theta = kernel + slopes * (both[0] @ both[1]) / x.shape[1]
        assert ns.kernel(net)(x)[i, j] == pytest.approx(kernel, rel=1e-9)
        assert found.value[i, j] == pytest.approx(theta, rel=1e-9)


def test_masks_pass_relu():
    W, v, drop = ns.Matrix(2.0), ns.Matrix(rows=1), ns.Dropout(KEEP)
    before, after = (
        ns.network(f) for f in (lambda x: v @ ns.relu(drop(W @ x)), lambda x: v @ drop(ns.relu(W @ x)))
    )
    for make in (ns.kernel, ns.ntk):
        np.testing.assert_allclose(make(before)(VECTORS), make(after)(VECTORS), rtol=1e-13)


def test_many_masks_are_sampled():
    """Each mask doubles the terms of a function: beyond a few of them they stay inside."""
    matrices, v = [ns.Matrix() for _ in range(4)], ns.Matrix(rows=1)
    drops = [ns.Dropout(KEEP) for _ in matrices]
    net = ns.network(lambda x: v @ ns.tanh(sum(d(W @ x) for d, W in zip(drops, matrices, strict=True))))
    found = ns.kernel(net, seed=0).evaluate(VECTORS[:2])
    assert not found.plan.exact
    assert_simulated(found.value, ns.empirical_kernel(net, VECTORS[:2], 300, 60, seed=0))


def test_noise_by_hand():
    """relu(h + noise), whose arguments have means: E by quadrature over two variables."""
    x = VECTORS[:2]
    q, c = (x**2).mean(1), (x[0] * x[1]).mean()
    nodes = np.linspace(-8, 8, 1601)  # the error of a sum over kinks is about the square of the step
    weights = np.exp(-(nodes**2) / 2)
    weights /= weights.sum()
    one = np.maximum(np.sqrt(q[0] + 0.5) * nodes + 0.2, 0)
    found = ns.kernel(gaussian())(x)
    assert found[0, 0] == pytest.approx(weights @ one**2, rel=1e-4)
    root = np.linalg.cholesky(np.array([[q[0] + 0.5, c], [c, q[1] + 0.5]]))
    a = np.maximum(root[0, 0] * nodes[:, None] + 0.2, 0)
    b = np.maximum(root[1, 0] * nodes[:, None] + root[1, 1] * nodes + 0.2, 0)
    assert found[0, 1] == pytest.approx(weights @ (a * b) @ weights, rel=1e-4)


def test_tangent_kernel():
    net = network()
    draws = ns.empirical_ntk(net, VECTORS, 200, 60, seed=0)
    assert_simulated(ns.ntk(net)(VECTORS), draws)


def test_text():
    program = ns.program(network(), VECTORS[0])
    assert ns.parse(program.show()) == program
    assert program.show().count(" each") == 2


def test_under_jax():
    jax = pytest.importorskip("jax")
    make, x = CASES["pixels"]
    K = ns.kernel(make())
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        np.testing.assert_allclose(jax.jit(K)(jax.numpy.asarray(x)), K(x), rtol=1e-10)
