"""A large kernel matrix under JAX, tile after tile: one jax.lax.scan over pairs of a few inputs.

The arrays of a tile stay in the cache of the processor, and of one set of inputs half the pairs are enough.
For jax.grad a tile is computed again, so that it keeps nothing but the inputs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil, isqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.build.network import Group

if TYPE_CHECKING:
    from netsor.limits.methods.expectation import Record
    from netsor.limits.run import KernelRun

__all__ = ["scanned_matrix", "tile_of"]

Array = Any
LARGE, TILE = 2**20, 2**16  # elements of an array from which on there are tiles, and of an array of a tile


def tile_of(run: KernelRun, largest: int) -> tuple[int, int] | None:
    """How many inputs of either side make a tile, or None if all are one.

    largest  elements of the largest array of all pairs
    """
    left, right = _counts(run)
    if largest < LARGE or len(run.made.groups) > 1:
        return None
    most = max(1, isqrt(TILE * left * right // largest))
    tile = _even(left, most), _even(right, most)
    return None if tile == (left, right) else tile


def _counts(run: KernelRun) -> tuple[int, int]:
    inputs = sum(len(group.members) for group in run.made.groups)
    return (inputs, inputs) if run.split is None else (run.split, inputs - run.split)


def _even(count: int, most: int) -> int:
    return ceil(count / ceil(count / most))


def scanned_matrix(run: KernelRun, tile: tuple[int, int], record: Record, nudge: float) -> Array:
    """(rows, columns) of the kernel. The last tiles of a row or column reach back over those before them."""
    import jax  # type: ignore[import-not-found]
    from jax import lax

    counts, start = _counts(run), run.split or 0
    sizes = run.rows.left_size // counts[0], run.rows.right_size // counts[1]
    (group,), same = run.made.groups, run.split is None
    groups = (Group(tuple(range(sum(tile))), group.outputs),)

    def part(array: Array, row: Any, column: Any) -> Array:
        rows = lax.dynamic_slice_in_dim(array[: counts[0]], row, tile[0])
        return jax.numpy.concatenate([rows, lax.dynamic_slice_in_dim(array[start:], column, tile[1])])

    @partial(jax.checkpoint, prevent_cse=False)
    def block(*place: Any) -> Array:
        data = {name: part(a, *place) if name in run.batched else a for name, a in run.data.items()}
        made = replace(run.made, data=data, groups=groups)
        return replace(run, made=made, split=tile[0]).rolled(record, nudge)

    def step(matrix: Array, place: Array) -> tuple[Array, None]:
        made = block(*place)
        at = place[0] * sizes[0], place[1] * sizes[1]
        if same:
            made = jax.numpy.where(place[0] == place[1], (made + made.T) / 2, made)
            matrix = lax.dynamic_update_slice(matrix, made.T, at[::-1])
        return lax.dynamic_update_slice(matrix, made, at), None

    starts = [np.minimum(np.arange(0, n, t), n - t) for n, t in zip(counts, tile, strict=True)]
    places = np.array([(i, j) for i in starts[0] for j in starts[1] if j >= i or not same], np.int32)
    like = jax.eval_shape(block, *places[0])
    empty = jax.numpy.zeros((run.rows.left_size, run.rows.right_size), like.dtype)
    return lax.scan(step, empty, places)[0]
