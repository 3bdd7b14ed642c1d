"""Blocks to the paper's form: one plain variable per line.

Every block becomes an array of names; an expression is evaluated on arrays whose entries are themselves
expressions, so the same index maps that move numbers move variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from netsor.errors import LoweringError
from netsor.lang.batchnorm import written_out
from netsor.lang.blocks import Block, align
from netsor.lang.check import Inferred, as_inferred, infer
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees
from netsor.lang.functions import add, d_batchnorm, div, mul, neg, sub
from netsor.lang.index_maps import at
from netsor.lang.lower import drop_dead
from netsor.lang.normal_form import NormalForm
from netsor.lang.ops import Function, IndexMap, Mixing, axes_of
from netsor.lang.program import (
    Embedding,
    Input,
    LinComb,
    MatMul,
    MatrixLaw,
    Moment,
    Nonlin,
    Normal,
    Output,
    Program,
    Scalar,
    Statement,
    Term,
    used_by,
)
from netsor.lang.sampling import input_covariance, input_mean
from netsor.lang.types import H, Index

__all__ = ["MOST_LINES", "expand"]

MOST_LINES = 1_000_000


def expand(program: Program) -> Program:
    """The same program with every block written out, and members that nothing uses left out.

    >>> from netsor.lang import parse
    >>> program = parse('''
    ... Data x = [[1, 0], [1, 1]]
    ... Input U :: A(n, 2) ~ N(0, 1/2)
    ... Input Ux :: G(n)[2] ~ MatMul(U, x)
    ... y := mean(relu(Ux), axis=[0]) :: H(n)
    ... ''')
    >>> print(program.expand())
    Data x = [[1, 0], [1, 1]]
    Input U :: A(n, 2) ~ N(0, 1/2)
    Input Ux_0 :: G(n) ~ MatMul(U, x[0])
    Input Ux_1 :: G(n) ~ MatMul(U, x[1])
    y := (relu(Ux_0) + relu(Ux_1))*0.5 :: H(n)
    <BLANKLINE>
    """
    lines = sum(prod(type_.index) for type_ in program.types.values())
    if lines > MOST_LINES:
        raise LoweringError(
            f"one variable per line makes {lines:,} lines, more than {MOST_LINES:,}",
            remedy="Blocks keep a program short: read it as it is, or expand it for smaller inputs.",
        )
    writer = _Writer(program)
    statements: list[Statement] = []
    for s in program.statements:
        first, *rest = writer.write(s)
        statements += [replace(first, notes=s.notes), *(replace(r, notes=()) for r in rest)]
    return _drop_dead_members(replace(program, statements=tuple(statements)), program, writer)


def _drop_dead_members(expanded: Program, program: Program, writer: _Writer) -> Program:
    used = {name for s in program.statements for name in used_by(s)}
    unused = {n for name in writer.names if name not in used for n in writer.names[name].ravel()}
    kept = drop_dead(expanded, once_used={*writer.all_names()} - unused)
    named = {name for s in kept.statements for name in used_by(s)}
    return replace(kept, data={name: array for name, array in kept.data.items() if name in named})


class _Cell:
    """An expression that adds and multiplies inside object arrays, with 0 and 1 left out."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def __add__(self, other: _Cell) -> _Cell:
        if self.expr == Const(0.0):
            return other
        match other.expr:
            case Const(0.0):
                return self
            case Apply(op) if op is add:  # from left to right, however it came about
                total, terms = self.expr, _summands(other.expr)
                for term in terms:
                    total = Apply(add, (total, term))
                return _Cell(total)
        return _Cell(Apply(add, (self.expr, other.expr)))

    def __mul__(self, other: Any) -> _Cell:
        factor = other.expr if isinstance(other, _Cell) else Const(float(other))
        if Const(0.0) in (self.expr, factor):
            return _Cell(Const(0.0))
        if self.expr == Const(1.0):
            return _Cell(factor)
        return self if factor == Const(1.0) else _Cell(Apply(mul, (self.expr, factor)))

    __rmul__ = __mul__


def _summands(expr: Expr) -> list[Expr]:
    """The terms of a sum that was written from left to right."""
    terms: list[Expr] = []
    while isinstance(expr, Apply) and expr.op is add:
        terms.append(expr.args[1])
        expr = expr.args[0]
    return [expr, *reversed(terms)]


def _cells(values: list[Expr], shape: Index) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = [_Cell(v) for v in values]
    return out.reshape(shape)


