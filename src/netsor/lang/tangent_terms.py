"""Tangents in normal form: sums of products of a coefficient and a linear form.

    tangent = sum over terms of  sum over axes of  coef * form

A coefficient is a function of the program's variables; a form is linear in tangents. In the limit the two are
independent, so the expectation of a product of two terms factors: E[coef coef'] E[form form']. The factors
must be visible for that. Therefore selections of members distribute over products, coefficients move inside
sums, and multiples by numbers and C-vars belong to the form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from netsor.lang.blocks import broadcast_index
from netsor.lang.expr import Apply, Attrs, Const, Expr, Slice, transform
from netsor.lang.functions import MIXINGS, add, mul, neg, pow_, sub
from netsor.lang.index_maps import SELECTIONS, at, mean, reshape, sum_, take, transpose
from netsor.lang.ops import Function, IndexMap, axes_of
from netsor.lang.types import Index


@dataclass(frozen=True)
class TangentTerm:
    """sum over `axes` of coef * form; a missing coefficient means 1."""

    form: Expr
    coef: Expr | None = None
    axes: tuple[int, ...] = ()

    @property
    def is_pure(self) -> bool:
        """Whether the term is a form without coefficient and sum."""
        return self.coef is None and not self.axes


TangentTerms = tuple[TangentTerm, ...]


@dataclass(frozen=True)
class NormalForm:
    """The arithmetic of sums of terms."""

    index: Callable[[Expr], Index]  # the index shape of an expression
    constant: Callable[[Expr], bool]  # whether no vectors occur in an expression
    unwound: Callable[[Expr], Expr] = lambda e: e  # an expression as a function of G-vars and C-vars

    def plus(self, *parts: TangentTerms) -> TangentTerms:
        """Add sums of terms, and collect the forms of equal coefficients."""
        forms: dict[Any, Expr] = {}
        for term in (t for part in parts for t in part):
            key = (term.coef, term.axes)
            forms[key] = _added(forms[key], term.form) if key in forms else term.form
        return tuple(TangentTerm(form, *key) for key, form in forms.items())

    def times(self, factor: Expr, terms: TangentTerms, index: Index) -> TangentTerms:
        """factor * (sum of terms), for terms of index shape `index`."""
        if factor == Const(1.0):
            return terms
        if factor == Const(-1.0):
            return tuple(replace(t, form=negative(t.form)) for t in terms)
        products = []
        for t in terms:
            lifted = self._lifted(factor, len(index), t.axes)
            if self.constant(factor):  # deterministic in the limit, so it needs no expectation of its own
                products.append(replace(t, form=Apply(mul, (lifted, t.form))))
            else:
                products.append(replace(t, coef=Apply(mul, (lifted, t.coef)) if t.coef else lifted))
        return tuple(products)

    def _lifted(self, factor: Expr, rank: int, axes: tuple[int, ...]) -> Expr:
        """Insert axes of length 1 into the factor where a term of this rank is summed."""
        rank_of_factor = len(self.index(factor))
        if not axes or not rank_of_factor:
            return factor
        kept = iter([None] * (rank - rank_of_factor) + [Slice()] * rank_of_factor)
        items = tuple(None if k in axes else next(kept) for k in range(rank + len(axes)))
        return Apply(at, (factor,), (("index", items),))

    def widened(self, terms: TangentTerms, old: Index, new: Index) -> TangentTerms:
        """Broadcast terms of index shape `old` to `new`."""
        if old == new:
            return terms
        shift, wide = len(new) - len(old), []
        for t in terms:
            full, axes, sizes = self._full(t, old), tuple(a + shift for a in t.axes), iter(new)
            target = (full[k - shift] if k in axes else next(sizes) for k in range(len(new) + len(axes)))
            wide.append(TangentTerm(self.spread(t.form, tuple(target)), t.coef, axes))
        return tuple(wide)

    def _full(self, term: TangentTerm, index: Index) -> Index:
        """The index shape of coef * form before the sum over axes."""
        rank, sizes = len(index) + len(term.axes), iter(index)
        parts = [self.index(e) for e in (term.form, term.coef) if e is not None]
        shape = broadcast_index((1,) * rank, *parts)
        return tuple(shape[k] if k in term.axes else next(sizes) for k in range(rank))

    def spread(self, e: Expr, index: Index) -> Expr:
        """Broadcast an expression to an index shape by selections alone."""
        # A product with ones would hide a form behind a coefficient.
        shape = self.index(e)
        if shape == index:
            return e
        if len(shape) < len(index):
            e = Apply(at, (e,), (("index", (None,) * (len(index) - len(shape))),))
        shape = (1,) * (len(index) - len(shape)) + shape
        for axis, (n, m) in enumerate(zip(shape, index, strict=True)):
            if n != m:
                e = Apply(take, (e,), (("axis", axis), ("indices", (0,) * m)))
        return e

    def summed(self, terms: TangentTerms, axes: Iterable[int], index: Index) -> TangentTerms:
        """Sum terms of index shape `index` over index axes; the sums stay lazy, as axes of the terms."""
        sums = []
        for t in terms:
            open_axes = [k for k in range(len(index) + len(t.axes)) if k not in t.axes]
            every = tuple(sorted((*t.axes, *(open_axes[a] for a in axes))))
            sums.append(TangentTerm(self.spread(t.form, self._full(t, index)), t.coef, every))
        return tuple(sums)

    def selected(self, op: IndexMap, attrs: Attrs, terms: TangentTerms, index: Index) -> TangentTerms:
        """Select members of terms: (c * f)[i] = c[i] * f[i] and phi(x)[i] = phi(x[i])."""
        selected = []
        for t in terms:
            # Put the summed axes last: then the selection acts on the first axes with its options unchanged.
            last, full = self._summed_last(t, index)
            adapted = _on_first_axes(op, attrs, index, full[len(index) :])
            form = Apply(op, (self.spread(last.form, full),), adapted)
            coef = last.coef and self._selected_coef(op, adapted, last.coef, full)
            rank = len(self.index(form))
            selected.append(TangentTerm(form, coef, tuple(range(rank - len(t.axes), rank))))
        return tuple(selected)

    def _summed_last(self, term: TangentTerm, index: Index) -> tuple[TangentTerm, Index]:
        """Move the summed axes of a term to the end; return it with its index shape before the sum."""
        full, rank = self._full(term, index), len(index)
        order = (*(k for k in range(len(full)) if k not in term.axes), *term.axes)
        if order == tuple(range(len(full))):
            return term, full
        parts = [
            part and Apply(transpose, (self.spread(part, full),), (("axes", order),))
            for part in (term.form, term.coef)
        ]
        assert parts[0] is not None
        return TangentTerm(parts[0], parts[1], tuple(range(rank, len(full)))), tuple(full[k] for k in order)

    def _selected_coef(self, op: IndexMap, attrs: Attrs, coef: Expr, full: Index) -> Expr:
        """Push a selection to the leaves of a coefficient: phi(x)[i] = phi(x[i])."""
        # Equal members then give equal expressions, so their expectations are computed once.
        coef = self.unwound(coef)
        selected = {
            e: Apply(op, (self.spread(e, full),), attrs) if self.index(e) else e for e in _leaves(coef)
        }
        return transform(coef, changes=selected)

    def mapped(self, e: Apply, terms: TangentTerms, parts: Callable[[Expr], Expr]) -> TangentTerms:
        """Apply the linear map of `e` to the tangent of its last argument, and to each part of a form."""
        forms = tuple(TangentTerm(self._into_sum(e, parts(t.form), parts)) for t in terms if t.is_pure)
        products = tuple(t for t in terms if not t.is_pure)
        return self.plus(forms, (TangentTerm(_on(e, self.expr(products))),) if products else ())

    def _into_sum(self, e: Apply, form: Expr, parts: Callable[[Expr], Expr]) -> Expr:
        match form:
            case Apply(head, args) if head in (add, sub, neg) and len({self.index(a) for a in args}) == 1:
                return Apply(head, tuple(self._into_sum(e, parts(a), parts) for a in args))
        return _on(e, form)

    def expr(self, terms: TangentTerms) -> Expr:
        """Write the sum of one or more terms as an expression."""
        total: Expr | None = None
        for term in terms:
            form, sign = term.form, add
            if total is not None and isinstance(form, Apply) and form.op is neg:
                form, sign = form.args[0], sub
            part = form if term.coef is None else self._product(term.coef, form)
            if term.axes:
                part = Apply(sum_, (part,), (("axis", term.axes),))
            total = part if total is None else Apply(sign, (total, part))
        assert total is not None
        return total

    def _product(self, coef: Expr, form: Expr) -> Expr:
        """coef * form; a selection that repeats members of both is applied to the smaller product."""
        match form:
            case Apply(op, (number, rest)) if op is mul and self.constant(number):
                inner = self._product(coef, rest)
                copied = isinstance(inner, Apply) and inner.op in SELECTIONS
                return Apply(mul, (number, inner)) if copied else Apply(mul, (coef, form))
            case Apply(op, (rest,), attrs) if op in SELECTIONS:
                shape = self.index(rest)
                before: dict[Expr, Expr] = {}
                for e in _leaves(coef):
                    is_copy = isinstance(e, Apply) and (e.op, e.attrs) == (op, attrs) and self.index(e)
                    before[e] = e.args[0] if isinstance(e, Apply) and is_copy else e
                blocks = [e for e in before if self.index(e)]
                alike = all(before[e] is not e and self.index(before[e]) == shape for e in blocks)
                if blocks and alike and prod(self.index(form)) > prod(shape):
                    return Apply(op, (self._product(transform(coef, changes=before), rest),), attrs)
        return Apply(mul, (coef, form))


def _leaves(e: Expr) -> list[Expr]:
    """The arguments of a composition of coordinatewise functions: its largest other subexpressions."""
    leaves, todo, seen = [], [e], {e}
    while todo:
        node = todo.pop()
        if isinstance(node, Apply) and isinstance(node.op, Function):
            new = [a for a in node.args if a not in seen]
            seen.update(new)
            todo += new
        else:
            leaves.append(node)
    return leaves


def _on(e: Apply, x: Expr) -> Expr:
    """Replace the last argument of `e`."""
    return Apply(e.op, (*e.args[:-1], x), e.attrs)


def negative(form: Expr) -> Expr:
    """-form, without a double minus."""
    return form.args[0] if isinstance(form, Apply) and form.op is neg else Apply(neg, (form,))


def _added(a: Expr, b: Expr) -> Expr:
    """a + b, written as a - c if b is -c."""
    return Apply(sub, (a, b.args[0])) if isinstance(b, Apply) and b.op is neg else Apply(add, (a, b))


def _on_first_axes(op: IndexMap, attrs: Attrs, index: Index, behind: Index) -> Attrs:
    """Adapt the options of a selection on `index` to blocks with more axes `behind` those."""
    options, rank = dict(attrs), len(index)
    if op is reshape:
        options["shape"] = (*options["shape"], *behind)
    elif op is transpose:
        options["axes"] = (*options["axes"], *range(rank, rank + len(behind)))
    elif op is take:
        (options["axis"],) = axes_of(options["axis"], rank)
    return tuple(options.items())


# The tangent of batchnorm.


def written_out(form: NormalForm, e: Apply, factor: Expr | None = None) -> Expr:
    """Write `d_batchnorm(x, t)`, or a multiple of it, with arithmetic operations."""
    x, t = e.args
    terms = batchnorm_terms(form, Apply(MIXINGS["batchnorm"], (x,), e.attrs), (TangentTerm(t),))
    return form.expr(terms if factor is None else form.times(factor, terms, form.index(x)))


def batchnorm_terms(form: NormalForm, e: Apply, terms: TangentTerms) -> TangentTerms:
    """The tangent of e = batchnorm(x), for the terms of d_x.

    y = (x - mean x) / s:  d_y_i = (d_x_i - mean_j d_x_j) / s - y_i mean_j(y_j d_x_j) / s,
    where s^2 = mean (x - mean x)^2 + eps, and all means are over the batch axes.
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
    # The mean of a pure form is a form. The mean of a product is a sum over members j of products, which
    # must stay apart from member i: `_over_members` adds axes for j.
    pure = tuple(TangentTerm(Apply(sub, (t.form, average(t.form)))) for t in terms if t.is_pure)
    products = tuple(t for t in terms if not t.is_pure)
    averages = tuple(_over_members(form, t, None, Const(1.0), axes, index) for t in products)
    centred_terms = form.plus(pure, products, form.times(Const(-1 / count), averages, index))
    along = tuple(_over_members(form, t, e, Apply(mul, (inverse, e)), axes, index) for t in terms)
    return form.plus(form.times(inverse, centred_terms, index), form.times(Const(-1 / count), along, index))


