"""Symbols: values that record what is done to them as an expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netsor.lang import functions as fn
from netsor.lang.expr import Apply, Attr, Const, Expr
from netsor.lang.ops import Function, Op

__all__ = ["Symbol", "partial_derivatives"]


@dataclass(frozen=True)
class Symbol:
    """An expression with operators; numbers are taken together at once.

    >>> from netsor.lang.expr import Ref
    >>> from netsor.lang.show import show_expr
    >>> x = Symbol(Ref("x"))
    >>> show_expr((2 * fn.tanh(x) + 0).expr)
    '2*tanh(x)'
    """

    expr: Expr

    def __netsor_apply__(self, op: Op, args: tuple[Any, ...], attrs: Mapping[str, Attr]) -> Symbol:
        return Symbol(_folded(op, tuple(map(_expr, args)), tuple(attrs.items())))

    def __add__(self, other: Any) -> Symbol:
        return fn.add(self, other)

    def __radd__(self, other: Any) -> Symbol:
        return fn.add(other, self)

    def __sub__(self, other: Any) -> Symbol:
        return fn.sub(self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return fn.sub(other, self)

    def __mul__(self, other: Any) -> Symbol:
        return fn.mul(self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return fn.mul(other, self)

    def __truediv__(self, other: Any) -> Symbol:
        return fn.div(self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return fn.div(other, self)

    def __pow__(self, other: Any) -> Symbol:
        return fn.pow_(self, other)

    def __rpow__(self, other: Any) -> Symbol:
        return fn.pow_(other, self)

    def __neg__(self) -> Symbol:
        return fn.neg(self)


def partial_derivatives(
    op: Function, args: tuple[Expr, ...], options: Mapping[str, Attr]
) -> tuple[Expr, ...]:
    """The derivative of `op(*args, **options)` with respect to each argument, at all places but the kinks.

    >>> from netsor.lang import parse_expr
    >>> from netsor.lang.expr import Ref
    >>> from netsor.lang.show import show_expr
    >>> [show_expr(d) for d in partial_derivatives(fn.mul, (Ref("x"), parse_expr("relu(y)")), {})]
    ['relu(y)', 'x']
    """
    derivative = op.about(options).derivative
    if derivative is None:
        raise ValueError(f"`{op.name}` has no derivative that is known")
    found = derivative(*map(Symbol, args))
    return tuple(map(_expr, found if isinstance(found, tuple) else (found,)))


def _expr(value: Any) -> Expr:
    return value.expr if isinstance(value, Symbol) else Const(float(value))


ZERO, ONE = Const(0.0), Const(1.0)
NEUTRAL: dict[Op, tuple[Expr | None, Expr | None]] = {  # left and right arguments that change nothing
    fn.add: (ZERO, ZERO),
    fn.sub: (None, ZERO),
    fn.mul: (ONE, ONE),
    fn.div: (None, ONE),
    fn.pow_: (None, ONE),
}


def _folded(op: Op, args: tuple[Expr, ...], attrs: tuple[tuple[str, Attr], ...]) -> Expr:
    """The operation, carried out where that needs no more than numbers."""
    if isinstance(op, Function) and not op.user and all(isinstance(a, Const) for a in args):
        return Const(float(op(*(a.value for a in args if isinstance(a, Const)), **dict(attrs))))
    left, right = NEUTRAL.get(op, (None, None))
    if left is not None and args[0] == left:
        return args[1]
    if right is not None and args[1] == right:
        return args[0]
    if op is fn.mul and ZERO in args:
        return ZERO
    return Apply(op, args, attrs)
