"""Piecewise polynomials: arithmetic, and properties such as kinks, range and parity.

Sums, products, powers and compositions of piecewise polynomials are piecewise polynomials. So the properties
of relu(x)^3, max(x, 1) or hard_tanh(2 x - 1) are known exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from numpy.polynomial import polynomial as poly

Coefs = tuple[float, ...]
ROUNDING = 1e-12  # relative tolerance within which coefficients and knots count as equal


@dataclass(frozen=True)
class PiecewisePolynomial:
    """The polynomial `pieces[i]` (ascending coefficients) for knots[i-1] < x <= knots[i].

    >>> relu = PiecewisePolynomial((0.0,), ((0.0,), (0.0, 1.0)))
    >>> (relu * relu).pieces
    ((0.0,), (0.0, 0.0, 1.0))
    """

    knots: tuple[float, ...]
    pieces: tuple[Coefs, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", tuple(map(_trimmed, self.pieces)))

    def __call__(self, x: float) -> float:
        return _value(self.at(x), x)

    def at(self, x: float) -> Coefs:
        """The coefficients of the piece that contains x."""
        return self.pieces[sum(x > knot for knot in self.knots)]

    # Arithmetic

    def __add__(self, other: PiecewisePolynomial) -> PiecewisePolynomial:
        return self._combined(other, poly.polyadd)

    def __neg__(self) -> PiecewisePolynomial:
        return self.scaled(-1.0)

    def __sub__(self, other: PiecewisePolynomial) -> PiecewisePolynomial:
        return self + -other

    def __mul__(self, other: PiecewisePolynomial) -> PiecewisePolynomial:
        return self._combined(other, poly.polymul)

    def scaled(self, factor: float) -> PiecewisePolynomial:
        return PiecewisePolynomial(self.knots, tuple(tuple(factor * c for c in p) for p in self.pieces))

    def then(
        self, outer: PiecewisePolynomial, value: Callable[[float], float] | None = None
    ) -> PiecewisePolynomial:
        """The composition x -> outer(self(x)); `value` evaluates the outer function at its knots.

        >>> relu = PiecewisePolynomial((0.0,), ((0.0,), (0.0, 1.0)))
        >>> sign = PiecewisePolynomial((0.0,), ((-1.0,), (1.0,)))
        >>> relu.then(sign, lambda x: float(x > 0)).pieces  # sign(0) = 0, though it is -1 and 1 beside it
        ((0.0,), (1.0,))
        """
        # New knots: the points where a piece of self crosses a knot of `outer`.
        cuts = list(self.knots)
        for (low, high), piece in zip(self.spans, self.pieces, strict=True):
            cuts += [x for knot in outer.knots for x in _roots(piece, knot) if low < x < high]
        fine = self._cut(_distinct(cuts))
        inner = [_between(low, high) for low, high in fine.spans]
        composed = [
            (float(value(p[0])),) if value and len(p) == 1 else _composed(outer.at(_value(p, x)), p)
            for p, x in zip(fine.pieces, inner, strict=True)
        ]
        return PiecewisePolynomial(fine.knots, tuple(composed))._simplified()

    def larger(self, other: PiecewisePolynomial) -> PiecewisePolynomial:
        """max(self, other) = other + relu(self - other)."""
        return other + (self - other).then(PiecewisePolynomial((0.0,), ((0.0,), (0.0, 1.0))))

    def differentiated(self) -> PiecewisePolynomial:
        """The derivative, valid everywhere but at the knots."""
        return PiecewisePolynomial(self.knots, tuple(tuple(poly.polyder(p)) for p in self.pieces))

    def _combined(self, other: PiecewisePolynomial, operation: Callable[..., Any]) -> PiecewisePolynomial:
        knots = _distinct([*self.knots, *other.knots])
        both = zip(self._cut(knots).pieces, other._cut(knots).pieces, strict=True)
        return PiecewisePolynomial(knots, tuple(tuple(operation(p, q)) for p, q in both))._simplified()

    def _cut(self, knots: tuple[float, ...]) -> PiecewisePolynomial:
        """The same function with the given knots, which include its own."""
        ends = (-math.inf, *knots, math.inf)
        return PiecewisePolynomial(knots, tuple(self.at(_between(*span)) for span in pairwise(ends)))

    def _simplified(self) -> PiecewisePolynomial:
        """The same function without knots between equal pieces."""
        kept = [i for i, (p, q) in enumerate(pairwise(self.pieces)) if not _equal(p, q)]
        return PiecewisePolynomial(
            tuple(self.knots[i] for i in kept), tuple(self.pieces[i] for i in (*kept, -1))
        )

    # Properties

    @property
    def spans(self) -> list[tuple[float, float]]:
        """The interval of each piece."""
        return list(pairwise((-math.inf, *self.knots, math.inf)))

    @property
    def degree(self) -> int:
        return max(len(p) for p in self.pieces) - 1

    @property
    def affine(self) -> tuple[float, float] | None:
        """(slope, value at 0) if the function is affine and not constant, else None."""
        return (self.pieces[0][1], self.pieces[0][0]) if not self.knots and self.degree == 1 else None

    @property
    def kinks(self) -> tuple[float, ...]:
        """The knots between different pieces."""
        return self._simplified().knots

    @property
    def jumps(self) -> tuple[float, ...]:
        """The knots where the values of the pieces differ."""
        return tuple(k for k, p, q in self._sides() if abs(_value(p, k) - _value(q, k)) > _slack(p, q, k))

    def _sides(self) -> Iterator[tuple[float, Coefs, Coefs]]:
        return ((k, p, q) for k, (p, q) in zip(self.knots, pairwise(self.pieces), strict=True))

    @property
    def range(self) -> tuple[float, float]:
        """The infimum and supremum of the values."""
        values = [
            v for piece, span in zip(self.pieces, self.spans, strict=True) for v in _extremes(piece, *span)
        ]
        return min(values), max(values)

    @property
    def parity(self) -> int:
        """1 for an even function, -1 for an odd one, else 0; the zero function counts as even."""
        mirrored = PiecewisePolynomial(
            tuple(-k for k in reversed(self.knots)),
            tuple(tuple(c * (-1) ** n for n, c in enumerate(p)) for p in reversed(self.pieces)),
        )
        return next((sign for sign in (1, -1) if not any(map(any, (self - mirrored.scaled(sign)).pieces))), 0)

    @property
    def monotone(self) -> int:
        """1 if the function never decreases, -1 if it never increases, else 0."""
        changes = [*self.differentiated().range, *(_value(q, k) - _value(p, k) for k, p, q in self._sides())]
        if min(changes) >= 0:
            return 1
        return -1 if max(changes) <= 0 else 0

    @property
    def slopes(self) -> tuple[float, float] | None:
        """The slopes above and below 0 if f(s x) = s f(x) for s > 0, else None."""
        whole = self._simplified()
        if whole.knots not in ((), (0.0,)) or any(p[0] or len(p) > 2 for p in whole.pieces):
            return None
        above, below = (p[1] if len(p) > 1 else 0.0 for p in (whole.pieces[-1], whole.pieces[0]))
        return above, below


def _value(coefs: Sequence[float], x: float) -> float:
    return math.fsum(c * x**n for n, c in enumerate(coefs))


def _trimmed(coefs: Iterable[Any]) -> Coefs:
    """Remove zeros of the highest degrees; convert to floats."""
    return tuple(map(float, poly.polytrim(list(coefs))))


def _equal(p: Coefs, q: Coefs) -> bool:
    scale = max(map(abs, (*p, *q)))
    return all(abs(c) <= ROUNDING * scale for c in poly.polysub(p, q))


def _slack(p: Coefs, q: Coefs, x: float) -> float:
    """The rounding error of the difference of two pieces at x."""
    return ROUNDING * sum(abs(c * x**n) for piece in (p, q) for n, c in enumerate(piece))


def _composed(outer: Coefs, inner: Coefs) -> Coefs:
    """The coefficients of outer(inner(x)), by Horner's rule."""
    return tuple(map(float, poly.Polynomial(outer)(poly.Polynomial(inner)).coef))


