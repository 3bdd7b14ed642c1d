"""The convention of all layers: they act on the last index axes; leading axes are batch axes.

Data have shape (..., height, width, channels) or (..., length, channels). Blocks have no channel axis,
because the channels are the width. So a layer acts on each image of a batch separately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netsor.arguments import is_integer
from netsor.build.graph_nodes import Node, apply
from netsor.build.source_lines import fail
from netsor.lang.index_maps import transpose


def integers(value: Any) -> tuple[int, ...] | None:
    """Convert one or several integers to a tuple; return None for anything else."""
    values = tuple(value) if isinstance(value, list | tuple | np.ndarray) else (value,)
    return tuple(int(v) for v in values) if all(is_integer(v) for v in values) else None


def per_axis(value: object, dims: int, what: str, least: int = 1) -> tuple[int, ...]:
    """Return one integer per axis, from a number or a tuple."""
    values = integers(value)
    if values is not None and not isinstance(value, list | tuple | np.ndarray):
        values = values * dims
    if values is None or len(values) != dims or any(v < least for v in values):
        each = f"or a tuple of {dims}" if dims > 1 else "or a tuple of one"
        raise fail(f"{what}={value!r}", f"Give an integer >= {least}, {each}, one for each axis of space.")
    return values


def space_of(h: Node, what: str, dims: int | None = None) -> int:
    """Return the number of spatial axes of h.

    It is `dims` if given, else that of the convolution that produced h, else 2 (height and width), or 1 if h
    has one axis.
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


def on_last_axes(h: Node, dims: int, act: Callable[[Node], Node]) -> Node:
    """Apply `act`, which acts on the first index axes, to the spatial axes; channels of data remain last."""
    rank = len(h.index) - h.channels
    if rank > dims:
        h = apply(
            transpose, h, axes=(*range(rank - dims, rank), *range(rank - dims), *range(rank, len(h.index)))
        )
    out = act(h)
    last = len(out.index) - out.channels
    if last > dims:
        out = apply(transpose, out, axes=(*range(dims, last), *range(dims), *range(last, len(out.index))))
    out.space = dims
    return out
