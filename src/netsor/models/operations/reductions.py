"""Sums, means, maxima, softmax and normalisations; over a width they are averages (Moments)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from netsor.build.array_functions import mean as average_over_width
from netsor.build.graph_nodes import Node, apply
from netsor.lang.functions import MIXINGS
from netsor.models.operations.elementwise import add, as_value, beyond_output, div, mul, unary
from netsor.models.operations.shapes import reshape, with_index, without_ones
from netsor.models.reader import Reader
from netsor.models.scalars import WidthScale, product
from netsor.models.values import OutputValue, Traced, Value, number


def total(reader: Reader, x: Traced, axes: Sequence[int]) -> Any:
    """Sum over axes, and remove them; a sum over a width is n times an average."""
    if isinstance(x, OutputValue):
        return x.each(lambda t: _total(reader, t, axes))
    return _total(reader, as_value(reader, x), axes)


def _total(reader: Reader, v: Value, axes: Sequence[int]) -> Value:
    summed = [f for i in axes for f in v.axes[i]]
    if any(f.rows for f in summed):
        raise reader.refuse(
            "the rows of an output are summed", "Return the rows; their kernel blocks are independent."
        )
    node = v.node
    indices = v.index_axes(list(axes))
    if any(f.is_vector for f in summed):
        assert isinstance(node, Node)
        node = average_over_width(node)
    if indices:
        assert isinstance(node, Node)
        node = node.sum(indices)
    count = product([f.size for f in summed if not f.real and f.width is None])[0]
    wide = product([f.size for f in summed if f.width is not None])
    if count != 1:
        node = node * float(count)
    left = tuple(a for i, a in enumerate(v.axes) if i not in axes)
    return replace(v, axes=left, node=node, scale=v.scale * WidthScale(float(wide[0]), float(wide[1])))


def mean(reader: Reader, x: Traced, axes: Sequence[int], keep: bool = False) -> Any:
    """Average over axes; with `keep` they remain with length 1."""
    shape = x.shape
    one, two = product([shape[i] for i in axes])
    out = mul(reader, total(reader, x, axes), number(1 / one, 1 / two))
    return reshape(reader, out, [(1, 1) if i in axes else s for i, s in enumerate(shape)]) if keep else out


def extreme(reader: Reader, x: Traced, axes: Sequence[int], name: str = "max") -> Value:
    """Take the maximum or minimum over finite axes, coordinate by coordinate."""
    if isinstance(x, OutputValue):
        raise beyond_output(reader)
    v = reader.fold(as_value(reader, x))
    if any(f.width is not None for i in axes for f in v.axes[i]):
        raise reader.refuse(
            f"a {name} over a width",
            "Rule Nonlin: functions act coordinate by coordinate. A mean over the width has a limit, a "
            "maximum grows.",
        )
    indices = v.index_axes(list(axes))
    node = apply(MIXINGS[name], v.node, axis=indices) if indices else v.node
    return replace(v, axes=tuple(a for i, a in enumerate(v.axes) if i not in axes), node=node)


def softmax(reader: Reader, x: Traced, axis: int) -> Value:
    """Apply softmax along a finite axis, to attention scores or to vectors coordinate by coordinate."""
    if isinstance(x, OutputValue):
        raise beyond_output(reader)
    v = as_value(reader, x)
    if any(f.width is not None for f in v.axes[axis]):
        raise reader.refuse(
            "a softmax over a width",
            "Rule Nonlin: functions act coordinate by coordinate, and this one divides by a sum over the "
            "width. A softmax over tokens has a limit; if this is the model's last softmax, leave it out.",
        )
    v = reader.fold(v)
    if v.is_number or not v.axes[axis]:
        return replace(v, node=1.0 / v.shape[axis][0])
    v = with_index(v, axis)
    return without_ones(replace(v, node=apply(MIXINGS["softmax"], v.node, axis=v.position(axis))))


def normalise(reader: Reader, x: Traced, axes: Sequence[int], eps: float, centre: bool = True) -> Value:
    """Compute (x - mean) / sqrt(variance + eps) over axes; over finite axes only, it is a batchnorm."""
    v = reader.fold(as_value(reader, x))
    if v.is_vector and not any(f.is_vector for i in axes for f in v.axes[i]):
        if centre:
            return batchnorm(reader, v, axes, eps)
        raise reader.refuse(
            "a root mean square over finite axes",
            "Normalise over the width too, or use a batchnorm over these axes.",
        )
    d = add(reader, v, mean(reader, v, axes, keep=True), -1) if centre else v
    square = mean(reader, unary(reader, "square", d), axes, keep=True)
    return div(reader, d, unary(reader, "sqrt", add(reader, square, number(eps))))


def batchnorm(reader: Reader, x: Traced, axes: Sequence[int], eps: float) -> Value:
    """Normalise each coordinate over finite axes: members of a batch, pixels."""
    v = reader.fold(as_value(reader, x))
    indices = v.index_axes(list(axes))
    if not indices:
        raise reader.refuse(
            "a batchnorm in training mode of a single member",
            "Its members must differ. An input of the network is then a whole batch: give batch=False and "
            "inputs of shape (members, ...); or train=False, for the running statistics.",
        )
    return replace(v, node=apply(MIXINGS["batchnorm"], v.node, axis=indices, eps=float(eps)))
