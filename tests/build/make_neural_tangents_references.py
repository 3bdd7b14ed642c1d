"""Writes neural_tangents.json: kernels and tangent kernels of small networks, by neural-tangents.

`test_neural_tangents.py` has the same networks under the same names. The versions are those of
`benchmarks/environments.py`:

    pip install "neural-tangents==0.6.5" "jax==0.5.3" "jaxlib==0.5.3" "tf2jax<0.3.8"
    python tests/build/make_neural_tangents_references.py
"""

from __future__ import annotations

import importlib
import json
import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

os.environ["JAX_ENABLE_X64"] = "1"
stax: Any = importlib.import_module("neural_tangents").stax if find_spec("neural_tangents") else None

W, B = 1.3, 0.4  # standard deviations of hidden weights and biases
WO, BO = 1.2, 0.3  # of readouts
MASKED = -100.0


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"vectors": (4, 3), "sequences": (3, 5, 2), "images": (3, 6, 5, 2), "volumes": (2, 3, 4, 3, 2)}
    found = {name: rng.standard_normal(shape).round(3) for name, shape in shapes.items()}
    adjacency = (rng.random((3, 5, 5)) < 0.5).astype(float)
    found["graphs"] = adjacency * rng.uniform(0.2, 1.5, (3, 5, 5)).round(3)
    found["sequence mask"] = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0]], float)
    mask = np.ones((3, 6, 5))
    mask[1, 4:], mask[1, :, 3:], mask[2, 2, 2], mask[2, 0] = 0, 0, 0, 0
    found["image mask"] = mask
    return found


def dense() -> Any:
    return stax.Dense(1, W, B)


def readout() -> Any:
    return stax.Dense(1, WO, BO)


def conv(shape: tuple[int, ...], padding: str = "SAME", stride: int = 1, kind: Any = None) -> Any:
    strides = (stride,) * len(shape)
    return (kind or stax.Conv)(1, shape, strides=strides, padding=padding, W_std=W, b_std=B)


def activations() -> dict[str, Any]:
    found = {
        "relu": stax.Relu(),
        "leaky_relu": stax.LeakyRelu(0.2),
        "abs": stax.Abs(),
        "abrelu": stax.ABRelu(-0.5, 1.5),
        "sign": stax.Sign(),
        "erf": stax.Erf(),
        "gelu": stax.Gelu(),
        "sin": stax.Sin(),
        "cos": stax.Cos(),
        "exp": stax.Exp(0.9, 0.5),
        "gaussian": stax.Gaussian(0.8, -0.6),
        "gabor": stax.Gabor(),
        "rbf": stax.Rbf(0.7),
        "exp_normalized": stax.ExpNormalized(0.8, -0.5),
        "polynomial": stax.Polynomial([0.3, -1.0, 0.5, 0.2]),
        "sigmoid_like": stax.Sigmoid_like(),
    }
    found |= {f"monomial {d}": stax.Monomial(d) for d in range(6)}
    found |= {f"rectified_monomial {d}": stax.RectifiedMonomial(d) for d in range(5)}
    return found


