"""Linear maps on index axes: selection, sums, windows, contraction with a matrix.

Convolution, pooling and graph layers are a matrix product (or none), followed by one of these maps. All maps
act on index axes and leave the width alone, so a linear combination of G-vars remains a G-var.
"""

from __future__ import annotations

from functools import reduce
from math import prod
from operator import add
from typing import Any, cast

import numpy as np

from netsor.lang.array_api import array_namespace
from netsor.lang.blocks import Block, broadcast, broadcast_index
from netsor.lang.expr import Attr, Slice
from netsor.lang.ops import IndexMap, axes_of
from netsor.lang.types import Index

AROUND = ("circular", "wrap")  # periodic paddings


def _at(x: Block, *, index: Attr) -> Block:
    """`x[index]`: integers, slices and new axes; axes that the index does not name stay whole."""
    items = cast(tuple, index)
    used = sum(item is not None for item in items)
    if used > x.rank:
        raise ValueError(f"the index names {used} axes of a block that has {x.rank}")
    for size, item in zip(x.index, (i for i in items if i is not None), strict=False):
        if isinstance(item, int) and not -size <= item < size:
            raise ValueError(f"index {item} is outside an axis of length {size}")
    key = tuple(i.builtin if isinstance(i, Slice) else i for i in items)
    tail = (slice(None),) * (x.rank - used + x.vector)
    rank = x.rank - used + sum(not isinstance(i, int) for i in items)
    return x.like(x.array[(..., *key, *tail)], rank)


def _take(x: Block, *, axis: int, indices: tuple[int, ...]) -> Block:
    """Take the members `indices` along `axis`."""
    (a,) = axes_of(axis, x.rank)
    return _taken(x, a, np.array([i % x.index[a] for i in indices]))


def _taken(x: Block, axis: int, where: np.ndarray, exists: np.ndarray | None = None) -> Block:
    """Take the members `where` (k,), counted from 0, along an index axis; 0 for those that do not exist."""
    taken = x.xp.take(x.array, x.xp.asarray(where), axis=x.axis(axis))
    if exists is not None and not exists.all():
        shape = [1] * taken.ndim
        shape[x.axis(axis)] = len(exists)
        taken = taken * x.xp.asarray(exists.reshape(shape), dtype=taken.dtype)
    return x.like(taken, x.rank)


def _measure_take(shape: Index, *, axis: int, indices: tuple[int, ...]) -> Index:
    (a,) = axes_of(axis, len(shape))
    if any(type(i) is not int or not -shape[a] <= i < shape[a] for i in indices):
        raise ValueError(f"an index is outside an axis of length {shape[a]}")
    return (*shape[:a], len(indices), *shape[a + 1 :])


def _measure_stack(*shapes: Index, axis: int = 0) -> Index:
    if len(set(shapes)) != 1:
        raise ValueError(f"index shapes differ: {', '.join(map(str, shapes))}")
    (a,) = axes_of(axis, len(shapes[0]) + 1)
    return (*shapes[0][:a], len(shapes), *shapes[0][a:])


def _measure_concat(*shapes: Index, axis: int = 0) -> Index:
    (a,) = axes_of(axis, len(shapes[0]))
    if len({(*s[:a], 0, *s[a + 1 :]) for s in shapes}) != 1 or len({len(s) for s in shapes}) != 1:
        raise ValueError(f"index shapes differ: {', '.join(map(str, shapes))}")
    return (*shapes[0][:a], sum(s[a] for s in shapes), *shapes[0][a + 1 :])


def _measure_contract(a: Index, x: Index) -> Index:
    if len(a) < 2 or not x or a[-1] != x[-1]:
        raise ValueError(f"a matrix of index shape {a} cannot contract a block of shape {x}")
    return (*broadcast_index(a[:-2], x[:-1]), a[-2])


def _measure_window(x: Index, *, dims: int, **options: Attr) -> Index:
    if type(dims) is not int or dims < 1 or len(x) < 2 * dims:
        raise ValueError(f"a {dims}-dimensional window needs {2 * dims} index axes, not {len(x)}")
    stride, dilation, padding = window_options(dims=dims, **options)
    kernel, space = x[:dims], x[dims : 2 * dims]
    sides = zip(space, kernel, stride, dilation, strict=True)
    return (*(window_extent(*side, padding)[0] for side in sides), *x[2 * dims :])


def _measure_windows(x: Index, *, kernel: tuple[int, ...], **options: Attr) -> Index:
    dims = len(kernel)
    if dims > len(x):
        raise ValueError(f"a window of {dims} axes on a block of {len(x)}")
    return (*kernel, *_measure_window((*kernel, *x), dims=dims, **options))


