"""Coordinatewise sums, products and functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from netsor.build.graph_nodes import Node
from netsor.build.trace import current_trace
from netsor.lang import functions as fns
from netsor.models.axes import Axes, Axis, AxisFactor, common_sizes, length, refine
from netsor.models.operations.functions import COORDINATEWISE, of_number
from netsor.models.operations.nodes import reshape_node
from netsor.models.reader import Reader
from netsor.models.scalars import ONE
from netsor.models.values import Constant, OutputValue, Parameter, Traced, Value, constant_value, number, put


def as_value(reader: Reader, x: Traced | float | int) -> Value:
    """Convert a traced operand to a value; parameters become vectors or constants."""
    from netsor.models.operations.parameters import parameter_value

    match x:
        case Value():
            return x
        case Parameter():
            return parameter_value(reader, x)
        case Constant():
            return _constant(reader, x)
        case OutputValue():
            raise beyond_output(reader)
    return number(float(x))


def _constant(reader: Reader, c: Constant) -> Value:
    from netsor.models.operations.codes import code, width_of_code

    axis = width_of_code(c)
    if axis is not None:
        return code(reader, c, axis)
    try:
        return constant_value(c)
    except ValueError as error:
        raise reader.refuse(
            str(error),
            "Numbers along a width have a limit if that is one axis, and their average products converge.",
        ) from error


def beyond_output(reader: Reader) -> Exception:
    return reader.refuse(
        "a function acts on an output, the result of a layer from a width to a finite number of rows",
        "Rule Output: such a layer ends the network. If it is meant to be wide, let its size grow with "
        "the width; if this is the model's last softmax or loss, leave it out: the kernel is that of the "
        "logits.",
    )


# Axes that meet


def align(reader: Reader, values: list[Value]) -> tuple[list[Value], Axes]:
    """Bring values to equal numbers of axes and equal factors; return them and the broadcast axes."""
    rank = max(len(v.axes) for v in values)
    values = [replace(v, axes=((),) * (rank - len(v.axes)) + v.axes) for v in values]
    axes: list[Axis] = []
    for i in range(rank):
        values, axis = _align_axis(values, i)
        axes.append(axis)
    if sum(f.is_vector for a in axes for f in a) > 1:
        raise reader.refuse(
            "two vectors meet along different axes (an outer product)",
            "A product of two vectors is taken coordinate by coordinate, or summed over the width.",
        )
    return values, tuple(axes)


def _align_axis(values: list[Value], i: int) -> tuple[list[Value], Axis]:
    mine = [v.axes[i] for v in values if v.axes[i]]
    if not mine:
        return values, ()
    sizes = [f.size for f in mine[0]]
    for axis in mine[1:]:
        sizes = common_sizes(tuple(AxisFactor(s) for s in sizes), axis)
    values = [refine_axis(v, i, sizes) if v.axes[i] else v for v in values]
    columns = zip(*(v.axes[i] for v in values if v.axes[i]), strict=True)
    return values, tuple(reduce(merge, column) for column in columns)


def refine_axis(v: Value, i: int, sizes: list) -> Value:
    """Refine the factors of a value along an axis."""
    axis = refine(v.axes[i], sizes)
    out = replace(v, axes=put(v.axes, i, axis))
    return replace(out, node=reshape_node(v.node, out.index())) if isinstance(v.node, Node) else out


def merge(f: AxisFactor, g: AxisFactor) -> AxisFactor:
    """Merge corresponding factors of two values: the real one counts, and two widths become one class."""
    if f.is_vector and g.is_vector:
        assert f.width is not None
        assert g.width is not None
        f.width.meet(g.width)
    return f if f.real else g


def spread(v: Value, axes: Axes) -> Node | float:
    """Reshape a node to an index axis, possibly of length 1, for each finite factor of `axes`."""
    if not isinstance(v.node, Node):
        return v.node
    key: list[Any] = []
    for axis, mine in zip(axes, v.axes, strict=True):
        for k, f in enumerate(axis):
            if f.is_index:
                key.append(slice(None) if mine and mine[k].is_index else None)
    while key and key[0] is None:
        key.pop(0)
    return v.node[tuple(key)] if None in key else v.node


def elementwise(reader: Reader, fn: Callable[..., Any], *values: Value) -> Value:
    """Apply a coordinatewise function, after multiplying the scales into the nodes."""
    folded, axes = align(reader, [reader.fold(v) for v in values])
    return Value(axes, fn(*(spread(v, axes) for v in folded)))


def as_vector(reader: Reader, v: Value) -> Value:
    """Convert a number or C-var with a width to a vector with equal coordinates."""
    ones = current_trace("a model").leaf(reader.ones())
    axes = tuple(tuple(replace(f, real=True) if f.width else f for f in a) for a in v.axes)
    node = v.node * ones if isinstance(v.node, Node) else fns.mul(ones, float(v.node))
    return replace(v, axes=axes, node=node)


def as_node(v: Value) -> Value:
    """Give a value a node, if it is a number."""
    if isinstance(v.node, Node):
        return v
    return replace(v, node=current_trace("a model").constant(np.asarray(float(v.node))))


# Arithmetic


def add(reader: Reader, x: Traced | float, y: Traced | float, sign: int = 1) -> Any:
    """Compute x + y or x - y."""
    from netsor.models.operations.outputs import add_outputs

    if isinstance(x, OutputValue) or isinstance(y, OutputValue):
        return add_outputs(reader, x, y, sign)
    a, b = as_value(reader, x), as_value(reader, y)
    scale = ONE
    if a.is_zero or b.is_zero or a.scale == b.scale:
        scale = b.scale if a.is_zero else a.scale
        both = a.scale * b.scale
        scale = replace(scale, laws=both.laws, grown=both.grown)
        a, b = a.bare, b.bare
    out = elementwise(reader, lambda u, v: u + v if sign > 0 else u - v, a, b)
    return replace(out, scale=scale)


def mul(reader: Reader, x: Traced | float, y: Traced | float) -> Any:
    """Compute x * y; a parameter times a number remains a parameter."""
    for one, other in ((x, y), (y, x)):
        if isinstance(one, OutputValue | Parameter) and not isinstance(other, OutputValue | Parameter):
            factor = as_value(reader, other)
            if factor.is_number and all(length(a) == (1, 1) for a in factor.axes):
                return _scaled(one, factor)
    a, b = as_value(reader, x), as_value(reader, y)
    out = elementwise(reader, lambda u, v: u * v, a.bare, b.bare)
    return replace(out, scale=a.scale * b.scale)


def _scaled(x: OutputValue | Parameter, factor: Value) -> OutputValue | Parameter:
    assert isinstance(factor.node, float)
    scale = replace(factor.scale, one=factor.scale.one * factor.node, two=factor.scale.two * factor.node)
    if isinstance(x, OutputValue):
        return x.each(lambda t: replace(t, scale=t.scale * scale))
    return replace(x, scale=x.scale * scale)


def div(reader: Reader, x: Traced | float, y: Traced | float) -> Any:
    b = as_value(reader, y)
    if b.is_number:
        assert isinstance(b.node, float)
        return mul(reader, x, Value(b.axes, 1.0 / b.node, ONE / b.scale))
    a = as_value(reader, x)
    out = elementwise(reader, lambda u, v: u / v, a.bare, b.bare)
    return replace(out, scale=a.scale / b.scale)


def unary(reader: Reader, name: str, x: Traced, **options: Any) -> Any:
    """Apply a named function to each coordinate."""
    if name == "neg":
        return mul(reader, x, -1.0)
    v = as_value(reader, x)
    if isinstance(v.node, float):
        return number(
            *(of_number(name, v.node * s, **options) for s in (v.scale.one, v.scale.two)), axes=v.axes
        )
    function = COORDINATEWISE[name]
    if function.degree is not None and v.scale.one > 0:
        out = elementwise(reader, lambda u: function.fn(u, **options), v.bare)
        return replace(out, scale=v.scale.power(function.degree))
    return elementwise(reader, lambda u: function.fn(u, **options), v)


def power(reader: Reader, x: Traced, k: float) -> Any:
    """Compute x^k for a number k."""
    named = {2: "square", 0.5: "sqrt", -0.5: "rsqrt"}
    if k in named:
        return unary(reader, named[k], x)
    v = as_value(reader, x)
    if k == 1:
        return v
    if isinstance(v.node, float):
        return number((v.node * v.scale.one) ** k, (v.node * v.scale.two) ** k, v.axes)
    if k == int(k) and k > 2:
        out = elementwise(reader, lambda u: reduce(lambda p, _: p * u, range(int(k) - 1), u), v.bare)
    else:
        out = elementwise(reader, lambda u: u**k, v.bare)
    return replace(out, scale=v.scale.power(k))


def select(reader: Reader, mask: Value, x: Traced | float, y: Traced | float) -> Value:
    """Select x where the mask is 1 and y where it is 0."""
    if as_value(reader, y).is_zero:
        return mul(reader, mask, as_value(reader, x))
    other = add(reader, number(1.0), mask, -1)
    return add(reader, mul(reader, mask, as_value(reader, x)), mul(reader, other, as_value(reader, y)))
