"""From lines to statements, by the grammar in `grammar.lark`, and error messages about lines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from lark import Lark, Token, UnexpectedInput, UnexpectedToken, v_args
from lark.exceptions import VisitError
from lark.visitors import Transformer_NonRecursive

from netsor.errors import DataError, NetsorError, ParseError, Place
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
    Statement,
    Term,
)
from netsor.lang.types import TYPES, A, Type

READABLE = {
    "NAME": "a name",
    "NUMBER": "a number",
    "INT": "an integer",
    "KIND": "a type (A, G, H or C)",
    "SIGNED_INT": "an integer",
    "$END": "the end of the line",
    "SPECIAL": "a number",
}

# The syntax of each statement, by its first word; every other line is an assignment.
FORMS = {
    "Data": "Data are written `Data x = [1.0, 2.0]`, with nested lists for several axes.",
    "Input": "An input is written `Input W :: A(n, n) ~ N(0, 1/n)`, `Input g :: G(n) ~ N(0, 1)` or "
    "`Input Ux :: G(n) ~ MatMul(U, x)`.",
    "Output": "An output is written `Output v^T x / sqrt(n)`.",
}
ALONE = {
    "MatMul": "MatMul(W, x) takes two names and stands on a line of its own: `g := MatMul(W, x)`.",
    "Moment": "Moment(...) stands on a line of its own: `c := Moment(...)`.",
    "Nonlin": "Nonlin(...) stands on a line of its own: `x := Nonlin(...)`.",
}


@cache
def _lark() -> Lark:
    grammar = files("netsor.lang").joinpath("grammar.lark").read_text()
    return Lark(grammar, parser="lalr", start=["statement", "expr"], maybe_placeholders=True)


class LineReader:
    """Reads statements line by line; the kind of an assignment depends on earlier data and C-vars."""

    def __init__(self, operations: dict[str, Op]) -> None:
        self.operations = operations
        self.statements: list[Statement] = []
        self.data: dict[str, np.ndarray] = {}
        self.scalars: set[str] = set()
        self.header: list[str] = []
        self.notes: list[str] = []

    def read(self, number: int, line: str) -> None:
        body, mark, _ = line.partition("#")
        if not body.strip():
            if mark or self.notes or self.statements or self.data:
                self.notes.append(line.rstrip())
            return
        line_read = self.tree(number, line.rstrip(), "statement", body)
        notes, self.notes = tuple(self.notes), []
        if isinstance(line_read, tuple):
            name, array = line_read
            if name in self.data:
                what = f"data `{name}` is given twice"
                remedy = "Every name is defined once. Choose another name here."
                raise ParseError(what, place=_mark(line, r"Data\s+(\w+)", number), remedy=remedy)
            self.data[name] = array
            self.header += notes
            return
        self.statements.append(replace(line_read, place=Place(number, line.rstrip()), notes=notes))
        if isinstance(line_read, Moment | Scalar):
            self.scalars.add(line_read.name)

    def tree(self, number: int, line: str, start: str, body: str | None = None) -> Any:
        """Return the content of a line, or raise the error in it."""
        try:
            tree = _lark().parse(line if body is None else body.rstrip(), start=start)
            return Build(self.operations, self.kind).transform(tree)
        except UnexpectedInput as error:
            cause = _syntax_error(error, number, line)
        except VisitError as error:
            if not isinstance(error.orig_exc, NetsorError):
                raise
            cause = error.orig_exc
            place = cause.place or _mark(line, r"(?:~|:=|=)\s*(.*?)\s*$")
            cause.place = replace(place, line=number, text=line)
        raise cause  # outside `except`, without the parser's exception as context, which cannot be pickled

    def kind(self, name: str) -> Kind:
        """The kind of a name: vectors count as G-vars, because the type checker knows better."""
        return "K" if name in self.data else "C" if name in self.scalars else "G"


def _syntax_error(error: UnexpectedInput, number: int, line: str) -> ParseError:
    code = line.partition("#")[0].rstrip()
    start = (error.column or 1) - 1
    if not isinstance(error, UnexpectedToken):
        signs = (
            "A line has names, numbers, brackets and the signs + - * / ^ := :: ~ ; a comment begins with #."
        )
        what = f"`{line[start]}` has no meaning in the language"
        remedy = ALONE["MatMul"] if line[start] == "@" else signs
        return ParseError(what, place=Place(number, line, start, start + 1), remedy=remedy)
    if error.token.type == "$END":
        return _early_end(error, number, line, code)
    place = Place(number, line, start, start + len(error.token))
    first = code.split()[0]
    if error.token.type == "NAME" and code[:start].strip() == first:
        near = difflib.get_close_matches(first, FORMS, 1)
        remedy = f"Did you mean `{near[0]}`? " if near else ""
        remedy += "A line is `Data ...`, `Input ...`, `Output ...`, or an assignment `x := ...`."
        place = _mark(line, r"(\w+)", number)
        return ParseError(f"there is no statement `{first}`", place=place, remedy=remedy)
    remedy = f"Expected {_one_of(error)}. {_form(code)}"
    return ParseError(f"`{error.token}` cannot stand here", place=place, remedy=remedy)


def _early_end(error: UnexpectedToken, number: int, line: str, code: str) -> ParseError:
    """The error about a line that ends too early; it points at an open bracket, if there is one."""
    opened = []
    for i, sign in enumerate(code):
        if sign in "([":
            opened.append(i)
        elif sign in ")]" and opened:
            opened.pop()
    start = opened[-1] if opened else len(code)
    what, remedy = "the line ends too early", f"Expected {_one_of(error)} at the end."
    if opened:
        what = f"`{code[start]}` is never closed"
        remedy = "A line is one statement, and every bracket is closed on it."
    return ParseError(what, place=Place(number, line, start, start + 1), remedy=f"{remedy} {_form(code)}")


def _form(code: str) -> str:
    """Describe the syntax of the statement that a line seems to be."""
    alone = re.search(r":=\s*(MatMul|Moment|Nonlin)\b", code)
    assignment = "An assignment is written `x := relu(g)`, or with its type `x := relu(g) :: H(n)`."
    return ALONE[alone[1]] if alone else FORMS.get(code.split()[0], assignment)


def _mark(line: str, pattern: str, number: int = 0) -> Place:
    """A place with carets under the first group of a pattern, in the part of a line before its comment."""
    match = re.search(pattern, line.partition("#")[0])
    return Place(number, line, *(match.span(1) if match else (0, 0)))


def _one_of(error: UnexpectedToken) -> str:
    """List the tokens that the grammar allows at an error, in words."""
    raw = {t.name: t.pattern.value for t in _lark().terminals}
    words = {READABLE.get(name, f"`{raw.get(name, name)}`") for name in error.accepts or error.expected}
    return " or ".join(sorted(words)) or "something else"


# Statements from parse trees


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
        return Output(tuple(terms), shift.value if shift else 0.0)

    def output_term(self, readout, operand, *axes_and_width):
        *axes, width = axes_and_width
        return Term(str(readout), str(operand), str(width), *map(_integer, axes))

    def matmul(self, matrix, operand, aligned):
        return MatMul, (str(matrix), str(operand), _integer(aligned) if aligned else 0)

    def transposed(self, matrix, *_):
        place = _under(matrix)
        raise ParseError(
            f"`{matrix}^T`: a matrix and its transpose cannot be in one program",
            place=replace(place, end=place.end + 2),
            remedy=f"Netsor has no transposes: {matrix}^T ({matrix} x) is not Gaussian in the limit. An "
            "independent matrix of the same law needs its own name: "
            f"`Input {matrix}2 :: A(n, n) ~ N(0, 1/n)`.",
        )

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
        case ("A", [_, _]) | ("G" | "H", [str()]) | ("C", []):
            return TYPES[str(kind)](*dims, index=index)
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
