"""How the pairs of inputs are cut into tiles whose largest array fits the cache."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

from netsor.limits.assembly import Place
from netsor.limits.tape.tape import Span

__all__ = ["TILE", "Cut", "equal_parts", "parts", "side_of", "strips", "tiles"]

TILE = 2**16  # elements of the largest array of a tile
STRIP, STRIPS = 2**15, 3  # elements of that array for all pairs that make a strip of rows pay; how many do


@dataclass(frozen=True)
class Cut:
    """How a large kernel is cut, so that a part of it can have the same numbers to the last bit.

    rows, cols   inputs of a tile, of either side
    inputs       of the whole kernel
    compiled     whether loops are compiled
    """

    rows: int
    cols: int
    inputs: int
    compiled: bool

    def tiles(self, left: Span, right: Span, symmetric: bool) -> list[Place]:
        """The tiles of a part that begins where one of the whole does."""
        rows, cols = parts(left, self.rows), parts(right, self.cols)
        return _grid(rows, cols, symmetric)


def side_of(elements: int, size: int = TILE) -> int:
    """How many inputs of either side make a tile of so many elements, with so many for each pair."""
    return max(1, isqrt(size // elements))


def equal_parts(span: Span, step: int) -> list[tuple[Span, int]]:
    """Equal parts of a span, at most so long; the last one overlaps the one before it by so many."""
    count = span[1] - span[0]
    return parts(span, -(-count // -(-count // step)))


def parts(span: Span, step: int) -> list[tuple[Span, int]]:
    """Parts of a span, all of them so long; the last one overlaps the one before it by so many."""
    start, stop = span
    step = min(step, stop - start)
    firsts = [(min(a, stop - step), a) for a in range(start, stop, step)]
    return [((first, first + step), a - first) for first, a in firsts]


def tiles(left: Span, right: Span, step: int, symmetric: bool) -> list[Place]:
    """The tiles of all pairs, or of those on and above the diagonal."""
    return _grid(equal_parts(left, step), equal_parts(right, step), symmetric)


def _grid(rows: list[tuple[Span, int]], cols: list[tuple[Span, int]], symmetric: bool) -> list[Place]:
    return [
        Place(x, y, (i, j)) for k, (x, i) in enumerate(rows) for y, j in (cols[k:] if symmetric else cols)
    ]


def strips(span: Span, size: int) -> list[Place]:
    """Equal parts of the rows of a small symmetric block, from the diagonal to the right.

    They leave out most of one half. `size` are the elements of the largest array of all pairs.
    """
    start, stop = span
    parts = min(STRIPS, 1 + size // STRIP, stop - start)
    cuts = pairwise(start + (stop - start) * k // parts for k in range(parts + 1))
    return [Place(rows, (rows[0], stop)) for rows in cuts]
