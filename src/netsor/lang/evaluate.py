"""The semantics of expressions: the value of a tree, given the values of its variables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from netsor.lang.blocks import Block
from netsor.lang.expr import Const, Expr, Ref

__all__ = ["evaluate"]


def evaluate(expr: Expr, values: Mapping[str, Block]) -> Block:
    """Value of `expr` where each name stands for its block; equal subtrees are computed once.

    >>> from netsor.lang import Block, parse_expr
    >>> x = Block(np.array([[1.0, -2.0], [3.0, 4.0]]), rank=1, vector=True)   # two vectors of width 2
    >>> evaluate(parse_expr("sum(relu(x), axis=0) / 2"), {"x": x}).array
    array([2., 2.])
    """
    memo: dict[Expr, Block] = {}

    def visit(node: Expr) -> Block:
        if isinstance(node, Ref):
            return values[node.name]
        if node not in memo:
            if isinstance(node, Const):
                return Block(node.value, 0)
            args = [visit(a) for a in node.args]
            numbers = all(isinstance(a.array, float) for a in args)
            if numbers:
                args = [Block(np.asarray(a.array), 0) for a in args]
            out = node.op.run(*args, **node.options)
            if node.pick is not None:
                out = Block(out.array[node.pick], out.rank, out.vector)
            memo[node] = Block(float(out.array), 0) if numbers and out.array.ndim == 0 else out
        return memo[node]

    return visit(expr)
