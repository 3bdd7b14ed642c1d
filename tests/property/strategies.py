"""Random programs and expressions.

`programs()` draws whole well-typed programs, statement by statement. Each expression under construction
is a `Piece`, which knows what the checker would infer of it, so that the next operation can be chosen to
fit, and a bound on its values, so that nothing overflows and rounding errors stay small. Functions with
jumps are only applied beside their jumps: there two ways of rounding would give two values.

`expressions()` draws trees without types, for the text form alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import floor, log2, prod
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy.special import expit, logsumexp

from netsor.lang.blocks import broadcast_index
from netsor.lang.expr import Apply, Const, Expr, Ref, Slice
from netsor.lang.functions import FUNCTIONS, MIXINGS, add, div, mul, named, neg, pow_, sub
from netsor.lang.index_maps import (
    at,
    avgpool,
    concat,
    contract,
    mean,
    patches,
    reshape,
    stack,
    sum_,
    take,
    transpose,
    window,
    windows,
)
from netsor.lang.ops import Function, Mixing, Op
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
)
from netsor.lang.types import A, G, Index

__all__ = ["USER", "expressions", "input_programs", "programs", "typed"]

MEMBERS = 12  # of a block, at most (a kernel times its positions may have three times as many)
RANK = 4  # index axes, at most
BOUND = 40.0  # values, at most (about)
SHAPES: list[Index] = [(), (2,), (3,), (1,), (2, 2), (3, 2), (2, 3), (1, 3)]
PADDINGS = ["same", "valid", "circular"]
JUMP = 0.31415  # where no other number of a program is likely to be


# The user's own functions


def _swish(x, beta):
    return x * expit(beta * x)


def _blend(x, y, c):
    return (x + np.tanh(c) * y) / 2


def _ripple(x, amount):
    return x + amount * np.sin(x)


def _centre(members):
    return members - members.mean(axis=0, keepdims=True)


def _unit(members):
    return members / np.sqrt((members * members).mean(axis=0, keepdims=True) + 1)


def _soft_max(members):
    return logsumexp(members, axis=0)


USER_FUNCTIONS = [
    Function("swish", _swish, 2, 1, user=True),
    Function("blend", _blend, 3, 1, user=True),
    Function("ripple", _ripple, 1, defaults={"amount": 0.5}, user=True),
]
USER_MIXINGS = [
    Mixing("centre", _centre, user=True),
    Mixing("unit", _unit, user=True),
    Mixing("soft_max", _soft_max, reduces=True, user=True),
]
USER: dict[str, Op] = {op.name: op for op in [*USER_FUNCTIONS, *USER_MIXINGS]}


# Expressions under construction


@dataclass(frozen=True)
class Piece:
    """An expression with its kind, index shape and width, and a bound on its values."""

    expr: Expr
    kind: str
    index: Index
    width: str | None = None
    bound: float = 1.0


def number(value: float) -> Piece:
    return Piece(Const(value), "K", (), None, abs(value))


def apply(op: Op, *pieces: Piece, bound: float, pick: int | None = None, **attrs: Any) -> Piece:
    """`op(pieces)`; ValueError where the shapes do not fit."""
    index = op.shape(*(p.index for p in pieces), **attrs)
    width = next((p.width for p in pieces if p.width), None)
    expr = Apply(op, tuple(p.expr for p in pieces), tuple(sorted(attrs.items())), pick)
    return Piece(expr, op.kind(tuple(p.kind for p in pieces)), index, width, bound)


def plus(x: Piece, y: Piece) -> Piece:
    return apply(add, x, y, bound=x.bound + y.bound)


def times(x: Piece, y: Piece) -> Piece:
    return apply(mul, x, y, bound=x.bound * y.bound)


def tame(x: Piece, limit: float = BOUND) -> Piece:
    """A multiple of x whose values are at most `limit`; a multiple keeps the kind."""
    if x.bound <= limit:
        return x
    return times(number(2.0 ** floor(log2(limit / x.bound))), x)


def fits(*shapes: Index) -> bool:
    """Whether the shapes broadcast to a block that is not too large."""
    try:
        out = broadcast_index(*shapes)
    except ValueError:
        return False
    return prod(out) <= MEMBERS and len(out) <= RANK


def _ends_with(shape: Index, end: Index) -> bool:
    return len(end) <= len(shape) and shape[len(shape) - len(end) :] == end


def nested(array: np.ndarray) -> Any:
    return tuple(nested(a) for a in array) if array.ndim else float(array)


# Programs


@st.composite
def programs(draw: Callable, types: bool | None = False) -> Program:
    """A well-typed program; with its types left out, filled in (True), or some of each (None)."""
    program = _Maker(draw).program()
    if types is False:
        return program
    whole = typed(program)
    if types:
        return whole
    pairs = zip(whole.statements, program.statements, strict=True)
    return replace(program, statements=tuple(draw(st.sampled_from(pair)) for pair in pairs))


@st.composite
def input_programs(draw: Callable) -> Program:
    """Nothing but input G-vars of one width, most of them correlated."""
    maker = _Maker(draw)
    for _ in range(maker.count(2, 5)):
        maker.normal_input("n")
    return Program(tuple(maker.statements), maker.data)


def typed(program: Program) -> Program:
    """The program with the types that the checker finds written down."""
    known = program.types

    def fill(s: Statement) -> Statement:
        return s if isinstance(s, Input | Output) else replace(s, type=known[s.name])

    return replace(program, statements=tuple(fill(s) for s in program.statements))


@cache
def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


ODD_NAMES = ["T", "N", "A", "G", "H", "C", "n", "sqrt", "relu", "inf", "nan", "axes", "aligned"]
WIDTHS = [("n",), ("n", "m"), ("n1", "n2", "n3"), ("A", "T"), ("g1",)]


class _Maker:
    """A program in the making: its statements so far and what the next one can mention."""

    def __init__(self, draw: Callable) -> None:
        self.draw = draw
        self.numbers = np.random.default_rng(draw(st.integers(0, 9999)))
        self.data: dict[str, np.ndarray] = {}
        self.statements: list[Statement] = []
        self.vectors: list[Piece] = []
        self.scalars: list[Piece] = []
        self.matrices: dict[str, A] = {}
        self.readouts: list[Input] = []
        self.loadings: dict[str, tuple[str, np.ndarray]] = {}
        self.taken: set[str] = set()
        self.widths = self.pick(WIDTHS)

    def pick(self, options: Sequence) -> Any:
        return options[self.count(0, len(options) - 1)]

    def spin(self, options: Sequence) -> Any:
        """A choice from a wheel that stands elsewhere for each seed, so that no option is a favourite."""
        start = int(self.numbers.integers(len(options)))
        return options[(start + self.count(0, len(options) - 1)) % len(options)]

    def chance(self) -> bool:
        return self.count(0, 1) == 1

    def count(self, low: int, high: int) -> int:
        return self.draw(_integers(low, high))

    def program(self) -> Program:
        for width in self.widths:
            self.normal_input(width)
        for _ in range(self.pick(range(3, 8))):
            step = self.pick(
                [
                    self.nonlin,
                    self.lincomb,
                    self.matmul,
                    self.convolution,
                    self.moment,
                    self.scalar_statement,
                    self.normal_input,
                    self.embedding,
                    self.nonlin,
                    self.nonlin,
                ]
            )
            step(self.pick(self.widths))
        for _ in range(self.count(1, 2)):
            self.output()
        made = Program(tuple(self.statements), self.data)
        made.check()
        return made

    def name(self, prefix: str) -> str:
        """Mostly a prefix and a number; sometimes a name that looks like something else."""
        plain = next(f"{prefix}{i}" for i in range(1, 99) if f"{prefix}{i}" not in self.taken)
        name = plain
        if self.count(0, 9) == 9:
            members = [f"{old}_{i}" for old in sorted(self.taken) for i in (0, 1)]
            name = self.pick([*ODD_NAMES, *members])
        name = plain if name in self.taken else name
        self.taken.add(name)
        return name

    # Data

    def array(self, shape: Index, values: np.ndarray | None = None) -> Piece:
        """Data of this shape, old or new: quarters from -1.5 to 1.5, many of them zero."""
        if values is None:
            old = [n for n, a in self.data.items() if a.shape == shape]
            if old and self.chance():
                return self.data_piece(self.pick(old))
            values = self.numbers.integers(-6, 7, shape) / 4
            if self.chance():
                values = values * self.numbers.integers(0, 2, shape)
        name = self.name("x")
        self.data[name] = np.asarray(values, float)
        return self.data_piece(name)

    def data_piece(self, name: str) -> Piece:
        return Piece(Ref(name), "K", self.data[name].shape, None, 2.0)

    def known(self, shape: Index) -> Piece:
        """A number, data of this shape, part of larger data, or a simple expression of data."""
        match self.count(0, 5):
            case 0 if not shape:
                return self.constant()
            case 1 if len(shape) < RANK:
                whole = self.array((2, *shape))
                return apply(at, whole, index=(self.pick([0, 1, -1]),), bound=whole.bound)
            case 2:
                x = self.array(shape)
                return apply(self.pick([add, sub]), x, self.constant(), bound=x.bound + 3)
            case 3:
                return apply(neg, self.array(shape), bound=2.0)
        return self.array(shape)

    def constant(self) -> Piece:
        return number(self.pick([2.0, 0.5, -1.0, -0.25, 1.0, 3.0, 0.1, 0.0, -0.0, 1e-3, 1e-20]))

    # Inputs

    def normal_input(self, width: str) -> None:
        index = self.pick(SHAPES)
        name = self.name(self.pick(["g", "b"]))
        average = self.pick([0.0, 0.5, -1.0, "each"])
        if average == "each":
            average = nested(self.numbers.integers(-2, 3, index) / 2)
        law = replace(self.law(name, width, index), mean=average)
        self.statements.append(Input(name, G(width, index), law))
        self.vectors.append(Piece(Ref(name), "G", index, width, 5.0))

    def law(self, name: str, width: str, index: Index) -> Normal:
        """One variance, or a covariance matrix, with covariances to what was drawn this way before."""
        if self.chance():
            return Normal(0.0, self.pick([1.0, 2.0, 0.25, 0.0, 1e-7]))
        loading = self.numbers.integers(-2, 3, (prod(index), 3)) * (self.numbers.integers(0, 2, 3) / 2)
        noise = self.pick([0.25, 0.0, 1.0])
        cross = []
        for other, (its_width, its_loading) in self.loadings.items():
            shared = loading @ its_loading.T
            if its_width == width and shared.any():
                cross.append((other, float(shared[0, 0]) if shared.size == 1 else nested(shared)))
        self.loadings[name] = width, loading
        return Normal(0.0, nested(loading @ loading.T + noise * np.eye(prod(index))), tuple(cross))

    def matrix(self, rows: str, cols: str | int, index: Index) -> str:
        name = self.name("W")
        self.matrices[name] = A(rows, cols, index)
        var = self.pick([1.0, 2.0, 0.5, 1 / 3, 1e-5])
        self.statements.append(Input(name, self.matrices[name], MatrixLaw(var)))
        return name

    def some_matrix(self, rows: str, cols: str | int, shapes: list[Index]) -> str:
        """An old matrix with these columns, or a new one."""
        old = [n for n, a in self.matrices.items() if a.cols == cols and a.index in shapes]
        return self.pick(old) if old and self.chance() else self.matrix(rows, cols, self.pick(shapes))

    def embedding(self, width: str) -> None:
        columns = self.count(1, 3)
        x = self.known((*self.pick([(), (2,), (3,), (2, 2)]), columns))
        matrix = self.some_matrix(width, columns, [(), (2,)])
        type_: Any = self.matrices[matrix]
        name = self.name("g")
        index = type_.index + x.index[:-1]
        self.statements.append(Input(name, G(type_.rows, index), Embedding(matrix, x.expr)))
        self.vectors.append(Piece(Ref(name), "G", index, type_.rows, 8.0))

    # Statements

    def keep(self, statement: Any, piece: Piece, kind: str) -> None:
        self.statements.append(statement)
        width = None if kind == "C" else piece.width
        kept = Piece(Ref(statement.name), kind, piece.index, width, piece.bound)
        (self.scalars if kind == "C" else self.vectors).append(kept)

    def matmul(self, width: str) -> None:
        operand = self.pick(self.vectors)
        aligned = self.count(0, len(operand.index)) if self.chance() else 0
        rest = operand.index[aligned:]
        shapes = [operand.index[:aligned] + s for s in [(), (2,), (3,), (2, 2)]]
        shapes = [s for s in shapes if prod(s + rest) <= MEMBERS and len(s + rest) <= RANK]
        if shapes:
            self.write_matmul(operand, self.some_matrix(width, operand.width or "", shapes), aligned)

    def convolution(self, width: str) -> None:
        """The product of a kernel with a block, for a window to come."""
        blocks = [v for v in self.vectors if 1 <= len(v.index) <= 2]
        if not blocks:
            return self.matmul(width)
        operand = self.pick(blocks)
        kernels = [(1,), (2,), (3,)] if len(operand.index) == 1 else [(2, 2), (1, 2), (3, 1), (2,)]
        self.write_matmul(operand, self.some_matrix(width, operand.width or "", kernels), 0)
        return self.lincomb_of(self.windowed(self.vectors[-1]))

    def write_matmul(self, operand: Piece, matrix: str, aligned: int) -> None:
        type_: Any = self.matrices[matrix]  # of a width, not of a number of rows
        assert isinstance(operand.expr, Ref)
        name = self.name("g")
        made = Piece(operand.expr, "G", type_.index + operand.index[aligned:], type_.rows, 2 * operand.bound)
        self.keep(MatMul(name, matrix, operand.expr.name, aligned), made, "G")

    def lincomb(self, width: str) -> None:
        self.lincomb_of(self.linear(width, self.count(0, 3)))

    def lincomb_of(self, piece: Piece) -> None:
        piece = tame(self.small(piece))
        self.keep(LinComb(self.name("h"), piece.expr), piece, "G")

    def nonlin(self, width: str) -> None:
        piece = self.small(self.vector(width, self.count(1, 3)))
        self.keep(Nonlin(self.name("y"), piece.expr), piece, "H")

    def moment(self, width: str) -> None:
        piece = self.vector(width, self.count(0, 2))
        if self.chance():
            piece = self.pairs(piece, self.vector(width, self.count(0, 1)))
        piece = self.small(piece)
        self.keep(Moment(self.name("c"), piece.expr), piece, "C")

    def pairs(self, x: Piece, y: Piece) -> Piece:
        """The products of all members of x with all members of y, as for attention."""
        x, y = tame(self.line(x), 8.0), tame(self.line(y), 8.0)
        left = apply(at, x, index=(Slice(), None), bound=x.bound)
        return times(left, apply(at, y, index=(None, Slice()), bound=y.bound) if self.chance() else y)

    def line(self, x: Piece) -> Piece:
        """A block with one index axis."""
        while len(x.index) > 1:
            x = apply(mean, x, axis=0, bound=x.bound)
        return x if x.index else apply(at, x, index=(None,), bound=x.bound)

    def scalar_statement(self, _: str) -> None:
        piece = self.small(self.scalar(self.count(1, 3)))
        self.keep(Scalar(self.name("d"), piece.expr), piece, "C")

    def output(self) -> None:
        """A sum of readouts of one index shape."""
        first = self.leaf(self.vectors)
        aligned = self.count(0, len(first.index))
        own = self.pick([(), (2,), (3,)])
        shape = own + first.index[aligned:]
        terms = [self.term(first, shape, aligned)]
        for _ in range(self.count(0, 2)):
            y = self.leaf(self.vectors)
            rest = [k for k in range(len(y.index) + 1) if _ends_with(shape, y.index[k:])]
            terms.append(self.term(y, shape, self.pick(rest)))
        self.statements.append(Output(tuple(terms)))

    def term(self, y: Piece, shape: Index, aligned: int) -> Term:
        rest = y.index[aligned:]
        index = y.index[:aligned] + shape[: len(shape) - len(rest)]
        type_ = G(y.width or "", index)
        old = [v.name for v in self.readouts if v.type == type_]
        name = self.pick(old) if old and self.chance() else self.readout(type_)
        assert isinstance(y.expr, Ref)
        return Term(name, y.expr.name, type_.width, aligned)

    def readout(self, type_: G) -> str:
        """A readout of its own, or one with a covariance to an earlier one."""
        name, size = self.name("v"), prod(type_.index)
        cross: tuple = ()
        plain = [v for v in self.readouts if v.type.width == type_.width and v.law == Normal()]  # type: ignore
        if plain and self.chance():
            other = self.pick(plain)
            few = np.eye(size, prod(other.type.index)) / 2
            cross = ((other.name, nested(few)),)
            self.readouts.remove(other)
        made = Input(name, type_, Normal(0.0, self.pick([1.0, 2.0]) if cross else 1.0, cross))
        self.statements.append(made)
        self.readouts.append(made)
        return name

    # Linear expressions

    def leaf(self, found: list[Piece]) -> Piece:
        return self.pick(found[-3:] if self.chance() else found)

    def linear(self, width: str, depth: int) -> Piece:
        """A linear combination of G-vars."""
        found = [v for v in self.vectors if v.width == width and v.kind == "G"]
        if depth == 0:
            return self.leaf(found)
        x = self.linear(width, depth - 1)
        rule = self.pick([self.index_map, self.index_map, self.scaled, self.summed])
        if rule == self.summed:
            return self.summed(x, self.linear(width, self.count(0, depth - 1)))
        return self.small(rule(x))

    def scaled(self, x: Piece) -> Piece:
        match self.count(0, 4):
            case 0:
                return apply(neg, x, bound=x.bound)
            case 1:
                a = self.pick([2.0, -0.5, 4.0])
                return apply(div, x, number(a), bound=2 * x.bound)
            case 2:
                a = self.array(self.part(x))
                return apply(div, x, plus(times(a, a), number(1.0)), bound=x.bound)
        a = self.known(self.part(x))
        return times(a, x) if self.chance() else times(x, a)

    def part(self, x: Piece) -> Index:
        """A shape that broadcasts with x."""
        index = x.index[self.count(0, len(x.index)) :]
        return tuple(1 if n > 1 and self.count(0, 3) == 3 else n for n in index)

    def summed(self, x: Piece, y: Piece) -> Piece:
        y = self.fit(y, x)
        return tame(apply(self.pick([add, sub]), x, y, bound=x.bound + y.bound))

    def fit(self, y: Piece, x: Piece) -> Piece:
        """y, or one member or the mean of it, such that it broadcasts with x."""
        if fits(x.index, y.index):
            return y
        if self.chance():
            return apply(mean, y, axis=tuple(range(len(y.index))), bound=y.bound)
        return self.member(y)

    def member(self, y: Piece) -> Piece:
        """One vector or scalar of a block."""
        return apply(at, y, index=tuple(self.count(-n, n - 1) for n in y.index), bound=y.bound)

    def small(self, x: Piece) -> Piece:
        """x, or a part of it that is not too large."""
        while prod(x.index) > MEMBERS or len(x.index) > RANK:
            if self.chance():
                x = apply(mean, x, axis=self.axis(x)[0], bound=x.bound)
            else:
                x = apply(at, x, index=(self.count(0, x.index[0] - 1),), bound=x.bound)
        return tame(x)

    # Index maps

    def index_map(self, x: Piece) -> Piece:
        """One of the maps on index axes, with options that suit."""
        maps = [self.new_axis, self.reshaped, self.stacked]
        if x.index:
            maps += [self.select, self.taken_from, self.transposed, self.reduce, self.joined]
            maps += [self.contracted, self.pooled, self.patched, self.opened]
        if len(x.index) >= 2:
            maps += [self.windowed] * 3
        return self.spin(maps)(x)

    def new_axis(self, x: Piece) -> Piece:
        where = self.count(0, len(x.index))
        items = (*(Slice() for _ in range(where)), None)
        return apply(at, x, index=items, bound=x.bound)

    def select(self, x: Piece) -> Piece:
        if not x.index:
            return self.new_axis(x)
        items: list[Any] = [self.item(n) for n in x.index[: self.count(1, len(x.index))]]
        if self.count(0, 4) == 4:
            items.insert(self.count(0, len(items)), None)
        return apply(at, x, index=tuple(items), bound=x.bound)

    def item(self, n: int) -> Any:
        slices = [Slice(), Slice(1), Slice(None, -1), Slice(None, None, -1), Slice(None, None, 2)]
        slices += [Slice(0, 1), Slice(-2, None), Slice(5, None, -1), Slice(0, 2, 1), Slice(-1, -9, -2)]
        fitting = [s for s in slices if range(n)[s.builtin]]
        return self.pick([self.count(-n, n - 1), self.pick(fitting)])

    def taken_from(self, x: Piece) -> Piece:
        axis, n = self.axis(x)
        indices = tuple(self.count(-n, n - 1) for _ in range(self.count(1, 3)))
        return apply(take, x, axis=axis, indices=indices, bound=x.bound)

    def axis(self, x: Piece) -> tuple[int, int]:
        axis = self.count(-len(x.index), len(x.index) - 1)
        return axis, x.index[axis]

    def axes(self, x: Piece) -> tuple[Any, int]:
        """One axis or several, and how many members they have together."""
        if self.chance():
            return self.axis(x)
        rank = len(x.index)
        chosen = [a for a in range(rank) if self.chance()]
        axes = tuple(a - rank if self.chance() else a for a in self.draw(st.permutations(chosen)))
        return axes, prod(x.index[a] for a in axes)

    def reshaped(self, x: Piece) -> Piece:
        options = [(prod(x.index),), x.index[::-1], (1, *x.index), (*x.index, 1)]
        options += [tuple(n for n in x.index if n > 1)]
        return apply(reshape, x, shape=self.pick(options), bound=x.bound)

    def transposed(self, x: Piece) -> Piece:
        axes = tuple(self.draw(st.permutations(range(len(x.index)))))
        return apply(transpose, x, axes=axes, bound=x.bound)

    def reduce(self, x: Piece) -> Piece:
        axes, count = self.axes(x)
        if self.chance():
            return apply(mean, x, axis=axes, bound=x.bound)
        return tame(apply(sum_, x, axis=axes, bound=count * x.bound))

    def stacked(self, x: Piece) -> Piece:
        others = [times(self.constant(), x), x, *self.same_shape(x)]
        parts = [x, *(self.pick(others) for _ in range(self.count(0, 2)))]
        parts = self.draw(st.permutations(parts))
        axis = self.count(-len(x.index) - 1, len(x.index))
        return apply(stack, *parts, axis=axis, bound=max(p.bound for p in parts))

    def joined(self, x: Piece) -> Piece:
        axis, _ = self.axis(x)
        head = tuple(Slice(0, 1) if a == axis % len(x.index) else Slice() for a in range(len(x.index)))
        others = [x, apply(at, x, index=head, bound=x.bound), *self.same_shape(x)]
        parts = [x, *(self.pick(others) for _ in range(self.count(0, 2)))]
        return apply(concat, *self.draw(st.permutations(parts)), axis=axis, bound=max(p.bound for p in parts))

    def same_shape(self, x: Piece) -> list[Piece]:
        """Other variables that can stand beside x in a stack: for an H-var also scalars and data."""
        same = [v for v in self.vectors if v.index == x.index and v.width == x.width]
        if x.kind == "G":
            return [v for v in same if v.kind == "G"]
        if x.kind in ("C", "K"):
            same = []
        known = [self.known(x.index)] if x.kind != "K" or self.chance() else []
        return same + [c for c in self.scalars if c.index == x.index and x.kind != "K"] + known

    def contracted(self, x: Piece) -> Piece:
        lead = (2,) if len(x.index) == 1 and self.count(0, 2) == 2 else ()
        a = self.known((*lead, self.count(1, 3), x.index[-1]))
        return tame(apply(contract, a, x, bound=x.index[-1] * a.bound * x.bound))

    def windowed(self, x: Piece) -> Piece:
        dims = 2 if len(x.index) >= 4 and self.count(0, 3) else 1
        stride = tuple(self.count(1, 3) for _ in range(dims))
        dilation = tuple(self.count(1, 2) for _ in range(dims))
        options = {"dims": dims, **self.maybe(stride=stride, dilation=dilation)}
        size = x.bound * prod(x.index[:dims])
        try:
            return tame(apply(window, x, bound=size, padding=self.pick(PADDINGS), **options))
        except ValueError:
            return tame(apply(window, x, bound=size, padding="same", **options))

    def pooled(self, x: Piece) -> Piece:
        return self.over_windows(avgpool, x)

    def patched(self, x: Piece) -> Piece:
        return self.over_windows(patches, x)

    def opened(self, x: Piece) -> Piece:
        dims = self.count(1, min(2, len(x.index)))
        stride, sizes = (tuple(self.count(1, 2) for _ in range(dims)) for _ in range(2))
        options: dict[str, Any] = {"kernel": sizes, "stride": stride}
        try:
            return apply(windows, x, bound=x.bound, padding=self.pick(PADDINGS), **options)
        except ValueError:
            return apply(windows, x, bound=x.bound, padding="same", **options)

    def over_windows(self, op: Op, x: Piece) -> Piece:
        dims = self.count(1, min(2, len(x.index)))
        stride, sizes = (tuple(self.count(1, 3) for _ in range(dims)) for _ in range(2))
        options: dict[str, Any] = {"size": sizes, "stride": stride}
        try:
            return apply(op, x, bound=x.bound, padding=self.pick(PADDINGS), **options)
        except ValueError:
            return apply(op, x, bound=x.bound, padding="same", **options)

    # Other expressions

    def vector(self, width: str, depth: int) -> Piece:
        """A coordinatewise function of vectors of one width."""
        if depth == 0:
            return self.leaf([v for v in self.vectors if v.width == width])
        x = self.vector(width, depth - 1)
        return self.step(x, lambda: self.vector(width, self.count(0, depth - 1)))

    def scalar(self, depth: int) -> Piece:
        """A function of C-vars and data."""
        if depth == 0:
            return self.leaf([*self.scalars, self.constant(), self.known(self.pick(SHAPES))])
        x = self.scalar(depth - 1)
        return self.step(x, lambda: self.scalar(self.count(0, depth - 1)))

    def step(self, x: Piece, other: Callable[[], Piece]) -> Piece:
        """One more operation on x, perhaps with another piece of its kind or with a parameter."""
        rules = [self.unary, self.unary, self.index_map, self.along, self.weighted, self.arithmetic]
        rule = self.pick([*rules, self.binary, self.binary, self.several, self.users])
        if rule in (self.binary, self.several, self.users):
            y = other() if self.count(0, 2) else self.parameter()
            return self.small(rule(x, self.fit(y, x)))
        return self.small(rule(x))

    def parameter(self) -> Piece:
        return self.leaf([*self.scalars, self.constant(), self.known(self.pick(SHAPES))])

    def unary(self, x: Piece) -> Piece:
        name = self.spin(sorted(n for n, f in FUNCTIONS.items() if f.arity == 1))
        attrs: dict[str, Any] = {}
        size = x.bound + 1
        match name:
            case "leaky_relu":
                attrs = self.maybe(slope=self.pick([0.25, -0.5, 1.0]))
            case "elu":
                attrs = self.maybe(alpha=self.pick([0.25, 1.0]))
            case "gaussian":
                attrs, size = self.maybe(rate=self.pick([0.5, 0.1])), 1.0
            case "hard_tanh":
                attrs = self.maybe(low=self.pick([-2.0, -np.inf]), high=self.pick([0.5, np.inf]))
            case "step" | "sign":
                x, size = plus(x, number(JUMP)), 1.0
            case "exp":
                x = apply(FUNCTIONS["tanh"], x, bound=1.0) if x.kind == "H" else tame(x, 2.0)
                size = 8.0
            case "sqrt" | "log":
                x = self.positive(x)
                size = x.bound + 1
            case "polynomial":
                x, size = tame(x, 3.0), 80.0
                coefs = self.draw(st.lists(st.sampled_from([0.0, 1.0, -0.5, 2.0]), min_size=1, max_size=4))
                attrs = self.maybe(coefs=tuple(coefs))
            case "piecewise":
                if self.chance():
                    attrs = {"knots": (-0.5123, 0.7391), "pieces": ((-0.5,), (0.0, 0.25), (1.0, -1.0))}
        return tame(apply(FUNCTIONS[name], x, bound=size, **attrs))

    def maybe(self, **options: Any) -> dict[str, Any]:
        return {k: v for k, v in options.items() if self.count(0, 3)}

    def positive(self, x: Piece) -> Piece:
        """1 + x^2, or exp of something small."""
        if self.chance():
            x = tame(x, 5.0)
            return plus(number(1.0), times(x, x))
        return apply(FUNCTIONS["exp"], apply(FUNCTIONS["sin"], x, bound=1.0), bound=3.0)

    def arithmetic(self, x: Piece) -> Piece:
        match self.count(0, 3):
            case 0:
                return apply(neg, x, bound=x.bound)
            case 1:
                return apply(pow_, tame(x, 4.0), number(self.pick([2.0, 3.0, 0.0, 1.0])), bound=64.0)
            case 2:
                power = number(self.pick([-1.0, 0.5, -0.5, 1.5]))
                return tame(apply(pow_, base := self.positive(x), power, bound=base.bound**1.5))
        base = number(self.pick([2.0, 0.5]))
        return apply(pow_, base, apply(FUNCTIONS["tanh"], x, bound=1.0), bound=2.0)

    def binary(self, x: Piece, y: Piece) -> Piece:
        if self.chance():
            x, y = y, x
        op = self.spin([add, sub, mul, div, *(f for f in FUNCTIONS.values() if f.arity == 2)])
        if op is div:
            y = self.positive(y)
            return apply(op, x, y, bound=3 * x.bound)
        if op is mul:
            return tame(times(tame(x, 8.0), tame(y, 8.0)))
        return tame(apply(op, x, y, bound=x.bound + y.bound))

    def along(self, x: Piece) -> Piece:
        """A function that mixes index axes of a block."""
        if not x.index:
            x = self.index_map(x)
        if not x.index:
            return x
        op = self.spin([*MIXINGS.values(), *USER_MIXINGS])
        axes, count = self.axes(x)
        attrs = self.mixing_options(op, axis=axes)
        if op.name == "batchnorm" and count == 1:
            attrs["eps"] = 0.5
        if op.name == "argmax" or (op.name == "batchnorm" and "eps" not in attrs):
            x = plus(x, self.array(x.index, self.spread(x.index)))
        args = [x]
        if op.masked and self.chance():
            args.append(self.mask(x.index, axes))
        return apply(op, *args, bound=x.bound + 3, **attrs)

    def mixing_options(self, op: Mixing, **attrs: Any) -> dict[str, Any]:
        if op.name == "batchnorm":
            attrs |= self.maybe(eps=self.pick([0.5, 0.1]))
        return attrs

    def spread(self, index: Index) -> np.ndarray:
        """Different numbers: members of which no two are equal have a standard deviation."""
        return 0.7 * self.numbers.permutation(prod(index)).reshape(index) + 0.1

    def mask(self, index: Index, axes: Any) -> Piece:
        """Zeros and ones; the first member of each group counts."""
        if axes in (-1, len(index) - 1) and self.chance():
            index = index[-1:]  # one mask for all groups
        values = self.numbers.integers(0, 2, index).astype(float)
        first: list[Any] = [slice(None)] * len(index)
        for a in axes if isinstance(axes, tuple) else (axes,):
            first[max(a, -len(index)) if a < 0 else min(a, len(index) - 1)] = 0
        values[tuple(first)] = 1
        match self.count(0, 2):
            case 0:
                return apply(sub, number(1.0), self.array(index, 1 - values), bound=1.0)
            case 1:
                both = self.array((2, *index), np.stack([values, 1 - values]))
                return apply(at, both, index=(0,), bound=1.0)
        return self.array(index, values)

    def several(self, x: Piece, y: Piece) -> Piece:
        """A mixing function written with its members as arguments."""
        op = self.spin([*MIXINGS.values(), *USER_MIXINGS])
        args = [x, y, *([x] if self.chance() else [])]
        attrs = self.mixing_options(op)
        if op.name == "argmax" or (op.name == "batchnorm" and "eps" not in attrs):
            args = [plus(a, number(0.7 * i + 0.1)) for i, a in enumerate(args)]
        pick = None if op.reduces else self.count(0, len(args) - 1)
        return apply(op, *args, bound=x.bound + y.bound + 3, pick=pick, **attrs)

    def users(self, x: Piece, y: Piece) -> Piece:
        op = self.pick(USER_FUNCTIONS)
        c = self.fit(self.parameter(), apply(add, x, y, bound=1.0))
        args = [x, y, c] if op.arity == 3 else [x, c] if op.arity == 2 else [x]
        attrs = self.maybe(amount=self.pick([2.0, -0.25])) if op.defaults else {}
        return apply(op, *args, bound=2 * x.bound + y.bound, **attrs)

    def weighted(self, x: Piece) -> Piece:
        """The sum of attention: a contraction with a matrix of C-vars."""
        if not x.index or not self.scalars:
            return self.index_map(x)
        c = self.pick(self.scalars)
        shape = (self.count(1, 3), x.index[-1])
        if not _ends_with(shape, c.index):
            c = self.member(c)
        weights = plus(self.known(shape), c)
        if self.chance():
            weights = apply(MIXINGS["softmax"], weights, axis=-1, bound=1.0)
        return tame(apply(contract, weights, x, bound=x.index[-1] * weights.bound * x.bound))


# Expressions without types

NAMES = ["x", "y1", "g_0", "T", "N", "inf", "nan", "None", "relu", "MatMul", "e1"]
EXTREME = [-0.0, 1e-320, 1.7e308, 1e22, -1e-7]
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(EXTREME)
INTS = st.integers(-3, 12)
ENDS = st.none() | INTS
SLICES = st.builds(Slice, ENDS, ENDS, st.none() | st.sampled_from([1, 2, -1]))
ITEMS = st.lists(st.none() | INTS | SLICES, max_size=3).map(tuple)
NUMBERS = FLOATS.map(lambda v: v + 0.0) | INTS | st.sampled_from([float("inf"), float("-inf")])
LISTS = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
VALUES = LISTS | st.sampled_from(["same", "valid"])
OPTIONS = st.dictionaries(st.sampled_from(["axis", "a", "padding", "T"]), VALUES, max_size=2)


def expressions() -> st.SearchStrategy[Expr]:
    """Trees of operations with the right number of arguments, whatever their shapes."""
    leaves = st.sampled_from(NAMES).map(Ref) | FLOATS.map(Const)
    return st.recursive(leaves, _applied, max_leaves=12)


def _applied(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    signs = st.builds(Apply, st.just(neg), st.tuples(inner))
    powers = st.builds(Apply, st.just(pow_), st.tuples(inner, inner))
    infix = st.builds(Apply, st.sampled_from([add, sub, mul, div]), st.tuples(inner, inner))
    members = st.builds(lambda x, items: Apply(at, (x,), (("index", items),)), inner, ITEMS)
    return st.one_of(signs, powers, infix, members, _calls(inner))


@st.composite
def _calls(draw: Callable, inner: st.SearchStrategy[Expr]) -> Apply:
    op = draw(st.sampled_from([*CALLABLE.values()]))
    count = op.arity if isinstance(op, Function) else draw(st.integers(1, 3))
    args = tuple(draw(inner) for _ in range(count))
    pick = draw(st.none() | st.integers(0, 3)) if isinstance(op, Mixing) else None
    return Apply(op, args, tuple(sorted(draw(OPTIONS).items())), pick)


CALLABLE = {name: op for name, op in named(USER).items() if op is not at}