def _roots(coefs: Coefs, level: float) -> list[float]:
    """The real solutions of p(x) = level."""
    shifted = _trimmed((coefs[0] - level, *coefs[1:]))
    if len(shifted) == 1:
        return []
    if len(shifted) == 2:
        return [0.0 - shifted[0] / shifted[1]]
    roots = poly.polyroots(shifted)
    # By rounding, a double root has an imaginary part of about sqrt(eps).
    return [float(x.real) for x in roots if abs(x.imag) <= 1e-7 * (1 + abs(x))]


def _distinct(places: list[float]) -> tuple[float, ...]:
    """Sort the points, and merge those that are equal up to rounding."""
    kept: list[float] = []
    for x in sorted(places):
        if not kept or x - kept[-1] > ROUNDING * (1 + abs(x)):
            kept.append(x)
    return tuple(kept)


def _between(low: float, high: float) -> float:
    """A point inside an interval, which may be infinite."""
    if math.isinf(low):
        return (high - 1 - abs(high)) if math.isfinite(high) else 0.0
    return (low + high) / 2 if math.isfinite(high) else low + 1 + abs(low)


def _extremes(coefs: Coefs, low: float, high: float) -> list[float]:
    """The values at the ends of an interval and at the stationary points inside."""
    inside = [x for x in _roots(tuple(poly.polyder(coefs)), 0.0) if low < x < high]
    return [_value(coefs, x) if math.isfinite(x) else _far_value(coefs, x) for x in (low, *inside, high)]


def _far_value(coefs: Coefs, x: float) -> float:
    """The limit of a polynomial at plus or minus infinity."""
    return coefs[0] if len(coefs) == 1 else coefs[-1] * x ** (len(coefs) - 1)
