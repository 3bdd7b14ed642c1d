"""Closed forms of E[f(x)] and E[f(x) g(y)]."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from netsor.expect.closed.arrays import as_floats
from netsor.expect.closed.registry import ClosedExpectation, find, find_mean
from netsor.lang.analysis import about
from netsor.lang.expr import Expr
from netsor.lang.facts import Growth
from netsor.limits.error_probes import ExponentRounding, Probe
from netsor.limits.methods.component import Component, Method, known_function, statistics
from netsor.limits.methods.near_parallel import NearParallel
from netsor.limits.rules.atoms import HOLE
from netsor.limits.rules.forms import Forms
from netsor.limits.rules.lincomb import cov
from netsor.limits.rules.pairs import PerInput, PerPair
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.rules.setting import Setting
from netsor.limits.tape.traced import array_namespace

Array = Any
SAME_FORM = 0.0  # `_distinct` returns it if each entry compares a form with itself


@dataclass(frozen=True)
class ClosedPair:
    """E[f(x) g(y)] as a function of means, variances and covariance: arrays that broadcast."""

    rule: ClosedExpectation
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
        value, limit = self.rule(m1, m2, q1, q2, c), self.rule.parallel(m1, m2, q1, q2, c)
        return array_namespace(value).where(self.parallel.holds(c, q1, q2), limit, value)


@cache
def closed_pair(f: Expr, g: Expr, centred: bool) -> ClosedPair | None:
    """Return the closed form of E[f(x) g(y)] for two functions of HOLE, or None if there is no formula."""
    left, right = known_function(f), known_function(g)
    rule = find(*left, *right, zero_mean=centred) if left and right else None
    return rule and ClosedPair(rule, NearParallel.of(f, g, closed=True))


@cache
def closed_mean(f: Expr) -> ClosedExpectation | None:
    """Return the closed form of E[f(x)], a function of mean and variance, or None if there is no formula."""
    function = known_function(f)
    return find_mean(*function) if function else None


def aligned_pair(r: Recorder, c: Component, parallel: NearParallel | None) -> Asking:
    """Return means, variances and covariance of the forms of two atoms; None if the forms are independent.

    If the functions are steep (`parallel`), the covariance carries its rounding as an error bound.
    """
    a, b = c.atoms
    block: PerPair | None = yield cov, a.forms[0], b.forms[0], c.pair
    if block is None:
        return None
    (m1, q1), (m2, q2) = (yield from statistics(r, a)), (yield from statistics(r, b))
    pair, ranks = c.pair, (r.rank(a.expr), r.rank(b.expr))
    array = block.ranked(*ranks)
    sides = [x.ranked(*ranks) for x in (pair.left(m1), pair.right(m2), pair.left(q1), pair.right(q2))]
    distinct = _distinct(r, c, array)
    if r.forms.may_cancel:
        array = array.tape.bounded(array, within_range, distinct, *sides[2:])
    if parallel is not None and distinct is not SAME_FORM:
        r.notes.inexact = r.notes.steep = r.notes.diagonal = True
        shape = np.broadcast_shapes(array.shape, *(side.shape for side in sides[2:]))
        array = array_namespace(array).broadcast_to(array, shape)
        array = array.tape.bounded(array, SteepRounding(parallel, r.rounding), distinct, *sides[2:])
    return _with_rounding(r, c, (*sides, array))


def within_range(probe: Probe, cov: Array, distinct: Array, q1: Array, q2: Array) -> Array:
    """Reflect a covariance that a perturbation moved beyond sqrt(q1 q2) back into its range.

    Clipping would move all of these to the same side. The covariance of a form with itself is its variance,
    so that entry follows q1 and q2.
    """
    if not probe.is_random:
        return cov
    most = np.sqrt(q1 * q2)
    inside = np.where(np.abs(cov) > most, np.sign(cov) * np.maximum(2 * most - np.abs(cov), 0.0), cov)
    return np.where(np.equal(distinct, 0.0), most, inside)


@dataclass(frozen=True)
class SteepRounding:
    """Perturb the covariance of steep functions by its rounding, towards 0.

    Round first as `parallel` does, so that correlations that count as 1 are perturbed too. Correlations do
    not exceed 1, so random perturbations go towards 0 as well. Keep the covariance of a form with itself: it
    is the same number as the variance, not a product of two rounded vectors.
    """

    parallel: NearParallel
    units: float

    def __call__(self, probe: Probe, cov: Array, distinct: Array, q1: Array, q2: Array) -> Array:
        count, perturbed = cov.shape[1], np.empty_like(cov)
        step = max(1, 2**15 * count // max(1, cov.size))  # rows whose temporary arrays fit into the cache
        for start in range(0, count, step):
            rows = slice(start, start + step)
            # An array without this axis is the same for all rows.
            arrays = (
                x[:, rows] if np.ndim(x) > 1 and x.shape[1] == count else x for x in (cov, distinct, q1, q2)
            )
            perturbed[:, rows] = self._perturbed(probe, *arrays)
        return perturbed

    def _perturbed(self, probe: Probe, cov: Array, distinct: Array, q1: Array, q2: Array) -> Array:
        cov = self.parallel(cov, q1, q2)
        noise = probe.noise(cov)
        noise = np.abs(noise) if probe.is_random else noise
        return cov * (1.0 - noise * distinct * (self.units * float(np.finfo(cov.dtype).eps)))


def _with_rounding(r: Recorder, c: Component, law: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return means and covariances; attach their rounding as an error bound if a function grows like exp."""
    # exp turns an absolute error of its argument into a relative error of its value.
    if all(about(atom.body, HOLE.name).growth != Growth.EXPONENTIAL for atom in c.atoms):
        return law
    r.notes.inexact = True
    bound = ExponentRounding(r.rounding)
    return tuple(array.tape.bounded(array, bound) for array in law)


