"""Functions of the language as sums of terms p(x) exp(rate x) 1[u > knot], where u = x + Gaussian noise,
and of pieces p(x) 1[low < x <= high].

erf and gelu are expectations of such terms over the noise: erf_gate(x) = P(u > 0) with noise of variance
1/2, gelu(x) = x P(u > 0) with variance 1. A wave is the real part of an exponential of imaginary rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

__all__ = ["TERMS", "Inner", "Term", "Terms", "elu_series"]

Coefs = tuple[complex, ...]
Terms = list["Term | Inner"]


@dataclass(frozen=True)
class Term:
    """p(x) exp(rate x) 1[side (u - knot) > 0], without the indicator where `knot` is None.

    `tie` is the value of the indicator where u = knot for sure.
    """

    coefs: Coefs
    rate: complex = 0.0
    knot: float | None = None
    noise: float = 0.0
    side: int = 1
    tie: float = 0.0

    def upward(self) -> Term:
        """The same term as a function of side * x, so that its indicator is that of an upper half line."""
        coefs = tuple(c * self.side**n for n, c in enumerate(self.coefs))
        knot = None if self.knot is None else self.side * self.knot
        return Term(coefs, self.side * self.rate, knot, self.noise, tie=self.tie)


@dataclass(frozen=True)
class Inner:
    """p(x) 1[low < x <= high]."""

    coefs: Coefs
    low: float
    high: float

    def halves(self) -> list[Term]:
        """The same as a difference of two half lines."""
        return [Term(self.coefs, knot=self.low), Term(tuple(-c for c in self.coefs), knot=self.high)]


def _sign(options: Mapping[str, Any]) -> Terms:
    return [Term((1.0,), knot=0.0, tie=0.5), Term((-1.0,), knot=0.0, side=-1, tie=0.5)]


def _leaky(slope: float) -> Terms:
    return [Term((0.0, 1.0), knot=0.0), Term((0.0, slope), knot=0.0, side=-1)]


def _elu(alpha: float) -> Terms:
    below = [Term((alpha,), rate=1.0, knot=0.0, side=-1), Term((-alpha,), knot=0.0, side=-1)]
    return [Term((0.0, 1.0), knot=0.0), *below]


def elu_series(alpha: float, degree: int = 6) -> Terms:
    """elu with the Taylor polynomial of exp."""
    below = (0.0, *(alpha / math.factorial(n) for n in range(1, degree + 1)))
    return [Term((0.0, 1.0), knot=0.0), Term(below, knot=0.0, side=-1)]


def _piecewise(knots: tuple[float, ...], pieces: tuple[Coefs, ...]) -> Terms:
    """The first and the last piece are terms, those between two knots are inner pieces."""
    if not knots:
        return [Term(pieces[0])]
    outer = [Term(pieces[0], knot=knots[0], side=-1, tie=1.0), Term(pieces[-1], knot=knots[-1])]
    inner = [Inner(p, *ends) for ends, p in zip(pairwise(knots), pieces[1:-1], strict=True)]
    return [t for t in (*outer, *inner) if any(t.coefs)]


def _hard_tanh(low: float, high: float) -> Terms:
    """Ends at infinity are none."""
    below, above = ([end] if math.isfinite(end) else [] for end in (low, high))
    pieces = [(end,) for end in below] + [(0.0, 1.0)] + [(end,) for end in above]
    return _piecewise((*below, *above), tuple(pieces))


TERMS: dict[str, Callable[[Mapping[str, Any]], Terms]] = {
    "identity": lambda options: [Term((0.0, 1.0))],
    "polynomial": lambda options: [Term(tuple(options["coefs"]))],
    "relu": lambda options: [Term((0.0, 1.0), knot=0.0)],
    "leaky_relu": lambda options: _leaky(options["slope"]),
    "abs": lambda options: _leaky(-1.0),
    "step": lambda options: [Term((1.0,), knot=0.0)],
    "sign": _sign,
    "erf": lambda options: [Term((2.0,), knot=0.0, noise=0.5), Term((-1.0,))],
    "erf_gate": lambda options: [Term((1.0,), knot=0.0, noise=0.5)],
    "exp": lambda options: [Term((1.0,), rate=1.0)],
    "sin": lambda options: [Term((-1j,), rate=1j)],
    "cos": lambda options: [Term((1.0,), rate=1j)],
    "gelu": lambda options: [Term((0.0, 1.0), knot=0.0, noise=1.0)],
    "elu": lambda options: _elu(options["alpha"]),
    "hard_tanh": lambda options: _hard_tanh(options["low"], options["high"]),
    "piecewise": lambda options: _piecewise(options["knots"], options["pieces"]),
}
