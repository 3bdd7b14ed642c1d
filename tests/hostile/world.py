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


def step_kernel(inputs: np.ndarray) -> np.ndarray:
    """P(g > 0, h > 0) for covariance x.y / m (Sheppard 1899)."""
    q = inputs @ inputs.T
    return 0.25 + np.arcsin(np.clip(q / np.sqrt(np.outer(np.diagonal(q), np.diagonal(q))), -1, 1)) / (
        2 * np.pi
    )


def sine(frequency: float) -> np.ndarray:
    """E[sin(a g) sin(a h)] = exp(-a^2 (q + q') / 2) sinh(a^2 c)."""
    c = linear(X)
    q = np.diagonal(c)
    a = frequency**2
    return (np.exp(a * (2 * c - q - q[:, None]) / 2) - np.exp(-a * (2 * c + q + q[:, None]) / 2)) / 2


def monomial_kernel(power: int) -> np.ndarray:
    """E[g^p h^p] by a tensor rule, exact for polynomials (Gauss-Hermite)."""
    return _by_quadrature(lambda g: g**power)


def power_kernel(power: int) -> np.ndarray:
    """E[relu(g)^p relu(h)^p] in polar coordinates (Cho & Saul 2009): a smooth integral over an angle."""
    c = linear(X)
    q = np.sqrt(np.diagonal(c))
    found = np.empty_like(c)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    for i, j in np.ndindex(c.shape):
        angle = np.arccos(np.clip(c[i, j] / (q[i] * q[j]), -1, 1))
        t = (np.pi - angle) / 2 * nodes  # both are positive where |t| < (pi - angle) / 2
        both = np.cos(t - angle / 2) * np.cos(t + angle / 2)
        radial = 2.0**power * float(np.prod(np.arange(1, power + 1)))  # E[r^(2p)] of two variables
        found[i, j] = (q[i] * q[j]) ** power * radial * (weights @ both**power) * (np.pi - angle) / 2
    return found / (2 * np.pi)


ROWS = """Input W :: A(n, n) ~ N(0, 1/n)
Input g :: G(n)[2, 4] ~ N(0, 1)
y := relu(g)
h := MatMul(W, y)
"""


def sums_of_products() -> np.ndarray:
    """Sigma of the row sums of `h` in ROWS: 4 E[y^2] + 12 E[y]^2 within a row, 16 E[y]^2 between two."""
    square, product = 1 / 2, 1 / (2 * np.pi)
    return 16 * product + 4 * (square - product) * np.eye(2)


def tangent_of_taken(axis: str) -> Any:
    """The tangent kernel of a readout of the first column of `h` in ROWS."""
    lines = f"u := take(h, axis={axis}, indices=[0])\nz := tanh(u)\nOutput v^T z / sqrt(n)"
    program = ns.parse("Input v :: G(n) ~ N(0, 1)\n" + ROWS + lines)
    return ns.limit(program.tangent()).kernel().value


class Unconvertible:
    """What another library calls an array, although NumPy cannot read it."""

    shape, ndim = (4, 3), 2

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise RuntimeError("cannot become a NumPy array")


def _by_quadrature(fn: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    c, (nodes, weights) = linear(X), np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    found = np.empty_like(c)
    for i, j in np.ndindex(c.shape):
        rest = np.sqrt(max(c[j, j] - c[i, j] ** 2 / c[i, i], 0.0))
        g = np.sqrt(c[i, i]) * nodes
        h = c[i, j] / c[i, i] * g[:, None] + rest * nodes
        found[i, j] = weights @ (fn(g)[:, None] * fn(h)) @ weights
    return found


def nested(depth: int) -> ns.Program:
    return text("y := " + "tanh(" * depth + "g" + ")" * depth)


def deep(depth: int) -> ns.Network:
    return ns.zoo.mlp(depth=depth, phi=ns.erf)


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