def _distinct(r: Recorder, c: Component, array: Array) -> Array:
    """Return 1, and 0 at the entries that compare a form with itself; `SAME_FORM` if all entries do."""
    (a, b), index = c.atoms, r.index(c.atoms[0].forms[0])
    if not c.pair.same or a.forms != b.forms:
        return 1.0
    if c.pair.tied:
        return SAME_FORM
    if array.shape[2:] != (*index, *index):
        return 1.0
    return 1.0 - array.tape.constant(np.eye(prod(index)).reshape(1, 1, *index, *index))


class ClosedForm(Method):
    """Evaluate a formula entry by entry."""

    name = "closed form"
    cost = 40

    def applies(self, x: Setting, c: Component) -> bool:
        if not c.is_unary or len(c.atoms) > 2:
            return False
        return _rule(x.forms, c) is not None

    def value(self, r: Recorder, c: Component) -> Asking:
        rule, ranks = _rule(r.forms, c), [r.rank(a.expr) for a in c.atoms]
        if not isinstance(rule, ClosedPair):
            m, q = yield from statistics(r, c.atoms[0])
            return PerPair(r.tape.rule(rule, *_with_rounding(r, c, (m.array, q.array))), c.pair, m.rank, 0)
        law = yield from aligned_pair(r, c, rule.parallel)
        if law is None:
            return None
        # A rule for mean zero does not read the means. Zeros without axes keep their shape out of the result.
        if _centred(r.forms, c):
            law = (*(c.pair.left(PerInput(r.zero, 0)).ranked(*ranks),) * 2, *law[2:])
        return PerPair(law[-1].tape.rule(rule, *law), c.pair, *ranks)


def _rule(forms: Forms, c: Component) -> Any:
    """Return the closed form of one or two atoms, or None if there is no formula."""
    if len(c.atoms) == 1:
        return closed_mean(c.atoms[0].body)
    return closed_pair(*(a.body for a in c.atoms), _centred(forms, c))


def _centred(forms: Forms, c: Component) -> bool:
    return all(forms.is_centred(a.forms[0]) for a in c.atoms)
