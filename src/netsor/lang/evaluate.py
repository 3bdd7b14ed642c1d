"""The semantics of expressions: their values, for given values of their variables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from netsor.lang.blocks import Block
from netsor.lang.expr import Apply, Const, Expr, Ref, subtrees


def evaluate(expr: Expr, values: Mapping[str, Block]) -> Block:
    """Compute the value of `expr` from the values of its names; shared subexpressions are computed once.

    >>> from netsor.lang import Block, parse_expr
    >>> x = Block(np.array([[1.0, -2.0], [3.0, 4.0]]), rank=1, vector=True)   # two vectors of width 2
    >>> evaluate(parse_expr("sum(relu(x), axis=0) / 2"), {"x": x}).array
    array([2., 2.])
    """
    blocks: dict[Expr, Block] = {}
    for node, drops in _steps(expr):
        match node:
            case Ref(name):
                blocks[node] = values[name]
            case Const(value):
                blocks[node] = Block(value, 0)
            case Apply():
                blocks[node] = _apply(node, [blocks[a] for a in node.args])
                for a in drops:  # free memory early: blocks of sample points are large
                    del blocks[a]
    return blocks[expr]


@lru_cache(maxsize=1024)
def _steps(expr: Expr) -> tuple[tuple[Expr, tuple[Expr, ...]], ...]:
    """List the nodes in order of evaluation, each with the values that no later node reads."""
    order = tuple(subtrees(expr))
    last = {a: node for node in order if isinstance(node, Apply) for a in node.args}
    drops: dict[Expr, list[Expr]] = {node: [] for node in order}
    for a, node in last.items():
        drops[node].append(a)
    return tuple((node, tuple(drops[node])) for node in order)


def _apply(node: Apply, args: list[Block]) -> Block:
    """Apply an operation to blocks; a function of Python floats returns a float."""
    numbers = all(isinstance(a.array, float) for a in args)
    if numbers:
        args = [Block(np.asarray(a.array), 0) for a in args]
    out = node.op.run(*args, **node.options)
    if node.pick is not None:
        out = Block(out.array[node.pick], out.rank, out.vector)
    return Block(float(out.array), 0) if numbers and out.array.ndim == 0 else out
