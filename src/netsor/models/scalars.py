"""Numbers of a model at its two widths: a factor 1/sqrt(n) is a pair of values, and must cancel."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = ["NEAR", "ONE", "Scale", "Size", "both", "product"]

NEAR = 0.1  # powers of n that are equal: a variance 2 / (n + 1) goes like 1/n, and a measured one has noise
Size = tuple[int, int]  # the length of an axis at the two widths


def both(size: int) -> Size:
    """A length that is the same at both widths."""
    return size, size


def product(sizes: list[Size]) -> Size:
    return math.prod(s[0] for s in sizes), math.prod(s[1] for s in sizes)


@dataclass(frozen=True)
class Scale:
    """A positive or negative factor at the two widths.

    laws   the parameters whose law is no law of a matrix (var/n), a vector (order 1) or a constant, and
           that therefore put a power of n into this factor
    grown  those of them whose power is positive

    >>> Scale(1 / 8, 1 / 16) * Scale(8.0, 16.0)
    Scale(one=1.0, two=1.0, laws=frozenset(), grown=frozenset())
    """

    one: float = 1.0
    two: float = 1.0
    laws: frozenset[str] = frozenset()
    grown: frozenset[str] = frozenset()

    def __mul__(self, other: Scale) -> Scale:
        return self._with(self.one * other.one, self.two * other.two, other)

    def __truediv__(self, other: Scale) -> Scale:
        return self._with(self.one / other.one, self.two / other.two, other)

    def _with(self, one: float, two: float, other: Scale) -> Scale:
        return Scale(one, two, self.laws | other.laws, self.grown | other.grown)

    def power(self, k: float) -> Scale:
        return replace(self, one=self.one**k, two=self.two**k)

    @property
    def is_fixed(self) -> bool:
        """Whether the factor is the same at both widths, so that it has a limit."""
        return math.isclose(self.one, self.two, rel_tol=1e-6)

    def exponent(self, widths: Size) -> float:
        """p, if the factor goes like n^p."""
        if self.one * self.two <= 0:
            return math.nan
        return math.log(self.two / self.one) / math.log(widths[1] / widths[0])


ONE = Scale()
