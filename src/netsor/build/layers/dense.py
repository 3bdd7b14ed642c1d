"""The dense layer, and biases."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsor.build.nodes import Node, fail
from netsor.build.parameters import Matrix, Vector
from netsor.errors import DataError

__all__ = ["Dense", "bias", "choice", "flag", "label", "number", "scaled"]


def flag(value: Any, what: str) -> bool:
    """True or False; a string like "False" would count as true."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise fail(f"{what}={value!r:.60}", "Give True or False.")


def choice(value: Any, options: tuple[str | None, ...], what: str) -> Any:
    """One of several words."""
    if (value is None or isinstance(value, str)) and value in options:
        return value
    words = " or ".join("None" if option is None else f'"{option}"' for option in options)
    raise fail(f"{what}={value!r:.60}", f"Choose {words}.")


def label(prefix: str, name: Any) -> str | None:
    """The name of a parameter of a layer, from the name of the layer."""
    if not isinstance(name, str):
        raise fail(
            f"name={name!r:.60}", "The name of a layer is a string, which ends the names of its matrices."
        )
    return f"{prefix}{name}" if name else None


def number(value: Any, what: str) -> float:
    """A finite real number, or an error that names the argument."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if real and np.isfinite(value):
        return float(value)
    raise fail(f"{what}={value!r:.60}", "Give a finite number.", DataError)


def scaled(var: Any, parts: int, what: str) -> float:
    """The variance of each of several matrices that share one fan-in."""
    value = number(var, what)
    if value < 0:
        raise fail(f"{what}={value:g}", "Rule Input: a variance is finite and >= 0.", DataError)
    return value / parts


def bias(var: float, mean: float = 0.0, name: str | None = None) -> Vector | int:
    """A bias vector; none at all (0) if it would be the zero vector."""
    var, mean = number(var, "var_b"), number(mean, "mean_b")
    return Vector(var, mean, name=name) if var or mean else 0


class Dense:
    """`W @ x + b`, on data or on every vector of a block; with a number of rows, an output layer.

    >>> import netsor as ns
    >>> hidden, v = ns.Dense(var_w=2.0, var_b=0.1), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ ns.relu(hidden(x)))
    """

    def __init__(
        self,
        var_w: float = 1.0,
        var_b: float = 0.0,
        mean_b: float = 0.0,
        *,
        rows: int | str | None = None,
        name: str = "",
    ) -> None:
        self.W = Matrix(var_w, rows, name=label("W", name))
        self.b = bias(var_b, mean_b, label("b", name))

    def __call__(self, x: Any) -> Node:
        return self.W @ x + self.b
