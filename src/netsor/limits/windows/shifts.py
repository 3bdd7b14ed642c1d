"""Sums of shifted blocks: a convolution with independent matrices, along one axis of either side.

A shift is a slice. The sum over a few kernel positions is one pass over memory if Numba is installed (the
extra `fast`), and one pass per kernel position in NumPy. Over many of them it is a sum that slides. Where
left and right are the same pixel, a compiled pass sums over both axes of an image while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np
from array_api_compat import is_jax_array

from netsor.lang.index_maps import AROUND, window_extent, window_positions
from netsor.lang.libraries import array_namespace
from netsor.limits.tape.traced import Traced
from netsor.limits.windows.sliding import sliding_sum
from netsor.machine_code import compiled

__all__ = ["Window", "sum_of_shifts", "sum_over_windows"]

Array = Any
Slices = list[tuple[slice, slice]]  # for each kernel position where it reads and where it writes
LINE = 1024  # elements that a compiled loop adds in a row
IMAGE = 4096  # pixels of an image that stays in the cache
LONG, LONG_SIMPLE = 7, 15  # kernels from which on sums slide; the second where shifts are cheap


@dataclass(frozen=True)
class Window:
    """What a kernel reads of an axis: output o and kernel position j read o stride + j dilation - left."""

    axis: int
    size: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: str = "same"

    @cached_property
    def extent(self) -> tuple[int, int]:
        return window_extent(self.size, self.kernel, self.stride, self.dilation, self.padding)

    @property
    def count(self) -> int:
        return self.extent[0]

    @property
    def left(self) -> int:
        return self.extent[1]

    @property
    def padded(self) -> int:
        """The size with all that the windows read beyond the axis."""
        reach = (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        return max(reach, self.left + self.size)

    def slices(self) -> Slices:
        return [self._slice(j * self.dilation - self.left) for j in range(self.kernel)]

    def _slice(self, start: int) -> tuple[slice, slice]:
        first = max(0, -(start // self.stride))
        stop = min(self.count, -((start - self.size) // self.stride))
        if first >= stop:
            return slice(0, 0), slice(0, 0)
        read = slice(start + first * self.stride, start + (stop - 1) * self.stride + 1, self.stride)
        return read, slice(first, stop)


def sum_over_windows(block: Array, windows: list[list[Window]]) -> Array:
    """The sums of shifts along one axis after the other, each given by the windows of one side or both.

    Those of one block are recorded once: a matrix and its direction in a tangent program share them.
    """
    if isinstance(block, Traced):
        key = ("windows", block.step, tuple(map(tuple, windows)))
        return block.tape.once(key, lambda: _summed(block, windows))
    return _summed(block, windows)


def _summed(block: Array, windows: list[list[Window]]) -> Array:
    if isinstance(block, Traced) and (image := _image(block, windows)):
        return block.tape.call(image, (block,), block.shape)
    for along_axis in windows:
        block = sum_of_shifts(block, along_axis)
    return block


def sum_of_shifts(block: Array, windows: list[Window]) -> Array:
    """The sum over kernel positions of the block read at that position on the axes of all windows."""
    if is_jax_array(block):
        return _by_padding(block, windows)
    if isinstance(block, Traced):
        return _recorded(block, windows)
    if not isinstance(block, np.ndarray):
        return _by_taking(block, windows)
    if windows[0].padding in AROUND:
        for w in windows:
            block = np.take(block, np.arange(-w.left, w.padded - w.left) % w.size, axis=w.axis)
        windows = [Window(w.axis, w.padded, w.kernel, w.stride, w.dilation, "valid") for w in windows]
    return sliding_sum(block, windows) if _slides(windows, len(windows) == 1) else _by_slices(block, windows)


def _slides(windows: list[Window], simple: bool) -> bool:
    """Whether a sum that slides over all entries costs less than one of all outputs and kernel positions.

    With strides there are few outputs. On one axis, and in compiled loops (`simple`), shifts are cheap.
    """
    if not all(w.stride == w.dilation == 1 for w in windows):
        return False
    outputs, entries = prod(w.count for w in windows), prod(w.size for w in windows)
    return windows[0].kernel * outputs >= (LONG_SIMPLE if simple else LONG) * entries


def _recorded(block: Traced, windows: list[Window]) -> Traced:
    axes, shape = [w.axis for w in windows], _shape(block, windows)
    if block.tape.compiled and windows[0].padding not in AROUND and not _slides(windows, True):
        sliced = [w.slices() for w in windows]
        if _is_dense(block, axes, sliced, shape):
            return block.tape.call(_in_one_pass(block, axes, sliced, shape), (block,), shape)
    kind = ("sum of shifts", tuple(windows))
    return block.tape.call(lambda block: sum_of_shifts(block, windows), (block,), shape, kind=kind)


def _shape(block: Array, windows: list[Window]) -> list[int]:
    shape = list(block.shape)
    for w in windows:
        shape[w.axis] = w.count
    return shape


def _by_padding(block: Array, windows: list[Window]) -> Array:
    """For JAX. The barrier keeps XLA from computing what comes before again for each kernel position."""
    import jax  # type: ignore[import-not-found]

    widths = [(0, 0)] * block.ndim
    for w in windows:
        widths[w.axis] = (w.left, w.padded - w.left - w.size)
    mode = "wrap" if windows[0].padding in AROUND else "constant"
    padded = jax.lax.optimization_barrier(jax.numpy.pad(block, widths, mode=mode))
    total: Any = 0.0
    for j in range(windows[0].kernel):
        starts, stops, steps = [0] * block.ndim, list(padded.shape), [1] * block.ndim
        for w in windows:
            starts[w.axis], steps[w.axis] = j * w.dilation, w.stride
            stops[w.axis] = j * w.dilation + (w.count - 1) * w.stride + 1
        total = total + jax.lax.slice(padded, starts, stops, steps)
    return total


def _by_taking(block: Array, windows: list[Window]) -> Array:
    xp, total = array_namespace(block), 0.0
    spots = [window_positions(w.size, w.kernel, w.stride, w.dilation, w.padding) for w in windows]
    for j in range(windows[0].kernel):
        part = block
        for w, (where, exists) in zip(windows, spots, strict=True):
            part = xp.take(part, xp.asarray(where[j]), axis=w.axis)
            if not exists[j].all():
                mask = exists[j].reshape([-1 if axis == w.axis else 1 for axis in range(block.ndim)])
                part = part * xp.asarray(mask, dtype=block.dtype)
        total = total + part
    return total


def _by_slices(block: np.ndarray, windows: list[Window]) -> np.ndarray:
    out = np.zeros(_shape(block, windows), block.dtype)
    for parts in zip(*(w.slices() for w in windows), strict=True):
        source, target = [slice(None)] * block.ndim, [slice(None)] * block.ndim
        for w, (read, write) in zip(windows, parts, strict=True):
            source[w.axis], target[w.axis] = read, write
        out[tuple(target)] += block[tuple(source)]
    return out


# In one pass


def _is_dense(block: Traced, axes: list[int], sliced: list[Slices], shape: list[int]) -> bool:
    """Whether the last axis is read without gaps and keeps its length."""
    kept = block.shape[axes[-1]] == shape[axes[-1]]
    return kept and all(read.step in (None, 1) for read, _ in sliced[-1])


def _in_one_pass(
    block: Traced, axes: list[int], sliced: list[Slices], shape: list[int]
) -> Callable[[np.ndarray], np.ndarray]:
    """As a sum of shifted lines (before, left axis, lines, line).

    A line is the right axis and all behind it, or many of them if it is short: then a mask of zeros and ones
    says where a shift stays inside. With one axis, the left one has length 1.
    """
    right, two = axes[-1], len(axes) == 2
    first = sliced[0] if two else [(slice(0, 1), slice(0, 1))] * len(sliced[-1])
    sizes = (block.shape[axes[0]], shape[axes[0]]) if two else (1, 1)
    lines = prod(block.shape[axes[0] + 1 : right]) if two else prod(block.shape[:right])
    behind = prod(block.shape[right + 1 :])
    line = block.shape[right] * behind
    many = max(k for k in range(1, lines + 1) if lines % k == 0 and k * line <= max(LINE, line))
    mask = np.zeros((len(first), many, block.shape[right], behind), block.dtype)
    rows = np.full((len(first), sizes[1]), -1)
    for k, ((read, write), (_, inside)) in enumerate(zip(first, sliced[-1], strict=True)):
        rows[k, write] = np.arange(sizes[0])[read]
        mask[k, :, inside] = 1.0
    shifts = np.array([(read.start - write.start) * behind for read, write in sliced[-1]])
    rest = (lines // many if two else 1, many * line)
    flat, loop = mask.reshape(len(first), -1), _loop()

    def run(block: np.ndarray) -> np.ndarray:
        source = np.ascontiguousarray(block).reshape(-1, sizes[0], *rest)
        out = np.empty((len(source), sizes[1], *rest), block.dtype)
        loop(source, rows, shifts, flat, out)
        return out.reshape(shape)

    return run


@cache
def _loop() -> Callable[..., Any]:
    def loop(source, rows, shifts, mask, out):
        length = out.shape[3]
        for a in range(out.shape[0]):
            for i in range(out.shape[1]):
                for b in range(out.shape[2]):
                    first = True
                    for k in range(len(rows)):
                        if rows[k, i] >= 0:
                            start, stop = max(0, -shifts[k]), min(length, length - shifts[k])
                            target, inside = out[a, i, b, start:stop], mask[k, start:stop]
                            line = source[a, rows[k, i], b, start + shifts[k] : stop + shifts[k]]
                            if first:  # loops from 0: those with other starts are not vectorised
                                out[a, i, b, :start] = 0.0
                                out[a, i, b, stop:] = 0.0
                                for j in range(len(target)):
                                    target[j] = inside[j] * line[j]
                                first = False
                            else:
                                for j in range(len(target)):
                                    target[j] += inside[j] * line[j]
                    if first:
                        out[a, i, b, :] = 0.0

    return compiled(loop, nogil=True, fastmath={"contract"})


# Images


def _image(block: Traced, windows: list[list[Window]]) -> Callable[[np.ndarray], np.ndarray] | None:
    """The sum over rows and columns in one pass, if the block ends in images that keep their size.

    An image is a line: to move by a row is to move by its length. A mask says where a move by columns stays
    in its row; a pixel itself is always in its window.
    """
    if not block.tape.compiled or [len(along_axis) for along_axis in windows] != [1, 1]:
        return None
    sides = [along_axis[0] for along_axis in windows]
    height, width = (w.size for w in sides)
    shifts = [np.arange(w.kernel) * w.dilation - w.left for w in sides]
    kept = all(w.count == w.size and w.stride == 1 and w.padding == "same" for w in sides)
    last = [w.axis for w in sides] == [block.ndim - 2, block.ndim - 1] and height * width <= IMAGE
    if not (kept and last and all(0 in s for s in shifts)) or any(_slides([w], True) for w in sides):
        return None
    rows, columns = (s[(s != 0) & (abs(s) < w.size)] for s, w in zip(shifts, sides, strict=True))
    there = np.arange(width) + columns[:, None]
    inside = np.tile((there >= 0) & (there < width), height).astype(block.dtype)
    loop = _image_loop()

    def run(block: np.ndarray) -> np.ndarray:
        source = np.ascontiguousarray(block).reshape(-1, height * width)
        out = np.empty_like(source)
        loop(source, width * rows, columns, inside, out)
        return out.reshape(block.shape)

    return run


@cache
def _image_loop() -> Callable[..., Any]:
    whole = np.uint64  # of indices: those with a sign may count from the end, which is not vectorised

    def loop(source, rows, columns, inside, out):
        length = whole(source.shape[1])
        summed = np.empty(length, source.dtype)
        for a in range(whole(len(source))):
            for j in range(length):
                summed[j] = source[a, j]
            for shift in rows:
                read, write = whole(max(0, shift)), whole(max(0, -shift))
                for j in range(length - read - write):
                    summed[write + j] += source[a, read + j]
            for j in range(length):
                out[a, j] = summed[j]
            for k in range(whole(len(columns))):
                read, write = whole(max(0, columns[k])), whole(max(0, -columns[k]))
                for j in range(length - read - write):
                    out[a, write + j] += inside[k, write + j] * summed[read + j]

    return compiled(loop, nogil=True, fastmath={"contract"})
