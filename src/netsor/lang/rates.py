"""How fast parameters are trained: the variance of the direction in which each of them moves.

A network is trained in its parameters, and what counts as one is a convention. If a matrix has entries
N(0, var / n), its direction has entries N(0, spread / n):

| convention   | a parameter is                 | spread: matrix | vector     | source                     |
| ------------ | ------------------------------ | -------------- | ---------- | -------------------------- |
| `"ntk"`      | omega, W = sqrt(var / n) omega | rate * var     | rate * var | Jacot et al. 2018          |
| `"unit"`     | omega, W = omega / sqrt(n)     | rate           | rate       | Yang 2020 (TP II)          |
| `"standard"` | W itself                       | rate * n       | rate       | Sohl-Dickstein et al. 2020 |

In the standard parametrisation n is the fan-in of a network of given widths, and a readout has fan-in n too.
A parameter of rate 0 is frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from netsor.errors import DataError
from netsor.lang.program import Input, MatMul, MatrixLaw, Moment, Nested, Normal, Output, Program, used_by
from netsor.lang.types import A, G

__all__ = ["Rates", "check_rate", "readouts_of_constants"]


@dataclass(frozen=True)
class Rates:
    """The rate of each parameter by its name (1 if it has none), and the convention of what a parameter is.

    width   of the base network of the standard parametrisation: a number, or one for each width by name
    biases  readouts that are biases of outputs, so that their fan-in is 1
    """

    of: Mapping[str, float] = field(default_factory=dict)
    convention: str = "ntk"
    width: int | Mapping[str, int] | None = None
    biases: frozenset[str] = frozenset()

    @classmethod
    def given(cls, rates: Any) -> Rates:
        """Rates as users write them: None, a dictionary, "ntk", "unit", or ("standard", width)."""
        match rates:
            case Rates():
                return rates
            case None:
                return cls()
            case Mapping():
                return cls({str(name): check_rate(rate, f"`{name}`") for name, rate in rates.items()})
            case str() if rates in ("ntk", "unit"):
                return cls(convention=rates)
            case ("standard", width) if _is_width(width):
                return cls(convention="standard", width=width)
        raise DataError(
            f"rates={rates!r:.60}",
            remedy='Give a dictionary of rates by name, {"W1": 0.0}, a convention, "ntk" or "unit", or '
            '("standard", 512) with the width of the base network.',
        )

    def rate(self, name: str) -> float:
        return self.of.get(name, 1.0)

    def spread(self, s: Input, readout: bool, var: Any = None) -> Any:
        """The variance of the direction of a matrix, or of a vector whose law is one variance.

        With `var` in place of the variance that the program has.
        """
        rate, law = self.rate(s.name), s.law
        if self.convention == "ntk":
            own = law.var if isinstance(law, MatrixLaw) else getattr(law, "cov", 0.0)
            return rate * (own if var is None else var)
        return rate * self._fan_in(s, readout)

    def law(self, s: Input, names: Mapping[str, str], readout: bool) -> MatrixLaw | Normal:
        """The law of the direction of an input; `names` are those of the directions of earlier inputs."""
        if isinstance(s.law, MatrixLaw):
            return MatrixLaw(self.spread(s, readout))
        assert isinstance(s.law, Normal)
        if s.law.each:
            return Normal(0.0, 0.0)
        if self.convention != "ntk":
            return Normal(0.0, self.spread(s, readout))
        own = self.rate(s.name)
        cross = tuple(
            (names[name], _scaled(value, (own * self.rate(name)) ** 0.5))
            for name, value in s.law.cross
            if name in names
        )
        return Normal(0.0, _scaled(s.law.cov, own), cross)

    def _fan_in(self, s: Input, readout: bool) -> float:
        """The fan-in of the standard parametrisation; 1 for other conventions and for biases."""
        if self.convention != "standard":
            return 1.0
        if isinstance(s.type, A):
            return float(s.type.cols if isinstance(s.type.cols, int) else self._size(s.type.cols))
        assert isinstance(s.type, G)
        return float(self._size(s.type.width)) if readout and s.name not in self.biases else 1.0

    def _size(self, width: str) -> int:
        if not isinstance(self.width, Mapping):
            assert self.width is not None
            return self.width
        if width not in self.width:
            raise DataError(
                f"the base network has no width {width}",
                remedy=f'Give all widths by name, ("standard", {{"{width}": 512}}), or one number for all.',
            )
        return self.width[width]


def _scaled(value: Nested, factor: float) -> Nested:
    return tuple(_scaled(v, factor) for v in value) if isinstance(value, tuple) else value * factor


def readouts_of_constants(program: Program) -> frozenset[str]:
    """Readouts that meet nothing but vectors of fixed numbers: biases of outputs, written out."""
    fixed: set[str] = set(program.data)
    for s in program.statements:
        if isinstance(s, Input):
            is_fixed = isinstance(s.law, Normal) and isinstance(s.law.cov, float) and s.law.cov == 0.0
        else:
            is_fixed = not isinstance(s, MatMul | Output | Moment) and fixed.issuperset(used_by(s))
        if is_fixed:
            fixed.add(s.name)
    terms = [t for s in program.outputs for t in s.terms]
    return frozenset({t.readout for t in terms} - {t.readout for t in terms if t.operand not in fixed})


def check_rate(rate: Any, what: str) -> float:
    """A rate as a number, or an error that says whose it is."""
    real = isinstance(rate, int | float | np.number) and not isinstance(rate, bool)
    if real and isfinite(rate) and rate >= 0:
        return float(rate)
    raise DataError(
        f"the rate of {what} is {rate!r:.60}", remedy="A rate is a finite number >= 0; 0 is frozen."
    )


def _is_width(width: Any) -> bool:
    if isinstance(width, Mapping):
        return all(_is_width(n) for n in width.values())
    return isinstance(width, int | np.integer) and not isinstance(width, bool) and bool(width >= 1)
