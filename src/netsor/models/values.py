"""Symbolic operands of a model during reading: values, parameters, outputs and constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from netsor.build.graph_nodes import Node
from netsor.build.parameters import Matrix
from netsor.build.trace import current_trace
from netsor.models.axes import Axes, Axis, AxisFactor, WidthClass, finite, shape_of
from netsor.models.laws import Law
from netsor.models.scalars import ONE, Size, WidthScale

LARGE = 1e30  # replaces infinity in masks


@dataclass(frozen=True)
class Value:
    """An array of the model: a node (a block of vectors, C-vars or data), or one number.

    axes   the factors of each axis; the node has an index axis for each finite factor that is real
    scale  a factor at the two widths, not multiplied into the node yet

    A term of an output has a `matrix` that is not applied yet. Its node then has `lead` index axes in front,
    which are aligned with those of the matrix.
    """

    axes: Axes
    node: Node | float
    scale: WidthScale = ONE
    matrix: Matrix | None = None
    lead: int = 0

    @property
    def shape(self) -> list[Size]:
        return shape_of(self.axes)

    @property
    def factors(self) -> list[AxisFactor]:
        return [f for a in self.axes for f in a]

    @property
    def is_vector(self) -> bool:
        return any(f.is_vector for f in self.factors)

    @property
    def is_number(self) -> bool:
        return not isinstance(self.node, Node)

    @property
    def is_zero(self) -> bool:
        return self.is_number and self.node == 0

    @property
    def is_data(self) -> bool:
        return isinstance(self.node, Node) and self.node.kind == "K"

    @property
    def bare(self) -> Value:
        return replace(self, scale=ONE)

    def position(self, axis: int) -> int:
        """The position of the first index axis of an axis among those of the node."""
        return self.lead + sum(f.is_index for a in self.axes[:axis] for f in a)

    def index_axes(self, axes: tuple[int, ...] | list[int]) -> tuple[int, ...]:
        """The node's index axes that belong to these axes."""
        out: list[int] = []
        for i in sorted(axes):
            start = self.position(i)
            out += range(start, start + sum(f.is_index for f in self.axes[i]))
        return tuple(out)

    def index(self) -> tuple[int, ...]:
        """The node's index shape."""
        lead = self.node.index[: self.lead] if isinstance(self.node, Node) else ()
        return lead + tuple(f.size[0] for f in self.factors if f.is_index)


@dataclass(frozen=True)
class OutputValue:
    """A sum of readouts, at the end of the network; it allows only linear maps of finite axes."""

    terms: tuple[Value, ...]

    @property
    def axes(self) -> Axes:
        return self.terms[0].axes

    @property
    def shape(self) -> list[Size]:
        return self.terms[0].shape

    def each(self, fn: Callable[[Value], Value]) -> OutputValue:
        return OutputValue(tuple(fn(t) for t in self.terms))


@dataclass(frozen=True)
class Parameter:
    """A parameter of the model before its use as a matrix, a vector or a constant.

    stored  the axes of the model's array
    axes    its current axes
    steps   operations on the array so far: ("transpose", order), ("reshape", shape), ("slice", ...)
    piece   the blocks that remain: (stored axis, first block, last block)
    """

    name: str
    stored: Axes
    axes: Axes
    law: Law
    scale: WidthScale = ONE
    piece: tuple[tuple[int, int, int], ...] = ()
    steps: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @property
    def shape(self) -> list[Size]:
        return shape_of(self.axes)

    @property
    def widths(self) -> list[AxisFactor]:
        return [f for a in self.axes for f in a if f.width is not None]

    @property
    def is_constant(self) -> bool:
        return self.law.is_constant


@dataclass(frozen=True)
class Constant:
    """An array of numbers at the two widths."""

    one: np.ndarray
    two: np.ndarray

    @property
    def shape(self) -> list[Size]:
        return list(zip(self.one.shape, self.two.shape, strict=True))

    @property
    def number(self) -> float | None:
        """The common value of all entries at both widths, or None."""
        first = self.one.flat[0] if self.one.size else None
        same = first is not None and (self.one == first).all() and (self.two == first).all()
        return float(first) if first is not None and same else None


Traced = Value | OutputValue | Parameter | Constant


def put(axes: Axes, i: int, axis: Axis) -> Axes:
    return (*axes[:i], axis, *axes[i + 1 :])


def fixed(axes: Axes) -> Axes:
    """Mark all axes as axes along which the value is constant."""
    return tuple(tuple(replace(f, real=False, rows=False) for f in a) for a in axes)


def replaced(v: Value, axis: int, factors: Axis, node: Node | float) -> Value:
    return replace(v, axes=put(v.axes, axis, factors), node=node)


def number(x: float, y: float | None = None, axes: Axes = ()) -> Value:
    """Convert a number, or a pair for the two widths, to a value."""
    y = x if y is None else y
    if x == y or x == 0 or y == 0:
        return Value(axes, float(x))
    return Value(axes, 1.0, WidthScale(float(x), float(y)))


def known(array: np.ndarray) -> Value:
    """Convert an array of numbers with finite axes; infinities, as in masks, become large numbers."""
    array = np.clip(np.asarray(array, float), -LARGE, LARGE)
    if np.isnan(array).any():
        raise ValueError("a constant array of the model has entries that are not a number")
    axes = tuple(finite(s) for s in array.shape)
    if (array == array.flat[0]).all():
        return Value(fixed(axes), float(array.flat[0]))
    squeezed = array.reshape(tuple(s for s in array.shape if s != 1))
    return Value(axes, current_trace("a constant of the model").constant(squeezed))


def constant_value(c: Constant) -> Value:
    """Convert a constant to a value; it must be constant along widths."""
    if c.one.shape == c.two.shape:
        if np.array_equal(c.one, c.two):
            return known(c.one)
        ratio = np.unique(np.asarray(c.two, float) / np.where(c.one == 0, np.nan, c.one))
        ratio = ratio[~np.isnan(ratio)]
        if len(ratio) and np.allclose(ratio, ratio[0], rtol=1e-6) and ((c.one == 0) == (c.two == 0)).all():
            return replace(known(c.one), scale=WidthScale(1.0, float(ratio[0])))
        raise ValueError(f"a constant array of shape {c.one.shape} depends on the width")
    wide = [a != b for a, b in zip(c.one.shape, c.two.shape, strict=True)]
    small = c.one[tuple(slice(0, 1) if w else slice(None) for w in wide)]
    if not (c.one == small).all():
        raise ValueError(f"a constant array of shape {c.one.shape} changes along a width")
    v = known(small)
    axes = tuple(
        (AxisFactor(size, WidthClass(), real=False),) if w else axis
        for w, size, axis in zip(wide, c.shape, v.axes, strict=True)
    )
    return replace(v, axes=axes)
