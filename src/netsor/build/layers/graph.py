"""Graph convolution: a matrix on every node, then a sum over neighbours with the weights of the graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsor.build.functions import contract
from netsor.build.layers.dense import bias, label
from netsor.build.nodes import Node, fail
from netsor.build.parameters import Matrix
from netsor.build.trace import numbers
from netsor.errors import DataError

__all__ = ["GraphConv", "normalized_adjacency"]


class GraphConv:
    """`sum_j adjacency[i, j] W x_j + b` for features (..., nodes, m) or a block of shape (..., nodes)."""

    def __init__(
        self, var_w: float = 1.0, var_b: float = 0.0, mean_b: float = 0.0, *, name: str = ""
    ) -> None:
        self.W = Matrix(var_w, name=label("W", name))
        self.b = bias(var_b, mean_b, label("b", name))

    def __call__(self, x: Any, adjacency: Any) -> Node:
        return contract(adjacency, self.W @ x) + self.b


def normalized_adjacency(adjacency: Any) -> np.ndarray:
    """D^(-1/2) (A + I) D^(-1/2) with D the degrees of A + I (Kipf & Welling 2017).

    >>> normalized_adjacency([[0, 1], [1, 0]])
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    matrix = numbers(adjacency, "the adjacency")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise fail(
            f"the adjacency has shape {matrix.shape}",
            "It is a square matrix: entry (i, j) is the weight of the edge from node j to node i.",
            DataError,
        )
    matrix = matrix + np.eye(len(matrix))
    degrees = matrix.sum(1)
    if not (degrees > 0).all():
        raise fail(
            f"node {int(np.argmin(degrees))} has degree {degrees.min():g}",
            "The degrees of A + I are positive: give an adjacency without negative weights.",
            DataError,
        )
    scale = 1 / np.sqrt(degrees)
    return scale[:, None] * matrix * scale
