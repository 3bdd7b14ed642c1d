"""Layers at finite width against plain NumPy: equal with equal weights, and the limit within its error.

The plain networks below know nothing of netsor: they are loops over pixels, heads and channels.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import netsor as ns

RNG = np.random.default_rng(11)
LINE, IMAGE = RNG.standard_normal((2, 5, 2)), RNG.standard_normal((2, 4, 3, 2))
TOKENS = RNG.standard_normal((2, 3, 4))


def relu(x):
    return np.maximum(x, 0)


def assert_limit(net, x, draws, most=4.5):
    """The kernel is the mean of simulated kernels within their standard errors, and its own."""
    found = ns.kernel(net, seed=0).evaluate(x)
    mean, error = draws.mean(0), draws.std(0, ddof=1) / np.sqrt(len(draws))
    assert np.all(np.abs(found.value - mean) <= most * np.hypot(error, found.error))
    assert error.max() < 0.1 * np.abs(mean).max()


def kernels(features, samples=60):
    """h.h'/n of networks that give features (rows, n) for each generator."""
    made = (features(np.random.default_rng(seed)) for seed in range(samples))
    return np.array([h @ h.T / h.shape[1] for h in made])


def places(size, kernel, stride, dilation):
    """(output, kernel position) -> input position of a convolution with "same" padding, or None."""
    count, reach = -(-size // stride), dilation * (kernel - 1) + 1
    left = max((count - 1) * stride + reach - size, 0) // 2
    table = [[o * stride + j * dilation - left for j in range(kernel)] for o in range(count)]
    return [[i if 0 <= i < size else None for i in row] for row in table]


def test_depthwise_convolution():
    n = 500
    U, out, v = ns.Matrix(), ns.Matrix(2.0), ns.Matrix(rows=1)
    conv = ns.Conv1d(3, 2, 2, depthwise=True, var_w=1.5, var_b=0.2)
    net = ns.network(lambda x: v @ ns.relu(out @ conv(ns.relu(U @ x))))

    def features(rng):
        U, W = rng.standard_normal((n, 2)) / np.sqrt(2), rng.standard_normal((n, n)) * np.sqrt(2 / n)
        w, b = rng.standard_normal((3, n)) * np.sqrt(1.5 / 3), rng.standard_normal(n) * np.sqrt(0.2)
        rows = []
        for x in LINE:
            h = relu(x @ U.T)
            for seen in places(len(x), 3, 2, 2):
                total = b + sum(w[j] * h[i] for j, i in enumerate(seen) if i is not None)
                rows.append(relu(W @ total))
        return np.array(rows)

    assert_limit(net, LINE, kernels(features))


def test_local_convolution_has_matrices_for_every_place():
    n = 250
    conv, v = ns.Conv1d(3, local=5, var_w=1.5, var_b=0.2), ns.Matrix(rows=1)
    body = ns.Conv1d(2, padding="valid", local=4)
    net = ns.network(lambda x: v @ ns.relu(body(ns.relu(conv(x)))))
    assert ns.parse(ns.program(net, LINE[0]).show()) == ns.program(net, LINE[0])

    def features(rng):
        first = rng.standard_normal((5, 3, n, 2)) * np.sqrt(1.5 / 6)
        bias, second = (
            rng.standard_normal((5, n)) * np.sqrt(0.2),
            rng.standard_normal((4, 2, n, n)) / np.sqrt(2 * n),
        )
        rows = []
        for x in LINE:
            seen = places(5, 3, 1, 1)
            h = [
                relu(bias[o] + sum(first[o, j] @ x[i] for j, i in enumerate(seen[o]) if i is not None))
                for o in range(5)
            ]
            rows += [relu(second[o, 0] @ h[o] + second[o, 1] @ h[o + 1]) for o in range(4)]
        return np.array(rows)

    assert_limit(net, LINE, kernels(features, 40))


def test_transposed_convolution_as_in_pytorch():
    """Input i adds to the outputs i stride + j dilation - padding."""
    n = 250
    conv, v = ns.Conv1d(3, 2, 2, padding=1, transposed=True, var_w=1.5), ns.Matrix(rows=1)
    U = ns.Matrix()
    net = ns.network(lambda x: v @ ns.relu(conv(ns.relu(U @ x))))
    size = (5 - 1) * 2 + 2 * (3 - 1) + 1 - 2 * 1

    def features(rng):
        U, W = rng.standard_normal((n, 2)) / np.sqrt(2), rng.standard_normal((3, n, n)) * np.sqrt(1.5 / 3 / n)
        rows = []
        for x in LINE:
            h, total = relu(x @ U.T), np.zeros((size, n))
            for i in range(5):
                for j in range(3):
                    o = 2 * i + 2 * j - 1
                    if 0 <= o < size:
                        total[o] += W[j] @ h[i]
            rows += list(relu(total))
        return np.array(rows)

    assert_limit(net, LINE, kernels(features, 40))


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "instance norm"])
def test_norms_over_pixels(name):
    n = 400
    U, b, v = ns.Matrix(), ns.Vector(0.5, 0.7), ns.Matrix(rows=1)
    norm = {
        "layernorm": lambda h: ns.layernorm(h, axis=(0, 1)),
        "rmsnorm": lambda h: ns.rmsnorm(h, axis=1),
        "instance norm": lambda h: ns.batchnorm(h, axis=(-2, -1)),
    }[name]
    net = ns.network(lambda x: v @ ns.global_mean_pool(ns.relu(norm(U @ x + b))))

    def features(rng):
        U, b = rng.standard_normal((n, 2)) / np.sqrt(2), 0.7 + rng.standard_normal(n) * np.sqrt(0.5)
        rows = []
        for x in IMAGE:
            h = x @ U.T + b
            if name == "layernorm":
                h = (h - h.mean()) / h.std()
            elif name == "rmsnorm":
                h = h / np.sqrt((h**2).mean((1, 2), keepdims=True))
            else:
                h = (h - h.mean((0, 1))) / h.std((0, 1))
            rows.append(relu(h).mean((0, 1)))
        return np.array(rows)

    assert_limit(net, IMAGE, kernels(features))