def networks() -> dict[str, tuple[str, Any]]:
    """By name: which inputs, and the network."""
    found: dict[str, tuple[str, Any]] = {}
    for name, phi in activations().items():
        found[f"mlp, {name}"] = "vectors", stax.serial(dense(), phi, readout())
    for name in ("relu", "erf", "gelu", "sin"):
        phi = activations()[name]
        found[f"deep mlp, {name}"] = "vectors", stax.serial(*(dense(), phi) * 3, readout())
    for degree in (1, 2, 3):
        body = stax.Dense(1, W), stax.LayerNorm(eps=0.0), stax.Hermite(degree)
        found[f"hermite {degree}"] = "vectors", stax.serial(*body, readout())
    branch = stax.parallel(stax.serial(stax.Relu(), dense()), stax.Identity())
    found["resnet"] = (
        "vectors",
        stax.serial(dense(), *(stax.FanOut(2), branch, stax.FanInSum()) * 2, stax.Relu(), readout()),
    )
    own = stax.parallel(stax.Identity(), stax.LayerNorm(eps=0.0))
    both = stax.FanOut(2), own, stax.FanInSum()
    found["dependent branches"] = "vectors", stax.serial(dense(), *both, stax.Relu(), readout())
    twice = stax.FanOut(2), stax.parallel(stax.Identity(), stax.Identity()), stax.FanInProd()
    found["square"] = "vectors", stax.serial(dense(), *twice, readout())
    found["layernorm mlp"] = (
        "vectors",
        stax.serial(*(dense(), stax.LayerNorm(eps=0.0), stax.Relu()) * 2, readout()),
    )
    parts = stax.parallel(
        stax.serial(stax.Dense(2, W, B), stax.Relu()), stax.serial(stax.Dense(1, W, B), stax.Erf())
    )
    found["concatenation"] = (
        "vectors",
        stax.serial(dense(), stax.FanOut(2), parts, stax.FanInConcat(-1), dense(), stax.Relu(), readout()),
    )
    drop = stax.Dropout(0.7)
    found["dropout"] = "vectors", stax.serial(*(dense(), stax.Relu(), drop) * 2, readout())
    found |= convolutions() | pools() | attentions() | others()
    return found


def convolutions() -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    ends = {"flat": stax.Flatten(), "gap": stax.GlobalAvgPool()}
    for padding in ("SAME", "VALID", "CIRCULAR"):
        for stride in (1, 2):
            layers = conv((3, 2), padding, stride), stax.Relu()
            for end, pool in ends.items():
                name = f"conv, {padding.lower()}, stride {stride}, {end}"
                found[name] = "images", stax.serial(*layers, pool, readout())
        deep = (conv((3, 2), padding), stax.Relu()) * 2
        found[f"deep conv, {padding.lower()}"] = "images", stax.serial(*deep, ends["gap"], readout())
        for stride in (1, 2, 3):
            up = conv((3, 2), padding, stride, stax.ConvTranspose)
            layers = conv((1, 1)), stax.Relu(), up, stax.Erf()
            for end, pool in ends.items():
                name = f"transposed, {padding.lower()}, stride {stride}, {end}"
                found[name] = "images", stax.serial(*layers, pool, readout())
        for stride in (1, 2):
            local = (
                conv((3, 2), padding, stride, stax.ConvLocal),
                stax.Relu(),
                conv((2, 2), padding, 1, stax.ConvLocal),
                stax.Erf(),
            )
            for end, pool in ends.items():
                name = f"local, {padding.lower()}, stride {stride}, {end}"
                found[name] = "images", stax.serial(*local, pool, readout())
        line, cube = conv((3,), padding, 2), conv((2, 3, 2), padding)
        found[f"conv1d, {padding.lower()}"] = (
            "sequences",
            stax.serial(line, stax.Relu(), ends["gap"], readout()),
        )
        found[f"conv3d, {padding.lower()}"] = (
            "volumes",
            stax.serial(cube, stax.Relu(), ends["gap"], readout()),
        )
    return found


def pools() -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    body = conv((3, 3)), stax.Relu()
    for padding in ("SAME", "VALID", "CIRCULAR"):
        for stride in ((2, 2), (1, 2)):
            options = {"strides": stride, "padding": padding}
            kinds = {
                "mean": stax.AvgPool((3, 2), **options, normalize_edges=True),
                "mean, no edges": stax.AvgPool((3, 2), **options, normalize_edges=False),
                "sum": stax.SumPool((3, 2), **options),
            }
            for name, pool in kinds.items():
                layers = *body, pool, stax.Flatten(), readout()
                found[f"pool {name}, {padding.lower()}, {stride}"] = "images", stax.serial(*layers)
    found["global sum"] = "images", stax.serial(*body, stax.GlobalSumPool(), readout())
    plain = stax.ImageResize((-1, 3, 2, -1), method="linear", antialias=False)
    found["resize after one"] = "images", stax.serial(*body, plain, stax.Flatten(), readout())
    body = *body, conv((1, 1)), stax.Relu()  # after an even number of convolutions its axes are in order
    found["resize linear, no antialias"] = "images", stax.serial(*body, plain, stax.Flatten(), readout())
    for method in ("nearest", "linear"):
        for shape in ((9, 4), (3, 11)):
            sized = stax.ImageResize((-1, *shape, -1), method=method)
            found[f"resize {method} {shape}"] = (
                "images",
                stax.serial(*body, sized, conv((2, 2)), stax.Relu(), stax.GlobalAvgPool(), readout()),
            )
    return found


