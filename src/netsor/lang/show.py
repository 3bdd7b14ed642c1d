"""Program to text: `parse(show(p)) == p`."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsor.lang.expr import Apply, Const, Expr, Ref, Slice
from netsor.lang.functions import add, div, mul, neg, pow_, sub
from netsor.lang.index_maps import at
from netsor.lang.ops import Function, Op
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
    Statement,
    Term,
)
from netsor.lang.types import A

__all__ = ["show", "show_expr", "show_statement"]

# How tightly an operation binds, as in the grammar: sums, products, signs, powers, atoms.
BINDING: dict[Op, int] = {add: 1, sub: 1, mul: 2, div: 2, neg: 3, pow_: 4}
ATOM = 5


def show(program: Program, data_limit: int | None = None) -> str:
    """The text of a program; arrays of more than `data_limit` numbers are cut short."""
    lines = list(program.header)
    lines += [f"Data {name} = {_show_data(array, data_limit)}" for name, array in program.data.items()]
    kinds = _Kinds(program)
    for s in program.statements:
        lines += s.notes
        lines.append(show_statement(s, kinds))
    return "\n".join([*lines, *program.notes]) + "\n"


class _Kinds:
    """Which names are vectors, which are scalars: it decides how an expression must be written."""

    def __init__(self, program: Program) -> None:
        from netsor.lang.program import Scalar

        self.of = dict.fromkeys(program.data, "K")
        self.of |= {s.name: "C" for s in program.statements if isinstance(s, Moment | Scalar)}

    def linear(self, expr: Expr) -> bool:
        """Whether the text of the expression reads as a linear combination of G-vars."""
        match expr:
            case Ref(name):
                return self.kind(expr) == "G" and name not in self.of
        return self.kind(expr) == "G"

    def kind(self, expr: Expr) -> str:
        match expr:
            case Ref(name):
                return self.of.get(name, "G")
            case Const():
                return "K"
        return expr.op.kind(tuple(self.kind(a) for a in expr.args))


def show_statement(s: Statement, kinds: _Kinds | None = None) -> str:
    """One line of text."""
    match s:
        case Input():
            return f"Input {s.name} :: {s.type} ~ {_show_law(s)}"
        case Output():
            return f"Output {' + '.join(map(_show_term, s.terms))}"
        case MatMul():
            aligned = f", aligned={s.aligned}" if s.aligned else ""
            rhs = f"MatMul({s.matrix}, {s.operand}{aligned})"
        case Moment():
            rhs = f"Moment({show_expr(s.expr)})"
        case Nonlin() if kinds is None or kinds.linear(s.expr):
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
        case Embedding(matrix, data):
            return f"MatMul({matrix}, {show_expr(data)})"
        case Normal(mean, cov, cross):
            parts = [_show_value(mean), _show_value(cov), *(f"{k}: {_show_value(v)}" for k, v in cross)]
            return f"N({', '.join(parts)})"


def show_expr(expr: Expr) -> str:
    """The text of an expression, with the fewest parentheses that parse back to the same tree."""
    return _show(expr)[0]


def _show(expr: Expr) -> tuple[str, int]:
    """Text of an expression and how tightly it binds."""
    match expr:
        case Ref(name):
            return name, ATOM
        case Const(value):
            return _show_value(value), 3 if value < 0 or str(value) == "-0.0" else ATOM
        case Apply(op, (x,), _, None) if op is at:
            items = expr.options["index"]
            return f"{_wrapped(x, ATOM)}[{', '.join(map(_show_item, items))}]", ATOM
        case Apply(op, (x,), (), None) if op is neg and not isinstance(x, Const):
            return f"-{_wrapped(x, 3)}", 3
        case Apply(op, (x, y), (), None) if op is pow_:
            return f"{_wrapped(x, ATOM)}^{_wrapped(y, 3)}", 4
        case Apply(op, (x, y), (), None) if op in BINDING:
            level = BINDING[op]
            space = " " if level == 1 or op is div else ""
            left, right = _wrapped(x, level), _wrapped(y, level + 1)
            return f"{left}{space}{getattr(op, 'infix', '')}{space}{right}", level
    return _show_call(expr), ATOM


def _show_call(expr: Apply) -> str:
    args = [_show(a)[0] for a in expr.args]
    params = expr.op.params if isinstance(expr.op, Function) else 0
    head = ", ".join(args[: len(args) - params])
    tail = ", ".join(args[len(args) - params :])
    options = "".join(f", {k}={_show_value(v)}" for k, v in expr.attrs)
    pick = "" if expr.pick is None else f".{expr.pick}"
    return f"{expr.op.name}{pick}({'; '.join(p for p in (head, tail) if p)}{options})"


def _wrapped(expr: Expr, level: int) -> str:
    text, binding = _show(expr)
    return text if binding >= level else f"({text})"


def _show_item(item: Any) -> str:
    if isinstance(item, Slice):
        start, stop, step = ("" if v is None else str(v) for v in (item.start, item.stop, item.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return str(item)


def _show_value(value: Any) -> str:
    """Numbers in the shortest form that reads back exactly; tuples as lists."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_show_value, value))}]"
    text = repr(float(value)) if isinstance(value, float) else str(value)
    return text.removesuffix(".0")


def _show_data(array: np.ndarray, limit: int | None) -> str:
    if limit is not None and array.size > limit:
        return f"[...]  # {' x '.join(map(str, array.shape))} numbers; show() writes them all"
    nested = array.tolist()
    return _show_value(_tuples(nested))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
