"""Functions as sums of terms p(x) exp(rate x - bend x^2) 1[u > knot] and of pieces p(x) 1[low < x <= high].

Here p is a polynomial and u = x + Gaussian noise; a term means its expectation over the noise. So
erf_gate(x) = P(u > 0) with noise of variance 1/2, and gelu(x) = x P(u > 0) with variance 1. Sine and cosine
are real parts of exponentials with imaginary rates. `expect.closed` has closed forms for expectations of
products of two such sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from netsor.lang.piecewise_polynomials import PiecewisePolynomial


@dataclass(frozen=True)
class ExpTerm:
    """The real part of p(x) exp(rate x - bend x^2) 1[side (u - knot) > 0]."""

    coefs: tuple[complex, ...]  # coefficients of p, ascending
    rate: complex = 0.0
    knot: float | None = None  # None: no indicator
    noise: float = 0.0  # variance of u - x
    side: int = 1
    tie: float = 0.0  # value of the indicator if u = knot surely
    bend: float = 0.0

    @property
    def is_complex(self) -> bool:
        return any(isinstance(x, complex) for x in (self.rate, *self.coefs))

    def conjugate(self) -> ExpTerm:
        """The complex conjugate of the term."""
        coefs = tuple(complex(c).conjugate() for c in self.coefs)
        return replace(self, coefs=coefs, rate=complex(self.rate).conjugate())

    def scaled(self, factor: complex) -> ExpTerm:
        return replace(self, coefs=tuple(factor * c for c in self.coefs))

    def upward(self) -> ExpTerm:
        """The term as a function of side * x, whose indicator is 1[u > knot]."""
        coefs = tuple(c * self.side**n for n, c in enumerate(self.coefs))
        knot = None if self.knot is None else self.side * self.knot
        return ExpTerm(coefs, self.side * self.rate, knot, self.noise, tie=self.tie, bend=self.bend)


@dataclass(frozen=True)
class InnerPiece:
    """p(x) 1[low < x <= high]."""

    coefs: tuple[complex, ...]
    low: float
    high: float

    def scaled(self, factor: complex) -> InnerPiece:
        return replace(self, coefs=tuple(factor * c for c in self.coefs))

    def halves(self) -> list[ExpTerm]:
        """The piece as a difference of two half-line terms: 1[low < x] - 1[high < x]."""
        return [ExpTerm(self.coefs, knot=self.low), ExpTerm(self.coefs, knot=self.high).scaled(-1.0)]


ExpTerms = tuple[ExpTerm | InnerPiece, ...]


def terms_of_pieces(f: PiecewisePolynomial) -> ExpTerms:
    """Convert a piecewise polynomial: the outer pieces are terms, the others inner pieces."""
    if not f.knots:
        return (ExpTerm(f.pieces[0]),)
    first, last = (
        ExpTerm(f.pieces[0], knot=f.knots[0], side=-1, tie=1.0),
        ExpTerm(f.pieces[-1], knot=f.knots[-1]),
    )
    inner = [InnerPiece(p, *ends) for ends, p in zip(pairwise(f.knots), f.pieces[1:-1], strict=True)]
    return tuple(t for t in (last, first, *inner) if any(t.coefs))
