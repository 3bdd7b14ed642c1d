"""Numbers of a model at its two widths. A factor such as 1/sqrt(n) is a pair of values, and must cancel."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

NEAR = 0.1  # tolerance of exponents: a variance 2 / (n + 1) counts as 1/n, and measured ones have noise
Size = tuple[int, int]  # the length of an axis at the two widths


def both(size: int) -> Size:
    """Return a length that is the same at both widths, as a pair."""
    return size, size


def product(sizes: list[Size]) -> Size:
    return math.prod(s[0] for s in sizes), math.prod(s[1] for s in sizes)


@dataclass(frozen=True)
class WidthScale:
    """A factor, of either sign, at the two widths.

    laws   parameters whose law is not that of a matrix (var/n), a vector (order 1) or a constant, and
           that therefore contribute a power of n to this factor
    grown  those of them whose power is positive

    >>> WidthScale(1 / 8, 1 / 16) * WidthScale(8.0, 16.0)
    WidthScale(one=1.0, two=1.0, laws=frozenset(), grown=frozenset())
    """

    one: float = 1.0
    two: float = 1.0
    laws: frozenset[str] = frozenset()
    grown: frozenset[str] = frozenset()

    def __mul__(self, other: WidthScale) -> WidthScale:
        return self._with(self.one * other.one, self.two * other.two, other)

    def __truediv__(self, other: WidthScale) -> WidthScale:
        return self._with(self.one / other.one, self.two / other.two, other)

    def _with(self, one: float, two: float, other: WidthScale) -> WidthScale:
        return WidthScale(one, two, self.laws | other.laws, self.grown | other.grown)

    def power(self, k: float) -> WidthScale:
        return replace(self, one=self.one**k, two=self.two**k)

    @property
    def is_fixed(self) -> bool:
        """Whether the factor is the same at both widths, so that it has a limit."""
        return math.isclose(self.one, self.two, rel_tol=1e-6)

    def exponent(self, widths: Size) -> float:
        """The exponent p if the factor is proportional to n^p."""
        if self.one * self.two <= 0:
            return math.nan
        return math.log(self.two / self.one) / math.log(widths[1] / widths[0])


ONE = WidthScale()
