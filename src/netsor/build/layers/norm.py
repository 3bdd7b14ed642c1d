"""Normalisations: over the members of a batch (an index axis), or over the width (Moments)."""

from __future__ import annotations

from netsor.build.functions import mean
from netsor.build.nodes import Node, apply
from netsor.lang.functions import MIXINGS, sqrt

__all__ = ["batchnorm", "layernorm"]


def batchnorm(h: Node, axis: int | tuple[int, ...] = 0, eps: float = 0.0) -> Node:
    """(h - mean) / standard deviation over the members of a batch, which are an index axis of h.

    Several axes, e.g. batch and pixels, are normalised together. The paper has eps = 0.
    """
    axes = tuple(axis) if isinstance(axis, tuple | list) else (int(axis),)
    options = {"eps": float(eps)} if eps else {}
    return apply(MIXINGS["batchnorm"], h, axis=axes, **options)


def layernorm(h: Node, eps: float = 0.0) -> Node:
    """(h - mean) / standard deviation over the width, for every vector of a block by itself.

    Mean and variance are Moments, so the result is a Nonlin+ of h with two parameters.
    """
    nu = mean(h)
    var = mean((h - nu) ** 2)
    return (h - nu) / sqrt(var + eps if eps else var)
