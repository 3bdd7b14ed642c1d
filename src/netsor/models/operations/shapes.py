"""Transposes, reshapes, slices and concatenations of values and parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from netsor.build.array_functions import concat as concat_nodes
from netsor.build.array_functions import contract
from netsor.build.graph_nodes import Node, apply
from netsor.lang import index_maps as maps
from netsor.models.axes import (
    Axis,
    AxisFactor,
    CutWidth,
    finite,
    length,
    refine,
    regroup,
    unknown,
)
from netsor.models.operations.elementwise import align, as_node, as_value, as_vector
from netsor.models.operations.nodes import reshape_node, transpose_node
from netsor.models.reader import Reader
from netsor.models.scalars import Size, both
from netsor.models.values import OutputValue, Parameter, Traced, Value, put, replaced


def transpose(reader: Reader, x: Traced, order: Sequence[int]) -> Any:
    match x:
        case OutputValue():
            return x.each(lambda t: transpose_value(t, order))
        case Parameter():
            axes = tuple(x.axes[i] for i in order)
            return replace(x, axes=axes, steps=(*x.steps, ("transpose", tuple(order))))
    return transpose_value(as_value(reader, x), order)


def transpose_value(v: Value, order: Sequence[int]) -> Value:
    axes = tuple(v.axes[i] for i in order)
    if not isinstance(v.node, Node):
        return replace(v, axes=axes)
    moved = [*range(v.lead), *(k for i in order for k in v.index_axes([i]))]
    return replace(v, axes=axes, node=transpose_node(v.node, moved))


def reshape(reader: Reader, x: Traced, shape: Sequence[Size]) -> Any:
    match x:
        case OutputValue():
            return x.each(lambda t: reshape_value(t, shape))
        case Parameter():
            axes = regroup(x.axes, shape)
            return replace(x, axes=axes, steps=(*x.steps, ("reshape", tuple(shape))))
    return reshape_value(as_value(reader, x), shape)


def reshape_value(v: Value, shape: Sequence[Size]) -> Value:
    out = replace(v, axes=regroup(v.axes, shape))
    return replace(out, node=reshape_node(v.node, out.index())) if isinstance(v.node, Node) else out


def broadcast(reader: Reader, x: Traced, shape: Sequence[Size], dims: Sequence[int]) -> Any:
    """Broadcast x to a shape: axis i of x becomes axis dims[i], other axes are new."""
    if isinstance(x, OutputValue):
        return x.each(lambda t: _broadcast(t, shape, dims))
    return _broadcast(as_value(reader, x), shape, dims)


def _broadcast(v: Value, shape: Sequence[Size], dims: Sequence[int]) -> Value:
    axes: list[Axis] = [()] * len(shape)
    for i, d in enumerate(dims):
        axes[d] = v.axes[i]
    axes = [a if length(a) == size else unknown(size) for a, size in zip(axes, shape, strict=True)]
    return replace(v, axes=tuple(axes))


# Finite axes


def with_index(v: Value, i: int) -> Value:
    """Give a finite axis exactly one index axis, even if the value is constant along it."""
    axis = v.axes[i]
    if len(axis) == 1 and axis[0].is_index:
        return v
    if any(f.width is not None or f.rows for f in axis):
        raise ValueError("an operation on finite axes meets a width")
    v = as_node(v)
    assert isinstance(v.node, Node)
    node, where = v.node, v.position(i)
    for f in axis or (AxisFactor((1, 1), real=False),):
        if not f.is_index:
            key = (slice(None),) * where + (None,)
            node = apply(maps.take, node[key], axis=where, indices=(0,) * f.size[0])
        where += 1
    total = length(axis)
    out = replaced(v, i, (AxisFactor(total),), node)
    return replace(out, node=reshape_node(node, out.index()))


def without_ones(v: Value) -> Value:
    """Remove index axes of length 1."""
    axes = tuple(tuple(f for f in a if f.size != (1, 1)) for a in v.axes)
    out = replace(v, axes=axes)
    return replace(out, node=reshape_node(v.node, out.index())) if isinstance(v.node, Node) else out


def take(reader: Reader, x: Traced, axis: int, indices: Sequence[int]) -> Any:
    """Take members of a finite axis, in any order."""
    if isinstance(x, OutputValue):
        return x.each(lambda t: _take(t, axis, indices))
    return _take(as_value(reader, x), axis, indices)


def _take(v: Value, axis: int, indices: Sequence[int]) -> Value:
    v = with_index(v, axis)
    node = apply(maps.take, v.node, axis=v.position(axis), indices=tuple(int(i) for i in indices))
    return without_ones(replaced(v, axis, (AxisFactor(both(len(indices))),), node))


def map_axis(v: Value, axis: int, matrix: np.ndarray) -> Value:
    """Multiply by a matrix of numbers along a finite axis."""
    v = with_index(v, axis)
    order = [i for i in range(len(v.axes)) if i != axis] + [axis]
    moved = transpose_value(v, order)
    node = contract(np.asarray(matrix, float), moved.node)
    out = replaced(moved, len(order) - 1, (AxisFactor(both(len(matrix))),), node)
    return transpose_value(out, np.argsort(order).tolist())


def pad(v: Value, axis: int, before: int, after: int) -> Value:
    """Pad a finite axis with zeros; negative numbers remove members."""
    if not before and not after:
        return v
    n = v.shape[axis][0]
    matrix = np.zeros((max(n + before + after, 0), n))
    for i in range(len(matrix)):
        if 0 <= i - before < n:
            matrix[i, i - before] = 1
    return map_axis(v, axis, matrix)


# Slices


def slice_axis(reader: Reader, x: Traced, axis: int, start: Size, stop: Size, step: int = 1) -> Any:
    """Slice x[start:stop:step] along an axis, with bounds at both widths."""
    size = x.shape[axis]
    if start == (0, 0) and stop == size and step == 1:
        return x
    if isinstance(x, OutputValue):
        return x.each(lambda t: _slice(reader, t, axis, start, stop, step))
    if start[0] >= stop[0] and start[1] >= stop[1]:
        return Value(tuple(unknown(s) for s in (*x.shape[:axis], (0, 0), *x.shape[axis + 1 :])), 0.0)
    if not (isinstance(x, Parameter) and not x.is_constant and len(x.widths) == 2):
        x = as_value(reader, x)
    if step != 1 and any(f.width is not None and f.real for f in x.axes[axis]):
        _check_steps(reader, size, start, stop, step)
        part = slice_axis(reader, _by_steps(reader, x, axis, step), axis + 1, start, both(start[0] + 1))
        return reshape(reader, part, [*part.shape[: axis + 1], *part.shape[axis + 2 :]])
    if isinstance(x, Parameter):
        return _slice_matrix(reader, x, axis, start, stop, step)
    return _slice(reader, x, axis, start, stop, step)


def _check_steps(reader: Reader, size: Size, start: Size, stop: Size, step: int) -> None:
    """Check a strided slice of a width: it must take one position in all blocks of `step` neighbours."""
    whole = all(n % step == 0 and n - step < k - first for n, k, first in zip(size, stop, start, strict=True))
    if not whole or start[0] != start[1] or start[0] >= step:
        raise reader.refuse(
            f"[{start[0]}:{stop[0]}:{step}] of an axis of length {size[0]} cuts a width",
            f"Every {step}th coordinate has a limit if the whole width is read so, and its length is a "
            f"multiple of {step}.",
        )


def _by_steps(reader: Reader, x: Traced, axis: int, step: int) -> Any:
    """Split an axis into two: blocks of `step` neighbours, and the position within a block."""
    blocks = (x.shape[axis][0] // step, x.shape[axis][1] // step)
    return reshape(reader, x, [*x.shape[:axis], blocks, both(step), *x.shape[axis + 1 :]])


def write(reader: Reader, x: Traced, part: Traced, axis: int, start: Size, stop: Size, step: int = 1) -> Any:
    """Replace x[start:stop:step] by another part."""
    size = x.shape[axis]
    if step == 1:
        before, after = slice_axis(reader, x, axis, (0, 0), start), slice_axis(reader, x, axis, stop, size)
        return concatenate(reader, [before, part, after], axis)
    if size[0] == size[1]:
        return put_members(reader, x, part, axis, list(range(start[0], stop[0], step)))
    _check_steps(reader, size, start, stop, step)
    place = (start[0], start[0] + 1)
    column = reshape(reader, part, [*part.shape[: axis + 1], (1, 1), *part.shape[axis + 1 :]])
    apart = write(reader, _by_steps(reader, x, axis, step), column, axis + 1, both(place[0]), both(place[1]))
    return reshape(reader, apart, x.shape)


def put_members(reader: Reader, x: Traced, part: Traced, axis: int, indices: Sequence[int]) -> Any:
    """Replace members of x at fixed positions of a finite axis."""
    n = x.shape[axis][0]
    order = np.arange(n)
    order[list(indices)] = n + np.arange(len(indices))
    return take(reader, concatenate(reader, [x, part], axis), axis, order.tolist())


def _slice(reader: Reader, v: Value, axis: int, start: Size, stop: Size, step: int) -> Value:
    factors = v.axes[axis]
    if not any(f.is_vector for f in factors):
        return _slice_plain(reader, v, axis, start, stop, step)
    first, last, inner = _blocks(reader, factors, start, stop)
    assert isinstance(v.node, Node)
    key: tuple[Any, ...] = (slice(None),) * v.position(axis)
    if last - first == 1:
        return replaced(v, axis, inner, v.node[(*key, first)])
    count = last - first
    return replaced(v, axis, (AxisFactor(both(count)), *inner), v.node[(*key, slice(first, last))])


def _slice_plain(reader: Reader, v: Value, axis: int, start: Size, stop: Size, step: int) -> Value:
    """Slice a finite axis, or a width along which the value is constant."""
    counts = (len(range(start[0], stop[0], step)), len(range(start[1], stop[1], step)))
    if any(f.rows for f in v.axes[axis]):
        raise reader.refuse(
            "some rows of an output are taken",
            "Return all rows: the kernel has a block for each, and the blocks are independent.",
        )
    if not any(f.is_index for f in v.axes[axis]):
        return replace(v, axes=put(v.axes, axis, unknown(counts)))
    v = with_index(v, axis)
    assert isinstance(v.node, Node)
    key = (slice(None),) * v.position(axis)
    if counts[0] == 1:
        return replaced(v, axis, (), v.node[(*key, start[0])])
    return replaced(v, axis, finite(counts[0]), v.node[(*key, slice(start[0], stop[0], step))])


def _slice_matrix(reader: Reader, p: Parameter, axis: int, start: Size, stop: Size, step: int) -> Parameter:
    """Extract blocks of a matrix as a separate matrix: gates, or queries, keys and values."""
    if step != 1:
        raise reader.refuse(
            f"every {step}th member of the matrix `{p.name}` is taken",
            "Let each part be a parameter of its own.",
        )
    first, last, inner = _blocks(reader, p.axes[axis], start, stop)
    count = last - first
    original = _original_axis(reader, p, axis)
    kept = ((AxisFactor(both(count)),) if count > 1 else ()) + inner
    piece = (*p.piece, (original, first, last))
    steps = (*p.steps, ("slice", (axis, start[0], stop[0])))
    return replace(p, axes=put(p.axes, axis, kept), piece=piece, steps=steps)


def _original_axis(reader: Reader, p: Parameter, axis: int) -> int:
    """The corresponding axis of the stored parameter, if only transposes were applied so far."""
    for kind, argument in reversed(p.steps):
        if kind == "transpose":
            axis = argument[axis]
        elif kind != "slice":
            raise reader.refuse(
                f"a part of the reshaped matrix `{p.name}` is taken", "Take the part before the reshape."
            )
    return axis


def _blocks(reader: Reader, axis: Axis, start: Size, stop: Size) -> tuple[int, int, Axis]:
    """Express a slice of a width as blocks first, ..., last - 1; return them with the factors of a block."""
    size = length(axis)
    if len(axis) == 1 and axis[0].width is None:
        return start[0], stop[0], ()
    if len(axis) == 1:
        parts = size[0] // math.gcd(start[0], stop[0], size[0])
        if all(
            k * size[1] == j * size[0] for k, j in zip((start[0], stop[0]), (start[1], stop[1]), strict=True)
        ):
            assert axis[0].width is not None
            raise CutWidth(axis[0].width, parts, inner=False)
    inner = length(axis[1:]) if len(axis) > 1 and axis[0].width is None else (0, 0)
    bounds = [(k, n) for pair in (start, stop) for k, n in zip(pair, inner, strict=True)]
    if inner == (0, 0) or any(k % n for k, n in bounds):
        parts = math.gcd(start[0], stop[0], inner[0])
        finer = inner != (0, 0) and inner[0] % parts == 0 and len(axis) == 2
        if finer and start[0] * size[1] == start[1] * size[0] and stop[0] * size[1] == stop[1] * size[0]:
            inside = axis[len(axis) - 1].width
            assert inside is not None
            raise CutWidth(inside, inner[0] // parts, inner=False)
        raise reader.refuse(
            f"[{start[0]}:{stop[0]}] of an axis of length {size[0]} cuts a width",
            "A part of a width has a limit if it is a block of equal blocks, as gates, heads and halves "
            "are, so that its length grows with the width.",
        )
    return start[0] // inner[0], stop[0] // inner[0], axis[1:]


# Concatenation


def concatenate(reader: Reader, xs: Sequence[Traced], axis: int) -> Any:
    """Concatenate arrays along an axis; vectors joined along their width become blocks."""
    if any(isinstance(x, OutputValue) for x in xs):
        raise reader.refuse(
            "outputs are joined", "Return them as a tuple, or join what they read before the last layer."
        )
    joined = [x.name for x in xs if isinstance(x, Parameter) and len(x.widths) == 2 and not x.is_constant]
    if joined:
        raise reader.refuse(
            f"the matrices {', '.join(f'`{name}`' for name in joined)} are joined into one",
            "Apply each matrix by itself and join the results, or let one parameter hold them all.",
        )
    values = [reader.fold(as_value(reader, x)) for x in xs]
    values = [v for v in values if v.shape[axis] != (0, 0)] or values[:1]
    if len(values) == 1:
        return values[0]
    sizes = [v.shape[axis] for v in values]
    if all(a == b for a, b in sizes):
        return _join(reader, values, axis)
    unit = _unit(reader, values, axis)
    apart = [_by_blocks(v, axis, unit) for v in values]
    joined = _join(reader, apart, axis)
    axes = (*joined.axes[:axis], joined.axes[axis] + joined.axes[axis + 1], *joined.axes[axis + 2 :])
    return replace(joined, axes=axes)


def _unit(reader: Reader, values: list[Value], axis: int) -> Size:
    """The unit of which all joined widths are multiples."""
    sizes = [v.shape[axis] for v in values]
    sizes += [f.size for v in values for f in v.axes[axis] if f.is_vector]
    unit = math.gcd(*(s[0] for s in sizes)), math.gcd(*(s[1] for s in sizes))
    if any(s[0] // unit[0] != s[1] // unit[1] for s in sizes):
        raise reader.refuse(
            f"vectors of widths {', '.join(str(s[0]) for s in sizes[: len(values)])} are joined",
            "Joined widths must be multiples of one width, which grow together: n and 2n, but not n and n "
            "+ 1.",
        )
    return unit


def _by_blocks(v: Value, axis: int, unit: Size) -> Value:
    """Split an axis into two: blocks, and the unit."""
    count = v.shape[axis][0] // unit[0]
    sizes = [both(count)] if count > 1 else []
    factors = v.axes[axis]
    if [f.size for f in factors] != [*sizes, unit]:
        factors = refine(factors, [*sizes, unit])
    blocks, behind = factors[: len(sizes)], factors[len(sizes) :]
    return replace(v, axes=(*v.axes[:axis], blocks, behind, *v.axes[axis + 1 :]))


def _join(reader: Reader, values: list[Value], axis: int) -> Value:
    """Join values along a finite axis; their other axes are equal."""
    values = [with_index(v, axis) for v in values]
    total = sum(v.shape[axis][0] for v in values)
    bare, axes = align(reader, [_led_by(v, axis) for v in values])
    wide = any(f.is_vector for a in axes for f in a)
    node = concat_nodes([_full(reader, v, axes, wide) for v in bare], axis=0)
    joined = Value(((AxisFactor(both(total)),), *axes), node)
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(axes) + 1)]
    return without_ones(transpose_value(joined, order))


def _led_by(v: Value, axis: int) -> Value:
    """Move the index axis of `axis` to the front, and remove the axis from the array's axes."""
    moved = transpose_value(v, [axis, *(i for i in range(len(v.axes)) if i != axis)])
    return replace(moved, axes=moved.axes[1:], lead=1)


def _full(reader: Reader, v: Value, axes: tuple[Axis, ...], wide: bool) -> Node:
    """Give a node all index axes of `axes`, and on request make it a vector."""
    for i, axis in enumerate(axes):
        for k, f in enumerate(axis):
            mine = v.axes[i]
            if f.is_index and not (mine and mine[k].is_index):
                v = _repeated(v, i, k, axis)
    if wide and not v.is_vector:
        v = as_vector(reader, replace(v, axes=tuple(a or b for a, b in zip(v.axes, axes, strict=True))))
    assert isinstance(v.node, Node)
    return v.node


def _repeated(v: Value, i: int, k: int, axis: Axis) -> Value:
    """Repeat a value along factor k of axis i, along which it was constant."""
    mine = v.axes[i] or tuple(replace(f, real=False) for f in axis)
    where = v.position(i) + sum(f.is_index for f in mine[:k])
    assert isinstance(v.node, Node)
    key = (slice(None),) * where + (None,)
    node = apply(maps.take, v.node[key], axis=where, indices=(0,) * axis[k].size[0])
    return replaced(v, i, (*mine[:k], AxisFactor(axis[k].size), *mine[k + 1 :]), node)
