"""Arrays over inputs: quantities of single inputs, and blocks over pairs of inputs.

A `PerInput` has axes (repeats, inputs, index...). Repeats are the independent randomisations of a sampled
limit (one if nothing is sampled). An axis of length 1 stands for values that do not depend on it.

A `Pair` says which inputs are on the left and on the right: the same input twice (a *self* block), or every
input of one group with every input of another (a *cross* block). Its batch axes are (repeats, inputs) or
(repeats, left inputs, right inputs). A `PerPair` has axes (batch..., left index..., right index...). If the
pair is *tied*, it has axes (batch..., index...): only the entries where left and right index are equal.

Arrays carry their axes with them: sums and products of blocks of different ranks align by themselves.
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
    if rank == target:
        return array
    shape = array.shape
    new = (*shape[:batch], *(1,) * (target - rank), *shape[batch:])
    return array_namespace(array).reshape(array, new)


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
    """One input as left and right (`same`), or all inputs of one group with all inputs of another.

    `rows` and `cols` select a tile of the inputs, as (start, stop). The steps on `tape` are recorded once for
    all tiles of these sizes. Without `rows` and `cols`, the pair means all inputs.
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

    def left(self, x: PerInput) -> PerPair:
        """Return a quantity of the left inputs as a block."""
        return PerPair(x.array if self.same else self._side(x.array, self.rows, 1), self, x.rank, 0)

    def right(self, x: PerInput) -> PerPair:
        """Return a quantity of the right inputs as a block."""
        return PerPair(x.array if self.same else self._side(x.array, self.cols, 2), self, 0, x.rank)

    def side(self, side: int, x: PerInput) -> PerPair:
        return self.left(x) if side == 0 else self.right(x)

    def _side(self, array: Array, span: Span | None, axis: int) -> Array:
        """Return an array (repeats, inputs, ...) with its inputs on axis 1 or 2 of a block."""
        if self.tape is not None and span is not None:
            return self.tape.side(array, span, axis)
        return array[:, :, None, ...] if axis == 1 else array[:, None, ...]

    def shared(self, array: Array) -> Array:
        """Return an array or a number that is the same for all tiles."""
        if self.tape is None or not hasattr(array, "shape"):
            return array
        return self.tape.shared(array)


@dataclass(frozen=True)
class PerPair:
    """A block over pairs of inputs, with `left` and `right` index axes for the two sides."""

    array: Array
    pair: Pair
    left: int
    right: int

    def ranked(self, left: int, right: int) -> Array:
        """Return the array with axes of length 1 in front of its index axes, up to these ranks."""
        if (left, right) == (self.left, self.right):
            return self.array
        batch, shape = self.pair.batch, self.array.shape
        if self.pair.tied:
            return padded(self.array, batch, max(self.left, self.right), max(left, right))
        ours, theirs = shape[batch : batch + self.left], shape[batch + self.left :]
        new = (*shape[:batch], *(1,) * (left - self.left), *ours, *(1,) * (right - self.right), *theirs)
        return array_namespace(self.array).reshape(self.array, new)

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
        heads = [0, 2, 1] if self.pair.batch == 3 else [0, 1]
        index_axes = list(range(self.pair.batch, self.array.ndim))
        if not self.pair.tied:
            index_axes = index_axes[self.left :] + index_axes[: self.left]
        order = tuple(heads + index_axes)
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
    return PerPair(
        xp.reshape(out.array, (*out.array.shape[:batch], *out.index, *inner)), pair, out.rank, len(right)
    )
