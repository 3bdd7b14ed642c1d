"""From text to programs: each line is a statement, and `#` starts a comment."""

from __future__ import annotations

from netsor.arguments import a_type
from netsor.errors import ParseError
from netsor.lang.expr import Expr
from netsor.lang.functions import named
from netsor.lang.ops import Op
from netsor.lang.program import Program


def parse(text: str, functions: dict[str, Op] | None = None) -> Program:
    """Read a program from its text.

    Parameters
    ----------
    text
        Statements, one per line; `#` starts a comment.
    functions
        The user's functions by name, such as `program.functions` of a printed program.

    Returns
    -------
    Program
        The program, type checked.

    Raises
    ------
    ParseError
        If a line is not a statement.
    TypeCheckError
        If a statement breaks a rule of the language.

    Examples
    --------
    >>> program = parse('''
    ... Input W :: A(n, n) ~ N(0, 2/n)
    ... Input g :: G(n) ~ N(0, 1)
    ... x := relu(g) :: H(n)
    ... h := MatMul(W, x) :: G(n)
    ... ''')
    >>> program.widths
    {'n': ['g', 'x', 'h']}
    """
    from netsor.lang.syntax import LineReader  # a late import, because most runs need no grammar

    reader = LineReader(_operations(text, functions))
    for number, line in enumerate(text.removeprefix("\ufeff").rstrip("\n").split("\n"), 1):
        reader.read(number, line)
    program = Program(tuple(reader.statements), reader.data, tuple(reader.header), tuple(reader.notes))
    program.check()
    return program


def parse_expr(text: str, functions: dict[str, Op] | None = None) -> Expr:
    """Read an expression from its text, such as `relu(x) / 2`."""
    from netsor.lang.syntax import LineReader

    return LineReader(_operations(text, functions)).tree(1, text, "expr")


def _operations(text: object, functions: object) -> dict[str, Op]:
    """Check the arguments of `parse`; return all operations that the text may call."""
    if not isinstance(text, str):
        what = f"a program is a text, not {a_type(text)}"
        remedy = "Give a string, as ns.parse(open(file).read()) does."
        raise ParseError(what, remedy=remedy)
    if functions is not None and not (
        isinstance(functions, dict)
        and all(isinstance(k, str) and isinstance(op, Op) for k, op in functions.items())
    ):
        what = "functions is not a dictionary of the operations of a program"
        remedy = "Functions of your own come from a network: functions=ns.program(net, x).functions."
        raise ParseError(what, remedy=remedy)
    return named(functions)
