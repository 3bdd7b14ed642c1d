"""Blocks over pairs of inputs: the arrays that covariances and second moments live in.

A quantity of single inputs has axes (repeats, inputs, index...): repeats are the independent
randomisations of a sampled limit (one if nothing is sampled). Axes of length 1 stand for values that do
not depend on them.

A `Pair` says which inputs stand on the left and on the right: the same input twice (a *self* block), or
every input of one group with every input of another (a *cross* block). Its batch axes are (repeats,
inputs) or (repeats, left inputs, right inputs). A full block has axes (batch..., left index..., right
index...), a tied block (batch..., index...): there left and right index run together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from netsor.lang.blocks import Block
from netsor.lang.ops import Op
from netsor.lang.types import Index
from netsor.limits.tape.tape import Span, Tape
from netsor.limits.tape.traced import array_namespace, tape_of

__all__ = ["Pair", "apply_left", "diagonal", "outer", "pad_index", "swap"]


@dataclass(frozen=True)
class Pair:
    """Left and right are one input (`same`), or all inputs of one group with all of another.

    `rows` and `cols` select a tile of the inputs (start, stop). With a `tape` the block is recorded for any
    tile of these sizes, not computed.
    """

    same: bool
    rows: Span | None = None
    cols: Span | None = None
    tape: Tape | None = field(default=None, compare=False)

    @property
    def batch(self) -> int:
        """The number of batch axes."""
        return 2 if self.same else 3

    @property
    def flipped(self) -> Pair:
        return Pair(self.same, self.cols, self.rows, self.tape)

    def left(self, array: Any) -> Any:
        """A quantity of the left inputs with the batch axes of this pair."""
        return array if self.same else self._side(array, self.rows, 1)

    def right(self, array: Any) -> Any:
        """A quantity of the right inputs with the batch axes of this pair."""
        return array if self.same else self._side(array, self.cols, 2)

    def _side(self, array: Any, span: Span | None, axis: int) -> Any:
        """(repeats, inputs, ...) with its inputs on one of the axes 1 and 2."""
        if self.tape is not None and span is not None:
            return self.tape.side(array, span, axis)
        view = array[:, :, None, ...] if axis == 1 else array[:, None, ...]
        return view if span is None or array.shape[1] == 1 else _tile(view, axis, span)

    def lift(self, array: Any) -> Any:
        """An array or a number that is the same for all tiles."""
        if self.same or self.tape is None or not hasattr(array, "shape"):
            return array
        return self.tape.shared(array)

    def elementwise(self, fn: Callable[..., Any], *args: Any) -> Any:
        """A function that broadcasts its arguments, as one rule."""
        tape = tape_of(*args)
        return tape.rule(fn, *args) if tape else fn(*args)


def _tile(array: Any, axis: int, span: Span) -> Any:
    return array[(*(slice(None),) * axis, slice(*span), ...)]


def pad_index(array: Any, batch: int, rank: int, target: int) -> Any:
    """Put index axes of length 1 in front of the `rank` index axes that follow the batch axes."""
    if rank == target:
        return array
    shape = array.shape
    new = (*shape[:batch], *(1,) * (target - rank), *shape[batch:])
    return array_namespace(array).reshape(array, new)


def outer(left: Any, right: Any, batch: int, ranks: tuple[int, int], tie: bool) -> tuple[Any, Any]:
    """A quantity of the left index and one of the right index, ready to broadcast into a block.

    Both may have further axes behind the index (series coefficients); these stay last.
    """
    i, j = ranks
    if tie:
        target = max(i, j)
        return pad_index(left, batch, i, target), pad_index(right, batch, j, target)
    xp = array_namespace(left, right)
    a = left.shape
    left = xp.reshape(left, (*a[: batch + i], *(1,) * j, *a[batch + i :]))
    return left, pad_index(right, batch, j, i + j)


def swap(array: Any, batch: int, i: int, j: int, tie: bool) -> Any:
    """The same block with left and right exchanged; `i` and `j` are the ranks before."""
    xp = array_namespace(array)
    heads = [0, 2, 1] if batch == 3 else [0, 1]
    rest = list(range(batch, array.ndim))
    if not tie:
        rest = rest[i:] + rest[:i]
    order = tuple(heads + rest)
    return array if order == tuple(range(array.ndim)) else xp.permute_dims(array, order)


def diagonal(array: Any, batch: int, i: int, j: int) -> Any:
    """From a full block the entries where left and right index agree (axes of length 1 broadcast)."""
    xp = array_namespace(array)
    rank = max(i, j)
    shape = array.shape
    ones = ((1,) * (rank - i), (1,) * (rank - j))
    array = xp.reshape(
        array, (*shape[:batch], *ones[0], *shape[batch : batch + i], *ones[1], *shape[batch + i :])
    )
    for d in range(batch, batch + rank):
        left, right = d, batch + rank
        if array.shape[right] == 1:
            array = xp.squeeze(array, axis=right)
        elif array.shape[left] == 1:
            array = xp.moveaxis(xp.squeeze(array, axis=left), right - 1, left)
        else:
            array = xp.moveaxis(xp.linalg.diagonal(xp.moveaxis(array, (left, right), (-2, -1))), -1, left)
    return array


def apply_left(
    op: Op,
    arrays: list[Any],
    batch: int,
    lefts: list[Index],
    right: Index,
    attrs: dict,
    first: Block | None = None,
) -> Any:
    """A linear map on the left index of full blocks; `first` is the matrix of a contraction."""
    xp = array_namespace(*arrays)
    inner = tuple(max(a.shape[a.ndim - len(right) + k] for a in arrays) for k in range(len(right)))
    blocks = [] if first is None else [first]
    for array, left in zip(arrays, lefts, strict=True):
        full = xp.broadcast_to(array, (*array.shape[:batch], *left, *inner))
        flat = xp.reshape(full, (*array.shape[:batch], *left, prod(inner)))
        blocks.append(Block(flat, len(left), True))
    out = op.run(*blocks, **attrs)
    return xp.reshape(out.array, (*out.array.shape[:batch], *out.index, *inner))
