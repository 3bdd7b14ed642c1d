"""Atoms: functions of Gaussian forms, and products of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from netsor.lang.expr import Const, Expr, Ref, once, transform

HOLE = Ref("@")
MOST_PRODUCTS = 2**12  # of an expectation: more take longer to plan than sampling takes to run
MANY_PRODUCTS = 2**8  # of an expectation: with fewer, independent factors need not be sought first
ENDLESS = 10**18


@dataclass(frozen=True, eq=False, init=False)
class Atom:
    """A function of Gaussian forms: `body` contains its forms, or HOLE in place of the only one.

    Equal atoms are one object, like expressions: sums of many products compare their atoms often.
    """

    body: Expr
    forms: tuple[Expr, ...]
    unary: bool

    def __new__(cls, body: Expr, forms: tuple[Expr, ...], unary: bool) -> Atom:
        return once(cls, (Atom, body, forms, unary), body=body, forms=forms, unary=unary)

    def __reduce__(self):
        return Atom, (self.body, self.forms, self.unary)

    @cached_property
    def expr(self) -> Expr:
        """The atom as an expression of its forms."""
        return replace_exprs(self.body, {HOLE: self.forms[0]}) if self.unary else self.body

    @property
    def is_identity(self) -> bool:
        return self.body == HOLE


@dataclass(frozen=True)
class Product:
    """A product of constants (numbers and C-vars) and atoms."""

    constants: tuple[Expr, ...] = ()
    atoms: tuple[Atom, ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.constants, self.atoms))

    def __hash__(self) -> int:
        return self._hash

    @property
    def negative(self) -> Product:
        return Product((Const(-1.0), *self.constants), self.atoms)


@dataclass(frozen=True)
class Size:
    """The number of products in a sum, and the number of all their factors."""

    products: int
    factors: int

    def __add__(self, other: Size) -> Size:
        return Size(self.products + other.products, self.factors + other.factors)._capped()

    def __mul__(self, other: Size) -> Size:
        factors = self.factors * other.products + self.products * other.factors
        return Size(self.products * other.products, factors)._capped()

    def _capped(self) -> Size:
        """Cap both numbers far beyond every budget: exact integers would grow to thousands of digits."""
        return Size(min(self.products, ENDLESS), min(self.factors, ENDLESS))

    def __str__(self) -> str:
        count, what = (self.factors, "factors") if self.products == 1 else (self.products, "products")
        return f"{count:,} {what}" if count < ENDLESS else f"more {what} than can be counted"

    @property
    def is_notable(self) -> bool:
        """Whether looking for independent factors first saves time: each factor takes a step or two."""
        return self.products > MANY_PRODUCTS or self.factors > 32 * self.products

    @property
    def is_small(self) -> bool:
        """Whether multiplying out takes less time than sampling."""
        # Squares of squares have few products, but many factors.
        return self.products <= MOST_PRODUCTS and self.factors <= 2**16


@dataclass(frozen=True)
class LinearTerm:
    """A form that is no sum or multiple, with a sign and constants (factor, whether it divides)."""

    form: Expr
    sign: int = 1
    factors: tuple[tuple[Expr, bool], ...] = ()

    def times(self, sign: int, *factors: tuple[Expr, bool]) -> LinearTerm:
        return LinearTerm(self.form, self.sign * sign, self.factors + factors)


def replace_exprs(expr: Expr, table: Mapping[Expr, Expr]) -> Expr:
    """Replace the largest subexpressions that are keys of `table`; a key may contain another one."""
    return transform(expr, lambda ref: ref, table)
