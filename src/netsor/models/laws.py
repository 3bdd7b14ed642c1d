"""The laws of a model's parameters, read from its initialisers at two widths.

The variances of an entry at both widths determine the power of n:

| variance | the parameter is |
| --- | --- |
| var / n, on a width | a matrix, `ns.Matrix(var)` |
| order 1 | a vector (a bias, an embedding), `ns.Vector(var)` |
| 0 | a constant |

Only mean and variance matter: uniform and truncated laws have the same limit as Gaussian laws.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from netsor.build.parameters import Matrix, Vector
from netsor.errors import BuildError
from netsor.models.scalars import Size

VALUES = "own values"  # a parameter of finite size that is fixed to the model's numbers
MIXED = "several laws"  # an array whose parts have different laws
Given = Mapping[str, Any]  # patterns of names -> Matrix, Vector, "width" or "values"


@dataclass(frozen=True)
class Law:
    """Mean and variance of an entry, at the two widths.

    source     the origin of the law: the initialiser's name, "measured", or "given"
    at_width   whether to keep the law of the first width, whatever its power of n
    fan_in     whether var is the variance of an entry times the fan-in, as in `ns.Matrix(var)`
    zero_rows  rows of an embedding that are 0 (padding)
    """

    mean: float
    var: tuple[float, float]
    source: str = "given"
    at_width: bool = False
    fan_in: bool = False
    zero_rows: tuple[int, ...] = ()

    @property
    def is_constant(self) -> bool:
        return self.var == (0.0, 0.0)

    def exponent(self, widths: Size) -> float:
        """The exponent p if the variance is proportional to n^p."""
        if not self.var[0] or not self.var[1] or self.at_width:
            return 0.0
        return math.log(self.var[1] / self.var[0]) / math.log(widths[1] / widths[0])


@dataclass(frozen=True)
class ParameterRow:
    """A parameter of the model: name, shape at the two widths, law, and whether it is trained."""

    name: str
    shape: tuple[Size, ...]
    law: Law
    trained: bool = True


def measured_law(values: np.ndarray) -> Law:
    """Estimate a law from the numbers, if no initialiser was seen; a mean within its standard error is 0."""
    mean, var = float(values.mean()), float(values.var())
    if var <= 1e-20 * max(1.0, mean * mean):
        return Law(mean, (0.0, 0.0), "measured")
    if abs(mean) < 4 * math.sqrt(var / values.size):
        mean = 0.0
    return Law(mean, (var, var), "measured")


def at_two_widths(name: str, one: Law, two: Law) -> Law:
    """Combine the laws of a parameter at the two widths."""
    if not math.isclose(one.mean, two.mean, rel_tol=1e-6, abs_tol=1e-12):
        raise BuildError(
            f"the mean of the parameter `{name}` depends on the width: {one.mean:g} and {two.mean:g}",
            remedy=f'Give its law: laws={{"{name}": ns.Matrix(var)}}, or ns.Vector(var, mean).',
        )
    return replace(one, var=(one.var[0], two.var[0]))


def override(rows: list[ParameterRow], given: Given | None) -> list[ParameterRow]:
    """Replace laws in the rows by those that the user gives."""
    given = given or {}
    for pattern in given:
        if not any(fnmatch.fnmatch(r.name, pattern) for r in rows):
            names = ", ".join(r.name for r in rows[:6]) + (", ..." if len(rows) > 6 else "")
            raise BuildError(
                f'laws has "{pattern}", but no parameter has this name',
                remedy=f"The parameters are {names}; * stands for any part of a name.",
            )
    return [_overridden(row, given) for row in rows]


def _overridden(row: ParameterRow, given: Given) -> ParameterRow:
    for pattern, law in given.items():
        if fnmatch.fnmatch(row.name, pattern):
            row = replace(row, law=_given_law(row, law))
    return row


def _given_law(row: ParameterRow, law: Any) -> Law:
    match law:
        case "width":
            return replace(row.law, at_width=True)
        case "values" if all(a == b for a, b in row.shape):
            return Law(0.0, (0.0, 0.0), VALUES)
        case Matrix(var=var):
            return Law(0.0, (var, var), fan_in=True)
        case Vector(var=float() as var, mean=mean) if mean.ndim == 0:
            return Law(float(mean), (var, var))
    raise BuildError(
        f"laws has {law!r} for `{row.name}`",
        remedy="A law is ns.Matrix(var), with entries of variance var / fan_in; ns.Vector(var, mean); "
        '"width": as it is at the model\'s own width; or, for a parameter without a width, "values": the '
        "numbers that the model itself has.",
    )


def shape_text(shape: tuple[Size, ...], widths: Size) -> str:
    """Write a shape as `(3n, n, 5)`: axes that grow with the width are multiples of n.

    >>> shape_text(((192, 384), (32, 64), (5, 5)), (64, 128))
    '(3n, n/2, 5)'
    """
    return "(" + ", ".join(_size_text(s, widths) for s in shape) + ")"


def _size_text(size: Size, widths: Size) -> str:
    if size[0] == size[1]:
        return str(size[0])
    slope = (size[1] - size[0]) / (widths[1] - widths[0])
    offset = round(size[0] - slope * widths[0])
    tail = f"{offset:+d}" if offset else ""
    if slope >= 1:
        return ("n" if slope == 1 else f"{slope:g}n") + tail
    return f"n/{1 / slope:g}" + tail
