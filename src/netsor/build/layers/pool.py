"""Pooling over windows of the last index axes; further axes (a batch) run along.

Means of G-vars are LinComb, means of H-vars and maxima Nonlin.
"""

from __future__ import annotations

from typing import Any

from netsor.build.functions import as_node, pad
from netsor.build.functions import max as max_over
from netsor.build.layers.space import integers, on_last_axes, per_axis, space_of
from netsor.build.nodes import Node, apply, fail
from netsor.lang.index_maps import avgpool, patches, take

__all__ = ["global_max_pool", "global_mean_pool", "max_pool", "mean_pool", "upsample"]

Sizes = int | tuple[int, ...]


def _windows(h: Node, size: Sizes, stride: Sizes | None, padding: str | int) -> tuple[int, dict[str, Any]]:
    dims = len(size) if isinstance(size, tuple | list) else space_of(h, "pooling")
    sizes = per_axis(size, dims, "size")
    if dims > len(h.index) - h.channels:
        raise fail(
            f"a {dims}-dimensional pool meets positions of shape {h.index}",
            "Pooling acts on the last index axes of a block, (..., height, width) or (..., length).",
        )
    number = integers(padding)
    if padding not in ("same", "valid") and (
        number is None or len(number) != 1 or not 0 <= number[0] <= min(sizes) // 2
    ):
        raise fail(
            f"padding={padding!r}",
            'Pooling uses only windows that fit ("valid"), also those over the edge ("same"), or a number of '
            "places around the block, at most half the window.",
        )
    return dims, {
        "size": sizes,
        "stride": sizes if stride is None else per_axis(stride, dims, "stride"),
        "padding": padding if number is None else (number[0] or "valid"),
    }


def mean_pool(h: Node, size: Sizes = 2, stride: Sizes | None = None, padding: str | int = "valid") -> Node:
    """Means over windows of the last index axes; the stride is the size unless given.

    size     a number for each of the axes that are space (height and width, or the length), or a tuple
    padding  "valid"; "same": places outside do not count; a number: zeros that count, as in PyTorch
    """
    h = as_node(h)
    dims, options = _windows(h, size, stride, padding)
    if isinstance(options["padding"], int):
        h, options["padding"] = pad(h, ((options["padding"],) * 2,) * dims), "valid"
    return on_last_axes(h, dims, lambda x: apply(avgpool, x, **options))


def max_pool(h: Node, size: Sizes = 2, stride: Sizes | None = None, padding: str | int = "valid") -> Node:
    """Maxima over windows of the last index axes, coordinate by coordinate; arguments as for `mean_pool`.

    Places outside the block never are the maximum.
    """
    h = as_node(h)
    dims, options = _windows(h, size, stride, padding)
    return on_last_axes(h, dims, lambda x: max_over(apply(patches, x, **options), axis=0))


def upsample(h: Node, size: Sizes = 2) -> Node:
    """Every position of the last index axes repeated `size` times along each (nearest neighbour)."""
    h = as_node(h)
    dims = len(size) if isinstance(size, tuple | list) else space_of(h, "upsampling")
    if dims > len(h.index) - h.channels:
        raise fail(
            f"size={size!r} for positions of shape {h.index}", "Give one number for each axis of space."
        )
    first = len(h.index) - h.channels - dims
    for axis, times in enumerate(per_axis(size, dims, "size"), first):
        indices = tuple(i for i in range(h.index[axis]) for _ in range(times))
        h = apply(take, h, axis=axis, indices=indices)
    h.space = dims
    return h


def global_mean_pool(h: Node, dims: int | None = None) -> Node:
    """The mean over all positions: the last two index axes (height, width), or the one of a sequence.

    `dims` says how many axes are space where that is not so.
    """
    h = as_node(h)
    return h.mean(_last(h, space_of(h, "global_mean_pool", dims)))


def global_max_pool(h: Node, dims: int | None = None) -> Node:
    """The maximum over all positions, coordinate by coordinate; arguments as for `global_mean_pool`."""
    h = as_node(h)
    return max_over(h, axis=_last(h, space_of(h, "global_max_pool", dims)))


def _last(h: Node, dims: int) -> tuple[int, ...]:
    rank = len(h.index) - h.channels
    return tuple(range(rank - dims, rank))
