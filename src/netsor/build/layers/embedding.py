"""Embeddings of discrete tokens."""

from __future__ import annotations

import numpy as np

from netsor.build.array_functions import as_node
from netsor.build.graph_nodes import Node
from netsor.build.layers.dense import label, scaled
from netsor.build.parameters import Matrix
from netsor.build.source_lines import fail
from netsor.errors import DataError
from netsor.lang.functions import abs_, relu


class Embedding:
    """A random vector for each of `count` tokens, with independent coordinates N(0, var).

    Call it with data of any shape that contain token numbers 0, ..., count - 1. It computes
    `E @ one_hot(token)` with `E = Matrix(var * count)`, so cov(E t, E s) = var if t = s, else 0.

    Parameters
    ----------
    count
        The number of tokens.
    var
        The variance of a coordinate.
    name
        A suffix of the matrix's name.

    Examples
    --------
    >>> import netsor as ns
    >>> embed, v = ns.Embedding(10, var=2.0), ns.Matrix(rows=1)
    >>> net = ns.network(lambda tokens: v @ embed(tokens))
    >>> ns.kernel(net)([[3, 7, 3]]).round(10)
    array([[2., 0., 2.],
           [0., 2., 0.],
           [2., 0., 2.]])
    """

    def __init__(self, count: int, var: float = 1.0, *, name: str = "") -> None:
        if type(count) is not int or not 1 <= count <= 10**7:
            raise fail(f"count={count!r:.60}", "The number of tokens is an integer from 1 to 10,000,000.")
        self.count = count
        self.E = Matrix(scaled(var, 1, "var") * count, name=label("E", name))

    def __call__(self, tokens: object) -> Node:
        ids = as_node(tokens)
        if ids.kind != "K":
            raise fail("an Embedding of vectors", "Tokens are data: numbers 0, 1, ..., count - 1.")
        ids.trace.require(ids, self._check)
        vocabulary = np.arange(self.count, dtype=float)
        # max(0, 1 - |id - v|) is one-hot for integers, and a function of data that the language has.
        one_hot = relu(1.0 - abs_(ids[..., None] - vocabulary))
        return self.E @ one_hot

    def _check(self, values: np.ndarray) -> None:
        good = (values == np.round(values)) & (values >= 0) & (values < self.count)
        if not good.all():
            raise fail(
                f"the token {values[~good][0]:g}",
                f"Tokens are whole numbers from 0 to {self.count - 1}.",
                DataError,
            )
