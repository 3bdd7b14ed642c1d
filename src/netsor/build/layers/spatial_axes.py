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


def integers(value: Any, dims: int) -> tuple[int, ...] | None:
    """Return one integer per axis, from a number or a tuple; None for anything else."""
    values = tuple(value) if isinstance(value, list | tuple | np.ndarray) else (value,) * dims
    return tuple(map(int, values)) if len(values) == dims and all(map(is_integer, values)) else None


def per_axis(value: object, dims: int, what: str) -> tuple[int, ...]:
    """Return one integer >= 1 per axis, from a number or a tuple."""
    values = integers(value, dims)
    if not values or any(v < 1 for v in values):
        each = f"or a tuple of {dims if dims > 1 else 'one'}, one for each axis of space."
        raise fail(f"{what}={value!r}", f"Give an integer >= 1, {each}")
    return values


def space_of(h: Node, what: str, dims: int | None = None) -> int:
    """Return the number of spatial axes: `dims`, else as after a convolution, else 2 or the only one."""
    rank = len(h.positions)
    if dims is not None and not is_integer(dims, 1, rank):
        raise fail(f"dims={dims!r}", f"Give the number of last index axes to act on, 1 to {rank}.")
    if rank == 0:
        raise fail(
            f"{what} of a single vector",
            "It acts on the last index axes of a block: (..., height, width) or (..., length).",
        )
    return dims or h.space or min(rank, 2)


def on_last_axes(h: Node, dims: int, act: Callable[[Node], Node]) -> Node:
    """Apply `act`, which acts on the first index axes, to the spatial axes; channels of data remain last."""
    out = _rolled(act(_rolled(h, len(h.positions) - dims, dims)), dims, dims)
    out.space = dims
    return out


def _rolled(h: Node, first: int, dims: int) -> Node:
    """Let the index axes from number `first` on come before the others, if there are more than `dims`."""
    rank = len(h.positions)
    if rank <= dims:
        return h
    return apply(transpose, h, axes=(*range(first, rank), *range(first), *range(rank, len(h.index))))
