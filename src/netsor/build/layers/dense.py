"""The dense layer, biases, and checks of layers' arguments."""

from __future__ import annotations

from functools import partial
from typing import Any

from netsor import arguments
from netsor.build.graph_nodes import Node
from netsor.build.parameters import Matrix, Vector
from netsor.build.source_lines import fail
from netsor.errors import DataError

# Checks of arguments whose errors point at the user's line.
flag = partial(arguments.flag, error=fail)
number = partial(arguments.number, remedy="Give a finite number.", error=partial(fail, kind=DataError))


def choice(value: object, options: tuple[str | None, ...], what: str) -> Any:
    """Check that a value is one of several words."""
    if (value is None or isinstance(value, str)) and value in options:
        return value
    words = " or ".join("None" if option is None else f'"{option}"' for option in options)
    raise fail(f"{what}={value!r:.60}", f"Choose {words}.")


def label(prefix: str, name: object) -> str | None:
    """Name a parameter of a layer after the layer."""
    if not isinstance(name, str):
        raise fail(
            f"name={name!r:.60}", "The name of a layer is a string, which ends the names of its matrices."
        )
    return f"{prefix}{name}" if name else None


def scaled(var: object, parts: int, what: str) -> float:
    """Divide a variance by the number of matrices that together have one fan-in; refuse negative ones."""
    value = number(what, var)
    if value < 0:
        raise fail(f"{what}={value:g}", "Rule Input: a variance is finite and >= 0.", DataError)
    return value / parts


def bias(var: float, mean: float = 0.0, name: str | None = None) -> Vector | int:
    """Create a bias vector; return the number 0 if the bias would be the zero vector."""
    var, mean = number("var_b", var), number("mean_b", mean)
    return Vector(var, mean, name=name) if var or mean else 0


class Dense:
    """The layer `W @ x + b`, on data or on each vector of a block.

    Parameters
    ----------
    var_w
        The variance of an entry of W times the fan-in.
    var_b, mean_b
        Variance and mean of the bias; if both are 0, there is no bias.
    rows
        The number of outputs of an output layer, or the name of a width.
    name
        A suffix of the parameters' names.

    Examples
    --------
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

    def __call__(self, x: object) -> Node:
        return self.W @ x + self.b
