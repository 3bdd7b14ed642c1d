"""Sums over long windows along the diagonals of two axes, or along one axis, at a cost that does not grow.

Outputs are cut into blocks as long as the window. A window that starts in a block is the end of that block
and the beginning of the next one, so running sums, backwards through the one and forwards through the other,
make three additions per entry for windows of any length (van Herk 1992, Gil and Werman 1993, for maxima).
Nothing is subtracted: a sum has the rounding errors of its own terms, and only those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from netsor.limits.windows.shifts import Window

__all__ = ["sliding_sum"]


def sliding_sum(block: np.ndarray, windows: list[Window]) -> np.ndarray:
    """The sum over equal windows that move along one or two axes together.

    Running sums are kept by diagonal: all rows add to one line, each a place further to the left.
    """
    axes, length, left = [w.axis for w in windows], windows[0].kernel, windows[0].left
    last, step = windows[0].size - 1, len(axes) - 1
    shape, lines = list(block.shape), list(block.shape)
    for w in windows:
        shape[w.axis] = w.count
    lines[axes[0]], lines[axes[-1]] = 1, 1 if step == 0 else lines[axes[-1]] + last
    made, summed = np.empty(shape, block.dtype), np.empty(lines, block.dtype)
    rows, out, (line,) = (np.moveaxis(array, axes, range(len(axes))) for array in (block, made, summed))

    def add(i: int) -> None:
        if 0 <= i <= last:
            part = line[(last - i) * step :][: rows.shape[1]]
            np.add(part, rows[i], out=part)

    def sums(o: int) -> np.ndarray:
        return line[(last - o) * step :][: out.shape[1]]

    for start in range(0, len(out), length):
        outputs = range(start, min(start + length, len(out)))
        line[...] = 0
        for o in reversed(range(start, start + length)):
            add(o - left)
            if o in outputs:
                out[o] = sums(o)
        line[...] = 0
        for o in outputs[1:]:
            add(o - left + length - 1)
            out[o] += sums(o)
    return made
