"""Programs that repeat a step n times: how the time of planning grows with n.

python benchmarks/blowup.py [FAMILY ...] [--seconds 60]

Every row is a family of programs: the processor time of reading a program of n steps and planning its kernel
or its tangent kernel, for n = 10 to 200, and the exponent of n that the two largest give. A refusal counts as
planning. Each program is planned in a process of its own, without imports; `-` is one that took too long.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import netsor as ns

SIZES = (10, 25, 50, 100, 200)
Step = Callable[[Any, list[Any], list[Any]], Any]


def network(step: Callable[[Any, int, Any], Any], n: int) -> ns.Network:
    """`n` steps y := step(y, k, layer) from y = U x, and a readout."""
    U, v = ns.Matrix(name="U"), ns.Matrix(rows=1, name="v")
    layers = _Layers(n)

    @ns.network
    def chain(x: Any) -> Any:
        start = y = U @ x
        for k in range(n):
            y = step(y, k, layers.at(start, k))
        return v @ y

    return chain


class _Layers:
    """Matrices for the steps of a chain."""

    def __init__(self, n: int) -> None:
        self.shared = ns.Matrix(name="W")
        self.each = [ns.Matrix(name=f"W{k}") for k in range(n)]

    def at(self, start: Any, k: int) -> _Layer:
        return _Layer(self.shared, self.each[k], start)


class _Layer:
    """What a step may use: a shared matrix, one of its own, and gates of the input."""

    def __init__(self, shared: ns.Matrix, own: ns.Matrix, start: Any) -> None:
        self.shared, self.own, self.start = shared, own, start

    @property
    def gate(self) -> Any:
        """A Gaussian vector of its own."""
        return self.own @ ns.tanh(self.start)


def arctan(h: Any) -> Any:
    return ns.nonlin(np.arctan, h, name="arctan")


NETWORKS: dict[str, Callable[[Any, int, Any], Any]] = {
    "y*y": lambda y, k, s: y * y,
    "tanh(y)*tanh(y)": lambda y, k, s: ns.tanh(y) * ns.tanh(y),
    "t*t, t = tanh(W y)": lambda y, k, s: ns.tanh(s.shared @ y) * ns.tanh(s.shared @ y),
    "y*z + y, one z": lambda y, k, s: y * (s.shared @ ns.tanh(s.start)) + y,
    "y*z + y, a z each": lambda y, k, s: y * s.gate + y,
    "y*y + y": lambda y, k, s: y * y + y,
    "(y + z)*(y - z)": lambda y, k, s: (y + s.gate) * (y - s.gate),
    "max(y, z)": lambda y, k, s: ns.maximum(y, s.gate),
    "max(y, W y)": lambda y, k, s: ns.maximum(y, s.shared @ y),
    "max(y, -y)": lambda y, k, s: ns.maximum(y, -0.5 * y),
    "tanh(W y)*y + y": lambda y, k, s: ns.tanh(s.shared @ y) * y + y,
    "tanh(W_k y)*y + y": lambda y, k, s: ns.tanh(s.own @ y) * y + y,
    "0.5*tanh(W_k y)*y + y/2": lambda y, k, s: 0.5 * ns.tanh(s.own @ y) * y + 0.5 * y,
    "y*sigmoid(z)": lambda y, k, s: y * ns.sigmoid(s.gate),
    "y*sigmoid(W_k y)": lambda y, k, s: y * ns.sigmoid(s.own @ y),
    "y/sqrt(1 + mean y*y)": lambda y, k, s: y / ns.sqrt(1 + ns.mean(y * y)),
    "tanh(c*y), c = mean tanh(y)": lambda y, k, s: ns.tanh(ns.mean(ns.tanh(y) * ns.tanh(y)) * y),
    "c*W y, c = mean y*y": lambda y, k, s: ns.mean(ns.tanh(y) * y) * (s.own @ ns.tanh(y)),
    "arctan(y)": lambda y, k, s: arctan(y),
    "arctan(y)*y": lambda y, k, s: arctan(y) * y,
    "sin(y + tanh(y))": lambda y, k, s: ns.sin(y + ns.tanh(y)),
    "y + W tanh(y)": lambda y, k, s: y + s.own @ ns.tanh(y),
    "W tanh(y) * y": lambda y, k, s: (s.own @ ns.tanh(y)) * y,
    "(y + 1)^3": lambda y, k, s: (y + 1) ** 3 / 8,
}

TEXTS: dict[str, Callable[[int], list[str]]] = {
    "text y*y": lambda k: [f"y{k + 1} := y{k}*y{k}"],
    "text y*g + y": lambda k: [f"y{k + 1} := y{k}*tanh(h) + y{k}"],
    "text Moment": lambda k: [f"c{k + 1} := Moment(tanh(c{k}*g)*tanh(c{k}*g))", f"y{k + 1} := tanh(c{k + 1}*g)"],
    "text Moment of y": lambda k: [f"c{k + 1} := Moment(tanh(y{k})*y{k})", f"y{k + 1} := tanh(c{k + 1}*y{k})"],
    "text C-vars": lambda k: [f"c{k + 1} := c{k}*c{k}*0.5 + c{k}*0.5", f"y{k + 1} := tanh(c{k + 1}*g)"],
    "text LinComb": lambda k: [f"y{k + 1} := 0.6*y{k} + 0.4*y{k}"],
    "text c*g": lambda k: [f"c{k + 1} := Moment(y{k}*tanh(y{k}))", f"y{k + 1} := c{k + 1}*y{k} + c{k + 1}*h"],
}


def text(lines: Callable[[int], list[str]], n: int) -> ns.Program:
    head = ["Input g :: G(n) ~ N(0, 1)", "Input v :: G(n) ~ N(0, 1)", "Input W :: A(n, n) ~ N(0, 1/n)",
            "h := MatMul(W, g)", "c0 := Moment(g*g)", "y0 := 0.5*g + 0.5*h"]
    body = [line for k in range(n) for line in lines(k)]
    return ns.parse("\n".join([*head, *body, f"Output v^T y{n} / sqrt(n)"]))


def planned(kind: str, family: str, n: int) -> str:
    x = np.random.default_rng(0).standard_normal((3, 4))
    began = time.process_time()
    note = ""
    try:
        if family in TEXTS:
            program = text(TEXTS[family], n)
            read = time.process_time()
            if kind == "kernel":
                plan = ns.limit(program).plan()
            elif kind == "limit":
                plan = ns.limit(program, progress=False, points=256).result().plan
            else:
                raise ns.NetsorError("only kernels")
        else:
            net = network(NETWORKS[family], n)
            ns.program(net, x[0])
            read = time.process_time()
            make = ns.ntk if kind == "ntk" else ns.kernel
            if kind == "limit":
                plan = make(net, progress=False, points=256).evaluate(x).plan
            else:
                plan = make(net).plan(x)
        note = "exact" if plan.exact else "sampled"
    except ns.NetsorError as error:
        read = time.process_time()
        note = "refused: " + str(error).splitlines()[0][:60]
    done = time.process_time()
    return f"{read - began:.2f} {done - read:.2f} {note}"

def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kind", default="kernel")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--one", nargs=2)
    given = parser.parse_args()
    if given.one:
        print(planned(given.kind, given.one[0], int(given.one[1])))
        return
    for family in given.families or [*NETWORKS, *TEXTS]:
        if given.kind == "ntk" and family in TEXTS:
            continue
        print(f"{given.kind} {family}")
        for n in given.sizes:
            try:
                run = subprocess.run([sys.executable, __file__, "--kind", given.kind, "--one", family, str(n)], capture_output=True, timeout=given.seconds, text=True)
                last = (run.stdout or run.stderr).strip().splitlines()[-1]
            except subprocess.TimeoutExpired:
                last = "-"
            print(f"   {n}: {last}", flush=True)
            if last == "-":
                break

if __name__ == "__main__":
    main()
