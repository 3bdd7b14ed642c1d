"""Pooling over windows of the last index axes, and resizing; leading axes are batch axes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from netsor.arguments import is_integer
from netsor.build.array_functions import as_node, contract, pad
from netsor.build.array_functions import max as max_over
from netsor.build.graph_nodes import Node, apply
from netsor.build.layers.dense import choice, flag
from netsor.build.layers.spatial_axes import on_last_axes, per_axis, space_of
from netsor.build.source_lines import fail
from netsor.lang.functions import mul
from netsor.lang.index_maps import AROUND, avgpool, patches, take, window_extent

__all__ = ["global_max_pool", "global_mean_pool", "max_pool", "mean_pool", "resize", "sum_pool", "upsample"]
Sizes = int | tuple[int, ...]


def _windows(h: Node, size: Sizes, stride: Sizes | None, padding: str | int) -> tuple[int, dict[str, Any]]:
    dims = len(size) if isinstance(size, tuple | list) else space_of(h, "pooling")
    sizes = per_axis(size, dims, "size")
    if dims > len(h.positions):
        raise fail(
            f"a {dims}-dimensional pool meets positions of shape {h.index}",
            "Pooling acts on the last index axes of a block, (..., height, width) or (..., length).",
        )
    if padding not in ("same", "valid", *AROUND) and not is_integer(padding, 0, min(sizes) // 2):
        raise fail(
            f"padding={padding!r}",
            'Pooling uses only windows that fit ("valid"), also those over the edge ("same"), also with the '
            'other end of the block ("circular", "wrap"), or a number of places around it, at most half the '
            "window.",
        )
    stride = sizes if stride is None else per_axis(stride, dims, "stride")
    around = padding if isinstance(padding, str) else int(padding) or "valid"
    return dims, {"size": sizes, "stride": stride, "padding": around}


def mean_pool(
    h: Node, size: Sizes = 2, stride: Sizes | None = None, padding: str | int = "valid", *, edges: bool = True
) -> Node:
    """Average over windows of the last index axes.

    Parameters
    ----------
    h
        Data or a block; leading axes are batch axes.
    size
        The window: a number for all spatial axes (height and width, or the length), or a tuple.
    stride
        A number or a tuple; by default the size.
    padding
        "valid": only windows that fit. "same": also windows over the edge, without the positions outside.
        "circular" or "wrap": periodic (see `Conv1d`). A number: zeros that count as positions.
    edges
        With "same": True averages over the positions inside, False over the whole window with zeros outside.
    """
    h = as_node(h)
    dims, options = _windows(h, size, stride, padding)
    if isinstance(options["padding"], int):
        h, options["padding"] = pad(h, ((options["padding"],) * 2,) * dims), "valid"
    elif padding == "same" and not flag("edges", edges):
        h, options["padding"] = pad(h, _beyond(h, dims, **options)), "valid"
    return on_last_axes(h, dims, lambda x: apply(avgpool, x, **options))


def _beyond(h: Node, dims: int, size: tuple[int, ...], stride: tuple[int, ...], padding: str) -> list[Any]:
    """The (before, after) padding that windows need on each spatial axis."""
    pads = []
    for n, k, s in zip(h.positions[-dims:], size, stride, strict=True):
        count, left = window_extent(n, k, s, 1, padding)
        pads.append((left, max((count - 1) * s + k - left - n, 0)))
    return pads


def sum_pool(h: Node, size: Sizes = 2, stride: Sizes | None = None, padding: str | int = "valid") -> Node:
    """Sum over windows of the last index axes; arguments as for `mean_pool`, with zeros outside."""
    h = as_node(h)
    members = prod(_windows(h, size, stride, padding)[1]["size"])
    return apply(mul, float(members), mean_pool(h, size, stride, padding, edges=False))


def max_pool(h: Node, size: Sizes = 2, stride: Sizes | None = None, padding: str | int = "valid") -> Node:
    """Take maxima over windows, without positions outside the block; arguments as for `mean_pool`."""
    h = as_node(h)
    dims, options = _windows(h, size, stride, padding)
    return on_last_axes(h, dims, lambda x: max_over(apply(patches, x, **options), axis=0))


def upsample(h: Node, size: Sizes = 2) -> Node:
    """Repeat each position `size` times along each spatial axis (nearest neighbour)."""
    h = as_node(h)
    dims = len(size) if isinstance(size, tuple | list) else space_of(h, "upsampling")
    if dims > len(h.positions):
        raise fail(
            f"size={size!r} for positions of shape {h.index}", "Give one number for each axis of space."
        )
    sizes = zip(h.positions[-dims:], per_axis(size, dims, "size"), strict=True)
    return resize(h, tuple(n * times for n, times in sizes), "nearest")


def resize(
    h: Node, shape: Sizes, method: str = "linear", *, dims: int | None = None, antialias: bool = True
) -> Node:
    """Resize the last index axes (height and width, or the length).

    Output o reads at (o + 1/2) size / new - 1/2, with weights proportional to max(0, 1 - distance / r).

    Parameters
    ----------
    h
        Data or a block; leading axes are batch axes.
    shape
        The new lengths: a number for all spatial axes, or a tuple.
    method
        "linear" between the centres of pixels, or "nearest".
    dims
        Number of spatial axes, if `shape` is a number.
    antialias
        Whether linear interpolation to a smaller size averages over all pixels, r = size / new; else r = 1.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> U, v = ns.Matrix(), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ ns.resize(U @ x, (3,)))
    >>> np.sqrt(np.diag(ns.kernel(net)([np.array([[1.0], [2.0]])])))
    array([1. , 1.5, 2. ])
    """
    h = as_node(h)
    if isinstance(shape, list | tuple):
        dims = len(shape)
    dims = space_of(h, "resize", dims)
    method = choice(method, ("linear", "nearest"), "method")
    for axis, new in enumerate(per_axis(shape, dims, "shape"), len(h.positions) - dims):
        size = h.index[axis]
        if method == "nearest":
            indices = tuple(int((o + 0.5) * size / new) for o in range(new))
            h = apply(take, h, axis=axis, indices=indices)
        elif new != size:
            matrix = _interpolation(size, new, flag("antialias", antialias))
            order = [*(a for a in range(len(h.index)) if a != axis), axis]
            h = contract(matrix, h.transpose(*order)).transpose(*np.argsort(order).tolist())
    h.space = dims
    return h


def _interpolation(size: int, new: int, antialias: bool) -> np.ndarray:
    """The weights (new, size) of linear interpolation; a centre beyond the last pixel reads that pixel."""
    reach = max(size / new, 1.0) if antialias else 1.0
    centres = (np.arange(new) + 0.5) * size / new - 0.5
    weights = np.maximum(1 - np.abs(centres[:, None] - np.arange(size)) / reach, 0.0)
    return weights / weights.sum(1, keepdims=True)


def global_mean_pool(h: Node, dims: int | None = None, mask: object = None) -> Node:
    """Average over all positions: the last two index axes (height, width), or the single one of a sequence.

    Parameters
    ----------
    h
        Data or a block; leading axes are batch axes.
    dims
        Number of spatial axes, if it differs.
    mask
        Zeros and ones, data or an array of the shape of the spatial axes: average over positions with 1.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> U, v = ns.Matrix(), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ ns.global_mean_pool(U @ x[0], mask=x[1]))
    >>> ns.kernel(net)([(np.array([[1.0], [3.0], [100.0]]), np.array([1.0, 1.0, 0.0]))])
    array([[4.]])
    """
    h = as_node(h)
    axes = _last(h, space_of(h, "global_mean_pool", dims))
    if mask is None:
        return h.mean(axes)
    counts = as_node(mask)
    if counts.kind != "K":
        raise fail("a mask that is computed", "A mask is data or an array of zeros and ones.")
    total = counts.sum(tuple(range(len(counts.index) - len(axes), len(counts.index))))
    return apply(mul, h, counts[..., None] if h.channels else counts).sum(axes) / total


def global_max_pool(h: Node, dims: int | None = None) -> Node:
    """Take the maximum over all positions, coordinate by coordinate; arguments as for `global_mean_pool`."""
    h = as_node(h)
    return max_over(h, axis=_last(h, space_of(h, "global_max_pool", dims)))


def _last(h: Node, dims: int) -> tuple[int, ...]:
    return tuple(range(len(h.positions)))[-dims:]
