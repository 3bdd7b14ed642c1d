"""The rows of the kernel and the inputs that belong to each tile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netsor.errors import DataError

Tile = tuple[int, int]  # numbers of a tile along the rows and along the columns


@dataclass(frozen=True)
class Axis:
    """The rows (or columns) of a kernel in parts of equal length; the last one may be shorter."""

    sizes: np.ndarray  # (inputs,) number of rows of each input
    chunk: int  # number of rows of a part
    # Number of inputs of a tile of the kernel in memory: a part is computed with at least as many, so that
    # its numbers equal those of the matrix in memory.
    step: int

    @property
    def length(self) -> int:
        return int(self.sizes.sum())

    @property
    def count(self) -> int:
        return -(-self.length // self.chunk)

    def span(self, i: int) -> slice:
        """The rows of part i."""
        return slice(i * self.chunk, min((i + 1) * self.chunk, self.length))

    def inputs(self, i: int) -> tuple[tuple[int, int], slice]:
        """The first input of part i and the one after its last; its rows among those of these inputs."""
        # The borders of parts may cut the rows of an input in two.
        stops = np.cumsum(self.sizes)
        rows = self.span(i)
        first, last = (int(np.searchsorted(stops, row, "right")) for row in (rows.start, rows.stop - 1))
        first = max(0, min(first, last + 1 - self.step))
        begin = int(stops[first] - self.sizes[first])
        return (first, last + 1), slice(rows.start - begin, rows.stop - begin)


@dataclass(frozen=True)
class Grid:
    """The tiles of a kernel; for a symmetric kernel those on and above the diagonal."""

    rows: Axis
    cols: Axis
    symmetric: bool

    def tiles(self) -> list[Tile]:
        """All tiles, column by column, so that leading submatrices are complete first."""
        rows, cols = self.rows.count, self.cols.count
        return [(i, j) for j in range(cols) for i in range(min(rows, j + 1) if self.symmetric else rows)]

    def part(self, k: int, count: int) -> list[Tile]:
        """The tiles of process k = 1, ..., count of those that share the work."""
        if not 1 <= k <= count:
            raise DataError(f"part {k} of {count}", remedy="Parts are counted from 1: 1/8, 2/8, ..., 8/8.")
        return self.tiles()[k - 1 :: count]
