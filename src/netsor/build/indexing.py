"""Checks of the items of `h[...]`, and of shapes."""

from __future__ import annotations

import operator
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from netsor.arguments import is_integer
from netsor.build.source_lines import fail
from netsor.lang.expr import Attr, Slice
from netsor.lang.types import Index


def resolve_shape(shape: tuple[Any, ...], index: Index) -> tuple[int, ...]:
    """Return a new shape in which -1 is replaced by the missing size."""
    total = prod(index)
    if not all(is_integer(s, -1) and s for s in shape) or shape.count(-1) > 1:
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
    is_slice = isinstance(item, slice)
    parts = (item.start, item.stop, item.step) if is_slice else (item,)
    if not isinstance(item, bool | np.bool_):
        with suppress(TypeError):
            numbers = [None if part is None else operator.index(part) for part in parts]
            if not is_slice:
                return numbers[0]
            if numbers[2] != 0:
                return Slice(*numbers)
    raise fail(
        f"{item!r} is not an index",
        "A slice has integers, and a step that is not 0: `h[1:5:2]`."
        if is_slice
        else "Index axes are taken by integers, slices, None, or one list of integers: `h[0]`, `h[1:]`, "
        "`h[[0, 2]]`.",
    )
