"""A kernel matrix from the blocks of its outputs: which entry belongs where, and how it is written.

In NumPy, a `Writer` writes tile by tile into the matrix. If arrays are immutable, `gathered` puts all blocks,
recorded as one graph, into place in a few operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from netsor.build.joint_program import InputGroup, Joint
from netsor.lang.types import Index
from netsor.limits.rules.output import output_index, output_second
from netsor.limits.rules.pairs import Pair, PerInput, PerPair
from netsor.limits.rules.recorder import Recorder
from netsor.limits.tape.graph import Graph
from netsor.limits.tape.tape import Span, Tape

Array = Any


class Rows:
    """By Output, numbers of its rows and columns, (members of its group, index...); -1 if one has none."""

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
        rows = len(members) if self.split is None else sum(m < self.split for m in members)
        return (0, rows), (0 if self.split is None else rows, len(members))

    def outputs(self, r: int, side: int) -> tuple[int, ...]:
        """Return the Outputs of group r that have rows (side 0) or columns (side 1)."""
        tables, span = (self.left, self.right)[side], self.spans(r)[side]
        return tuple(o for o in self.groups[r].outputs if (tables[o][slice(*span)] >= 0).any())


def _number(
    groups: tuple[InputGroup, ...], shapes: list[Index], start: int, stop: int
) -> tuple[list[Any], int]:
    """Return row numbers (members, index...) of each Output, and their count; -1 outside [start, stop)."""
    group_of = {o: group for group in groups for o in group.outputs}
    tables = [np.full((len(group_of[o].members), *shape), -1) for o, shape in enumerate(shapes)]
    owner = {member: (group, k) for group in groups for k, member in enumerate(group.members)}
    row = 0
    for group, k in map(owner.__getitem__, range(start, stop)):
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
    """Writes the blocks of one pair of groups into a kernel matrix."""

    def __init__(
        self, rows: Rows, outputs: tuple[tuple[int, ...], tuple[int, ...]], left: Span, right: Span
    ) -> None:
        # Consecutive rows of inputs with one row each are a slice of the matrix; others need a table.
        row, column = (
            _first_in_order(rows.left, outputs[0], left),
            _first_in_order(rows.right, outputs[1], right),
        )
        self.rows, self.corner = rows, None if row is None or column is None else (row, column)

    def write(self, out: np.ndarray, o: int, blocks: dict[int, np.ndarray], place: Tile) -> None:
        """Write the new part of blocks (repeats, left inputs, right inputs, ...) of Output o; mirror it."""
        if self.corner:
            self._numbers(out, next(iter(blocks.values())), place)
        else:
            self._blocks(out, o, blocks, place)

    def _numbers(self, out: np.ndarray, block: np.ndarray, place: Tile) -> None:
        """Write one number for each pair of inputs."""
        assert self.corner is not None
        (row, column), shape = self.corner, (len(out), *place.counts)
        full = block if block.shape == shape else np.broadcast_to(block, shape)
        new = full[:, place.done[0] :, place.done[1] :]
        a, b = row + place.rows[0] + place.done[0], row + place.rows[1]
        c, d = column + place.cols[0] + place.done[1], column + place.cols[1]
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
    single = len(outputs) == 1 and numbers.ndim == 1 and numbers[0] >= 0
    in_order = single and np.array_equal(numbers, numbers[0] + np.arange(len(numbers)))
    return int(numbers[0]) - span[0] if in_order else None


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
    steps = [int(np.diff(line[:2]).sum()) for line in (numbers[:, 0], numbers[0])]  # 0 for one entry
    inputs, index = (np.arange(n) for n in numbers.shape)
    even = numbers[0, 0] + steps[0] * inputs[:, None] + steps[1] * index
    return (steps[0], steps[1]) if np.array_equal(numbers, even) else None


# All blocks at once, in any array library


def recorded_blocks(make: Callable[[Tape], Recorder], rows: Rows) -> tuple[Graph, dict[tuple[int, int], int]]:
    """Record all blocks, of a symmetric kernel on and above the diagonal; return their graph and nodes."""
    single, tape, blocks = Tape(), Tape(), {}
    recorder = make(single)
    group_of = {o: r for r, group in enumerate(rows.groups) for o in group.outputs}
    spans = {o: rows.spans(r) for o, r in group_of.items()}
    for o, (left, _) in spans.items():
        for p, (_, right) in spans.items():
            if left[0] < left[1] and right[0] < right[1] and (not rows.symmetric or p >= o):
                block = recorder.ask(output_second, o, p, Pair(False, False, left, right, tape))
                if rows.symmetric and group_of[o] == group_of[p] and recorder.program.noise:
                    block = _with_noise(recorder, block, o, p)
                blocks[o, p] = block.array
    graph = Graph(single, tape, blocks.values())
    return graph, dict(zip(blocks, graph.outputs, strict=True))


def _with_noise(r: Recorder, block: PerPair, o: int, p: int) -> PerPair:
    """Replace the diagonal of a block by self blocks: an input shares its noise with itself only."""
    pair, diagonal = block.pair, r.ask(output_second, o, p, Pair(True)).array
    assert pair.rows is not None
    n, ones = pair.rows[1] - pair.rows[0], (1,) * (len(diagonal.shape) - 2)
    spread = pair.left(PerInput(diagonal, len(ones))).array
    same = pair.shared(r.xp.asarray(np.eye(n).reshape((1, n, n, *ones))))
    return replace(block, array=block.array + same * (spread - block.array))


@dataclass(frozen=True)
class _Kind:
    """Outputs of equal shape and number of inputs; `numbers` are the rows of each, (inputs, entries)."""

    index: tuple[int, ...]
    numbers: dict[int, np.ndarray]


def gathered(
    xp: Any,
    rows: Rows,
    shapes: Mapping[tuple[int, int], tuple[int, ...]],
    stack: Callable[[Sequence[tuple[int, int]]], Array],
) -> Array:
    """Return the kernel (rows, columns) from grids of blocks of equal outputs.

    shapes  by pair of Outputs, the shape (1, left inputs, right inputs, left index, right index) of its block
    stack   returns given blocks of one shape, stacked along a leading axis
    """
    lefts = _kinds([o for o, _ in shapes], rows.left)
    rights = _kinds([p for _, p in shapes], rows.right)
    grids = [[_grid(xp, shapes, stack, a, b) for b in rights] for a in lefts]
    matrix = xp.concat([xp.concat(line, axis=1) for line in grids], axis=0)
    for axis, kinds in enumerate((lefts, rights)):
        numbers = [np.stack([*kind.numbers.values()], axis=1).reshape(-1) for kind in kinds]
        order = np.argsort(np.concatenate(numbers))
        if not np.array_equal(order, np.arange(len(order))):
            matrix = xp.take(matrix, xp.asarray(order), axis=axis)
    # Rounding may differ above and below the diagonal of a block of an Output with itself.
    return (matrix + matrix.T) / 2 if rows.symmetric else matrix


def _kinds(outputs: list[int], tables: list[np.ndarray]) -> list[_Kind]:
    kinds: dict[Any, _Kind] = {}
    for o in dict.fromkeys(outputs):
        index, flat = tables[o].shape[1:], tables[o].reshape(len(tables[o]), -1)
        numbers = flat[(flat >= 0).any(axis=1)]  # of the inputs that have rows
        kinds.setdefault((index, len(numbers)), _Kind(index, {})).numbers[o] = numbers
    return [*kinds.values()]


def _grid(xp: Any, shapes: Mapping[Any, Any], stack: Any, left: _Kind, right: _Kind) -> Array:
    """Return the blocks of equal outputs, input by input; those below the diagonal are mirror images."""
    sides = list(product(left.numbers, right.numbers))
    rows, columns = (next(iter(kind.numbers.values())).shape for kind in (left, right))  # (inputs, entries)
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
    grid = xp.reshape(grid, (len(left.numbers), len(right.numbers), *rows, *columns))
    whole = (len(left.numbers) * prod(rows), len(right.numbers) * prod(columns))
    return xp.reshape(xp.permute_dims(grid, (2, 0, 3, 4, 1, 5)), whole)
