"""Reported errors of sampled kernels beside true ones, over many seeds."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns

pytestmark = pytest.mark.slow

SEEDS = 40
rng = np.random.default_rng(5)
SENTENCES = [rng.standard_normal((t, 3)) for t in (3, 4, 4)]
IMAGES = rng.standard_normal((3, 4, 4, 2))
U, V, W, out = ns.Matrix(1.5), ns.Matrix(1.5), ns.Matrix(1.5), ns.Matrix(1.0, rows=1)
conv = ns.Conv2d(3, var_w=1.5, var_b=0.1)


@ns.network
def maxout(x):
    h = ns.maximum(U @ x, V @ x)
    return out @ ns.tanh(ns.maximum(W @ h, ns.relu(W @ h)) * ns.tanh(W @ h))


@ns.network
def max_pooling(image):
    return out @ ns.mean(ns.max_pool(ns.relu(conv(image)), 2), axis=(0, 1))


NETWORKS = {
    "gru": (ns.zoo.gru(), SENTENCES),
    "lstm": (ns.zoo.lstm(), SENTENCES),
    "maxout": (maxout, rng.standard_normal((4, 3))),
    "max pooling": (max_pooling, IMAGES),
    "batchnorm with tanh": (ns.zoo.batchnorm_mlp(depth=1, phi=ns.tanh), rng.standard_normal((2, 5, 4))),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_errors_are_neither_too_small_nor_too_large(name: str) -> None:
    net, x = NETWORKS[name]
    best = ns.kernel(net, method="sample", seed=1000, points=2**14, repeats=32).evaluate(x)
    upper = np.triu_indices(len(best.value))
    ratios = []
    for seed in range(SEEDS):
        found = ns.kernel(net, method="sample", seed=seed, points=2**9).evaluate(x)
        assert not found.plan.exact
        # the error of what stands for the truth is not theirs
        apart = np.sqrt(found.error[upper] ** 2 + best.error[upper] ** 2)
        ratios.append((found.value - best.value)[upper] / apart)
    rms, covered = np.sqrt(np.mean(np.square(ratios))), np.mean(np.abs(ratios) <= 2)
    assert 0.7 <= rms <= 1.4
    assert covered >= 0.9
