"""Expansion of blocks to the paper's form, with one plain variable per line.

Every block becomes an array of names. Expressions are evaluated on object arrays whose entries are
expressions, so the index maps that act on numbers act on variables, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from netsor.errors import LoweringError
from netsor.lang.blocks import Block, align
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees
from netsor.lang.functions import add, d_batchnorm, mul
from netsor.lang.index_maps import at
from netsor.lang.inference import Inferred, infer, type_of
from netsor.lang.input_laws import input_covariance
from netsor.lang.lower import drop_dead
from netsor.lang.ops import Function, IndexMap, Mixing, axes_of
from netsor.lang.program import (
    Assignment,
    Embedding,
    Input,
    Law,
    MatMul,
    MatrixLaw,
    Normal,
    Output,
    Program,
    Scalar,
    Statement,
    Term,
    used_by,
)
from netsor.lang.rewrite import ZERO, ZEROS, at_head
from netsor.lang.symbolic_derivatives import Symbol
from netsor.lang.tangent_terms import NormalForm, written_out
from netsor.lang.types import H, Index


def expand(program: Program) -> Program:
    """Write out every block of a program, and drop members that nothing uses.

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
    most_lines = 1_000_000  # nobody reads more
    if lines > most_lines:
        raise LoweringError(
            f"one variable per line makes {lines:,} lines, more than {most_lines:,}",
            remedy="Blocks keep a program short: read it as it is, or expand it for smaller inputs.",
        )
    writer = _Writer(program)
    statements: list[Statement] = []
    for s in program.statements:
        first, *further = writer.write(s)
        statements += [replace(first, notes=s.notes), *(replace(r, notes=()) for r in further)]
    return _drop_dead_members(replace(program, statements=tuple(statements)), program, writer)


def _drop_dead_members(expanded: Program, program: Program, writer: _Writer) -> Program:
    """Drop unused members of blocks that are used, and keep variables that the source leaves unused."""
    used = {name for s in program.statements for name in used_by(s)}
    unused = {n for name in writer.names if name not in used for n in writer.names[name].ravel()}
    kept = drop_dead(expanded, once_used={*writer.all_names()} - unused)
    named = {name for s in kept.statements for name in used_by(s)}
    return replace(kept, data={name: array for name, array in kept.data.items() if name in named})


class _Member(Symbol):
    """A member of a block; a + (b + c) becomes (a + b) + c, the one form that is printed."""

    def __add__(self, other: _Member) -> _Member:
        if self.expr == ZERO:
            return other
        total = self
        for term in _summands(other.expr):
            total = _Member(at_head(Apply(add, (total.expr, term)), ZEROS))
        return total

    def __mul__(self, other: Any) -> _Member:
        """A product; weights are mostly 1 (or 0, in the padding)."""
        if isinstance(other, int | float) and other in (0, 1):
            return self if other else _Member(ZERO)
        return self.operate(mul, self, other)


def _summands(expr: Expr) -> list[Expr]:
    """The terms of a left-associated sum ((a + b) + c)."""
    terms: list[Expr] = []
    while isinstance(expr, Apply) and expr.op is add:
        terms.append(expr.args[1])
        expr = expr.args[0]
    return [expr, *reversed(terms)]


def _cells(values: list[Expr], shape: Index) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = [_Member(v) for v in values]
    return out.reshape(shape)


