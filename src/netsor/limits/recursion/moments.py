"""Second and first moments of any expressions.

    second(e, f)  E[e f]
    first(e)      E[e]

Linear operations act on the result from the outside; what is left are products of atoms, which factor over
independent families, and each factor goes to the ladder of methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

from netsor.lang.blocks import Block
from netsor.lang.expr import Apply, Const, Expr, Slice, subtrees
from netsor.lang.functions import mul
from netsor.lang.index_maps import at, sum_, take
from netsor.lang.index_maps import mean as average
from netsor.lang.ops import Function, IndexMap, axes_of
from netsor.lang.show import shown_short
from netsor.limits.recursion.batchnorm import SampledBatchnorm, sampled_batchnorm, spanned
from netsor.limits.recursion.covariances import cov
from netsor.limits.recursion.forms import Atom, Product, Size
from netsor.limits.recursion.linear import combined, longer_first, mapped
from netsor.limits.recursion.pairs import Pair, PerInput, PerPair
from netsor.limits.recursion.recorder import Asking, Missing, Recorder
from netsor.limits.recursion.values import OWN, constant, mean

__all__ = ["first", "second"]

Atoms = tuple[Atom, ...]
ONE = Const(1.0)
MOST_IN_ALL = 2**14  # products of a recording, before notable ones are sampled


def second(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """E[e f]."""
    forms, (x, y) = r.forms, (r.forms.resolved(e), r.forms.resolved(f))
    if x is not e or y is not f:
        return (yield second, x, y, pair)
    back = r.known(second, f, e, pair.flipped)
    if back is not None:
        return back.swapped
    if forms.vanishes(e) or forms.vanishes(f):
        return _zero(r, e, f, pair)
    if r.samples is not None and r.samples.tables is not None:
        block = r.samples.tables.block(e, f, pair)
        if block is not None:
            return block
    if forms.is_affine(e) and forms.is_affine(f):
        return (yield from _of_forms(r, e, f, pair))
    if forms.is_constant(e):
        return (yield from _apart(r, e, f, pair, constant, first))
    (a, x), (b, y) = _multiple(e), _multiple(f)
    if x is not e or y is not f:  # both numbers at once
        return (yield second, x, y, pair) * (a * b)
    x, y = _factor_outside(r, e), _factor_outside(r, f)
    if (x is not e or y is not f) and len(_independent_parts(r, x, y, _apart_families(r, pair))) > 1:
        return (yield second, x, y, pair)
    if _stays_whole(r, e, f):
        return (yield r.rules.sampled_mean, (forms.as_atom(e),), (forms.as_atom(f),), pair)
    families = forms.families_in(e), forms.families_in(f)
    if not families[0] & families[1] - _apart_families(r, pair) and r.samples is None:
        return (yield from _apart(r, e, f, pair, first, first))
    parts = _many_products_apart(r, e, f, pair)
    if len(parts) > 1:
        return (yield from _times(r, e, f, parts, pair))
    for side in _sides(r, e, f, families, pair):
        x = (e, f)[side]
        if forms.is_linear_head(x) and not forms.is_affine(x) and not forms.is_long_function(x):
            return (yield from _linear(r, side, e, f, pair))
    if forms.is_constant(f):
        turned = yield second, f, e, pair.flipped
        return turned.swapped
    x, y = sampled_batchnorm(r, e), sampled_batchnorm(r, f)
    if x is not None or y is not None:
        return (yield from _of_sampled_batchnorm(r, (e, f), (x, y), pair))
    parts = _independent_parts(r, e, f, _apart_families(r, pair))
    if len(parts) > 1:
        return (yield from _times(r, e, f, parts, pair))
    x, y = _sum_outside(r, e), _sum_outside(r, f)
    if x is not e or y is not f:
        return (yield second, x, y, pair)
    return (yield from _multiplied_out(r, e, f, pair))


def _of_sampled_batchnorm(
    r: Recorder, whole: tuple[Expr, Expr], opened: tuple[SampledBatchnorm | None, ...], pair: Pair
) -> Asking:
    """E[e f] with derivatives of batchnorm in arithmetic, where they can be sampled."""
    x, y = (e if own is None else own.expr for e, own in zip(whole, opened, strict=True))
    block = yield second, x, y, pair
    for side, own in enumerate(opened):
        if own is not None and block is not None:
            block = block * pair.side(side, (yield spanned, own.batch, own.axes))
    return block


def _sides(
    r: Recorder, e: Expr, f: Expr, families: tuple[frozenset[str], frozenset[str]], pair: Pair
) -> list[int]:
    """The order in which sides come apart: one that tables have after one that they do not have, and of a
    tied pair index maps last, which then meet each other.
    """
    tables = r.samples.tables if r.samples is not None else None
    late = [
        (
            tables is not None and tables.has(x),
            pair.tied and isinstance(x, Apply) and isinstance(x.op, IndexMap),
        )
        for x in (e, f)
    ]
    return sorted(longer_first(*families), key=late.__getitem__)


def _independent_parts(r: Recorder, e: Expr, f: Expr, apart: frozenset[str]) -> list[tuple[Expr, Expr]]:
    """Products a b and a' b', of which one is a sum over an index, as (a, a') and (b, b') without a common
    family: E[a b a' b'] = E[a a'] E[b b'], where the sum stays inside. Else no parts."""
    sides = [r.forms.factors(e), r.forms.factors(f)]
    if any(_is_sum_of_vectors(r, x) for side in sides for x in side):
        return _without_common_family(r, sides, apart)
    return []


def _many_products_apart(r: Recorder, e: Expr, f: Expr, pair: Pair) -> list[tuple[Expr, Expr]]:
    """The independent factors of what is a sum of many products, or of long ones; else no parts."""
    if not (r.forms.size(e) * r.forms.size(f)).is_notable:
        return []
    apart = _apart_families(r, pair)
    two = [list(x.args) if isinstance(x, Apply) and x.op is mul else [x] for x in (e, f)]
    parts = _without_common_family(r, two, apart)  # of two factors one is likely to be known already
    return parts if len(parts) > 1 else _without_common_family(r, [*map(r.forms.factors, (e, f))], apart)


def _without_common_family(
    r: Recorder, sides: list[list[Expr]], apart: frozenset[str]
) -> list[tuple[Expr, Expr]]:
    """The factors of both sides as products that are independent of each other."""
    groups: list[tuple[frozenset[Any], list[list[Expr]]]] = []
    for side, factors in enumerate(sides):
        for x in factors:
            if x is ONE:
                continue
            families = r.forms.families_in(x)
            families = (families - apart) | {(side, family) for family in families & apart}
            joined = [g for g in groups if g[0] & families]
            members: list[list[Expr]] = [[y for _, m in joined for y in m[k]] for k in (0, 1)]
            members[side].append(x)
            union = families.union(*(known for known, _ in joined))
            groups = [g for g in groups if g not in joined] + [(union, members)]
    return [(_product_of(ours), _product_of(theirs)) for _, (ours, theirs) in groups]


def _factor_outside(r: Recorder, e: Expr) -> Expr:
    """sum_j (a_i b_ij) as a_i sum_j b_ij, where a has one member along the sum; else e itself."""
    if not isinstance(e, Apply) or e.op is not sum_ or r.forms.is_affine(e):
        return e
    (terms,) = e.args
    rank, factors = r.rank(terms), r.forms.factors(terms)
    axes = axes_of(e.options["axis"], rank)

    def summed(x: Expr) -> list[int]:
        """The axes of x that are summed over."""
        return [a - rank + r.rank(x) for a in axes if a - rank + r.rank(x) >= 0]

    outer = [x for x in factors if all(r.index(x)[k] == 1 for k in summed(x))]
    inner = [_narrow(r, x) for x in factors if x not in outer]
    if not outer or not inner:
        return e
    apart = []
    for x in outer:
        items = tuple(0 if k in summed(x) else Slice() for k in range(r.rank(x)))
        apart.append(Apply(at, (x,), (("index", items),)) if 0 in items else x)
    product = _product_of(inner)
    made = Apply(mul, (_product_of(apart), Apply(sum_, (product,), (("axis", axes),))))
    whole = r.rank(product) == rank and all(r.index(product)[a] == r.index(terms)[a] for a in axes)
    return made if whole and r.index(made) == r.index(e) else e


def _narrow(r: Recorder, e: Expr) -> Expr:
    """Without copies along an axis of length 1."""
    while isinstance(e, Apply) and e.op is take:
        index = r.index(e.args[0])
        (axis,) = axes_of(e.options["axis"], len(index))
        if index[axis] != 1:
            break
        (e,) = e.args
    return e


def _is_sum_of_vectors(r: Recorder, e: Expr) -> bool:
    return isinstance(e, Apply) and isinstance(e.op, IndexMap) and not r.forms.is_affine(e)


def _product_of(factors: list[Expr]) -> Expr:
    return reduce(lambda x, y: Apply(mul, (x, y)), factors) if factors else ONE


def _times(r: Recorder, e: Expr, f: Expr, parts: list[tuple[Expr, Expr]], pair: Pair) -> Asking:
    if any(_is_centred_form(r, x, y) for x, y in parts):
        return _zero(r, e, f, pair)
    total: PerPair | None = None
    for x, y in parts:
        part = yield second, x, y, pair
        total = part if total is None else total * part
    assert total is not None
    return total.widened(r.rank(e), r.rank(f))


def _is_centred_form(r: Recorder, e: Expr, f: Expr) -> bool:
    """Whether one of two is 1 and the other is Gaussian of mean 0, as a direction that only one side has."""
    x = f if e is ONE else e if f is ONE else None
    return x is not None and x is not ONE and r.forms.is_affine(x) and r.forms.is_centred(x)


def _zero(r: Recorder, e: Expr, f: Expr, pair: Pair) -> PerPair:
    zero = PerPair(pair.shared(r.xp.zeros((1,) * pair.batch)), pair, 0, 0)
    return zero.widened(r.rank(e), r.rank(f))


def _multiple(e: Expr) -> tuple[float, Expr]:
    """A number and what it multiplies."""
    number = 1.0
    while isinstance(e, Apply) and e.op is mul and any(isinstance(a, Const) for a in e.args):
        factor, e = e.args if isinstance(e.args[0], Const) else e.args[::-1]
        assert isinstance(factor, Const)
        number *= factor.value
    return number, e


def _of_forms(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Cov(e, f) + E[e] E[f]; means that are known to be 0 are left out."""
    block = yield cov, e, f, pair
    if block is not None and (r.forms.is_centred(e) or r.forms.is_centred(f)):
        return block
    means = yield from _apart(r, e, f, pair, mean, mean)
    return means if block is None else (block + means).widened(r.rank(e), r.rank(f))


