"""Dropout: masks that are drawn anew for every input and every use."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from netsor.build.functions import as_node
from netsor.build.layers.dense import number
from netsor.build.nodes import Node, apply, fail
from netsor.build.parameters import Vector
from netsor.lang.functions import mul, step

__all__ = ["Dropout"]


class Dropout:
    """h times a mask: each coordinate is kept with probability `keep` and divided by it, else it is 0.

    Masks are drawn anew for every input, every vector of a block and every use of the layer, so that
    E[f(x) f(x')] only grows where x and x' are the same input: there E[mask^2] = 1 / keep. A network without
    dropout, as it is at the time of testing, is one without the layer.

    The mask is step(g) / keep with a Gaussian g of mean Phi^-1(keep), `ns.Vector(each=True)`.

    >>> import numpy as np, netsor as ns
    >>> U, v, drop = ns.Matrix(), ns.Matrix(rows=1), ns.Dropout(0.5)
    >>> net = ns.network(lambda x: v @ drop(U @ x))
    >>> ns.kernel(net)(np.array([[1.0], [1.0]])).round(10)
    array([[2., 1.],
           [1., 2.]])
    """

    def __init__(self, keep: float) -> None:
        self.keep = number(keep, "keep")
        if not 0 < self.keep < 1:
            raise fail(f"keep={keep!r}", "The probability to be kept is between 0 and 1.")
        self.noise: list[Vector] = []
        self.places: dict[tuple[tuple[int, ...], int], int] = {}  # by index shape and number of the use

    def __call__(self, h: Any) -> Node:
        h = as_node(h)
        if h.kind not in ("G", "H"):
            raise fail("dropout of data", "Masks have a width: multiply data by a Matrix first.")
        key = h.index, h.trace.count((self, h.index))
        if key not in self.places:
            self.noise.append(Vector(1.0, NormalDist().inv_cdf(self.keep), index=h.index, each=True))
            self.places[key] = len(self.noise) - 1
        return apply(mul, apply(mul, 1 / self.keep, h), step(self.noise[self.places[key]]))
