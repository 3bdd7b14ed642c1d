"""A kernel matrix from the blocks of its outputs, all at once, in any array library."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from netsor.limits.recursion.engine import Engine
from netsor.limits.recursion.outputs import Rows, output_index, output_second
from netsor.limits.recursion.pairs import Pair, diagonal

__all__ = ["diagonal_of_matrix", "whole_matrix"]

Array = Any


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
