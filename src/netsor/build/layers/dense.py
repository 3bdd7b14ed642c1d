"""The dense layer, and biases."""

from __future__ import annotations

from typing import Any

from netsor.build.nodes import Node
from netsor.build.parameters import Matrix, Vector

__all__ = ["Dense", "bias"]


def bias(var: float, mean: float = 0.0, name: str | None = None) -> Vector | int:
    """A bias vector; none at all (0) if it would be the zero vector."""
    return Vector(var, mean, name=name) if var or mean else 0


class Dense:
    """`W @ x + b`, on data or on every vector of a block.

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
        rows: str | None = None,
        name: str = "",
    ) -> None:
        self.W = Matrix(var_w, rows, name=f"W{name}" if name else None)
        self.b = bias(var_b, mean_b, f"b{name}" if name else None)

    def __call__(self, x: Any) -> Node:
        return self.W @ x + self.b
