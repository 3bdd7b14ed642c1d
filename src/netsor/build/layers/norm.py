"""Normalisations: over the members of a batch (an index axis), or over the width (Moments)."""

from __future__ import annotations

from netsor.build.functions import as_node, mean
from netsor.build.layers.dense import scaled
from netsor.build.nodes import Node, apply, fail, index_axes
from netsor.lang.functions import MIXINGS, sqrt

__all__ = ["batchnorm", "layernorm"]


def batchnorm(h: Node, axis: int | tuple[int, ...] = 0, eps: float = 0.0) -> Node:
    """(h - mean) / standard deviation over the members of a batch, which are an index axis of h.

    Several axes, e.g. batch and pixels, are normalised together. The paper has eps = 0.
    """
    h = as_node(h)
    if axis is None or not h.index:
        raise fail(
            f"batchnorm over axis={axis!r} of a block of index shape {h.index}",
            "The members of a batch are index axes: the input is a whole batch, data (B, m) with axis=0, or "
            "(B, H, W, C) with axis=(0, 1, 2).",
        )
    if scaled(eps, 1, "eps"):
        return apply(MIXINGS["batchnorm"], h, axis=index_axes(axis, h, "batchnorm"), eps=float(eps))
    return apply(MIXINGS["batchnorm"], h, axis=index_axes(axis, h, "batchnorm"))


def layernorm(h: Node, eps: float = 0.0) -> Node:
    """(h - mean) / standard deviation over the width, for every vector of a block by itself.

    Mean and variance are Moments, so the result is a Nonlin+ of h with two parameters.
    """
    h = as_node(h)
    nu = mean(h)
    var = mean((h - nu) ** 2)
    return (h - nu) / sqrt(var + float(eps) if scaled(eps, 1, "eps") else var)
