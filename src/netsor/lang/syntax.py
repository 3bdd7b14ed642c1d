"""From lines to statements, by the grammar in `grammar.lark`, and error messages about lines."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from lark import Lark, UnexpectedInput, UnexpectedToken
from lark.exceptions import VisitError

from netsor.errors import NetsorError, ParseError, Place
from netsor.lang.ops import Kind, Op
from netsor.lang.parse_tree import ALONE, Build
from netsor.lang.program import Moment, Scalar, Statement

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
                start = line.index(name, line.index("Data") + 4)
                what = f"data `{name}` is given twice"
                remedy = "Every name is defined once. Choose another name here."
                raise ParseError(what, place=Place(number, line, start, start + len(name)), remedy=remedy)
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
