"""The tangent of batchnorm as a sum of products of a coefficient and a form."""

from __future__ import annotations

from math import prod

from netsor.lang.expr import Apply, Const, Expr, Slice
from netsor.lang.functions import MIXINGS, add, mul, pow_, sub
from netsor.lang.index_maps import at, mean, transpose
from netsor.lang.normal_form import NormalForm, Term, Terms
from netsor.lang.ops import axes_of
from netsor.lang.types import Index

__all__ = ["batchnorm_terms", "kept", "written_out"]


def written_out(form: NormalForm, e: Apply, factor: Expr | None = None) -> Expr:
    """`d_batchnorm(x, t)`, or a multiple of it, in arithmetic."""
    x, t = e.args
    terms = batchnorm_terms(form, Apply(MIXINGS["batchnorm"], (x,), e.attrs), (Term(t),))
    return form.expr(terms if factor is None else form.times(factor, terms, form.index(x)))


def batchnorm_terms(form: NormalForm, e: Apply, terms: Terms) -> Terms:
    """y = (x - mean x) / s:  d_y_i = (d_x_i - mean_j d_x_j) / s - y_i mean_j(y_j d_x_j) / s.

    e, terms  y and d_x
    """
    (x,), eps = e.args, e.options.get("eps", 0.0)
    index = form.index(x)
    rank, axes = len(index), tuple(sorted(axes_of(e.options["axis"], len(index))))
    count = prod(index[a] for a in axes)

    def average(z: Expr) -> Expr:
        return kept(Apply(mean, (z,), (("axis", axes),)), axes, rank)

    centred = Apply(sub, (x, average(x)))
    variance = average(Apply(mul, (centred, centred)))
    inverse = Apply(pow_, (Apply(add, (variance, Const(eps))) if eps else variance, Const(-0.5)))
    pure = tuple(Term(Apply(sub, (t.form, average(t.form)))) for t in terms if t.is_pure)
    rest = tuple(t for t in terms if not t.is_pure)
    others = tuple(_over_members(form, t, None, Const(1.0), axes, index) for t in rest)
    own = form.plus(pure, rest, form.times(Const(-1 / count), others, index))
    along = tuple(_over_members(form, t, e, Apply(mul, (inverse, e)), axes, index) for t in terms)
    return form.plus(form.times(inverse, own, index), form.times(Const(-1 / count), along, index))


def _over_members(
    form: NormalForm, t: Term, weight: Expr | None, factor: Expr, axes: tuple[int, ...], index: Index
) -> Term:
    """factor_i sum_j weight_j t_j, for members i and j along the axes."""
    rank = len(index)
    t = Term(form.expr((t,))) if t.axes else t
    coef = t.coef if weight is None else weight if t.coef is None else Apply(mul, (weight, t.coef))
    column = coef and _column(form.spread(coef, index), axes, rank)
    made = Term(_column(form.spread(t.form, index), axes, rank), column, tuple(range(rank, rank + len(axes))))
    return form.times(factor, (made,), index)[0]


def kept(e: Expr, axes: tuple[int, ...], rank: int) -> Expr:
    """A reduced expression with axes of length 1 where it was reduced."""
    return Apply(at, (e,), (("index", tuple(None if k in axes else Slice() for k in range(rank))),))


def _column(e: Expr, axes: tuple[int, ...], rank: int) -> Expr:
    """The expression with its member axes behind the others, and axes of length 1 in their place."""
    order = (*(k for k in range(rank) if k not in axes), *axes)
    moved = e if order == tuple(range(rank)) else Apply(transpose, (e,), (("axes", order),))
    return kept(moved, axes, rank)
