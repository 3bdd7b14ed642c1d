"""A kernel matrix under jax.jit, jax.grad and jax.vmap.

What is recorded is written as a few batched operations and loops (`rolled`). A large kernel is computed tile
after tile, in one jax.lax.scan over pairs of a few inputs: their arrays stay in the cache of the processor,
and of one set of inputs half the pairs are enough. For jax.grad a tile is computed again, so that it keeps
nothing but the inputs. What cannot be recorded for JAX is a callback (`differences`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from netsor.build.network import Group
from netsor.limits.assembly import Rows, gathered
from netsor.limits.blocks import Recorded, recorded_blocks
from netsor.limits.computation import Computation
from netsor.limits.on_jax.differences import differenced_kernel
from netsor.limits.on_jax.rolled import Values
from netsor.limits.tape.batches import schedule
from netsor.limits.tiling import side_of, tiles

__all__ = ["traced_kernel"]

Array = Any
LARGE = 2**20  # elements of an array from which on there are tiles


def traced_kernel(computation: Computation, data: Mapping[str, Any], params: Mapping[str, Any]) -> Array:
    """(rows, columns) of the kernel."""
    found = recorded_blocks(partial(computation.recorder, traced=True), computation.rows)
    if not isinstance(found, Recorded):
        return differenced_kernel(computation, data, params)
    counts = _counts(computation)
    noise = computation.program.noise  # of an input with itself: tiles have two sets of inputs
    if found.largest >= LARGE and len(computation.made.groups) == 1 and not noise:
        side = side_of(max(1, found.largest // (counts[0] * counts[1])))
        if side < max(counts):
            return _in_tiles(computation, data, params, side)
    return _whole(found, computation.rows, {**data, **params})


def _counts(computation: Computation) -> tuple[int, int]:
    """The inputs that are rows, and those that are columns."""
    inputs, split = sum(len(group.members) for group in computation.made.groups), computation.rows.split
    return (inputs, inputs) if split is None else (split, inputs - split)


def _whole(found: Recorded, rows: Rows, given: Mapping[str, Array]) -> Array:
    values = Values(found.graph, given)
    for part in schedule(found.graph):
        values.run(part)
    nodes = dict(zip(found.pairs, found.graph.outputs, strict=True))

    def shape(node: int) -> tuple[int, ...]:
        array, at = values.known[node]
        return tuple(array.shape if at is None else array.shape[1:])

    shapes = {pair: shape(node) for pair, node in nodes.items()}
    return gathered(values.jnp, rows, shapes, lambda pairs: values.many([nodes[pair] for pair in pairs]))


def _in_tiles(c: Computation, data: Mapping[str, Any], params: Mapping[str, Any], side: int) -> Array:
    """The last tiles of a row or column reach back over those before them."""
    import jax  # type: ignore[import-not-found]
    from jax import lax

    counts, start, rows = _counts(c), c.rows.split or 0, c.rows
    places = tiles((0, counts[0]), (0, counts[1]), side, rows.symmetric)
    tile = places[0].counts
    sizes = rows.left_size // counts[0], rows.right_size // counts[1]
    groups = (Group(tuple(range(sum(tile))), c.made.groups[0].outputs),)

    def part(array: Array, row: Any, column: Any) -> Array:
        ours = lax.dynamic_slice_in_dim(array[: counts[0]], row, tile[0])
        return jax.numpy.concatenate([ours, lax.dynamic_slice_in_dim(array[start:], column, tile[1])])

    @partial(jax.checkpoint, prevent_cse=False)
    def block(*place: Any) -> Array:
        some = {name: part(a, *place) if name in c.batched else a for name, a in data.items()}
        own = Computation(replace(c.made, data=some, groups=groups), c.options, c.params, tile[0])
        found = recorded_blocks(partial(own.recorder, traced=True), own.rows)
        assert isinstance(found, Recorded)
        return _whole(found, own.rows, {**some, **params})

    def step(matrix: Array, place: Array) -> tuple[Array, None]:
        made = block(*place)
        at = place[0] * sizes[0], place[1] * sizes[1]
        if rows.symmetric:
            made = jax.numpy.where(place[0] == place[1], (made + made.T) / 2, made)
            matrix = lax.dynamic_update_slice(matrix, made.T, at[::-1])
        return lax.dynamic_update_slice(matrix, made, at), None

    corners = np.array([(place.rows[0], place.cols[0]) for place in places], np.int32)
    like = jax.eval_shape(block, *corners[0])
    empty = jax.numpy.zeros((rows.left_size, rows.right_size), like.dtype)
    return lax.scan(step, empty, corners)[0]
