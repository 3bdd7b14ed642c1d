"""E[f(x) g(y)] for (x, y) jointly Gaussian, where it has a closed form.

`find` and `find_mean` read `Facts.terms` of a function, so a new function needs no entry here. A faster or
more exact formula for one pair takes one entry: `@closed_form`.

| pair                                           | rule                                                 |
| ---------------------------------------------- | ---------------------------------------------------- |
| registered with `@closed_form`                 | its formula                                          |
| both are polynomials                           | `polynomials`                                        |
| at means 0, both with their only kink at 0     | `arc_cosine`                                           |
| at means 0, both derivatives of smooth ones    | `folded_slopes`                                      |
| both are waves cos(w x + p) exp(-b x^2)        | `product_of_waves`                                   |
| both are bells p(x) exp(-b x^2)                | `bells`                                              |
| one is an exponential exp(a x - b x^2)         | `_tilted`: the mean of the other under another law   |
| both are sums of terms                         | `exp_polynomials.product`                            |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from netsor.expect.closed import exp_polynomials
from netsor.expect.closed.arc_cosine import fold_of, folded, folded_slopes, parallel_jumps, slope_of
from netsor.expect.closed.arrays import Array, as_floats, determinant, nowhere
from netsor.expect.closed.erf import erf_erf, erf_mean
from netsor.expect.closed.polynomials import bell_of, bells, polynomial_of, polynomials
from netsor.expect.closed.trigonometric import mean_of_wave, product_of_waves, wave_of
from netsor.lang import functions as fn
from netsor.lang.array_api import array_namespace
from netsor.lang.exp_terms import ExpTerm, ExpTerms, InnerPiece
from netsor.lang.ops import Function

Options = Mapping[str, Any]
Formula = Callable[..., Array]


@dataclass(frozen=True)
class ClosedExpectation:
    """A closed form (m1, m2, q1, q2, c) -> E[f(x) g(y)], or (m, q) -> E[f(x)], elementwise on arrays.

    what         the expectation, as text
    formula      the closed form for floating-point arrays of one type
    elementary   whether the formula has only operations of the array API and looks at no values, so that it
                 can be recorded on arrays without values and compiled into a loop
    parallel     the value at correlation 1 or -1, with the sign of c, if it is known; c itself may be rounded
    """

    what: str
    formula: Formula
    elementary: bool
    parallel: Formula | None = None

    def __call__(self, *law: Any) -> Array:
        return self.formula(*as_floats(*law))

    def turned(self) -> ClosedExpectation:
        """Return the rule of E[g(x) f(y)]."""
        formula = self.formula
        return replace(self, formula=lambda m1, m2, q1, q2, c: formula(m2, m1, q2, q1, c))

    def at_zero(self) -> ClosedExpectation:
        """Return the rule at means 0, whatever means it is called with."""
        return replace(self, formula=lambda m1, m2, *law: self(0.0, 0.0, *law))


# What recognises the two functions, what makes their formula, and whether it needs means 0.
_FAMILIES: tuple[tuple[Callable[[ExpTerms], Any], Callable[..., Formula | None], bool], ...] = (
    (polynomial_of, polynomials, False),
    (fold_of, lambda f, g, _: folded(f, g), True),
    (slope_of, lambda f, g, _: folded_slopes(f, g), True),
    (wave_of, product_of_waves, False),
    (bell_of, bells, False),
)
_PAIRS: dict[tuple[Function, Function], ClosedExpectation] = {}


def closed_form(f: Function, g: Function, elementary: bool) -> Callable[[Formula], Formula]:
    """Register a formula of (m1, m2, q1, q2, c) for the pair (f, g); it also serves (g, f)."""

    def enter(formula: Formula) -> Formula:
        rule = ClosedExpectation(_what(f, g), formula, elementary)
        _PAIRS[g, f], _PAIRS[f, g] = rule.turned(), rule
        return formula

    return enter


def _what(*functions: Function) -> str:
    return f"E[{' '.join(f.name for f in functions)}]"


def find(
    f: Function, f_options: Options, g: Function, g_options: Options, zero_mean: bool = False
) -> ClosedExpectation | None:
    """Return the rule of E[f(x) g(y)], or None; with `zero_mean` at means 0, whatever it is called with."""
    (s, near_s), (t, near_t) = ((h.terms, h.near) for h in (f.about(f_options), g.about(g_options)))
    if s is None or t is None:
        return None
    # The order is from the most special rule to the most general one, which is slower and less exact.
    for recognise, formula_of, is_centred in _FAMILIES:
        if zero_mean or not is_centred:
            one, two = recognise(s), recognise(t)
            formula = formula_of(one, two, zero_mean) if one and two else None
            if formula is not None:
                parallel = parallel_jumps(one, two) if recognise is fold_of else None
                return ClosedExpectation(_what(f, g), formula, True, parallel)
    # E[f g] of an exponential f is a mean of g, which keeps more digits than a sum of terms.
    rule = _PAIRS.get((f, g)) or _tilted(f, s, g, g_options)
    if rule is None and (turned := _tilted(g, t, f, f_options)):
        rule = turned.turned()
    if rule is None and not _has_formula(s, t):
        return None
    if rule is None:
        rule = ClosedExpectation(_what(f, g), _sum_of_terms(s, t), _is_elementary(s) and _is_elementary(t))
        if near_s or near_t:
            series = _sum_of_terms(near_s or s, near_t or t)
            rule = replace(rule, formula=_with_series(rule.formula, series), elementary=False)
    return rule.at_zero() if zero_mean else rule


def find_mean(f: Function, f_options: Options) -> ClosedExpectation | None:
    """Return the rule (m, q) -> E[f(x)], or None if f has no closed form."""
    terms = f.about(f_options).terms
    if terms is None:
        return None
    if wave := wave_of(terms):
        return ClosedExpectation(_what(f), mean_of_wave(wave), True)
    if f is fn.erf:
        return ClosedExpectation(_what(f), erf_mean, False)
    return ClosedExpectation(_what(f), partial(exp_polynomials.mean, terms), _is_elementary(terms))


def _is_elementary(terms: ExpTerms) -> bool:
    """Return whether terms have no indicators (their probabilities are not elementary) and are real."""
    return all(isinstance(t, ExpTerm) and t.knot is None and not t.is_complex for t in terms)


def _sum_of_terms(s: ExpTerms, t: ExpTerms) -> Formula:
    """Re(A) Re(B) = Re(A Re(B)): if both sums are complex, one of them becomes a real sum."""
    if _has_waves(s) and _has_waves(t):
        t = tuple(part for b in t for part in _real_sum(b))
    return partial(exp_polynomials.product, s, t)


def _has_waves(terms: ExpTerms) -> bool:
    return any(isinstance(t, ExpTerm) and t.is_complex for t in terms)


def _real_sum(term: ExpTerm | InnerPiece) -> ExpTerms:
    """Return terms that add up to the real part of the term."""
    if isinstance(term, InnerPiece) or not term.is_complex:
        return (term,)
    return term.scaled(0.5), term.conjugate().scaled(0.5)


def _has_formula(s: ExpTerms, t: ExpTerms) -> bool:
    """Return whether the sum of products has a formula: quadrants of complex means have none.

    So if both functions have terms with indicators, neither of these terms may be a wave.
    """
    cut, other = ([a for a in terms if isinstance(a, InnerPiece) or a.knot is not None] for terms in (s, t))
    return not (cut and other and (_has_waves(tuple(cut)) or _has_waves(tuple(other))))


def _tilted(f: Function, s: ExpTerms, g: Function, g_options: Options) -> ClosedExpectation | None:
    """The rule of f(x) = w exp(a x - b x^2) and any g: a weight times the mean of g under another law."""
    match s:
        case (ExpTerm((weight,), knot=None) as term,) if not term.is_complex:
            mean = find_mean(g, g_options)
        case _:
            return None
    if mean is None:
        return None

    def formula(m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
        law = exp_polynomials.Gaussian(m1, m2, q1, q2, c, determinant(q1, q2, c))
        tilted, log_weight = law.tilted(term, exp_polynomials.ONE)
        return weight * array_namespace(log_weight).exp(log_weight) * mean.formula(tilted.m2, tilted.q2)

    return ClosedExpectation(_what(f, g), formula, mean.elementary)


def _with_series(formula: Formula, series: Formula) -> Formula:
    """Use the series where x and y are small: there, differences of probabilities would lose all digits."""

    def either(m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
        xp = array_namespace(m1, m2, q1, q2, c)
        small = (xp.abs(m1) < 0.04) & (xp.abs(m2) < 0.04) & (q1 < 1e-4) & (q2 < 1e-4)
        if nowhere(small):
            return formula(m1, m2, q1, q2, c)
        means, covariance = (xp.where(small, m, 0.0) for m in (m1, m2)), xp.where(small, c, 0.0)
        value = series(*means, *(xp.where(small, q, 1e-5) for q in (q1, q2)), covariance)
        return xp.where(small, value, formula(m1, m2, q1, q2, c))

    return either


@closed_form(fn.exp, fn.exp, elementary=True)
def exp_exp(m1: Array, m2: Array, q1: Array, q2: Array, c: Array) -> Array:
    """exp of the mean of x + y and half its variance."""
    return array_namespace(c).exp((m1 + q1 / 2) + (m2 + q2 / 2) + c)


closed_form(fn.erf, fn.erf, elementary=False)(erf_erf)
