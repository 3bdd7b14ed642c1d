"""Parse trees to statements: each method of `Build` is one rule of the grammar."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from lark import Token, v_args
from lark.visitors import Transformer_NonRecursive

from netsor.errors import DataError, ParseError, Place
from netsor.lang.expr import Apply, Const, Ref, Slice
from netsor.lang.functions import ARITHMETIC
from netsor.lang.index_maps import at
from netsor.lang.ops import Kind, Op, kind_of
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
    Scalar,
    Term,
)
from netsor.lang.types import A, C, G, H, Type

ALONE = {
    "MatMul": "MatMul(W, x) takes two names and stands on a line of its own: `g := MatMul(W, x)`.",
    "Moment": "Moment(...) stands on a line of its own: `c := Moment(...)`.",
    "Nonlin": "Nonlin(...) stands on a line of its own: `x := Nonlin(...)`.",
}


def _binary(name: str) -> Callable[..., Apply]:
    return lambda _, a, b: Apply(ARITHMETIC[name], (a, b))


@v_args(inline=True)
class Build(Transformer_NonRecursive):
    """Transforms parse trees to statements; each method is one rule of the grammar."""

    def __init__(self, operations: dict[str, Op], kind: Callable[[str], Kind]) -> None:
        """Take the operations that a text may call, and the kinds of its variables so far."""
        super().__init__()
        self.operations, self.kind = operations, kind

    # Statements

    def statement(self, statement):
        return statement

    def data(self, name, array):
        if _ragged(array):
            what = f"data `{name}` is ragged"
            remedy = "Data are an array: all rows have one length, all rows of rows too."
            raise ParseError(what, remedy=remedy)
        values = np.array(array, float)
        if not np.isfinite(values).all():
            what = f"data `{name}` has a NaN or an infinity"
            remedy = "Kernels and simulations need finite numbers: clean or impute the data first."
            raise DataError(what, remedy=remedy)
        return str(name), values

    def input(self, name, type_, law):
        return Input(str(name), type_, _law(name, type_, *law) if isinstance(law, tuple) else law)

    def assign(self, name, rhs, type_):
        rule, args = rhs
        return rule(str(name), *args, type_)

    def output(self, *parts):
        *terms, shift = parts
        return Output(tuple(terms), shift or 0.0)

    def plus(self, token):
        return self.const(token).value

    def minus(self, token):
        return -self.const(token).value

    def output_term(self, readout, operand, *axes_and_width):
        *axes, width = axes_and_width
        return Term(str(readout), str(operand), str(width), *map(_integer, axes))

    def matmul(self, matrix, *arguments):
        if arguments[0] == "transpose":
            place = _under(matrix)
            raise ParseError(
                f"`{matrix}^T`: a matrix and its transpose cannot be in one program",
                place=replace(place, end=place.end + 2),
                remedy=f"Netsor has no transposes: {matrix}^T ({matrix} x) is not Gaussian in the limit. An "
                f"independent matrix of the same law needs its own name: `Input {matrix}2 :: A(n, n) ~ "
                "N(0, 1/n)`.",
            )
        operand, aligned = arguments
        return MatMul, (str(matrix), str(operand), _integer(aligned) if aligned else 0)

    def transpose(self):
        return "transpose"

    def moment(self, expr):
        return Moment, (expr,)

    def nonlin(self, expr):
        return Nonlin, (expr,)

    def plain(self, expr):
        rules = {"K": Scalar, "C": Scalar, "G": LinComb, "H": Nonlin}
        return rules[kind_of(expr, self.kind)], (expr,)

    # Types and laws

    def dims(self, *tokens):
        return tokens

    def type(self, kind, tokens, index):
        return _type(kind, tokens or (), index or ())

    def index_shape(self, *sizes):
        return tuple(_integer(s) for s in sizes)

    def cross(self, name, _colon, array):
        return str(name), array

    def normal(self, mean, cov, over, *options):
        *cross, each = options
        return mean, cov, over, tuple(cross), each is not None

    def embedding(self, matrix, expr, aligned):
        return Embedding(str(matrix), expr, _integer(aligned) if aligned else 0)

    # Expressions

    def const(self, token):
        if not np.isfinite(float(token)):
            remedy = "Numbers are double precision, up to about 1.8e308."
            raise ParseError(f"the number {token:.40} is too large", place=_under(token), remedy=remedy)
        return Const(float(token))

    def ref(self, token):
        return Ref(str(token))

    add, sub, mul, div, pow = map(_binary, ("add", "sub", "mul", "div", "pow"))

    def neg(self, a):
        return Const(-a.value) if isinstance(a, Const) else Apply(ARITHMETIC["neg"], (a,))

    def at(self, x, *items):
        return Apply(at, (x,), (("index", items),))

    def call(self, name, pick, *parts):
        if name not in self.operations:
            raise self.unknown_function(name)
        args = tuple(p for p in parts if not isinstance(p, tuple))
        attrs = tuple(sorted((p for p in parts if isinstance(p, tuple)), key=lambda p: p[0]))
        if len(dict(attrs)) < len(attrs):
            what = f"`{name}` is given an option twice"
            remedy = f"Every option has one value. {self.operations[name].usage()}"
            raise ParseError(what, place=_under(name), remedy=remedy)
        return Apply(self.operations[name], args, attrs, None if pick is None else _integer(pick))

    def unknown_function(self, name: Token) -> ParseError:
        if name in ALONE:
            remedy = f"{ALONE[name]} Give it a name, and use the name here."
            return ParseError(f"`{name}` stands inside an expression", place=_under(name), remedy=remedy)
        near = difflib.get_close_matches(name, self.operations, 1)
        remedy = f"Did you mean `{near[0]}`? " if near else ""
        remedy += f"A function of your own is passed as `parse(text, functions={{'{name}': ...}})`."
        return ParseError(f"there is no function `{name}`", place=_under(name), remedy=remedy)

    def option(self, name, value):
        return str(name), value

    def int_item(self, token):
        return _integer(token)

    def new_axis(self):
        return None

    def slice(self, start, _colon, stop, _second=None, step=None):
        return Slice(*(None if t is None else _integer(t) for t in (start, stop, step)))

    # Values

    def number_value(self, *tokens):
        text, digits = "".join(tokens), tokens[-1]
        return int(text) if digits.isdecimal() and len(digits) <= DIGITS else float(text)

    def string_value(self, token):
        return str(token)[1:-1]

    def list_value(self, *values):
        return tuple(values)


DIGITS = 18  # the most digits of an integer: 10**18 fits 64 bits


def _integer(token: Token) -> int:
    """Read an integer of at most DIGITS digits, with a sign."""
    if len(token) > DIGITS + 1:
        what = f"an integer of {len(token)} digits"
        remedy = f"Indices and sizes have at most {DIGITS} digits; a real number is written 1e20."
        raise ParseError(what, place=_under(token), remedy=remedy)
    return int(token)


def _ragged(value: object) -> bool:
    try:
        np.array(value, float)
    except ValueError:
        return True
    return False


def _floats(value: Any) -> Any:
    return tuple(_floats(v) for v in value) if isinstance(value, tuple) else float(value)


def _type(kind: Token, tokens: tuple[Token, ...], index: tuple[int, ...]) -> Type:
    dims = [_integer(d) if d.type == "INT" else str(d) for d in tokens]
    match str(kind), dims:
        case "A", [rows, cols]:
            return A(rows, cols, index)
        case "G" | "H", [str(width)]:
            return G(width, index) if kind == "G" else H(width, index)
        case "C", []:
            return C(index)
    given = f"({', '.join(map(str, dims))})" if dims else ""
    place = _under(kind, tokens[-1] if tokens else None)
    raise ParseError(
        f"there is no type {kind}{given}",
        place=replace(place, end=place.end + bool(tokens)),
        remedy="Types are A(n1, n2), A(n, 3), G(n), H(n) and C, with an index shape as in G(n)[7]. A name is "
        "a width, which goes to infinity; a number is a dimension of data.",
    )


def _law(
    name: str, type_: Type, mean: Any, cov: Any, over: Any, cross: tuple, each: bool
) -> MatrixLaw | Normal:
    if each and (isinstance(type_, A) or cross):
        what = f"`{name}` is drawn anew for each input"
        remedy = "Rule Input: `each` is for a G-var that depends on no other input: `~ N(0, 1) each`."
        raise ParseError(what, remedy=remedy)
    if isinstance(type_, A):
        if over is None or str(over) != str(type_.cols) or mean != 0 or isinstance(cov, tuple) or cross:
            raise ParseError(
                f"the law of the matrix `{name}` must be N(0, var/{type_.cols})",
                remedy="Rule Input: the entries of an A(n1, n2) are iid with mean 0 and variance var/n2; "
                "with any other scale its products diverge or vanish with the width. Write "
                f"`~ N(0, 1/{type_.cols})`.",
            )
        return MatrixLaw(float(cov))
    if over is not None:
        raise ParseError(
            f"the variance of `{name}` is divided by {over}",
            remedy="Rule Input: coordinates of a G-var have a variance that does not shrink with the width. "
            "Write `~ N(0, 1)`.",
        )
    for array in (mean, cov, *(value for _, value in cross)):
        if _ragged(array):
            what = f"the law of `{name}` has a ragged array"
            remedy = "Rule Input: means and covariances are numbers or arrays, whose rows have one length."
            raise ParseError(what, remedy=remedy)
    return Normal(_floats(mean), _floats(cov), tuple((k, _floats(v)) for k, v in cross), each)


def _under(first: Token, last: Token | None = None) -> Place:
    """A place with carets from one token to another; the caller fills in line and text."""
    return Place(0, "", (first.column or 1) - 1, ((last or first).end_column or 1) - 1)
