"""Outputs of a network: linear combinations of readouts `v @ h`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from netsor.build.graph_nodes import Node, apply, beyond_output, spelled
from netsor.build.source_lines import fail
from netsor.lang.functions import add, div, mul
from netsor.lang.ops import Op
from netsor.lang.types import Index


@dataclass(eq=False, repr=False, slots=True)
class Readout(Node):
    """Output scalars: sum of v.h / sqrt(n) over terms, plus `shift`. They allow linear combinations only.

    terms          (readout v: a Matrix, or a Vector for a bias; vectors h; number of aligned axes)
    readout_index  the readout's own index axes, which come first
    """

    is_output: ClassVar[bool] = True
    terms: tuple[tuple[Any, Node, int], ...]
    readout_index: Index = ()
    shift: float = 0.0

    def __add__(self, other):
        from netsor.build.parameters import Vector

        if isinstance(other, Vector):
            return self + self.bias(other)
        if isinstance(other, int | float | np.number) and not isinstance(other, bool):
            return self.made(self.terms, self.shift + float(other))
        if not isinstance(other, Readout):
            raise beyond_output("+")
        if other.index != self.index:
            raise fail(
                f"outputs of index shapes {self.index} and {other.index} are added",
                "Outputs are added member by member, so their shapes are equal. Return them both instead.",
            )
        return self.made(self.terms + other.terms, self.shift + other.shift)

    __radd__ = __add__

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        from netsor.build.parameters import Vector

        return self + (self.bias(other) * -1.0 if isinstance(other, Vector) else -other)

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        """Multiply by a number, data or a C-var c: c (v.h) = v.(c h)."""
        factor = self.trace.lift(other) if not isinstance(other, Readout | Outputs) else other
        scalar = not isinstance(factor, Node) or (factor.kind in ("K", "C") and not factor.index)
        if isinstance(factor, Readout | Outputs) or not scalar or (self.shift and isinstance(factor, Node)):
            raise beyond_output("*")
        shift = self.shift * factor if isinstance(factor, float) else 0.0
        return self.made(tuple((v, apply(mul, factor, x), k) for v, x, k in self.terms), shift)

    __rmul__ = __mul__

    def __truediv__(self, other):
        if isinstance(other, int | float | np.number) and other == 0:
            raise fail("an output is divided by 0", "Divide by a number that is not 0.")
        inverse = apply(div, 1.0, other) if isinstance(other, Node) else 1.0 / float(other)
        return self * inverse

    def made(self, terms: tuple[tuple[Any, Node, int], ...], shift: float) -> Readout:
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
        return self.made(((vector, one, 0),), float(vector.mean))

    def __getitem__(self, key):
        raise beyond_output("[...]")

    def reshape(self, *shape: object):
        raise beyond_output("reshape")

    def transpose(self, *axes: int):
        raise beyond_output("transpose")

    def sum(self, axis: int | tuple[int, ...] | None = None):
        raise beyond_output("sum")

    def mean(self, axis: int | tuple[int, ...] | None = None):
        raise beyond_output("mean")


class Outputs(list):
    """A list of outputs; sums and multiples act on each."""

    __array_ufunc__ = None

    def _each(self, act):
        return Outputs(act(out) for out in self)

    def __add__(self, other):
        if isinstance(other, Outputs):
            if len(other) != len(self):
                raise fail(f"{len(self)} outputs plus {len(other)}", "Outputs are added one by one.")
            return Outputs(a + b for a, b in zip(self, other, strict=True))
        return self._each(lambda out: out + other)

    __radd__ = __add__

    def __neg__(self):
        return self._each(lambda out: -out)

    def __sub__(self, other):
        if isinstance(other, Outputs):
            return self + -other
        return self._each(lambda out: out - other)

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        return self._each(lambda out: out * other)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self._each(lambda out: out / other)

    def __netsor_apply__(self, op: Op, *_: object) -> Any:
        raise beyond_output(spelled(op))


def outputs(items: list[Any], axis: object) -> Outputs:
    """Stack outputs."""
    if not all(isinstance(item, Readout) for item in items):
        raise fail("outputs are stacked with vectors", "Stack outputs with outputs, vectors with vectors.")
    if axis != 0:
        raise fail(
            f"outputs are stacked along axis={axis!r}", "Outputs are returned one after the other, axis=0."
        )
    return Outputs(items)
