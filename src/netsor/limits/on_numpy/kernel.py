"""A kernel matrix in NumPy, tile by tile.

A run computes the quantities of single inputs, then the tiles on all cores. Each tile is checked for
infinities while it is in the cache.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from netsor.limits.assembly import Tile
from netsor.limits.error_probes import Probe
from netsor.limits.finite import finite
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.on_numpy.recording import Recording, Tiles
from netsor.threads import helpers, one_blas_thread

KEPT = 2**24  # bytes of an array whose memory the process keeps: more than any array of a tile


def run(
    recording: Recording,
    given: Mapping[str, Any],
    dtype: Any,
    repeats: int,
    advance: Callable[[], None],
    probe: Probe | None = None,
) -> np.ndarray:
    """Return the kernel of a recording, (repeats, rows, columns); raise LimitError if it is not finite.

    A probe perturbs the steps by their error bounds.
    """
    _keep_memory()
    shape = (repeats, recording.rows.left_size, recording.rows.right_size)
    filled = all(between.writer.corner for between in recording.betweens)  # whether tiles cover all entries
    out = np.empty(shape, dtype) if filled else np.zeros(shape, dtype)
    jobs = [(tiles, place) for tiles in recording.tiles for place in tiles.places]
    # Diagonal tiles have no mirror image to write and are short, so they fill the gaps at the end.
    jobs.sort(key=lambda job: job[1].rows == job[1].cols)
    workers = min(recording.workers if probe is None else recording.probing_workers, len(jobs))
    with one_blas_thread():
        singles = single_values(recording.single, given, probe)
        sure = _run_all(out, singles, jobs, workers, advance, probe)
    for o, array in recording.variances.items():
        rows = recording.rows.left[o]
        _overwrite(out, rows, rows, np.broadcast_to(singles[array.step], (repeats, *rows.shape)))
    for (o, p), array in recording.noisy.items():
        left, right = recording.rows.left[o], recording.rows.right[p]
        lines, columns = np.broadcast_arrays(left.reshape(len(left), -1, 1), right.reshape(len(right), 1, -1))
        shape = (repeats, len(left), *left.shape[1:], *right.shape[1:])
        _overwrite(out, lines, columns, np.broadcast_to(singles[array.step], shape))
    return out if sure else finite(out)  # an entry that was not finite may have been overwritten


def _overwrite(out: np.ndarray, lines: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
    """Write values (repeats, ...) to lines and columns of the kernel; -1 is not asked for."""
    there = (lines >= 0) & (columns >= 0)
    out[:, lines[there], columns[there]] = finite(values.reshape(len(values), *lines.shape)[:, there])


def single_values(prepared: Prepared, given: Mapping[str, Any], probe: Probe | None = None) -> dict[int, Any]:
    """Return the values of single inputs by step; compute them in batches if the tape is for fewer inputs."""
    prepared = prepared if probe is None else prepared.probing
    tape = prepared.tape
    sizes = {name: x.shape[0] for name, x in tape.inputs.items() if x.shape != np.shape(given[name])}
    if not sizes:
        with np.errstate(all="ignore"):
            return dict(prepared.run(given, None, probe))
    whose, values = tape.dependence(sizes), {}
    for k in range(max(-(-len(given[name]) // size) for name, size in sizes.items())):
        # The last batch overlaps the one before, so that all batches have the recorded size.
        starts = {name: min(k * size, len(given[name]) - size) for name, size in sizes.items()}
        batch = {**given, **{name: given[name][a : a + sizes[name]] for name, a in starts.items()}}
        with np.errstate(all="ignore"):
            for step, value in prepared.run(batch, None, probe):
                name = whose.get(step)
                if name is None or value.shape[1] == 1:
                    values[step] = value
                    continue
                if step not in values:
                    shape = (value.shape[0], len(given[name]), *value.shape[2:])
                    values[step] = np.empty(shape, value.dtype)
                values[step][:, starts[name] : starts[name] + value.shape[1]] = value
    return values


def _run_all(
    out: np.ndarray,
    singles: Mapping[int, Any],
    jobs: list[Any],
    workers: int,
    advance: Callable[[], None],
    probe: Probe | None,
) -> bool:
    """Run all tiles on threads, including this one; return whether all values are certainly finite.

    After an error or interrupt, no further tile begins.
    """
    waiting, lock = deque(jobs), Lock()

    def work() -> bool:
        sure = True
        try:
            with np.errstate(all="ignore"):  # values that are not finite are refused at the end
                while job := taken():
                    tiles, place = job
                    sure &= _run(out, singles, tiles, place, probe)
                    with lock:
                        advance()
        finally:
            waiting.clear()
        return sure

    def taken() -> Any:
        with lock:
            return waiting.popleft() if waiting else None

    futures = [helpers(workers - 1).submit(work) for _ in range(workers - 1)] if workers > 1 else []
    try:
        sure = work()
    finally:
        begun = [future for future in futures if not future.cancel()]  # the others never got a free thread
        wait(begun)
    return all([sure, *(future.result() for future in begun)])


def _run(out: np.ndarray, singles: Mapping[int, Any], tiles: Tiles, place: Tile, probe: Probe | None) -> bool:
    """Compute one tile, and write all columns of an Output at once; return whether all values are finite."""
    writer, rows, cols = tiles.between.writer, tiles.pair.rows, tiles.pair.cols
    assert rows is not None
    assert cols is not None
    missing = Counter(o for pairs in tiles.results.values() for o, _ in pairs)
    waiting: dict[int, dict[int, np.ndarray]] = {o: {} for o in missing}
    prepared = tiles.prepared if probe is None else tiles.prepared.probing
    values, sure = prepared.run(singles, {cols: place.cols, rows: place.rows}, probe), True
    for step, block in values:
        sure &= bool(np.isfinite(block.sum()))  # a finite sum has finite terms
        for o, p in tiles.results[step]:
            waiting[o][p] = block
            missing[o] -= 1
            if not missing[o]:
                writer.write(out, o, waiting.pop(o), place)
    return sure


@cache
def _keep_memory() -> None:
    """Reuse the memory of one tile's arrays for the next.

    The malloc of Linux returns the memory of large arrays to the system, which clears pages before it hands
    them out again. That takes half the time of some kernels. An array counts as large if it is larger than
    any array freed before, so free one that is large enough.
    """
    np.empty(KEPT, np.uint8)
