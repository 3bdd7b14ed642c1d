"""How E[e f] decomposes, from the program and the shapes of its inputs alone; E[e] is E[e 1].

`nonlin` records what `decomposition` returns, and `netsor.limits.sampled_families` follows it without arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

from netsor.lang.components import components
from netsor.lang.expr import Apply, Expr
from netsor.lang.functions import mul
from netsor.lang.ops import IndexMap
from netsor.lang.rewrite import ONE
from netsor.limits.rules.atoms import Atom
from netsor.limits.rules.pairs import Pair
from netsor.limits.rules.rewriting import (
    SampledSlope,
    batchnorm_slope,
    factor_outside,
    number_outside,
    product_of,
    sum_outside,
)
from netsor.limits.rules.setting import Setting

T = TypeVar("T")
Atoms = tuple[Atom, ...]


class Plain(Enum):
    ZERO = auto()  # 0
    GAUSSIAN = auto()  # Cov(e, f) + E[e] E[f], of two forms
    SEPARATE = auto()  # E[e] E[f]
    SAMPLED = auto()  # an average over sample points
    PRODUCTS = auto()  # the sum over the products of atoms of e and those of f


class Multiple(NamedTuple):
    """A number times E[e' f'], with e' and f' rewritten."""

    number: float
    left: Expr
    right: Expr


class Independent(NamedTuple):
    """The product of E[a b] over factors a of e and b of f without a common family."""

    parts: tuple[tuple[Expr, Expr], ...]


class Linear(NamedTuple):
    """The linear operation at the head of e (`side` 0) or of f (`side` 1), applied to what is inside it."""

    side: int


class Slope(NamedTuple):
    """E[e' f'] with derivatives of batchnorm in arithmetic."""

    left: Expr
    right: Expr
    slopes: tuple[SampledSlope | None, SampledSlope | None]


Decomposition = Plain | Multiple | Independent | Linear | Slope


def decomposition(x: Setting, e: Expr, f: Expr, pair: Pair) -> Decomposition:
    """Return how E[e f] decomposes."""
    key = e, f, pair.tied, pair.is_tile and not pair.same
    if key not in x.decompositions:
        x.decompositions[key] = _decomposition(x, e, f, pair)
    return x.decompositions[key]


def _decomposition(x: Setting, e: Expr, f: Expr, pair: Pair) -> Decomposition:
    forms, two = x.forms, f is not ONE
    if forms.vanishes(e) or forms.vanishes(f):
        return Plain.ZERO
    if forms.is_affine(e) and forms.is_affine(f):
        return Plain.GAUSSIAN
    if two and (forms.is_constant(e) or forms.is_constant(f)):
        return Plain.SEPARATE
    # Rewrite before the families are compared: a number in front would give equal moments different names.
    if two and (simpler := _rewritten(x, e, f, pair)) is not None:
        return simpler
    left, right = forms.families_in(e), forms.families_in(f)
    notable = (forms.size(e) * forms.size(f)).is_notable
    if notable and left | right <= x.sampled:
        return Plain.SAMPLED  # an average over points takes less time than many products
    # If something is sampled, the product may contain atoms that the average has to take together.
    if two and not x.sampled and not left & right - x.noise(pair):
        return Plain.SEPARATE
    # With many products, look for independent factors before expanding: sizes then add instead of multiply.
    parts = _of_many_products(x, e, f, pair) if notable else []
    return _independent(x, parts) if len(parts) > 1 else _taken_apart(x, e, f, pair)


def _taken_apart(x: Setting, e: Expr, f: Expr, pair: Pair) -> Decomposition:
    """Decompose linear operations first, then derivatives of batchnorm, independent factors, and sums."""
    forms, two = x.forms, f is not ONE
    for side in _order_of_sides(x, e, f, pair):
        head = (e, f)[side]
        if forms.is_linear_head(head) and not forms.is_affine(head) and not forms.is_long_function(head):
            return Linear(side)
    if two and x.sampled:
        slopes = batchnorm_slope(forms, x.sampled, e), batchnorm_slope(forms, x.sampled, f)
        if any(slopes):
            arithmetic = [y if s is None else s.expr for y, s in zip((e, f), slopes, strict=True)]
            return Slope(arithmetic[0], arithmetic[1], slopes)
    parts = _around_sums(x, e, f, pair) if two else []
    if len(parts) > 1:
        return _independent(x, parts)
    y, z = sum_outside(forms, e) or e, sum_outside(forms, f) or f
    return Plain.PRODUCTS if y is e and z is f else Multiple(1.0, y, z)


def _rewritten(x: Setting, e: Expr, f: Expr, pair: Pair) -> Multiple | None:
    """Move numbers outside; move factors out of sums if the remaining parts are independent."""
    (a, left), (b, right) = number_outside(e), number_outside(f)
    if left is not e or right is not f:
        return Multiple(a * b, left, right)
    left, right = factor_outside(x.forms, e) or e, factor_outside(x.forms, f) or f
    if (left is not e or right is not f) and len(_around_sums(x, left, right, pair)) > 1:
        return Multiple(1.0, left, right)
    return None


def _independent(x: Setting, parts: Sequence[tuple[Expr, Expr]]) -> Decomposition:
    """Return the product of the parts."""
    for e, f in parts:
        alone = f if e is ONE else e if f is ONE else ONE
        # Nothing else depends on this factor, such as the direction of a tangent.
        if alone is not ONE and x.forms.is_affine(alone) and x.forms.is_centred(alone):
            return Plain.ZERO
    return Independent(tuple(parts))


def _around_sums(x: Setting, e: Expr, f: Expr, pair: Pair) -> list[tuple[Expr, Expr]]:
    """Split a b and a' b' into (a, a') and (b, b') without a common family, if a factor is an index map.

    E[a b a' b'] = E[a a'] E[b b'], so the sum over an index stays inside its factor. Else return no parts.
    """
    sides = x.forms.factors(e), x.forms.factors(f)
    return _independent_factors(x, sides, pair) if any(map(x.forms.is_mapped, (*sides[0], *sides[1]))) else []


def _of_many_products(x: Setting, e: Expr, f: Expr, pair: Pair) -> list[tuple[Expr, Expr]]:
    """Return the independent factors of two products with many or long terms; empty if there is only one."""
    two = [[*y.args] if isinstance(y, Apply) and y.op is mul else [y] for y in (e, f)]
    # Try the two arguments of the outermost product first: their moments are often known already.
    parts = _independent_factors(x, two, pair)
    every = [x.forms.factors(e), x.forms.factors(f)]
    return parts if len(parts) > 1 else _independent_factors(x, every, pair)


def _independent_factors(x: Setting, sides: Sequence[list[Expr]], pair: Pair) -> list[tuple[Expr, Expr]]:
    """Return the factors of both sides, grouped into products that are independent of each other."""
    factors = [[y for y in side if y is not ONE] for side in sides]
    groups = _connected(factors, x.forms.families_in, x.noise(pair))
    return [(product_of(left), product_of(right)) for left, right in groups]


def independent_atoms(x: Setting, left: Atoms, right: Atoms, pair: Pair) -> list[tuple[Atoms, Atoms]]:
    """Return groups of atoms that share a family; different groups are independent."""
    return _connected((left, right), x.forms.families_of, x.noise(pair))


def _connected(
    sides: Sequence[Iterable[T]], families_of: Callable[[T], frozenset[str]], noise: frozenset[str]
) -> list[tuple[tuple[T, ...], tuple[T, ...]]]:
    """Group the factors of both sides by common families; noise of left and right input is independent."""
    items = [(side, factor) for side, factors in enumerate(sides) for factor in factors]

    def labels(item: tuple[int, T]) -> Iterable[Any]:
        side, factor = item
        families = families_of(factor)
        return [(side, family) if family in noise else family for family in families] if noise else families

    groups = components(items, labels)
    return [tuple(tuple(x for side, x in group if side == k) for k in (0, 1)) for group in groups]  # type: ignore


def split_sampled(x: Setting, atoms: Atoms) -> tuple[Atoms, Atoms]:
    """Return the atoms that depend on a sampled family, and the others."""
    drawn = tuple(a for a in atoms if x.forms.families_of(a) & x.sampled)
    return drawn, tuple(a for a in atoms if a not in drawn)


def _order_of_sides(x: Setting, e: Expr, f: Expr, pair: Pair) -> list[int]:
    """Return the sides in the order in which to expand them: first the side that the tables lack.

    In tied pairs index maps come last, so that both sides may be maps and select alike. Otherwise the side
    with more families comes first: a long sum is then only combined with parts of itself.
    """

    def key(side: int) -> tuple[bool, bool, int]:
        y = (e, f)[side]
        is_map = pair.tied and isinstance(y, Apply) and isinstance(y.op, IndexMap)
        return y in x.tabled, is_map, -len(x.forms.families_in(y))

    return sorted((0, 1), key=key)
