"""Sums over the windows of convolutions, along one axis of each side of a pair at a time.

    out[o, o'] = sum_j block[o s + j d - p, o' s + j d - p]

with stride s, dilation d and padding p. The matrices of a kernel are independent, so both sides have the same
kernel position j. The sum over a rectangular kernel is a sum along each of its axes in turn. In any library,
the sum adds slices of a padded block; with Numba it takes one pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, reduce
from math import prod
from typing import Any

import numpy as np
from array_api_compat import is_jax_array

from netsor.lang.array_api import array_namespace
from netsor.lang.index_maps import AROUND, window_extent, window_positions
from netsor.limits.tape.traced import Traced
from netsor.machine_code import compiled

Array = Any


@dataclass(frozen=True)
class Window:
    """The window of a kernel on an axis: output o and kernel position j read o stride + j dilation - left."""

    axis: int
    size: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: str = "same"

    @property
    def count(self) -> int:
        """The number of outputs."""
        return window_extent(self.size, self.kernel, self.stride, self.dilation, self.padding)[0]

    @property
    def left(self) -> int:
        """How far the first window begins before the axis."""
        return window_extent(self.size, self.kernel, self.stride, self.dilation, self.padding)[1]

    @property
    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """The entries that are read, (kernel, outputs), and whether they exist."""
        return window_positions(self.size, self.kernel, self.stride, self.dilation, self.padding)

    def padded(self, block: Array) -> Array:
        """Return the block with the entries beyond the axis that windows read."""
        xp, left = array_namespace(block), self.left
        reach = (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        right = max(0, reach - left - self.size)
        if self.padding in AROUND:
            return xp.take(block, xp.asarray(np.arange(-left, self.size + right) % self.size), axis=self.axis)

        def zeros(count: int) -> list[Array]:
            shape = [count if axis == self.axis else n for axis, n in enumerate(block.shape)]
            return [xp.zeros(shape, dtype=block.dtype)] if count else []

        return xp.concat([*zeros(left), block, *zeros(right)], axis=self.axis)


def sum_over_windows(block: Array, windows: list[list[Window]]) -> Array:
    """Return the sums along one axis after the other; each has the windows of one side or of both."""
    summed = partial(reduce, sum_over_window, windows, block)
    # Record the sums of a block once: a matrix and its direction in a tangent program share them.
    if isinstance(block, Traced):
        return block.tape.once(("windows", block.step, tuple(map(tuple, windows))), summed)
    return summed()


def sum_over_window(block: Array, windows: list[Window]) -> Array:
    """Return the sum over kernel positions of the block, read at that position on the axes of all windows."""
    if isinstance(block, Traced):
        shape = _summed(block.shape, windows)
        one_pass = _in_one_pass(block, windows) if block.tape.compiled else None
        if one_pass is not None:
            return block.tape.call(one_pass, (block,), shape)
        kind = ("sum over window", tuple(windows))
        return block.tape.call(lambda block: sum_over_window(block, windows), (block,), shape, kind=kind)
    for w in windows:
        block = w.padded(block)
    if is_jax_array(block):  # otherwise XLA recomputes everything before the block for each kernel position
        import jax  # type: ignore[import-not-found]

        block = jax.lax.optimization_barrier(block)
    slices = [slice(None)] * block.ndim
    total: Any = 0.0
    for j in range(windows[0].kernel):
        for w in windows:
            first = j * w.dilation
            slices[w.axis] = slice(first, first + (w.count - 1) * w.stride + 1, w.stride)
        total += block[tuple(slices)]
    return total


def _summed(shape: tuple[int, ...], windows: list[Window]) -> list[int]:
    """Return the shape of the sums of a block."""
    counts = {w.axis: w.count for w in windows}
    return [counts.get(axis, size) for axis, size in enumerate(shape)]


# In one pass


def _in_one_pass(block: Traced, windows: list[Window]) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return a function that sums shifted lines in one pass, or None if the last axis changes its length.

    The block is viewed as (before, left axis, lines, line). A line is the right axis and all axes behind it,
    or several of these if they are short; a mask of zeros and ones then marks where a shift stays inside.
    With a single axis, the left one has length 1. The first axis of the block, that of repeats, may have
    another length in each run, so it is always one of those before.
    """
    right, two = windows[-1], len(windows) == 2
    # One pass adds shifted lines, so lines must keep their length: stride 1, as many outputs as entries.
    if right.padding in AROUND or right.stride != 1 or right.count != right.size:
        return None
    where, exists = windows[0].positions if two else (np.zeros((right.kernel, 1), int),) * 2
    rows = np.where(exists, where, -1) if two else where
    sizes = (windows[0].size, windows[0].count) if two else (1, 1)
    lines = prod(block.shape[windows[0].axis + 1 : right.axis]) if two else prod(block.shape[1 : right.axis])
    behind = prod(block.shape[right.axis + 1 :])
    line, longest = right.size * behind, 1024  # 8 kB: a line and its sum fit into the first-level cache
    many = max(k for k in range(1, lines + 1) if lines % k == 0 and k * line <= max(longest, line))
    if many * line < 64:  # starting a loop then takes longer than the loop
        return None
    inside = right.positions[1]
    mask = np.zeros((right.kernel, many, right.size, behind), block.dtype)
    for k in range(right.kernel):
        mask[k, :, inside[k]] = 1.0
    offsets = np.arange(right.kernel) * right.dilation - right.left
    shifts = np.where(inside.any(axis=1), offsets * behind, 0)  # positions never inside: any shift
    behind_axes = (lines // many if two else 1, many * line)
    flat, loop = mask.reshape(right.kernel, -1), _loop()
    _, *counts = _summed(block.shape, windows)

    def run(block: np.ndarray) -> np.ndarray:
        source = np.ascontiguousarray(block).reshape(-1, sizes[0], *behind_axes)
        out = np.empty((len(source), sizes[1], *behind_axes), block.dtype)
        loop(source, rows, shifts, flat, out)
        return out.reshape(len(block), *counts)

    return run


@cache
def _loop() -> Callable[..., None]:
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
                            if first:  # a loop from 0: Numba does not vectorise loops with other starts
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
