"""Static analysis of an expression of one variable: kinks, jumps, range, growth and parity.

`about(expr, "x")` combines the facts of the functions in the expression, by interval arithmetic and by
composing piecewise polynomials. It is conservative: None means unknown, as for a user's function.

>>> from netsor.lang import parse_expr
>>> found = about(parse_expr("relu(x)^3 + tanh(2*x)"), "x")
>>> found.kinks, found.jumps, found.growth.name
((0.0,), (), 'POLYNOMIAL')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from itertools import product
from math import inf, isfinite, isnan, log, prod
from typing import Any

import numpy as np

from netsor.lang import functions as fn
from netsor.lang.expr import Apply, Const, Expr, Ref, fold, subtrees
from netsor.lang.facts import Facts, Growth, growth_of
from netsor.lang.ops import Function
from netsor.lang.piecewise_polynomials import PiecewisePolynomial

Interval = tuple[float, float]
Places = tuple[float, ...] | None
# Coefficients of higher degrees lose digits in composition.
MOST_DEGREE = 64


@dataclass(frozen=True)
class About:
    """Properties of an expression of one variable, as in `Facts` of a function."""

    kinks: Places = None  # it is smooth elsewhere; None: unknown
    jumps: Places = None  # it is continuous elsewhere; None: unknown
    range: Interval = (-inf, inf)
    growth: Growth = Growth.UNKNOWN
    parity: int = 0
    pieces: PiecewisePolynomial | None = None  # its values at the knots may differ
    constant: bool = False  # whether the variable does not occur


@lru_cache(1024)
def about(expr: Expr, name: str) -> About:
    """Analyse an expression as a function of the variable `name`; other names are constants."""
    return about_parts(expr, name)[expr]


def about_parts(expr: Expr, name: str) -> dict[Expr, About]:
    """Analyse each subexpression as a function of the same variable."""
    facts: dict[Expr, About] = {}
    identity = _of_pieces(PiecewisePolynomial((), ((0.0, 1.0),)))

    def leaf(e: Ref | Const) -> About:
        return _number(e.value) if isinstance(e, Const) else identity if e.name == name else PARAMETER

    fold(expr, leaf, _applied, facts)
    return facts


def is_smooth_node(node: Apply) -> bool:
    """Whether the function at a node is smooth for all arguments."""
    match node:
        case Apply(op, (_, Const(power))) if op is fn.pow_:
            return power >= 0 and float(power).is_integer()
    return isinstance(node.op, Function) and node.op.about(node.options).is_smooth


def has_user_function(expr: Expr) -> bool:
    """Whether a user's function occurs in the expression."""
    return any(isinstance(n, Apply) and getattr(n.op, "user", False) for n in subtrees(expr))


PARAMETER = About((), (), growth=Growth.BOUNDED, parity=1, constant=True)


def _applied(node: Apply, args: tuple[About, ...]) -> About:
    """Analyse op(args) from the properties of its arguments."""
    if not isinstance(node.op, Function):
        return About()
    facts = node.op.about(node.options)
    if all(arg.constant for arg in args):
        return _constant(node, args)
    if node.op in ARITHMETIC:
        return ARITHMETIC[node.op](*args)
    return _unary(partial(node.op, **node.options), facts, args[0]) if len(args) == 1 else About()


def _constant(node: Apply, args: tuple[About, ...]) -> About:
    """Evaluate a function of constants: a number if all arguments are numbers, else an unknown constant."""
    values = [arg.pieces.pieces[0][0] for arg in args if arg.pieces]
    if len(values) < len(args) or not isinstance(node.op, Function) or node.op.user:
        return PARAMETER
    with np.errstate(all="ignore"):
        value = float(node.op(*values, **node.options))
    return _number(value) if isfinite(value) else About()


def _of_pieces(f: PiecewisePolynomial) -> About:
    """Read off the properties of a piecewise polynomial."""
    return About(f.kinks, f.jumps, f.range, growth_of(f), f.parity, f, not f.knots and f.degree == 0)