class _Writer:
    """Name the members of every block, and write each statement member by member."""

    def __init__(self, program: Program) -> None:
        self.program, self.types = program, program.types
        self.plain = {name: replace(type_, index=()) for name, type_ in program.types.items()}
        taken = {*program.data, *program.types}
        self.names: dict[str, Any] = {}  # block -> array of its members' names, of the block's index shape
        for name, type_ in program.types.items():
            self.names[name] = _member_names(name, type_.index, taken)
        vectors = (self.names[name] for name, type_ in program.types.items() if isinstance(type_, H))
        self.vectors = {name for names in vectors for name in names.ravel()}
        self.form = NormalForm(lambda e: self.inferred(e).index, lambda e: self.inferred(e).width is None)

    def inferred(self, e: Expr) -> Inferred:
        return infer(e, lambda name: type_of(self.program, name))

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

    def member(self, s: Input | MatMul | Assignment, i: Index, **changes: object) -> Any:
        """The statement of one member of a block."""
        return replace(s, name=self.names[s.name][i], type=self.plain[s.name], **changes)

    def inputs(self, s: Input) -> Sequence[Statement]:
        """One Input per member."""
        members = enumerate(np.ndindex(self.names[s.name].shape))
        return [self.member(s, i, law=self.member_law(s, k, i)) for k, i in members]

    def member_law(self, s: Input, k: int, i: Index) -> Law:
        """The law of member k, of index i; it lists the covariances with all earlier members."""
        match s.law:
            case MatrixLaw():
                return s.law
            case Embedding(matrix, data, aligned):
                inner = len(self.types[matrix].index)
                return Embedding(self.names[matrix][i[:inner]], _data_at(data, i[:aligned] + i[inner:]))
        law, names = s.law, self.names[s.name]
        mean = float(np.broadcast_to(np.asarray(law.mean), names.shape)[i])
        if isinstance(law.cov, float) and not law.cross:  # members are independent
            return replace(law, mean=mean)
        cross: list[tuple[str, float]] = []
        for t in [*(self.program.definitions[name] for name, _ in law.cross), s]:
            assert isinstance(t, Input)
            sigma = input_covariance(self.program, s, t)
            assert sigma is not None
            earlier_names = self.names[t.name].ravel()[: k if t is s else None]
            cross += [(n, float(sigma[k, j])) for j, n in enumerate(earlier_names) if sigma[k, j] != 0]
        variances = input_covariance(self.program, s, s)
        assert variances is not None
        return Normal(mean, float(variances[k, k]), tuple(cross), law.each)

    def matmuls(self, s: MatMul) -> Sequence[Statement]:
        """One MatMul per member: matrix[i, j] @ vector[i, k], where the aligned axes i are shared."""
        matrices, vectors = self.names[s.matrix], self.names[s.operand]
        inner = matrices.ndim
        return [
            self.member(
                s, i, matrix=matrices[i[:inner]], operand=vectors[i[: s.aligned] + i[inner:]], aligned=0
            )
            for i in np.ndindex(self.names[s.name].shape)
        ]

    def outputs(self, s: Output) -> Sequence[Statement]:
        """One Output per member; the aligned axes of a term become a sum of plain terms."""
        columns = [self.terms(t) for t in s.terms]
        return [Output(sum(parts, ()), s.shift, place=s.place) for parts in zip(*columns, strict=True)]

    def terms(self, t: Term) -> list[tuple[Term, ...]]:
        """For each output member sum_m v[m, i] . y[m, j], as a tuple over m."""
        readouts, operands = self.names[t.readout], self.names[t.operand]
        summed = list(np.ndindex(readouts.shape[: t.aligned]))
        return [
            tuple(Term(readouts[m + i], operands[m + j], t.width) for m in summed)
            for i in np.ndindex(readouts.shape[t.aligned :])
            for j in np.ndindex(operands.shape[t.aligned :])
        ]

    def assignments(self, s: Assignment) -> Sequence[Statement]:
        """One assignment per member."""
        cells = self.evaluate(s.expr).array
        exprs = {i: cells[i].expr for i in np.ndindex(self.names[s.name].shape)}
        if not isinstance(s, Scalar):
            exprs = {i: self.as_vector(expr, s.expr) for i, expr in exprs.items()}
        return [self.member(s, i, expr=expr) for i, expr in exprs.items()]

    def as_vector(self, expr: Expr, whole: Expr) -> Expr:
        """Add 0 * (some vector) to a member without vectors, such as a sum over no neighbours."""
        # A Nonlin or LinComb must have a width, which only a vector gives it.
        if any(name in self.vectors for name in refs(expr)):
            return expr
        vector = next(n for n in refs(whole) if isinstance(self.types.get(n), H))
        zero = Apply(mul, (ZERO, Ref(self.names[vector].ravel()[0])))
        return zero if expr == ZERO else Apply(add, (expr, zero))

    # Expressions on arrays of expressions

    def evaluate(self, expr: Expr) -> Block:
        """The array of plain expressions of a block expression."""
        blocks: dict[Expr, Block] = {}
        for node in subtrees(expr):
            blocks[node] = self.block(node, blocks)
        return blocks[expr]

    def block(self, expr: Expr, computed: dict[Expr, Block]) -> Block:
        """The array of plain expressions of a node, from those of its arguments."""
        match expr:
            case Const():
                return Block(_cells([expr], ()), 0)
            case Ref(name) if name in self.program.data:
                array = self.program.data[name]
                return Block(_cells([Const(float(v)) for v in array.ravel()], array.shape), array.ndim)
            case Ref(name):
                names = self.names[name]
                return Block(_cells([Ref(n) for n in names.ravel()], names.shape), names.ndim)
        blocks = [computed[a] for a in expr.args]
        match expr.op:
            case IndexMap():
                out = expr.op.run(*blocks, **expr.options)
                return Block(np.asarray(out.array, object), out.rank)
            case Mixing() if expr.op is d_batchnorm:
                return self.evaluate(written_out(self.form, expr))
            case Mixing() if "axis" in expr.options:
                return _mix(expr.op, expr.options, blocks)
            case Function() | Mixing():
                return _elementwise(expr, blocks)
        raise TypeError(f"no expansion of {expr.op}")


