"""The rows of the benchmark: inputs, what each side computes, the target and the required agreement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

__all__ = ["Case", "Startup", "cases", "cnn", "gru", "mlp", "rnn", "startup_case"]

# Multiply-adds of one V-transform in the cheapest form that we know: a polynomial and a square root for the
# closed forms, a Hermite series of 60 terms for tanh. They only serve the column "limit".
MULTIPLY_ADDS = {"relu": 30, "erf": 30, "gelu": 60, "tanh": 60}
WINDOW = 6  # sliding sums of a 3 x 3 convolution, one addition and one subtraction per axis, and the bias
TANH = 2e-3  # the error of the peer's 25 x 25 nodes
KINKED = 1e-7  # the rounding of the peer's E[relu' relu'] of an input with itself
SUBSET = 6  # inputs on which a slow reference is computed


@dataclass(frozen=True)
class Case:
    """A row of the table.

    difference  largest allowed |netsor - peer| / max|peer|
    error       largest allowed |netsor - reference| / max|reference|, where there is a reference
    reference   the rows and columns that it covers, and their values
    work        floating-point operations and bytes that cannot be saved
    """

    name: str
    title: str
    peer: str | None
    kind: str
    options: dict[str, Any]
    inputs: dict[str, np.ndarray]
    target: float | None = None
    memory: float | None = None
    difference: float = 1e-9
    dtype: str = "float64"
    peer_options: dict[str, Any] = field(default_factory=dict)
    own_options: dict[str, Any] = field(default_factory=dict)
    error: float | None = None
    reference: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None
    work: tuple[float, float] | None = None

    def specs(self, alone: bool = False) -> dict[str, dict[str, Any]]:
        """What each side is asked to compute, the peer first."""
        common = {"kind": self.kind, "dtype": self.dtype}
        found = {}
        if self.peer is not None and not alone:
            found[self.peer] = {**common, "options": {**self.options, **self.peer_options}}
        return {**found, "netsor": {**common, "options": {**self.options, **self.own_options}}}


@dataclass(frozen=True)
class Startup:
    """The row on the time from the start of a process: a short program for each side."""

    name: str
    title: str
    peer: str
    code: Mapping[str, str]
    seconds: float
    memory: float


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def mlp(phi: str, count: int, dimension: int, depth: int, **settings: Any) -> Case:
    x = rng().standard_normal((count, dimension))
    flops = count * (count + 1) * (dimension + depth * MULTIPLY_ADDS[phi])
    settings.setdefault("name", f"mlp-{phi}")
    settings.setdefault("peer", "neural-tangents")
    return Case(
        title=f"MLP {phi}, {count} inputs of dimension {dimension}, depth {depth}",
        kind="mlp",
        options={"phi": phi, "depth": depth},
        inputs={"x": x},
        work=(flops, x.nbytes + 8.0 * count**2),
        **settings,
    )


def tanh(count: int, dimension: int, depth: int, **settings: Any) -> Case:
    """The peer has 25 x 25 nodes for each pair; our own error is checked on a few inputs."""
    x = rng().standard_normal((count, dimension))[:SUBSET]

    def reference() -> tuple[np.ndarray, np.ndarray]:
        from plain import mlp_quadrature

        return np.arange(len(x)), mlp_quadrature(x, np.tanh, depth)

    return mlp("tanh", count, dimension, depth, difference=TANH, error=1e-9, reference=reference, **settings)


def cnn(count: int, side: int, depth: int, readout: str, **settings: Any) -> Case:
    x = rng().standard_normal((count, side, side, 3))
    pixels = side**2
    pairs = count * (count + 1) / 2 * (pixels**2 if readout == "gap" else pixels)
    settings.setdefault("name", f"cnn-{readout}-{side}")
    settings.setdefault("peer", "neural-tangents")
    return Case(
        title=f"CNN {depth} x (3x3, same) relu, {count} images {side}x{side}x3, {readout}",
        kind="cnn",
        options={"depth": depth, "readout": readout},
        inputs={"x": x},
        work=(2 * pairs * depth * (MULTIPLY_ADDS["relu"] + WINDOW), x.nbytes + 8.0 * count**2),
        **settings,
    )


def rnn(count: int, length: int, dimension: int, **settings: Any) -> Case:
    x = rng().standard_normal((count, length, dimension))
    rows = count * length
    return Case(
        name=settings.pop("name", "rnn"),
        title=f"simple RNN erf, {count} sequences of {length} tokens",
        peer="plain",
        kind="simple_rnn",
        options={},
        inputs={"x": x},
        work=(rows * (rows + 1) * (dimension + MULTIPLY_ADDS["erf"]), x.nbytes + 8.0 * rows**2),
        **settings,
    )


def gru(length: int, **settings: Any) -> Case:
    """The paper's two sentences, cut to the given length; both sides are asked for an error of 1e-4.

    If they are too short, random words of the same size follow.
    """
    from netsor.data import sentences

    parts = [s.vectors[:length] for s in sentences()]
    if length > max(map(len, parts)):
        words = np.std(parts[0]) * rng().standard_normal((2, length, parts[0].shape[1]))
        parts = [np.concatenate([part, more[len(part) :]]) for part, more in zip(parts, words, strict=True)]
    return Case(
        name=settings.pop("name", "gru"),
        title=f"erf-GRU, two sentences of {len(parts[0])} and {len(parts[1])} words, error 1e-4",
        peer="plain",
        kind="gru",
        options={},
        inputs={f"x{i}": part for i, part in enumerate(parts)},
        difference=4e-4,
        peer_options={"error": 1e-5},
        own_options={"tol": 1e-4},
        **settings,
    )


def batchnorm(size: int, dimension: int, **settings: Any) -> Case:
    batches = [rng().standard_normal((size, dimension)), 1 + rng().standard_normal((size, dimension)) ** 2]

    def reference() -> tuple[np.ndarray, np.ndarray]:
        from plain import batchnorm_trapezoid

        # its error is about exp(-pi^2 / step) = 7e-8
        return np.arange(2 * size), batchnorm_trapezoid(batches, step=0.6)

    return Case(
        name="batchnorm",
        title=f"batchnorm + relu, two batches of {size}, one layer, error 1e-6",
        peer="plain",
        kind="batchnorm_mlp",
        options={"depth": 1},
        inputs={"x0": batches[0], "x1": batches[1]},
        difference=5e-4,
        peer_options={"error": 1e-4},
        error=1e-6,
        reference=reference,
        **settings,
    )


def transformer(count: int, length: int, depth: int) -> Case:
    return Case(
        name="transformer",
        title=f"transformer, {count} sequences of {length} tokens, depth {depth}",
        peer="plain",
        kind="transformer",
        options={"depth": depth},
        inputs={"x": rng().standard_normal((count, length, 50))},
    )


def tangents(quick: bool) -> list[Case]:
    """Tangent kernels beside neural-tangents, and beside our own kernel of the network itself.

    Of the latter a tangent kernel should take at most 2.5 times the time; the two are not to agree.
    """
    count, dimension, depth = (200, 20, 4) if quick else (2000, 100, 20)
    images, side, layers = (4, 6, 2) if quick else (20, 16, 5)
    few = 60 if quick else 2000
    peers: list[tuple[Case, float]] = [
        (mlp("relu", count, dimension, depth, difference=KINKED), 5.0),
        (mlp("erf", count, dimension, depth), 5.0),
        (mlp("gelu", count, dimension, depth), 1.0),
        (mlp("tanh", few, dimension, 3, difference=10 * TANH), 100.0),
        (cnn(images, side, layers, "gap", difference=KINKED, name="cnn-gap"), 4.0),
        (cnn(images, side, layers, "flatten", difference=KINKED, name="cnn-flatten"), 1.0),
    ]
    found = []
    for case, target in peers:
        moved = replace(case, title=f"NTK of {case.title}", options={**case.options, "tangent": True})
        moved = replace(moved, work=None)
        found.append(replace(moved, name=f"ntk-{case.name}", target=target))
        found.append(
            replace(
                moved, name=f"ntk-nngp-{case.name}", peer="netsor-nngp", target=0.4, difference=float("inf")
            )
        )
    return found


def startup_case() -> Startup:
    ours = "import netsor as ns\nfrom netsor.data import sentences\n"
    ours += "ns.kernel(ns.zoo.simple_rnn())([s.vectors for s in sentences()])\n"
    return Startup(
        "startup",
        "from process start to the first small kernel (RNN, two sentences; the peer: its import alone)",
        "neural-tangents",
        {"neural-tangents": "import neural_tangents\n", "netsor": ours},
        seconds=1.0,
        memory=150.0,
    )


def cases(quick: bool = False) -> list[Case]:
    """All rows but the one on the start; `quick` has the same rows on small inputs."""
    count, dimension, depth = (200, 20, 4) if quick else (2000, 100, 20)
    images, side, layers = (4, 6, 2) if quick else (20, 16, 5)
    few, large = (2, 8) if quick else (8, 32)
    ourselves = (
        mlp("relu", count, dimension, depth, peer="netsor-jax", name="jax-mlp-relu"),
        cnn(images, side, layers, "gap", peer="netsor-jax", name="jax-cnn-gap"),
    )
    return [
        *(ourselves if find_spec("jax") else ()),
        mlp("relu", count, dimension, depth, target=8.0),
        mlp("erf", count, dimension, depth, target=4.0),
        mlp("gelu", count, dimension, depth, target=5.0),
        tanh(60 if quick else 2000, dimension, 3, target=100.0),
        cnn(images, side, layers, "gap", target=5.0, memory=100.0, name="cnn-gap-small"),
        cnn(few, large, layers, "gap", target=5.0, memory=200.0, name="cnn-gap-large"),
        cnn(images, side, layers, "flatten", target=1.5, name="cnn-flatten"),
        rnn(6 if quick else 100, 8 if quick else 50, 100, target=20.0),
        gru(3 if quick else 9, target=30.0),
        batchnorm(8 if quick else 64, 100, target=10.0),
        transformer(4 if quick else 40, 6 if quick else 25, 2),
        *tangents(quick),
        mlp("relu", count, dimension, depth, dtype="float32", difference=1e-4, name="mlp-relu-float32"),
        cnn(images, side, layers, "gap", dtype="float32", difference=1e-4, name="cnn-gap-float32"),
        mlp(
            "relu",
            500 if quick else 10_000,
            dimension,
            3,
            name="mlp-relu-memory",
            peer=None,
            memory=302.0 if quick else 8e8 / 2**20 + 300,
        ),
    ]
