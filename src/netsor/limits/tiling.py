"""Tiles of the pairs of inputs, whose largest array fits into the cache."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

from netsor.limits.assembly import Tile
from netsor.limits.tape.tape import Span

TILE = 2**16  # elements of the largest array of a tile: a few of these arrays fit into the cache
STRIP = 2**15  # elements of the largest array per strip: with fewer, calls take longer than arithmetic
STRIPS = 3  # three strips leave out a third of the pairs, four little more


@dataclass(frozen=True)
class Cut:
    """The tiles of a large kernel: with them, a part has the same numbers as the whole, to the last bit."""

    rows: int  # number of inputs of a tile, on either side
    cols: int
    inputs: int  # number of inputs of the whole kernel
    compiled: bool  # whether loops over pairs are compiled
    singles: bool = True  # whether loops over single inputs are compiled

    def tiles(self, left: Span, right: Span, symmetric: bool) -> list[Tile]:
        """Return the tiles of a part of the kernel whose first row and column begin a tile."""
        return _grid(chunks(left, self.rows), chunks(right, self.cols), symmetric)


def side_of(elements: int, size: int = TILE) -> int:
    """Return the number of inputs on either side of a tile of `size` elements, with `elements` per pair."""
    return max(1, isqrt(size // elements))


def chunks(span: Span, step: int) -> list[tuple[Span, int]]:
    """Return (span, overlap with the span before) of chunks of length `step`; only the last one overlaps."""
    start, stop = span
    step = min(step, stop - start)
    firsts = [(min(a, stop - step), a) for a in range(start, stop, step)]
    return [((first, first + step), a - first) for first, a in firsts]


def tiles(left: Span, right: Span, step: int, symmetric: bool) -> list[Tile]:
    """Return equal tiles, with sides up to `step`, of all pairs or of those on and above the diagonal."""
    counts = left[1] - left[0], right[1] - right[0]
    rows, columns = (-(-count // -(-count // step)) for count in counts)
    return _grid(chunks(left, rows), chunks(right, columns), symmetric)


def _grid(rows: list[tuple[Span, int]], cols: list[tuple[Span, int]], symmetric: bool) -> list[Tile]:
    return [Tile(x, y, (i, j)) for k, (x, i) in enumerate(rows) for y, j in (cols[k:] if symmetric else cols)]


def strips(span: Span, size: int) -> list[Tile]:
    """Return strips of rows of a small symmetric block of `size` elements, each from the diagonal on."""
    start, stop = span
    count = min(STRIPS, 1 + size // STRIP, stop - start)
    rows = pairwise(start + (stop - start) * k // count for k in range(count + 1))
    return [Tile(span, (span[0], stop)) for span in rows]
