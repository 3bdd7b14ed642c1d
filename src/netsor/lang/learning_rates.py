"""Learning rates of parameters: the variance of the random direction of each parameter.

The tangent kernel depends on the parametrisation. If a matrix has entries N(0, var / n), its direction has
entries N(0, spread / n):

| convention   | a parameter is                 | spread: matrix | vector     | source                     |
| ------------ | ------------------------------ | -------------- | ---------- | -------------------------- |
| `"ntk"`      | omega, W = sqrt(var / n) omega | rate * var     | rate * var | Jacot et al. 2018          |
| `"unit"`     | omega, W = omega / sqrt(n)     | rate           | rate       | Yang 2020 (TP II)          |
| `"standard"` | W itself                       | rate * n       | rate       | Sohl-Dickstein et al. 2020 |

In the standard parametrisation n is the fan-in in a network of given widths; a readout has fan-in n, too.
Rate 0 freezes a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from netsor.arguments import is_integer
from netsor.errors import DataError
from netsor.lang.program import Input, MatMul, MatrixLaw, Moment, Nested, Normal, Output, Program, used_by
from netsor.lang.types import A


@dataclass(frozen=True)
class Rates:
    """The learning rates of parameters and the parametrisation."""

    of: Mapping[str, float] = field(default_factory=dict)  # by parameter name; other rates are 1
    convention: str = "ntk"  # the parametrisation: "ntk", "unit" or "standard"
    width: int | Mapping[str, int] | None = None  # in the standard parametrisation, for all or by name
    biases: frozenset[str] = frozenset()  # readouts that act as biases of outputs, so their fan-in is 1

    @classmethod
    def given(cls, rates: object) -> Rates:
        """Convert the user's argument: None, a dictionary, "ntk", "unit", or ("standard", width)."""
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
        """Return the spread of a matrix, or of a vector whose law is one variance; `var` replaces it."""
        if self.convention != "ntk":
            return self.rate(s.name) * self._fan_in(s, readout)
        if var is None:
            var = s.law.var if isinstance(s.law, MatrixLaw) else getattr(s.law, "cov", 0.0)
        return self.rate(s.name) * var

    def law(self, s: Input, names: Mapping[str, str], readout: bool) -> MatrixLaw | Normal:
        """Return the law of the direction of an input; `names` maps earlier inputs to their directions."""
        if isinstance(s.law, MatrixLaw):
            return MatrixLaw(self.spread(s, readout))
        assert isinstance(s.law, Normal)
        if s.law.each:  # noise is no parameter
            return Normal(0.0, 0.0)
        if self.convention != "ntk":
            return Normal(0.0, self.spread(s, readout))
        rate = self.rate(s.name)
        cross = tuple(
            (names[name], _scaled(value, (rate * self.rate(name)) ** 0.5))
            for name, value in s.law.cross
            if name in names
        )
        return Normal(0.0, _scaled(s.law.cov, rate), cross)

    def _fan_in(self, s: Input, readout: bool) -> float:
        """The fan-in n in the standard parametrisation; 1 in the others, and for biases."""
        vector = not isinstance(s.type, A)
        if self.convention != "standard" or (vector and (not readout or s.name in self.biases)):
            return 1.0
        size = s.type.dims[-1]
        if isinstance(size, str) and isinstance(self.width, Mapping):
            if size not in self.width:
                remedy = f'Give all widths by name, ("standard", {{"{size}": 512}}), or one number for all.'
                raise DataError(f"the base network has no width {size}", remedy=remedy)
            return float(self.width[size])
        return float(size if isinstance(size, int) else self.width)  # type: ignore[arg-type]


# A dictionary by parameter name, "ntk", "unit", or ("standard", width of the base network).
GivenRates = Rates | Mapping[str, float] | str | tuple[str, int | Mapping[str, int]] | None


def _scaled(value: Nested, factor: float) -> Nested:
    return tuple(_scaled(v, factor) for v in value) if isinstance(value, tuple) else value * factor


def readouts_of_constants(program: Program) -> frozenset[str]:
    """Find the readouts that multiply only constant vectors: they act as biases of outputs."""
    fixed: set[str] = set(program.data)
    for s in program.statements:
        if isinstance(s, Input):
            if isinstance(s.law, Normal) and isinstance(s.law.cov, float) and s.law.cov == 0.0:
                fixed.add(s.name)
        elif not isinstance(s, MatMul | Output | Moment) and fixed.issuperset(used_by(s)):
            fixed.add(s.name)
    terms = (t for s in program.outputs for t in s.terms)
    return program.readouts - {t.readout for t in terms if t.operand not in fixed}


def check_rate(rate: Any, what: str) -> float:
    """Check a rate: a finite number >= 0."""
    real = isinstance(rate, int | float | np.number) and not isinstance(rate, bool)
    if real and isfinite(rate) and rate >= 0:
        return float(rate)
    raise DataError(
        f"the rate of {what} is {rate!r:.60}", remedy="A rate is a finite number >= 0; 0 is frozen."
    )


def _is_width(width: object) -> bool:
    return all(is_integer(n, 1) for n in (width.values() if isinstance(width, Mapping) else [width]))
