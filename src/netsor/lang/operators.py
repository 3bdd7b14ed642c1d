"""Arithmetic operators for symbolic values: traced values, symbols and input vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netsor.lang.functions import add, div, mul, neg, pow_, sub
from netsor.lang.ops import Op

Operator = Callable[[Any, Any], Any]


def _binary(op: Op) -> tuple[Operator, Operator]:
    """`self op other` and `other op self`."""
    return lambda self, other: self.operate(op, self, other), lambda self, other: self.operate(
        op, other, self
    )


class Operators:
    """Defines `+ - * / **` and the sign by one method, `operate(op, *operands)`."""

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
