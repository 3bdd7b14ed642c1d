"""What the lines of the table may use."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import netsor as ns

__all__ = ["WORLD"]

rng = np.random.default_rng(0)
x, X, T, image = (rng.standard_normal(shape) for shape in ((3,), (4, 3), (2, 4, 3), (4, 5, 2)))
U, W, b = ns.Matrix(1.0, name="U"), ns.Matrix(0.5, name="W"), ns.Vector(0.25, name="b")
v, v3 = ns.Matrix(1.0, rows=1, name="v"), ns.Matrix(1.0, rows=3, name="v3")
counter = [0]


def net(fn: Any) -> Any:
    return fn if isinstance(fn, ns.Network) else ns.network(fn)


def P(fn: Any, *inputs: Any) -> ns.Program:
    return ns.program(net(fn), *(inputs or (x,)))


def K(fn: Any, inputs: Any = None, **options: Any) -> Any:
    return ns.kernel(net(fn), **options).evaluate(X if inputs is None else inputs)


def S(
    fn: Any, inputs: Any = None, width: Any = 4, samples: Any = 1, seed: Any = 0, **options: Any
) -> np.ndarray:
    return ns.simulate(net(fn), X if inputs is None else inputs, width, samples, seed, **options)


def text(*lines: str) -> ns.Program:
    """A program with an input vector g, a readout v, and these lines; `y` is read."""
    head = ("Input g :: G(n) ~ N(0, 1)", "Input v :: G(n) ~ N(0, 1)", "Input W :: A(n, n) ~ N(0, 1/n)")
    return ns.parse("\n".join((*head, *lines, "Output v^T y / sqrt(n)")))


def count() -> int:
    counter[0] += 1
    return counter[0]


def relu_kernel(inputs: np.ndarray, var: float = 1.0) -> np.ndarray:
    """E[relu(g) relu(h)] for covariance var x.y / m (Cho & Saul 2009)."""
    q = var * inputs @ inputs.T / inputs.shape[1]
    norms = np.sqrt(np.outer(np.diagonal(q), np.diagonal(q)))
    c = np.clip(q / norms, -1, 1)
    return norms * (np.sqrt(1 - c**2) + (np.pi - np.arccos(c)) * c) / (2 * np.pi)


def linear(inputs: np.ndarray) -> np.ndarray:
    return inputs @ inputs.T / inputs.shape[1]


class Helper:
    def __init__(self, fn: Callable) -> None:
        self.fn_ = fn

    def __call__(self, x: Any) -> Any:
        return self.fn_(x)


def object_with(fn: Callable) -> Helper:
    return Helper(fn)


WORLD: dict[str, Any] = dict(globals())
WORLD |= {"random": random, "I": image}
