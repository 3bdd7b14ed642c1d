"""Distances of the variables of two inputs, by rules that do not cancel.

    gap(e, f)           Var(e - f) of two forms
    second_gap(h, h')   E[(h - h')^2] of two vectors

None is 0: both inputs share the variable. A rule that has no form of its own takes q + q' - 2 c, whose
rounding is counted in the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netsor.expect.gaps import NearLaw, constant_jump, erf_gap, jump_gap, kink_gap, near_moments, slopes
from netsor.lang import functions as fn
from netsor.lang.analysis import about, has_user_function
from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees
from netsor.lang.ops import IndexMap
from netsor.lang.program import Embedding, Input, MatMul
from netsor.limits.methods.closed import closed_pair
from netsor.limits.methods.component import callable_of, known_function, statistics
from netsor.limits.recursion.covariances import cov, fused, is_sum, leaf, variance, written_out
from netsor.limits.recursion.forms import HOLE, Atom, LinearTerm, Product
from netsor.limits.recursion.leaves import embedded_data
from netsor.limits.recursion.linear import SELECTIONS, selected
from netsor.limits.recursion.moments import second
from netsor.limits.recursion.pairs import Pair, PerPair
from netsor.limits.recursion.recorder import Asking, Recorder
from netsor.limits.recursion.values import OWN, constant, mean

__all__ = ["gap", "second_gap", "second_of_twins"]

Array = Any
Formula = Callable[[NearLaw], tuple[Array, Array | float]]
ROUNDING = 8  # units of the last place that a formula may be off


def gap(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Var(e - f) of two affine expressions of the left and of the right input."""
    e, f = written_out(r, e), written_out(r, f)
    if e == f:
        return None
    ours, theirs = r.forms.terms(e), r.forms.terms(f)
    if is_sum(e, ours) or is_sum(f, theirs):
        return (yield from _of_sums(r, e, f, pair))
    match e, f:
        case Ref(g), Ref(k) if r.matrix_of(g) is not None and _multiplied_alike(r, g, k):
            return (yield from leaf(r, e, f, pair, _inner))
        case Apply(), Apply():
            if e.op in SELECTIONS:
                return (yield from _selected(r, e, f, pair, gap))
            made = yield from fused(r, e, f, pair, _inner)
            if made is not None:
                return made
    return (yield from _from_covariance(r, e, f, pair))


def _multiplied_alike(r: Recorder, g: str, k: str) -> bool:
    """Whether two variables are products of one matrix with vectors of one index."""
    s, t = r.program.definitions[g], r.program.definitions[k]
    aligned = [x.aligned if isinstance(x, MatMul) else None for x in (s, t)]
    return r.matrix_of(g) == r.matrix_of(k) and aligned[0] == aligned[1] and r.ref_index(g) == r.ref_index(k)


def _inner(r: Recorder, g: str, k: str, pair: Pair) -> Asking:
    """var_W E[(h - h')^2] for g = W h and k = W h'; of data |x - x'|^2 / m."""
    s, t = r.program.definitions[g], r.program.definitions[k]
    if isinstance(s, Input) and isinstance(t, Input):
        block = _data_gap(r, s, t)
    else:
        assert isinstance(s, MatMul)
        assert isinstance(t, MatMul)
        block = yield second_gap, Ref(s.operand), Ref(t.operand), pair
    matrix = r.matrix_of(g)
    assert matrix is not None
    return _zero(r, 0) if block is None else block * r.factor(matrix, block.pair)


def _data_gap(r: Recorder, s: Input, t: Input) -> PerPair:
    """|x - x'|^2 / m, with the rounding of numbers that are computed from the data."""
    assert isinstance(s.law, Embedding)
    made = any(not isinstance(n.op, IndexMap) for n in subtrees(s.law.data) if isinstance(n, Apply))
    rounding = r.rounding

    def distance(nudge: Array, x: Array, y: Array) -> Array:
        slack = nudge * rounding * np.finfo(x.dtype).eps
        found, size = np.mean((x - y) ** 2, axis=-1), np.mean(x**2 + y**2, axis=-1)
        moved = np.maximum(np.sqrt(found) + made * (found > 0) * slack * np.sqrt(size), 0.0)
        return moved**2 * (1 + slack)

    x, y = embedded_data(r, s.law), embedded_data(r, t.law)
    shape = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    return PerPair(r.tape.call(distance, (r.nudge, x, y), shape), OWN, len(shape) - 2, len(shape) - 2)