def _apart(r: Recorder, e: Expr, f: Expr, pair: Pair, left: object, right: object) -> Asking:
    """The product of a quantity of e and one of f."""
    ours = yield left, e
    theirs = yield right, f
    return (pair.left(ours) * pair.right(theirs)).widened(r.rank(e), r.rank(f))


def _linear(r: Recorder, side: int, e: Expr, f: Expr, pair: Pair) -> Asking:
    """E[e f] where e (side 0) or f (side 1) is linear in vectors that are not affine."""
    x = (e, f)[side]
    assert isinstance(x, Apply)
    if not isinstance(x.op, IndexMap):
        return (yield from combined(r, side, e, f, pair, second))
    if side == 0:
        return (yield from mapped(r, x, f, pair, second))
    turned = yield second, f, e, pair.flipped
    return turned.swapped


def first(r: Recorder, e: Expr) -> Asking:
    """E[e]."""
    forms, x = r.forms, r.forms.resolved(e)
    if x is not e:
        return (yield first, x)
    if forms.is_constant(e):
        return (yield constant, e)
    if forms.vanishes(e):
        return PerInput(r.zero, 0).widened(r.rank(e))
    if forms.is_affine(e):
        return (yield mean, e)
    parts = _many_products_apart(r, e, ONE, OWN)
    if len(parts) > 1:
        total = yield from _times(r, e, ONE, parts, OWN)
        return PerInput(total.ranked(r.rank(e), 0), r.rank(e))
    whole = _stays_whole(r, e, ONE)
    if forms.is_linear_head(e) and not whole and not forms.is_long_function(e):
        return (yield from _first_of_linear(r, e))
    x = _sum_outside(r, e)
    if x is not e:
        return (yield first, x)
    if whole:
        total = yield r.rules.sampled_mean, (forms.as_atom(e),), (), OWN
    else:
        total = yield from _multiplied_out(r, e, None, OWN)
    if total is None:
        return None
    return PerInput(total.ranked(r.rank(e), 0), r.rank(e))


