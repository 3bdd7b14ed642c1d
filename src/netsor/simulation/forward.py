"""Evaluation of a program at finite width, statement by statement.

Vectors are rows: a block of index shape I is an array (batch..., I..., n).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, cast

import numpy as np

from netsor.build.source_lines import fail
from netsor.errors import SimulationError
from netsor.lang.blocks import Block, align
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees, transform
from netsor.lang.functions import mul
from netsor.lang.index_maps import window, window_options, window_positions
from netsor.lang.program import (
    Embedding,
    Input,
    LinComb,
    MatMul,
    Moment,
    Output,
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


Step = Statement | Convolve


def plan(program: Program, fuse: bool = True) -> list[tuple[Step, list[str]]]:
    """List the steps of a run in order, each with the variables that no later step reads.

    fuse  whether to fuse matrix products that only a window reads with their windows
    """
    steps = _fuse_convolutions(program) if fuse else list(program.statements)
    needed: set[str] = {t.operand for s in program.outputs for t in s.terms}
    out: list[tuple[Step, list[str]]] = []
    for step in reversed(steps):
        used = [step.matrix, *refs(step.operand)] if isinstance(step, Convolve) else used_by(step)
        last = [] if isinstance(step, Output) else [n for n in used if n not in needed]
        needed.update(used)
        out.append((step, last))
    return out[::-1]


def _fuse_convolutions(program: Program) -> list[Step]:
    """Replace each product W h that only window(W h) reads by a Convolve, and the window by its result."""
    uses: dict[str, int] = {}
    for s in program.statements:
        for name in used_by(s):
            uses[name] = uses.get(name, 0) + 1
    fused: dict[str, Convolve] = {}
    steps: list[Step] = []
    for s in program.statements:
        if isinstance(s, LinComb):
            for node in subtrees(s.expr):
                match node:
                    case Apply(op, (Ref(name),), attrs) if op is window and uses[name] == 1:
                        product = _product_of(program.definitions.get(name))
                        if (
                            product is not None
                            and len(program.types[product[0]].index) == dict(attrs)["dims"]
                            and _readers(s.expr, name) == 1
                        ):
                            fused[name] = Convolve(name, *product, attrs)
    for s in program.statements:
        if isinstance(s, MatMul | Input) and s.name in fused:
            steps.append(fused[s.name])
        elif isinstance(s, LinComb):
            steps.append(replace(s, expr=_without_windows(s.expr, fused)))
        else:
            steps.append(s)
    return steps


def _product_of(source: Statement | None) -> tuple[str, Expr] | None:
    """The matrices and the operand of a product without aligned axes."""
    match source:
        case MatMul(matrix=matrix, operand=operand, aligned=0):
            return matrix, Ref(operand)
        case Input(law=Embedding(matrix, data, 0)):
            return matrix, data
    return None


def _readers(expr: Expr, name: str) -> int:
    """Number of operations in an expression that read a variable."""
    if expr == Ref(name):  # the variable itself: anything but 1, as no window reads it
        return 2
    return sum(isinstance(n, Apply) and Ref(name) in n.args for n in subtrees(expr))


def _without_windows(expr: Expr, fused: Mapping[str, Convolve]) -> Expr:
    """Remove the windows of fused products from an expression."""
    windows: dict[Expr, Expr] = {}
    for node in subtrees(expr) if fused else ():
        match node:
            case Apply(op, (Ref(name) as source,)) if op is window and name in fused:
                windows[node] = source
    return transform(expr, lambda ref: ref, windows) if windows else expr


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
    values: Values = {}
    for name, array in program.data.items():
        given = (data or program.data)[name]
        values[name] = Block(np.asarray(given, dtype), array.ndim)
    types = program.types
    for step, done in steps or plan(program, fuse=not keep):
        if isinstance(step, Output):
            continue
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
        case Output():
            return None
        case _:
            return evaluate(step.expr, values)


def _matmul(w: np.ndarray, inner: int, x: Block, aligned: int) -> Block:
    """Multiply each matrix of w (I..., rows, columns) with each vector of x (batch..., J..., columns).

    Returns (batch..., I..., J..., rows); the first `aligned` axes of I and J are shared.
    """
    index, (rows, cols) = w.shape[:inner], w.shape[inner:]
    if aligned:
        return _aligned_matmul(w, inner, x, aligned)
    if not index:
        return x.like(_rows_times(x.array, w), x.rank)
    out = _rows_times(x.array, w.reshape(-1, cols))
    out = out.reshape(*x.array.shape[:-1], *index, rows)
    start = x.array.ndim - 1
    where = range(start - x.rank, start - x.rank + inner)
    return Block(np.moveaxis(out, range(start, start + inner), where), inner + x.rank, True)


def _rows_times(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x @ w.T for x (..., columns) and w (rows, columns), as one matrix product."""
    # NumPy's matmul would loop over the leading axes of x.
    return (x.reshape(-1, x.shape[-1]) @ w.T).reshape(*x.shape[:-1], len(w))


