"""Variances that may be one number or one per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netsor.build.layers.dense import bias, choice, flag
from netsor.build.layers.recurrent import check_functions, per_gate
from netsor.build.nodes import fail
from netsor.build.parameters import Matrix, Vector
from netsor.errors import DataError

__all__ = [
    "Var",
    "biases",
    "check_depth",
    "check_functions",
    "check_input",
    "choice",
    "flag",
    "matrices",
    "per_layer",
]

Var = float | Sequence[float]
DEEPEST = 1_000_000


def check_depth(depth: int) -> None:
    if type(depth) is not int or depth < 1:
        raise fail(f"depth={depth!r:.60}", "A network has at least one hidden layer.")
    if depth > DEEPEST:
        raise fail(f"depth={depth}", f"A network has at most {DEEPEST:,} hidden layers.")


def check_input(x: Any, *axes: str) -> None:
    """One input has the shape that the network is for."""
    if isinstance(x, tuple) or len(x.shape) != len(axes):
        found = "a tuple" if isinstance(x, tuple) else f"of shape {x.shape}"
        wanted = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
        raise fail(
            f"an input is {found}, not {wanted}",
            f"One input of this network has shape {wanted}, and a set of inputs one axis more in front: "
            "[x] for one.",
            DataError,
        )


def per_layer(value: Var, depth: int, what: str) -> list[float]:
    """One number per layer."""
    check_depth(depth)
    return per_gate(value, depth, what)


def matrices(var: Var, depth: int, name: str = "W", first: int = 1) -> list[Matrix]:
    """W1, W2, ... with their variances."""
    values = per_layer(var, depth, f"var_{name.lower()}")
    return [Matrix(v, name=f"{name}{i}") for i, v in enumerate(values, first)]


def biases(var: Var, depth: int, name: str = "b") -> list[Vector | int]:
    """b1, b2, ...; no bias where the variance is 0."""
    return [bias(v, name=f"{name}{i}") for i, v in enumerate(per_layer(var, depth, "var_b"), 1)]
