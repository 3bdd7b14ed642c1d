"""Which rows of the kernel, and which inputs, a tile has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netsor.errors import DataError

__all__ = ["Axis", "Grid"]

Span = tuple[int, int]


@dataclass(frozen=True)
class Axis:
    """The rows (or columns) of a kernel, in equal parts.

    sizes  rows of each input
    chunk  rows of a part
    step   the inputs of a tile of the kernel's own: a part is computed with at least so many
    """

    sizes: np.ndarray
    chunk: int
    step: int

    @property
    def length(self) -> int:
        return int(self.sizes.sum())

    @property
    def count(self) -> int:
        return -(-self.length // self.chunk)

    def span(self, i: int) -> Span:
        """The rows of part i."""
        return i * self.chunk, min((i + 1) * self.chunk, self.length)

    def inputs(self, i: int) -> tuple[Span, Span]:
        """The inputs that part i is computed from, and where its rows are among theirs."""
        stops = np.cumsum(self.sizes)
        start, stop = self.span(i)
        first, last = (int(np.searchsorted(stops, row, "right")) for row in (start, stop - 1))
        first = max(0, min(first, last + 1 - self.step))
        begin = int(stops[first] - self.sizes[first])
        return (first, last + 1), (start - begin, stop - begin)


@dataclass(frozen=True)
class Grid:
    """The tiles of a kernel: all, or of a symmetric one those on and above the diagonal."""

    rows: Axis
    cols: Axis
    symmetric: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.length, self.cols.length

    def tiles(self) -> list[tuple[int, int]]:
        """All tiles, by columns: the upper left corner is complete first."""
        rows, cols = self.rows.count, self.cols.count
        return [(i, j) for j in range(cols) for i in range(min(rows, j + 1) if self.symmetric else rows)]

    def part(self, k: int, count: int) -> list[tuple[int, int]]:
        """Tiles of one of `count` processes that share the work."""
        if not 1 <= k <= count:
            raise DataError(f"part {k} of {count}", remedy="Parts are counted from 1: 1/8, 2/8, ..., 8/8.")
        return self.tiles()[k - 1 :: count]
