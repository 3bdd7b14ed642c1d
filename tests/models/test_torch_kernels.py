"""Kernels of PyTorch models equal those of the same networks written with netsor's own front end."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_models import CrossAttention, Read, Recurrent  # noqa: E402

import netsor as ns  # noqa: E402

rng = np.random.default_rng(2)
N = 16


def same(net, by_hand, xs):
    """Equal up to what both say of their errors."""
    one, two = (ns.kernel(k).evaluate(xs) for k in (net, by_hand))
    tolerance = 4 * (one.error + two.error) + 1e-9 * np.abs(two.value).max()
    assert np.all(np.abs(one.value - two.value) <= tolerance)
    assert one.value[0, 0] > 0


def output_bias(var: float):
    """A bias of the output: a readout of ones."""
    ones, b = ns.Vector(0.0, mean=1.0), ns.Matrix(var, rows=1)
    return lambda: b @ (1.0 * ones)


def linear(n: int) -> float:
    """The variance of an entry of nn.Linear and of its bias."""
    return 1 / (3 * n)


def test_mlp():
    def make(n):
        return nn.Sequential(nn.Linear(5, n), nn.ReLU(), nn.Linear(n, n), nn.GELU(), nn.Linear(n, 1))

    a, b, v = ns.Matrix(1 / 3), ns.Matrix(1 / 3), ns.Matrix(1 / 3, rows=1)
    c, d, e = ns.Vector(linear(5)), ns.Vector(linear(N)), output_bias(linear(N))
    by_hand = ns.network(lambda x: v @ ns.gelu(b @ ns.relu(a @ x + c) + d) + e())
    same(ns.from_torch(make, N), by_hand, rng.standard_normal((4, 5)))


def test_dropout():
    """Masks are drawn anew for each input, also for equal ones."""

    def make(n):
        return nn.Sequential(
            *(nn.Linear(5, n, bias=False), nn.ReLU(), nn.Dropout(0.3), nn.Linear(n, n, bias=False)),
            *(nn.ReLU(), nn.Dropout(0.5), nn.Linear(n, 1, bias=False)),
        )

    a, b, v = ns.Matrix(1 / 3), ns.Matrix(1 / 3), ns.Matrix(1 / 3, rows=1)
    first, second = ns.Dropout(0.7), ns.Dropout(0.5)
    by_hand = ns.network(lambda x: v @ second(ns.relu(b @ first(ns.relu(a @ x)))))
    x = rng.standard_normal((3, 5))
    net = ns.from_torch(make, N, train=True)
    same(net, by_hand, [*x, x[0]])
    K, plain = ns.kernel(net)([*x, x[0]]), ns.kernel(ns.from_torch(make, N))(x)
    assert K[0, 0] == pytest.approx(plain[0, 0] / 0.35)  # E[mask^2] = 1 / keep
    assert 0 < K[0, 3] < 0.9 * K[0, 0]


def test_cnn_with_batchnorm():
    def make(n):
        return nn.Sequential(
            *(nn.Conv2d(3, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(n, n, 3, padding=1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            nn.Linear(n, 1, bias=False),
        )

    first, second = ns.Conv2d(3, var_w=1 / 3, var_b=1 / (3 * 27)), ns.Conv2d(3, var_w=1 / 3)
    v, norm = ns.Matrix(1 / 3, rows=1), 1 / math.sqrt(1 + 1e-5)
    by_hand = ns.network(
        lambda x: v @ ns.global_mean_pool(ns.relu(second(ns.max_pool(ns.relu(norm * first(x)), 2))))
    )
    images = rng.standard_normal((2, 3, 6, 6))
    net = ns.from_torch(make, N)
    one = ns.kernel(net).evaluate(images)
    two = ns.kernel(by_hand).evaluate(images.transpose(0, 2, 3, 1))  # channels last
    assert np.all(np.abs(one.value - two.value) <= 4 * (one.error + two.error) + 1e-9)


def test_batchnorm_over_a_batch():
    def make(n):
        return nn.Sequential(
            nn.Linear(5, n, bias=False), nn.BatchNorm1d(n), nn.ReLU(), nn.Linear(n, 1, bias=False)
        )

    a, v = ns.Matrix(1 / 3), ns.Matrix(1 / 3, rows=1)
    by_hand = ns.network(lambda x: v @ ns.relu(ns.batchnorm(a @ x, eps=1e-5)))
    same(ns.from_torch(make, N, batch=False, train=True), by_hand, [rng.standard_normal((4, 5))])


@pytest.mark.parametrize("first", [True, False])
def test_encoder_layer(first):
    def make(n):
        layer = nn.TransformerEncoderLayer(n, 2, 4 * n, batch_first=True, norm_first=first)
        return Read(n, layer)

    u, c = ns.Matrix(1 / 3), ns.Vector(linear(5))
    q, k, v = (ns.Matrix(0.5, index=(2,)) for _ in range(3))
    o = ns.Matrix(1 / 6, index=(2,))  # nn.Linear(n, n) in two blocks of columns
    a, b, d, e = ns.Matrix(1 / 3), ns.Matrix(1 / 3), ns.Vector(linear(N)), ns.Vector(linear(4 * N))
    head = ns.Matrix(1 / 3, rows=1)

    def attend(h):
        mixed = ns.attention(q @ h, k @ h, v @ h, scale=math.sqrt(N / 2))
        return o.times(mixed, aligned=1).sum(axis=0)

    def feed(h):
        return b @ ns.relu(a @ h + d) + e

    def norm(h):
        return ns.layernorm(h, eps=1e-5)

    @ns.network
    def by_hand(x):
        h = u @ x + c
        if first:
            h = h + attend(norm(h))
            h = h + feed(norm(h))
        else:
            h = norm(h + attend(h))
            h = norm(h + feed(h))
        return head @ h

    net = ns.from_torch(make, N, scales="width", laws={"head.bias": ns.Vector(0.0)})
    same(net, by_hand, [rng.standard_normal((3, 5)), rng.standard_normal((2, 5))])


def test_multihead_attention():
    u, w = ns.Matrix(1 / 3), ns.Matrix(1 / 3)
    c, d = ns.Vector(linear(5)), ns.Vector(linear(5))
    q, k, v = (ns.Matrix(0.5, index=(2,)) for _ in range(3))
    o, head = ns.Matrix(1 / 6, index=(2,)), ns.Matrix(1 / 3, rows=1)

    @ns.network
    def by_hand(x):
        queries, keys = u @ x + c, w @ x + d
        mixed = ns.attention(q @ queries, k @ keys, v @ keys, scale=math.sqrt(N / 2))
        return head @ o.times(mixed, aligned=1).sum(axis=0)

    net = ns.from_torch(lambda n: CrossAttention(n, 2), N, scales="width", laws={"head.bias": ns.Vector(0.0)})
    same(net, by_hand, [rng.standard_normal((3, 5))])


def recurrent_parts(gates: int, m: int):
    """Matrices on the input and on the state, and the two biases of each gate, of nn.LSTM and nn.GRU."""
    var = linear(N)
    inputs = [ns.Matrix(var * m) for _ in range(gates)]
    states = [ns.Matrix(1 / 3) for _ in range(gates)]
    biases = [(ns.Vector(var), ns.Vector(var)) for _ in range(gates)]
    return inputs, states, biases


def test_lstm():
    (ui, uf, ug, uo), (wi, wf, wg, wo), (bi, bf, bg, bo) = recurrent_parts(4, 5)
    head = ns.Matrix(1 / 3, rows=1)

    @ns.network
    def by_hand(tokens):
        h, c, states = 0, 0, []
        for x in tokens:
            i, f, o = (
                ns.sigmoid(u @ x + b[0] + (w @ h + b[1]))
                for u, w, b in ((ui, wi, bi), (uf, wf, bf), (uo, wo, bo))
            )
            c = f * c + i * ns.tanh(ug @ x + bg[0] + (wg @ h + bg[1]))
            h = o * ns.tanh(c)
            states.append(h)
        return head @ ns.stack(states)

    net = ns.from_torch(lambda n: Recurrent(n, nn.LSTM), N, laws={"head.bias": ns.Vector(0.0)})
    same(net, by_hand, [3 * rng.standard_normal((2, 5))])


def test_gru_of_two_layers_in_both_directions():
    """The second layer reads both directions of the first; its matrices have two blocks of columns."""
    first = [recurrent_parts(3, 5) for _ in range(2)]
    var = linear(N)
    second = []
    for _ in range(2):
        _, states, biases = recurrent_parts(3, 5)
        second.append(([ns.Matrix(1 / 3, index=(2,)) for _ in range(3)], states, biases))
    head = ns.Matrix(1 / 6, rows=1, index=(2,))  # nn.Linear(2n, 1) in two blocks: 1 / (3 * 2n) * n

    def cell(parts, x, h, product):
        (ur, uz, un), (wr, wz, wn), (br, bz, bn) = parts
        r = ns.sigmoid(product(ur, x) + br[0] + (wr @ h + br[1]))
        z = ns.sigmoid(product(uz, x) + bz[0] + (wz @ h + bz[1]))
        new = ns.tanh(product(un, x) + bn[0] + r * (wn @ h + bn[1]))
        return (h - new) * z + new

    def layer(both, xs, product):
        found = []
        for parts, order in zip(both, (1, -1), strict=True):
            h, states = 0.0, []
            for x in xs[::order]:
                h = cell(parts, x, h, product) if states else start(parts, x, product)
                states.append(h)
            found.append(states[::order])
        return [ns.stack(pair) for pair in zip(*found, strict=True)]

    def start(parts, x, product):
        """The first step, from a state of zeros."""
        (ur, uz, un), _, (br, bz, bn) = parts
        r = ns.sigmoid(product(ur, x) + br[0] + br[1])
        z = ns.sigmoid(product(uz, x) + bz[0] + bz[1])
        return (1.0 - z) * ns.tanh(product(un, x) + bn[0] + r * bn[1])

    @ns.network
    def by_hand(tokens):
        below = layer(first, [tokens[i] for i in range(len(tokens))], lambda u, x: u @ x)
        above = layer(second, below, lambda u, x: u.times(x, aligned=1).sum(axis=0))
        return head.times(ns.stack(above, axis=1), aligned=1)

    assert var == linear(N)
    net = ns.from_torch(
        lambda n: Recurrent(n, nn.GRU, num_layers=2, bidirectional=True),
        N,
        laws={"head.bias": ns.Vector(0.0)},
    )
    same(net, by_hand, [3 * rng.standard_normal((2, 5))])


def test_embedding():
    class Bag(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.embed, self.norm = nn.Embedding(7, n), nn.LayerNorm(n)
            self.hidden, self.head = nn.Linear(n, n, bias=False), nn.Linear(n, 1, bias=False)

        def forward(self, tokens):
            return self.head(torch.relu(self.hidden(self.norm(self.embed(tokens)))).mean(1))

    u, w, v = ns.Matrix(7.0), ns.Matrix(1 / 3), ns.Matrix(1 / 3, rows=1)
    by_hand = ns.network(lambda hot: v @ ns.relu(w @ ns.layernorm(u @ hot, eps=1e-5)).mean(0))
    sentences = [np.array([1, 2, 2]), np.array([2, 3, 0])]
    net = ns.from_torch(Bag, N, tokens=True)
    one = ns.kernel(net)(sentences)
    two = ns.kernel(by_hand)([np.eye(7)[s] for s in sentences])
    np.testing.assert_allclose(one, two, rtol=1e-9)
