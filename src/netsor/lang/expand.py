"""Expansion of blocks to the paper's form, with one plain variable per line.

Every block becomes an array of names. Expressions are evaluated on object arrays whose entries are
expressions, so the index maps that act on numbers act on variables, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from netsor.errors import LoweringError
from netsor.lang.blocks import Block, align
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, fold, refs
from netsor.lang.functions import add, d_batchnorm, mul
from netsor.lang.index_maps import at
from netsor.lang.input_laws import joint_covariance
from netsor.lang.lower import drop_dead
from netsor.lang.ops import IndexMap, Mixing
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
from netsor.lang.symbols import Symbol
from netsor.lang.tangent_terms import NormalForm, written_out
from netsor.lang.types import H, Index, Type, infer, type_of


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
        what = f"one variable per line makes {lines:,} lines, more than {most_lines:,}"
        remedy = "Blocks keep a program short: read it as it is, or expand it for smaller inputs."
        raise LoweringError(what, remedy=remedy)
    writer = _Writer(program)
    statements = tuple(member for s in program.statements for member in writer.write(s))
    # Drop unused members of blocks that are used, and keep variables that the source leaves unused.
    used = {name for s in program.statements for name in used_by(s)}
    members = {n for name, names in writer.names.items() if name in used for n in names.ravel()}
    return drop_dead(replace(program, statements=statements), members | program.data.keys())


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


def _cells(leaf: Callable[[Any], Expr], values: Any) -> Any:
    """An array of members from an array of names or numbers."""
    return np.asarray(np.frompyfunc(lambda value: _Member(leaf(value)), 1, 1)(values), object)


class _Writer:
    """Name the members of every block, and write each statement member by member."""

    def __init__(self, program: Program) -> None:
        self.program, self.types = program, program.types
        taken = {*program.data, *program.types}
        # block -> array of its members' names, of the block's index shape
        self.names = {name: _member_names(name, t.index, taken) for name, t in self.types.items()}
        self.vectors = {
            n for name, t in self.types.items() if isinstance(t, H) for n in self.names[name].flat
        }
        self.form = NormalForm(lambda e: self.type(e).index, lambda e: not isinstance(self.type(e), H))

    def type(self, e: Expr) -> Type:
        return infer(e, lambda name: type_of(self.program, name))

    def write(self, s: Statement) -> Sequence[Statement]:
        """The statements of the members of a block; the notes stand before the first."""
        if isinstance(s, Output):
            columns = [self.terms(t) for t in s.terms]
            members = [replace(s, terms=sum(parts, ())) for parts in zip(*columns, strict=True)]
            return [members[0], *(replace(member, notes=()) for member in members[1:])]
        names, type_ = self.names[s.name], replace(self.types[s.name], index=())
        cells = self.evaluate(s.expr).array if isinstance(s, Assignment) else names
        return [
            replace(s, name=names[i], type=type_, notes=() if k else s.notes, **self.changes(s, cells, k, i))
            for k, i in enumerate(np.ndindex(names.shape))
        ]

    def changes(self, s: Input | MatMul | Assignment, cells: Any, k: int, i: Index) -> dict[str, Any]:
        """The fields of the statement of member k, of index i; `cells` are the expressions of all members."""
        match s:
            case Input():
                return {"law": self.member_law(s, k, i)}
            case MatMul():  # matrix[i, j] @ vector[i, k], where the aligned axes i are shared
                inner = len(self.types[s.matrix].index)
                operand = self.names[s.operand][i[: s.aligned] + i[inner:]]
                return {"matrix": self.names[s.matrix][i[:inner]], "operand": operand, "aligned": 0}
            case Scalar():
                return {"expr": cells[i].expr}
        return {"expr": self.as_vector(cells[i].expr, s.expr)}

    def member_law(self, s: Input, k: int, i: Index) -> Law:
        """The law of member k, of index i; it lists the covariances with all earlier members."""
        match s.law:
            case MatrixLaw():
                return s.law
            case Embedding(matrix, data, aligned):
                inner = len(self.types[matrix].index)
                index = i[:aligned] + i[inner:]
                member = Apply(at, (data,), (("index", index),)) if index else data
                return Embedding(self.names[matrix][i[:inner]], member)
        law, names = s.law, self.names[s.name]
        mean = float(np.broadcast_to(np.asarray(law.mean), names.shape)[i])
        if isinstance(law.cov, float) and not law.cross:  # members are independent
            return replace(law, mean=mean)
        group: list[Any] = [*(self.program.definitions[name] for name, _ in law.cross), s]
        members = [n for t in group for n in self.names[t.name].ravel()]
        row = len(members) - names.size + k
        sigma = joint_covariance(self.program, group)[row].tolist()
        cross = ((name, c) for name, c in zip(members[:row], sigma[:row], strict=True) if c != 0)
        return Normal(mean, sigma[row], tuple(cross), law.each)

    def terms(self, t: Term) -> list[tuple[Term, ...]]:
        """For each output member sum_m v[m, i] . y[m, j] over the aligned axes, as a tuple over m."""
        readouts, operands = self.names[t.readout], self.names[t.operand]
        summed = list(np.ndindex(readouts.shape[: t.aligned]))
        return [
            tuple(Term(readouts[m + i], operands[m + j], t.width) for m in summed)
            for i in np.ndindex(readouts.shape[t.aligned :])
            for j in np.ndindex(operands.shape[t.aligned :])
        ]

    def as_vector(self, expr: Expr, whole: Expr) -> Expr:
        """Add 0 * (some vector) to a member without vectors, such as a sum over no neighbours."""
        # A Nonlin or LinComb must have a width, which only a vector gives it.
        if any(name in self.vectors for name in refs(expr)):
            return expr
        vector = next(n for n in refs(whole) if isinstance(self.types.get(n), H))
        zero = Apply(mul, (ZERO, Ref(self.names[vector].ravel()[0])))
        return zero if expr == ZERO else Apply(add, (expr, zero))

    def evaluate(self, expr: Expr) -> Block:
        """The array of plain expressions of a block expression."""
        return fold(expr, self.leaf, self.applied)

    def leaf(self, e: Ref | Const) -> Block:
        """The members of a variable, or the numbers of data or of a constant."""
        if isinstance(e, Ref) and e.name in self.names:
            cells = _cells(Ref, self.names[e.name])
        else:
            cells = _cells(Const, e.value if isinstance(e, Const) else self.program.data[e.name])
        return Block(cells, cells.ndim)

    def applied(self, e: Apply, blocks: tuple[Block, ...]) -> Block:
        """The plain expressions of a node, from those of its arguments."""
        if isinstance(e.op, IndexMap):
            out = e.op.run(*blocks, **e.options)
            return Block(np.asarray(out.array, object), out.rank)
        if e.op is d_batchnorm:
            return self.evaluate(written_out(self.form, e))
        if isinstance(e.op, Mixing) and "axis" in e.options:
            return _mix(e.op, e.options, blocks)
        return _elementwise(e, blocks)


def _elementwise(e: Apply, blocks: tuple[Block, ...]) -> Block:
    """Apply a function to each member, with broadcasting."""

    def applied(*cells: _Member) -> _Member:
        # Index maps can yield zeros (padding); drop them from sums and products.
        return _Member(at_head(Apply(e.op, tuple(c.expr for c in cells), e.attrs, e.pick), ZEROS))

    arrays, rank, _ = align(blocks)
    return Block(np.asarray(np.frompyfunc(applied, len(arrays), 1)(*arrays), object), rank)


def _mix(op: Mixing, options: dict[str, Any], blocks: tuple[Block, ...]) -> Block:
    """Apply `op` to each group of members of x along index axes, as op(x1, x2, ...); blocks: x and a mask."""
    attrs = tuple(sorted((k, v) for k, v in options.items() if k != "axis"))

    def each_group(members: Any, *masks: Any, **_: Any) -> Any:
        out: Any = np.full(members.shape[op.reduces :], _Member(ZERO), object)
        for i in np.ndindex(members.shape[1:]):
            # Masked members stay 0, as masked softmax weights are.
            positions = [(k, *i) for k in range(len(members))]
            which = [k for k in positions if all(float(evaluate(m[k].expr, {}).array) > 0 for m in masks)]
            group = tuple(members[k].expr for k in which)
            if op.reduces:
                out[i] = _Member(Apply(op, group, attrs))
            else:
                for pick, k in enumerate(which):
                    out[k] = _Member(Apply(op, group, attrs, pick))
        return out

    return replace(op, fn=each_group).run(*blocks, **options)


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
