"""Closed forms of E[f(x)] and E[f(x) g(y)]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from netsor.expect.closed.forms import Rule, find, find_mean
from netsor.expect.quadrature.nodes import eps_of
from netsor.limits.methods.component import Component, known_function, statistics
from netsor.limits.methods.near_parallel import ROUNDING, NearParallel
from netsor.limits.recursion.covariances import cov
from netsor.limits.recursion.forms import Atom
from netsor.limits.recursion.pairs import PerPair
from netsor.limits.recursion.recorder import Asking, Recorder

__all__ = ["ClosedForm", "ClosedPair", "aligned_pair", "closed_mean", "closed_pair"]

Array = Any


@dataclass(frozen=True)
class ClosedPair:
    """E[f(x) g(y)] from means, variances and covariance, elementwise on arrays that broadcast."""

    rule: Rule
    parallel: NearParallel | None

    def __call__(self, m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
        return self.rule(m1, m2, q1, q2, c if self.parallel is None else self.parallel(c, q1, q2))


def closed_pair(known: dict[Any, Any], a: Atom, b: Atom, centred: bool) -> ClosedPair | None:
    """The closed form of a pair, remembered in `known`: the same for all pairs of equal functions."""
    key = ("closed", a.body, b.body, centred)
    if key not in known:
        f, g = known_function(a.body), known_function(b.body)
        rule = find(*f, *g, zero_mean=centred) if f and g else None
        known[key] = rule and ClosedPair(rule, NearParallel.of(a.body, b.body, closed=True))
    return known[key]


def closed_mean(known: dict[Any, Any], a: Atom) -> Rule | None:
    """The closed form of E[f(x)], a function of mean and variance."""
    key = ("closed", a.body)
    if key not in known:
        f = known_function(a.body)
        known[key] = find_mean(*f) if f else None
    return known[key]


def aligned_pair(r: Recorder, c: Component, parallel: NearParallel | None) -> Asking:
    """Means, variances and covariance of the forms of two atoms, ready to broadcast; None if independent.

    The covariance of functions that are steep is nudged by its rounding.
    """
    a, b = c.atoms
    block: PerPair | None = yield cov, a.forms[0], b.forms[0], c.pair
    if block is None:
        return None
    (m1, q1), (m2, q2) = (yield from statistics(r, a)), (yield from statistics(r, b))
    ranks = r.rank(a.expr), r.rank(b.expr)
    array = block.ranked(*ranks)
    pair = c.pair
    arrays = [pair.left(m1), pair.right(m2), pair.left(q1), pair.right(q2)]
    m1, m2, q1, q2 = (x.ranked(*ranks) for x in arrays)
    if parallel is not None:
        r.notes.inexact = True
        if r.nudge is not None:
            nudge = r.nudge if array.tape is r.tape else array.tape.shared(r.nudge)
            array = array * (1.0 - nudge * (ROUNDING * eps_of(array)))
        array = array.tape.rule(parallel, array, q1, q2)
    return m1, m2, q1, q2, array


class ClosedForm:
    """A formula, evaluated entry by entry."""

    name = "closed form"

    def applies(self, r: Recorder, c: Component) -> bool:
        if not c.is_unary or len(c.atoms) > 2:
            return False
        if len(c.atoms) == 1:
            return closed_mean(r.facts, c.atoms[0]) is not None
        return closed_pair(r.facts, *c.atoms, _centred(r, c)) is not None

    def value(self, r: Recorder, c: Component) -> Asking:
        if len(c.atoms) == 1:
            return (yield from self._mean(r, c))
        ranks, rule = [r.rank(a.expr) for a in c.atoms], closed_pair(r.facts, *c.atoms, _centred(r, c))
        assert rule is not None
        found = yield from aligned_pair(r, c, rule.parallel)
        if found is None:
            return None
        return PerPair(found[-1].tape.rule(rule.rule, *found), c.pair, *ranks)

    def _mean(self, r: Recorder, c: Component) -> Asking:
        m, q = yield from statistics(r, c.atoms[0])
        rule = closed_mean(r.facts, c.atoms[0])
        assert rule is not None
        return PerPair(r.tape.rule(rule, m.array, q.array), c.pair, m.rank, 0)


def _centred(r: Recorder, c: Component) -> bool:
    return all(r.forms.is_centred(a.forms[0]) for a in c.atoms)