def _aligned_matmul(w: np.ndarray, inner: int, x: Block, aligned: int) -> Block:
    """Multiply matrix i with vector i, where i runs over the first `aligned` index axes."""
    first = x.array.ndim - 1 - x.rank
    moved = np.moveaxis(x.array, range(first, first + aligned), range(aligned))
    shared, rank_left = w.shape[:aligned], x.rank - aligned
    parts = np.empty(shared, object)
    for i in np.ndindex(shared):
        parts[i] = _matmul(w[i], inner - aligned, Block(moved[i], rank_left, True), 0).array
    out = np.stack([parts[i] for i in np.ndindex(shared)]).reshape(*shared, *parts.flat[0].shape)
    return Block(np.moveaxis(out, range(aligned), range(first, first + aligned)), inner + rank_left, True)


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
            part = _take_range(part, where[j[d]][alive], first + d)
            target[first + d] = slice(alive[0], alive[-1] + 1) if len(alive) else slice(0, 0)
        out[tuple(target)] += _rows_times(part, w[j])
    return Block(out, x.rank, True)


def _take_range(x: np.ndarray, where: np.ndarray, axis: int) -> np.ndarray:
    """Take members along an axis: a view if they are evenly spaced, else a copy."""
    steps = np.unique(np.diff(where))
    if len(where) > 0 and len(steps) <= 1 and (len(steps) == 0 or steps[0] > 0):
        key = [slice(None)] * x.ndim
        key[axis] = slice(where[0], where[-1] + 1, int(steps[0]) if len(steps) else 1)
        return x[tuple(key)]
    return np.take(x, where, axis=axis)


def _average(expr: Expr, values: Values) -> Block:
    """Average over the width; the average of a product x*y is a matrix product, as in attention logits."""
    if isinstance(expr, Apply) and expr.op is mul:
        factors = [evaluate(a, values) for a in expr.args]
        if all(f.vector for f in factors):
            arrays, rank, _ = align(factors)
            return Block(_inner(*arrays) / arrays[0].shape[-1], rank)
    x = evaluate(expr, values)
    return Block(x.array.mean(axis=-1), x.rank)


def _inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """sum_n a[..., n] b[..., n] with broadcasting, as one batched matrix product."""
    # Axes that only a has become rows, axes that only b has become columns, and common axes the batch.
    ndim = max(a.ndim, b.ndim)
    a, b = (x.reshape((1,) * (ndim - x.ndim) + x.shape) for x in (a, b))
    axes = range(ndim - 1)
    left = [i for i in axes if a.shape[i] != 1 and b.shape[i] == 1]
    right = [i for i in axes if b.shape[i] != 1 and a.shape[i] == 1]
    both = [i for i in axes if i not in left and i not in right]
    n = a.shape[-1]
    shared = [a.shape[i] for i in both]
    first = a.transpose(both + left + right + [ndim - 1]).reshape(prod(shared), -1, n)
    second = b.transpose(both + right + left + [ndim - 1]).reshape(prod(shared), -1, n)
    out = first @ second.transpose(0, 2, 1)
    out = out.reshape(shared + [a.shape[i] for i in left] + [b.shape[i] for i in right])
    return out.transpose(np.argsort(both + left + right))


def check_finite(values: np.ndarray) -> None:
    """Raise a SimulationError for NaN or infinity, with the usual causes."""
    if not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))[0]
        raise fail(
            f"the simulation is not finite: sample {bad[0]}, output {bad[1]} is {values[tuple(bad)]}",
            "A normalisation divides by zero (layernorm of a zero input, batchnorm of a batch whose members "
            "are all equal), or a function overflows. Leave such inputs out, or normalise with an eps > 0.",
            SimulationError,
        )
