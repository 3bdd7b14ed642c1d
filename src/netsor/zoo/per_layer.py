"""Variances given as one number or one per layer, and checks of the zoo's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netsor.build.layers.dense import bias
from netsor.build.layers.recurrent import per_gate
from netsor.build.parameters import Matrix, Vector
from netsor.build.source_lines import fail
from netsor.errors import DataError

Var = float | Sequence[float]


def check_input(x: Any, *axes: str) -> None:
    """Refuse an input whose number of axes is not that of `axes`, the names of the expected ones."""
    if isinstance(x, tuple) or len(x.shape) != len(axes):
        shape = "a tuple" if isinstance(x, tuple) else f"of shape {x.shape}"
        wanted = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
        raise fail(
            f"an input is {shape}, not {wanted}",
            f"One input of this network has shape {wanted}, and a set of inputs one axis more in front: "
            "[x] for one.",
            DataError,
        )


def per_layer(value: Var, depth: int, what: str) -> list[float]:
    """Check a depth, and return one number per layer."""
    if type(depth) is not int or depth < 1:
        raise fail(f"depth={depth!r:.60}", "A network has at least one hidden layer.")
    if depth > 1_000_000:
        raise fail(f"depth={depth}", "A network has at most 1,000,000 hidden layers.")
    return per_gate(value, depth, what)


def matrices(var: Var, depth: int, name: str = "W") -> list[Matrix]:
    """Return the matrices W1, W2, ..."""
    return [Matrix(v, name=f"{name}{i}") for i, v in enumerate(per_layer(var, depth, "var_w"), 1)]


def biases(var: Var, depth: int, name: str = "b") -> list[Vector | int]:
    """Return the bias vectors b1, b2, ..., with the number 0 in place of those of variance 0."""
    return [bias(v, name=f"{name}{i}") for i, v in enumerate(per_layer(var, depth, "var_b"), 1)]
