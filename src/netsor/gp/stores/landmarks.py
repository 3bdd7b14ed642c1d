"""Blocks of a sampled kernel in a store, drawn given common landmarks."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsor.expect.points.landmark_loadings import Landmarks
from netsor.gp.stores.store import Store
from netsor.limits.kernel_tiles import landmark_tile
from netsor.limits.result import Result


def with_landmarks(
    store: Store, left: np.ndarray, right: np.ndarray, new: np.ndarray | None = None
) -> tuple[Result, np.ndarray, np.ndarray]:
    """Compute the kernel of the landmarks and of some inputs; return it with the rows of `left` and `right`.

    left, right  numbers of inputs; number count + k is `new[k]`, where the store has count inputs

    The landmarks come first, and every other input is drawn given the landmarks alone. So a draw does not
    depend on the other inputs, and blocks of different calls belong to one positive semi-definite matrix.
    """
    marks, count = store.landmark_numbers, store.identity["inputs"]["x"]["count"]
    drawn = np.setdiff1d(np.union1d(left, right), marks)
    order = np.concatenate([marks, drawn])
    x = np.concatenate(
        [_input(store, int(k)) if k < count or new is None else new[k - count][None] for k in order]
    )
    result = landmark_tile(store.kernel, x, Landmarks(len(marks), drawn), store.params)
    place = {int(k): n for n, k in enumerate(order)}
    size = int(store.grid.rows.sizes[0])
    rows, cols = (
        np.concatenate([place[int(k)] * size + np.arange(size) for k in numbers]) for numbers in (left, right)
    )
    return result, rows, cols


def _input(store: Store, k: int) -> Any:
    return store.inputs(0, k, k + 1)