def _measure_pool(x: Index, *, size: tuple[int, ...], **options: Attr) -> Index:
    return _measure_windows(x, kernel=size, **options)[len(size) :]


def _measure_patches(x: Index, *, size: tuple[int, ...], **options: Attr) -> Index:
    return (prod(size), *_measure_pool(x, size=size, **options))


def _reshape(x: Block, *, shape: tuple[int, ...]) -> Block:
    if any(type(n) is not int or n < 1 for n in shape) or prod(shape) != prod(x.index):
        raise ValueError(f"index shape {x.index} cannot become {shape}: the number of vectors stays")
    head = x.array.shape[: x.array.ndim - x.rank - x.vector]
    tail = x.array.shape[-1:] if x.vector else ()
    return x.like(x.xp.reshape(x.array, (*head, *shape, *tail)), len(shape))


def _transpose(x: Block, *, axes: tuple[int, ...]) -> Block:
    if sorted(axes) != list(range(x.rank)):
        raise ValueError(f"axes {axes} are not a permutation of {x.rank} axes")
    first = x.array.ndim - x.rank - x.vector
    order = [*range(first), *(first + a for a in axes), *range(first + x.rank, x.array.ndim)]
    return x.like(x.xp.permute_dims(x.array, tuple(order)), x.rank)


def _sum(x: Block, *, axis: Attr) -> Block:
    axes = tuple(x.axis(a) for a in axes_of(axis, x.rank))
    return x.like(x.xp.sum(x.array, axis=axes), x.rank - len(axes))


def _mean(x: Block, *, axis: Attr) -> Block:
    count = prod(x.index[a] for a in axes_of(axis, x.rank))
    total = _sum(x, axis=axis)
    return total.like(total.array * (1 / count), total.rank)


def _stack(*xs: Block, axis: int = 0) -> Block:
    arrays, rank, vector = broadcast(xs)
    (a,) = axes_of(axis, rank + 1)
    out = array_namespace(*arrays).stack(arrays, axis=a + arrays[0].ndim - rank - vector)
    return Block(out, rank + 1, vector)


def _concat(*xs: Block, axis: int = 0) -> Block:
    (a,) = axes_of(axis, xs[0].rank)
    members = [_at(x, index=(*(Slice(),) * a, i)) for x in xs for i in range(x.index[a])]
    return _stack(*members, axis=a)


def _contract(a: Block, x: Block) -> Block:
    """`sum_j a[..., i, j] x[..., j]` for a matrix `a` of numbers or C-vars."""
    rank = max(a.rank - 1, x.rank)
    left, right = a.lift(rank + 1, False), x.lift(rank, True)
    out = a.xp.matmul(left, right)
    return Block(out if x.vector else out[..., 0], rank, x.vector)


