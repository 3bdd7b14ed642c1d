"""Outputs of a network: linear combinations of readouts `v @ h`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from netsor.build.graph_nodes import Node, apply, beyond_output, spelled
from netsor.build.source_lines import fail
from netsor.lang.functions import add, div, mul, neg, sub
from netsor.lang.ops import Op
from netsor.lang.symbols import Operators
from netsor.lang.types import Index


@dataclass(eq=False, repr=False, slots=True)
class Readout(Node):
    """Output scalars: sum of v.h / sqrt(n) over terms, plus `shift`. They allow linear combinations only."""

    is_output: ClassVar[bool] = True
    terms: tuple[tuple[Any, Node, int], ...]  # (Matrix v, or Vector for a bias; h; number of aligned axes)
    readout_index: Index = ()  # the readout's own index axes, which come first
    shift: float = 0.0

    def operate(self, op: Op, *operands: Any) -> Any:
        """Build a linear combination; every other operation is an error."""
        if op is neg:
            return self.times(-1.0)
        x, y = operands
        other = y if x is self else x
        if op is add:
            return self.plus(other)
        if op is sub:
            return self.plus(other, -1.0) if x is self else self.times(-1.0).plus(other)
        if op is mul:
            return self.times(other)
        if op is not div or x is not self:
            raise beyond_output(spelled(op))
        if isinstance(other, int | float | np.number) and other == 0:
            raise fail("an output is divided by 0", "Divide by a number that is not 0.")
        return self.times(apply(div, 1.0, other) if isinstance(other, Node) else 1.0 / float(other))

    def plus(self, other: Any, sign: float = 1.0) -> Readout:
        """Add an output, a number or a bias, or subtract it."""
        from netsor.build.parameters import Vector

        if isinstance(other, Vector):
            other = self.bias(other)
        if isinstance(other, int | float | np.number) and not isinstance(other, bool):
            return self.combined(self.terms, self.shift + sign * float(other))
        if not isinstance(other, Readout):
            raise beyond_output("+")
        if other.index != self.index:
            raise fail(
                f"outputs of index shapes {self.index} and {other.index} are added",
                "Outputs are added member by member, so their shapes are equal. Return them both instead.",
            )
        other = other if sign == 1.0 else other.times(sign)
        return self.combined(self.terms + other.terms, self.shift + other.shift)

    def times(self, other: Any) -> Readout:
        """Multiply by a number, data or a C-var c: c (v.h) = v.(c h)."""
        factor = self.trace.lift(other) if not isinstance(other, Readout | Outputs) else other
        scalar = not isinstance(factor, Node) or (factor.kind in ("K", "C") and not factor.index)
        if isinstance(factor, Readout | Outputs) or not scalar or (self.shift and isinstance(factor, Node)):
            raise beyond_output("*")
        shift = self.shift * factor if isinstance(factor, float) else 0.0
        return self.combined(tuple((v, apply(mul, factor, x), k) for v, x, k in self.terms), shift)

    def combined(self, terms: tuple[tuple[Any, Node, int], ...], shift: float) -> Readout:
        if not np.isfinite(shift):
            raise fail(f"an output plus {shift:g}", "Add a finite number.")
        return Readout(self.trace, "C", self.index, None, terms, self.readout_index, shift)

    def bias(self, vector: Any) -> Readout:
        """The bias N(mean, var) of the output layer, for all members or for each row of the readout.

        It is b.1 / sqrt(n), a readout of the vector of ones, which has variance var at any width.
        """
        if vector.index not in ((), self.readout_index) or np.ndim(vector.mean):
            raise fail(
                f"an output of index shape {self.index} plus a Vector of index shape {vector.index}",
                "The bias of an output is one number, ns.Vector(var), or one for each row of the readout: "
                f"ns.Vector(var, index={self.readout_index}).",
            )
        x = self.terms[0][1]
        one = x[(0,) * len(x.index)] if x.index else x
        one = apply(add, apply(mul, 0.0, one), 1.0)  # 0 h + 1 has the width of h
        operand_index = self.index if vector.index == () else self.index[len(self.readout_index) :]
        if operand_index:
            one = apply(add, one, self.trace.constant(np.zeros(operand_index)))
        return self.combined(((vector, one, 0),), float(vector.mean))


class Outputs(Operators, list):
    """A list of outputs; sums and multiples act on each."""

    __array_ufunc__ = None

    def operate(self, op: Op, *operands: Any) -> Outputs:
        sizes = [len(x) for x in operands if isinstance(x, Outputs)]
        if len(set(sizes)) > 1:
            raise fail(f"{sizes[0]} outputs plus {sizes[1]}", "Outputs are added one by one.")
        columns = [x if isinstance(x, Outputs) else [x] * len(self) for x in operands]
        rows = zip(*columns, strict=True)
        return Outputs(next(x for x in row if isinstance(x, Readout)).operate(op, *row) for row in rows)

    def __netsor_apply__(self, op: Op, *_: object) -> Any:
        raise beyond_output(spelled(op))
