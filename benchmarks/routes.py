"""Measure what each route of the limit gains: the same kernel with it and without it, in one run.

python benchmarks/routes.py [--out FILE.md] [NAME ...]

A route is something that could be left out, and the answer would be the same or worse: a method of the
ladder (then sampling takes its place), compiled loops, sequences of different lengths as one group, tables
of moments. Each is switched off by patching the one place that decides about it. Seconds are CPU seconds of
the first call of a new kernel (modules are loaded and loops compiled already) and of the best of three later
ones; `error` is the largest reported one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from report import table

import netsor as ns
from netsor.limits import computation
from netsor.limits.methods import ladder
from netsor.limits.on_numpy import recording
from netsor.limits.sampling import schedule, tables
from netsor.limits.tape import tape

RNG = np.random.default_rng(0)
U, V, W, OUT = (ns.Matrix(1.0) for _ in range(4))
v = ns.Matrix(1.0, rows=1)


@ns.network
def product_of_gates(x):
    return v @ (ns.erf(U @ x) * ns.erf(W @ ns.relu(V @ x)) * ns.erf(W @ ns.relu(U @ x)))


@ns.network
def product_of_variables(x):
    return v @ ((U @ x) * (W @ ns.relu(V @ x)) * (W @ ns.relu(U @ x)))


@ns.network
def maximum_of_two(x):
    h = ns.relu(V @ x)
    return v @ ns.maximum(W @ h, W @ ns.relu(U @ x))


@ns.network
def product_of_two(x):
    g = W @ ns.relu(V @ x)
    return v @ (ns.sin(g) * (g + W @ ns.relu(U @ x)))


@ns.network
def function_of_two(x):
    return v @ (ns.sin(W @ ns.relu(V @ x)) * ns.tanh(W @ ns.relu(V @ x) + W @ ns.relu(U @ x)))


@dataclass(frozen=True)
class Route:
    """A route, a kernel that takes it, and how it is switched off: another value of an attribute."""

    name: str
    net: ns.Network
    inputs: Any
    where: Any
    what: str
    instead: Any


def without(method: str) -> tuple[Any, str, Any]:
    """The ladder without one method."""
    return ladder, "LADDER", tuple(m for m in ladder.LADDER if m.name != method)


def routes() -> Iterator[Route]:
    few = RNG.standard_normal((4, 3))
    yield Route("Isserlis' theorem", product_of_variables, few, *without("Isserlis"))
    yield Route("orthant probabilities", product_of_gates, few, *without("orthant probability"))
    for what, net in (
        ("sin(a) tanh(a + b)", function_of_two),
        ("max(a, b)", maximum_of_two),
        ("sin(a) (a + b)", product_of_two),
    ):
        yield Route(f"quadrature of {what}", net, few, *without("quadrature"))
    batches = RNG.standard_normal((2, 16, 10))
    yield Route("batchnorm's integrals", ns.zoo.batchnorm_mlp(), batches, *without("1-D and 2-D integrals"))
    many = RNG.standard_normal((1000, 50))
    off = (recording, "is_available", lambda: False)
    yield Route("compiled loops", ns.zoo.mlp(depth=10), many, *off)
    strips = (recording, "strips", lambda span, size: [recording.Tile(span, span)])
    images = RNG.standard_normal((20, 16, 16, 3))
    yield Route("strips of rows", ns.zoo.cnn(depth=5, readout="flatten"), images, *strips)
    ragged = [RNG.standard_normal((t, 4)) for t in range(5, 17) for _ in range(4)]
    yield Route("lengths as one group", ns.zoo.simple_rnn(), ragged, computation, "pad", lambda made: None)
    plain = (tape, "formula_of", lambda *_: None)
    yield Route("closed forms as one step", ns.zoo.simple_rnn(), RNG.standard_normal((100, 50, 4)), *plain)
    sentences = [RNG.standard_normal((t, 4)) for t in (8, 9)]
    yield Route("tables of moments", ns.zoo.gru(), sentences, tables, "tables_of", lambda *_: None)
    long = [RNG.standard_normal((t, 4)) for t in (20, 20)]
    yield Route("linear recursions", ns.zoo.gru(), long, schedule, "find_recursions", lambda *_: {})


@contextmanager
def patched(where: Any, what: str, instead: Any) -> Iterator[None]:
    kept = getattr(where, what)
    setattr(where, what, instead)
    try:
        yield
    finally:
        setattr(where, what, kept)


def measured(route: Route) -> tuple[float, float, float]:
    """First call, best of three later ones, and the largest error."""
    for _ in range(2):
        K = ns.kernel(route.net)
        K(route.inputs)
        K(route.inputs)
    K = ns.kernel(route.net)
    first = _seconds(lambda: K(route.inputs))
    later = min(_seconds(lambda: K(route.inputs)) for _ in range(3))
    return first, later, float(np.max(K.evaluate(route.inputs).error))


def _seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for route in routes():
        if options.names and not any(name in route.name for name in options.names):
            continue
        with_it = measured(route)
        with patched(route.where, route.what, route.instead):
            without_it = measured(route)
        ratios = [b / a if a else float("inf") for a, b in zip(with_it, without_it, strict=True)]
        cells = [f"{a:.2g} / {b:.2g} ({r:.2g})" for a, b, r in zip(with_it, without_it, ratios, strict=True)]
        rows.append([route.name, *cells])
        print(" | ".join(rows[-1]), flush=True)
    text = table(["route: with / without (ratio)", "first call, s", "later, s", "largest error"], rows)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
