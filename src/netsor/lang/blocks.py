"""Blocks at run time: arrays (batch..., index..., width), where only vectors have the width axis.

Operations number index axes 0, 1, ... and never see the leading batch axes. So one implementation serves a
single input, a batch of inputs, and the sample points of an expectation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.lang.array_api import array_namespace


@dataclass(frozen=True)
class Block:
    """An array with `rank` index axes; `vector` tells whether a width axis follows them.

    A single number remains a Python float, so that it does not promote float32 arrays to float64.
    """

    array: Any
    rank: int
    vector: bool = False

    @property
    def xp(self) -> Any:
        return array_namespace(self.array)

    @property
    def index(self) -> tuple[int, ...]:
        if isinstance(self.array, float):
            return ()
        stop = self.array.ndim - self.vector
        return tuple(self.array.shape[stop - self.rank : stop])

    def axis(self, i: int) -> int:
        """The (negative) axis of `array` that holds index axis `i`."""
        return (i % self.rank) - self.rank - self.vector

    def like(self, array: Any, rank: int) -> Block:
        return Block(array, rank, self.vector)

    def lift(self, rank: int, vector: bool) -> Any:
        """Reshape to `rank` index axes, with new axes of length 1 in front, and (`vector`) a width axis."""
        if isinstance(self.array, float):
            return self.array
        shape = list(self.array.shape)
        where = len(shape) - self.rank - self.vector
        shape[where:where] = [1] * (rank - self.rank)
        if vector and not self.vector:
            shape.append(1)
        return self.xp.reshape(self.array, tuple(shape)) if shape != list(self.array.shape) else self.array


def align(blocks: Sequence[Block]) -> tuple[list[Any], int, bool]:
    """Lift blocks to equal rank, so that their arrays broadcast by NumPy's rule on the index axes."""
    rank = max(b.rank for b in blocks)
    vector = any(b.vector for b in blocks)
    return [b.lift(rank, vector) for b in blocks], rank, vector


def broadcast(blocks: Sequence[Block]) -> tuple[list[Any], int, bool]:
    """Lift blocks to arrays of equal shape and type, because the array API stacks no others."""
    arrays, rank, vector = align(blocks)
    like = next(a for a in arrays if not isinstance(a, float))
    xp = array_namespace(like)
    arrays = [xp.asarray(a, dtype=like.dtype) if isinstance(a, float) else a for a in arrays]
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    return [a if a.shape == shape else xp.broadcast_to(a, shape) for a in arrays], rank, vector


def broadcast_index(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast index shapes by NumPy's rule."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"index shapes {', '.join(map(str, shapes))} do not broadcast") from None