def _first_of_linear(r: Recorder, e: Expr) -> Asking:
    """Linear operations on expectations; constants keep their value."""
    assert isinstance(e, Apply)
    args = []
    for a in e.args:
        value = yield first, a
        args.append(Block(value.array, value.rank))
    made = e.op.run(*args, **e.options)
    return PerInput(made.array, made.rank)


def _sum_outside(r: Recorder, e: Expr) -> Expr:
    """a sum_i b_i as sum_i (a b_i), where the sum is over an index and not Gaussian; else e itself.

    A product of few atoms has an expectation that is known, and a function of all members of a sum has not.
    """
    if not isinstance(e, Apply) or e.op is not mul:
        return e
    if not any(_is_sum_of_vectors(r, x) for x in r.forms.factors(e)):
        return e
    args = tuple(_sum_outside(r, arg) for arg in e.args)
    for factor, total in (args, args[::-1]):
        if isinstance(total, Apply) and total.op in (sum_, average) and not r.forms.is_affine(total):
            (terms,) = total.args
            summed, rank = axes_of(total.options["axis"], r.rank(terms)), max(r.rank(factor), r.rank(total))
            summed = tuple(axis + rank - r.rank(total) for axis in summed)
            kept = [axis for axis in range(rank + len(summed)) if axis not in summed]
            first_own = kept[rank - r.rank(factor)] if r.rank(factor) else rank + len(summed)
            index = tuple(None if a in summed else Slice() for a in range(first_own, rank + len(summed)))
            spread = _indexed(r, factor, index) if None in index else factor
            return Apply(total.op, (Apply(mul, (spread, terms)),), (("axis", summed),))
    return e if args == e.args else Apply(mul, args)


