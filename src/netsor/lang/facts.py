"""What is known of a function of the language besides its values: the one place for it.

A function is entered with its `Facts` in `lang.functions`; where they depend on its options, with a function
from options to facts. Whoever needs a derivative, the kinks or a closed form reads them there. A user's
function has `UNKNOWN` facts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf
from typing import Any

from netsor.lang.pieces import Pieces
from netsor.lang.terms import Terms, terms_of_pieces

__all__ = ["UNKNOWN", "Facts", "Far", "Growth", "facts_of_pieces", "smooth"]

Places = tuple[float, ...]


class Growth(IntEnum):
    """How fast |f(x)| may grow with |x|: the first of these that holds."""

    BOUNDED = 0
    LINEAR = 1  # at most C (1 + |x|)
    POLYNOMIAL = 2  # at most C (1 + |x|)^n
    EXPONENTIAL = 3  # at most C exp(c |x|)
    UNKNOWN = 4


@dataclass(frozen=True)
class Far:
    """The function without a scale that f tends to far from 0: f(s x) is near it for large s.

    With d = f - limit, |E[d(x)]| <= gap / sqrt(2 pi q) and E[d(x)^2] <= square / sqrt(2 pi q) for every
    Gaussian x of variance q, whose density is nowhere larger than 1 / sqrt(2 pi q).
    """

    name: str  # of the function of the language
    gap: float  # the integral of |d|
    square: float  # the integral of d^2


@dataclass(frozen=True)
class Facts:
    """What is known of f; the defaults say that nothing is.

    derivative   a function of the same arguments, written in functions of the language, so that it takes
                 numbers, arrays, traced values and symbols: f'(x), or the tuple of all partial derivatives
    kinks        the places where f or one of its derivatives jumps; outside them it is smooth
    jumps        those of them where f itself jumps
    poles        the places where f or f' has no bound
    domain       where it is defined
    range        bounds of its values
    growth       how fast it may grow
    monotone     1 if it nowhere falls, -1 if it nowhere rises
    parity       1 if it is even, -1 if it is odd
    slopes       (above, below): f(x) = above x for x > 0 and below x for x < 0
    far          what it tends to at large variances
    pieces       f as a piecewise polynomial
    terms        f as a sum of terms with closed forms
    near         for f that vanish at 0, terms without cancellation there: f up to 1e-10 where |x| < 0.1
    """

    derivative: Callable[..., Any] | None = None
    kinks: Places | None = None
    jumps: Places | None = None
    poles: Places | None = None
    domain: tuple[float, float] = (-inf, inf)
    range: tuple[float, float] = (-inf, inf)
    growth: Growth = Growth.UNKNOWN
    monotone: int = 0
    parity: int = 0
    slopes: tuple[float, float] | None = None
    far: Far | None = None
    pieces: Pieces | None = None
    terms: Terms | None = None
    near: Terms | None = None

    @property
    def is_smooth(self) -> bool:
        """Whether all derivatives are known to exist and to be bounded on bounded sets."""
        return self.kinks == () and self.poles == () and self.domain == (-inf, inf)

    @property
    def is_mild(self) -> bool:
        """Whether f is continuous, has no poles and grows like a power of x, as relu and polynomials do.

        Rounding of a covariance near correlation 1 then does no more to E[f(x) f(y)] than it does to E[x y].
        """
        powers = (Growth.LINEAR, Growth.POLYNOMIAL)
        return self.growth in powers and self.jumps == () and self.poles == ()


UNKNOWN = Facts()


def smooth(derivative: Callable[..., Any], **known: Any) -> Facts:
    """The facts of a function without kinks, jumps and poles; one of bounded range is bounded."""
    low, high = known.get("range", (-inf, inf))
    if low > -inf and high < inf:
        known["growth"] = Growth.BOUNDED
    return Facts(derivative, kinks=(), jumps=(), poles=(), **known)


def facts_of_pieces(f: Pieces, derivative: Callable[..., Any], **known: Any) -> Facts:
    """The facts of a piecewise polynomial, read off it."""
    growth = Growth(min(max(len(p) for p in (f.pieces[0], f.pieces[-1])) - 1, 2))
    found = Facts(
        derivative,
        f.kinks,
        f.jumps,
        poles=(),
        range=f.range,
        growth=growth,
        monotone=f.monotone,
        parity=f.parity,
        slopes=f.slopes,
        pieces=f,
        terms=terms_of_pieces(f),
    )
    return replace(found, **known)
