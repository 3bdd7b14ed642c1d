"""Functions as sums of terms p(x) exp(rate x - bend x^2) 1[u > knot], where u = x + Gaussian noise,
and of pieces p(x) 1[low < x <= high].

erf and gelu are expectations of such terms over the noise: erf_gate(x) = P(u > 0) with noise of variance
1/2, gelu(x) = x P(u > 0) with variance 1. A wave is the real part of an exponential of imaginary rate.
`expect.closed` knows the expectations of products of two such sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from netsor.lang.pieces import Pieces

__all__ = ["Inner", "Term", "Terms", "terms_of_pieces"]


@dataclass(frozen=True)
class Term:
    """The real part of p(x) exp(rate x - bend x^2) 1[side (u - knot) > 0], always 1 where `knot` is None.

    `tie` is the value of the indicator where u = knot for sure.
    """

    coefs: tuple[complex, ...]
    rate: complex = 0.0
    knot: float | None = None
    noise: float = 0.0
    side: int = 1
    tie: float = 0.0
    bend: float = 0.0

    @property
    def is_complex(self) -> bool:
        return any(isinstance(x, complex) for x in (self.rate, *self.coefs))

    def conjugate(self) -> Term:
        """The term whose values are the complex conjugates."""
        coefs = tuple(complex(c).conjugate() for c in self.coefs)
        return replace(self, coefs=coefs, rate=complex(self.rate).conjugate())

    def scaled(self, factor: complex) -> Term:
        return replace(self, coefs=tuple(factor * c for c in self.coefs))

    def upward(self) -> Term:
        """The same term as a function of side * x, so that its indicator is that of an upper half line."""
        coefs = tuple(c * self.side**n for n, c in enumerate(self.coefs))
        knot = None if self.knot is None else self.side * self.knot
        return Term(coefs, self.side * self.rate, knot, self.noise, tie=self.tie, bend=self.bend)


@dataclass(frozen=True)
class Inner:
    """p(x) 1[low < x <= high]."""

    coefs: tuple[complex, ...]
    low: float
    high: float

    def scaled(self, factor: complex) -> Inner:
        return replace(self, coefs=tuple(factor * c for c in self.coefs))

    def halves(self) -> list[Term]:
        """The same as a difference of two half lines."""
        return [Term(self.coefs, knot=self.low), Term(self.coefs, knot=self.high).scaled(-1.0)]


Terms = tuple[Term | Inner, ...]


def terms_of_pieces(f: Pieces) -> Terms:
    """The first and the last piece are terms, those between two knots are inner pieces."""
    if not f.knots:
        return (Term(f.pieces[0]),)
    first, last = Term(f.pieces[0], knot=f.knots[0], side=-1, tie=1.0), Term(f.pieces[-1], knot=f.knots[-1])
    inner = [Inner(p, *ends) for ends, p in zip(pairwise(f.knots), f.pieces[1:-1], strict=True)]
    return tuple(t for t in (last, first, *inner) if any(t.coefs))
