"""Normalisations: over the members of a batch (an index axis), or over the width (Moments)."""

from __future__ import annotations

from netsor.build.array_functions import as_node, mean
from netsor.build.graph_nodes import Node, apply
from netsor.build.layers.dense import scaled
from netsor.build.source_lines import fail
from netsor.lang.functions import MIXINGS, sqrt


def batchnorm(h: Node, axis: int | tuple[int, ...] = 0, eps: float = 0.0) -> Node:
    """Normalise over the members of a batch: (h - mean) / standard deviation.

    Parameters
    ----------
    h
        A block with an index axis for the batch.
    axis
        The index axes of the members, e.g. batch and pixels together. With the spatial axes alone, this is
        instance normalisation.
    eps
        A number that is added to the variance; 0 in the paper.
    """
    h = as_node(h)
    if axis is None or not h.index:
        raise fail(
            f"batchnorm over axis={axis!r} of a block of index shape {h.index}",
            "The members of a batch are index axes: the input is a whole batch, data (B, m) with axis=0, or "
            "(B, H, W, C) with axis=(0, 1, 2).",
        )
    options = {"eps": number} if (number := scaled(eps, 1, "eps")) else {}
    return apply(MIXINGS["batchnorm"], h, axis=h.axes(axis, "batchnorm"), **options)


def layernorm(h: Node, eps: float = 0.0, *, axis: int | tuple[int, ...] = ()) -> Node:
    """Normalise each vector over the width: (h - mean) / standard deviation.

    Mean and variance are Moments, so the result is a Nonlin+ of h with two parameters.

    Parameters
    ----------
    h
        A vector or a block.
    eps
        A number that is added to the variance.
    axis
        Index axes over which to normalise, too. With the spatial axes, this is group normalisation with
        infinitely many channels per group.
    """
    h = as_node(h)
    nu = _over(mean(h), axis, h)
    var = _over(mean((h - nu) ** 2), axis, h)
    return (h - nu) / sqrt(var + scaled(eps, 1, "eps"))


def rmsnorm(h: Node, eps: float = 0.0, *, axis: int | tuple[int, ...] = ()) -> Node:
    """Divide by the root mean square over the width; arguments as for `layernorm`.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> U, v = ns.Matrix(), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ ns.rmsnorm(U @ x))
    >>> ns.kernel(net)(np.array([[3.0, 4.0], [8.0, 6.0]])).round(10)
    array([[1.  , 0.96],
           [0.96, 1.  ]])
    """
    h = as_node(h)
    return h / sqrt(_over(mean(h**2), axis, h) + scaled(eps, 1, "eps"))


def _over(moment: Node, axis: int | tuple[int, ...], h: Node) -> Node:
    """Average a moment over index axes, which remain as axes of length 1."""
    axes = {a % len(h.index) for a in h.axes(axis, "layernorm")}
    if not axes:
        return moment
    return moment.mean(tuple(axes))[tuple(None if a in axes else slice(None) for a in range(len(h.index)))]
