"""Checks of arguments of index operations: the items of `h[...]`, axes and shapes."""

from __future__ import annotations

import operator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.arguments import is_integer
from netsor.build.source_lines import fail
from netsor.lang.expr import Attr, Slice
from netsor.lang.types import Index

if TYPE_CHECKING:
    from netsor.build.graph_nodes import Node


def index_axes(axis: Any, node: Node, name: str) -> tuple[int, ...]:
    """Return the index axes on which a function acts: the given ones, or all."""
    if axis is None and not node.index and node.kind in ("G", "H"):
        raise fail(
            f"ns.{name} of a single vector",
            "It acts on index axes, and this vector has only its width, which is infinite. The average over "
            "the width is ns.mean(h); several vectors are one block, ns.stack([h1, h2]).",
        )
    if axis is None:
        return tuple(range(len(node.index)))
    axes = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if not all(is_integer(a) for a in axes):
        raise fail(f"axis={axis!r}", "Index axes are integers, counted from 0: axis=0, or axis=(0, 1).")
    rank = len(node.index)
    inside = [int(a) % rank for a in axes if -rank <= a < rank]
    if len(set(inside)) < len(inside):
        raise fail(f"axis={axis!r} names an axis twice", "Each index axis is named once: axis=(0, 1).")
    return tuple(int(a) for a in axes)


def resolve_shape(shape: tuple[Any, ...], index: Index) -> tuple[int, ...]:
    """Return a new shape in which -1 is replaced by the missing size."""
    total = prod(index)
    if (
        not all(is_integer(s) for s in shape)
        or any(s < -1 or s == 0 for s in shape)
        or sum(s == -1 for s in shape) > 1
    ):
        raise fail(f"the shape {shape!r}", "A shape has integers >= 1, and at most one -1 for what is left.")
    given = prod(int(s) for s in shape if s != -1)
    sizes = tuple(total // given if s == -1 else int(s) for s in shape)
    if prod(sizes) != total:
        raise fail(
            f"index shape {index} becomes {shape}",
            f"The number of vectors stays: {index} has {total}.",
        )
    return sizes


def index_items(items: list[Any], rank: int) -> tuple[Attr, ...]:
    """Return the items of `x[items]` without full slices at the end: x[0] and x[0, :] are one expression."""
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise fail("an index has `...` twice", "One `...` stands for all axes that the index does not name.")
    if dots:
        used = sum(i is not None for i in items) - 1
        items = [*items[: dots[0]], *[slice(None)] * (rank - used), *items[dots[0] + 1 :]]
    resolved = [_item(i) for i in items]
    while len(resolved) > 1 and resolved[-1] == Slice():
        resolved.pop()
    return tuple(resolved)


def listed_members(key: object, size: int) -> tuple[int, ...]:
    """Return the positions that a list of integers, or of booleans (size,), selects."""
    array = np.asarray(key)
    if array.dtype == bool:
        if array.shape != (size,):
            raise fail(
                f"a mask of shape {array.shape} for an axis of length {size}",
                "A list of truth values has one for each member of the axis.",
            )
        return tuple(int(i) for i in np.flatnonzero(array))
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise fail(
            f"an index of shape {array.shape} and type {array.dtype}",
            "A list in an index holds integers, or one truth value for each member of its axis.",
        )
    return tuple(int(i) for i in array)


def _item(item: Any) -> Attr:
    if item is None:
        return None
    try:
        if isinstance(item, bool | np.bool_):
            raise TypeError
        if not isinstance(item, slice):
            return int(item.__index__())
        ends = (item.start, item.stop, item.step)
        resolved = Slice(*(None if end is None else operator.index(end) for end in ends))
        if resolved.step != 0:
            return resolved
    except (AttributeError, TypeError):
        pass
    kinds = "integers, slices, None, or one list of integers: `h[0]`, `h[1:]`, `h[[0, 2]]`"
    slices = "A slice has integers, and a step that is not 0: `h[1:5:2]`."
    remedy = slices if isinstance(item, slice) else f"Index axes are taken by {kinds}."
    raise fail(f"{item!r} is not an index", remedy)