def _over_members(
    form: NormalForm, t: TangentTerm, weight: Expr | None, factor: Expr, axes: tuple[int, ...], index: Index
) -> TangentTerm:
    """factor_i sum_j weight_j t_j, where i and j run over the members along the axes."""
    rank = len(index)
    t = TangentTerm(form.expr((t,))) if t.axes else t
    coef = t.coef if weight is None else weight if t.coef is None else Apply(mul, (weight, t.coef))
    column = coef and _column(form.spread(coef, index), axes, rank)
    summed = TangentTerm(
        _column(form.spread(t.form, index), axes, rank), column, tuple(range(rank, rank + len(axes)))
    )
    return form.times(factor, (summed,), index)[0]


def kept(e: Expr, axes: tuple[int, ...], rank: int) -> Expr:
    """Restore reduced axes with length 1, as `keepdims` does in NumPy."""
    return Apply(at, (e,), (("index", tuple(None if k in axes else Slice() for k in range(rank))),))


def _column(e: Expr, axes: tuple[int, ...], rank: int) -> Expr:
    """Move the axes of members j behind the others, and leave axes of length 1 in their place."""
    order = (*(k for k in range(rank) if k not in axes), *axes)
    moved = e if order == tuple(range(rank)) else Apply(transpose, (e,), (("axes", order),))
    return kept(moved, axes, rank)
