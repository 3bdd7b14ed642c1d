"""Plain NumPy forward passes of the zoo networks, from their mathematical definitions, vector by vector.

Each takes the weights by name and one input, and returns what the readout reads: an array (vectors, n).
A weight that a program leaves out (a bias of variance 0, a matrix on the zero state of a sequence of
length one) does not matter and counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.special import erf

Weights = Mapping[str, np.ndarray]

# A sum of n ~ 30 products has a relative rounding error of at most n * 1e-16 ~ 3e-15; a few layers and
# the divisions by a standard deviation of order one add a factor of a hundred at most. 1e-10 of the
# largest entry is far above that and far below any real difference.
TOLERANCE = 1e-10


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    """Equal up to rounding in float64."""
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * np.abs(want).max())


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def erf_gate(x: np.ndarray) -> np.ndarray:
    return (1 + erf(x)) / 2


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def layernorm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / x.std()


def outputs(v: np.ndarray, h: np.ndarray) -> np.ndarray:
    """v.h / sqrt(n) for every vector, or summed over the pixels if the readout has a vector for each."""
    n = h.shape[-1]
    if v.ndim == 1:
        return np.array([v @ h_i for h_i in h]) / np.sqrt(n)
    return np.array([sum(v_p @ h_p for v_p, h_p in zip(v.reshape(-1, n), h, strict=True))]) / np.sqrt(n)


def mlp(w: Weights, x: np.ndarray, depth: int = 1) -> np.ndarray:
    for layer in range(1, depth + 1):
        x = relu(w[f"W{layer}"] @ x + w.get(f"b{layer}", 0.0))
    return x[None]


def resnet(w: Weights, x: np.ndarray, depth: int = 1) -> np.ndarray:
    x = w["U"] @ x
    for layer in range(1, depth + 1):
        x = x + relu(w[f"W{layer}"] @ x + w[f"b{layer}"])
    return x[None]


def densenet(w: Weights, x: np.ndarray, depth: int = 2) -> np.ndarray:
    """Every layer is one matrix on all earlier layers joined into one long vector."""
    layers = [relu(w["W1"] @ x + w["b1"])]
    for layer in range(2, depth + 1):
        joined = np.hstack([w[f"W{layer}_{k}"] for k in range(1, layer)])
        layers.append(relu(joined @ np.concatenate(layers) + w[f"b{layer}"]))
    return layers[-1][None]


def layernorm_mlp(w: Weights, x: np.ndarray, depth: int = 1, order: str = "norm-phi") -> np.ndarray:
    for layer in range(1, depth + 1):
        h = w[f"W{layer}"] @ x + w[f"b{layer}"]
        x = relu(layernorm(h)) if order == "norm-phi" else layernorm(relu(h))
    return x[None]


def batchnorm_mlp(w: Weights, batch: np.ndarray, depth: int = 1) -> np.ndarray:
    xs = list(batch)
    for layer in range(1, depth + 1):
        h = np.array([w[f"W{layer}"] @ x for x in xs])
        xs = [relu((h_i - h.mean(axis=0)) / h.std(axis=0)) for h_i in h]
    return np.array(xs)


# Recurrent networks


def _gate(w: Weights, g: str, state: np.ndarray, x: np.ndarray) -> np.ndarray:
    """W_g s + U_g x + b_g."""
    hidden = w[f"W{g}"] @ state if f"W{g}" in w else 0.0
    seen = w[f"U{g}"] @ x if f"U{g}" in w else 0.0
    return hidden + seen + w.get(f"b{g}", np.zeros(len(state)))


def simple_rnn(w: Weights, tokens: np.ndarray) -> np.ndarray:
    state, states = np.zeros(len(w["v"])), []
    for x in tokens:
        state = erf(_gate(w, "", state, x))
        states.append(state)
    return np.array(states)


def gru(w: Weights, tokens: np.ndarray) -> np.ndarray:
    state, states = w.get("h0", np.zeros(len(w["v"]))), []
    for x in tokens:
        z, r = erf_gate(_gate(w, "_z", state, x)), erf_gate(_gate(w, "_r", state, x))
        state = (1 - z) * state + z * erf(_gate(w, "_h", r * state, x))
        states.append(state)
    return np.array(states)


def lstm(w: Weights, tokens: np.ndarray) -> np.ndarray:
    h, c, states = np.zeros(len(w["v"])), np.zeros(len(w["v"])), []
    for x in tokens:
        i, f, o = (sigmoid(_gate(w, g, h, x)) for g in ("_i", "_f", "_o"))
        c = f * c + i * np.tanh(_gate(w, "_g", h, x))
        h = o * np.tanh(c)
        states.append(h)
    return np.array(states)


# Convolutions


def _positions(size: int, kernel: int, stride: int, dilation: int, padding: str) -> tuple[int, int]:
    """How many outputs an axis has, and how far left of the image the first window begins."""
    reach = dilation * (kernel - 1)
    if padding == "valid":
        return (size - reach - 1) // stride + 1, 0
    count = -(-size // stride)
    if padding == "circular":
        return count, reach // 2
    return count, max((count - 1) * stride + reach + 1 - size, 0) // 2


def _pixel(x: np.ndarray, row: int, col: int, padding: str) -> np.ndarray:
    """The channels at a place, which may lie outside the image."""
    height, width = x.shape[:2]
    if padding == "circular":
        return x[row % height, col % width]
    inside = 0 <= row < height and 0 <= col < width
    return x[row, col] if inside else np.zeros(x.shape[2])


def conv2d(
    W: np.ndarray, b: np.ndarray, x: np.ndarray, padding: str, stride: int, dilation: int
) -> np.ndarray:
    """out[p, q] = b + sum over kernel places (i, j) of W[i, j] x[stride (p, q) + dilation (i, j) - start]."""
    rows, top = _positions(x.shape[0], W.shape[0], stride, dilation, padding)
    cols, left = _positions(x.shape[1], W.shape[1], stride, dilation, padding)
    out = np.tile(b, (rows, cols, 1))
    for p, q in np.ndindex(rows, cols):
        for i, j in np.ndindex(W.shape[:2]):
            place = p * stride + i * dilation - top, q * stride + j * dilation - left
            out[p, q] += W[i, j] @ _pixel(x, *place, padding)
    return out


def pool2x2(x: np.ndarray, reduce: Callable[..., np.ndarray]) -> np.ndarray:
    """Disjoint 2 x 2 windows; an odd row or column at the end is left out."""
    rows, cols = x.shape[0] // 2, x.shape[1] // 2
    return np.array(
        [
            [reduce(x[2 * p : 2 * p + 2, 2 * q : 2 * q + 2], axis=(0, 1)) for q in range(cols)]
            for p in range(rows)
        ]
    )


def cnn(
    w: Weights,
    x: np.ndarray,
    depth: int = 2,
    padding: str = "same",
    readout: str = "gap",
    pool: str | None = None,
    stride: int = 1,
    dilation: int = 1,
) -> np.ndarray:
    for layer in range(1, depth + 1):
        if layer > 1 and pool is not None:
            x = pool2x2(x, {"max": np.max, "mean": np.mean}[pool])
        x = relu(conv2d(w[f"W{layer}"], w[f"b{layer}"], x, padding, stride, dilation))
    pixels = x.reshape(-1, x.shape[-1])
    return pixels.mean(axis=0)[None] if readout == "gap" else pixels


def graph_conv(
    w: Weights, graph: tuple[np.ndarray, np.ndarray], depth: int = 1, readout: str = "node"
) -> np.ndarray:
    nodes, adjacency = graph
    for layer in range(1, depth + 1):
        sent = [w[f"W{layer}"] @ x for x in nodes]
        nodes = np.array(
            [relu(sum(a * s for a, s in zip(row, sent, strict=True)) + w[f"b{layer}"]) for row in adjacency]
        )
    return nodes if readout == "node" else nodes.mean(axis=0)[None]


# Transformer


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """For each token i: the average of v_j with weights proportional to exp(q_i . k_j / n)."""
    out = np.empty_like(v)
    for i, q_i in enumerate(q):
        seen = range(i + 1 if causal else len(k))
        p = np.array([np.exp(q_i @ k[j] / len(q_i)) for j in seen])
        out[i] = sum(p_j * v[j] for p_j, j in zip(p, seen, strict=True)) / p.sum()
    return out


def head(Uq: np.ndarray, Uk: np.ndarray, Uv: np.ndarray, tokens: np.ndarray, causal: bool) -> np.ndarray:
    """Values plus attention over them."""
    q, k, v = (np.array([U @ x for x in tokens]) for U in (Uq, Uk, Uv))
    return v + attention(q, k, v, causal)


def transformer(
    w: Weights,
    tokens: np.ndarray,
    depth: int = 1,
    heads: int = 1,
    causal: bool = True,
    tied: bool = True,
    skip: str = "paper",
) -> np.ndarray:
    for layer in range(1, depth + 1):
        queries, keys, values = (
            w[f"{part}{layer}"] for part in (("U", "U", "U") if tied else ("Uq", "Uk", "Uv"))
        )
        if heads == 1:
            mixed = head(queries, keys, values, tokens, causal)
        else:
            each = [head(queries[a], keys[a], values[a], tokens, causal) for a in range(heads)]
            mixed = np.array(
                [sum(w[f"O{layer}"][a] @ each[a][i] for a in range(heads)) for i in range(len(tokens))]
            )
        tokens = np.array([_feedforward(w, layer, layernorm(x), skip) for x in mixed])
    return tokens


def _feedforward(w: Weights, layer: int, h: np.ndarray, skip: str) -> np.ndarray:
    y = w[f"W1_{layer}"] @ h
    inner = w[f"W2_{layer}"] @ relu(y + w[f"b1_{layer}"]) + w[f"b2_{layer}"]
    return layernorm(inner + (y if skip == "paper" else h))
