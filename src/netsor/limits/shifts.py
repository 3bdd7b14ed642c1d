"""Sums of shifted blocks: a convolution with independent matrices, along one axis of either side.

Where positions are evenly spaced a shift is a slice. The sum is one pass over memory if Numba is installed
(the extra `fast`), and one pass per kernel position in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from netsor.limits.traced import Traced

__all__ = ["sum_of_shifts"]

Array = Any
Spot = tuple[int, np.ndarray, np.ndarray]  # an axis, and for each kernel position where it reads and whether
Slices = list[tuple[slice, slice]]  # for each kernel position where it reads and where it writes
LINE = 1024  # elements that a compiled loop adds in a row


def sum_of_shifts(block: Array, spots: list[Spot]) -> Array:
    """The sum over kernel positions of the block read at that position on all the axes of `spots`."""
    sliced: list[Any] = [_slices(*spot[1:]) for spot in spots]
    if not isinstance(block, np.ndarray | Traced) or any(part is None for part in sliced):
        return _by_taking(block, spots)
    shape = list(block.shape)
    for axis, where, _ in spots:
        shape[axis] = where.shape[1]
    axes = [axis for axis, _, _ in spots]
    if isinstance(block, np.ndarray):
        return _by_slices(block, axes, sliced, shape)
    if block.tape.compiled and _is_dense(block, axes, sliced, shape):
        return block.tape.call(_in_one_pass(block, axes, sliced, shape), (block,), shape)
    kind = ("sum of shifts", repr((axes, sliced, shape)))
    return block.tape.call(lambda block: sum_of_shifts(block, spots), (block,), shape, kind=kind)


def _by_taking(block: Array, spots: list[Spot]) -> Array:
    total: Any = 0.0
    for j in range(len(spots[0][1])):
        part = block
        for axis, where, exists in spots:
            part = _shift(part, where[j], exists[j], axis)
        total = total + part
    return total


def _shift(block: Array, where: np.ndarray, exists: np.ndarray, axis: int) -> Array:
    """The entries `where` along an axis, zero where they do not exist."""
    xp = array_namespace(block)
    part = xp.take(block, xp.asarray(where), axis=axis)
    if exists.all():
        return part
    shape = [1] * block.ndim
    shape[axis] = len(exists)
    return part * xp.asarray(exists.reshape(shape), dtype=block.dtype)


def _slices(where: np.ndarray, exists: np.ndarray) -> Slices | None:
    """The positions of an axis as slices; None where they wrap around."""
    found = [_slice(*position) for position in zip(where, exists, strict=True)]
    return None if None in found else found  # type: ignore[return-value]


def _slice(where: np.ndarray, exists: np.ndarray) -> tuple[slice, slice] | None:
    there = np.flatnonzero(exists)
    if not len(there):
        return slice(0, 0), slice(0, 0)
    source = where[there]
    step = int(source[1] - source[0]) if len(source) > 1 else 1
    even = step > 0 and np.array_equal(source, source[0] + step * np.arange(len(source)))
    whole = there[-1] - there[0] + 1 == len(there)
    if not (even and whole):
        return None
    return slice(int(source[0]), int(source[-1]) + 1, step), slice(int(there[0]), int(there[-1]) + 1)


def _by_slices(block: np.ndarray, axes: list[int], sliced: list[Slices], shape: list[int]) -> np.ndarray:
    out = np.zeros(shape, block.dtype)
    for parts in zip(*sliced, strict=True):
        source, target = [slice(None)] * block.ndim, [slice(None)] * block.ndim
        for axis, (read, write) in zip(axes, parts, strict=True):
            source[axis], target[axis] = read, write
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
    import numba  # type: ignore[import-not-found]

    @numba.njit(cache=True, nogil=True, fastmath={"contract"})
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

    return loop
