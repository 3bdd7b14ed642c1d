"""Tangents in normal form: sums of products of a coefficient and a linear form.

    tangent = sum over terms of  sum over axes of  coef * form

A coefficient is a function of the program's variables, a form is linear in tangents. In the limit the two are
independent, so E of a product of two such terms is E[coef coef'] E[form form'], as long as nothing stands
between them. Selections of members therefore go through products, coefficients go inside sums, and multiples
by numbers and C-vars belong to the form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from netsor.lang.blocks import broadcast_index
from netsor.lang.expr import Apply, Attr, Const, Expr, Slice, subtrees
from netsor.lang.functions import add, mul, neg, sub
from netsor.lang.index_maps import at, patches, reshape, sum_, take, transpose
from netsor.lang.ops import Function, IndexMap, axes_of
from netsor.lang.types import Index

__all__ = ["SELECTIONS", "NormalForm", "Term", "Terms", "negative"]

SELECTIONS = (at, take, reshape, transpose, patches)  # every member of the result is one of the argument
Attrs = tuple[tuple[str, Attr], ...]


@dataclass(frozen=True)
class Term:
    """`coef * form`, summed over `axes` of the two; without a coefficient it is 1."""

    form: Expr
    coef: Expr | None = None
    axes: tuple[int, ...] = ()

    @property
    def is_pure(self) -> bool:
        """Whether it is a form alone."""
        return self.coef is None and not self.axes


Terms = tuple[Term, ...]


@dataclass(frozen=True)
class NormalForm:
    """Sums of terms of given index shapes.

    index     the index shape of any expression
    constant  whether an expression has no vectors
    unwound   an expression as a function of G-vars and C-vars
    """

    index: Callable[[Expr], Index]
    constant: Callable[[Expr], bool]
    unwound: Callable[[Expr], Expr] = lambda e: e

    def plus(self, *parts: Terms) -> Terms:
        """The sum; terms with one coefficient are one term."""
        found: dict[Any, Expr] = {}
        for term in (t for part in parts for t in part):
            key = (term.coef, term.axes)
            found[key] = _added(found[key], term.form) if key in found else term.form
        return tuple(Term(form, *key) for key, form in found.items())

    def times(self, factor: Expr, terms: Terms, index: Index) -> Terms:
        """factor * terms, for terms of index shape `index`."""
        return tuple(self._multiplied(factor, term, len(index)) for term in terms)

    def _multiplied(self, factor: Expr, term: Term, rank: int) -> Term:
        lifted = self._lifted(factor, rank, term.axes)
        if factor == Const(1.0):
            return term
        if factor == Const(-1.0):
            return Term(negative(term.form), term.coef, term.axes)
        if self.constant(factor):
            return Term(Apply(mul, (lifted, term.form)), term.coef, term.axes)
        coef = lifted if term.coef is None else Apply(mul, (lifted, term.coef))
        return Term(term.form, coef, term.axes)

    def _lifted(self, factor: Expr, rank: int, axes: tuple[int, ...]) -> Expr:
        """The factor with axes of length 1 at those that a term of this rank is summed over."""
        own = len(self.index(factor))
        if not axes or not own:
            return factor
        kept = iter([None] * (rank - own) + [Slice()] * own)
        items = tuple(None if k in axes else next(kept) for k in range(rank + len(axes)))
        return Apply(at, (factor,), (("index", items),))

    def widened(self, terms: Terms, old: Index, new: Index) -> Terms:
        """Terms of index shape `old`, broadcast to `new`."""
        return terms if old == new else tuple(self._spread_term(t, old, new) for t in terms)

    def _spread_term(self, term: Term, old: Index, new: Index) -> Term:
        full = self._full(term, old)
        shift = len(new) - len(old)
        axes = tuple(a + shift for a in term.axes)
        sizes = iter(new)
        target = tuple(full[k - shift] if k in axes else next(sizes) for k in range(len(new) + len(axes)))
        return Term(self.spread(term.form, target), term.coef, axes)

    def _full(self, term: Term, index: Index) -> Index:
        """The index shape of a term before it is summed."""
        parts = [self.index(e) for e in (term.form, term.coef) if e is not None]
        own, sizes = broadcast_index(*parts), iter(index)
        rank = len(index) + len(term.axes)
        own = (1,) * (rank - len(own)) + own
        return tuple(own[k] if k in term.axes else next(sizes) for k in range(rank))

    def spread(self, e: Expr, index: Index) -> Expr:
        """The expression broadcast to an index shape, by selections alone."""
        own = self.index(e)
        if own == index:
            return e
        if len(own) < len(index):
            e = Apply(at, (e,), (("index", (None,) * (len(index) - len(own))),))
        own = (1,) * (len(index) - len(own)) + own
        for axis, (n, m) in enumerate(zip(own, index, strict=True)):
            if n != m:
                e = Apply(take, (e,), (("axis", axis), ("indices", (0,) * m)))
        return e

    def summed(self, terms: Terms, axes: Iterable[int], index: Index) -> Terms:
        """Sums over index axes of terms of index shape `index`."""
        found = []
        for term in terms:
            rank = len(index) + len(term.axes)
            kept = [k for k in range(rank) if k not in term.axes]
            every = tuple(sorted((*term.axes, *(kept[a] for a in axes))))
            found.append(Term(self.spread(term.form, self._full(term, index)), term.coef, every))
        return tuple(found)

    def selected(self, op: IndexMap, attrs: Attrs, terms: Terms, index: Index) -> Terms:
        """Members of terms: (c * f)[i] = c[i] * f[i], and functions of members are members of functions."""
        return tuple(self._selected_term(op, attrs, term, index) for term in terms)

    def _selected_term(self, op: IndexMap, attrs: Attrs, term: Term, index: Index) -> Term:
        term, full = self._summed_last(term, index)
        rest = full[len(index) :]
        attrs = _on_first_axes(op, attrs, index, rest)
        form = Apply(op, (self.spread(term.form, full),), attrs)
        coef = term.coef and self._selected_coef(op, attrs, term.coef, full)
        rank = len(op.shape(full, **dict(attrs)))
        return Term(form, coef, tuple(range(rank - len(rest), rank)))

    def _summed_last(self, term: Term, index: Index) -> tuple[Term, Index]:
        """The term with the axes that it is summed over behind the others, and its index shape."""
        full, rank = self._full(term, index), len(index)
        order = (*(k for k in range(len(full)) if k not in term.axes), *term.axes)
        if order == tuple(range(len(full))):
            return term, full
        parts = [
            part and Apply(transpose, (self.spread(part, full),), (("axes", order),))
            for part in (term.form, term.coef)
        ]
        assert parts[0] is not None
        return Term(parts[0], parts[1], tuple(range(rank, len(full)))), tuple(full[k] for k in order)

    def _selected_coef(self, op: IndexMap, attrs: Attrs, coef: Expr, full: Index) -> Expr:
        """Functions of members in place of members of functions."""
        coef = self.unwound(coef)
        found: dict[Expr, Expr] = {}
        for e in _leaves(coef):
            found[e] = Apply(op, (self.spread(e, full),), attrs) if self.index(e) else e
        for e in subtrees(coef, found):
            assert isinstance(e, Apply)
            found[e] = Apply(e.op, tuple(found[a] for a in e.args), e.attrs) if self.index(e) else e
        return found[coef]

    def mapped(self, e: Apply, terms: Terms, parts: Callable[[Expr], Expr]) -> Terms:
        """The linear map of `e` on the tangent of its last argument; it goes into a sum of forms.

        parts  the sum that a name stands for
        """
        forms = tuple(Term(self._into_sum(e, parts(t.form), parts)) for t in terms if t.is_pure)
        rest = tuple(t for t in terms if not t.is_pure)
        return self.plus(forms, (Term(_on(e, self.expr(rest))),) if rest else ())

    def _into_sum(self, e: Apply, form: Expr, parts: Callable[[Expr], Expr]) -> Expr:
        match form:
            case Apply(head, args) if head in (add, sub, neg) and len({self.index(a) for a in args}) == 1:
                return Apply(head, tuple(self._into_sum(e, parts(a), parts) for a in args))
        return _on(e, form)

    def expr(self, terms: Terms) -> Expr:
        """The sum as an expression; there is at least one term."""
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
        """coef * form; copies of members, if both have the same ones, are made of the product."""
        match form:
            case Apply(op, (number, rest)) if op is mul and self.constant(number):
                inner = self._product(coef, rest)
                copied = isinstance(inner, Apply) and inner.op in SELECTIONS
                return Apply(mul, (number, inner)) if copied else Apply(mul, (coef, form))
            case Apply(op, (rest,), attrs) if op in SELECTIONS:
                own = self.index(rest)
                leaves = [e for e in _leaves(coef) if self.index(e)]
                copies = [e for e in leaves if isinstance(e, Apply) and (e.op, e.attrs) == (op, attrs)]
                before: dict[Expr, Expr] = {e: e.args[0] for e in copies}
                alike = len(before) == len(leaves) > 0 and all(self.index(e) == own for e in before.values())
                if alike and prod(self.index(form)) > prod(own):
                    return Apply(op, (self._product(_with_leaves(coef, before), rest),), attrs)
        return Apply(mul, (coef, form))


def _with_leaves(e: Expr, leaves: Mapping[Expr, Expr]) -> Expr:
    """A function with others in place of some of its parts."""
    found = dict(leaves)
    for node in subtrees(e, found):
        if isinstance(node, Apply) and isinstance(node.op, Function):
            found[node] = Apply(node.op, tuple(found[a] for a in node.args), node.attrs)
        else:
            found[node] = node
    return found[e]


def _leaves(e: Expr) -> list[Expr]:
    """The largest parts of an expression that are no functions of numbers."""
    found, todo, seen = [], [e], {e}
    while todo:
        node = todo.pop()
        if isinstance(node, Apply) and isinstance(node.op, Function):
            new = [a for a in node.args if a not in seen]
            seen.update(new)
            todo += new
        else:
            found.append(node)
    return found


def _on(e: Apply, x: Expr) -> Expr:
    """The operation of `e` with another last argument."""
    return Apply(e.op, (*e.args[:-1], x), e.attrs)


def negative(form: Expr) -> Expr:
    """-form."""
    return form.args[0] if isinstance(form, Apply) and form.op is neg else Apply(neg, (form,))


def _added(a: Expr, b: Expr) -> Expr:
    return Apply(sub, (a, b.args[0])) if isinstance(b, Apply) and b.op is neg else Apply(add, (a, b))


def _on_first_axes(op: IndexMap, attrs: Attrs, index: Index, rest: Index) -> Attrs:
    """The options of a selection on `index`, for blocks that have further axes behind."""
    options, rank = dict(attrs), len(index)
    if op is reshape:
        options["shape"] = (*options["shape"], *rest)
    elif op is transpose:
        options["axes"] = (*options["axes"], *range(rank, rank + len(rest)))
    elif op is take:
        (options["axis"],) = axes_of(options["axis"], rank)
    return tuple(options.items())
