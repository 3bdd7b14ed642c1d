"""Arithmetic on symbolic values, and symbolic derivatives, which run derivative functions on symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from netsor.lang.expr import Apply, Attr, Const, Expr
from netsor.lang.functions import add, div, mul, neg, pow_, sub
from netsor.lang.ops import Function, Op
from netsor.lang.rewrite import ZEROS, at_head, folded, unit_factor

Operator = Callable[[Any, Any], Any]


def _binary(op: Op) -> tuple[Operator, Operator]:
    """`self op other` and `other op self`."""
    return lambda self, other: self.operate(op, self, other), lambda self, other: self.operate(
        op, other, self
    )


class Operators:
    """Defines `+ - * / **` and the sign of symbols and traced values by `operate(op, *operands)`."""

    __slots__ = ()

    def operate(self, op: Op, *operands: object) -> Any:
        raise NotImplementedError

    __add__, __radd__ = _binary(add)
    __sub__, __rsub__ = _binary(sub)
    __mul__, __rmul__ = _binary(mul)
    __truediv__, __rtruediv__ = _binary(div)
    __pow__, __rpow__ = _binary(pow_)

    def __neg__(self) -> Any:
        return self.operate(neg, self)


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
