"""Convolution and pooling. Spatial axes are finite; channels are a width, or those of data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from netsor.build.graph_nodes import Node, apply
from netsor.lang import index_maps as maps
from netsor.lang.functions import MIXINGS
from netsor.models.axes import AxisFactor
from netsor.models.operations.elementwise import as_value, mul
from netsor.models.operations.parameters import parameter_value
from netsor.models.operations.products import multiply
from netsor.models.operations.reductions import total
from netsor.models.operations.shapes import (
    map_axis,
    reshape,
    reshape_value,
    transpose,
    transpose_value,
    with_index,
    without_ones,
)
from netsor.models.reader import Reader
from netsor.models.scalars import Size, both
from netsor.models.values import OutputValue, Parameter, Traced, Value


@dataclass(frozen=True)
class WindowShape:
    """The geometry of a convolution or a pooling, per spatial axis; `pads` are (before, after)."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def outputs(self, space: Sequence[int]) -> list[int]:
        return [
            (n + lo + hi - d * (k - 1) - 1) // s + 1
            for n, k, s, (lo, hi), d in zip(
                space, self.size, self.stride, self.pads, self.dilation, strict=True
            )
        ]

    def cells(self, space: Sequence[int]) -> np.ndarray:
        """(member of the window, output position) -> position in the flattened space; -1 is outside."""
        axes = []
        for n, k, s, (lo, _), d, o in zip(
            space, self.size, self.stride, self.pads, self.dilation, self.outputs(space), strict=True
        ):
            where = np.arange(k)[:, None] * d + np.arange(o)[None] * s - lo
            axes.append(np.where((where >= 0) & (where < n), where, -1))
        flat = np.zeros((1, 1), int)
        for n, where in zip(space, axes, strict=True):
            both = flat[:, None, :, None] * n + where[None, :, None, :]
            outside = (flat[:, None, :, None] < 0) | (where[None, :, None, :] < 0)
            flat = np.where(outside, -1, both).reshape(flat.shape[0] * where.shape[0], -1)
        return flat

    def native_padding(self, space: Sequence[int]) -> str | None:
        """The padding in the language's notation, if it can express it."""
        if all(p == (0, 0) for p in self.pads):
            return "valid"
        for n, k, s, (lo, hi), d in zip(space, self.size, self.stride, self.pads, self.dilation, strict=True):
            count, left = maps.window_extent(n, k, s, d, "same")
            if ((n + lo + hi - d * (k - 1) - 1) // s + 1, lo) != (count, left):
                return None
        return "same"


def convolve(
    reader: Reader,
    x: Traced,
    p: Parameter,
    channel: int,
    space: Sequence[int],
    window: WindowShape,
    groups: Size = (1, 1),
) -> Value | OutputValue:
    """Convolve x with a kernel (channels out, channels in, positions...).

    The result has the axes of x, with the new channels.
    """
    v = as_value(reader, x)
    if groups != (1, 1) and groups[0] != groups[1]:
        return _depthwise(reader, v, p, channel, space, window, groups)
    if groups != (1, 1):
        return _grouped(reader, v, p, channel, space, window, groups)
    if v.is_zero or p.is_constant:
        return _members(reader, v, p, channel, space, window)
    if not any(f.width for f in p.axes[0]):
        return _members(reader, v, p, channel, space, window)
    sizes = [v.shape[i][0] for i in space]
    padding = window.native_padding(sizes)
    if padding is None:
        return _members(reader, v, p, channel, space, window)
    for i in space:
        v = with_index(v, i)
    dims = len(space)
    batch = [i for i in range(len(v.axes)) if i not in space and i != channel]
    moved = transpose_value(v, [*space, *batch, channel])
    q = transpose(reader, p, [*range(2, 2 + dims), 0, 1])
    q = replace(q, axes=(*(a or (AxisFactor((1, 1)),) for a in q.axes[:dims]), *q.axes[dims:]))
    out = multiply(reader, moved, q, ([len(moved.axes) - 1], [dims + 1]), positions=math.prod(window.size))
    assert isinstance(out, Value)
    start = dims + len(batch)  # axes: space, rest, positions of the kernel, channels
    out = transpose_value(out, [*range(start, start + dims), *range(start), start + dims])
    steps = {"stride": window.stride, "dilation": window.dilation}
    options = {k: n for k, n in steps.items() if any(m != 1 for m in n)}
    node = apply(maps.window, out.node, dims=dims, padding=padding, **options)
    new = tuple((AxisFactor(both(n)),) for n in node.index[:dims])
    out = Value(new + out.axes[2 * dims :], node, out.scale)
    return without_ones(transpose_value(out, np.argsort([*space, *batch, channel]).tolist()))


def _windows(v: Value, space: Sequence[int], window: WindowShape) -> Value:
    """Gather windows: axes (members of the window, output positions..., the others in order)."""
    for i in space:
        v = with_index(v, i)
    batch = [i for i in range(len(v.axes)) if i not in space]
    sizes = [v.shape[i][0] for i in space]
    moved = transpose_value(v, [*space, *batch])
    flat = reshape_value(moved, [both(math.prod(sizes)), *moved.shape[len(space) :]])
    cells, outs = window.cells(sizes), window.outputs(sizes)
    if (cells < 0).any():
        wide = np.zeros((cells.size, math.prod(sizes)))
        wide[np.arange(cells.size)[cells.ravel() >= 0], cells.ravel()[cells.ravel() >= 0]] = 1
        taken = map_axis(with_index(flat, 0), 0, wide)
    else:
        flat = with_index(flat, 0)
        node = apply(maps.take, flat.node, axis=0, indices=tuple(int(c) for c in cells.ravel()))
        taken = replace(flat, axes=((AxisFactor(both(cells.size)),), *flat.axes[1:]), node=node)
    return reshape_value(taken, [both(len(cells)), *(both(n) for n in outs), *taken.shape[1:]])


def _members(
    reader: Reader, v: Value, p: Parameter, channel: int, space: Sequence[int], window: WindowShape
) -> Value | OutputValue:
    """Compute a convolution as a dense layer on gathered windows, for readouts and unusual paddings."""
    dims, members = len(space), math.prod(window.size)
    wide = _windows(v, space, window)
    batch = [i for i in range(len(v.axes)) if i not in space]
    where = 1 + dims + batch.index(channel)
    q = transpose(reader, p, [*range(2, 2 + dims), 1, 0])
    q = reshape(reader, q, [both(members), q.shape[-2], q.shape[-1]])
    out = multiply(reader, wide, q, ([0, where], [0, 1]))
    order = [*space, *(i for i in batch if i != channel), channel]
    return transpose(reader, out, np.argsort(order).tolist())


def _grouped(
    reader: Reader,
    v: Value,
    p: Parameter,
    channel: int,
    space: Sequence[int],
    window: WindowShape,
    groups: Size,
) -> Value:
    """Convolve blocks of channels, each with its own matrices."""
    dims, members, g = len(space), math.prod(window.size), groups[0]
    wide = _windows(v, space, window)
    batch = [i for i in range(len(v.axes)) if i not in space]
    where = 1 + dims + batch.index(channel)
    shape = wide.shape
    c = shape[where]
    wide = reshape_value(wide, [*shape[:where], groups, (c[0] // g, c[1] // g), *shape[where + 1 :]])
    out_channels, in_channels = p.shape[0], p.shape[1]
    q = reshape(reader, p, [groups, (out_channels[0] // g, out_channels[1] // g), in_channels, *p.shape[2:]])
    q = transpose(reader, q, [0, *range(3, 3 + dims), 2, 1])
    q = reshape(reader, q, [groups, both(members), q.shape[-2], q.shape[-1]])
    out = multiply(reader, wide, q, ([0, where + 1], [1, 2]), ([where], [0]))
    if not isinstance(out, Value):
        raise reader.refuse("a readout in groups", "Use one readout for all groups.")
    # axes: group, space, rest without channels, channels of a group
    k = len(out.axes)
    out = transpose_value(out, [*range(1, k - 1), 0, k - 1])
    out = reshape_value(out, [*out.shape[:-2], out_channels])
    order = [*space, *(i for i in batch if i != channel), channel]
    return transpose_value(out, np.argsort(order).tolist())


def _depthwise(
    reader: Reader,
    v: Value,
    p: Parameter,
    channel: int,
    space: Sequence[int],
    window: WindowShape,
    groups: Size,
) -> Value:
    """Convolve each channel with its own kernel: a product of vectors, summed over the window."""
    if p.shape[1] != (1, 1) or p.shape[0] != v.shape[channel]:
        raise reader.refuse(
            f"a convolution in groups of {v.shape[channel][0] // groups[0]} channels, whose number grows",
            "A fixed number of groups, or one for each channel (depthwise), can be read.",
        )
    dims, members = len(space), math.prod(window.size)
    wide = _windows(v, space, window)
    batch = [i for i in range(len(v.axes)) if i not in space]
    where = 1 + dims + batch.index(channel)
    q = transpose(reader, p, [*range(2, 2 + dims), 1, 0])
    w = parameter_value(reader, reshape(reader, q, [both(members), q.shape[-1]]))
    axes: list = [()] * len(wide.axes)
    axes[0], axes[where] = w.axes
    out = total(reader, mul(reader, wide, replace(w, axes=tuple(axes))), [0])
    return without_ones(transpose_value(out, np.argsort([*space, *batch]).tolist()))


def transposed_convolution(
    reader: Reader,
    x: Traced,
    p: Parameter,
    channel: int,
    space: Sequence[int],
    window: WindowShape,
    sizes: Sequence[int],
    reverse: bool = False,
) -> Value:
    """Compute a transposed convolution: input i adds W_j x[i] to output i * stride + j - padding.

    The kernel has axes (channels in, channels out, positions...). `sizes` are spatial sizes of the output.
    With `reverse`, the kernel's last position is j = 0.
    """
    v = as_value(reader, x)
    dims, members = len(space), math.prod(window.size)
    batch = [i for i in range(len(v.axes)) if i not in space and i != channel]
    moved = transpose_value(v, [*batch, channel, *space])
    old = math.prod(v.shape[i][0] for i in space)
    flat = reshape_value(moved, [*moved.shape[: len(batch) + 1], both(old)])
    q = transpose(reader, p, [0, 1, *range(2, 2 + dims)])
    q = reshape(reader, q, [*q.shape[:2], both(members)])
    out = multiply(reader, flat, q, ([len(batch)], [0]), positions=members)
    if not isinstance(out, Value):
        raise reader.refuse(
            "a transposed convolution as a readout", "End the network with a convolution or a layer."
        )
    # axes: rest, old positions, channels, members of the kernel
    k = len(batch)
    out = with_index(out, k + 2)
    out = transpose_value(with_index(out, k), [*range(k), k + 1, k, k + 2])
    out = reshape_value(out, [*out.shape[: k + 1], both(old * members)])
    cells = window.cells(sizes)  # (member, old position) -> new position
    cells = cells[::-1] if reverse else cells
    matrix = np.zeros((math.prod(sizes), old * members))
    for member, row in enumerate(cells):
        for position, cell in enumerate(row):
            if cell >= 0:
                matrix[cell, position * members + member] = 1
    out = map_axis(out, k + 1, matrix)
    out = reshape_value(out, [*out.shape[: k + 1], *(both(n) for n in sizes)])
    return transpose_value(out, np.argsort([*batch, channel, *space]).tolist())


def max_pool(
    reader: Reader, x: Traced, space: Sequence[int], window: WindowShape, name: str = "max"
) -> Value:
    """Take maxima over windows; positions outside repeat a member inside, which keeps the maximum."""
    v = reader.fold(as_value(reader, x))
    for i in space:
        v = with_index(v, i)
    batch = [i for i in range(len(v.axes)) if i not in space]
    sizes = [v.shape[i][0] for i in space]
    moved = transpose_value(v, [*space, *batch])
    assert isinstance(moved.node, Node)
    outs = window.outputs(sizes)
    node = apply(MIXINGS[name], _members_of(moved.node, sizes, window), axis=(0,))
    out = Value(tuple((AxisFactor((n, n)),) for n in outs) + moved.axes[len(space) :], node, v.scale)
    return without_ones(transpose_value(out, np.argsort([*space, *batch]).tolist()))


def _members_of(node: Node, sizes: Sequence[int], window: WindowShape) -> Node:
    """Gather all windows of the first axes: (member of the window, output positions..., other axes)."""
    padding = window.native_padding(sizes)
    if padding is not None and set(window.dilation) == {1}:
        return apply(maps.patches, node, size=window.size, stride=window.stride, padding=padding)
    cells = window.cells(sizes)
    first = np.array([next(c for c in column if c >= 0) for column in cells.T])
    cells = np.where(cells < 0, first, cells)
    flat = node.reshape((math.prod(sizes), *node.index[len(sizes) :]))
    taken = apply(maps.take, flat, axis=0, indices=tuple(int(c) for c in cells.ravel()))
    return taken.reshape((len(cells), *window.outputs(sizes), *taken.index[1:]))


def mean_pool(reader: Reader, x: Traced, space: Sequence[int], window: WindowShape) -> Value | OutputValue:
    """Average over windows that fit."""
    if isinstance(x, OutputValue):
        return x.each(lambda t: _mean_pool(t, space, window))
    return _mean_pool(as_value(reader, x), space, window)


def _mean_pool(v: Value, space: Sequence[int], window: WindowShape) -> Value:
    for i in space:
        v = with_index(v, i)
    batch = [i for i in range(len(v.axes)) if i not in space]
    moved = transpose_value(v, [*space, *batch])
    if v.lead:
        raise ValueError("outputs of a flattened block are pooled")
    node = apply(maps.avgpool, moved.node, size=window.size, stride=window.stride, padding="valid")
    outs = window.outputs([v.shape[i][0] for i in space])
    out = replace(
        moved, axes=tuple((AxisFactor((n, n)),) for n in outs) + moved.axes[len(space) :], node=node
    )
    return without_ones(transpose_value(out, np.argsort([*space, *batch]).tolist()))


def linear_on_space(
    reader: Reader, x: Traced, space: Sequence[int], fn: Callable[[np.ndarray], np.ndarray]
) -> Value | OutputValue:
    """Apply a linear map of images (pooling, interpolation, padding) by its matrix on the flattened space.

    fn  maps arrays (images, spatial axes...) to arrays of this form
    """
    if isinstance(x, OutputValue):
        return x.each(lambda t: _linear(t, space, fn))
    return _linear(as_value(reader, x), space, fn)


def _linear(v: Value, space: Sequence[int], fn: Callable[[np.ndarray], np.ndarray]) -> Value:
    sizes = [v.shape[i][0] for i in space]
    n = math.prod(sizes)
    images = np.asarray(fn(np.eye(n).reshape(n, *sizes)))
    outs = images.shape[1:]
    matrix = images.reshape(n, -1).T
    batch = [i for i in range(len(v.axes)) if i not in space]
    moved = transpose_value(v, [*batch, *space])
    k = len(batch)
    flat = reshape_value(moved, [*moved.shape[:k], both(n)])
    if len(matrix) == 1 and np.allclose(matrix, matrix[0, 0]) and flat.matrix is None:
        node = with_index(flat, k).node
        assert isinstance(node, Node)
        out = replace(
            flat, axes=(*flat.axes[:k], ()), node=node.mean(len(node.index) - 1) * (n * matrix[0, 0])
        )
    else:
        out = without_ones(map_axis(flat, k, matrix))
    out = reshape_value(out, [*out.shape[:k], *(both(s) for s in outs)])
    return transpose_value(out, np.argsort([*batch, *space]).tolist())
