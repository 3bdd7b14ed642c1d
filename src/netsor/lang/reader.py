"""Lines to statements, by the grammar in `grammar.lark`; what is wrong with a line, in words."""

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
from netsor.lang.expr import Apply, Const, Expr, Ref, subtrees
from netsor.lang.ops import Op
from netsor.lang.program import LinComb, Moment, Nonlin, Scalar, Statement
from netsor.lang.statements import ALONE, Build, UnknownFunctionError
from netsor.lang.types import Type

__all__ = ["Reader"]

READABLE = {
    "NAME": "a name",
    "NUMBER": "a number",
    "INT": "an integer",
    "KIND": "a type (A, G, H or C)",
    "SIGNED_INT": "an integer",
    "$END": "the end of the line",
    "SPECIAL": "a number",
}

# How each statement is written, by its first word; every other line is an assignment.
FORMS = {
    "Data": "Data are written `Data x = [1.0, 2.0]`, with nested lists for several axes.",
    "Input": "An input is written `Input W :: A(n, n) ~ N(0, 1/n)`, `Input g :: G(n) ~ N(0, 1)` or "
    "`Input Ux :: G(n) ~ MatMul(U, x)`.",
    "Output": "An output is written `Output v^T x / sqrt(n)`.",
}
ASSIGNMENT = "An assignment is written `x := relu(g)`, or with its type `x := relu(g) :: H(n)`."


@cache
def _lark() -> Lark:
    grammar = files("netsor.lang").joinpath("grammar.lark").read_text()
    return Lark(grammar, parser="lalr", start=["statement", "expr"], maybe_placeholders=True)


class Reader:
    """Statements read so far, and what is needed to read the next one."""

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
        made = self.tree(number, line.rstrip(), "statement", body)
        notes, self.notes = tuple(self.notes), []
        if isinstance(made, tuple):
            name, array = made
            if name in self.data:
                start = line.index(name, line.index("Data") + 4)
                raise ParseError(
                    f"data `{name}` is given twice",
                    place=Place(number, line, start, start + len(name)),
                    remedy="Every name is defined once. Choose another name here.",
                )
            self.data[name] = array
            self.header += notes
        else:
            self.keep(made, Place(number, line.rstrip()), notes)

    def keep(self, statement: Any, place: Place, notes: tuple[str, ...]) -> None:
        if callable(statement):
            statement = statement(self)
        object.__setattr__(statement, "place", place)
        object.__setattr__(statement, "notes", notes)
        if isinstance(statement, Moment | Scalar):
            self.scalars.add(statement.name)
        self.statements.append(statement)

    def tree(self, number: int, line: str, start: str, body: str | None = None) -> Any:
        found = self._parsed(number, line, start, line if body is None else body.rstrip())
        if isinstance(found, NetsorError):
            raise found  # here, where it has no context: that of the parser cannot travel to other processes
        return found

    def _parsed(self, number: int, line: str, start: str, body: str) -> Any:
        """What a line says, or the error in it."""
        try:
            return Build(self.operations).transform(_lark().parse(body, start=start))
        except UnexpectedInput as error:
            return _syntax_error(error, number, line)
        except VisitError as error:
            if isinstance(error.orig_exc, UnknownFunctionError):
                return error.orig_exc.at(number, line, list(self.operations))
            if isinstance(error.orig_exc, NetsorError):
                place = error.orig_exc.place or _mark(line, r"(?:~|:=|=)\s*(.*?)\s*$")
                error.orig_exc.place = replace(place, line=number, text=line)
                return error.orig_exc
            raise

    def plain(self, name: str, expr: Expr, type_: Type | None) -> Statement:
        """`x := expr`: a function of C-vars, a linear combination, or a nonlinearity, by its form."""
        kinds: dict[Expr, str] = {}
        for node in subtrees(expr):
            match node:
                case Ref(ref):
                    kinds[node] = "K" if ref in self.data else "C" if ref in self.scalars else "G"
                case Const():
                    kinds[node] = "K"
                case Apply(op, args, _, _):
                    kinds[node] = op.kind(tuple(kinds[a] for a in args))
        rule = {"K": Scalar, "C": Scalar, "G": LinComb, "H": Nonlin}[kinds[expr]]
        return rule(name, expr, type_)


def _syntax_error(error: UnexpectedInput, number: int, line: str) -> ParseError:
    code = line.partition("#")[0].rstrip()
    if not isinstance(error, UnexpectedToken):
        return _unknown_character(number, line, (error.column or 1) - 1)
    if error.token.type == "$END":
        return _early_end(error, number, line, code)
    start = (error.column or 1) - 1
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


def _unknown_character(number: int, line: str, start: int) -> ParseError:
    remedy = "A line has names, numbers, brackets and the signs + - * / ^ := :: ~ ; a comment begins with #."
    if line[start] == "@":
        remedy = ALONE["MatMul"]
    place = Place(number, line, start, start + 1)
    return ParseError(f"`{line[start]}` has no meaning in the language", place=place, remedy=remedy)


def _early_end(error: UnexpectedToken, number: int, line: str, code: str) -> ParseError:
    opened = []
    for i, sign in enumerate(code):
        if sign in "([":
            opened.append(i)
        elif sign in ")]" and opened:
            opened.pop()
    if not opened:
        place = Place(number, line, len(code), len(code) + 1)
        remedy = f"Expected {_one_of(error)} at the end. {_form(code)}"
        return ParseError("the line ends too early", place=place, remedy=remedy)
    place = Place(number, line, opened[-1], opened[-1] + 1)
    remedy = f"A line is one statement, and every bracket is closed on it. {_form(code)}"
    return ParseError(f"`{code[opened[-1]]}` is never closed", place=place, remedy=remedy)


def _form(code: str) -> str:
    """How a line like this one is written."""
    alone = re.search(r":=\s*(MatMul|Moment|Nonlin)\b", code)
    return ALONE[alone[1]] if alone else FORMS.get(code.split()[0], ASSIGNMENT)


def _mark(line: str, pattern: str, number: int = 0) -> Place:
    """Carets under the group of a pattern, in the part of a line before its comment."""
    found = re.search(pattern, line.partition("#")[0])
    return Place(number, line, *(found.span(1) if found else (0, 0)))


def _one_of(error: UnexpectedToken) -> str:
    """What may stand where an error is, in words."""
    patterns = {t.name: t.pattern for t in _lark().terminals}
    words = set()
    for name in error.accepts or error.expected:
        raw = patterns[name].value if name in patterns else name
        words.add(READABLE.get(name, f"`{raw}`"))
    return " or ".join(sorted(words)) or "something else"
