"""Graph convolution: a matrix on each node, then a weighted sum over neighbours."""

from __future__ import annotations

import numpy as np

from netsor.build.array_functions import contract
from netsor.build.graph_nodes import Node
from netsor.build.layers.dense import bias, label
from netsor.build.parameters import Matrix
from netsor.build.source_lines import fail
from netsor.build.trace import numbers
from netsor.errors import DataError


class GraphConv:
    """The layer `sum_j adjacency[i, j] W x_j + b`.

    Call it with features (..., nodes, m) or a block of index shape (..., nodes), and an adjacency matrix
    (nodes, nodes).

    Parameters
    ----------
    var_w, var_b, mean_b, name
        As for `Dense`.
    """

    def __init__(
        self, var_w: float = 1.0, var_b: float = 0.0, mean_b: float = 0.0, *, name: str = ""
    ) -> None:
        self.W = Matrix(var_w, name=label("W", name))
        self.b = bias(var_b, mean_b, label("b", name))

    def __call__(self, x: object, adjacency: object) -> Node:
        return contract(adjacency, self.W @ x) + self.b


def normalized_adjacency(adjacency: object) -> np.ndarray:
    """Compute D^(-1/2) (A + I) D^(-1/2), where D are the degrees of A + I.

    Parameters
    ----------
    adjacency
        A matrix A of nonnegative weights, (nodes, nodes).

    References
    ----------
    Kipf and Welling 2017, "Semi-Supervised Classification with Graph Convolutional Networks".

    Examples
    --------
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