def _elementwise(expr: Apply, blocks: list[Block]) -> Block:
    """Apply a coordinatewise function to each member, with broadcasting."""
    arrays, rank, _ = align(blocks)
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    columns = [np.broadcast_to(a, shape).ravel() for a in arrays]
    applied = [
        Apply(expr.op, tuple(c.expr for c in cells), expr.attrs, expr.pick)
        for cells in zip(*columns, strict=True)
    ]
    # Index maps can yield zeros (padding); drop them from sums and products.
    return Block(_cells([at_head(member, ZEROS) for member in applied], shape), rank)


def _mix(op: Mixing, options: dict, blocks: list[Block]) -> Block:
    """Apply `op` along index axes: each group of members becomes one application op(x1, x2, ...).

    blocks  x, and optionally a mask of data that broadcasts to it
    """
    axes = axes_of(options.pop("axis"), blocks[0].rank)
    attrs = tuple(sorted(options.items()))
    array, rank = blocks[0].array, blocks[0].rank
    kept = [a for a in range(rank) if a not in axes]
    sizes = [array.shape[a] for a in axes]
    # (kept axes..., members of a group)
    groups: Any = np.transpose(array, kept + list(axes)).reshape([array.shape[a] for a in kept] + [-1])
    counts = np.ones(groups.shape, bool)
    if len(blocks) > 1:
        mask = np.broadcast_to(blocks[1].lift(rank, False), array.shape)
        mask = np.transpose(mask, kept + list(axes)).reshape(groups.shape)
        counts = np.vectorize(lambda cell: float(evaluate(cell.expr, {}).array) > 0, otypes=[bool])(mask)
    out: Any = np.empty(groups.shape[:-1] if op.reduces else groups.shape, object)
    for i in np.ndindex(groups.shape[:-1]):
        which = np.flatnonzero(counts[i])
        members = tuple(groups[i][k].expr for k in which)
        if op.reduces:
            out[i] = _Member(Apply(op, members, attrs))
            continue
        for k in range(groups.shape[-1]):  # masked members become 0, as masked softmax weights are
            out[(*i, k)] = _Member(ZERO)
        for position, k in enumerate(which):
            out[(*i, k)] = _Member(Apply(op, members, attrs, position))
    if op.reduces:
        return Block(out, len(kept))
    full = out.reshape([array.shape[a] for a in kept] + sizes)
    return Block(np.transpose(full, np.argsort(kept + list(axes))), rank)


def _data_at(data: Expr, index: Index) -> Expr:
    return Apply(at, (data,), (("index", index),)) if index else data


def _member_names(name: str, index: Index, taken: set[str]) -> Any:
    """h -> h_0, h_1, ... in an array of shape `index`, avoiding names in `taken`."""
    names: Any = np.empty(index, object)
    for i in np.ndindex(index):
        member = "_".join([name, *map(str, i)])
        while index and member in taken:
            member += "_"
        names[i] = member
        taken.add(member)
    return names