def _number(value: float) -> About:
    return _of_pieces(PiecewisePolynomial((), ((value,),)))


def _kept(f: PiecewisePolynomial) -> bool:
    """Whether a piecewise polynomial has few knots, a low degree and finite coefficients."""
    numbers = (*f.knots, *(c for p in f.pieces for c in p))
    return len(f.knots) <= 64 and f.degree <= MOST_DEGREE and all(map(isfinite, numbers))


# Functions of one argument.


def _unary(op: Callable[..., Any], facts: Facts, x: About) -> About:
    """Analyse f(x), where x is an expression."""
    if facts.pieces and x.pieces and facts.pieces.degree * x.pieces.degree <= MOST_DEGREE:
        composed = x.pieces.then(facts.pieces, op)
        if _kept(composed):
            return _of_pieces(composed)
    leaves_domain = x.range[0] < facts.domain[0] or x.range[1] > facts.domain[1]
    if leaves_domain or any(x.range[0] <= pole <= x.range[1] for pole in facts.poles or ()):
        return About()
    low, high = _image(op, facts, x.range)
    bounded = isfinite(low) and isfinite(high)
    return About(
        _through(facts.kinks, x, x.kinks),
        _through(facts.jumps, x, x.jumps),
        (low, high),
        Growth.BOUNDED if bounded else _composed_growth(facts.growth, x.growth),
        # f of an even x is even; f of an odd x has the parity of f, up to the sign.
        1 if x.parity == 1 else x.parity * x.parity * facts.parity,
    )


def _image(op: Callable[..., Any], facts: Facts, x: Interval) -> Interval:
    """Bounds of f on an interval: its end values if f is monotone, else its whole range."""
    if not facts.monotone:
        return facts.range
    ends = x if facts.monotone > 0 else (x[1], x[0])
    inside = [facts.domain[0] <= end <= facts.domain[1] and isfinite(end) for end in ends]
    low, high = (
        float(op(end)) if ok else bound for end, ok, bound in zip(ends, inside, facts.range, strict=True)
    )
    return low, high


def _through(places: Places, x: About, rough: Places) -> Places:
    """The kinks (or jumps) of f(x): those of x (`rough`), and where x crosses one of f (`places`)."""
    if places is None or rough is None:
        return None
    met = [place for place in places if x.range[0] <= place <= x.range[1]]
    if not met:
        return rough
    if x.pieces is None:
        return None
    return tuple(sorted({*rough, *(k for place in met for k in _crossings(x.pieces, place))}))


def _crossings(x: PiecewisePolynomial, place: float) -> Iterator[float]:
    """The points where x crosses, reaches or leaves a level: the jumps of step(x - level)."""
    # Both signs are needed, because step(0) has only one value.
    for f, at in ((x, place), (-x, -place)):
        yield from f.then(PiecewisePolynomial((at,), ((0.0,), (1.0,)))).knots


def _composed_growth(f: Growth, x: Growth) -> Growth:
    """The growth of an unbounded f(x)."""
    if x == Growth.BOUNDED:
        return Growth.BOUNDED if f < Growth.UNKNOWN else Growth.UNKNOWN
    if f <= Growth.POLYNOMIAL:
        return max(f, x) if f else Growth.BOUNDED
    # exp(linear) is exponential, but exp(polynomial) may break the paper's bound exp(C |x|^(2 - eps)).
    return f if x == Growth.LINEAR else Growth.UNKNOWN


# Arithmetic.


def _add(x: About, y: About) -> About:
    if x.pieces and y.pieces and _kept(total := x.pieces + y.pieces):
        return _of_pieces(total)
    low, high = x.range[0] + y.range[0], x.range[1] + y.range[1]
    same = x.parity if x.parity == y.parity else 0
    return About(
        _union(x.kinks, y.kinks), _union(x.jumps, y.jumps), (low, high), max(x.growth, y.growth), same
    )


