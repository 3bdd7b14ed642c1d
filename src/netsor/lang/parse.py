"""Text to program: a line is a statement, `#` starts a comment."""

from __future__ import annotations

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

    reader = Reader(named(functions))
    for number, line in enumerate(text.removeprefix("\ufeff").rstrip("\n").split("\n"), 1):
        reader.read(number, line)
    program = Program(tuple(reader.statements), reader.data, tuple(reader.header), tuple(reader.notes))
    program.check()
    return program


def parse_expr(text: str, functions: dict[str, Op] | None = None) -> Expr:
    """The expression tree of `text`, e.g. `relu(x) / 2`."""
    from netsor.lang.reader import Reader

    return Reader(named(functions)).tree(1, text, "expr")
