"""Facts about the functions of the language: derivatives, kinks, growth, closed forms.

`lang.functions` registers each function with its `Facts`, or with a function from options to facts. All other
modules read derivatives, kinks and closed forms from there. A user's function has `UNKNOWN` facts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf
from typing import Any

from netsor.lang.exp_terms import ExpTerms, terms_of_pieces
from netsor.lang.piecewise_polynomials import PiecewisePolynomial

Places = tuple[float, ...]


class Growth(IntEnum):
    """The growth of |f(x)| with |x|: the smallest of these bounds that holds."""

    BOUNDED = 0
    LINEAR = 1  # at most C (1 + |x|)
    POLYNOMIAL = 2  # at most C (1 + |x|)^n
    EXPONENTIAL = 3  # at most C exp(c |x|)
    UNKNOWN = 4


@dataclass(frozen=True)
class Facts:
    """Facts about a function f; by default nothing is known."""

    # f'(x), or the tuple of all partial derivatives, as a function of the same arguments. It is written in
    # functions of the language, so it takes numbers, arrays, traced values and symbols.
    derivative: Callable[..., Any] | None = None
    kinks: Places | None = None  # points where f or one of its derivatives jumps; f is smooth elsewhere
    jumps: Places | None = None  # the kinks where f itself jumps
    poles: Places | None = None  # points where f or f' is unbounded
    domain: tuple[float, float] = (-inf, inf)
    range: tuple[float, float] = (-inf, inf)  # lower and upper bounds of its values
    growth: Growth = Growth.UNKNOWN  # an upper bound of its growth
    monotone: int = 0  # 1 if f never decreases, -1 if it never increases, else 0
    parity: int = 0  # 1 if f is even, -1 if it is odd, else 0
    slopes: tuple[float, float] | None = None  # (above, below): above x for x > 0, below x for x < 0
    pieces: PiecewisePolynomial | None = None  # f as a piecewise polynomial
    terms: ExpTerms | None = None  # f as a sum of terms with closed forms
    # If f(0) = 0: terms without cancellation near 0, equal to f up to 1e-10 for |x| < 0.1.
    near: ExpTerms | None = None

    @property
    def is_smooth(self) -> bool:
        """Whether all derivatives certainly exist and are bounded on bounded sets."""
        return self.kinks == () and self.poles == () and self.domain == (-inf, inf)


UNKNOWN = Facts()


def smooth(derivative: Callable[..., Any], **facts: Any) -> Facts:
    """Facts of a function without kinks, jumps and poles; a bounded range implies bounded growth."""
    low, high = facts.get("range", (-inf, inf))
    if low > -inf and high < inf:
        facts["growth"] = Growth.BOUNDED
    return Facts(derivative, kinks=(), jumps=(), poles=(), **facts)


def growth_of(f: PiecewisePolynomial) -> Growth:
    """The growth of the outer pieces: degree 0 is bounded, 1 linear, 2 and more polynomial."""
    return Growth(min(max(len(p) for p in (f.pieces[0], f.pieces[-1])) - 1, 2))


def facts_of_pieces(f: PiecewisePolynomial, derivative: Callable[..., Any], **changes: object) -> Facts:
    """Derive the facts of a piecewise polynomial from its pieces."""
    facts = Facts(
        derivative,
        f.kinks,
        f.jumps,
        poles=(),
        range=f.range,
        growth=growth_of(f),
        monotone=f.monotone,
        parity=f.parity,
        slopes=f.slopes,
        pieces=f,
        terms=terms_of_pieces(f),
    )
    return replace(facts, **changes)
