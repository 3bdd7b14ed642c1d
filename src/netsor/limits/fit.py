"""Quantities of single inputs, and blocks of smaller rank, as factors of a block over pairs of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.expect.hermite.series import Series
from netsor.limits.pairs import Pair, pad_index
from netsor.limits.tape import Span
from netsor.limits.traced import Traced, array_namespace

__all__ = ["Fit"]

Array = Any


@dataclass(frozen=True)
class Fit:
    """How quantities of one side or of both become factors of a block with given ranks."""

    pair: Pair
    tie: bool
    ranks: tuple[int, int]

    def left(self, array: Array, rank: int) -> Array:
        return self.one(0, array, rank)

    def right(self, array: Array, rank: int) -> Array:
        return self.one(1, array, rank)

    def one(self, side: int, array: Array, rank: int) -> Array:
        """A quantity (repeats, inputs, index...) of the left (0) or right (1) side."""
        batch = self.pair.batch
        array = (self.pair.left, self.pair.right)[side](array)
        if self.tie:
            return pad_index(array, batch, rank, max(self.ranks))
        array = pad_index(array, batch, rank, self.ranks[side])
        if side == 1:
            return pad_index(array, batch, self.ranks[1], sum(self.ranks))
        xp = array_namespace(array)
        return xp.reshape(array, (*array.shape, *(1,) * self.ranks[1]))

    def both(self, block: Array, i: int, j: int) -> Array:
        """A block of smaller ranks (i, j)."""
        batch, (a, b) = self.pair.batch, self.ranks
        if (i, j) == (a, b):
            return block
        if self.tie:
            return pad_index(block, batch, max(i, j), max(a, b))
        shape = block.shape
        left, right = shape[batch : batch + i], shape[batch + i :]
        new = (*shape[:batch], *(1,) * (a - i), *left, *(1,) * (b - j), *right)
        return array_namespace(block).reshape(block, new)

    def series(self, side: int, series: Any) -> Any:
        """The series of the left (0) or right (1) side, with the batch and index axes of the block."""
        pair, span = self.pair, (self.pair.rows, self.pair.cols)[side]
        if pair.same or pair.tape is None or span is None:
            if isinstance(series, Traced):
                shape = self.series_shape(side, series)
                kind = ("lifted series", side, self.ranks, self.tie, pair.same)
                return series.tape.call(
                    lambda s: self._lifted(side, s, None), (series,), shape, series.dtype, kind
                )
            return self._lifted(side, series, None if pair.same else span)
        read = pair.tape.reader(series)

        def tile(given: Any, spans: Mapping[Span, Span]) -> Series:
            return self._lifted(side, read(given), spans[span])

        name = series.step if isinstance(series, Traced) else id(series)
        kind = ("series", side, span, self.ranks, self.tie)
        shape = self.series_shape(side, series)
        return pair.tape.leaf((*kind, name), shape, pair.tape.dtype, tile, kind, (series,))

    def series_shape(self, side: int, series: Any) -> tuple[int, ...]:
        """The shape of the tails of such a series, for a tile of the pair."""
        span = (self.pair.rows, self.pair.cols)[side]
        own = series.shape if isinstance(series, Traced) else series.tail.shape
        shape = list(np.broadcast_to(np.int8(0), own)[self._index(side, own[1], None)].shape)
        if not self.pair.same and span is not None and shape[1 + side] > 1:
            shape[1 + side] = span[1] - span[0]
        return tuple(shape)

    def _lifted(self, side: int, series: Series, span: Span | None) -> Series:
        return series[self._index(side, series.tail.shape[1], span)]

    def _index(self, side: int, count: int, span: Span | None) -> tuple[Any, ...]:
        inputs = slice(None) if span is None or count == 1 else slice(*span)
        batch: list[Any] = [inputs] if self.pair.same else [inputs, None] if side == 0 else [None, inputs]
        own, other = self.ranks[side], self.ranks[1 - side]
        index: list[Any] = [slice(None)] * own
        if self.tie:
            index = [None] * (max(self.ranks) - own) + index
        else:
            index = index + [None] * other if side == 0 else [None] * other + index
        return (slice(None), *batch, *index)
