"""A kernel matrix from the blocks of its outputs: where each number stands, and how it gets there.

`Rows` numbers the rows and columns. NumPy writes tile by tile into a matrix that is there (`write`); where
arrays cannot be changed, a few operations put all blocks in their places at once (`gathered`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from netsor.build.network import Group, Joint
from netsor.lang.types import Index
from netsor.limits.recursion.outputs import output_index
from netsor.limits.tape.tape import Span

__all__ = ["Place", "Rows", "Writer", "gathered"]

Array = Any
SMALL = 2**12  # elements of a block that is written number by number


class Rows:
    """Where the scalars of each Output statement stand among the rows and columns of the kernel.

    left, right  for each Output the row numbers (members of its group, index...); -1 where a member has none
    """

    def __init__(self, made: Joint, split: int | None) -> None:
        self.groups, self.split = made.groups, split
        shapes = [output_index(made.program, s) for s in made.program.outputs]
        total = sum(len(g.members) for g in made.groups)
        first = total if split is None else split
        self.left, self.left_size = _number(made.groups, shapes, 0, first)
        start = 0 if split is None else split
        self.right, self.right_size = _number(made.groups, shapes, start, total)

    @property
    def symmetric(self) -> bool:
        return self.split is None

    @property
    def count(self) -> int:
        """The inputs, of both sides."""
        return sum(len(group.members) for group in self.groups)

    def spans(self, r: int) -> tuple[Span, Span]:
        """Positions within group r of the inputs that are rows, and of those that are columns."""
        members = self.groups[r].members
        if self.split is None:
            return (0, len(members)), (0, len(members))
        cut = sum(m < self.split for m in members)
        return (0, cut), (cut, len(members))

    def outputs(self, r: int, side: int) -> tuple[int, ...]:
        """The Outputs of group r that have rows (side 0) or columns (side 1)."""
        tables, span = (self.left, self.right)[side], self.spans(r)[side]
        return tuple(o for o in self.groups[r].outputs if (tables[o][slice(*span)] >= 0).any())


def _number(groups: tuple[Group, ...], shapes: list[Index], start: int, stop: int) -> tuple[list[Any], int]:
    """Row numbers (members of the group, index...) for each Output; -1 for inputs outside [start, stop)."""
    tables: list[np.ndarray] = [np.zeros(0, int)] * len(shapes)
    owner: dict[int, tuple[Group, int]] = {}
    for group in groups:
        for k, member in enumerate(group.members):
            owner[member] = (group, k)
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
class Place:
    """A tile: its inputs, and how many of the first ones belong to the tile before it."""

    rows: Span
    cols: Span
    done: tuple[int, int] = (0, 0)

    @property
    def counts(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.cols[1] - self.cols[0]


class Writer:
    """Writes the blocks of one pair of groups into a kernel matrix.

    corner  the row and column of input 0, if each input has one number and they stand in order
    """

    def __init__(
        self, rows: Rows, outputs: tuple[tuple[int, ...], tuple[int, ...]], left: Span, right: Span
    ) -> None:
        self.rows, self.corner = rows, None
        firsts = [
            _first_in_order(tables, own, span)
            for tables, own, span in zip((rows.left, rows.right), outputs, (left, right), strict=True)
        ]
        if firsts[0] is not None and firsts[1] is not None:
            self.corner = (firsts[0], firsts[1])

    def write(self, out: np.ndarray, o: int, blocks: dict[int, np.ndarray], place: Place) -> None:
        """The new part of the blocks (repeats, left inputs, right inputs, ...) of Output o with others.

        Of a symmetric kernel their mirror image, too.
        """
        if self.corner:
            self._numbers(out, next(iter(blocks.values())), place)
        else:
            self._blocks(out, o, blocks, place)

    def _numbers(self, out: np.ndarray, block: np.ndarray, place: Place) -> None:
        """One number for each pair of inputs."""
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
            if c < b:  # to the last bit
                own = new[:, :, : b - c].swapaxes(1, 2)
                np.copyto(out[:, a:b, c:b], own, where=_below_diagonal(b - a))

    def _blocks(self, out: np.ndarray, o: int, blocks: dict[int, np.ndarray], place: Place) -> None:
        """Blocks of any shape, all columns at once."""
        rows, parts = self.rows, {p: self._part(len(out), b, o, p, place) for p, b in blocks.items()}
        if rows.symmetric and o in parts and place.rows == place.cols:  # to the last bit
            own = parts[o].reshape(len(out), prod(parts[o].shape[1:3]), -1)
            parts[o] = (np.triu(own) + np.triu(own, 1).swapaxes(1, 2)).reshape(parts[o].shape)
        new = rows.left[o][place.rows[0] + place.done[0] : place.rows[1]]
        lines = new.reshape(len(new), -1)
        others = [rows.right[p][place.cols[0] + place.done[1] : place.cols[1]] for p in parts]
        columns = np.concatenate([table.reshape(len(table), -1) for table in others], axis=1)
        joined = np.concatenate(list(parts.values()), axis=4) if len(parts) > 1 else parts[next(iter(parts))]
        _write(out, lines, columns, joined)
        if rows.symmetric:
            _write(out, columns, lines, joined.transpose(0, 3, 4, 1, 2))

    def _part(self, repeats: int, block: np.ndarray, o: int, p: int, place: Place) -> np.ndarray:
        """The new part of a block, (repeats, left inputs, left index, right inputs, right index)."""
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
    """The row of input 0, if each input has one output and they stand in order."""
    numbers = tables[outputs[0]][slice(*span)]
    if len(outputs) > 1 or numbers.ndim > 1 or numbers[0] < 0:
        return None
    if not np.array_equal(numbers, numbers[0] + np.arange(len(numbers))):
        return None
    return int(numbers[0]) - span[0]


def _write(out: np.ndarray, lines: np.ndarray, columns: np.ndarray, block: np.ndarray) -> None:
    """Write (repeats, left inputs, left index, right inputs, right index) at rows and columns."""
    if lines.min() < 0 or columns.min() < 0:  # inputs of different lengths, some without these Outputs
        a, b = lines.reshape(-1), columns.reshape(-1)
        table = block.reshape(len(block), lines.size, columns.size)
        out[(slice(None), *np.ix_(a[a >= 0], b[b >= 0]))] = table[:, a >= 0][:, :, b >= 0]
        return
    steps = (None, None) if block.size < SMALL else (_steps(lines), _steps(columns))
    if steps[0] is None or steps[1] is None:
        out[:, lines[:, :, None, None], columns[None, None]] = block
        return
    start = out[:, lines[0, 0] :, columns[0, 0] :]
    inner = [step * out.strides[axis + 1] for axis in (0, 1) for step in steps[axis]]  # type: ignore[union-attr]
    as_strided(start, block.shape, [out.strides[0], *inner])[...] = block


def _steps(numbers: np.ndarray) -> tuple[int, int] | None:
    """By how much numbers grow from input to input and along the index, if they do so evenly."""
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
    """Outputs of the same shape and number of inputs; `numbers` (outputs, inputs, entries) are their rows."""

    outputs: list[int]
    index: tuple[int, ...]
    numbers: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.numbers.shape[1], self.numbers.shape[2]


def gathered(
    xp: Any,
    rows: Rows,
    shapes: Mapping[tuple[int, int], tuple[int, ...]],
    stack: Callable[[Sequence[tuple[int, int]]], Array],
) -> Array:
    """(rows, columns) of the kernel; blocks below the diagonal are mirror images of those above it.

    shapes  of the blocks of pairs of Outputs, (1, left inputs, right inputs, left index, right index)
    stack   some of these blocks, of one shape, on a leading axis

    Outputs of the same shape make a grid of blocks, whose axes are put in order by one transposition where
    rows are numbered input by input, as they mostly are.
    """
    lefts = _kinds([o for o, _ in shapes], rows.left)
    rights = _kinds([p for _, p in shapes], rows.right)
    grids = [[_grid(xp, rows, shapes, stack, a, b) for b in rights] for a in lefts]
    matrix = xp.concat([xp.concat(line, axis=1) for line in grids], axis=0)
    for axis, kinds in enumerate((lefts, rights)):
        order = np.argsort(np.concatenate([kind.numbers.swapaxes(0, 1).reshape(-1) for kind in kinds]))
        if not np.array_equal(order, np.arange(len(order))):
            matrix = xp.take(matrix, xp.asarray(order), axis=axis)
    return matrix + matrix.T if rows.symmetric else matrix


def _kinds(outputs: list[int], tables: list[np.ndarray]) -> list[_Kind]:
    found: dict[Any, list[int]] = {}
    for o in dict.fromkeys(outputs):
        found.setdefault((tables[o].shape[1:], int((tables[o] >= 0).sum())), []).append(o)
    return [
        _Kind(members, index, np.stack([_rows_of(tables[o]) for o in members]))
        for (index, _), members in found.items()
    ]


def _rows_of(table: np.ndarray) -> np.ndarray:
    """(inputs, entries) of the row numbers of the inputs that have rows."""
    flat = table.reshape(len(table), int(np.prod(table.shape[1:], dtype=int)))
    return flat[(flat >= 0).any(axis=1)]


def _grid(xp: Any, rows: Rows, shapes: Mapping[Any, Any], stack: Any, left: _Kind, right: _Kind) -> Array:
    """The blocks of equal outputs, input by input; those on the diagonal are halved, those below it are 0."""
    sides = [(o, p) for o in left.outputs for p in right.outputs]
    by_shape: dict[Any, list[tuple[int, int]]] = {}  # axes of length 1 stand for many equal values
    for pair in sides:
        if pair in shapes:
            by_shape.setdefault(shapes[pair], []).append(pair)
    if not by_shape:
        return xp.zeros((left.numbers.size, right.numbers.size), dtype=stack([next(iter(shapes))]).dtype)
    made, place = [], {}
    for members in by_shape.values():
        block = stack(members)[:, 0, ...]
        full = xp.broadcast_to(
            block, (len(members), left.shape[0], right.shape[0], *left.index, *right.index)
        )
        full = xp.moveaxis(full, 2, 2 + len(left.index))
        place.update(zip(members, range(len(place), len(place) + len(members)), strict=True))
        made.append(xp.reshape(full, (len(members), *left.shape, *right.shape)))
    tiles = xp.concat(made, axis=0) if len(made) > 1 else made[0]
    order = [place.get(pair, 0) for pair in sides]
    if order != list(range(tiles.shape[0])):
        tiles = xp.take(tiles, xp.asarray(np.asarray(order)), axis=0)
    weight = np.array([_weight(rows, pair, pair in shapes) for pair in sides])
    if not (weight == 1).all():
        factor = xp.asarray(weight[:, None, None, None, None], dtype=tiles.dtype)
        tiles = xp.where(factor > 0, tiles * factor, xp.zeros_like(tiles))
    tiles = xp.reshape(tiles, (len(left.outputs), len(right.outputs), *left.shape, *right.shape))
    return xp.reshape(xp.permute_dims(tiles, (2, 0, 3, 4, 1, 5)), (left.numbers.size, right.numbers.size))


def _weight(rows: Rows, pair: tuple[int, int], there: bool) -> float:
    if not there:
        return 0.0
    return 0.5 if pair[0] == pair[1] and rows.symmetric else 1.0
