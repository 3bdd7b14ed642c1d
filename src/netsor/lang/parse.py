"""Text to program: a line is a statement, `#` starts a comment."""

from __future__ import annotations

from typing import Any

from netsor.arguments import a_type
from netsor.errors import ParseError
from netsor.lang.expr import Expr
from netsor.lang.functions import named
from netsor.lang.ops import Op
from netsor.lang.program import Program

__all__ = ["parse", "parse_expr"]


def parse(text: str, functions: dict[str, Op] | None = None) -> Program:
    """The program that `text` says, type checked.

    `functions` gives a meaning to names of the user's own (`program.functions` of a printed program).

    >>> program = parse('''
    ... Input W :: A(n, n) ~ N(0, 2/n)
    ... Input g :: G(n) ~ N(0, 1)
    ... x := relu(g) :: H(n)
    ... h := MatMul(W, x) :: G(n)
    ... ''')
    >>> program.widths
    {'n': ['g', 'x', 'h']}
    """
    from netsor.lang.reader import Reader  # here, as most runs read no text and need no grammar

    reader = Reader(_operations(text, functions))
    for number, line in enumerate(text.removeprefix("\ufeff").rstrip("\n").split("\n"), 1):
        reader.read(number, line)
    program = Program(tuple(reader.statements), reader.data, tuple(reader.header), tuple(reader.notes))
    program.check()
    return program


def parse_expr(text: str, functions: dict[str, Op] | None = None) -> Expr:
    """The expression tree of `text`, e.g. `relu(x) / 2`."""
    from netsor.lang.reader import Reader

    return Reader(_operations(text, functions)).tree(1, text, "expr")


def _operations(text: Any, functions: Any) -> dict[str, Op]:
    """All operations that a text may call, once its arguments are what they should be."""
    if not isinstance(text, str):
        raise ParseError(
            f"a program is a text, not {a_type(text)}",
            remedy="Give a string, as ns.parse(open(file).read()) does.",
        )
    if functions is not None and not (
        isinstance(functions, dict)
        and all(isinstance(k, str) and isinstance(op, Op) for k, op in functions.items())
    ):
        raise ParseError(
            "functions is not a dictionary of the operations of a program",
            remedy="Functions of your own come from a network: functions=ns.program(net, x).functions.",
        )
    return named(functions)