def attentions() -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    common = {"W_key_std": 1.1, "W_query_std": 0.9, "W_value_std": 1.2, "W_out_std": 0.8, "b_std": 0.3}

    def layer(**options: Any) -> Any:
        return stax.GlobalSelfAttention(1, 1, 1, 1, **{**common, **options})

    kinds = {
        "softmax": layer(),
        "identity": layer(attention_mechanism="IDENTITY"),
        "relu": layer(attention_mechanism="RELU"),
        "positions": layer(pos_emb_type="SUM", W_pos_emb_std=0.7),
        "positions, decay": layer(pos_emb_type="SUM", pos_emb_decay_fn=lambda d: 1 / (1 + d)),
        "positions, values": layer(pos_emb_type="SUM", W_pos_emb_std=0.7, val_pos_emb=True),
        "many heads": layer(linear_scaling=False, attention_mechanism="IDENTITY"),
    }
    for name, attention in kinds.items():
        for end, pool in {"flat": stax.Flatten(), "gap": stax.GlobalAvgPool()}.items():
            layers = conv((1,)), attention, stax.Relu(), pool, readout()
            found[f"attention, {name}, {end}"] = "sequences", stax.serial(*layers)
    return found


def others() -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for axis in ((-1,), (1, 2, 3), (2, 3)):
        norm = stax.LayerNorm(axis, eps=0.0)
        found[f"layernorm {axis}"] = (
            "images",
            stax.serial(conv((3, 3)), norm, stax.Relu(), stax.GlobalAvgPool(), readout()),
        )
    body = conv((1,)), stax.Relu(), stax.Aggregate(1, 0, 2), dense(), stax.Relu()
    found["graph"] = "graphs", stax.serial(*body, stax.GlobalAvgPool(), readout())
    layers = conv((3,)), stax.Relu(), conv((2,)), stax.Erf(), stax.GlobalAvgPool(), readout()
    found["masked sequences"] = "sequence mask", stax.serial(*layers)
    layers = conv((3, 3)), stax.Relu(), conv((2, 2)), stax.Erf(), stax.GlobalAvgPool(), readout()
    found["masked images"] = "image mask", stax.serial(*layers)
    layers = (
        conv((1,)),
        stax.GlobalSelfAttention(1, 1, 1, 1, W_out_std=0.8, b_std=0.3),
        stax.Relu(),
        stax.GlobalAvgPool(),
        readout(),
    )
    found["masked attention"] = "sequence mask", stax.serial(*layers)
    return found


def kernels(data: dict[str, np.ndarray], which: str, network: Any) -> dict[str, list]:
    kernel_fn, options = network[2], {}
    if which == "graphs":
        x, options = data["sequences"], {"pattern": (data["graphs"], data["graphs"])}
    elif which.endswith("mask"):
        x = data[f"{which.split()[0]}s"].copy()
        x[data[which] == 0] = MASKED
        options = {"mask_constant": MASKED}
    else:
        x = data[which]
    nngp, ntk = kernel_fn(x, None, ("nngp", "ntk"), **options)
    return {"nngp": np.asarray(nngp).tolist(), "ntk": np.asarray(ntk).tolist()}


def main() -> None:
    warnings.filterwarnings("ignore")
    data = inputs()
    found: dict[str, Any] = {"inputs": {name: array.tolist() for name, array in data.items()}, "kernels": {}}
    for name, (which, network) in networks().items():
        found["kernels"][name] = {"of": which, **kernels(data, which, network)}
    path = Path(__file__).with_name("neural_tangents.json")
    path.write_text(json.dumps(found).replace('], "ntk"', '],\n "ntk"').replace('}, "', '},\n"') + "\n")


if __name__ == "__main__":
    main()