def _neg(x: About) -> About:
    return _mul(x, _number(-1.0))


def _mul(x: About, y: About) -> About:
    if x.pieces and y.pieces and x.pieces.degree + y.pieces.degree <= MOST_DEGREE:
        total = x.pieces * y.pieces
        if _kept(total):
            return _of_pieces(total)
    # A bounded factor keeps the growth of the other; linear * linear is already polynomial.
    steep, flat = max(x.growth, y.growth), min(x.growth, y.growth)
    growth = max(steep, Growth.POLYNOMIAL) if flat > Growth.BOUNDED else steep
    kinks, jumps = _union(x.kinks, y.kinks), _union(x.jumps, y.jumps)
    return About(kinks, jumps, _corners(x.range, y.range), growth, x.parity * y.parity)


def _div(x: About, y: About) -> About:
    """x / y for y a number other than 0, an unknown constant, or a function bounded away from 0."""
    if y.constant and y.pieces:
        value = y.pieces.pieces[0][0]
        return _mul(x, _number(1 / value)) if value else About()
    if y.constant:
        return _mul(x, PARAMETER)
    low, high = y.range
    if low <= 0 <= high or y.growth == Growth.UNKNOWN:
        return About()
    ends = sorted((1 / low, 1 / high))  # 1/y is decreasing on each side of 0
    return _mul(x, About(y.kinks, y.jumps, (ends[0], ends[1]), Growth.BOUNDED, y.parity))


def _pow(x: About, y: About) -> About:
    """x^y: an integer power is a product, any other is smooth where its base is positive."""
    # a^y with a number a is exp(y log a).
    if not y.constant:
        base = x.pieces.pieces[0][0] if x.constant and x.pieces else 0.0
        return _unary(fn.exp, fn.exp.about(), _mul(y, _number(log(base)))) if base > 0 else About()
    power = y.pieces.pieces[0][0] if y.pieces else None
    if power is not None and power.is_integer() and 0 <= power <= MOST_DEGREE:
        whole = reduce(_mul, [x] * int(power), _number(1.0))
        return whole if power % 2 else replace(whole, range=(max(whole.range[0], 0.0), whole.range[1]))
    if x.range[0] <= 0 or power is None:
        return About()
    low, high = sorted(end**power for end in x.range)
    growth = Growth.BOUNDED if isfinite(high) else max(x.growth, Growth.POLYNOMIAL)
    return About(x.kinks, x.jumps, (low, high), growth, 1 if x.parity == 1 else 0)


def _maximum(x: About, y: About) -> About:
    """max(x, y). Its kinks, where x = y, are known for piecewise polynomials only."""
    if x.pieces and y.pieces and _kept(larger := x.pieces.larger(y.pieces)):
        return _of_pieces(larger)
    low, high = (max(a, b) for a, b in zip(x.range, y.range, strict=True))
    growth = Growth.BOUNDED if isfinite(low) and isfinite(high) else max(x.growth, y.growth)
    same = 1 if x.parity == y.parity == 1 else 0
    return About(None, _union(x.jumps, y.jumps), (low, high), growth, same)


def _union(a: Places, b: Places) -> Places:
    return None if a is None or b is None else tuple(sorted({*a, *b}))


def _corners(x: Interval, y: Interval) -> Interval:
    """Bounds of products of two intervals: the extremes are at the corners, and 0 * inf counts as 0."""
    values = [0.0 if isnan(prod(pair)) else prod(pair) for pair in product(x, y)]
    return min(values), max(values)


ARITHMETIC: Mapping[Any, Callable[..., About]] = {
    fn.add: _add,
    fn.sub: lambda x, y: _add(x, _neg(y)),
    fn.neg: _neg,
    fn.mul: _mul,
    fn.div: _div,
    fn.pow_: _pow,
    fn.maximum: _maximum,
    fn.minimum: lambda x, y: _neg(_maximum(_neg(x), _neg(y))),
}
