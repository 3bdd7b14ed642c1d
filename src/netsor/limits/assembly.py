"""A kernel matrix from the blocks of its outputs: which entry belongs where, and how it is written.

`Rows` numbers the rows and columns. In NumPy, a `Writer` writes tile by tile into the matrix. If arrays are
immutable, `gathered` puts all blocks into place in a few operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from netsor.build.joint_program import InputGroup, Joint
from netsor.lang.types import Index
from netsor.limits.rules.output import output_index
from netsor.limits.tape.tape import Span

Array = Any


class Rows:
    """The rows and columns of the kernel that belong to each Output statement.

    left, right  for each Output its row numbers (members of its group, index...); -1 if a member has none
    """

    def __init__(self, joint: Joint, split: int | None) -> None:
        self.groups, self.split = joint.groups, split
        shapes = [output_index(joint.program, s) for s in joint.program.outputs]
        total = sum(len(g.members) for g in joint.groups)
        stop, start = (total, 0) if split is None else (split, split)
        self.left, self.left_size = _number(joint.groups, shapes, 0, stop)
        self.right, self.right_size = _number(joint.groups, shapes, start, total)

    @property
    def symmetric(self) -> bool:
        return self.split is None

    @property
    def count(self) -> int:
        """The number of inputs of both sides."""
        return sum(len(group.members) for group in self.groups)

    def spans(self, r: int) -> tuple[Span, Span]:
        """Return the positions within group r of the inputs that are rows, and of those that are columns."""
        members = self.groups[r].members
        if self.split is None:
            return (0, len(members)), (0, len(members))
        rows = sum(m < self.split for m in members)
        return (0, rows), (rows, len(members))

    def outputs(self, r: int, side: int) -> tuple[int, ...]:
        """Return the Outputs of group r that have rows (side 0) or columns (side 1)."""
        tables, span = (self.left, self.right)[side], self.spans(r)[side]
        return tuple(o for o in self.groups[r].outputs if (tables[o][slice(*span)] >= 0).any())


def _number(
    groups: tuple[InputGroup, ...], shapes: list[Index], start: int, stop: int
) -> tuple[list[Any], int]:
    """Return row numbers (members, index...) of each Output, and their count; -1 outside [start, stop)."""
    tables: list[np.ndarray] = [np.zeros(0, int)] * len(shapes)
    owner = {member: (group, k) for group in groups for k, member in enumerate(group.members)}
    for group in groups:
        for o in group.outputs:
            tables[o] = np.full((len(group.members), *shapes[o]), -1)
    row = 0
    for member in range(start, stop):
        group, k = owner[member]
        for o in group.outputs_of(k):
            size = prod(shapes[o])
            tables[o][k] = np.arange(row, row + size).reshape(shapes[o])
            row += size
    return tables, row


# Tile by tile, into a NumPy array


@dataclass(frozen=True)
class Tile:
    """A tile: its inputs, and how many of its first rows and columns the tiles before it already have."""

    rows: Span
    cols: Span
    done: tuple[int, int] = (0, 0)

    @property
    def counts(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.cols[1] - self.cols[0]


class Writer:
    """Writes the blocks of one pair of groups into a kernel matrix.

    corner  the row and column of input 0, if each input has one row and these are in order
    """

    def __init__(
        self, rows: Rows, outputs: tuple[tuple[int, ...], tuple[int, ...]], left: Span, right: Span
    ) -> None:
        self.rows, self.corner = rows, None
        firsts = [
            _first_in_order(tables, numbers, span)
            for tables, numbers, span in zip((rows.left, rows.right), outputs, (left, right), strict=True)
        ]
        # Row numbers that are not consecutive need a table; consecutive ones are a slice of the matrix.
        if firsts[0] is not None and firsts[1] is not None:
            self.corner = (firsts[0], firsts[1])

    def write(self, out: np.ndarray, o: int, blocks: dict[int, np.ndarray], place: Tile) -> None:
        """Write the new part of the blocks (repeats, left inputs, right inputs, ...) of Output o.

        Write the mirror image too if the kernel is symmetric.
        """
        if self.corner:
            self._numbers(out, next(iter(blocks.values())), place)
        else:
            self._blocks(out, o, blocks, place)

    def _numbers(self, out: np.ndarray, block: np.ndarray, place: Tile) -> None:
        """Write one number for each pair of inputs."""
        assert self.corner is not None
        shape = (len(out), *place.counts)
        full = block if block.shape == shape else np.broadcast_to(block, shape)
        new = full[:, place.done[0] :, place.done[1] :]
        a, b = self.corner[0] + place.rows[0] + place.done[0], self.corner[0] + place.rows[1]
        c, d = self.corner[1] + place.cols[0] + place.done[1], self.corner[1] + place.cols[1]
        out[:, a:b, c:d] = new
        if self.rows.symmetric:
            right = max(b, c)
            if right < d:
                out[:, right:d, a:b] = new[:, :, right - c :].swapaxes(1, 2)
            # Rounding may differ above and below the diagonal; copying one side makes it exactly symmetric.
            if c < b:
                mirrored = new[:, :, : b - c].swapaxes(1, 2)
                np.copyto(out[:, a:b, c:b], mirrored, where=_below_diagonal(b - a))

    def _blocks(self, out: np.ndarray, o: int, blocks: dict[int, np.ndarray], place: Tile) -> None:
        """Write blocks of any shape, all columns at once."""
        rows, new = self.rows, {p: self._new_part(len(out), b, o, p, place) for p, b in blocks.items()}
        if rows.symmetric and o in new and place.rows == place.cols:  # exactly symmetric, as in `_numbers`
            square = new[o].reshape(len(out), prod(new[o].shape[1:3]), -1)
            new[o] = (np.triu(square) + np.triu(square, 1).swapaxes(1, 2)).reshape(new[o].shape)
        left = rows.left[o][place.rows[0] + place.done[0] : place.rows[1]]
        lines = left.reshape(len(left), -1)
        right = [rows.right[p][place.cols[0] + place.done[1] : place.cols[1]] for p in new]
        columns = np.concatenate([table.reshape(len(table), -1) for table in right], axis=1)
        joined = np.concatenate(list(new.values()), axis=4) if len(new) > 1 else new[next(iter(new))]
        _write(out, lines, columns, joined)
        if rows.symmetric:
            _write(out, columns, lines, joined.transpose(0, 3, 4, 1, 2))

    def _new_part(self, repeats: int, block: np.ndarray, o: int, p: int, place: Tile) -> np.ndarray:
        """Return the new part of a block: (repeats, left inputs, left index, right inputs, right index)."""
        left, right = self.rows.left[o].shape[1:], self.rows.right[p].shape[1:]
        shape = (repeats, *place.counts, *left, *right)
        full = block if block.shape == shape else np.broadcast_to(block, shape)
        full = full[:, place.done[0] :, place.done[1] :]
        full = np.moveaxis(full, 2, 2 + len(left)) if left else full
        return full.reshape(*full.shape[:2], prod(left), place.counts[1] - place.done[1], prod(right))


@lru_cache(maxsize=8)
def _below_diagonal(n: int) -> np.ndarray:
    return np.tri(n, k=-1, dtype=bool)


def _first_in_order(tables: list[np.ndarray], outputs: tuple[int, ...], span: Span) -> int | None:
    """Return the row of input 0 if each input has one output and the rows are in order, else None."""
    numbers = tables[outputs[0]][slice(*span)]
    if len(outputs) > 1 or numbers.ndim > 1 or numbers[0] < 0:
        return None
    if not np.array_equal(numbers, numbers[0] + np.arange(len(numbers))):
        return None
    return int(numbers[0]) - span[0]


def _write(out: np.ndarray, lines: np.ndarray, columns: np.ndarray, block: np.ndarray) -> None:
    """Write (repeats, left inputs, left index, right inputs, right index) at these rows and columns."""
    if lines.min() < 0 or columns.min() < 0:  # inputs of other lengths do not have these Outputs
        a, b = lines.reshape(-1), columns.reshape(-1)
        table = block.reshape(len(block), lines.size, columns.size)
        out[(slice(None), *np.ix_(a[a >= 0], b[b >= 0]))] = table[:, a >= 0][:, :, b >= 0]
        return
    # Copying with strides is several times as fast as copying by index, but finding strides takes time.
    steps = (None, None) if block.size < 2**12 else (_steps(lines), _steps(columns))
    if steps[0] is None or steps[1] is None:
        out[:, lines[:, :, None, None], columns[None, None]] = block
        return
    start = out[:, lines[0, 0] :, columns[0, 0] :]
    inner = [step * out.strides[axis + 1] for axis in (0, 1) for step in steps[axis]]  # type: ignore[union-attr]
    as_strided(start, block.shape, [out.strides[0], *inner])[...] = block


def _steps(numbers: np.ndarray) -> tuple[int, int] | None:
    """Return the constant steps of row numbers from input to input and along the index, or None."""
    inputs, index = numbers.shape
    steps = (
        int(numbers[1, 0] - numbers[0, 0]) if inputs > 1 else 0,
        int(numbers[0, 1] - numbers[0, 0]) if index > 1 else 0,
    )
    even = numbers[0, 0] + steps[0] * np.arange(inputs)[:, None] + steps[1] * np.arange(index)
    return steps if np.array_equal(numbers, even) else None


# All blocks at once, in any array library


@dataclass(frozen=True)
class _Kind:
    """Outputs of equal shape and number of inputs; `numbers` (outputs, inputs, entries) are their rows."""

    outputs: list[int]
    index: tuple[int, ...]
    numbers: np.ndarray


def gathered(
    xp: Any,
    rows: Rows,
    shapes: Mapping[tuple[int, int], tuple[int, ...]],
    stack: Callable[[Sequence[tuple[int, int]]], Array],
) -> Array:
    """Return the kernel (rows, columns) from its blocks; mirror the blocks above the diagonal.

    shapes  by pair of Outputs, the shape (1, left inputs, right inputs, left index, right index) of its block
    stack   returns given blocks of one shape, stacked along a leading axis

    Outputs of equal shape form a grid of blocks. If rows are numbered input by input, as usual, one
    transposition puts the axes of a grid in order.
    """
    lefts = _kinds([o for o, _ in shapes], rows.left)
    rights = _kinds([p for _, p in shapes], rows.right)
    grids = [[_grid(xp, shapes, stack, a, b) for b in rights] for a in lefts]
    matrix = xp.concat([xp.concat(line, axis=1) for line in grids], axis=0)
    for axis, kinds in enumerate((lefts, rights)):
        order = np.argsort(np.concatenate([kind.numbers.swapaxes(0, 1).reshape(-1) for kind in kinds]))
        if not np.array_equal(order, np.arange(len(order))):
            matrix = xp.take(matrix, xp.asarray(order), axis=axis)
    # Rounding may differ above and below the diagonal of a block of an Output with itself.
    return (matrix + matrix.T) / 2 if rows.symmetric else matrix


def _kinds(outputs: list[int], tables: list[np.ndarray]) -> list[_Kind]:
    members_of: dict[Any, list[int]] = {}
    numbers: dict[int, np.ndarray] = {}  # of the inputs that have rows
    for o in dict.fromkeys(outputs):
        flat = tables[o].reshape(len(tables[o]), prod(tables[o].shape[1:]))
        numbers[o] = flat[(flat >= 0).any(axis=1)]
        members_of.setdefault((tables[o].shape[1:], len(numbers[o])), []).append(o)
    return [
        _Kind(members, index, np.stack([numbers[o] for o in members]))
        for (index, _), members in members_of.items()
    ]


def _grid(xp: Any, shapes: Mapping[Any, Any], stack: Any, left: _Kind, right: _Kind) -> Array:
    """Return the blocks of equal outputs, input by input; those below the diagonal are mirror images."""
    sides = [(o, p) for o in left.outputs for p in right.outputs]
    rows, columns = left.numbers.shape[1:], right.numbers.shape[1:]  # (inputs, entries)
    alike: dict[Any, list[tuple[int, int]]] = {}  # axes of length 1 broadcast, so shapes may differ
    for pair in sides:
        is_mirrored = pair not in shapes
        alike.setdefault((is_mirrored, shapes[pair[::-1] if is_mirrored else pair]), []).append(pair)
    stacks, i, j = [], len(left.index), len(right.index)
    for (is_mirrored, _), pairs in alike.items():
        block = stack([pair[::-1] for pair in pairs] if is_mirrored else pairs)[:, 0, ...]
        if is_mirrored:
            block = xp.permute_dims(block, (0, 2, 1, *range(3 + j, 3 + j + i), *range(3, 3 + j)))
        shape = (len(pairs), rows[0], columns[0], *left.index, *right.index)
        full = xp.moveaxis(xp.broadcast_to(block, shape), 2, 2 + i)
        stacks.append(xp.reshape(full, (len(pairs), *rows, *columns)))
    grid = xp.concat(stacks, axis=0) if len(stacks) > 1 else stacks[0]
    place = {pair: k for k, pair in enumerate(chain(*alike.values()))}
    order = [place[pair] for pair in sides]
    if order != list(range(len(order))):
        grid = xp.take(grid, xp.asarray(np.asarray(order)), axis=0)
    grid = xp.reshape(grid, (len(left.outputs), len(right.outputs), *rows, *columns))
    return xp.reshape(xp.permute_dims(grid, (2, 0, 3, 4, 1, 5)), (left.numbers.size, right.numbers.size))
