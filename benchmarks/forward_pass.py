"""Compare one forward pass of netsor with plain vectorised NumPy on the same weights.

Both run in turn, and the best of several runs counts. Run it as `python benchmarks/forward_pass.py`;
the last line names the networks that take more than 1.5 times as long as plain NumPy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from scipy.special import erf, expit

import netsor as ns
from netsor import zoo
from netsor.simulation import draw
from netsor.simulation.forward import forward, plan

TARGET = 1.5
ROUNDS = 7
SECONDS = 1.5  # keep going at least this long

Weights = Mapping[str, np.ndarray]


# Plain NumPy: what the readout reads, as rows


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def erf_gate(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + erf(x))


def layernorm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True))


def mlp(w: Weights, x: np.ndarray, depth: int) -> np.ndarray:
    for layer in range(1, depth + 1):
        x = relu(x @ w[f"W{layer}"].T + w[f"b{layer}"])
    return x


def resnet(w: Weights, x: np.ndarray, depth: int) -> np.ndarray:
    x = x @ w["U"].T
    for layer in range(1, depth + 1):
        x = x + relu(x @ w[f"W{layer}"].T + w[f"b{layer}"])
    return x


def densenet(w: Weights, x: np.ndarray, depth: int) -> np.ndarray:
    layers = [relu(x @ w["W1"].T + w["b1"])]
    for layer in range(2, depth + 1):
        products = [layers[k - 1] @ w[f"W{layer}_{k}"].T for k in range(1, layer)]
        layers.append(relu(sum(products, start=w[f"b{layer}"])))
    return layers[-1]


def layernorm_mlp(w: Weights, x: np.ndarray, depth: int) -> np.ndarray:
    for layer in range(1, depth + 1):
        x = relu(layernorm(x @ w[f"W{layer}"].T + w[f"b{layer}"]))
    return x


def batchnorm_mlp(w: Weights, x: np.ndarray, depth: int) -> np.ndarray:
    for layer in range(1, depth + 1):
        h = x @ w[f"W{layer}"].T
        centred = h - h.mean(axis=0)
        x = relu(centred / np.sqrt(np.mean(centred * centred, axis=0)))
    return x


def graph_conv(w: Weights, graph: tuple[np.ndarray, np.ndarray], depth: int) -> np.ndarray:
    x, adjacency = graph
    for layer in range(1, depth + 1):
        x = relu(adjacency @ (x @ w[f"W{layer}"].T) + w[f"b{layer}"])
    return x


def simple_rnn(w: Weights, tokens: np.ndarray) -> np.ndarray:
    seen = tokens @ w["U"].T + w["b"]
    states = np.empty_like(seen)
    states[0] = erf(seen[0])
    for t in range(1, len(seen)):
        states[t] = erf(states[t - 1] @ w["W"].T + seen[t])
    return states


def gru(w: Weights, tokens: np.ndarray) -> np.ndarray:
    z_in, r_in, h_in = (tokens @ w[f"U_{g}"].T + w[f"b_{g}"] for g in "zrh")
    states = np.empty_like(h_in)
    state = w.get("h0")
    for t in range(len(tokens)):
        if state is None:
            state = erf_gate(z_in[t]) * erf(h_in[t])
        else:
            z = erf_gate(state @ w["W_z"].T + z_in[t])
            r = erf_gate(state @ w["W_r"].T + r_in[t])
            state = (1 - z) * state + z * erf((r * state) @ w["W_h"].T + h_in[t])
        states[t] = state
    return states


def lstm(w: Weights, tokens: np.ndarray) -> np.ndarray:
    seen = {g: tokens @ w[f"U_{g}"].T + w[f"b_{g}"] for g in "ifgo"}
    h = c = None
    states = np.empty_like(seen["i"])
    for t in range(len(tokens)):
        pre = {g: s[t] if h is None else h @ w[f"W_{g}"].T + s[t] for g, s in seen.items()}
        new = expit(pre["i"]) * np.tanh(pre["g"])
        c = new if c is None else expit(pre["f"]) * c + new
        h = states[t] = expit(pre["o"]) * np.tanh(c)
    return states


def conv3x3(W: np.ndarray, b: np.ndarray, x: np.ndarray, padding: str, stride: int) -> np.ndarray:
    """The sum over kernel positions of a matrix times the shifted image."""
    height, width = x.shape[:2]
    rows, cols = -(-height // stride), -(-width // stride)
    reach = [max((count - 1) * stride + 3 - size, 0) for count, size in ((rows, height), (cols, width))]
    edges = [(total // 2, total - total // 2) for total in reach]
    padded = np.pad(x, [*edges, (0, 0)], mode="wrap" if padding == "circular" else "constant")
    out = np.zeros((rows * cols, W.shape[-2]))
    for i, j in np.ndindex(3, 3):
        part = padded[i : i + (rows - 1) * stride + 1 : stride, j : j + (cols - 1) * stride + 1 : stride]
        out += part.reshape(rows * cols, -1) @ W[i, j].T
    return out.reshape(rows, cols, -1) + b


def pool2x2(x: np.ndarray, pool: str | None) -> np.ndarray:
    if pool is None:
        return x
    windows = x.reshape(x.shape[0] // 2, 2, x.shape[1] // 2, 2, -1)
    return windows.max(axis=(1, 3)) if pool == "max" else windows.mean(axis=(1, 3))


def cnn(
    w: Weights,
    x: np.ndarray,
    padding: str = "same",
    readout: str = "gap",
    pool: str | None = None,
    stride: int = 1,
) -> np.ndarray:
    x = relu(conv3x3(w["W1"], w["b1"], x, padding, stride))
    x = relu(conv3x3(w["W2"], w["b2"], pool2x2(x, pool), padding, stride))
    return x.mean(axis=(0, 1)) if readout == "gap" else x


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """Over the last but one axis, for every head."""
    logits = q @ np.swapaxes(k, -1, -2) / q.shape[-1]
    if causal:
        logits = np.where(np.tri(logits.shape[-1], dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def project(U: np.ndarray, x: np.ndarray) -> np.ndarray:
    """One matrix, or one for each head, on all tokens."""
    return x @ np.swapaxes(U, -1, -2)


def transformer(
    w: Weights, x: np.ndarray, depth: int = 1, heads: int = 1, causal: bool = True, tied: bool = True
) -> np.ndarray:
    for layer in range(1, depth + 1):
        if tied:
            q = k = v = project(w[f"U{layer}"], x)
        else:
            q, k, v = (project(w[f"{part}{layer}"], x) for part in ("Uq", "Uk", "Uv"))
        mixed = v + attention(q, k, v, causal)
        if heads > 1:
            mixed = sum(part @ out.T for part, out in zip(mixed, w[f"O{layer}"], strict=True))
        y = layernorm(mixed) @ w[f"W1_{layer}"].T
        x = layernorm(relu(y + w[f"b1_{layer}"]) @ w[f"W2_{layer}"].T + w[f"b2_{layer}"] + y)
    return x


# The table


@dataclass(frozen=True)
class Row:
    """A network, its plain counterpart and an input."""

    label: str
    net: ns.Network
    plain: Callable[[Weights, Any], np.ndarray]
    x: Any


def rows() -> list[Row]:
    rng = np.random.default_rng(0)
    vector, tokens = rng.standard_normal(10), rng.standard_normal((8, 10))
    batch, image = rng.standard_normal((16, 10)), rng.standard_normal((8, 8, 3))
    graph = (batch, ns.normalized_adjacency(rng.random((16, 16)) < 0.2))
    networks: list[tuple[str, Any, Any, Any, dict[str, Any]]] = [
        ("mlp", zoo.mlp, mlp, vector, {"depth": 3}),
        ("resnet", zoo.resnet, resnet, vector, {"depth": 3}),
        ("densenet", zoo.densenet, densenet, vector, {"depth": 3}),
        ("layernorm_mlp", zoo.layernorm_mlp, layernorm_mlp, vector, {"depth": 3}),
        ("batchnorm_mlp", zoo.batchnorm_mlp, batchnorm_mlp, batch, {"depth": 3}),
        ("graph_conv", zoo.graph_conv, graph_conv, graph, {"depth": 3}),
        ("simple_rnn", zoo.simple_rnn, simple_rnn, tokens, {}),
        ("gru", zoo.gru, gru, tokens, {}),
        ("lstm", zoo.lstm, lstm, tokens, {}),
        ("cnn", zoo.cnn, cnn, image, {}),
        ("cnn, flatten", zoo.cnn, cnn, image, {"readout": "flatten"}),
        ("cnn, circular", zoo.cnn, cnn, image, {"padding": "circular"}),
        ("cnn, stride 2", zoo.cnn, cnn, image, {"stride": 2}),
        ("cnn, max pool", zoo.cnn, cnn, image, {"pool": "max"}),
        ("cnn, mean pool", zoo.cnn, cnn, image, {"pool": "mean"}),
        ("transformer", zoo.transformer, transformer, tokens, {}),
        ("transformer, depth 2", zoo.transformer, transformer, tokens, {"depth": 2}),
        ("transformer, 4 heads", zoo.transformer, transformer, tokens, {"depth": 2, "heads": 4}),
        (
            "transformer, untied",
            zoo.transformer,
            transformer,
            tokens,
            {"depth": 2, "heads": 4, "tied": False, "causal": False},
        ),
    ]
    made = [Row(label, net(**o), partial(plain, **o), x) for label, net, plain, x, o in networks]
    with_state = Row("gru, random h0", zoo.gru(var_h0=1.0), gru, tokens)
    return [*made[:8], with_state, *made[8:]]


def best_times(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float]:
    """Shortest time of each in seconds, run in turn."""
    best = [np.inf, np.inf]
    start, done = perf_counter(), 0
    while done < ROUNDS or perf_counter() - start < SECONDS:
        for i, run in enumerate((first, second)):
            begin = perf_counter()
            run()
            best[i] = min(best[i], perf_counter() - begin)
        done += 1
    return best[0], best[1]


def measure(row: Row, width: int) -> tuple[float, float]:
    """Times of plain NumPy and of netsor, after a check that they agree."""
    program = ns.program(row.net, row.x)
    weights = draw(program, dict.fromkeys(program.widths, width), np.random.default_rng(1))
    steps = plan(program)
    values = forward(program, weights, steps=steps)
    read = [values[term.operand].array for out in program.outputs for term in out.terms]
    want = row.plain(weights, row.x)
    got = np.stack(read).reshape(want.shape)
    if np.abs(got - want).max() > 1e-10 * np.abs(want).max():
        raise SystemExit(f"{row.label}: netsor and plain NumPy disagree")
    return best_times(lambda: row.plain(weights, row.x), lambda: forward(program, weights, steps=steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--only", default="", help="rows whose label begins with this")
    options = parser.parse_args()
    missed = []
    print(f"width {options.width}, float64\n\n{'network':22}{'plain ms':>10}{'netsor ms':>11}{'ratio':>8}")
    for row in rows():
        if not row.label.startswith(options.only):
            continue
        plain, ours = measure(row, options.width)
        print(f"{row.label:22}{1e3 * plain:10.2f}{1e3 * ours:11.2f}{ours / plain:8.2f}", flush=True)
        if ours / plain > TARGET:
            missed.append(row.label)
    print(f"\nabove {TARGET}: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
