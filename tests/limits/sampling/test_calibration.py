"""Reported errors of sampled kernels beside true ones, over many seeds.

In units of its error, a difference from the truth is about Student's with fifteen degrees of freedom: a root
mean square of 1, and two units cover 95%. Entries of one matrix depend on each other, seeds do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.errors import LimitError

rng = np.random.default_rng(5)
SENTENCES = [rng.standard_normal((t, 3)) for t in (2, 3, 3)]
TOKENS = [rng.standard_normal((3, 3)) for _ in range(2)]
IMAGES = rng.standard_normal((3, 4, 4, 2))
BATCH = rng.standard_normal((1, 3, 3, 3, 2))
VECTORS = rng.standard_normal((4, 3))
UNIT = VECTORS / np.sqrt(np.mean(VECTORS**2, axis=1, keepdims=True))  # preactivations of variance 1
U, V, W, out = ns.Matrix(1.0), ns.Matrix(1.0), ns.Matrix(1.5), ns.Matrix(1.0, rows=1)
conv = ns.Conv2d(3, var_w=2.0)


@ns.network
def maxout(x):
    h = ns.maximum(U @ x, V @ x)
    return out @ ns.tanh(ns.maximum(W @ h, ns.relu(W @ h)) * ns.tanh(W @ h))


@ns.network
def max_pooling(image):
    return out @ ns.mean(ns.max_pool(ns.relu(conv(image)), 2), axis=(0, 1))


@ns.network
def instance_norm(image):
    return out @ ns.mean(ns.relu(ns.batchnorm(conv(image), axis=(0, 1), eps=1e-5)), axis=(0, 1))


@ns.network
def batchnorm_cnn(images):
    h = ns.tanh(ns.batchnorm(conv(images), axis=(0, 1, 2)))
    return out @ ns.mean(h, axis=(1, 2))


def exponential(scale: float) -> ns.Network:
    return ns.network(lambda x: out @ ns.exp(scale * ns.tanh(U @ x) * (V @ x)))


def rare(threshold: float) -> ns.Network:
    return ns.network(lambda x: out @ ns.step(U @ x - threshold))


NETWORKS: dict[str, tuple[Callable[..., Any], ns.Network, Any]] = {
    "GRU": (ns.kernel, ns.zoo.gru(), SENTENCES),
    "LSTM": (ns.kernel, ns.zoo.lstm(), SENTENCES),
    "maxout": (ns.kernel, maxout, VECTORS),
    "attention": (ns.kernel, ns.zoo.transformer(), TOKENS),
    "max pooling": (ns.kernel, max_pooling, IMAGES),
    "NTK of a GRU": (ns.ntk, ns.zoo.gru(), SENTENCES),
    "NTK of a batchnorm CNN": (ns.ntk, batchnorm_cnn, BATCH),
    "NTK of instance norm": (ns.ntk, instance_norm, IMAGES[:2]),
}


def ratios(of: Any, net: ns.Network, x: Any, truth: ns.Result, seeds: int, points: int) -> np.ndarray:
    """Differences from the truth in units of errors, (seeds, entries), of seeds that are not refused."""
    upper, found = np.triu_indices(len(truth.value)), []
    for seed in range(seeds):
        try:
            result = of(net, method="sample", seed=seed, points=points).evaluate(x)
        except LimitError as refused:
            if "too few sample points" not in str(refused):
                raise
            continue
        assert not result.plan.exact
        apart = np.hypot(result.error, truth.error)  # the error of what stands for the truth is not theirs
        found.append(((result.value - truth.value) / apart)[upper])
    return np.array(found)


def require_calibrated(z: np.ndarray) -> None:
    assert 0.7 <= np.sqrt(np.mean(z**2)) <= 1.2
    assert np.mean(np.abs(z) <= 2) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_errors_are_neither_too_small_nor_too_large(name: str) -> None:
    of, net, x = NETWORKS[name]
    best = of(net, method="sample", seed=1000, points=2**13).evaluate(x)
    require_calibrated(ratios(of, net, x, best, 40, 2**8))


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.25])
def test_errors_of_an_exponential_of_a_product_are_calibrated(scale: float) -> None:
    """Heavy tails: the exact kernel is an integral over four variables."""
    net = exponential(scale)
    require_calibrated(ratios(ns.kernel, net, UNIT[:3], ns.kernel(net).evaluate(UNIT[:3]), 40, 2**9))


@pytest.mark.parametrize("threshold", [2.0, 2.5, 3.0])
def test_errors_of_rare_events_are_not_too_small(threshold: float) -> None:
    """Also of two events at once that no point meets."""
    net = rare(threshold)
    z = ratios(ns.kernel, net, UNIT[:3], ns.kernel(net).evaluate(UNIT[:3]), 20, 2**10)
    assert np.sqrt(np.mean(z**2)) <= 1.2


def test_errors_of_batchnorm_slopes_are_those_of_their_spread() -> None:
    """One of hundreds of members always has a heavy point, which says nothing of their mean."""
    results = [ns.ntk(instance_norm, seed=seed, points=2**7).evaluate(IMAGES[:2]) for seed in range(8)]
    spread = np.std([r.value for r in results], axis=0, ddof=1)
    error = np.sqrt(np.mean([r.error**2 for r in results], axis=0))
    assert np.all(error < 3 * spread)
    assert np.all(spread < 3 * error)
