"""The one convention of all layers: they act on the last index axes, and further axes run along.

Data have shape (..., height, width, channels) or (..., length, channels), blocks the same without the
channels, which are the width. So a layer does to a batch of images what it does to each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netsor.build.nodes import Node, apply, fail
from netsor.lang.index_maps import transpose

__all__ = ["back", "in_front", "integers", "on_last_axes", "per_axis", "space_of"]


def integers(value: Any) -> tuple[int, ...] | None:
    """A number or several as a tuple of integers, or None."""
    values = tuple(value) if isinstance(value, list | tuple | np.ndarray) else (value,)
    whole = all(isinstance(v, int | np.integer) and not isinstance(v, bool | np.bool_) for v in values)
    return tuple(int(v) for v in values) if whole else None


def per_axis(value: Any, dims: int, what: str, least: int = 1) -> tuple[int, ...]:
    """One integer per axis, from a number or a tuple."""
    values = integers(value)
    if values is not None and not isinstance(value, list | tuple | np.ndarray):
        values = values * dims
    if values is None or len(values) != dims or any(v < least for v in values):
        each = f"or a tuple of {dims}" if dims > 1 else "or a tuple of one"
        raise fail(f"{what}={value!r}", f"Give an integer >= {least}, {each}, one for each axis of space.")
    return values


def space_of(h: Node, what: str, dims: int | None = None) -> int:
    """How many of the last index axes are space.

    As many as the convolution slid over that made h; else two (height and width), or one if there is one.
    """
    rank = len(h.index) - h.channels
    if dims is not None and (integers(dims) is None or not 1 <= dims <= rank):
        raise fail(f"dims={dims!r}", f"Give the number of last index axes to act on, 1 to {rank}.")
    if rank == 0:
        raise fail(
            f"{what} of a single vector",
            "It acts on the last index axes of a block: (..., height, width) or (..., length).",
        )
    return dims or h.space or min(rank, 2)


def in_front(x: Node, dims: int) -> Node:
    """The `dims` axes of space moved to the front; the channels of data stay the last axis."""
    rank = len(x.index) - x.channels
    if rank == dims:
        return x
    order = (*range(rank - dims, rank), *range(rank - dims), *range(rank, len(x.index)))
    return apply(transpose, x, axes=order)


def back(out: Node, dims: int, last: int = 0) -> Node:
    """The inverse of `in_front`, for a block whose first `dims` axes are space."""
    extra = len(out.index) - dims - last
    if extra:
        rest = range(dims + extra, len(out.index))
        out = apply(transpose, out, axes=(*range(dims, dims + extra), *range(dims), *rest))
    out.space = dims
    return out


def on_last_axes(h: Node, dims: int, act: Callable[[Node], Node]) -> Node:
    """`act`, which acts on the first index axes and keeps the others, on the axes of space instead."""
    return back(act(in_front(h, dims)), dims, h.channels)