def _object(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    out = np.empty((), object)
    out[()] = value
    return out


class _Writer:
    """Names of the members of every block, and the plain statements of each statement."""

    def __init__(self, program: Program) -> None:
        self.program, self.types = program, program.types
        taken = {*program.data, *program.types}
        self.names: dict[str, Any] = {}  # arrays of names
        for name, type_ in program.types.items():
            self.names[name] = _member_names(name, type_.index, taken)
        vectors = (self.names[name] for name, type_ in program.types.items() if isinstance(type_, H))
        self.vectors = {name for names in vectors for name in names.ravel()}
        self.form = NormalForm(lambda e: self.inferred(e).index, lambda e: self.inferred(e).width is None)

    def inferred(self, e: Expr) -> Inferred:
        return infer(e, self.known, lambda what, *_: LoweringError(f"an expression is ill-typed: {what}"))

    def known(self, name: str) -> Inferred:
        data = self.program.data.get(name)
        return as_inferred(self.types[name]) if data is None else Inferred("K", data.shape)

    def all_names(self) -> Iterator[str]:
        for names in self.names.values():
            yield from names.ravel()

    def write(self, s: Statement) -> Sequence[Statement]:
        match s:
            case Input():
                return self.inputs(s)
            case MatMul():
                return self.matmuls(s)
            case Output():
                return self.outputs(s)
            case _:
                return self.assignments(s)

    def inputs(self, s: Input) -> Sequence[Statement]:
        names, plain = self.names[s.name], replace(s.type, index=())
        match s.law:
            case MatrixLaw():
                return [replace(s, name=n, type=plain) for n in names.ravel()]
            case Embedding(matrix, data, aligned):
                inner = len(self.types[matrix].index)
                return [
                    replace(
                        s,
                        name=names[i],
                        type=plain,
                        law=Embedding(self.names[matrix][i[:inner]], _data_at(data, i[:aligned] + i[inner:])),
                    )
                    for i in np.ndindex(names.shape)
                ]
            case law:
                if isinstance(law.cov, float) and not law.cross:  # independent members
                    mean = input_mean(s)
                    return [
                        replace(s, name=n, type=plain, law=replace(law, mean=float(mean[k])))
                        for k, n in enumerate(names.ravel())
                    ]
                return [
                    replace(s, name=n, type=plain, law=self.member_law(s, law, k))
                    for k, n in enumerate(names.ravel())
                ]

    def member_law(self, s: Input, law: Normal, k: int) -> Normal:
        """The law of member k, with its covariances to all members that come before it."""
        earlier = [name for name, _ in law.cross]
        sources = [self.program.definitions[name] for name in earlier] + [s]
        cross: list[tuple[str, float]] = []
        for t in sources:
            assert isinstance(t, Input)
            sigma = input_covariance(self.program, s, t)
            assert sigma is not None
            others = self.names[t.name].ravel()[: k if t is s else None]
            cross += [(n, float(sigma[k, j])) for j, n in enumerate(others) if sigma[k, j] != 0]
        own = input_covariance(self.program, s, s)
        assert own is not None
        return Normal(float(input_mean(s)[k]), float(own[k, k]), tuple(cross), law.each)

    def matmuls(self, s: MatMul) -> Sequence[Statement]:
        names, matrices, vectors = self.names[s.name], self.names[s.matrix], self.names[s.operand]
        plain = replace(self.types[s.name], index=())
        inner = matrices.ndim
        return [
            MatMul(
                names[i], matrices[i[:inner]], vectors[i[: s.aligned] + i[inner:]], 0, plain, place=s.place
            )
            for i in np.ndindex(names.shape)
        ]

    def outputs(self, s: Output) -> Sequence[Statement]:
        """One output per member; the axes that a term sums over become a sum of plain terms."""
        columns = [self.terms(t) for t in s.terms]
        return [Output(sum(parts, ()), s.shift, place=s.place) for parts in zip(*columns, strict=True)]

    def terms(self, t: Term) -> list[tuple[Term, ...]]:
        readouts, operands = self.names[t.readout], self.names[t.operand]
        summed = list(np.ndindex(readouts.shape[: t.aligned]))
        return [
            tuple(Term(readouts[m + i], operands[m + j], t.width) for m in summed)
            for i in np.ndindex(readouts.shape[t.aligned :])
            for j in np.ndindex(operands.shape[t.aligned :])
        ]

    def assignments(self, s: LinComb | Nonlin | Moment | Scalar) -> Sequence[Statement]:
        cells = self.evaluate(s.expr).array
        names, plain = self.names[s.name], replace(self.types[s.name], index=())
        made = [replace(s, name=names[i], expr=cells[i].expr, type=plain) for i in np.ndindex(names.shape)]
        if isinstance(s, Scalar):
            return made
        return [replace(m, expr=self.as_vector(m.expr, s.expr)) for m in made]

    def as_vector(self, expr: Expr, whole: Expr) -> Expr:
        """A member without vectors (the sum over no neighbours), with a multiple of some vector added."""
        if any(name in self.vectors for name in refs(expr)):
            return expr
        vector = next(n for n in refs(whole) if isinstance(self.types.get(n), H))
        zero = Apply(mul, (Const(0.0), Ref(self.names[vector].ravel()[0])))
        return zero if expr == Const(0.0) else Apply(add, (expr, zero))

    # Expressions on arrays of expressions

    def evaluate(self, expr: Expr) -> Block:
        found: dict[Expr, Block] = {}
        for node in subtrees(expr):
            found[node] = self.block(node, found)
        return found[expr]

    def block(self, expr: Expr, found: dict[Expr, Block]) -> Block:
        """The array of plain expressions of a node, from those of its arguments."""
        match expr:
            case Const():
                return Block(_object(_Cell(expr)), 0)
            case Ref(name) if name in self.program.data:
                array = self.program.data[name]
                return Block(_cells([Const(float(v)) for v in array.ravel()], array.shape), array.ndim)
            case Ref(name):
                names = self.names[name]
                return Block(_cells([Ref(n) for n in names.ravel()], names.shape), names.ndim)
        blocks = [found[a] for a in expr.args]
        match expr.op:
            case IndexMap():
                out = expr.op.run(*blocks, **expr.options)
                return Block(_object(out.array), out.rank)
            case Mixing() if expr.op is d_batchnorm:
                return self.evaluate(written_out(self.form, expr))
            case Mixing() if "axis" in expr.options:
                return _mix(expr.op, expr.options, blocks)
            case Function() | Mixing():
                return _elementwise(expr, blocks)
        raise TypeError(f"no expansion of {expr.op}")


def _elementwise(expr: Apply, blocks: list[Block]) -> Block:
    arrays, rank, _ = align(blocks)
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    columns = [np.broadcast_to(a, shape).ravel() for a in arrays]
    made = [_apply(expr, *(c.expr for c in cells)) for cells in zip(*columns, strict=True)]
    return Block(_cells(made, shape), rank)


def _apply(expr: Apply, *args: Expr) -> Expr:
    """The operation on plain arguments; sums leave out zeros, which members of an index map may be."""
    zero = Const(0.0)
    if expr.op is add and zero in args:
        return args[1] if args[0] == zero else args[0]
    if expr.op is sub and zero in args:
        return args[0] if args[1] == zero else Apply(neg, (args[1],))
    if (expr.op is mul and zero in args) or (expr.op in (div, neg) and args[0] == zero):
        return zero
    return Apply(expr.op, args, expr.attrs, expr.pick)


def _mix(op: Mixing, options: dict, blocks: list[Block]) -> Block:
    """`op` along index axes: each group of members becomes one application with several arguments."""
    axes = axes_of(options.pop("axis"), blocks[0].rank)
    attrs = tuple(sorted(options.items()))
    array, rank = blocks[0].array, blocks[0].rank
    rest = [a for a in range(rank) if a not in axes]
    sizes = [array.shape[a] for a in axes]
    groups: Any = np.transpose(array, rest + list(axes)).reshape([array.shape[a] for a in rest] + [-1])
    counts = np.ones(groups.shape, bool)
    if len(blocks) > 1:
        mask = np.broadcast_to(blocks[1].lift(rank, False), array.shape)
        mask = np.transpose(mask, rest + list(axes)).reshape(groups.shape)
        counts = np.vectorize(lambda cell: float(evaluate(cell.expr, {}).array) > 0, otypes=[bool])(mask)
    out: Any = np.empty(groups.shape[:-1] if op.reduces else groups.shape, object)
    for i in np.ndindex(groups.shape[:-1]):
        which = np.flatnonzero(counts[i])
        members = tuple(groups[i][k].expr for k in which)
        if op.reduces:
            out[i] = _Cell(Apply(op, members, attrs))
            continue
        for k in range(groups.shape[-1]):
            out[(*i, k)] = _Cell(Const(0.0))
        for position, k in enumerate(which):
            out[(*i, k)] = _Cell(Apply(op, members, attrs, position))
    if op.reduces:
        return Block(out, len(rest))
    full = out.reshape([array.shape[a] for a in rest] + sizes)
    return Block(np.transpose(full, np.argsort(rest + list(axes))), rank)


def _data_at(data: Expr, index: Index) -> Expr:
    return Apply(at, (data,), (("index", index),)) if index else data


def _member_names(name: str, index: Index, taken: set[str]) -> Any:
    names: Any = np.empty(index, object)
    for i in np.ndindex(index):
        member = "_".join([name, *map(str, i)])
        while index and member in taken:
            member += "_"
        names[i] = member
        taken.add(member)
    return names
