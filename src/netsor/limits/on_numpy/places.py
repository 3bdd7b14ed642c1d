"""Where the numbers of a tile stand in the kernel matrix, and how they get there."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from netsor.limits.recursion.outputs import Rows
from netsor.limits.tape.tape import Span

__all__ = ["Place", "corner", "part_of_block", "write_block", "write_numbers"]

SMALL = 2**12  # elements of a block that is written number by number


@dataclass(frozen=True)
class Place:
    """A tile: its inputs, and how many of the first ones belong to the tile before it."""

    rows: Span
    cols: Span
    done: tuple[int, int] = (0, 0)


# One number for each pair of inputs


def corner(
    rows: Rows, outputs: tuple[tuple[int, ...], tuple[int, ...]], left: Span, right: Span
) -> tuple[int, int] | None:
    """The row and column of input 0, if each input has one output and they stand in order."""
    firsts = []
    for (output, *more), tables, span in zip(outputs, (rows.left, rows.right), (left, right), strict=True):
        numbers = tables[output][slice(*span)]
        if more or numbers.ndim > 1 or numbers[0] < 0:
            return None
        if not np.array_equal(numbers, numbers[0] + np.arange(len(numbers))):
            return None
        firsts.append(int(numbers[0]) - span[0])
    return firsts[0], firsts[1]


def write_numbers(
    out: np.ndarray, corner: tuple[int, int], block: np.ndarray, place: Place, symmetric: bool
) -> None:
    """Write the new part of a tile (1, left inputs, right inputs), and its mirror image."""
    shape = (place.rows[1] - place.rows[0], place.cols[1] - place.cols[0])
    full = block[0] if block.shape[1:] == shape else np.broadcast_to(block[0], shape)
    new = full[place.done[0] :, place.done[1] :]
    a, b = corner[0] + place.rows[0] + place.done[0], corner[0] + place.rows[1]
    c, d = corner[1] + place.cols[0] + place.done[1], corner[1] + place.cols[1]
    out[a:b, c:d] = new
    if symmetric:
        right = max(b, c)
        out[right:d, a:b] = new[:, right - c :].T
        if c < b:  # to the last bit
            own = out[a:b, a:b]
            np.copyto(own, own.T, where=np.tri(b - a, k=-1, dtype=bool))


# Blocks of any shape


def part_of_block(block: np.ndarray, rows: Rows, o: int, p: int, place: Place) -> np.ndarray:
    """The new part of a block, (left inputs, left index, right inputs, right index)."""
    left, right = rows.left[o].shape[1:], rows.right[p].shape[1:]
    counts = (place.rows[1] - place.rows[0], place.cols[1] - place.cols[0])
    full = np.broadcast_to(block[0], (*counts, *left, *right))[place.done[0] :, place.done[1] :]
    full = np.moveaxis(full, 1, 1 + len(left))
    return full.reshape(full.shape[0], prod(left), counts[1] - place.done[1], prod(right))


def write_block(
    out: np.ndarray, rows: Rows, o: int, blocks: dict[int, np.ndarray], place: Place, diagonal: bool
) -> None:
    """Write the blocks of an Output with several others, and their mirror image."""
    if diagonal:  # to the last bit
        own = blocks[o].reshape(prod(blocks[o].shape[:2]), -1)
        blocks[o] = (np.triu(own) + np.triu(own, 1).T).reshape(blocks[o].shape)
    new, others = rows.left[o][place.rows[0] + place.done[0] : place.rows[1]], []
    for p in blocks:
        others.append(rows.right[p][place.cols[0] + place.done[1] : place.cols[1]])
    lines = new.reshape(len(new), -1)
    columns = np.concatenate([table.reshape(len(table), -1) for table in others], axis=1)
    joined = np.concatenate(list(blocks.values()), axis=3) if len(blocks) > 1 else blocks[next(iter(blocks))]
    _write(out, lines, columns, joined)
    if rows.split is None:
        _write(out, columns, lines, joined.transpose(2, 3, 0, 1))


def _write(out: np.ndarray, lines: np.ndarray, columns: np.ndarray, block: np.ndarray) -> None:
    """Write (left inputs, left index, right inputs, right index) at rows and columns (inputs, index)."""
    if lines.min() < 0 or columns.min() < 0:  # inputs of different lengths, some without these Outputs
        (a, b), table = (n.reshape(-1) for n in (lines, columns)), block.reshape(lines.size, columns.size)
        out[np.ix_(a[a >= 0], b[b >= 0])] = table[np.ix_(a >= 0, b >= 0)]
        return
    steps = (None, None) if block.size < SMALL else (_steps(lines), _steps(columns))
    if steps[0] is None or steps[1] is None:
        out[lines[:, :, None, None], columns[None, None]] = block
        return
    start = out[lines[0, 0] :, columns[0, 0] :]
    strides = [step * out.strides[axis] for axis in (0, 1) for step in steps[axis]]  # type: ignore[union-attr]
    as_strided(start, block.shape, strides)[...] = block


def _steps(numbers: np.ndarray) -> tuple[int, int] | None:
    """By how much numbers grow from input to input and along the index, if they do so evenly."""
    inputs, index = numbers.shape
    steps = (
        int(numbers[1, 0] - numbers[0, 0]) if inputs > 1 else 0,
        int(numbers[0, 1] - numbers[0, 0]) if index > 1 else 0,
    )
    even = numbers[0, 0] + steps[0] * np.arange(inputs)[:, None] + steps[1] * np.arange(index)
    return steps if np.array_equal(numbers, even) else None
