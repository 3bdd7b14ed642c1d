"""A kernel matrix under jax.jit, jax.grad and jax.vmap.

The recorded steps become a few batched operations and loops (`rolled`). A large kernel is computed tile by
tile, in one jax.lax.scan over pairs of a few inputs: their arrays stay in the cache, and a symmetric kernel
needs only half of the tiles. jax.grad computes each tile again (jax.checkpoint), so that only inputs are
stored. What JAX cannot trace is a callback (`differences`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from netsor.build.joint_program import InputGroup
from netsor.limits.assembly import Rows, gathered, recorded_blocks
from netsor.limits.computation import Computation
from netsor.limits.on_jax.differences import differenced_kernel
from netsor.limits.on_jax.rolled import Values
from netsor.limits.tape.batches import schedule
from netsor.limits.tape.graph import Graph
from netsor.limits.tiling import side_of, tiles

Array = Any
LARGE = 2**20  # elements of the largest array: larger arrays, of 8 MB, leave the cache, so use tiles


def traced_kernel(computation: Computation, data: Mapping[str, Any], params: Mapping[str, Any]) -> Array:
    """Return the kernel, (rows, columns)."""
    setting = computation.exact_setting(traced=True)
    if setting is None:
        return differenced_kernel(computation, data, params)
    rows = computation.rows
    graph, nodes = recorded_blocks(partial(computation.recorder, setting), rows)
    noise = computation.program.noise  # tiles have two sets of inputs, so an input could not share its noise
    largest = max((operation.size for operation in graph.operations if operation), default=1)
    if largest >= LARGE and len(rows.groups) == 1 and not noise:
        counts = [stop - start for start, stop in rows.spans(0)]
        side = side_of(max(1, largest // (counts[0] * counts[1])))
        if side < max(counts):
            return _in_tiles(computation, data, params, side)
    return _whole(graph, nodes, rows, {**data, **params})


def _whole(
    graph: Graph, nodes: Mapping[tuple[int, int], int], rows: Rows, given: Mapping[str, Array]
) -> Array:
    """Return the kernel from all blocks at once."""
    values = Values(graph, given)
    for part in schedule(graph):
        values.run(part)
    shapes = {}
    for pair, node in nodes.items():
        array, at = values.computed[node]
        shapes[pair] = tuple(array.shape if at is None else array.shape[1:])
    return gathered(values.jnp, rows, shapes, lambda pairs: values.many([nodes[pair] for pair in pairs]))


def _in_tiles(c: Computation, data: Mapping[str, Any], params: Mapping[str, Any], side: int) -> Array:
    """Return the kernel tile by tile; the last tiles of a row or column overlap those before them.

    All tiles then have one shape, as jax.lax.scan requires.
    """
    import jax  # type: ignore[import-not-found]
    from jax import lax

    rows = c.rows
    counts, start = [stop - start for start, stop in rows.spans(0)], rows.split or 0
    places = tiles((0, counts[0]), (0, counts[1]), side, rows.symmetric)
    tile = places[0].counts
    sizes = rows.left_size // counts[0], rows.right_size // counts[1]
    groups = (InputGroup(tuple(range(sum(tile))), c.made.groups[0].outputs),)

    def inputs_of_tile(array: Array, row: Any, column: Any) -> Array:
        left = lax.dynamic_slice_in_dim(array[: counts[0]], row, tile[0])
        return jax.numpy.concatenate([left, lax.dynamic_slice_in_dim(array[start:], column, tile[1])])

    @partial(jax.checkpoint, prevent_cse=False)
    def block(*place: Any) -> Array:
        inputs = {name: inputs_of_tile(a, *place) if name in c.batched else a for name, a in data.items()}
        # A tile is a kernel between two small sets of inputs, so it is recorded like any other kernel.
        part = Computation(replace(c.made, data=inputs, groups=groups), c.options, c.params, tile[0])
        setting = part.exact_setting(traced=True)
        assert setting is not None
        graph, nodes = recorded_blocks(partial(part.recorder, setting), part.rows)
        return _whole(graph, nodes, part.rows, {**inputs, **params})

    def step(matrix: Array, place: Array) -> tuple[Array, None]:
        values = block(*place)
        corner = place[0] * sizes[0], place[1] * sizes[1]
        if rows.symmetric:
            # On the diagonal rounding may differ from the mirror image: average, so that the matrix is
            # symmetric.
            values = jax.numpy.where(place[0] == place[1], (values + values.T) / 2, values)
            matrix = lax.dynamic_update_slice(matrix, values.T, corner[::-1])
        return lax.dynamic_update_slice(matrix, values, corner), None

    corners = np.array([(place.rows[0], place.cols[0]) for place in places], np.int32)
    like = jax.eval_shape(block, *corners[0])
    empty = jax.numpy.zeros((rows.left_size, rows.right_size), like.dtype)
    return lax.scan(step, empty, corners)[0]
