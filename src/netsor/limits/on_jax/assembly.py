"""Many blocks of a kernel matrix put into their places by a few operations of JAX.

The row number of an entry of an output is in `Rows`. Outputs of the same shape make a grid of blocks, whose
axes are put in order by one transposition where the rows are numbered input by input, as they mostly are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.limits.recursion.outputs import Rows

if TYPE_CHECKING:
    from netsor.limits.on_jax.rolled import Values

__all__ = ["assembled"]

Array = Any
Blocks = Mapping[tuple[int, int], int]  # the nodes of pairs of outputs


@dataclass(frozen=True)
class Kind:
    """Outputs of the same shape and number of inputs; `numbers` (outputs, inputs, entries) are their rows."""

    outputs: list[int]
    index: tuple[int, ...]
    numbers: np.ndarray

    @property
    def inputs(self) -> int:
        return self.numbers.shape[1]

    @property
    def entries(self) -> int:
        return self.numbers.shape[2]


def assembled(values: Values, rows: Rows, blocks: Blocks) -> Array:
    """(rows, columns) of the kernel; blocks below the diagonal are mirror images of those above it."""
    jnp = values.jnp
    lefts = _kinds([o for o, _ in blocks], rows.left)
    rights = _kinds([p for _, p in blocks], rows.right)
    grids = [[_grid(values, rows, blocks, a, b) for b in rights] for a in lefts]
    matrix = jnp.concatenate([jnp.concatenate(line, axis=1) for line in grids], axis=0)
    for axis, kinds in enumerate((lefts, rights)):
        order = np.argsort(np.concatenate([kind.numbers.swapaxes(0, 1).reshape(-1) for kind in kinds]))
        if not np.array_equal(order, np.arange(len(order))):
            matrix = jnp.take(matrix, order, axis=axis)
    return matrix + matrix.T if rows.split is None else matrix


def _kinds(outputs: list[int], tables: list[np.ndarray]) -> list[Kind]:
    found: dict[Any, list[int]] = {}
    for o in dict.fromkeys(outputs):
        found.setdefault((tables[o].shape[1:], int((tables[o] >= 0).sum())), []).append(o)
    return [
        Kind(members, index, np.stack([_rows_of(tables[o]) for o in members]))
        for (index, _), members in found.items()
    ]


def _rows_of(table: np.ndarray) -> np.ndarray:
    """(inputs, entries) of the row numbers of the inputs that have rows."""
    flat = table.reshape(len(table), int(np.prod(table.shape[1:], dtype=int)))
    return flat[(flat >= 0).any(axis=1)]


def _grid(values: Values, rows: Rows, blocks: Blocks, left: Kind, right: Kind) -> Array:
    """The blocks of equal outputs, input by input; those on the diagonal are halved, those below it are 0."""
    jnp = values.jnp
    shape = (left.inputs, left.entries, right.inputs, right.entries)
    height, width = left.numbers.size, right.numbers.size
    pairs = [(o, p) for o in left.outputs for p in right.outputs if (o, p) in blocks]
    if not pairs:
        return jnp.zeros((height, width), values.real)
    made, place = [], {}
    for members in _by_shape(values, blocks, pairs):
        block = values.many([blocks[pair] for pair in members])[:, 0, ...]
        full = jnp.broadcast_to(block, (len(members), left.inputs, right.inputs, *left.index, *right.index))
        full = jnp.moveaxis(full, 2, 2 + len(left.index))
        place.update(zip(members, range(len(place), len(place) + len(members)), strict=True))
        made.append(full.reshape((len(members), *shape)))
    sides = [(o, p) for o in left.outputs for p in right.outputs]
    tiles = values.taken(values.joined(made), [place.get(pair, 0) for pair in sides])
    weight = np.array([_weight(rows, blocks, pair) for pair in sides])
    if not (weight == 1).all():
        weight = weight.astype(values.real)[:, None, None, None, None]
        tiles = jnp.where(weight > 0, tiles * weight, 0)
    tiles = tiles.reshape((len(left.outputs), len(right.outputs), *shape))
    return jnp.transpose(tiles, (2, 0, 3, 4, 1, 5)).reshape((height, width))


def _by_shape(values: Values, blocks: Blocks, pairs: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Blocks may have axes of length 1 that stand for many equal values."""
    found: dict[Any, list[tuple[int, int]]] = {}
    for pair in pairs:
        array, at = values.known[blocks[pair]]
        found.setdefault(array.shape if at is None else array.shape[1:], []).append(pair)
    return list(found.values())


def _weight(rows: Rows, blocks: Blocks, pair: tuple[int, int]) -> float:
    if pair not in blocks:
        return 0.0
    return 0.5 if pair[0] == pair[1] and rows.split is None else 1.0