def window_extent(size: int, kernel: int, stride: int, dilation: int, padding: str | int) -> tuple[int, int]:
    """Return the number of output positions, and the padding in front of the axis.

    "same"      ceil(size / stride) outputs, zero padding; an odd zero is at the end
    "wrap"      the same with periodic padding
    "circular"  periodic padding, with windows centred on every stride-th position
    "valid"     only windows that fit
    a number    so many zeros at each end
    """
    longest = 10**6
    if not all(type(n) is int and 1 <= n <= longest for n in (kernel, stride, dilation)):
        what = f"a window of size {kernel}, stride {stride} and dilation {dilation}"
        raise ValueError(f"{what}; all are integers from 1 to {longest:,}")
    reach = dilation * (kernel - 1) + 1
    if padding == "valid" or (type(padding) is int and 0 <= padding <= longest):
        left = 0 if padding == "valid" else int(padding)
        count = (size + 2 * left - reach) // stride + 1
        if count < 1:
            raise ValueError(
                f"a window of length {reach} does not fit into an axis of length {size + 2 * left}"
            )
        return count, left
    if padding not in ("same", *AROUND):
        words = '"same", "valid", "circular", "wrap"'
        raise ValueError(f"padding must be {words} or a number of zeros, not {padding!r}")
    count = -(-size // stride)
    total = max((count - 1) * stride + reach - size, 0)
    return count, (reach - 1) // 2 if padding == "circular" else total // 2


def window_positions(
    size: int, kernel: int, stride: int, dilation: int, padding: str | int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the input position of each (kernel position, output position), and whether it exists."""
    count, left = window_extent(size, kernel, stride, dilation, padding)
    where = np.arange(count) * stride + (np.arange(kernel) * dilation)[:, None] - left
    if padding in AROUND:
        return where % size, np.ones_like(where, bool)
    return np.clip(where, 0, size - 1), (where >= 0) & (where < size)


def window_options(
    *,
    dims: int,
    padding: str | int,
    stride: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Return stride, dilation and padding of a window; stride and dilation are 1 by default."""
    ones = (1,) * dims
    return stride or ones, dilation or ones, padding


def _window(x: Block, *, dims: int, **options: Attr) -> Block:
    """`out[o] = sum_j x[j, o * stride + j * dilation - left]`: the sum of a convolution.

    The first `dims` index axes of x run over kernel positions, the next `dims` over space.
    """
    stride, dilation, padding = window_options(dims=dims, **options)
    kernel, space = x.index[:dims], x.index[dims : 2 * dims]
    for d in reversed(range(dims)):
        where, exists = window_positions(space[d], kernel[d], stride[d], dilation[d], padding)
        touching = np.flatnonzero(exists.any(axis=1)).tolist() or [0]  # other positions add only padding
        columns = (_at(x, index=(*(Slice(),) * d, j)) for j in touching)
        parts = (_taken(c, 2 * d, where[j], exists[j]) for j, c in zip(touching, columns, strict=True))
        x = x.like(reduce(add, (part.array for part in parts)), x.rank - 1)
    return x


def _windows(x: Block, *, kernel: tuple[int, ...], **options: Attr) -> Block:
    """All windows of the first axes: index (position in the kernel..., output position..., rest).

    Places outside the block are 0. `sum(windows(x), axis of the kernel)` adds up what a convolution sees.
    """
    stride, dilation, padding = window_options(dims=len(kernel), **options)
    for d, side in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = _split_axis(x, 2 * d, *window_positions(x.index[2 * d], *side, padding))
    return _kernel_first(x, len(kernel))


def _patches(x: Block, *, size: tuple[int, ...], stride: tuple[int, ...], padding: str | int) -> Block:
    """All windows of the first axes: index (member of the window, output position...).

    Positions outside the block repeat a member inside the window, which does not change a maximum.
    """
    for d, (k, s) in enumerate(zip(size, stride, strict=True)):
        where, exists = window_positions(x.index[2 * d], k, s, 1, padding)
        if not exists.any(0).all():
            raise ValueError(f"with padding {padding!r} a window of length {k} sees nothing of the block")
        inside = np.take_along_axis(where, exists.argmax(0)[None], 0)
        x = _split_axis(x, 2 * d, np.where(exists, where, inside), np.ones_like(exists))
    x = _kernel_first(x, len(size))
    return _reshape(x, shape=(prod(size), *x.index[len(size) :]))


def _split_axis(x: Block, axis: int, where: np.ndarray, exists: np.ndarray) -> Block:
    """Two axes in place of one: the members `where`, or 0 where there is none."""
    taken = _taken(x, axis, where.ravel(), exists.ravel())
    return _reshape(taken, shape=(*x.index[:axis], *where.shape, *x.index[axis + 1 :]))


def _kernel_first(x: Block, dims: int) -> Block:
    """Move the axes of kernel positions to the front: (k1, o1, k2, o2, ...) -> (k1, k2, ..., o1, o2, ...)."""
    kernel = range(0, 2 * dims, 2)
    return _transpose(x, axes=(*kernel, *(a for a in range(x.rank) if a not in kernel)))


def _avgpool(x: Block, *, size: tuple[int, ...], stride: tuple[int, ...], padding: str) -> Block:
    """Average over windows of the first axes, without positions in the padding."""
    for d, (k, s) in enumerate(zip(size, stride, strict=True)):
        where, exists = window_positions(x.index[d], k, s, 1, padding)
        matrix = np.zeros((where.shape[1], x.index[d]))
        np.add.at(matrix, (np.arange(len(matrix)), where), exists / np.maximum(exists.sum(0), 1))
        moved = x.xp.moveaxis(x.array, x.axis(d), -1)
        out = x.xp.matmul(moved, x.xp.asarray(matrix.T, dtype=x.array.dtype))
        x = x.like(x.xp.moveaxis(out, -1, x.axis(d)), x.rank)
    return x


at = IndexMap("at", _at)
take = IndexMap("take", _take, measure=_measure_take)
reshape = IndexMap("reshape", _reshape)
transpose = IndexMap("transpose", _transpose)
sum_ = IndexMap("sum", _sum)
mean = IndexMap("mean", _mean)
stack = IndexMap("stack", _stack, measure=_measure_stack)
concat = IndexMap("concat", _concat, measure=_measure_concat)
contract = IndexMap("contract", _contract, coefficients=True, measure=_measure_contract)
window = IndexMap("window", _window, measure=_measure_window)
patches = IndexMap("patches", _patches, measure=_measure_patches)
windows = IndexMap("windows", _windows, measure=_measure_windows)
avgpool = IndexMap("avgpool", _avgpool, measure=_measure_pool)

SELECTIONS = (at, take, reshape, transpose, patches)  # every member of the result is one of the argument
