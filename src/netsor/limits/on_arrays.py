"""A kernel matrix in any library of the array API, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from netsor.limits.assembly import gathered, recorded_blocks
from netsor.limits.computation import Computation
from netsor.limits.tape.graph import Graph, in_library

Array = Any


def kernel_on(xp: Any, c: Computation, data: Mapping[str, Array], params: Mapping[str, Any]) -> Array:
    """Return the kernel (rows, columns); what only NumPy can compute is computed there and converted."""
    setting = c.exact_setting(traced=True)
    if c.options.tol or setting is None:
        numbers = {name: float(value) for name, value in params.items()}
        return xp.asarray(c.value({name: np.asarray(a) for name, a in data.items()}, numbers))
    graph, nodes = recorded_blocks(partial(c.recorder, setting), c.rows)
    values = _values(xp, graph, {**data, **params})
    blocks = {pair: values[node] for pair, node in nodes.items()}
    shapes = {pair: tuple(block.shape) for pair, block in blocks.items()}
    return gathered(xp, c.rows, shapes, lambda pairs: xp.stack([blocks[pair] for pair in pairs]))


def _values(xp: Any, graph: Graph, given: Mapping[str, Array]) -> list[Any]:
    """Return the value of every node of a graph."""
    arrays = [xp.asarray(a) for a in given.values()]
    floats = [a.dtype for a in arrays if xp.isdtype(a.dtype, "real floating")]
    real = xp.result_type(*floats) if floats else xp.asarray(0.0).dtype
    operations = [op and in_library(op, xp, real) for op in graph.operations]
    values: list[Any] = []
    for node, reads in enumerate(graph.reads):
        operation = operations[graph.operation[node]]
        if node in graph.constants:
            value = graph.constants[node]
            values.append(xp.asarray(value, dtype=real) if value.dtype.kind == "f" else xp.asarray(value))
        elif node in graph.inputs:
            values.append(xp.asarray(given[graph.inputs[node]], dtype=real))
        else:
            assert operation is not None
            values.append(operation([values[k] for k in reads], graph.numbers[node]))
    return values
