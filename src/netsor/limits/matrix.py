"""A kernel matrix from the blocks of its outputs: at once for any array library, or tile by tile in NumPy.

A tile is a block of pairs of inputs small enough for the cache. Its computation is recorded once on a
tape and run for all tiles on all cores; of a symmetric kernel only tiles on and above the diagonal are run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from netsor.limits.engine import Engine
from netsor.limits.fused import is_available
from netsor.limits.outputs import Rows, output_index, output_second
from netsor.limits.pairs import Pair, diagonal
from netsor.limits.tape import Span, Tape
from netsor.progress import bar

__all__ = ["diagonal_of_matrix", "tiled_matrix", "whole_matrix"]

Array = Any
TILE = 2**14  # elements of the largest array of a tile
FEWEST_ENTRIES = 2**20  # of all pairs; with fewer, loops are not compiled


# At once


def whole_matrix(engine: Engine, rows: Rows, repeats: int = 1) -> Array:
    """(repeats, rows, columns), by functions of the array API alone."""
    xp, owner = engine.xp, {o: r for r, group in enumerate(rows.groups) for o in group.outputs}
    left = [o for o, r in owner.items() if rows.spans(r)[0][0] < rows.spans(r)[0][1]]
    right = [p for p, s in owner.items() if rows.spans(s)[1][0] < rows.spans(s)[1][1]]
    done: dict[tuple[int, int], Array] = {}
    for o in left:
        for p in right:
            if rows.split is None and (p, o) in done:
                done[o, p] = xp.permute_dims(done[p, o], (0, 2, 1))
            else:
                pair = Pair(False, rows.spans(owner[o])[0], rows.spans(owner[p])[1])
                done[o, p] = _flat(engine, output_second(engine, o, p, pair), o, p, pair, repeats)
    matrix = xp.concat([xp.concat([done[o, p] for p in right], axis=2) for o in left], axis=1)
    for axis, tables in ((1, [rows.left[o] for o in left]), (2, [rows.right[p] for p in right])):
        order = np.argsort(np.concatenate([t[t >= 0].reshape(-1) for t in tables]))
        if not np.array_equal(order, np.arange(len(order))):
            matrix = xp.take(matrix, xp.asarray(order), axis=axis)
    return (matrix + xp.permute_dims(matrix, (0, 2, 1))) / 2 if rows.split is None else matrix


def diagonal_of_matrix(engine: Engine, rows: Rows) -> Array:
    """The variances of all outputs, from self blocks alone: linear in the number of inputs."""
    xp, parts, numbers = engine.xp, [], []
    for group in rows.groups:
        for o in group.outputs:
            index = output_index(engine.program, engine.program.outputs[o])
            block = output_second(engine, o, o, Pair(True))
            block = xp.broadcast_to(block, (1, block.shape[1], *index, *index))
            own = diagonal(block, 2, len(index), len(index))[0, ...]
            own = xp.broadcast_to(own, (len(group.members), *index))
            parts.append(xp.reshape(own, (-1,)))
            numbers.append(rows.left[o].reshape(-1))
    order = np.argsort(np.concatenate(numbers))
    return xp.take(xp.concat(parts), xp.asarray(order), axis=0)


def _flat(engine: Engine, block: Array, o: int, p: int, pair: Pair, repeats: int) -> Array:
    """(repeats, left inputs, right inputs, left index, right index) as (repeats, rows, columns)."""
    xp, outputs = engine.xp, engine.program.outputs
    left, right = (output_index(engine.program, outputs[k]) for k in (o, p))
    (a, b), (c, d) = pair.rows or (0, 0), pair.cols or (0, 0)
    full = xp.broadcast_to(block, (repeats, b - a, d - c, *left, *right))
    full = xp.moveaxis(full, 2, 2 + len(left))
    return xp.reshape(full, (repeats, (b - a) * prod(left), (d - c) * prod(right)))


# Tile by tile


@dataclass(frozen=True)
class Tiles:
    """Equal tiles of pairs of inputs of two groups; the last ones overlap those before them."""

    outputs: tuple[tuple[int, ...], tuple[int, ...]]
    pair: Pair
    places: list[tuple[Span, Span]]
    mirrored: bool  # whether a tile may reach below the diagonal
    elements: int  # of the largest array, per pair of inputs


def tiled_matrix(
    engine: Engine, rows: Rows, dtype: Any, *, workers: int | None = None, progress: bool | None = None
) -> np.ndarray:
    """(rows, columns) of an exact kernel in NumPy."""
    out = np.zeros((rows.left_size, rows.right_size), dtype)
    workers = workers or os.cpu_count() or 1
    plans = [(tiles, _record(engine, tiles)) for tiles in _all_tiles(engine, rows)]
    jobs = [(tiles, recorded, place) for tiles, recorded in plans for place in tiles.places]
    with bar(progress, len(jobs), "computing the kernel") as advance:
        if workers == 1 or len(jobs) == 1:
            for job in jobs:
                _run(out, rows, *job)
                advance()
        else:
            _run_all(out, rows, jobs, workers, advance)
    if rows.split is None:
        _mirror(out)
    return out


def _run_all(out: np.ndarray, rows: Rows, jobs: list[Any], workers: int, advance: Any) -> None:
    pool = ThreadPoolExecutor(workers)
    try:
        for done in [pool.submit(_run, out, rows, *job) for job in jobs]:
            done.result()
            advance()
    finally:
        pool.shutdown(cancel_futures=True)


def _all_tiles(engine: Engine, rows: Rows) -> Iterator[Tiles]:
    """Tiles of all pairs of groups; with one set of inputs, those on and above the diagonal."""
    symmetric = rows.split is None
    for r in range(len(rows.groups)):
        for s in range(r if symmetric else 0, len(rows.groups)):
            outputs = (rows.groups[r].outputs, rows.groups[s].outputs)
            left, right = rows.spans(r)[0], rows.spans(s)[1]
            if left[0] == left[1] or right[0] == right[1]:
                continue
            elements = _elements(engine, outputs)
            step = max(1, int(np.sqrt(TILE / elements)))
            a, b = _starts(left, step), _starts(right, step)
            if symmetric and r == s:
                yield Tiles(outputs, Pair(False, a[0], a[0]), [(x, x) for x in a], True, elements)
                places = [(x, y) for k, x in enumerate(a) for y in a[k + 1 :]]
                if places:
                    yield Tiles(outputs, Pair(False, a[0], a[-1]), places, False, elements)
            else:
                pair = Pair(False, a[0], (b[-1][0] + right[1], b[-1][1] + right[1]))
                yield Tiles(outputs, pair, [(x, y) for x in a for y in b], symmetric, elements)


def _elements(engine: Engine, outputs: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    """The size of the largest array that a pair of inputs needs."""
    tape = Tape()
    output_second(engine, outputs[0][-1], outputs[1][-1], Pair(False, (0, 1), (1, 2), tape))
    engine.forget_tile()
    return tape.largest


def _starts(span: Span, step: int) -> list[Span]:
    start, stop = span
    step = min(step, stop - start)
    return [(min(a, stop - step), min(a, stop - step) + step) for a in range(start, stop, step)]


@dataclass(frozen=True)
class Recorded:
    """A tape with the outputs that each of its results is for."""

    tape: Tape
    places: dict[int, list[tuple[int, int]]]


def _record(engine: Engine, tiles: Tiles) -> Recorded:
    tape = Tape(compiled=_is_worth_compiling(tiles))
    pair = Pair(False, tiles.pair.rows, tiles.pair.cols, tape)
    results, places = [], {}
    diagonal = pair.rows == pair.cols
    for o in tiles.outputs[0]:
        for p in tiles.outputs[1]:
            if not diagonal or p >= o:
                block = output_second(engine, o, p, pair)
                results.append(block)
                places.setdefault(block.step, []).append((o, p))
    engine.forget_tile()
    tape.prepare(results)
    engine.expectations.record.compiled |= tape.compiled
    return Recorded(tape, places)


def _is_worth_compiling(tiles: Tiles) -> bool:
    """Whether there is so much to do that a second spent on compiling loops is won back."""
    assert tiles.pair.rows is not None
    assert tiles.pair.cols is not None
    pairs = (tiles.pair.rows[1] - tiles.pair.rows[0]) * (tiles.pair.cols[1] - tiles.pair.cols[0])
    return is_available() and len(tiles.places) * pairs * tiles.elements > FEWEST_ENTRIES


def _run(out: np.ndarray, rows: Rows, tiles: Tiles, recorded: Recorded, place: tuple[Span, Span]) -> None:
    """Compute one tile and write it into the matrix, all columns of an Output at once."""
    assert tiles.pair.rows is not None
    assert tiles.pair.cols is not None
    missing = Counter(o for pairs in recorded.places.values() for o, _ in pairs)
    waiting: dict[int, dict[int, np.ndarray]] = {o: {} for o in missing}
    results = recorded.tape.run({tiles.pair.cols: place[1], tiles.pair.rows: place[0]})
    for step, block in _quietly(results):
        for o, p in recorded.places[step]:
            left, right = rows.left[o], rows.right[p]
            shape = (place[0][1] - place[0][0], place[1][1] - place[1][0], *left.shape[1:], *right.shape[1:])
            full = np.moveaxis(np.broadcast_to(block[0], shape), 1, left.ndim)
            waiting[o][p] = full.reshape(shape[0] * prod(left.shape[1:]), shape[1], -1)
            missing[o] -= 1
            if not missing[o]:
                _put(out, rows, o, waiting.pop(o), place, tiles.mirrored)


def _put(
    out: np.ndarray,
    rows: Rows,
    o: int,
    blocks: dict[int, np.ndarray],
    place: tuple[Span, Span],
    mirrored: bool,
) -> None:
    """Write the blocks (rows, inputs, columns) of an Output with several others, and their mirror image."""
    inputs = place[1][1] - place[1][0]
    columns = [rows.right[p][slice(*place[1])].reshape(inputs, -1) for p in blocks]
    joined = np.concatenate(list(blocks.values()), axis=2)
    joined = joined.reshape(len(joined), -1)
    where = (_numbers(rows.left[o][slice(*place[0])]), _numbers(np.concatenate(columns, axis=1)))
    _write(out, where, joined)
    if mirrored:
        _write(out, where[::-1], joined.T)


def _quietly(results: Iterator[Any]) -> Iterator[Any]:
    """Without warnings, also in the threads of a pool: what is not finite is refused in the end."""
    with np.errstate(all="ignore"):
        yield from results


def _write(out: np.ndarray, where: tuple[Any, Any], block: np.ndarray) -> None:
    if isinstance(where[0], slice) and isinstance(where[1], slice):
        out[where] = block
    else:
        out[np.ix_(*(np.arange(out.shape[k])[w] for k, w in enumerate(where)))] = block


def _numbers(table: np.ndarray) -> Any:
    """Row numbers as a slice if they are evenly spaced."""
    flat = table.reshape(-1)
    step = int(flat[1] - flat[0]) if len(flat) > 1 else 1
    if step > 0 and np.array_equal(flat, flat[0] + step * np.arange(len(flat))):
        return slice(int(flat[0]), int(flat[-1]) + 1, step)
    return flat


def _mirror(out: np.ndarray, step: int = 512) -> None:
    """Copy what is above the diagonal below it, so that the matrix is symmetric to the last bit."""
    for a in range(0, len(out), step):
        rows = slice(a, a + step)
        upper = np.triu(out[rows, rows])
        out[rows, rows] = upper + np.triu(upper, 1).T
        out[a + step :, rows] = out[rows, a + step :].T
