"""Outputs: sums of readouts, and the results of a model."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from netsor.build.graph_nodes import Node, apply
from netsor.build.trace import current_trace
from netsor.lang import index_maps as maps
from netsor.models.operations.elementwise import as_value, mul
from netsor.models.operations.parameters import law_scale, matrix
from netsor.models.operations.products import rows_axis
from netsor.models.reader import Reader
from netsor.models.scalars import ONE, product
from netsor.models.values import OutputValue, Parameter, Traced, Value


def add_outputs(reader: Reader, x: Traced | float, y: Traced | float, sign: int) -> OutputValue:
    """Add or subtract two outputs, or an output and its bias."""
    terms: list[Value] = []
    for side, part in ((1, x), (sign, y)):
        output = _as_output(reader, part)
        if output is not None:
            if side < 0:
                output = mul(reader, output, -1.0)
                assert isinstance(output, OutputValue)
            terms += output.terms
    rank = max(len(t.axes) for t in terms)
    whole = next(t for t in terms if len(t.axes) == rank)
    return OutputValue(tuple(_like(t, whole) for t in terms))


def _as_output(reader: Reader, x: Traced | float) -> OutputValue | None:
    """Convert to an output, which may be a bias; None for 0."""
    if isinstance(x, OutputValue):
        return x
    if isinstance(x, Parameter) and not x.is_constant:
        return _bias(reader, x)
    v = as_value(reader, x)
    if v.is_zero:
        return None
    if v.is_number:
        reader.offset = True
        reader.note(
            f"{reader.where}: a constant that is added to the output is left out, outputs have mean 0"
        )
        return None
    raise reader.refuse(
        "an output is added to something else",
        "Rule Output: a layer to a finite number of rows ends the network, and outputs can only be added "
        "to outputs.",
    )


def _bias(reader: Reader, p: Parameter) -> OutputValue:
    """The bias of an output, as a readout of the vector of ones."""
    if p.widths:
        raise reader.refuse(
            f"a width of `{p.name}` is added to an output", "Let the last layer have a fixed number of rows."
        )
    ones = reader.ones()
    rows = product(p.shape)[0]
    v = matrix(reader, p, p.law.var[0] * p.scale.one**2, (), "output bias", rows=rows)
    axes = tuple(rows_axis(a) for a in p.axes)
    node = current_trace("a model").leaf(ones) * 1.0
    return OutputValue((Value(axes, node, law_scale(p, ONE), v),))


def _like(t: Value, whole: Value) -> Value:
    """Broadcast a term to all axes of the output."""
    axes = ((),) * (len(whole.axes) - len(t.axes)) + t.axes
    axes = tuple(
        tuple(replace(f, real=False) for f in w) if not a and w and not w[0].rows else a
        for a, w in zip(axes, whole.axes, strict=True)
    )
    return replace(t, axes=axes)


def finish(reader: Reader, x: Any) -> Any:
    """Apply the readouts of an output, and return their sum."""
    if not isinstance(x, OutputValue):
        kind = "vectors" if isinstance(x, Value) and x.is_vector else "no output"
        raise reader.refuse(
            f"the model returns {kind}",
            "Rule Output: a network ends in a layer from a width to a fixed number of rows. Add one, such "
            "as nn.Linear(n, 1), or say which of several results to take: output=0.",
        )
    return reduce(lambda a, b: a + b, (_applied(reader, t) for t in x.terms))


def _applied(reader: Reader, t: Value) -> Any:
    t = reader.fold(t)
    node, where = t.node, t.lead
    assert isinstance(node, Node)
    for f in t.factors:
        if f.rows or f.width is not None:
            continue
        if not f.is_index:
            key = (slice(None),) * where + (None,)
            node = apply(maps.take, node[key], axis=where, indices=(0,) * f.size[0])
        where += 1
    assert t.matrix is not None
    return t.matrix.times(node, aligned=t.lead)


def rows_first(x: OutputValue) -> list[int]:
    """Order the axes of an output as netsor does: rows of the readout first."""
    wide = [i for i, a in enumerate(x.axes) if a and a[0].rows]
    return wide + [i for i in range(len(x.axes)) if i not in wide]