def _of_sums(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Of two sums of independent terms, the sum over the terms of one source; without a partner, its
    variance."""
    ours, theirs = r.forms.terms(e), r.forms.terms(f)
    sides = [{r.forms.sources(t.form): t for t in terms} for terms in (ours, theirs)]
    groups = {*sides[0], *sides[1]}
    apart = sum(map(len, groups)) == len(frozenset().union(*groups))
    if not apart or len(sides[0]) < len(ours) or len(sides[1]) < len(theirs):
        return (yield from _from_covariance(r, e, f, pair))
    rank, total = max(r.rank(e), r.rank(f)), None
    for key in sorted(groups, key=sorted):
        part = yield from _of_terms(r, sides[0].get(key), sides[1].get(key), pair)
        if part is not None:
            total = part if total is None else total + part
    return None if total is None else total.widened(rank, rank)


def _of_terms(r: Recorder, t: LinearTerm | None, u: LinearTerm | None, pair: Pair) -> Asking:
    """Var(a x - b y) of two multiples of one source."""
    one, two = t or u, u or t
    assert one is not None
    assert two is not None
    a, b = (yield from _factor(r, one, pair)), (yield from _factor(r, two, pair))
    if t is None or u is None:
        return pair.left((yield variance, one.form)) * a * a
    found: PerPair | None = yield gap, t.form, u.form, pair
    if (t.sign, t.factors) == (u.sign, u.factors):
        return None if found is None else found * a * a
    q = pair.left((yield variance, t.form)), pair.right((yield variance, u.form))
    return _multiples(r, found, a, b, *q)


def _factor(r: Recorder, term: LinearTerm, pair: Pair) -> Asking:
    """What the form of a term is multiplied by."""
    total = PerPair(r.xp.full((1, 1), float(term.sign)), pair, 0, 0)
    for factor, divides in term.factors:
        part = pair.left((yield constant, factor))
        total = total / part if divides else total * part
    return total


def _multiples(r: Recorder, d: PerPair | None, a: PerPair, b: PerPair, q: PerPair, p: PerPair) -> PerPair:
    """E[(a x - b y)^2] = a b d + (a - b) (a q - b p), where d = E[(x - y)^2], q = E[x^2] and p = E[y^2]."""

    def combined(slack: float, d: Array, a: Array, b: Array, q: Array, p: Array) -> Array:
        one, two, size = np.abs(a - b), np.abs(a * q - b * p), np.abs(a) * q + np.abs(b) * p
        lost = slack * (np.abs(a) * two + one * size + abs(slack) * np.abs(a) * size)
        return np.maximum(np.maximum(a * b * d + (a - b) * (a * q - b * p), 0.0) + lost, 0.0)

    return _step(r, combined, d or _zero(r, 0), a, b, q, p)


def _from_covariance(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """q + q' - 2 c."""
    q, p = pair.left((yield variance, e)), pair.right((yield variance, f))
    c: PerPair | None = yield cov, e, f, pair
    return q + p if c is None else _step(r, _difference, q, p, c)


def _difference(slack: float, q: Array, p: Array, c: Array) -> Array:
    return np.maximum(np.maximum(q + p - 2 * c, 0.0) + slack * (q + p), 0.0)


def _step(r: Recorder, formula: Callable[..., Array], *blocks: PerPair) -> PerPair:
    """A step of a function of rounding to be counted and of blocks."""
    rank, rounding = max(max(b.left, b.right) for b in blocks), r.rounding
    arrays = [b.ranked(rank, rank) for b in blocks]

    shape = np.broadcast_shapes(*(a.shape for a in arrays))

    def run(nudge: Array, *arrays: Array) -> Array:
        slack = float(nudge) * rounding * float(np.finfo(arrays[0].dtype).eps)
        return np.broadcast_to(formula(slack, *arrays), shape)

    return PerPair(r.tape.call(run, (r.nudge, *arrays), shape), OWN, rank, rank)


def _zero(r: Recorder, rank: int) -> PerPair:
    return PerPair(r.xp.zeros((1, 1, *(1,) * rank)), OWN, rank, rank)


def _selected(r: Recorder, e: Apply, f: Apply, pair: Pair, rule: Any) -> Asking:
    """Of members of a block, the same members."""
    if (e.op, e.attrs) != (f.op, f.attrs):
        return (yield from (_from_covariance if rule is gap else _from_moments)(r, e, f, pair))
    inner: PerPair | None = yield rule, e.args[0], f.args[0], pair
    return selected(r, e, [inner])


# Vectors


def second_of_twins(r: Recorder, h: Expr, k: Expr, pair: Pair) -> Asking:
    """E[h h'], and E[f(x)^2] of a smooth f by a rule of its own, as nothing else is asked of its series."""
    x, y = r.forms.resolved(h), r.forms.resolved(k)
    if x == y and pair == OWN and not r.forms.is_affine(x):
        atom = r.forms.as_atom(x)
        function = _smooth(atom) if atom.unary and not closed_pair(atom.body, atom.body, False) else None
        if function is not None:
            m, q = yield from statistics(r, atom)

            def square(slack: float, m: Array, q: Array) -> Array:
                found = near_moments(function, function, m, m, np.sqrt(q), np.sqrt(q), 0 * q)
                return found.product + np.sign(slack) * found.product_error

            return _step(r, square, pair.left(m), pair.left(q))
    return (yield second, x, y, pair)


def second_gap(r: Recorder, h: Expr, k: Expr, pair: Pair) -> Asking:
    """E[(h - h')^2] of two vectors of the left and of the right input."""
    forms, (x, y) = r.forms, (r.forms.resolved(h), r.forms.resolved(k))
    if x == y:
        return None
    if forms.is_affine(x) and forms.is_affine(y):
        return (yield from _of_forms(r, x, y, pair))
    if isinstance(x, Apply) and isinstance(y, Apply) and x.op in SELECTIONS:
        return (yield from _selected(r, x, y, pair, second_gap))
    pairs = _matched(r, forms.products(x), forms.products(y))
    total: PerPair | None = None
    for p, q in pairs:
        part = yield from _of_products(r, p, q, pair)
        if part is None:
            return (yield from _from_moments(r, x, y, pair))
        total = part if total is None else total + part
    if total is None:
        return (yield from _from_moments(r, x, y, pair))
    shifted = [(p, q) for p, q in pairs if not _is_odd(r, p)]
    if len(shifted) > 1:
        cross: PerPair = yield from _cross(r, shifted, pair)
        total = total + cross
    return total.widened(r.rank(x), r.rank(x))


def _matched(
    r: Recorder, ours: tuple[Product, ...], theirs: tuple[Product, ...]
) -> list[tuple[Product, Product]]:
    """Terms of two sums, one to one, if they are multiples of independent atoms of one form; else none."""
    if len(ours) != len(theirs) or any(len(p.atoms) != 1 or not p.atoms[0].unary for p in (*ours, *theirs)):
        return []
    families = [[r.forms.families_of(p.atoms[0]) for p in side] for side in (ours, theirs)]
    apart = sum(map(len, families[0])) == len(frozenset().union(*families[0]))
    same = families[0] == families[1] and all(
        p.atoms[0].body == q.atoms[0].body for p, q in zip(ours, theirs, strict=True)
    )
    return list(zip(ours, theirs, strict=True)) if apart and same else []


def _is_odd(r: Recorder, p: Product) -> bool:
    """Whether a multiple of an atom has mean 0, whatever the data are."""
    atom = p.atoms[0]
    return r.forms.is_centred(atom.forms[0]) and about(atom.body, HOLE.name).parity == -1


def _cross(r: Recorder, pairs: list[tuple[Product, Product]], pair: Pair) -> Asking:
    """The products of the means of all pairs of differences, which are independent."""
    means: list[PerPair] = []
    for products in pairs:
        for side, p in enumerate(products):
            factor = yield from _factor(r, _term_of(p), pair)
            means.append(pair.side(side, (yield r.rules.first, p.atoms[0].expr)) * factor)

    def cross(slack: float, *means: Array) -> Array:
        shifts = [a - b for a, b in zip(means[::2], means[1::2], strict=True)]
        sizes = [np.abs(a) + np.abs(b) for a, b in zip(means[::2], means[1::2], strict=True)]
        total = sum(shifts) ** 2 - sum(s**2 for s in shifts)
        lost = sum(sizes) * (2 * sum(map(np.abs, shifts)) + abs(slack) * sum(sizes))
        return total + slack * lost * any(np.any(s != 0) for s in shifts)

    return _step(r, cross, *means)


def _of_forms(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Var(e - f) + (E[e] - E[f])^2."""
    found: PerPair | None = yield gap, e, f, pair
    if r.forms.is_centred(e) and r.forms.is_centred(f):
        return found
    m, n = pair.left((yield mean, e)), pair.right((yield mean, f))

    def square(slack: float, m: Array, n: Array) -> Array:
        return np.maximum(np.abs(m - n) + slack * (np.abs(m) + np.abs(n)) * (m != n), 0.0) ** 2

    means = _step(r, square, m, n)
    return means if found is None else found + means


def _from_moments(r: Recorder, h: Expr, k: Expr, pair: Pair) -> Asking:
    """E[h^2] + E[h'^2] - 2 E[h h']."""
    q: PerPair = yield r.rules.second, h, h, pair
    p: PerPair = yield r.rules.second, k, k, pair
    c: PerPair = yield second, h, k, pair
    return _step(r, _difference, q, p, c)


def _of_products(r: Recorder, p: Product, q: Product, pair: Pair) -> Asking:
    """Of multiples a f(x) and b f(y) of a function with a formula; None without one."""
    one, two = p.atoms[0], q.atoms[0]
    if one.is_identity:
        found = (yield from _of_forms(r, one.forms[0], two.forms[0], pair)) or _zero(r, 0)
    else:
        centred = all(r.forms.is_centred(form) for form in (*one.forms, *two.forms))
        formula = _formula(one, centred)
        if formula is None:
            return None
        found = yield from _of_atoms(r, one, two, formula, pair)
    if not p.constants and not q.constants:
        return found
    a = yield from _factor(r, _term_of(p), pair)
    b = yield from _factor(r, _term_of(q), pair)
    if p.constants == q.constants:
        return found * a * a
    square = yield r.rules.second, one.expr, one.expr, pair
    other = yield r.rules.second, two.expr, two.expr, pair
    return _multiples(r, found, a, b, square, other)


def _term_of(p: Product) -> LinearTerm:
    """The constants of a product as those of a term."""
    return LinearTerm(HOLE, 1, tuple((c, False) for c in p.constants))


def _of_atoms(r: Recorder, one: Atom, two: Atom, formula: Formula, pair: Pair) -> Asking:
    d: PerPair | None = yield gap, one.forms[0], two.forms[0], pair
    (m1, q1), (m2, q2) = (yield from statistics(r, one)), (yield from statistics(r, two))

    def value(slack: float, m1: Array, m2: Array, q1: Array, q2: Array, d: Array) -> Array:
        found, error = formula(NearLaw(m1, m2, q1, q2, d, slack))
        same = (d == 0) & (m1 == m2)  # x and y are the same
        return np.where(same, 0.0, np.maximum(found + np.sign(slack) * error, 0.0))

    blocks = pair.left(m1), pair.right(m2), pair.left(q1), pair.right(q2), d or _zero(r, 0)
    return _step(r, value, *blocks)


def _formula(atom: Atom, centred: bool) -> Formula | None:
    """E[(f(x) - f(y))^2] with its own error, without cancellation; None where there is no such formula."""
    known, named = about(atom.body, HOLE.name), known_function(atom.body)
    jump, sides = constant_jump(known.pieces), slopes(known.pieces)
    if jump is not None:
        return _exact(lambda law: jump[1] ** 2 * jump_gap(jump[0], law))
    if sides is not None and centred:
        return _exact(lambda law: kink_gap(*sides, law))
    if named == (fn.erf, {}) and centred:
        return _exact(erf_gap)
    function = _smooth(atom)
    if function is None:
        return None

    def smooth(law: NearLaw) -> tuple[Array, Array]:
        found = near_moments(function, function, law.m1, law.m2, *law.deviations, law.distance)
        return found.gap, found.gap_error

    return smooth


def _smooth(atom: Atom) -> Callable[[Array], Array] | None:
    """A smooth function of the language, without parameters."""
    plain = refs(atom.body) == [HOLE.name] and not has_user_function(atom.body)
    if not plain or not about(atom.body, HOLE.name).is_smooth:
        return None
    return callable_of(atom, {}, 0)


def _exact(formula: Callable[[NearLaw], Array]) -> Formula:
    def with_error(law: NearLaw) -> tuple[Array, Array]:
        found = formula(law)
        return found, ROUNDING * np.finfo(found.dtype).eps * found

    return with_error