@pytest.mark.parametrize("weights", ["softmax", "relu", "identity"])
def test_infinitely_many_heads(weights):
    """Real heads with keys, queries and values of their own, at 1/sqrt(n), of which there are many."""
    n, heads = 60, 400
    layer = ns.Attention(math.inf, causal=True, weights=ns.relu if weights == "relu" else weights, scale=1.5)
    v = ns.Matrix(rows=1)
    net = ns.network(lambda x: v @ layer(x))

    def features(rng):
        rows = []
        Q, K, V = rng.standard_normal((3, heads, n, 4)) / 2
        for x in TOKENS:
            q, k, values = (np.einsum("hnm,tm->htn", M, x) for M in (Q, K, V))
            logits = 1.5 * np.einsum("hin,hjn->hij", q, k) / np.sqrt(n)
            seen = np.tri(3)
            if weights == "softmax":
                found = np.exp(logits) * seen
                found = found / found.sum(2, keepdims=True)
            else:
                found = (relu(logits) if weights == "relu" else logits) * seen
            rows.append(np.einsum("hij,hjn->ihn", found, values).reshape(3, -1))
        return np.concatenate(rows)

    assert_limit(net, TOKENS, kernels(features, 30))


def test_joined_widths_have_shares():
    n = 300
    U, V, W, v = ns.Matrix(), ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        return v @ ns.relu(W @ ns.concat([ns.relu(U @ x), ns.erf(V @ x)], axis="width", shares=(2, 1)))

    erf = np.vectorize(math.erf)
    x = RNG.standard_normal((3, 4))

    def features(rng):
        U, V = rng.standard_normal((2 * n, 4)) / 2, rng.standard_normal((n, 4)) / 2
        W = rng.standard_normal((n, 3 * n)) / np.sqrt(3 * n)
        return relu(np.concatenate([relu(x @ U.T), erf(x @ V.T)], axis=1) @ W.T)

    assert_limit(net, x, kernels(features))


def test_masks_leave_out_what_they_say():
    """Inputs of different size, padded with rubbish and masked, have the kernel of the inputs as they are."""
    conv, mix, v = ns.Conv2d(3, var_b=0.3), ns.Conv2d(2, var_b=0.1), ns.Matrix(rows=1)

    def body(x, mask):
        h = mix(ns.relu(conv(x * mask[..., None])) * mask)
        return v @ ns.global_mean_pool(ns.relu(h), mask=mask)

    masked = ns.network(lambda given: body(*given))
    plain = ns.network(lambda x: v @ ns.global_mean_pool(ns.relu(mix(ns.relu(conv(x))))))
    small = [IMAGE[0], IMAGE[1][:3, :2]]
    wide, masks = np.full((2, 5, 4, 2), 7.0), np.zeros((2, 5, 4))
    for k, image in enumerate(small):
        wide[k, : image.shape[0], : image.shape[1]] = image
        masks[k, : image.shape[0], : image.shape[1]] = 1
    found = ns.kernel(masked)(list(zip(wide, masks, strict=True)))
    np.testing.assert_allclose(found, ns.kernel(plain)(small), rtol=1e-12)


def test_positions_fixed_and_learned():
    """Codes of positions that are data, through a matrix, or random vectors with any covariance."""
    U, C, Q, V, v = ns.Matrix(), ns.Matrix(), ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)
    codes = np.array([[1.0, 0.0], [0.6, 0.8], [-0.28, 0.96]])
    learned = ns.Vector(codes @ codes.T / 2)

    def network(code):
        def net(x):
            h = U @ x
            q = Q @ (h + code())
            return v @ ns.attention(q, q, V @ h)

        return ns.kernel(ns.network(net))(TOKENS)

    np.testing.assert_allclose(network(lambda: C @ codes), network(lambda: learned), rtol=1e-12)


def test_wrap_and_circular_differ_by_where_windows_begin():
    x = RNG.standard_normal((1, 6, 1))
    v = ns.Matrix(rows=1)
    for padding, first in (("circular", -1), ("wrap", 0)):
        conv = ns.Conv1d(3, 2, padding=padding)
        found = ns.kernel(ns.network(lambda x, conv=conv: v @ conv(x)))(x)
        seen = [[(first + 2 * o + j) % 6 for j in range(3)] for o in range(3)]
        want = [
            [sum(x[0, i, 0] * x[0, k, 0] for i, k in zip(a, b, strict=True)) / 3 for b in seen] for a in seen
        ]
        np.testing.assert_allclose(found, want, rtol=1e-12)
