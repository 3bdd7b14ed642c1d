"""Symbolic derivatives, by running derivative functions on symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from netsor.lang.expr import Apply, Attr, Const, Expr
from netsor.lang.operators import Operators
from netsor.lang.ops import Function, Op
from netsor.lang.rewrite import ZEROS, at_head, folded, unit_factor


@dataclass(frozen=True)
class Symbol(Operators):
    """An expression with operators. Arithmetic is simplified at once.

    >>> from netsor.lang.expr import Ref
    >>> from netsor.lang.show import show_expr
    >>> from netsor.lang.functions import tanh
    >>> x = Symbol(Ref("x"))
    >>> show_expr((2 * tanh(x) + 0).expr)
    '2*tanh(x)'
    """

    expr: Expr

    def __netsor_apply__(self, op: Op, args: tuple[Any, ...], attrs: Mapping[str, Attr]) -> Self:
        applied = Apply(op, tuple(map(_expr, args)), tuple(attrs.items()))
        return type(self)(at_head(applied, (folded, *ZEROS, unit_factor)))

    def operate(self, op: Op, *operands: object) -> Self:
        return self.__netsor_apply__(op, operands, {})


def partial_derivatives(
    op: Function, args: tuple[Expr, ...], options: Mapping[str, Attr]
) -> tuple[Expr, ...]:
    """Return the derivatives of `op(*args, **options)` by each argument, valid everywhere but at kinks."""
    derivative = op.about(options).derivative
    if derivative is None:
        raise ValueError(f"`{op.name}` has no derivative that is known")
    slopes = derivative(*map(Symbol, args))
    return tuple(map(_expr, slopes if isinstance(slopes, tuple) else (slopes,)))


def _expr(value: Any) -> Expr:
    return value.expr if isinstance(value, Symbol) else Const(float(value))
