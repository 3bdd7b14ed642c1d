"""Layers beside those of neural-tangents: kernels and tangent kernels in `neural_tangents.json`.

Written by `make_neural_tangents_references.py`, which has the same networks under the same names. Where
neural-tangents is wrong, its number is not used, and `WRONG` says what decides instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns

REFERENCES = json.loads(Path(__file__).with_name("neural_tangents.json").read_text())
DATA = {name: np.array(values) for name, values in REFERENCES["inputs"].items()}
KERNELS: dict[str, dict[str, Any]] = REFERENCES["kernels"]
VAR_W, VAR_B = 1.3**2, 0.4**2
NETWORKS: dict[str, Callable[[Any], Any]] = {}


def dense() -> ns.Dense:
    return ns.Dense(VAR_W, VAR_B)


def readout() -> ns.Dense:
    return ns.Dense(1.2**2, 0.3**2, rows=1)


def serial(*layers: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def network(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    return network


# MLPs

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": ns.relu,
    "leaky_relu": lambda h: ns.leaky_relu(h, slope=0.2),
    "abs": ns.abs,
    "abrelu": lambda h: ns.abrelu(h, -0.5, 1.5),
    "sign": ns.sign,
    "erf": ns.erf,
    "gelu": ns.gelu,
    "sin": ns.sin,
    "cos": ns.cos,
    "exp": lambda h: 0.9 * ns.exp(0.5 * h),
    "gaussian": lambda h: 0.8 * ns.gaussian(h, rate=0.6),
    "gabor": ns.gabor,
    "rbf": lambda h: ns.rbf(h, 0.7),
    "exp_normalized": lambda h: ns.exp_normalized(h, 0.8, -0.5),
    "polynomial": lambda h: ns.polynomial(h, coefs=(0.3, -1.0, 0.5, 0.2)),
    "sigmoid_like": ns.sigmoid_like,
}
ACTIVATIONS |= {f"monomial {d}": lambda h, d=d: ns.monomial(h, d) for d in range(6)}
ACTIVATIONS |= {f"rectified_monomial {d}": lambda h, d=d: ns.rectified_monomial(h, d) for d in range(5)}
for name, phi in ACTIVATIONS.items():
    NETWORKS[f"mlp, {name}"] = serial(dense(), phi, readout())
for name in ("relu", "erf", "gelu", "sin"):
    phi = ACTIVATIONS[name]
    NETWORKS[f"deep mlp, {name}"] = serial(dense(), phi, dense(), phi, dense(), phi, readout())
for d in (1, 2, 3):
    NETWORKS[f"hermite {d}"] = serial(
        ns.Dense(VAR_W), ns.layernorm, lambda h, d=d: ns.hermite(h, d), readout()
    )


def _skip() -> Callable[[Any], Any]:
    layer = dense()
    return lambda h: h + layer(ns.relu(h))


NETWORKS["resnet"] = serial(dense(), _skip(), _skip(), ns.relu, readout())
NETWORKS["dependent branches"] = serial(dense(), lambda h: ns.relu(h + ns.layernorm(h)), readout())
NETWORKS["square"] = serial(dense(), lambda h: h * h, readout())
NETWORKS["layernorm mlp"] = serial(dense(), ns.layernorm, ns.relu, dense(), ns.layernorm, ns.relu, readout())


def _joined() -> Callable[[Any], Any]:
    first, left, right, last, out = dense(), dense(), dense(), dense(), readout()

    def network(x: Any) -> Any:
        h = first(x)
        both = ns.concat([ns.relu(left(h)), ns.erf(right(h))], axis="width", shares=(2, 1))
        return out(ns.relu(last(both)))

    return network


NETWORKS["concatenation"] = _joined()
NETWORKS["dropout"] = serial(dense(), ns.relu, ns.Dropout(0.7), dense(), ns.relu, ns.Dropout(0.7), readout())

# Convolutions

PADDINGS = {"same": "same", "valid": "valid", "circular": "wrap"}
ENDS: dict[str, Callable[[Any], Any]] = {"flat": ns.flatten, "gap": ns.global_mean_pool}


def conv(kernel: Any, padding: str = "same", stride: int = 1, dims: int = 2, **options: Any) -> Any:
    kind = (ns.Conv1d, ns.Conv2d, ns.Conv3d)[dims - 1]
    return kind(kernel, stride, padding=padding, var_w=VAR_W, var_b=VAR_B, **options)


def _local(padding: str, stride: int) -> Callable[[Any], Any]:
    first = {"valid": (4, 4)}.get(padding, (6, 5))
    first = tuple(-(-n // stride) for n in first)
    second = tuple(n - 1 for n in first) if padding == "valid" else first
    return serial(conv((3, 2), padding, stride, local=first), ns.relu, conv(2, padding, local=second), ns.erf)


for name, padding in PADDINGS.items():
    for end, pool in ENDS.items():
        for stride in (1, 2, 3):
            key = f"{name}, stride {stride}, {end}"
            up = conv((3, 2), padding, stride, transposed=True)
            NETWORKS[f"transposed, {key}"] = serial(conv(1), ns.relu, up, ns.erf, pool, readout())
            if stride < 3:
                NETWORKS[f"conv, {key}"] = serial(conv((3, 2), padding, stride), ns.relu, pool, readout())
                NETWORKS[f"local, {key}"] = serial(_local(padding, stride), pool, readout())
    NETWORKS[f"deep conv, {name}"] = serial(
        conv((3, 2), padding), ns.relu, conv((3, 2), padding), ns.relu, ns.global_mean_pool, readout()
    )
    NETWORKS[f"conv1d, {name}"] = serial(conv(3, padding, 2, dims=1), ns.relu, ns.global_mean_pool, readout())
    NETWORKS[f"conv3d, {name}"] = serial(
        conv((2, 3, 2), padding, dims=3), ns.relu, ns.global_mean_pool, readout()
    )

# Pools


def pooled(pool: Callable[[Any], Any], *after: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return serial(conv(3), ns.relu, pool, *(after or (ns.flatten,)), readout())


for name, padding in PADDINGS.items():
    for stride in ((2, 2), (1, 2)):
        key, options = f"{name}, {stride}", ((3, 2), stride, padding)
        NETWORKS[f"pool mean, {key}"] = pooled(lambda h, o=options: ns.mean_pool(h, *o))
        NETWORKS[f"pool mean, no edges, {key}"] = pooled(
            lambda h, o=options: ns.mean_pool(h, *o, edges=False)
        )
        NETWORKS[f"pool sum, {key}"] = pooled(lambda h, o=options: ns.sum_pool(h, *o))
NETWORKS["global sum"] = pooled(lambda h: ns.sum(h, axis=(-2, -1)), lambda h: h)


def resized(resize: Callable[[Any], Any], *after: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return serial(conv(3), ns.relu, conv(1), ns.relu, resize, *(after or (ns.flatten,)), readout())


for method in ("nearest", "linear"):
    for shape in ((9, 4), (3, 11)):
        after = conv(2), ns.relu, ns.global_mean_pool
        NETWORKS[f"resize {method} {shape}"] = resized(
            lambda h, s=shape, m=method: ns.resize(h, s, m), *after
        )
NETWORKS["resize linear, no antialias"] = resized(lambda h: ns.resize(h, (3, 2), antialias=False))
NETWORKS["resize after one"] = pooled(lambda h: ns.resize(h, (3, 2), antialias=False))

# Attention


def attention(end: Callable[[Any], Any], code: Any = 0, values: bool = False, **options: Any) -> Any:
    embed = ns.Dense(VAR_W, VAR_B)
    scale = {} if options.get("heads") else {"scale": 1.1 * 0.9}
    Q, V, out = ns.Matrix(), ns.Matrix(1.2**2), ns.Matrix(0.8**2)
    b, last = ns.Vector(0.3**2), readout()

    def network(x: Any) -> Any:
        h = embed(x)
        seen = h + code
        q = Q @ seen
        found = ns.attention(q, q, V @ (seen if values else h), **scale, **options)
        return last(end(ns.relu(out @ found + b)))

    return network


def many_heads(end: Callable[[Any], Any]) -> Any:
    embed, layer = ns.Dense(VAR_W, VAR_B), ns.Attention(math.inf, weights="identity", scale=0.99 * 0.96)
    b, out = ns.Vector(0.3**2), readout()
    return serial(embed, layer, lambda h: ns.relu(h + b), end, out)


DISTANCES = (np.arange(5)[:, None] - np.arange(5)) ** 2.0
for key, end in ENDS.items():
    NETWORKS[f"attention, softmax, {key}"] = attention(end)
    NETWORKS[f"attention, identity, {key}"] = attention(end, weights="identity")
    NETWORKS[f"attention, relu, {key}"] = attention(end, weights=ns.relu)
    learned = ns.Vector(0.7**2, index=(5,))
    NETWORKS[f"attention, positions, {key}"] = attention(end, learned)
    NETWORKS[f"attention, positions, values, {key}"] = attention(end, learned, True)
    decay = ns.Vector(1 / (1 + DISTANCES))
    NETWORKS[f"attention, positions, decay, {key}"] = attention(end, decay)
    NETWORKS[f"attention, many heads, {key}"] = many_heads(end)

# Norms, graphs, masks

for axis, own in {(-1,): (), (1, 2, 3): (0, 1), (2, 3): (1,)}.items():
    NETWORKS[f"layernorm {axis}"] = serial(
        conv(3), lambda h, own=own: ns.relu(ns.layernorm(h, axis=own)), ns.global_mean_pool, readout()
    )


def _graph() -> Callable[[Any], Any]:
    first, second, out = dense(), dense(), readout()

    def network(x: Any) -> Any:
        nodes, edges = x
        h = ns.contract(edges.transpose(1, 0), ns.relu(first(nodes)))  # from i to j there
        return out(ns.global_mean_pool(ns.relu(second(h)), dims=1))

    return network


def _masked(dims: int) -> Callable[[Any], Any]:
    first, second, out = conv(3, dims=dims), conv(2, dims=dims), readout()

    def network(given: Any) -> Any:
        x, mask = given
        h = first(x * mask[..., None])
        h = second(ns.relu(h) * mask)
        return out(ns.global_mean_pool(ns.erf(h), mask=mask))

    return network


def _masked_attention() -> Callable[[Any], Any]:
    embed, last = ns.Dense(VAR_W, VAR_B), readout()
    Q, V, out, b = ns.Matrix(), ns.Matrix(), ns.Matrix(0.8**2), ns.Vector(0.3**2)

    def network(given: Any) -> Any:
        x, mask = given
        h = embed(x)
        q = Q @ h
        found = out @ ns.attention(q, q, V @ h, mask=mask[None, :]) + b
        return last(ns.global_mean_pool(ns.relu(found), mask=mask))

    return network


NETWORKS["graph"] = _graph()
NETWORKS["masked sequences"] = _masked(1)
NETWORKS["masked images"] = _masked(2)
NETWORKS["masked attention"] = _masked_attention()


def inputs_of(name: str) -> Any:
    of = KERNELS[name]["of"]
    if of == "graphs":
        return list(zip(DATA["sequences"], DATA["graphs"], strict=True))
    if of.endswith("mask"):
        return list(zip(DATA[f"{of.split()[0]}s"], DATA[of], strict=True))
    return DATA[of]


# Branches count as independent there. After an odd number of convolutions ImageResize takes height for width.
WRONG = ["dependent branches", "square", "resize after one"]


def test_every_reference_has_its_network():
    assert set(NETWORKS) == set(KERNELS)


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("name", WRONG)
def test_where_it_is_wrong_simulations_agree_with_us(name, kind):
    x, net = inputs_of(name), ns.network(NETWORKS[name])
    simulate, limit = {"nngp": (ns.empirical_kernel, ns.kernel), "ntk": (ns.empirical_ntk, ns.ntk)}[kind]
    draws = simulate(net, x, width=300, samples=40, seed=0)
    mean, error = draws.mean(0), draws.std(0, ddof=1) / np.sqrt(len(draws))
    assert np.abs((limit(net)(x) - mean) / error).max() < 4.5
    assert np.abs((np.array(KERNELS[name][kind]) - mean) / error).max() > 10


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in WRONG])
def test_kernel_and_tangent_kernel(name):
    x = inputs_of(name)
    K = ns.ntk(ns.network(NETWORKS[name]))
    for found, want in zip(K.both(x), (KERNELS[name]["nngp"], KERNELS[name]["ntk"]), strict=True):
        want = np.array(want)
        others = ~np.eye(len(want), dtype=bool)  # its diagonal has lost digits in roots of differences
        np.testing.assert_allclose(
            found[others], want[others], rtol=0, atol=1e-12 * np.abs(want[others]).max()
        )
        there = np.isfinite(np.diag(want))  # that of RectifiedMonomial is NaN
        np.testing.assert_allclose(np.diag(found)[there], np.diag(want)[there], rtol=1e-7)
