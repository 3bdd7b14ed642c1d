"""Evaluation of a program at finite width, statement by statement.

Vectors are rows: a block of index shape I is an array (batch..., I..., n).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, cast

import numpy as np

from netsor.lang.blocks import Block, align
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees, transform
from netsor.lang.functions import mul
from netsor.lang.index_maps import window, window_options, window_positions
from netsor.lang.program import (
    Assignment,
    Embedding,
    Input,
    LinComb,
    MatMul,
    Moment,
    Program,
    Statement,
    used_by,
)
from netsor.lang.types import G

Values = dict[str, Block]


@dataclass(frozen=True)
class Convolve:
    """A fused convolution: MatMul with the matrices of a kernel, and the sum over its window.

    Without fusion, a block of all products (kernel..., positions...) would be kept in memory.
    """

    name: str
    matrix: str
    operand: Expr  # a vector, or data
    options: tuple[tuple[str, Any], ...]


Step = Input | MatMul | Assignment | Convolve


def plan(program: Program, fuse: bool = True) -> list[tuple[Step, list[str]]]:
    """List the steps of a run, with convolutions fused, each with the variables that no later step reads."""
    needed = {t.operand for s in program.outputs for t in s.terms}
    out: list[tuple[Step, list[str]]] = []
    for step in reversed(_fuse_convolutions(program) if fuse else list(program.definitions.values())):
        used = [step.matrix, *refs(step.operand)] if isinstance(step, Convolve) else used_by(step)
        out.append((step, [name for name in used if name not in needed]))
        needed.update(used)
    return out[::-1]


def _fuse_convolutions(program: Program) -> list[Step]:
    """Replace each product W h that only window(W h) reads by a Convolve, and the window by its result."""
    readers = Counter(name for s in program.statements for name in _readings(s))
    sums = [s for s in program.statements if isinstance(s, LinComb)]
    fused: dict[str, Convolve] = {}
    windows: dict[Expr, Expr] = {}  # window(W h) -> W h
    for node in (node for s in sums for node in subtrees(s.expr)):
        match node:
            case Apply(op, (Ref(name) as source,), attrs) if op is window and readers[name] == 1:
                product = _product_of(program.definitions.get(name))
                if product and len(program.types[product[0]].index) == dict(attrs)["dims"]:
                    fused[name] = Convolve(name, *product, attrs)
                    windows[node] = source
    return [
        replace(s, expr=transform(s.expr, lambda ref: ref, windows))
        if windows and isinstance(s, LinComb)
        else fused.get(s.name, s)
        for s in program.definitions.values()
    ]


def _readings(s: Statement) -> list[str]:
    """The names that a statement reads, once for each operation of a sum that reads them."""
    operations = [n for n in subtrees(s.expr) if isinstance(n, Apply)] if isinstance(s, LinComb) else []
    return [a.name for n in operations for a in n.args if isinstance(a, Ref)] or used_by(s)


def _product_of(source: Statement | None) -> tuple[str, Expr] | None:
    """The matrices and the operand of a product without aligned axes."""
    match source:
        case MatMul(matrix=matrix, operand=operand, aligned=0):
            return matrix, Ref(operand)
        case Input(law=Embedding(matrix, data, 0)):
            return matrix, data
    return None


def forward(
    program: Program,
    weights: Mapping[str, np.ndarray],
    data: Mapping[str, np.ndarray] | None = None,
    steps: list[tuple[Step, list[str]]] | None = None,
    keep: bool = False,
) -> Values:
    """Compute the variables that outputs read, for given weights.

    weights  matrices (index..., rows, columns) and vectors (index..., n)
    data     replaces the program's data; an array with one more axis in front is a batch of inputs
    steps    the result of `plan`
    keep     whether to return all variables
    """
    dtype = next((w.dtype for w in weights.values()), np.dtype(float))
    given = data or program.data
    values = {name: Block(np.asarray(given[name], dtype), a.ndim) for name, a in program.data.items()}
    types = program.types
    for step, done in steps or plan(program, fuse=not keep):
        block = _step(step, values, weights, types)
        if block is not None:
            number = isinstance(block.array, float)
            values[step.name] = Block(np.asarray(block.array, dtype), 0) if number else block
        for name in () if keep else done:
            values.pop(name, None)
    return values


def _step(step: Step, values: Values, weights: Mapping[str, np.ndarray], types: Mapping) -> Block | None:
    match step:
        case Input(law=Embedding(matrix, expr, aligned)):
            x = evaluate(expr, values)
            x = Block(x.array, x.rank - 1, True)
            return _matmul(weights[matrix], len(types[matrix].index), x, aligned)
        case Input():
            weight = weights.get(step.name)
            vector = weight is not None and isinstance(step.type, G)
            return Block(weight, len(step.type.index), True) if vector else None
        case MatMul():
            inner = len(types[step.matrix].index)
            return _matmul(weights[step.matrix], inner, values[step.operand], step.aligned)
        case Convolve():
            x = evaluate(step.operand, values)
            x = x if x.vector else Block(x.array, x.rank - 1, True)
            return _convolve(weights[step.matrix], x, **cast(dict, dict(step.options)))
        case Moment():
            return _average(step.expr, values)
        case _:
            return evaluate(step.expr, values)


def _matmul(w: np.ndarray, inner: int, x: Block, aligned: int) -> Block:
    """Multiply each matrix of w (I..., rows, columns) with each vector of x (batch..., J..., columns).

    Returns (batch..., I..., J..., rows); the first `aligned` axes of I and J are shared.
    """
    (*index, rows, cols), first = w.shape, x.array.ndim - 1 - x.rank
    shared, extra, others = index[:aligned], inner - aligned, x.rank - aligned
    vectors = np.moveaxis(x.array, range(first, first + aligned), range(aligned))
    left, right = (array.reshape(prod(shared), -1, cols) for array in (vectors, w))
    # One product after the other: NumPy's matmul of stacks is slower.
    products = [rows_of_x @ matrix.T for rows_of_x, matrix in zip(left, right, strict=True)]
    out = products[0] if not aligned else np.stack(products)
    out = out.reshape(*vectors.shape[:-1], *index[aligned:], rows)
    # (shared..., batch..., J..., I..., rows) -> (batch..., shared..., I..., J..., rows)
    start = aligned + first
    order = [*range(aligned, start), *range(aligned)]
    order += [*range(start + others, start + others + extra), *range(start, start + others), out.ndim - 1]
    return Block(out.transpose(order), inner + others, True)


def _convolve(w: np.ndarray, x: Block, *, dims: int, **options: Any) -> Block:
    """y[p] = sum over kernel positions j of w[j] x[p + j], without positions in the padding.

    w  (kernel..., rows, columns)
    x  (batch..., space..., J..., columns)
    """
    stride, dilation, padding = window_options(dims=dims, **options)
    kernel, space = w.shape[:dims], x.index[:dims]
    spots = [window_positions(*p, padding) for p in zip(space, kernel, stride, dilation, strict=True)]
    first = x.array.ndim - 1 - x.rank
    shape = list(x.array.shape)
    shape[first : first + dims] = [where.shape[1] for where, _ in spots]
    out = np.zeros((*shape[:-1], w.shape[-2]), w.dtype)
    # Skip kernel positions that lie in the padding everywhere.
    touching = [np.flatnonzero(exists.any(axis=1)).tolist() for _, exists in spots]
    for j in product(*touching):
        part, target = x.array, [slice(None)] * out.ndim
        for d, (where, exists) in enumerate(spots):
            alive = np.flatnonzero(exists[j[d]])
            part = np.take(part, where[j[d]][alive], axis=first + d)
            target[first + d] = slice(alive[0], alive[-1] + 1) if len(alive) else slice(0, 0)
        out[tuple(target)] += np.tensordot(part, w[j], (-1, -1))
    return Block(out, x.rank, True)


def _average(expr: Expr, values: Values) -> Block:
    """Average over the width; the average of a product x*y is a matrix product, as in attention logits."""
    if isinstance(expr, Apply) and expr.op is mul:
        factors = [evaluate(a, values) for a in expr.args]
        if all(f.vector for f in factors):
            (a, b), rank, _ = align(factors)
            if min(a.ndim, b.ndim) > 2 and a.shape[-2] == 1 and b.shape[-3] == 1:  # q_i . k_j
                return Block(a[..., 0, :] @ b[..., 0, :, :].swapaxes(-1, -2) / a.shape[-1], rank)
            return Block(np.vecdot(a, b) / a.shape[-1], rank)
    x = evaluate(expr, values)
    return Block(x.array.mean(axis=-1), x.rank)
