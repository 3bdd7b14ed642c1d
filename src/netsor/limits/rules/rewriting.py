"""The rewriter of the rules: equations between expressions, applied from left to right.

`definition` and `mask_outside` give every expression its normal form (`Forms.unwound`). `factor_outside` and
`sum_outside` are the same equation in opposite directions: `decomposition` chooses by the other factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import isfinite, prod
from typing import TYPE_CHECKING

from netsor.errors import LimitError
from netsor.lang.expr import Apply, Const, Expr, Ref, Slice, refs, subtrees, transform
from netsor.lang.functions import add, d_batchnorm, div, mul, neg, pow_, sub
from netsor.lang.index_maps import at, sum_, take
from netsor.lang.index_maps import mean as average
from netsor.lang.ops import Function, axes_of
from netsor.lang.program import Nonlin, Program
from netsor.lang.rewrite import ONE, SIMPLER, ZERO, rewritten
from netsor.lang.tangent_terms import NormalForm, written_out

if TYPE_CHECKING:
    from netsor.limits.rules.forms import Forms


def product_of(factors: Sequence[Expr]) -> Expr:
    return reduce(lambda x, y: Apply(mul, (x, y)), factors) if factors else ONE


# The normal form


def definition(program: Program, e: Expr) -> Expr | None:
    """y = e where the program says y := e, by a Nonlin; else None."""
    source = program.definitions.get(e.name) if isinstance(e, Ref) else None
    return source.expr if isinstance(source, Nonlin) else None


def mask_outside(masks: frozenset[Expr], e: Apply) -> Expr | None:
    """f(m x) = m f(x) + (1 - m) f(0) for a mask m, which is 0 or 1.

    The products then factor, and dropout in front of an activation has the activation's closed forms.
    """
    inside = _masks_inside(e, masks)
    return _without_masks(e, inside) if 0 < len(inside) <= 3 else None  # each mask doubles the terms


def _masks_inside(e: Apply, masks: frozenset[Expr]) -> list[Expr]:
    """Return the masks in a function, with nothing but functions of numbers between."""
    if not isinstance(e.op, Function) or e.op in (add, sub, neg, mul):  # arithmetic is multiplied out anyway
        return []
    seen: dict[Expr, None] = {}
    todo = list(e.args[1:] if e.op is div else e.args)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen[node] = None
            if node not in masks and isinstance(node, Apply) and isinstance(node.op, Function):
                todo += node.args
    return [node for node in seen if node in masks]


def _without_masks(e: Expr, masks: list[Expr]) -> Expr:
    """Apply the equation to the first mask, then to the other masks in both terms."""
    if not masks:
        return e
    mask, *later = masks
    on, off = (rewritten(transform(e, lambda ref: ref, {mask: value}), SIMPLER) for value in (ONE, ZERO))
    # f(0) may be infinite, as for 1 / (m x), or f may read what the mask reads: then the mask stays inside.
    if not (_is_finite(on) and _is_finite(off)) or set(refs(mask)) & {*refs(on), *refs(off)}:
        return _without_masks(e, later)
    kept = Apply(mul, (mask, _without_masks(on, later)))
    if off == ZERO:
        return kept
    return Apply(add, (kept, Apply(mul, (Apply(sub, (ONE, mask)), _without_masks(off, later)))))


def _is_finite(e: Expr) -> bool:
    return all(isfinite(node.value) for node in subtrees(e) if isinstance(node, Const))


# Constants, sums and products


def number_outside(e: Expr) -> tuple[float, Expr]:
    """2 (x 3) = 6 x; return the number 6 and the expression x."""
    number = 1.0
    while isinstance(e, Apply) and e.op is mul and any(isinstance(a, Const) for a in e.args):
        factor, e = e.args if isinstance(e.args[0], Const) else e.args[::-1]
        assert isinstance(factor, Const)
        number *= factor.value
    return number, e


def power(e: Apply) -> Expr | None:
    """x^2 = x x,  x^3 = x (x x)."""
    if e.op is not pow_ or e.args[1] not in (Const(2.0), Const(3.0)):
        return None
    x, square = e.args[0], Apply(mul, (e.args[0], e.args[0]))
    return square if e.args[1] == Const(2.0) else Apply(mul, (x, square))


def quotient(e: Apply) -> Expr | None:
    """x / c = x (1 / c)."""
    return Apply(mul, (e.args[0], Apply(div, (ONE, e.args[1])))) if e.op is div else None


def twice(e: Apply) -> Expr | None:
    """x + x = 2 x."""
    return Apply(mul, (Const(2.0), e.args[0])) if e.op is add and e.args[0] is e.args[1] else None


def factor_outside(forms: Forms, e: Expr) -> Expr | None:
    """sum_j a_i b_ij = a_i sum_j b_ij, where a has length 1 along the sum."""
    if not isinstance(e, Apply) or e.op is not sum_ or forms.is_affine(e):
        return None
    (terms,) = e.args
    rank, factors = forms.rank(terms), forms.factors(terms)
    axes = axes_of(e.options["axis"], rank)

    def summed(x: Expr) -> list[int]:
        """Return the axes of x that are summed over."""
        return [a for a in (axis - rank + forms.rank(x) for axis in axes) if a >= 0]

    outer = [x for x in factors if all(forms.index(x)[k] == 1 for k in summed(x))]
    inner = [_without_copies(forms, x) for x in factors if x not in outer]
    if not outer or not inner:
        return None
    members = []
    for x in outer:
        items = tuple(0 if k in summed(x) else Slice() for k in range(forms.rank(x)))
        members.append(Apply(at, (x,), (("index", items),)) if 0 in items else x)
    product = product_of(inner)
    outside = Apply(mul, (product_of(members), Apply(sum_, (product,), (("axis", axes),))))
    # Indexing both factors like this must not change the shape of the sum.
    whole = forms.rank(product) == rank and all(
        forms.index(product)[a] == forms.index(terms)[a] for a in axes
    )
    return outside if whole and forms.index(outside) == forms.index(e) else None


def _without_copies(forms: Forms, e: Expr) -> Expr:
    """Remove copies along axes of length 1."""
    while isinstance(e, Apply) and e.op is take:
        index = forms.index(e.args[0])
        (axis,) = axes_of(e.options["axis"], len(index))
        if index[axis] != 1:
            break
        (e,) = e.args
    return e


def sum_outside(forms: Forms, e: Expr) -> Expr | None:
    """a_i sum_j b_ij = sum_j a_i b_ij, where the sum is over an index and is no form.

    A method may know E of a product a_i b_ij of few atoms, but none knows functions of a whole sum.
    """
    if not isinstance(e, Apply) or e.op is not mul or not any(map(forms.is_mapped, forms.factors(e))):
        return None
    args = tuple(sum_outside(forms, a) or a for a in e.args)
    for factor, total in (args, args[::-1]):
        if isinstance(total, Apply) and total.op in (sum_, average) and not forms.is_affine(total):
            return _distributed(forms, factor, total)
    return None if args == e.args else Apply(mul, args)


def _distributed(forms: Forms, factor: Expr, total: Apply) -> Expr:
    """Return factor * sum of terms as the sum of factor * term."""
    (terms,) = total.args
    rank = max(forms.rank(factor), forms.rank(total))
    axes = axes_of(total.options["axis"], forms.rank(terms))
    axes = tuple(axis + rank - forms.rank(total) for axis in axes)
    kept = [axis for axis in range(rank + len(axes)) if axis not in axes]
    begin = kept[rank - forms.rank(factor)] if forms.rank(factor) else rank + len(axes)
    index = tuple(None if a in axes else Slice() for a in range(begin, rank + len(axes)))
    spread = _indexed(forms, factor, index) if None in index else factor
    return Apply(total.op, (Apply(mul, (spread, terms)),), (("axis", axes),))


def _indexed(forms: Forms, e: Expr, index: tuple[Slice | None, ...]) -> Expr:
    """Return e[index], with the index moved inside functions up to the forms."""

    def is_indexed_inside(x: Expr) -> bool:
        if forms.is_affine(x) or not isinstance(x, Apply) or not isinstance(x.op, Function):
            return False
        return {forms.rank(arg) for arg in x.args} <= {0, forms.rank(x)}

    indexed: dict[Expr, Expr] = {}
    for x in subtrees(e):
        if not forms.rank(x) and x is not e:
            indexed[x] = x
        elif isinstance(x, Apply) and is_indexed_inside(x):
            indexed[x] = Apply(x.op, tuple(indexed[arg] for arg in x.args), x.attrs, x.pick)
        else:
            indexed[x] = Apply(at, (x,), (("index", index),))
    return indexed[e]


# Derivatives of batchnorm


@dataclass(frozen=True)
class SampledSlope:
    """An expression in which a derivative of batchnorm over `axes` of `batch` is written out."""

    expr: Expr
    batch: Expr
    axes: tuple[int, ...]


def batchnorm_slope(forms: Forms, sampled: frozenset[str], e: Expr) -> SampledSlope | None:
    """Return a d_batchnorm(x, t) as arithmetic if x is sampled, else None.

    Raise LimitError if it cannot be sampled, also if it is inside another function.
    """
    factors = forms.factors(e) if forms.has_batchnorm_slopes else []
    for k, x in enumerate(factors):
        for node in subtrees(x):
            if not isinstance(node, Apply) or node.op is not d_batchnorm:
                continue
            batch = node.args[0]
            if not forms.families_in(batch) & sampled:
                continue
            axes = axes_of(node.options["axis"], forms.rank(batch))
            # A batch minus its mean spans at most one dimension less than it has members.
            require_spanned(prod(forms.index(batch)[a] for a in axes) - 1)
            if node is x:
                beside = [*factors[:k], *factors[k + 1 :]]
                form = NormalForm(forms.index, forms.is_constant, forms.unwound)
                arithmetic = written_out(form, node, product_of(beside) if beside else None)
                return SampledSlope(arithmetic, batch, axes)
    return None


def require_spanned(dimensions: int) -> None:
    """Refuse to sample the derivative of batchnorm of a batch that spans few dimensions.

    It grows like 1/|x - mean|. Its second moment is finite from 3 dimensions on. An average of samples has a
    finite variance, and so a valid standard error, only from 5 dimensions on.
    """
    if dimensions < 5:
        raise LimitError(
            f"the derivative of batchnorm of a batch that spans {dimensions} dimensions cannot be sampled",
            remedy="Its square has no expectation, or averages of it have an infinite variance. Take batches "
            "of 6 members or more with as many numbers each, an eps > 0, or relu, abs or identity after "
            "batchnorm, which have integrals.",
        )
