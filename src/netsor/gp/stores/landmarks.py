"""Parts of a stored kernel that is sampled, with the landmarks of the store and any new inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsor.expect.points.landmarks import Landmarks
from netsor.gp.stores.store import Store
from netsor.limits.result import Result

__all__ = ["with_landmarks"]


def with_landmarks(
    held: Store, left: np.ndarray, right: np.ndarray, new: np.ndarray | None = None
) -> tuple[Result, np.ndarray, np.ndarray]:
    """The kernel of some inputs of a store and its landmarks, and where `left` and `right` are in it.

    Inputs are given by their numbers; those from the number of inputs in the store on are `new` ones. The
    landmarks come first, and every other input is drawn given these, so it does not matter who else is there:
    blocks of any two calls belong to one positive matrix.
    """
    marks, count = held.landmark_numbers, held.identity["inputs"]["x"]["count"]
    others = np.setdiff1d(np.union1d(left, right), marks)
    order = np.concatenate([marks, others])
    x = np.concatenate(
        [_input(held, int(k)) if k < count or new is None else new[k - count][None] for k in order]
    )
    result = held.kernel.landmark_part(x, Landmarks(len(marks), others), params=held.params)
    place = {int(k): n for n, k in enumerate(order)}
    size = int(held.grid.rows.sizes[0])
    rows, cols = (
        np.concatenate([place[int(k)] * size + np.arange(size) for k in numbers]) for numbers in (left, right)
    )
    return result, rows, cols


def _input(held: Store, k: int) -> Any:
    return held.inputs(0, k, k + 1)