def _indexed(r: Recorder, e: Expr, index: tuple[Slice | None, ...]) -> Expr:
    """e[index], as a function of forms that are indexed where it can be."""
    made: dict[Expr, Expr] = {}
    for x in subtrees(e):
        if not r.rank(x) and x is not e:
            made[x] = x
        elif _is_indexed_inside(r, x):
            assert isinstance(x, Apply)
            made[x] = Apply(x.op, tuple(made[arg] for arg in x.args), x.attrs, x.pick)
        else:
            made[x] = Apply(at, (x,), (("index", index),))
    return made[e]


def _is_indexed_inside(r: Recorder, e: Expr) -> bool:
    """Whether it is a function of members, whose arguments can be indexed in place of its values."""
    if r.forms.is_affine(e) or not isinstance(e, Apply) or not isinstance(e.op, Function):
        return False
    return {r.rank(arg) for arg in e.args} <= {0, r.rank(e)}


# Products of atoms


def _multiplied_out(r: Recorder, e: Expr, f: Expr | None, pair: Pair) -> Asking:
    """E of two sums of products of atoms; without f, of one."""
    other = ONE if f is None else f
    size = r.forms.size(e) * r.forms.size(other)
    r.products += size.products
    if not size.is_small or (size.is_notable and r.products > MOST_IN_ALL):
        r.missing = _too_many_products(r, e, other, size)
        return None
    right = (Product(),) if f is None else r.forms.products(f)
    total: PerPair | None = None
    for p in r.forms.products(e):
        for q in right:
            value = yield from _product(r, p, q, pair)
            total = value if total is None else total + value
    assert total is not None
    return total.widened(r.rank(e), 0 if f is None else r.rank(f))


