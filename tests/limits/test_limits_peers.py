"""Networks that rules from layer to layer get wrong or refuse: right here, by simulation and by hand.

Where branches of one input meet, where a nonlinearity follows a sum, a pool or another nonlinearity, or
where one matrix is used twice, a rule that hands one covariance from layer to layer loses those between
the parts. The kernels by hand below write these out, with formulas or brute-force integrals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import netsor as ns
from brute_force import arc_cosine, arc_sine, mean_of, pair_moments
from limit_cases import SEQUENCES, VECTORS, Case, assert_simulated, scale_of

ROWS = list(VECTORS)
GRAM = VECTORS @ VECTORS.T / VECTORS.shape[1]
IMAGES = list(np.random.default_rng(5).standard_normal((2, 4, 4, 2)))
TOKENS = list(SEQUENCES[:2])
FLAT = np.concatenate(TOKENS)
TOKEN_GRAM = FLAT @ FLAT.T / FLAT.shape[1]
LENGTH = len(TOKENS[0])
VAR_W, VAR_B = 2.0, 0.1  # of the convolution
SHIFT, VAR_SHIFT = 1.5, 0.5  # of the bias with a mean
RATIO = 0.25  # the first of two joined branches has a quarter of the width


@dataclass(frozen=True)
class Peer(Case):
    """A network with the kernel that it must have."""

    by_hand: Callable[[], np.ndarray]


PEERS: list[Peer] = []


class Layers:
    """Fresh parameters for one network."""

    def __init__(self) -> None:
        self.W, self.W1, self.W2 = (ns.Matrix(name=name) for name in ("W", "W1", "W2"))
        self.v = ns.Matrix(rows=1, name="v")
        self.conv = ns.Conv2d(3, var_w=VAR_W, var_b=VAR_B)
        self.b = ns.Vector(VAR_SHIFT, mean=SHIFT, name="b")
        self.Q, self.K, self.V, self.S = (ns.Matrix(2.0, name=name) for name in "QKVS")


def peer(name: str, inputs: list[Any], by_hand: Callable[[], np.ndarray]) -> Callable[[Callable], Callable]:
    """Decorator: a function (x, layers) is a network with this kernel."""

    def add(fn: Callable) -> Callable:
        layers = Layers()
        PEERS.append(Peer(name, ns.network(lambda x: fn(x, layers)), inputs, by_hand))
        return fn

    return add


# The convolution of both images, pixel by pixel


def convolved() -> np.ndarray:
    """Cov(h_p, h'_q) = var_w / 9 sum_j x_(p+j) . x'_(q+j) / channels + var_b, zeros around the image."""
    padded = [np.pad(image, ((1, 1), (1, 1), (0, 0))) for image in IMAGES]
    windows = [x[r : r + 3, s : s + 3].ravel() for x in padded for r in range(4) for s in range(4)]
    return VAR_W / 9 * np.array([[a @ b for b in windows] for a in windows]) / 2 + VAR_B


def blurred() -> np.ndarray:
    """The matrix of a mean over the 3 x 3 neighbours that exist, for one image."""
    near = np.abs(np.subtract.outer(np.arange(4), np.arange(4))) <= 1
    line = near / near.sum(1, keepdims=True)
    return np.kron(line, line)


def mapped(matrix: np.ndarray) -> np.ndarray:
    """The covariance of `matrix @ h` for both images."""
    both = np.kron(np.eye(2), matrix)
    return both @ convolved() @ both.T


def same_places(cov: np.ndarray) -> np.ndarray:
    """The mean over places of the covariance of a place with itself: a flattened readout."""
    n = len(cov) // 2
    return np.einsum("apbp->ab", cov.reshape(2, n, 2, n)) / n


def all_places(cov: np.ndarray) -> np.ndarray:
    """The mean over all pairs of places: a global average."""
    n = len(cov) // 2
    return cov.reshape(2, n, 2, n).mean((1, 3))


# Sums of branches


@peer("conv plus its own average pool", IMAGES, lambda: same_places(mapped(np.eye(16) + blurred())))
def _(image, n):
    h = n.conv(image)
    return n.v @ ns.flatten(h + ns.mean_pool(h, 3, 1, "same"))


@peer("x + x", ROWS, lambda: arc_cosine(4 * arc_cosine(GRAM)))
def _(x, n):
    h = ns.relu(n.W @ x)
    return n.v @ ns.relu(n.W1 @ (h + h))


@peer("relu(x) + x", ROWS, lambda: arc_cosine(arc_cosine(GRAM) + 2 * GRAM))  # E[h relu(h')] = Cov / 2
def _(x, n):
    h = n.W @ x
    return n.v @ ns.relu(n.W1 @ (ns.relu(h) + h))


def twice_by_hand() -> np.ndarray:
    """Cov(W1 relu(h), W1 relu(g)) = E relu(h) E relu(g) for the two layers h and g = W x."""
    inner = arc_cosine(GRAM)
    outer = arc_cosine(arc_cosine(inner))
    cross = np.sqrt(np.outer(np.diag(inner), np.diag(GRAM))) / (2 * np.pi)
    return outer + inner + (cross + cross.T) / 2


@peer("one matrix in two layers", ROWS, twice_by_hand)
def _(x, n):
    h = n.W1 @ ns.relu(n.W @ x)
    return n.v @ (ns.relu(n.W1 @ ns.relu(h)) + h)


# Products of branches


def fourth_moments() -> np.ndarray:
    """E[h^2 h'^2] = q q' + 2 c^2."""
    return np.outer(np.diag(GRAM), np.diag(GRAM)) + 2 * GRAM**2


@peer("x times x", ROWS, lambda: arc_cosine(fourth_moments()))
def _(x, n):
    h = n.W @ x
    return n.v @ ns.relu(n.W1 @ (h * h))


@peer(
    "relu(x) tanh(x)", ROWS, lambda: pair_moments(lambda z: np.maximum(z, 0) * np.tanh(z), GRAM, 0.0, [0.0])
)
def _(x, n):
    h = n.W @ x
    return n.v @ (ns.relu(h) * ns.tanh(h))


@peer("product of two layers", ROWS, lambda: pair_moments(np.tanh, GRAM) * arc_cosine(arc_cosine(GRAM)))
def _(x, n):
    h = ns.relu(n.W @ x)
    return n.v @ (ns.relu(n.W1 @ h) * ns.tanh(n.W2 @ x))


# Nonlinearities in unusual places


@peer("conv, sign, pool, dense, relu", IMAGES, lambda: arc_cosine(all_places(arc_sine(convolved()))))
def _(image, n):
    return n.v @ ns.relu(n.W1 @ ns.global_mean_pool(ns.sign(n.conv(image))))


def squared_relu_by_hand() -> np.ndarray:
    """E relu(z)^2 relu(z')^2, the arc-cosine kernel of order two (Cho & Saul 2009)."""
    c = np.clip(GRAM / scale_of(GRAM), -1, 1)
    angle = np.arccos(c)
    inner = 3 * np.sin(angle) * c + (np.pi - angle) * (1 + 2 * c**2)
    return arc_cosine(scale_of(GRAM) ** 2 / (2 * np.pi) * inner)


@peer("squared relu", ROWS, squared_relu_by_hand)
def _(x, n):
    return n.v @ ns.relu(n.W1 @ ns.relu(n.W @ x) ** 2)


def bent(t: np.ndarray) -> np.ndarray:
    return np.cos(t) + np.maximum(t, 0.3)


@peer(
    "user function without variance",
    [0 * VECTORS[0], VECTORS[0]],
    lambda: arc_cosine(pair_moments(bent, np.diag([0.0, GRAM[0, 0]]), 0.0, [0.3])),
)
def _(x, n):
    return n.v @ ns.relu(n.W1 @ ns.nonlin(bent, n.W @ x))


@peer(
    "tanh at standard deviation 10",
    list(10 * VECTORS),
    lambda: pair_moments(np.tanh, pair_moments(np.tanh, 100 * GRAM, panels=150)),
)
def _(x, n):
    return n.v @ ns.tanh(n.W1 @ ns.tanh(n.W @ x))


def normalised_by_hand() -> np.ndarray:
    """tanh((y - nu) / sigma) where y = sigmoid(z) has mean nu = 1/2 and variance sigma^2."""

    def layer(q: float) -> Callable[[np.ndarray], np.ndarray]:
        sigma = np.sqrt(mean_of(lambda z: (expit(z) - 0.5) ** 2, 0.0, q))
        return lambda z: np.tanh((expit(z) - 0.5) / sigma)

    return pair_moments([layer(q) for q in np.diag(GRAM)], GRAM)


@peer("layernorm after a nonlinearity", ROWS, normalised_by_hand)
def _(x, n):
    return n.v @ ns.tanh(ns.layernorm(ns.sigmoid(n.W @ x)))


@peer(
    "two nonlinearities in a row",
    ROWS,
    lambda: arc_cosine(
        pair_moments(lambda z: np.maximum(np.tanh(z) - 0.2, 0), GRAM, 0.0, [float(np.arctanh(0.2))])
    ),
)
def _(x, n):
    return n.v @ ns.relu(n.W1 @ ns.relu(ns.tanh(n.W @ x) - 0.2))


PAIRS = np.kron(np.eye(2), [[0.5, 0.5]])  # means of two neighbours out of four


@peer("pool, then relu", IMAGES, lambda: all_places(arc_cosine(mapped(np.kron(PAIRS, PAIRS)))))
def _(image, n):
    return n.v @ ns.global_mean_pool(ns.relu(ns.mean_pool(n.conv(image), 2)))


@peer(
    "biases with a mean",
    ROWS,
    lambda: pair_moments(
        lambda z: np.maximum(z, 0), pair_moments(np.tanh, GRAM + VAR_SHIFT, SHIFT) + VAR_SHIFT, SHIFT, [0.0]
    ),
)
def _(x, n):
    return n.v @ ns.relu(n.W1 @ ns.tanh(n.W @ x + n.b) + n.b)


# Attention: tokens of both sequences in one matrix


def attended(weights: list[np.ndarray]) -> np.ndarray:
    """E relu relu of `weights @ (V h)` where h = relu(W x) and V has variance 2."""
    both = np.zeros((2 * LENGTH, 2 * LENGTH))
    for k, w in enumerate(weights):
        both[k * LENGTH : (k + 1) * LENGTH, k * LENGTH : (k + 1) * LENGTH] = w
    return arc_cosine(2 * both @ arc_cosine(TOKEN_GRAM) @ both.T)


@peer(
    "attention with separate keys and queries",
    TOKENS,
    lambda: attended(2 * [np.full((LENGTH, LENGTH), 1 / LENGTH)]),  # q.k/n vanishes: all weights are equal
)
def _(x, n):
    h = ns.relu(n.W @ x)
    return n.v @ ns.relu(ns.attention(n.Q @ h, n.K @ h, n.V @ h))


def softmax_by_hand() -> list[np.ndarray]:
    """Logits 2 E[h_i h_j] from the shared part of keys and queries; i sees j <= i."""
    weights = []
    for tokens in TOKENS:
        logits = 2 * arc_cosine(tokens @ tokens.T / tokens.shape[1])
        powers = np.tril(np.exp(logits))
        weights.append(powers / powers.sum(1, keepdims=True))
    return weights


@peer("attention, keys and queries share a part", TOKENS, lambda: attended(softmax_by_hand()))
def _(x, n):
    h = ns.relu(n.W @ x)
    shared = n.S @ h
    return n.v @ ns.relu(ns.attention(n.Q @ h + shared, n.K @ h + shared, n.V @ h, causal=True))


# Joined branches. A layer on [y1, y2], of widths n1 and n2, is one matrix on each. Its fan-in is n1 + n2,
# so the variance var / (n1 + n2) of its entries is var r / n1 and var (1 - r) / n2 with r = n1 / (n1 + n2).


def joined_by_hand() -> np.ndarray:
    return arc_cosine(RATIO * arc_cosine(GRAM) + (1 - RATIO) * pair_moments(np.tanh, GRAM))


def joined_network() -> ns.Network:
    U1, U2 = ns.Matrix(rows="n1"), ns.Matrix(rows="n2")
    W1, W2 = ns.Matrix(RATIO, rows="n3"), ns.Matrix(1 - RATIO, rows="n3")
    v = ns.Matrix(rows=1)
    return ns.network(lambda x: v @ ns.relu(W1 @ ns.relu(U1 @ x) + W2 @ ns.tanh(U2 @ x)))


PEERS.append(Peer("joined branches", joined_network(), ROWS, joined_by_hand))


def joined_in_numpy(n1: int, n2: int, n3: int, rng: np.random.Generator) -> np.ndarray:
    """The kernel of one random network that literally joins its branches."""
    m = VECTORS.shape[1]
    U1, U2 = (rng.standard_normal((n, m)) / np.sqrt(m) for n in (n1, n2))
    W = rng.standard_normal((n3, n1 + n2)) / np.sqrt(n1 + n2)
    joined = np.concatenate([np.maximum(U1 @ VECTORS.T, 0), np.tanh(U2 @ VECTORS.T)])
    y = np.maximum(W @ joined, 0)
    return y.T @ y / n3


def test_joined_branches_are_a_concatenation() -> None:
    rng = np.random.default_rng(0)
    networks, n1 = 300, 50
    n2 = round(n1 * (1 - RATIO) / RATIO)
    kernels = np.array([joined_in_numpy(n1, n2, 200, rng) for _ in range(networks)])
    found = ns.kernel(joined_network()).evaluate(ROWS)
    spread = kernels.std(0, ddof=1) / np.sqrt(networks)
    assert np.all(np.abs(kernels.mean(0) - found.value) <= 5 * spread + 1 / n1 * scale_of(found.value))
    equal = ns.kernel(joined_network())(ROWS, params={"W1": 0.5, "W2": 0.5})
    assert np.any(np.abs(kernels.mean(0) - equal) > 10 * spread), "another ratio would pass as well"


# All of them


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_by_hand(peer: Peer) -> None:
    """The kernels by hand are good to 1e-11; an error that is reported may not be too small."""
    found, wanted = ns.kernel(peer.net).evaluate(peer.inputs), peer.by_hand()
    gap = np.abs(found.value - wanted)
    assert np.all(gap <= found.error + 1e-11 * scale_of(wanted)), f"{gap.max():.1e}"
    assert np.all(found.error <= 1e-8 * scale_of(wanted).max())
    assert found.plan.exact


QUICK = {
    "conv plus its own average pool",
    "relu(x) + x",
    "relu(x) tanh(x)",
    "conv, sign, pool, dense, relu",
    "one matrix in two layers",
    "attention, keys and queries share a part",
}


@pytest.mark.parametrize(
    "peer",
    [pytest.param(p, id=p.name, marks=() if p.name in QUICK else pytest.mark.slow) for p in PEERS],
)
def test_by_simulation(peer: Peer) -> None:
    assert_simulated(peer)


def test_a_mean_of_a_product_is_by_hand_too() -> None:
    """The brute-force integrals themselves, against formulas."""
    relu = pair_moments(lambda z: np.maximum(z, 0), GRAM, 0.0, [0.0])
    np.testing.assert_allclose(relu, arc_cosine(GRAM), rtol=1e-13, atol=1e-14)
    signs = pair_moments(np.sign, GRAM, 0.0, [0.0])
    np.testing.assert_allclose(signs, arc_sine(GRAM), rtol=1e-13, atol=1e-14)
    shifted = pair_moments(np.cos, GRAM, SHIFT)  # cos a cos b = (cos(a + b) + cos(a - b)) / 2
    q = np.add.outer(np.diag(GRAM), np.diag(GRAM))
    wanted = (np.cos(2 * SHIFT) * np.exp(-q / 2 - GRAM) + np.exp(-q / 2 + GRAM)) / 2
    np.testing.assert_allclose(shifted, wanted, rtol=1e-13, atol=1e-14)
    assert mean_of(np.abs, 0.0, 4.0, [0.0]) == pytest.approx(2 * np.sqrt(2 / np.pi), rel=1e-13)
