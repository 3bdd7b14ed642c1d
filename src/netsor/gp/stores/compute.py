"""Compute one tile of a store: its inputs, numbers and error."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from netsor.errors import DataError
from netsor.expect.points.landmark_loadings import Landmarks
from netsor.gp.stores.store import NNGP, Store
from netsor.limits import kernel_tiles
from netsor.limits.on_numpy.compiled_loops import is_available
from netsor.limits.result import Result

_ONE_AT_A_TIME = Lock()  # a tile uses all threads of the process, while another tile may be written


def compute_tile(store: Store, i: int, j: int) -> None:
    """Compute tile (i, j) and write it. Its numbers depend only on the store's identity, i and j."""
    if store.cut.compiled and not is_available():
        raise DataError(
            f"{store.path} is computed by compiled loops, and there is no Numba here",
            remedy="Other loops have other roundings. Install netsor[fast].",
        )
    for member in _kernels(store):
        with _ONE_AT_A_TIME:
            value, error = (_sampled_tile if store.landmarks else _exact_tile)(member, i, j)
        member.write(i, j, value, error)


def read_networks(store: Store) -> None:
    """Trace the network for the first two tiles, one on and one off the diagonal."""
    for i, j in store.grid.tiles()[: 0 if store.landmarks else 2]:
        x, y, _ = _inputs(store, i, j)
        for member in _kernels(store):
            kernel_tiles.read_network(member.kernel, x, y, member.cut, member.params)


def _kernels(store: Store) -> list[Store]:
    """The kernels of a store. K comes last, so a tile with K is complete."""
    return [store.nngp, store] if NNGP in store.identity["kernels"] else [store]


def _exact_tile(store: Store, i: int, j: int) -> tuple[np.ndarray, float]:
    """The numbers of an exact tile, and its largest error."""
    x, y, block = _inputs(store, i, j)
    result = kernel_tiles.tile(store.kernel, x, y, store.cut, store.params)
    return result.value[block], result.bound.largest


def _sampled_tile(store: Store, i: int, j: int) -> tuple[np.ndarray, float]:
    """The numbers of a tile of a sampled kernel, and its largest error."""
    ((a, b), at), ((c, d), to) = store.grid.rows.inputs(i), store.grid.rows.inputs(j)
    result, rows, cols = with_landmarks(store, np.arange(a, b), np.arange(c, d))
    block = np.ix_(rows[slice(*at)], cols[slice(*to)])
    return result.value[block], float(result.error[block].max())


def _inputs(store: Store, i: int, j: int) -> tuple[Any, Any, tuple[slice, slice]]:
    """The inputs x, y of a tile (y is None on the diagonal), and the tile's slices in their kernel matrix."""
    grid = store.grid
    (rows, at), (cols, to) = grid.rows.inputs(i), grid.cols.inputs(j)
    y = None if grid.symmetric and i == j else store.inputs(1, *cols)
    return store.inputs(0, *rows), y, (slice(*at), slice(*to))


def with_landmarks(
    store: Store, left: np.ndarray, right: np.ndarray, new: np.ndarray | None = None
) -> tuple[Result, np.ndarray, np.ndarray]:
    """Compute the kernel of the landmarks and of some inputs; return it with the rows of `left` and `right`.

    left, right  numbers of inputs; number count + k is `new[k]`, where the store has count inputs

    The landmarks come first, and every other input is drawn given the landmarks alone. So a draw does not
    depend on the other inputs, and blocks of different calls belong to one positive semi-definite matrix.
    """
    count = store.identity["inputs"]["x"]["count"]
    marks = np.unique(np.linspace(0, count - 1, store.landmarks).round().astype(int))  # evenly spaced
    drawn = np.setdiff1d(np.union1d(left, right), marks)
    order = np.concatenate([marks, drawn]).tolist()
    x = np.concatenate(
        [store.inputs(0, k, k + 1) if new is None or k < count else new[k - count][None] for k in order]
    )
    result = kernel_tiles.landmark_tile(store.kernel, x, Landmarks(len(marks), drawn), store.params)
    place = {k: n for n, k in enumerate(order)}
    size = int(store.grid.rows.sizes[0])
    rows, cols = (
        np.concatenate([place[int(k)] * size + np.arange(size) for k in numbers]) for numbers in (left, right)
    )
    return result, rows, cols
