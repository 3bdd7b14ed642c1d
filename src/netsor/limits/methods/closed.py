"""Closed forms of E[f(x)] and E[f(x) g(y)]."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from netsor.expect.closed.arrays import as_floats
from netsor.expect.closed.forms import Rule, find, find_mean
from netsor.expect.quadrature.nodes import eps_of
from netsor.lang.analysis import about
from netsor.lang.expr import Expr
from netsor.lang.facts import Growth
from netsor.limits.methods.component import Component, known_function, statistics
from netsor.limits.methods.near_parallel import NearParallel
from netsor.limits.recursion.covariances import cov
from netsor.limits.recursion.forms import HOLE
from netsor.limits.recursion.pairs import PerInput, PerPair
from netsor.limits.recursion.recorder import Asking, Recorder
from netsor.limits.tape.traced import array_namespace

__all__ = ["ClosedForm", "ClosedPair", "aligned_pair", "closed_mean", "closed_pair"]

Array = Any
NONE = 0.0  # no others: what `_others` says of a form with itself alone


@dataclass(frozen=True)
class ClosedPair:
    """E[f(x) g(y)] from means, variances and covariance, elementwise on arrays that broadcast."""

    rule: Rule
    parallel: NearParallel | None

    @property
    def elementary(self) -> bool:
        return self.rule.elementary

    def __call__(self, m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
        if self.parallel is None:
            return self.rule(m1, m2, q1, q2, c)
        if self.rule.parallel is None:
            return self.rule(m1, m2, q1, q2, self.parallel(c, q1, q2))
        m1, m2, q1, q2, c = as_floats(m1, m2, q1, q2, c)
        found, known = self.rule(m1, m2, q1, q2, c), self.rule.parallel(m1, m2, q1, q2, c)
        return array_namespace(found).where(self.parallel.holds(c, q1, q2), known, found)


@cache
def closed_pair(f: Expr, g: Expr, centred: bool) -> ClosedPair | None:
    """The closed form of a pair of functions of HOLE."""
    known = known_function(f), known_function(g)
    rule = find(*known[0], *known[1], zero_mean=centred) if known[0] and known[1] else None
    return rule and ClosedPair(rule, NearParallel.of(f, g, closed=True))


@cache
def closed_mean(f: Expr) -> Rule | None:
    """The closed form of E[f(x)], a function of mean and variance."""
    known = known_function(f)
    return find_mean(*known) if known else None


def aligned_pair(r: Recorder, c: Component, parallel: NearParallel | None) -> Asking:
    """Means, variances and covariance of the forms of two atoms, ready to broadcast; None if independent.

    For functions that need `parallel`, the covariance is nudged by its rounding, also where it counts as
    parallel; but not that of a form with itself, which is no product of two roundings.
    """
    a, b = c.atoms
    block: PerPair | None = yield cov, a.forms[0], b.forms[0], c.pair
    if block is None:
        return None
    (m1, q1), (m2, q2) = (yield from statistics(r, a)), (yield from statistics(r, b))
    pair, ranks = c.pair, (r.rank(a.expr), r.rank(b.expr))
    array = block.ranked(*ranks)
    sides = [x.ranked(*ranks) for x in (pair.left(m1), pair.right(m2), pair.left(q1), pair.right(q2))]
    others = _others(r, c, array)
    if r.notes.cancels:
        _, turn = r.how(array.tape)
        array = array.tape.call(_within, (turn, others, array, *sides[2:]), array.shape)
    if parallel is not None and others is not NONE:
        r.notes.inexact = r.notes.steep = r.notes.diagonal = True
        if r.nudge is not None:
            array = array.tape.rule(parallel, array, *sides[2:])
            nudge = r.shares(array, down=False)
            array = array * (1.0 - nudge * others * (r.rounding * eps_of(array)))
    return _with_rounding(r, c, (*sides, array))


def _within(turn: Array, others: Array, cov: Array, q1: Array, q2: Array) -> Array:
    """Covariances; one that rounding put beyond its range may be as far within it, by turns.

    That of a form with itself is its variance, which is not negative.
    """
    if not turn:
        return cov
    most = np.sqrt(q1 * q2)
    inside = np.where(np.abs(cov) > most, np.sign(cov) * np.maximum(2 * most - np.abs(cov), 0.0), cov)
    return np.where(np.equal(others, 0.0), most, inside)


def _with_rounding(r: Recorder, c: Component, law: tuple[Any, ...]) -> tuple[Any, ...]:
    """Means and covariances; of functions that grow like exp, nudged by their rounding.

    E[exp(x) exp(y)] has a relative error of the absolute one of the exponent.
    """
    if all(about(atom.body, HOLE.name).growth != Growth.EXPONENTIAL for atom in c.atoms):
        return law
    r.notes.inexact = True
    if r.nudge is None:
        return law
    moved = []
    for array in law:
        size = array_namespace(array).abs(array) * (r.rounding * eps_of(array))
        moved.append(array + size * r.shares(array, down=True))
    return tuple(moved)


def _others(r: Recorder, c: Component, array: Array) -> Array:
    """1, and 0 for a form, or a member of its index, with itself; `NONE` if there are no others."""
    (a, b), index = c.atoms, r.index(c.atoms[0].forms[0])
    if not c.pair.same or a.forms != b.forms:
        return 1.0
    if c.pair.tied:
        return NONE
    if array.shape[2:] != (*index, *index):
        return 1.0
    return 1.0 - array.tape.constant(np.eye(prod(index)).reshape(1, 1, *index, *index))


class ClosedForm:
    """A formula, evaluated entry by entry."""

    name = "closed form"
    cost = 40

    def applies(self, r: Recorder, c: Component) -> bool:
        if not c.is_unary or len(c.atoms) > 2:
            return False
        if len(c.atoms) == 1:
            return closed_mean(c.atoms[0].body) is not None
        return closed_pair(*(a.body for a in c.atoms), _centred(r, c)) is not None

    def value(self, r: Recorder, c: Component) -> Asking:
        if len(c.atoms) == 1:
            return (yield from self._mean(r, c))
        ranks, rule = (
            [r.rank(a.expr) for a in c.atoms],
            closed_pair(*(a.body for a in c.atoms), _centred(r, c)),
        )
        assert rule is not None
        found = yield from aligned_pair(r, c, rule.parallel)
        if found is None:
            return None
        if _centred(r, c):  # a rule that does not read means has no shape from them
            found = (*(c.pair.left(PerInput(r.zero, 0)).ranked(*ranks),) * 2, *found[2:])
        return PerPair(found[-1].tape.rule(rule, *found), c.pair, *ranks)

    def _mean(self, r: Recorder, c: Component) -> Asking:
        m, q = yield from statistics(r, c.atoms[0])
        rule = closed_mean(c.atoms[0].body)
        assert rule is not None
        return PerPair(r.tape.rule(rule, *_with_rounding(r, c, (m.array, q.array))), c.pair, m.rank, 0)


def _centred(r: Recorder, c: Component) -> bool:
    return all(r.forms.is_centred(a.forms[0]) for a in c.atoms)
