"""Measure how the time of planning grows for programs that repeat a step n times.

python benchmarks/blowup.py [FAMILY ...] [--kinds plan ntk limit] [--sizes 10 25 50 100 200] [--seconds 120]

A row is a family of programs, with the processor seconds of reading a program of n steps and of planning its
kernel ("plan"), its tangent kernel ("ntk"), or of computing the kernel with few points ("limit"). The last
columns are the exponent of n, fitted to all n and between the two largest, and how it is computed. A refusal
counts. Each program is planned in a process of its own, without imports; `-` took longer than `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import netsor as ns

SIZES = (10, 25, 50, 100, 200)
KINDS = ("plan", "ntk", "limit")


class Layers:
    """What a step may use: a matrix for all steps, one for each, and a Gaussian vector for each."""

    def __init__(self, n: int) -> None:
        self.shared = ns.Matrix(name="W")
        self.each = [ns.Matrix(name=f"W{k}") for k in range(n)]


class Step:
    """A step of a network: `start` is the first vector."""

    def __init__(self, layers: Layers, k: int, start: Any) -> None:
        self.shared, self.own, self.start = layers.shared, layers.each[k], start

    @property
    def gate(self) -> Any:
        """A Gaussian vector that is independent of all others."""
        return self.own @ ns.tanh(self.start)


def _moment(y: Any) -> Any:
    return ns.mean(ns.tanh(y) * ns.tanh(y))


NETWORKS: dict[str, Callable[[Any, Step], Any]] = {
    "y*y": lambda y, s: y * y,
    "tanh(y)*tanh(y)": lambda y, s: ns.tanh(y) * ns.tanh(y),
    "tanh(W y)*tanh(W y)": lambda y, s: ns.tanh(s.shared @ y) * ns.tanh(s.shared @ y),
    "y*y + y": lambda y, s: y * y + y,
    "y*z + y, equal z": lambda y, s: y * (s.shared @ ns.tanh(s.start)) + y,
    "y*z + y, z for each": lambda y, s: y * s.gate + y,
    "(y + z)*(y - z)": lambda y, s: (y + s.gate) * (y - s.gate),
    "max(y, z)": lambda y, s: ns.maximum(y, s.gate),
    "max(y, W y)": lambda y, s: ns.maximum(y, s.shared @ y),
    "max(y, -y/2)": lambda y, s: ns.maximum(y, -0.5 * y),
    "tanh(W y)*y + y": lambda y, s: ns.tanh(s.shared @ y) * y + y,
    "tanh(W_k y)*y + y": lambda y, s: ns.tanh(s.own @ y) * y + y,
    "tanh(W_k y)*y/2 + y/2": lambda y, s: 0.5 * ns.tanh(s.own @ y) * y + 0.5 * y,
    "y*sigmoid(z)": lambda y, s: y * ns.sigmoid(s.gate),
    "y*sigmoid(W_k y)": lambda y, s: y * ns.sigmoid(s.own @ y),
    "y/sqrt(1 + mean(y*y))": lambda y, s: y / ns.sqrt(1 + ns.mean(y * y)),
    "tanh(c*y), c a Moment": lambda y, s: ns.tanh(_moment(y) * y),
    "c*W y, c a Moment": lambda y, s: ns.mean(ns.tanh(y) * y) * (s.own @ ns.tanh(y)),
    "arctan(y), a user's": lambda y, s: ns.nonlin(np.arctan, y, name="arctan"),
    "sin(y + tanh(y))": lambda y, s: ns.sin(y + ns.tanh(y)),
    "y + W_k tanh(y)": lambda y, s: y + s.own @ ns.tanh(y),
    "y*(W_k tanh(y))": lambda y, s: y * (s.own @ ns.tanh(y)),
    "(y + 1)^3/8": lambda y, s: (y + 1) ** 3 / 8,
}

HEAD = """Input g :: G(n) ~ N(0, 1)
Input v :: G(n) ~ N(0, 1)
Input W :: A(n, n) ~ N(0, 1/n)
h := MatMul(W, g)
c0 := Moment(g*g)
y0 := 0.5*g + 0.5*h"""
PROGRAMS: dict[str, str] = {
    "text: y*y": "{y1} := {y}*{y}",
    "text: y*tanh(h) + y": "{y1} := {y}*tanh(h) + {y}",
    "text: Moments": "{c1} := Moment(tanh({c}*g)*tanh({c}*g))\n{y1} := tanh({c1}*g)",
    "text: Moments of y": "{c1} := Moment(tanh({y})*{y})\n{y1} := tanh({c1}*{y})",
    "text: C-vars": "{c1} := {c}*{c}*0.5 + {c}*0.5\n{y1} := tanh({c1}*g)",
    "text: c*y + c*h": "{c1} := Moment({y}*tanh({y}))\n{y1} := {c1}*{y} + {c1}*h",
    "text: 0.6*y + 0.4*y": "{y1} := 0.6*{y} + 0.4*{y}",
}


def network(family: str, n: int) -> ns.Network:
    """`n` steps from y = U x, and a readout."""
    U, v, layers = ns.Matrix(name="U"), ns.Matrix(rows=1, name="v"), Layers(n)

    @ns.network
    def chain(x: Any) -> Any:
        start = y = U @ x
        for k in range(n):
            y = NETWORKS[family](y, Step(layers, k, start))
        return v @ y

    return chain


def program(family: str, n: int) -> ns.Program:
    """`n` steps in text form."""
    body = [PROGRAMS[family].format(y=f"y{k}", y1=f"y{k + 1}", c=f"c{k}", c1=f"c{k + 1}") for k in range(n)]
    return ns.parse("\n".join([HEAD, *body, f"Output v^T y{n} / sqrt(n)"]))


def planned(kind: str, family: str, n: int) -> ns.Plan | None:
    """The plan of a program of n steps, or None if it is refused."""
    x = np.random.default_rng(0).standard_normal((3, 4))
    options: dict[str, Any] = {"progress": False, "points": 256 if kind == "limit" else None}
    try:
        if family in PROGRAMS:
            found = ns.limit(program(family, n), **options)
            return found.kernel().plan if kind == "limit" else found.plan()
        made = (ns.ntk if kind == "ntk" else ns.kernel)(network(family, n), **options)
        return made.evaluate(x).plan if kind == "limit" else made.plan(x)
    except ns.NetsorError:
        return None


def row(kind: str, family: str, n: int) -> dict[str, Any]:
    start = time.process_time()
    plan = planned(kind, family, n)
    how = "refused" if plan is None else "exact" if plan.exact else "sampled"
    return {"seconds": time.process_time() - start, "how": how}


def measure(kind: str, family: str, n: int, seconds: float) -> dict[str, Any] | None:
    """One row from a process of its own, or None if it takes too long."""
    command = [sys.executable, __file__, "--one", kind, family, str(n)]
    try:
        run = subprocess.run(command, check=True, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(run.stdout)


def _exponent(points: list[tuple[int, float]]) -> str:
    """The slope of a line through log(seconds) over log(n)."""
    return f"{np.polyfit(*np.log(points).T, 1)[0]:.2f}" if len(points) > 1 else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("families", nargs="*", default=[*NETWORKS, *PROGRAMS])
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        kind, family, n = given.one
        print(json.dumps(row(kind, family, int(n))))
        return
    for kind in given.kinds:
        print(f"{kind:24} " + " ".join(f"{n:>7}" for n in given.sizes) + " exponent  last")
        for family in given.families:
            if kind == "ntk" and family in PROGRAMS:
                continue
            rows = [measure(kind, family, n, given.seconds) for n in given.sizes]
            times = " ".join(f"{r['seconds']:7.2f}" if r else "      -" for r in rows)
            how = next((r["how"] for r in reversed(rows) if r), "")
            points = [(n, r["seconds"]) for n, r in zip(given.sizes, rows, strict=True) if r]
            exponents = [_exponent(points), _exponent(points[-2:])] if rows[-1] else [""] * 2
            print(f"{family:24} {times} {exponents[0]:>8} {exponents[1]:>5} {how}", flush=True)


if __name__ == "__main__":
    main()
