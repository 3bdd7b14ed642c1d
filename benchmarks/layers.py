"""Compare the kernel of every layer of neural-tangents with neural-tangents, in turn, in float64.

python benchmarks/layers.py [--only NAME] [--ntk] [--rounds 3] [--out FILE]

Each side runs in a process and an environment of its own. The first calls (tracing, compiling) do not count;
of the others the best does. The table has the times of either side, how many times faster netsor is, and the
largest difference off the diagonal.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

SECONDS = 0.3  # a call is repeated for so long
VECTORS, SEQUENCES, VOLUMES = (2000, 20), (60, 12, 8), (10, 6, 6, 6, 2)
IMAGES, FLAT = (12, 10, 10, 3), (150, 10, 10, 3)


def inputs(kind: str) -> np.ndarray:
    shapes = {"vectors": VECTORS, "images": IMAGES, "many images": FLAT, "sequences": SEQUENCES}
    return np.random.default_rng(0).standard_normal({**shapes, "volumes": VOLUMES, "graphs": SEQUENCES}[kind])


def edges() -> np.ndarray:
    rng = np.random.default_rng(1)
    return (rng.random((SEQUENCES[0], SEQUENCES[1], SEQUENCES[1])) < 0.3).astype(float)


# Which inputs each network has

ACTIVATIONS = [
    "relu",
    "leaky_relu",
    "abs",
    "abrelu",
    "sign",
    "erf",
    "gelu",
    "sin",
    "cos",
    "exp",
    "gaussian",
    "gabor",
]
ACTIVATIONS += ["rbf", "exp_normalized", "polynomial", "sigmoid_like", "monomial 2", "monomial 3"]
ACTIVATIONS += ["rectified_monomial 0", "rectified_monomial 2", "rectified_monomial 3"]
PADDINGS = {"same": "same", "valid": "valid", "circular": "wrap"}
CASES: dict[str, str] = {f"mlp, {phi}": "vectors" for phi in ACTIVATIONS}
CASES |= dict.fromkeys(["hermite 3", "resnet", "layernorm mlp", "concatenation", "dropout"], "vectors")
for padding in PADDINGS:
    CASES |= {f"conv, {padding}, gap": "images", f"conv, {padding}, flat": "many images"}
    CASES |= {f"transposed, {padding}, gap": "images", f"transposed, {padding}, flat": "many images"}
    CASES |= {f"local, {padding}, gap": "images", f"local, {padding}, flat": "many images"}
    CASES |= {f"conv1d, {padding}": "sequences", f"conv3d, {padding}": "volumes"}
    CASES |= {f"{pool} pool, {padding}": "images" for pool in ("mean", "sum")}
CASES |= dict.fromkeys(["global sum", "resize nearest", "resize linear", "layernorm image"], "images")
KINDS = ["softmax", "identity", "relu", "positions", "many heads"]
CASES |= {f"attention, {kind}, {end}": "sequences" for kind in KINDS for end in ("flat", "gap")}
CASES |= {"graph": "graphs"}


def netsor_networks() -> dict[str, Any]:
    import netsor as ns

    phis: dict[str, Callable[[Any], Any]] = {
        "leaky_relu": lambda h: ns.leaky_relu(h, slope=0.2),
        "abrelu": lambda h: ns.abrelu(h, -0.5, 1.5),
        "exp": lambda h: 0.9 * ns.exp(0.5 * h),
        "gaussian": lambda h: 0.8 * ns.gaussian(h, rate=0.6),
        "rbf": lambda h: ns.rbf(h, 0.7),
        "exp_normalized": lambda h: ns.exp_normalized(h, 0.8, -0.5),
        "polynomial": lambda h: ns.polynomial(h, coefs=(0.3, -1.0, 0.5, 0.2)),
    }

    def phi(name: str) -> Callable[[Any], Any]:
        kind, _, degree = name.partition(" ")
        found: Any = phis.get(name) or getattr(ns, kind)
        return (lambda h: found(h, int(degree))) if degree else found

    def serial(*layers: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def network(x: Any) -> Any:
            for layer in layers:
                x = layer(x)
            return x

        return network

    def dense() -> Any:
        return ns.Dense(1.3**2, 0.4**2)

    def readout() -> Any:
        return ns.Dense(1.2**2, 0.3**2, rows=1)

    def conv(kernel: Any, padding: str = "same", stride: int = 1, dims: int = 2, **options: Any) -> Any:
        kind = (ns.Conv1d, ns.Conv2d, ns.Conv3d)[dims - 1]
        return kind(kernel, stride, padding=padding, var_w=1.3**2, var_b=0.4**2, **options)

    def skip() -> Callable[[Any], Any]:
        layer = dense()
        return lambda h: h + layer(ns.relu(h))

    def joined() -> Callable[[Any], Any]:
        first, left, right, last, out = dense(), dense(), dense(), dense(), readout()

        def network(x: Any) -> Any:
            h = first(x)
            both = ns.concat([ns.relu(left(h)), ns.erf(right(h))], axis="width")
            return out(ns.relu(last(both)))

        return network

    def attention(end: Callable[[Any], Any], code: Any = 0, **options: Any) -> Callable[[Any], Any]:
        embed, last, b = dense(), readout(), ns.Vector(0.3**2)
        Q, V, out = ns.Matrix(), ns.Matrix(1.2**2), ns.Matrix(0.8**2)

        def network(x: Any) -> Any:
            h = embed(x)
            q = Q @ (h + code)
            found = ns.attention(q, q, V @ h, scale=0.99, **options)
            return last(end(ns.relu(out @ found + b)))

        return network

    def heads(end: Callable[[Any], Any]) -> Callable[[Any], Any]:
        layer, b = ns.Attention(math.inf, weights="identity", scale=0.99 * 0.96), ns.Vector(0.3**2)
        return serial(dense(), layer, lambda h: ns.relu(h + b), end, readout())

    def graph() -> Callable[[Any], Any]:
        first, second, out = dense(), dense(), readout()

        def network(x: Any) -> Any:
            nodes, links = x
            h = ns.contract(links.transpose(1, 0), ns.relu(first(nodes)))
            return out(ns.global_mean_pool(ns.relu(second(h)), dims=1))

        return network

    found = {f"mlp, {name}": serial(dense(), phi(name), readout()) for name in ACTIVATIONS}
    found["hermite 3"] = serial(ns.Dense(1.3**2), ns.layernorm, lambda h: ns.hermite(h, 3), readout())
    found["resnet"] = serial(dense(), skip(), skip(), ns.relu, readout())
    found["layernorm mlp"] = serial(dense(), ns.layernorm, ns.relu, dense(), ns.layernorm, ns.relu, readout())
    found["concatenation"] = joined()
    drop = ns.Dropout(0.7)
    found["dropout"] = serial(dense(), ns.relu, drop, dense(), ns.relu, drop, readout())
    ends = {"gap": ns.global_mean_pool, "flat": ns.flatten}
    for name, padding in PADDINGS.items():
        for key, end in ends.items():
            two = conv(3, padding), ns.relu, conv(3, padding), ns.relu
            found[f"conv, {name}, {key}"] = serial(*two, end, readout())
            up = conv(3, padding, 2, transposed=True)
            small = conv(3, padding, 2)
            found[f"transposed, {name}, {key}"] = serial(small, ns.relu, up, ns.relu, end, readout())
            sizes = [(8, 8), (6, 6)] if padding == "valid" else [(10, 10)] * 2
            locals_ = [conv(3, padding, local=size) for size in sizes]
            found[f"local, {name}, {key}"] = serial(locals_[0], ns.relu, locals_[1], ns.relu, end, readout())
        found[f"conv1d, {name}"] = serial(conv(3, padding, dims=1), ns.relu, ends["gap"], readout())
        found[f"conv3d, {name}"] = serial(conv(3, padding, dims=3), ns.relu, ends["gap"], readout())
        mean = partial(ns.mean_pool, size=(3, 3), stride=2, padding=padding)
        total = partial(ns.sum_pool, size=(3, 3), stride=2, padding=padding)
        for pool, layer in {"mean": mean, "sum": total}.items():
            found[f"{pool} pool, {name}"] = serial(
                conv(3), ns.relu, layer, conv(3), ns.relu, ns.flatten, readout()
            )
    found["global sum"] = serial(conv(3), ns.relu, lambda h: ns.sum(h, axis=(-2, -1)), readout())
    for method in ("nearest", "linear"):
        body = conv(3), ns.relu, conv(1), ns.relu, partial(ns.resize, shape=(7, 13), method=method)
        found[f"resize {method}"] = serial(*body, ns.global_mean_pool, readout())
    norm = partial(ns.layernorm, axis=(0, 1))
    found["layernorm image"] = serial(conv(3), norm, ns.relu, ns.global_mean_pool, readout())
    for key, end in ends.items():
        found[f"attention, softmax, {key}"] = attention(end)
        found[f"attention, identity, {key}"] = attention(end, weights="identity")
        found[f"attention, relu, {key}"] = attention(end, weights=ns.relu)
        found[f"attention, positions, {key}"] = attention(end, ns.Vector(0.7**2, index=(SEQUENCES[1],)))
        found[f"attention, many heads, {key}"] = heads(end)
    found["graph"] = graph()
    return found


def stax_networks() -> dict[str, Any]:
    from neural_tangents import stax  # type: ignore[import-not-found]

    W, B = 1.3, 0.4
    phis = {
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
    phis |= {f"monomial {d}": stax.Monomial(d) for d in (2, 3)}
    phis |= {f"rectified_monomial {d}": stax.RectifiedMonomial(d) for d in (0, 2, 3)}
    relu = stax.Relu()

    def dense() -> Any:
        return stax.Dense(1, W, B)

    def conv(shape: tuple[int, ...], padding: str = "SAME", stride: int = 1, kind: Any = None) -> Any:
        strides = (stride,) * len(shape)
        return (kind or stax.Conv)(1, shape, strides=strides, padding=padding, W_std=W, b_std=B)

    out = stax.Dense(1, 1.2, 0.3)
    found = {f"mlp, {name}": stax.serial(dense(), phi, out) for name, phi in phis.items()}
    found["hermite 3"] = stax.serial(stax.Dense(1, W), stax.LayerNorm(eps=0.0), stax.Hermite(3), out)
    branch = stax.parallel(stax.serial(relu, dense()), stax.Identity())
    found["resnet"] = stax.serial(dense(), *(stax.FanOut(2), branch, stax.FanInSum()) * 2, relu, out)
    found["layernorm mlp"] = stax.serial(*(dense(), stax.LayerNorm(eps=0.0), relu) * 2, out)
    parts = stax.parallel(stax.serial(dense(), relu), stax.serial(dense(), stax.Erf()))
    joined = stax.FanOut(2), parts, stax.FanInConcat(-1)
    found["concatenation"] = stax.serial(dense(), *joined, dense(), relu, out)
    found["dropout"] = stax.serial(*(dense(), relu, stax.Dropout(0.7)) * 2, out)
    ends = {"gap": stax.GlobalAvgPool(), "flat": stax.Flatten()}
    for name in PADDINGS:
        padding = name.upper()
        for key, end in ends.items():
            found[f"conv, {name}, {key}"] = stax.serial(*(conv((3, 3), padding), relu) * 2, end, out)
            up, small = conv((3, 3), padding, 2, stax.ConvTranspose), conv((3, 3), padding, 2)
            found[f"transposed, {name}, {key}"] = stax.serial(small, relu, up, relu, end, out)
            local = conv((3, 3), padding, 1, stax.ConvLocal)
            found[f"local, {name}, {key}"] = stax.serial(*(local, relu) * 2, end, out)
        found[f"conv1d, {name}"] = stax.serial(conv((3,), padding), relu, ends["gap"], out)
        found[f"conv3d, {name}"] = stax.serial(conv((3, 3, 3), padding), relu, ends["gap"], out)
        mean = stax.AvgPool((3, 3), strides=(2, 2), padding=padding, normalize_edges=True)
        total = stax.SumPool((3, 3), strides=(2, 2), padding=padding)
        for pool, layer in {"mean": mean, "sum": total}.items():
            layers = conv((3, 3)), relu, layer, conv((3, 3)), relu, stax.Flatten(), out
            found[f"{pool} pool, {name}"] = stax.serial(*layers)
    found["global sum"] = stax.serial(conv((3, 3)), relu, stax.GlobalSumPool(), out)
    for method in ("nearest", "linear"):
        sized = stax.ImageResize((-1, 7, 13, -1), method=method)
        found[f"resize {method}"] = stax.serial(
            conv((3, 3)), relu, conv((1, 1)), relu, sized, ends["gap"], out
        )
    found["layernorm image"] = stax.serial(
        conv((3, 3)), stax.LayerNorm((1, 2, 3), eps=0.0), relu, ends["gap"], out
    )
    common = {"W_key_std": 1.1, "W_query_std": 0.9, "W_value_std": 1.2, "W_out_std": 0.8, "b_std": 0.3}

    def attention(**options: Any) -> Any:
        return stax.GlobalSelfAttention(1, 1, 1, 1, **{**common, **options})

    kinds = {
        "softmax": attention(),
        "identity": attention(attention_mechanism="IDENTITY"),
        "relu": attention(attention_mechanism="RELU"),
        "positions": attention(pos_emb_type="SUM", W_pos_emb_std=0.7),
        "many heads": attention(linear_scaling=False, attention_mechanism="IDENTITY"),
    }
    for kind, layer in kinds.items():
        for key, end in ends.items():
            found[f"attention, {kind}, {key}"] = stax.serial(conv((1,)), layer, relu, end, out)
    body = conv((1,)), relu, stax.Aggregate(1, 0, 2), dense(), relu
    found["graph"] = stax.serial(*body, ends["gap"], out)
    return found


def netsor_side(name: str, ntk: bool) -> Callable[[], np.ndarray]:
    import netsor as ns

    net, x = ns.network(netsor_networks()[name]), inputs(CASES[name])
    given: Any = list(zip(x, edges(), strict=True)) if CASES[name] == "graphs" else x
    K = ns.ntk(net) if ntk else ns.kernel(net)
    return lambda: np.asarray(K(given))


def stax_side(name: str, ntk: bool) -> Callable[[], np.ndarray]:
    import jax  # type: ignore[import-not-found]

    jax.config.update("jax_enable_x64", True)
    kernel, x = stax_networks()[name][2], inputs(CASES[name])
    options = {"pattern": (edges(), edges())} if CASES[name] == "graphs" else {}
    compiled = jax.jit(lambda x: kernel(x, None, "ntk" if ntk else "nngp", **options))
    return lambda: np.asarray(compiled(x))


# Two processes that take turns


def work(side: str) -> None:
    """Answer commands: a name and whether the tangent kernel is meant; then the best time of a call."""
    made: dict[tuple[str, bool], Callable[[], np.ndarray]] = {}
    for line in sys.stdin:
        name, ntk, path = json.loads(line)
        try:
            if (name, ntk) not in made:
                made.clear()
                made[name, ntk] = (netsor_side if side == "netsor" else stax_side)(name, ntk)
                made[name, ntk]()
                made[name, ntk]()  # loops may be compiled at the second call
            call, started, best, value = made[name, ntk], perf_counter(), math.inf, np.zeros(0)
            while perf_counter() - started < SECONDS:
                begun = perf_counter()
                value = call()
                best = min(best, perf_counter() - begun)
            np.save(path, value)
            print(json.dumps(best), flush=True)
        except Exception as error:  # a side that cannot do it is a row that says so
            print(json.dumps(f"{type(error).__name__}: {error}"[:90]), flush=True)


class Side:
    """A process of one side."""

    def __init__(self, name: str, python: str, folder: str) -> None:
        self.path = str(Path(folder) / f"{name}.npy")
        command = [python, "-W", "ignore", __file__, "--work", name]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, name: str, ntk: bool) -> float | str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([name, ntk, self.path]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def rows(names: list[str], sides: dict[str, Side], ntk: bool, rounds: int) -> list[str]:
    lines = ["| network | neural-tangents, ms | netsor, ms | times faster | difference |", "| --- " * 5 + "|"]
    print("\n".join(lines), flush=True)
    for name in names:
        best: dict[str, Any] = dict.fromkeys(sides, math.inf)
        for _ in range(rounds):
            for side in sides.values():
                key = "netsor" if side is sides["netsor"] else "neural-tangents"
                found = side.ask(name, ntk)
                best[key] = found if isinstance(found, str) else min(best[key], found)
            if any(isinstance(found, str) for found in best.values()):
                break
        if any(isinstance(found, str) for found in best.values()):
            line = f"| {name} | {best['neural-tangents']} | {best['netsor']} | | |"
        else:
            ours, theirs = (np.load(sides[key].path) for key in ("netsor", "neural-tangents"))
            others = ~np.eye(len(ours), dtype=bool)
            gap = np.abs(ours - theirs)[others].max() / np.abs(theirs[others]).max()
            a, b = best["neural-tangents"], best["netsor"]
            line = f"| {name} | {1e3 * a:.2f} | {1e3 * b:.2f} | {a / b:.1f} | {gap:.0e} |"
        print(line, flush=True)
        lines.append(line)
    return lines


def main() -> None:
    from environments import interpreters

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names that begin with these words, divided by ;")
    parser.add_argument("--ntk", action="store_true", help="tangent kernels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="a Python that has neural-tangents, in place of one that is made")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = [n for n in CASES if any(n.startswith(word.strip()) for word in given.only.split(";"))]
    peer = given.peer or str(interpreters({"neural-tangents"})["neural-tangents"])
    with tempfile.TemporaryDirectory() as folder:
        sides = {
            "neural-tangents": Side("neural-tangents", peer, folder),
            "netsor": Side("netsor", sys.executable, folder),
        }
        lines = rows(names, sides, given.ntk, given.rounds)
        for side in sides.values():
            assert side.process.stdin is not None
            side.process.stdin.close()
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
    else:
        main()
