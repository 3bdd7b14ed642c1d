"""E[f(x) g(y)] for (x, y) jointly Gaussian, where it has a closed form.

`find` returns the rule of a pair, `find_mean` that of E[f(x)]. Rules are elementwise on arrays that
broadcast, of any library of the array API. A faster or more exact rule for one pair is one entry:
`@closed_form(f, g)` on a function of `(m1, m2, q1, q2, c, f_options, g_options)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from array_api_compat import array_namespace

from netsor.expect.closed import bivariate, master
from netsor.expect.closed.arrays import Array, as_floats, determinant, nowhere
from netsor.expect.closed.derivatives import DERIVATIVES
from netsor.expect.closed.folded import FOLDED, folded
from netsor.expect.closed.terms import TERMS, Terms, elu_series
from netsor.lang import functions as fn
from netsor.lang import special
from netsor.lang.ops import Function

__all__ = ["DERIVATIVES", "closed_form", "find", "find_mean"]

Options = Mapping[str, Any]
Rule = Callable[..., Array]

_RULES: dict[tuple[str, str, bool], Rule] = {}


def closed_form(f: Function, g: Function, zero_mean: bool = False) -> Callable[[Rule], Rule]:
    """Enter a rule for the pair (f, g), which serves (g, f) too; `zero_mean`: only for means 0."""

    def enter(rule: Rule) -> Rule:
        _RULES[g.name, f.name, zero_mean] = _turned(rule)
        _RULES[f.name, g.name, zero_mean] = rule
        return rule

    return enter


def _turned(rule: Rule) -> Rule:
    return lambda m1, m2, q1, q2, c, *options: rule(m2, m1, q2, q1, c, *reversed(options))


def find(
    f: Function, f_options: Options, g: Function, g_options: Options, zero_mean: bool = False
) -> Rule | None:
    """The rule (m1, m2, q1, q2, c) -> E[f(x) g(y)], or None where the pair has no closed form.

    With `zero_mean` both means are taken as 0, whatever the rule is called with: for many pairs that rule is
    cheaper and more exact.
    """
    if not (_is_known(f) and _is_known(g)):
        return None
    options = ({**f.defaults, **f_options}, {**g.defaults, **g_options})
    if zero_mean and f.name in FOLDED and g.name in FOLDED:
        return folded(FOLDED[f.name](options[0]), FOLDED[g.name](options[1]))
    rule = _entered(f, g, zero_mean, *options)
    rule = rule or _tilted(f, options[0], g, options[1]) or _from_terms(f, options[0], g, options[1])
    return rule and (_at_zero(rule) if zero_mean else rule)


def _entered(f: Function, g: Function, zero_mean: bool, *options: Options) -> Rule | None:
    rule = (zero_mean and _RULES.get((f.name, g.name, True))) or _RULES.get((f.name, g.name, False))
    return (lambda *law: rule(*as_floats(*law), *options)) if rule else None


def _at_zero(rule: Rule) -> Rule:
    return lambda m1, m2, q1, q2, c: rule(0.0, 0.0, q1, q2, c)


def find_mean(f: Function, f_options: Options) -> Rule | None:
    """The rule (m, q) -> E[f(x)], or None where f has no closed form."""
    if not _is_known(f):
        return None
    options = {**f.defaults, **f_options}
    if f.name == "erf":
        return lambda m, q: _erf_mean(*as_floats(m, q))
    if f.name in _TILTS:
        return lambda m, q: _TILTS[f.name](*_alone(*as_floats(m, q)), options)[0]
    if f.name in TERMS:
        terms = TERMS[f.name](options)
        return lambda m, q: master.mean(terms, *as_floats(m, q))
    return None


def _is_known(f: Function) -> bool:
    """Whether f is the language's own function, not a user's of the same name."""
    return fn.FUNCTIONS.get(f.name) == f


def _alone(m: Array, q: Array) -> tuple[Array, ...]:
    return m, 0.0 * m, q, 0.0 * q, 0.0 * q


def _from_terms(f: Function, f_options: Options, g: Function, g_options: Options) -> Rule | None:
    if f.name not in TERMS or g.name not in TERMS:
        return None
    rule = _sum_of_terms(TERMS[f.name](f_options), TERMS[g.name](g_options))
    if "elu" not in (f.name, g.name) or not {f.name, g.name} <= {"elu", "erf", "sin"}:
        return rule
    series = (
        elu_series(o["alpha"]) if h.name == "elu" else TERMS[h.name](o)
        for h, o in ((f, f_options), (g, g_options))
    )
    return _with_series(rule, _sum_of_terms(*series))


def _sum_of_terms(s: Terms, t: Terms) -> Rule:
    return lambda *law: master.product(s, t, *as_floats(*law))


# erf and elu vanish at 0: where x and y are small, differences of probabilities would lose all digits.


def _erf_mean(m: Array, q: Array) -> Array:
    """E[erf(x)] = erf(m / sqrt(1 + 2 q))."""
    return special.erf(m / array_namespace(q).sqrt(1 + 2 * q))


@closed_form(fn.erf, fn.erf)
def _erf_erf(m1: Array, m2: Array, q1: Array, q2: Array, c: Array, *options: Options) -> Array:
    """E[erf(x)] E[erf(y)] + 4 Cov(1[u > 0], 1[v > 0]), where u = x + noise of variance 1/2."""
    xp = array_namespace(q1, q2, c)
    su, sv = xp.sqrt(q1 + 0.5), xp.sqrt(q2 + 0.5)
    sigma = xp.sqrt(determinant(q1, q2, c) + (q1 + q2 + 0.5) / 2) / (su * sv)
    covariance = bivariate.covariance(-m1 / su, -m2 / sv, c / (su * sv), sigma)
    return _erf_mean(m1, q1) * _erf_mean(m2, q2) + 4 * covariance


def _with_series(rule: Rule, series: Rule) -> Rule:
    """The rule, and the other one where x and y are so small that exp is its Taylor polynomial."""

    def either(*law: Any) -> Array:
        m1, m2, q1, q2, c = as_floats(*law)
        xp = array_namespace(m1, m2, q1, q2, c)
        small = (xp.abs(m1) < 0.04) & (xp.abs(m2) < 0.04) & (q1 < 1e-4) & (q2 < 1e-4)
        if nowhere(small):
            return rule(m1, m2, q1, q2, c)
        means, covariance = (xp.where(small, m, 0.0) for m in (m1, m2)), xp.where(small, c, 0.0)
        value = series(*means, *(xp.where(small, q, 1e-5) for q in (q1, q2)), covariance)
        return xp.where(small, value, rule(m1, m2, q1, q2, c))

    return either


# exp and gaussian times a Gaussian density are Gaussian densities: what is left is a mean of g.


def _exp_tilt(m1: Array, m2: Array, q1: Array, q2: Array, c: Array, options: Options) -> tuple[Array, ...]:
    """E[exp(x) g(y)] = exp(m1 + q1 / 2) E[g(y + c)]."""
    return array_namespace(m1, q1).exp(m1 + q1 / 2), m2 + c, q2


def _gaussian_tilt(
    m1: Array, m2: Array, q1: Array, q2: Array, c: Array, options: Options
) -> tuple[Array, ...]:
    """E[exp(-r x^2) g(y)] = exp(-r m1^2 / d) / sqrt(d) E[g(y')] with d = 1 + 2 r q1.

    y' has mean m2 - 2 r c m1 / d and variance (q2 + 2 r (q1 q2 - c^2)) / d.
    """
    xp, rate = array_namespace(m1, q1), options["rate"]
    spread = 1 + 2 * rate * q1
    weight = xp.exp(-rate * m1 * m1 / spread) / xp.sqrt(spread)
    return weight, m2 - 2 * rate * c * m1 / spread, (q2 + 2 * rate * determinant(q1, q2, c)) / spread


_TILTS: dict[str, Callable[..., tuple[Array, ...]]] = {"exp": _exp_tilt, "gaussian": _gaussian_tilt}


def _tilted(f: Function, f_options: Options, g: Function, g_options: Options) -> Rule | None:
    """The rule of a pair with exp or gaussian in it."""
    if f.name not in _TILTS:
        turned = _tilted(g, g_options, f, f_options) if g.name in _TILTS else None
        return turned and _turned(turned)
    mean = find_mean(g, g_options)
    return mean and _weighted(_TILTS[f.name], mean, f_options)


def _weighted(tilt: Callable[..., tuple[Array, ...]], mean: Rule, options: Options) -> Rule:
    def rule(*law: Any) -> Array:
        weight, m, q = tilt(*as_floats(*law), options)
        return weight * mean(m, q)

    return rule


# Waves: with s = (q1 + q2) / 2, E[sin(x) sin(y)] = exp(-s) (sin m1 sin m2 cosh c + cos m1 cos m2 sinh c).


def _hyperbolic(q1: Array, q2: Array, c: Array) -> tuple[Array, Array]:
    """exp(-s) cosh c and exp(-s) sinh c."""
    xp, size = array_namespace(q1, q2, c), array_namespace(c).abs(c)
    peak = xp.exp(-((q1 - size) + (q2 - size)) / 2) / 2
    return peak * (1 + xp.exp(-2 * size)), xp.sign(c) * peak * -xp.expm1(-2 * size)


@closed_form(fn.sin, fn.sin)
def _sin_sin(m1: Array, m2: Array, q1: Array, q2: Array, c: Array, *options: Options) -> Array:
    xp, (even, odd) = array_namespace(m1), _hyperbolic(q1, q2, c)
    return xp.sin(m1) * xp.sin(m2) * even + xp.cos(m1) * xp.cos(m2) * odd


@closed_form(fn.cos, fn.cos)
def _cos_cos(m1: Array, m2: Array, q1: Array, q2: Array, c: Array, *options: Options) -> Array:
    xp, (even, odd) = array_namespace(m1), _hyperbolic(q1, q2, c)
    return xp.cos(m1) * xp.cos(m2) * even + xp.sin(m1) * xp.sin(m2) * odd


@closed_form(fn.sin, fn.cos)
def _sin_cos(m1: Array, m2: Array, q1: Array, q2: Array, c: Array, *options: Options) -> Array:
    xp, (even, odd) = array_namespace(m1), _hyperbolic(q1, q2, c)
    return xp.sin(m1) * xp.cos(m2) * even - xp.cos(m1) * xp.sin(m2) * odd
