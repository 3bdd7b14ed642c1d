"""From programs to text: `parse(show(p)) == p`."""

from __future__ import annotations

import numpy as np

from netsor.errors import LoweringError
from netsor.lang.expr import Apply, Const, Expr, Ref, Slice, count_terms
from netsor.lang.functions import add, div, mul, neg, pow_, sub
from netsor.lang.index_maps import at
from netsor.lang.ops import Function, IndexMap, Kind, Op, kind_of
from netsor.lang.program import (
    Embedding,
    Input,
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
from netsor.lang.types import A

# Text, or an expression that is still to be written, in parentheses if it binds more weakly than a number.
Piece = str | tuple[Expr, int]
# Binding strengths as in the grammar: sums 1, products 2, signs 3, powers 4, atoms 5.
SIGN, ATOM = 3, 5
# The binding strength of an operation, of its left operand, its sign, and the strength of its right operand.
INFIX: dict[Op, tuple[int, int, str, int]] = {
    add: (1, 1, " + ", 2),
    sub: (1, 1, " - ", 2),
    mul: (2, 2, "*", 3),
    div: (2, 2, " / ", 3),
    pow_: (4, ATOM, "^", 3),
}


def show(program: Program, data_limit: int | None = None) -> str:
    """Return the text of a program; `data_limit` abbreviates arrays of more numbers, and very long lines."""
    if data_limit is None:
        _refuse_long(program)
    lines = list(program.header)
    lines += [f"Data {name} = {_show_data(array, data_limit)}" for name, array in program.data.items()]
    scalars = (s.name for s in program.statements if isinstance(s, Moment | Scalar))
    kinds = dict.fromkeys(program.data, "K") | dict.fromkeys(scalars, "C")
    for s in program.statements:
        lines += s.notes
        terms = 0 if data_limit is None else count_terms(getattr(s, "expr", Const(0.0)))
        lines.append(show_statement(s, kinds) if terms < 10_000 else f"# a line of {_count(terms)} terms")
    return "\n".join([*lines, *program.notes]) + "\n"


def _refuse_long(program: Program) -> None:
    """Raise a LoweringError if the text would be very long: it repeats shared subexpressions."""
    memo: dict[Expr, int] = {}
    total = sum(count_terms(expr, memo) for expr in program.expressions())
    most_terms = 5_000_000  # functions, names and numbers: tens of megabytes of text
    if total > most_terms:
        raise LoweringError(
            f"the text of the program has {_count(total)} terms, more than {most_terms:,}",
            remedy="A part that is used several times is written out each time. Give shared parts names of "
            'their own (lines `x := ...`), and do not unwind them: `program.lower("netsor-o")` keeps names.',
        )


def show_statement(s: Statement, kinds: dict[str, Kind] | None = None) -> str:
    """Return the line of a statement; `kinds` has data and C-vars, and all other names are vectors."""
    match s:
        case Input():
            return f"Input {s.name} :: {s.type} ~ {_show_law(s)}"
        case Output():
            sign = "-" if s.shift < 0 else "+"
            shift = f" {sign} {_show_value(abs(s.shift))}" if s.shift else ""
            return f"Output {' + '.join(map(_show_term, s.terms))}{shift}"
        case MatMul():
            aligned = f", aligned={s.aligned}" if s.aligned else ""
            rhs = f"MatMul({s.matrix}, {s.operand}{aligned})"
        case Moment():
            rhs = f"Moment({show_expr(s.expr)})"
        case Nonlin() if kinds is None or kind_of(s.expr, lambda name: kinds.get(name, "G")) == "G":
            rhs = f"Nonlin({show_expr(s.expr)})"
        case _:
            rhs = show_expr(s.expr)
    return f"{s.name} := {rhs}" + (f" :: {s.type}" if s.type is not None else "")


def _show_term(t: Term) -> str:
    product = f"{t.readout}^T {t.operand}"
    return f"{f'sum({product}, axes={t.aligned})' if t.aligned else product} / sqrt({t.width})"


def _show_law(s: Input) -> str:
    match s.law:
        case MatrixLaw(var):
            assert isinstance(s.type, A)
            return f"N(0, {_show_value(var)}/{s.type.cols})"
        case Embedding(matrix, data, aligned):
            return f"MatMul({matrix}, {show_expr(data)}{f', aligned={aligned}' if aligned else ''})"
        case Normal(mean, cov, cross, each):
            parts = [_show_value(mean), _show_value(cov), *(f"{k}: {_show_value(v)}" for k, v in cross)]
            return f"N({', '.join(parts)}){' each' if each else ''}"


def show_expr(expr: Expr) -> str:
    """Return the text of an expression, with the fewest parentheses that keep its structure."""
    out: list[str] = []
    todo: list[Piece] = [(expr, 0)]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            out.append(item)
        else:
            strength, pieces = _pieces(item[0])
            todo += reversed(pieces if strength >= item[1] else ["(", *pieces, ")"])
    return "".join(out)


def shown_short(expr: Expr, longest: int = 60) -> str:
    """Return the text of an expression, or its size if it is long."""
    terms = count_terms(expr)
    text = show_expr(expr) if terms < longest else ""
    return text if text and len(text) <= longest else f"an expression of {_count(terms)} terms"


def _count(terms: int) -> str:
    """A number of terms in words; with shared parts it can be exponential in the size of a program."""
    return f"{terms:,}" if terms < 10**12 else f"2^{terms.bit_length() - 1}"


def _pieces(expr: Expr) -> tuple[int, list[Piece]]:
    """The binding strength of an expression, and its text with arguments that are still to be written."""
    match expr:
        case Ref(name):
            return ATOM, [name]
        case Const(value):
            return SIGN if value < 0 or str(value) == "-0.0" else ATOM, [_show_value(value)]
        case Apply(op, (x,), (("index", items),), None) if op is at:
            return ATOM, [(x, ATOM), f"[{', '.join(map(_show_item, items))}]"]
        case Apply(op, (x,), (), None) if op is neg and not isinstance(x, Const):
            return SIGN, ["-", (x, SIGN)]
        case Apply(op, (x, y), (), None) if op in INFIX:
            strength, left, sign, right = INFIX[op]
            return strength, [(x, left), sign, (y, right)]
    return ATOM, _call_pieces(expr)


def _call_pieces(expr: Apply) -> list[Piece]:
    params = expr.op.params if isinstance(expr.op, Function) else 0
    pick = "" if expr.pick is None else f".{expr.pick}"
    pieces: list[Piece] = [f"{expr.op.name}{pick}("]
    for i, arg in enumerate(expr.args):
        if i:
            pieces.append("; " if i == len(expr.args) - params else ", ")
        pieces.append((arg, 0))
    counted = isinstance(expr.op, IndexMap)  # options of index maps are integers, so 1 and 1.0 differ
    options = "".join(f", {k}={_show_value(v, counted or k == 'axis')}" for k, v in expr.attrs)
    return [*pieces, f"{options})"]


def _show_item(item: object) -> str:
    if isinstance(item, Slice):
        ends = [item.start, item.stop] + [item.step] * (item.step is not None)
        return ":".join("" if v is None else str(v) for v in ends)
    return str(item)


def _show_value(value: object, exact: bool = False) -> str:
    """The shortest text that reads back as the same number, and (`exact`) as the same type."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(_show_value(part, exact) for part in value)}]"
    text = repr(float(value)) if isinstance(value, float) else str(value)
    return text if exact else text.removesuffix(".0")


def _show_data(array: np.ndarray, limit: int | None) -> str:
    if limit is not None and array.size > limit:
        return f"[...]  # {' x '.join(map(str, array.shape))} numbers; show() writes them all"
    return _show_value(array.tolist())
