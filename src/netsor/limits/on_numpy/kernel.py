"""A kernel matrix in NumPy, tile by tile.

A run computes what belongs to single inputs, then the tiles on all cores. Whether a tile is finite is seen
while it is in the cache.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from netsor.limits.assembly import Place
from netsor.limits.finite import finite
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.on_numpy.recording import Recording, Tiles
from netsor.threads import helpers, one_blas_thread

__all__ = ["run", "single_values"]

KEPT = 2**24  # bytes of an array whose memory stays with the process, more than those of a tile have


def run(
    recording: Recording, given: Mapping[str, Any], dtype: Any, repeats: int, advance: Callable[[], None]
) -> np.ndarray:
    """(repeats, rows, columns) of the kernel of a recording, all of them finite, or there is no limit."""
    _keep_memory()
    shape = (repeats, recording.rows.left_size, recording.rows.right_size)
    filled = all(between.writer.corner for between in recording.betweens)  # each entry is one of a tile
    out = np.empty(shape, dtype) if filled else np.zeros(shape, dtype)
    jobs = [(tiles, place) for tiles in recording.tiles for place in tiles.places]
    jobs.sort(key=lambda job: job[1].rows == job[1].cols)  # those without a mirror image take less, so last
    workers = min(recording.workers, len(jobs))
    with one_blas_thread():
        singles = single_values(recording.single, given)
        sure = _run_all(out, singles, jobs, workers, advance)
    for o, array in recording.own.items():
        rows = recording.rows.left[o]
        values, there = np.broadcast_to(singles[array.step], (repeats, *rows.shape)), rows >= 0
        out[:, rows[there], rows[there]] = finite(values[:, there])
    for (o, p), array in recording.noisy.items():
        left, right = recording.rows.left[o], recording.rows.right[p]
        sides = left.reshape(len(left), -1, 1), right.reshape(len(right), 1, -1)
        lines, columns = np.broadcast_arrays(*sides)
        shape = (repeats, len(left), *left.shape[1:], *right.shape[1:])
        values = np.broadcast_to(singles[array.step], shape).reshape(repeats, *lines.shape)
        there = (lines >= 0) & (columns >= 0)
        out[:, lines[there], columns[there]] = finite(values[:, there])
    return out if sure else finite(out)  # what was not may have been written over


def single_values(prepared: Prepared, given: Mapping[str, Any]) -> dict[int, Any]:
    """What belongs to single inputs; if the tape is for fewer of them, some at a time."""
    tape = prepared.tape
    names = tape.names()
    cut = {name: shape[0] for name, shape in names.items() if shape != np.shape(given[name])}
    parts = {name: -(-len(given[name]) // size) for name, size in cut.items()}
    if not parts:
        with np.errstate(all="ignore"):
            return dict(prepared.run(given))
    whose, found = tape.dependence(parts.keys()), {}
    for k in range(max(parts.values())):
        some, starts = dict(given), {}
        for name, size in cut.items():
            starts[name] = min(k * size, len(given[name]) - size)
            some[name] = given[name][starts[name] : starts[name] + size]
        with np.errstate(all="ignore"):
            for step, value in prepared.run(some):
                name = whose.get(step)
                if name is None or value.shape[1] == 1:
                    found[step] = value
                    continue
                if step not in found:
                    shape = (value.shape[0], len(given[name]), *value.shape[2:])
                    found[step] = np.empty(shape, value.dtype)
                found[step][:, starts[name] : starts[name] + value.shape[1]] = value
    return found


def _run_all(
    out: np.ndarray, singles: Mapping[int, Any], jobs: list[Any], workers: int, advance: Any
) -> bool:
    """All tiles on threads, this one among them, and whether they are surely finite.

    After an error or interrupt no further tile begins.
    """
    waiting, lock = deque(jobs), Lock()

    def work() -> bool:
        sure = True
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused in the end
                while job := taken():
                    sure &= _run(out, singles, *job)
                    with lock:
                        advance()
        finally:
            waiting.clear()
        return sure

    def taken() -> Any:
        with lock:
            return waiting.popleft() if waiting else None

    others = [helpers(workers - 1).submit(work) for _ in range(workers - 1)] if workers > 1 else []
    try:
        sure = work()
    finally:
        begun = [other for other in others if not other.cancel()]  # others found no thread free
        wait(begun)
    return all([sure, *(other.result() for other in begun)])


def _run(out: np.ndarray, singles: Mapping[int, Any], tiles: Tiles, place: Place) -> bool:
    """Compute one tile and write it into the matrix, all columns of an Output at once: is it finite?"""
    writer, rows, cols = tiles.between.writer, tiles.pair.rows, tiles.pair.cols
    assert rows is not None
    assert cols is not None
    missing = Counter(o for pairs in tiles.results.values() for o, _ in pairs)
    waiting: dict[int, dict[int, np.ndarray]] = {o: {} for o in missing}
    values, sure = tiles.prepared.run(singles, {cols: place.cols, rows: place.rows}), True
    for step, block in values:
        sure &= bool(np.isfinite(block.sum()))  # then all its numbers are
        for o, p in tiles.results[step]:
            waiting[o][p] = block
            missing[o] -= 1
            if not missing[o]:
                writer.write(out, o, waiting.pop(o), place)
    return sure


@cache
def _keep_memory() -> None:
    """Let the arrays of the next tile have the memory of the last one's.

    The malloc of Linux gives the memory of large arrays back to the system, which clears its pages before it
    gives them again: half the time of some kernels. Large are those above the largest that was ever freed.
    """
    np.empty(KEPT, np.uint8)
