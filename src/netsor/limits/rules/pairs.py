"""Arrays over inputs: quantities of single inputs, and blocks over pairs of inputs.

Repeats are the independent randomisations of a sampled limit (one if nothing is sampled). An axis of length
1 stands for values that do not depend on it. Blocks of different ranks align by themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from netsor.lang.blocks import Block
from netsor.lang.ops import Op
from netsor.lang.types import Index
from netsor.limits.tape.tape import Span, Tape
from netsor.limits.tape.traced import array_namespace

Array = Any


def padded(array: Array, batch: int, rank: int, target: int) -> Array:
    """Insert axes of length 1 between the batch axes and the `rank` index axes, up to `target` index axes."""
    shape = (*array.shape[:batch], *(1,) * (target - rank), *array.shape[batch:])
    return array if rank == target else array_namespace(array).reshape(array, shape)


@dataclass(frozen=True)
class PerInput:
    """A quantity of single inputs: (repeats, inputs, index...) with `rank` index axes."""

    array: Array
    rank: int

    def widened(self, rank: int) -> PerInput:
        return PerInput(padded(self.array, 2, self.rank, rank), rank)

    @property
    def block(self) -> Block:
        """The quantity as a block for the operations of the language."""
        return Block(self.array, self.rank)


class Pair(NamedTuple):
    """Which inputs are left and right: the same one twice (`same`, a *self* block), or all of two groups.

    tied        whether only entries count where left and right index are equal
    rows, cols  a tile of the inputs, as (start, stop); None means all inputs
    tape        where steps are recorded once for all tiles of these sizes
    """

    same: bool
    tied: bool = False
    rows: Span | None = None
    cols: Span | None = None
    tape: Tape | None = None

    @property
    def batch(self) -> int:
        """The number of batch axes."""
        return 2 if self.same else 3

    @property
    def flipped(self) -> Pair:
        if self.rows == self.cols:
            return self
        return self._replace(rows=self.cols, cols=self.rows)

    @property
    def free(self) -> Pair:
        """The same pair, with left and right index on axes of their own."""
        return self._replace(tied=False) if self.tied else self

    @property
    def is_tile(self) -> bool:
        """Whether blocks belong to single tiles; otherwise all tiles share them."""
        return self.rows is not None

    def side(self, side: int, x: PerInput) -> PerPair:
        """Return a quantity of the left (side 0) or of the right inputs (side 1) as a block."""
        array, span = x.array, (self.rows, self.cols)[side]
        if not self.same and self.tape is not None and span is not None:
            array = self.tape.side(array, span, side + 1)
        elif not self.same:
            array = array[:, :, None, ...] if side == 0 else array[:, None, ...]
        return PerPair(array, self, *((x.rank, 0) if side == 0 else (0, x.rank)))

    def left(self, x: PerInput) -> PerPair:
        return self.side(0, x)

    def right(self, x: PerInput) -> PerPair:
        return self.side(1, x)

    def shared(self, array: Array) -> Array:
        """Return an array or a number that is the same for all tiles."""
        if self.tape is None or not hasattr(array, "shape"):
            return array
        return self.tape.shared(array)


@dataclass(frozen=True)
class PerPair:
    """A block over pairs of inputs: (batch..., left index..., right index...); (batch..., index...) if tied.

    batch        (repeats, inputs) if left and right are the same input, else (repeats, left, right inputs)
    left, right  number of index axes of each side
    """

    array: Array
    pair: Pair
    left: int
    right: int

    def ranked(self, left: int, right: int) -> Array:
        """Return the array with axes of length 1 in front of its index axes, up to these ranks."""
        if (left, right) == (self.left, self.right):
            return self.array
        batch = self.pair.batch
        if self.pair.tied:
            return padded(self.array, batch, max(self.left, self.right), max(left, right))
        return padded(padded(self.array, batch + self.left, self.right, right), batch, self.left, left)

    def widened(self, left: int, right: int) -> PerPair:
        return PerPair(self.ranked(left, right), self.pair, left, right)

    def spread(self, left: Index, right: Index) -> Array:
        """Return the array with its index axes broadcast to their full lengths."""
        array, batch = self.ranked(len(left), len(right)), self.pair.batch
        index = max(left, right, key=len) if self.pair.tied else (*left, *right)
        return array_namespace(array).broadcast_to(array, (*array.shape[:batch], *index))

    def _with(self, other: Any, fn: Callable[[Any, Any], Any]) -> PerPair:
        if not isinstance(other, PerPair):
            return replace(self, array=fn(self.array, other))
        left, right = max(self.left, other.left), max(self.right, other.right)
        return PerPair(fn(self.ranked(left, right), other.ranked(left, right)), self.pair, left, right)

    def __add__(self, other: Any) -> PerPair:
        return self._with(other, operator.add)

    def __sub__(self, other: Any) -> PerPair:
        return self._with(other, operator.sub)

    def __mul__(self, other: Any) -> PerPair:
        return self._with(other, operator.mul)

    def __truediv__(self, other: Any) -> PerPair:
        return self._with(other, operator.truediv)

    def __neg__(self) -> PerPair:
        return replace(self, array=-self.array)

    @property
    def per_input(self) -> PerInput:
        """The quantity of single inputs that a tied self block, or one with axes on one side only, holds."""
        return PerInput(self.array, max(self.left, self.right))

    @property
    def swapped(self) -> PerPair:
        """The same block with left and right exchanged."""
        index = range(self.pair.batch, self.array.ndim)
        if not self.pair.tied:
            index = (*index[self.left :], *index[: self.left])
        order = (0, *((1,) if self.pair.same else (2, 1)), *index)
        same = order == tuple(range(self.array.ndim))
        array = self.array if same else array_namespace(self.array).permute_dims(self.array, order)
        return PerPair(array, self.pair.flipped, self.right, self.left)

    @property
    def diagonal(self) -> PerPair:
        """The entries where left and right index are equal, as a tied block; axes of length 1 broadcast."""
        xp, batch, rank = array_namespace(self.array), self.pair.batch, max(self.left, self.right)
        array = self.ranked(rank, rank)
        for d in range(batch, batch + rank):
            left, right = d, batch + rank
            # Axes of length 1 broadcast: equal left and right entries then share the one value.
            if array.shape[right] == 1:
                array = xp.squeeze(array, axis=right)
            elif array.shape[left] == 1:
                array = xp.moveaxis(xp.squeeze(array, axis=left), right - 1, left)
            else:
                array = xp.moveaxis(xp.linalg.diagonal(xp.moveaxis(array, (left, right), (-2, -1))), -1, left)
        return PerPair(array, self.pair._replace(tied=True), self.left, self.right)


def mapped_left(
    op: Op, matrices: list[Block], blocks: list[PerPair], lefts: list[Index], right: Index, options: dict
) -> PerPair:
    """Apply a linear map to the left index of free blocks; a contraction has a matrix before them.

    The right index becomes one trailing axis, which the operations of the language treat as sample points.
    """
    pair, arrays = blocks[0].pair, [b.ranked(len(x), len(right)) for b, x in zip(blocks, lefts, strict=True)]
    xp, batch = array_namespace(*arrays), pair.batch
    inner = tuple(max(a.shape[a.ndim - len(right) + k] for a in arrays) for k in range(len(right)))
    operands = [*matrices]
    for array, left in zip(arrays, lefts, strict=True):
        full = xp.broadcast_to(array, (*array.shape[:batch], *left, *inner))
        operands.append(Block(xp.reshape(full, (*array.shape[:batch], *left, prod(inner))), len(left), True))
    out = op.run(*operands, **options)
    array = xp.reshape(out.array, (*out.array.shape[:batch], *out.index, *inner))
    return PerPair(array, pair, out.rank, len(right))
