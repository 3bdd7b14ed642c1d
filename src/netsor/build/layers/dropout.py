"""Dropout: a new random mask for each input and each call."""

from __future__ import annotations

from statistics import NormalDist

from netsor.build.array_functions import as_node
from netsor.build.graph_nodes import Node, apply
from netsor.build.layers.dense import number
from netsor.build.parameters import Vector
from netsor.build.source_lines import fail
from netsor.lang.functions import mul, step


class Dropout:
    """Multiply h by a mask: keep each coordinate with probability `keep` and divide it by `keep`, else set 0.

    Each input, each vector of a block and each call gets its own mask, so only the diagonal of a kernel
    changes: there E[mask^2] = 1 / keep, elsewhere E[mask mask'] = 1. For evaluation, leave out the layer.
    The mask is step(g) / keep, where g is a Gaussian `ns.Vector(each=True)` of mean Phi^-1(keep).

    Parameters
    ----------
    keep
        The probability that a coordinate is kept, between 0 and 1.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> U, v, drop = ns.Matrix(), ns.Matrix(rows=1), ns.Dropout(0.5)
    >>> net = ns.network(lambda x: v @ drop(U @ x))
    >>> ns.kernel(net)(np.array([[1.0], [1.0]])).round(10)
    array([[2., 1.],
           [1., 2.]])
    """

    def __init__(self, keep: float) -> None:
        self.keep = number("keep", keep)
        if not 0 < self.keep < 1:
            raise fail(f"keep={keep!r}", "The probability to be kept is between 0 and 1.")
        self.noise: list[Vector] = []
        self.places: dict[tuple[tuple[int, ...], int], int] = {}  # (index shape, number of the call) -> mask

    def __call__(self, h: object) -> Node:
        h = as_node(h)
        if h.kind not in ("G", "H"):
            raise fail("dropout of data", "Masks have a width: multiply data by a Matrix first.")
        key = h.index, h.trace.count((self, h.index))
        if key not in self.places:
            self.noise.append(Vector(1.0, NormalDist().inv_cdf(self.keep), index=h.index, each=True))
            self.places[key] = len(self.noise) - 1
        return apply(mul, apply(mul, 1 / self.keep, h), step(self.noise[self.places[key]]))
