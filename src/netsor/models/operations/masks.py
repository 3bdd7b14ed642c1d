"""Masks of dropout: random zeros and ones for each input and coordinate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from netsor.build.trace import current_trace
from netsor.lang.functions import step
from netsor.models.axes import Axes
from netsor.models.operations import elementwise as each
from netsor.models.reader import Mask, Reader
from netsor.models.values import OutputValue, Traced, Value

NO_WIDTH = (
    "A mask is part of the limit where it has the width, one number for each coordinate. Of data, of outputs "
    "and of attention scores it stays random at any width, and the network is no Gaussian process. Give "
    "train=False, or p = 0 here."
)


def dropped(reader: Reader, x: Traced, keep: float, over: int | None = None) -> Any:
    """x * mask / keep, where the mask has the first `over` axes of x and is shared along the others."""
    if isinstance(x, OutputValue):
        raise reader.refuse("dropout of an output", NO_WIDTH)
    v = each.as_value(reader, x)
    if not v.is_vector:
        raise reader.refuse("dropout of what has no width", NO_WIDTH)
    if keep == 0:
        return each.mul(reader, v, 0.0)
    axes = v.axes if over is None else v.axes[:over] + ((),) * (len(v.axes) - over)
    return each.div(reader, each.mul(reader, v, mask(reader, keep, axes)), keep)


def mask(reader: Reader, keep: float, axes: Axes, numbers: np.ndarray | None = None) -> Value:
    """step(g) with a Gaussian g of mean Phi^-1(keep): 1 with probability `keep`, else 0, as in `ns.Dropout`.

    numbers  the model's own mask, if it is known
    """
    real = tuple(tuple(replace(f, real=True) for f in axis) for axis in axes)
    index = tuple(f.size[0] for axis in real for f in axis if f.is_index)
    vector = reader.registry.mask(len(reader.masks), keep, index)
    reader.masks.append(Mask(vector, real, numbers))
    return Value(real, step(current_trace("a model").leaf(vector)))
