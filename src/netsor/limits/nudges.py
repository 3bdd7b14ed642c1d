"""How far the errors of a kernel's parts move it: those of methods, and rounding where sums may cancel.

It is computed again with all errors of methods added, and, where these are above the rounding, a few more
times with some of them added and some subtracted: where a program subtracts, errors that all go upwards
cancel. Where it adds up what is not independent, the result may be smaller than its parts, and their rounding
counts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from netsor.lang.libraries import is_traced
from netsor.limits.notes import Notes

__all__ = ["DOWN", "NUDGE", "STILL", "TURN", "Nudge", "chances", "changes", "farthest", "nudged"]

NUDGE = "nudge"  # the number that says by how many of its error bounds every inexact number is moved
TURN = "turn"  # and the one that says which go up and which down; all go up if it is 0
Nudge = dict[str, float]
STILL: Nudge = {NUDGE: 0.0, TURN: 0.0}
UP: Nudge = {NUDGE: 1.0, TURN: 0.0}
DOWN: Nudge = {NUDGE: -1.0, TURN: 0.0}  # of gaps: layers of jumps take e to sqrt(e), so 0 is furthest from e
BY_TURNS: tuple[Nudge, ...] = tuple(  # the second is the first backwards: a variance near 0 is positive once
    {NUDGE: nudge, TURN: turn} for nudge, turn in ((1.0, 1e4), (-1.0, 1e4), (1.0, 1.3e4), (1.0, 1.7e4))
)
SILENT = 2  # of these change nothing, then the others are left out; one of them may by chance

MIX = 0x9E3779B97F4A7C15  # an odd number whose products have all digits mixed in their highest


def nudged(value: Any, error: Any, nudge: Any, turn: Any) -> Any:
    """Numbers moved by their error bounds.

    How far and where to depends on their first digits: equal numbers move alike, wherever they are computed,
    opposite ones oppositely, and others as if by chance.
    """
    if is_traced(error) or not turn:
        return value + nudge * error
    sizes = np.where(value == 0, 1.0, np.abs(value))
    return value + nudge * np.sign(value) * np.cos(turn * np.log(sizes)) * error


def chances(value: np.ndarray, turn: Any) -> np.ndarray:
    """Numbers of variance 1/2 by all digits of others, as rounding is; the same for opposite ones."""
    bits = value.view(np.uint64 if value.itemsize == 8 else np.uint32) << np.uint8(1)  # without the sign
    mixed = bits.astype(np.uint64, copy=False) * np.uint64(MIX * (2 * int(turn) + 1) % 2**64)
    return (mixed >> np.uint64(11)).astype(value.dtype) * (6**0.5 * 2.0**-53) - 1.5**0.5


def changes(
    change: Callable[[Nudge], np.ndarray], notes: Notes, counts: Callable[[Any], bool]
) -> Iterator[tuple[Nudge, np.ndarray]]:
    """The changes of a kernel that are needed to know its error, one at a time.

    change  of the kernel by a nudge
    counts  whether an error of a number, or of entries, is above the allowance for rounding
    """
    if notes.inexact:
        yield UP, change(UP)
    some = counts(notes.largest_error)
    if some or notes.cancels:
        for k, nudge in enumerate(BY_TURNS):
            found = change(nudge)
            some = some or counts(found)
            if some:
                yield nudge, found
            elif k + 1 == SILENT:
                return
            del found  # it is as large as the kernel


def farthest(some: Iterable[tuple[Nudge, np.ndarray]]) -> np.ndarray | None:
    """An error from changes: twice the one upwards, the one downwards, or three deviations of those by turns.

    The changes are overwritten.
    """
    error = total = None
    count = 0
    for nudge, change in some:
        if not nudge[TURN]:
            size = np.abs(change, out=change)
            size *= 2 if nudge == UP else 1
            error = size if error is None else np.maximum(error, size, out=error)
        else:
            total, count = np.hypot(0.0 if total is None else total, change, out=change), count + 1
    if total is None:
        return error
    total *= 3 * np.sqrt(2 / count)  # the square of a cosine is a half on average
    return total if error is None else np.maximum(error, total, out=error)