def _too_many_products(r: Recorder, e: Expr, f: Expr, size: Size) -> Missing:
    what = " ".join(shown_short(x) for x in (e, f) if x is not ONE)
    families = r.forms.families_in(e) | r.forms.families_in(f)
    return Missing(families, f"E[{what}] is not multiplied out: that takes {size}")


def _stays_whole(r: Recorder, e: Expr, f: Expr) -> bool:
    """Whether all of a product is sampled that would be large multiplied out."""
    if r.samples is None or not (r.forms.size(e) * r.forms.size(f)).is_notable:
        return False
    families = r.forms.families_in(e) | r.forms.families_in(f)
    return families <= r.samples.families and not (f is not ONE and r.forms.is_constant(f))


def _product(r: Recorder, p: Product, q: Product, pair: Pair) -> Asking:
    """E of a product of constants and atoms on each side."""
    factors: list[PerPair] = []
    for side, product in enumerate((p, q)):
        for c in product.constants:
            value = yield constant, c
            factors.append(pair.side(side, value))
    (ours, left), (theirs, right) = _split(r, p.atoms), _split(r, q.atoms)
    if ours or theirs:
        factors.append((yield r.rules.sampled_mean, ours, theirs, pair))
    for atoms in _components(r, left, right, _apart_families(r, pair)):
        factors.append((yield from _factor(r, *atoms, pair)))
    if not factors:
        one = pair.shared(r.xp.ones((1,) * pair.batch))
        return PerPair(one, pair, 0, 0)
    value = factors[0]
    for factor in factors[1:]:
        value = value * factor
    return value


def _factor(r: Recorder, left: Atoms, right: Atoms, pair: Pair) -> Asking:
    """E of atoms that share families; what is on one side only is a quantity of single inputs."""
    if left and right:
        return (yield r.rules.expectation, left, right, pair)
    atoms = left or right
    alone: PerPair = yield r.rules.expectation, atoms, (), OWN
    value = PerInput(alone.array, max(alone.left, alone.right))
    return pair.left(value) if left else pair.right(value)


def _split(r: Recorder, atoms: Atoms) -> tuple[Atoms, Atoms]:
    """Atoms whose families are sampled, and the others."""
    chosen = r.samples.families if r.samples is not None else frozenset()
    for atom in atoms:
        families = r.forms.families_of(atom)
        if families & chosen and not families <= chosen:
            r.missing = Missing(families, "a function mixes sampled and unsampled families")
    drawn = tuple(a for a in atoms if r.forms.families_of(a) & chosen)
    return drawn, tuple(a for a in atoms if not r.forms.families_of(a) & chosen)


def _apart_families(r: Recorder, pair: Pair) -> frozenset[str]:
    """The families in which left and right are independent: noise of different inputs."""
    return r.forms.noise if pair.is_tile and not pair.same else frozenset()


def _components(
    r: Recorder, left: Atoms, right: Atoms, apart: frozenset[str]
) -> Iterator[tuple[Atoms, Atoms]]:
    """Groups of atoms that share a family; different groups are independent."""
    groups: list[tuple[frozenset[Any], tuple[Atoms, Atoms]]] = []
    for side, atoms in enumerate((left, right)):
        for atom in atoms:
            found = r.forms.families_of(atom)
            families = (found - apart) | {(side, family) for family in found & apart}
            joined = [g for g in groups if g[0] & families]
            members = [tuple(a for _, m in joined for a in m[k]) for k in (0, 1)]
            members[side] += (atom,)
            union = families.union(*(f for f, _ in joined))
            groups = [g for g in groups if g not in joined] + [(union, (members[0], members[1]))]
    return (members for _, members in groups)
