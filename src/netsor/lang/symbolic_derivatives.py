"""Symbolic derivatives, by running derivative functions on symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netsor.lang import functions as fn
from netsor.lang.expr import Apply, Attr, Const, Expr
from netsor.lang.operators import Operators
from netsor.lang.ops import Function, Op


@dataclass(frozen=True)
class Symbol(Operators):
    """An expression with operators. Arithmetic on numbers is folded at once.

    >>> from netsor.lang.expr import Ref
    >>> from netsor.lang.show import show_expr
    >>> x = Symbol(Ref("x"))
    >>> show_expr((2 * fn.tanh(x) + 0).expr)
    '2*tanh(x)'
    """

    expr: Expr

    def __netsor_apply__(self, op: Op, args: tuple[Any, ...], attrs: Mapping[str, Attr]) -> Symbol:
        return Symbol(_folded(op, tuple(map(_expr, args)), tuple(attrs.items())))

    def operate(self, op: Op, *operands: object) -> Symbol:
        return Symbol(_folded(op, tuple(map(_expr, operands)), ()))


def partial_derivatives(
    op: Function, args: tuple[Expr, ...], options: Mapping[str, Attr]
) -> tuple[Expr, ...]:
    """Return the derivatives of `op(*args, **options)` by each argument, valid everywhere but at kinks.

    >>> from netsor.lang import parse_expr
    >>> from netsor.lang.expr import Ref
    >>> from netsor.lang.show import show_expr
    >>> [show_expr(d) for d in partial_derivatives(fn.mul, (Ref("x"), parse_expr("relu(y)")), {})]
    ['relu(y)', 'x']
    """
    derivative = op.about(options).derivative
    if derivative is None:
        raise ValueError(f"`{op.name}` has no derivative that is known")
    slopes = derivative(*map(Symbol, args))
    return tuple(map(_expr, slopes if isinstance(slopes, tuple) else (slopes,)))


def _expr(value: Any) -> Expr:
    return value.expr if isinstance(value, Symbol) else Const(float(value))


NEUTRAL: dict[Op, tuple[Expr | None, Expr | None]] = {  # left and right neutral elements
    fn.add: (Const(0.0), Const(0.0)),
    fn.sub: (None, Const(0.0)),
    fn.mul: (Const(1.0), Const(1.0)),
    fn.div: (None, Const(1.0)),
    fn.pow_: (None, Const(1.0)),
}


def _folded(op: Op, args: tuple[Expr, ...], attrs: tuple[tuple[str, Attr], ...]) -> Expr:
    """Apply an operation; fold constants, neutral elements and multiples of 0."""
    if isinstance(op, Function) and not op.user and all(isinstance(a, Const) for a in args):
        return Const(float(op(*(a.value for a in args if isinstance(a, Const)), **dict(attrs))))
    left, right = NEUTRAL.get(op, (None, None))
    if left is not None and args[0] == left:
        return args[1]
    if right is not None and args[1] == right:
        return args[0]
    if op is fn.mul and Const(0.0) in args:
        return Const(0.0)
    return Apply(op, args, attrs)
