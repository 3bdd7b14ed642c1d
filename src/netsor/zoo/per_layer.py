"""Variances that may be one number or one per layer."""

from __future__ import annotations

from collections.abc import Sequence

from netsor.build.layers.dense import bias
from netsor.build.layers.recurrent import check_functions, per_gate
from netsor.build.nodes import fail
from netsor.build.parameters import Matrix, Vector

__all__ = ["Var", "biases", "check_depth", "check_functions", "matrices", "per_layer"]

Var = float | Sequence[float]


def check_depth(depth: int) -> None:
    if not isinstance(depth, int) or depth < 1:
        raise fail(f"depth={depth!r}", "A network has at least one hidden layer.")


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
