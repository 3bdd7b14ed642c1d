"""What is known of an expression of one variable, from what is known of the functions that it is made of.

`about(expr, "x")` is static: no value is computed. It errs on the safe side: None says that nothing is known,
as of a user's function.

>>> from netsor.lang import parse_expr
>>> found = about(parse_expr("relu(x)^3 + tanh(2*x)"), "x")
>>> found.kinks, found.jumps, found.growth.name
((0.0,), (), 'POLYNOMIAL')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from math import inf, isfinite, isnan, log, prod
from typing import Any

import numpy as np

from netsor.lang import functions as fn
from netsor.lang.expr import Apply, Const, Expr, Ref, subtrees
from netsor.lang.facts import Facts, Growth
from netsor.lang.ops import Function
from netsor.lang.pieces import Pieces

__all__ = ["About", "about", "about_parts", "has_user_function", "is_smooth", "is_smooth_node"]

Interval = tuple[float, float]
Places = tuple[float, ...] | None
LINE = (-inf, inf)
MOST_KNOTS, MOST_DEGREE = 64, 64  # of piecewise polynomials that are kept


@dataclass(frozen=True)
class About:
    """What is known of an expression of one variable.

    kinks      the places outside which it is smooth; None if they are not known
    jumps      the places outside which it is continuous; None if they are not known
    range      bounds of its values
    growth     how fast it may grow
    parity     1 if it is even, -1 if it is odd, else 0
    pieces     the expression as a piecewise polynomial, if it is one (but for values at the knots)
    constant   whether the variable does not occur
    """

    kinks: Places = None
    jumps: Places = None
    range: Interval = LINE
    growth: Growth = Growth.UNKNOWN
    parity: int = 0
    pieces: Pieces | None = None
    constant: bool = False

    @property
    def is_smooth(self) -> bool:
        """Whether it is known to have no kinks."""
        return self.kinks == ()


@lru_cache(1024)
def about(expr: Expr, name: str) -> About:
    """What is known of the expression as a function of the variable `name`; other names are constants."""
    return about_parts(expr, name)[expr]


def about_parts(expr: Expr, name: str) -> dict[Expr, About]:
    """The same for all parts of the expression."""
    found: dict[Expr, About] = {}
    for node in subtrees(expr):  # arguments come before the node that uses them
        if isinstance(node, Ref):
            found[node] = _of_pieces(IDENTITY) if node.name == name else PARAMETER
        elif isinstance(node, Const):
            found[node] = _of_pieces(Pieces.constant(node.value))
        else:
            found[node] = _applied(node, tuple(found[arg] for arg in node.args))
    return found


def is_smooth(expr: Expr) -> bool:
    """Whether an expression of any number of variables is made of smooth functions alone."""
    return all(is_smooth_node(node) for node in subtrees(expr) if isinstance(node, Apply))


def is_smooth_node(node: Apply) -> bool:
    """Whether the function of a node is, for any arguments."""
    match node:
        case Apply(op, (_, Const(power))) if op is fn.pow_:
            return power >= 0 and float(power).is_integer()
    return isinstance(node.op, Function) and node.op.about(node.options).is_smooth


def has_user_function(expr: Expr) -> bool:
    """Whether a part of the expression is a function that only its user knows."""
    return any(isinstance(n, Apply) and getattr(n.op, "user", False) for n in subtrees(expr))


IDENTITY = Pieces((), ((0.0, 1.0),))
PARAMETER = About((), (), growth=Growth.BOUNDED, parity=1, constant=True)


def _applied(node: Apply, args: tuple[About, ...]) -> About:
    if not isinstance(node.op, Function):
        return About()
    facts = node.op.about(node.options)
    if all(arg.constant for arg in args):
        return _constant(node, args)
    if node.op in ARITHMETIC:
        return ARITHMETIC[node.op](*args)
    return _unary(partial(node.op, **node.options), facts, args[0]) if len(args) == 1 else About()


def _constant(node: Apply, args: tuple[About, ...]) -> About:
    """A function of numbers is a number."""
    values = [arg.pieces.pieces[0][0] for arg in args if arg.pieces]
    if len(values) < len(args) or not isinstance(node.op, Function) or node.op.user:
        return PARAMETER
    with np.errstate(all="ignore"):
        value = float(node.op(*values, **node.options))
    return _of_pieces(Pieces.constant(value)) if isfinite(value) else About()


def _of_pieces(f: Pieces) -> About:
    growth = Growth(min(max(len(p) for p in (f.pieces[0], f.pieces[-1])) - 1, 2))
    return About(f.kinks, f.jumps, f.range, growth, f.parity, f, not f.knots and f.degree == 0)


def _kept(f: Pieces) -> bool:
    """Whether a piecewise polynomial is simple and finite enough to be kept."""
    numbers = (*f.knots, *(c for p in f.pieces for c in p))
    return len(f.knots) <= MOST_KNOTS and f.degree <= MOST_DEGREE and all(map(isfinite, numbers))


# Functions of one argument.


def _unary(op: Callable[..., Any], facts: Facts, x: About) -> About:
    """f(x) where x is an expression."""
    if facts.pieces and x.pieces and facts.pieces.degree * x.pieces.degree <= MOST_DEGREE:
        composed = x.pieces.then(facts.pieces, op)
        if _kept(composed):
            return _of_pieces(composed)
    if _leaves(x.range, facts.domain) or any(x.range[0] <= pole <= x.range[1] for pole in facts.poles or ()):
        return About()
    low, high = _image(op, facts, x.range)
    bounded = isfinite(low) and isfinite(high)
    return About(
        _through(facts.kinks, x, x.kinks),
        _through(facts.jumps, x, x.jumps),
        (low, high),
        Growth.BOUNDED if bounded else _composed_growth(facts.growth, x.growth),
        1 if x.parity == 1 else x.parity * x.parity * facts.parity,
    )


def _leaves(x: Interval, domain: Interval) -> bool:
    return x[0] < domain[0] or x[1] > domain[1]


def _image(op: Callable[..., Any], facts: Facts, x: Interval) -> Interval:
    """Bounds of f on an interval."""
    if not facts.monotone:
        return facts.range
    ends = x if facts.monotone > 0 else (x[1], x[0])
    inside = [facts.domain[0] <= end <= facts.domain[1] and isfinite(end) for end in ends]
    low, high = (
        float(op(end)) if ok else bound for end, ok, bound in zip(ends, inside, facts.range, strict=True)
    )
    return low, high


def _through(places: Places, x: About, own: Places) -> Places:
    """Where f(x) is rough: where x is, and where x passes a place at which f is."""
    if places is None or own is None:
        return None
    met = [place for place in places if x.range[0] <= place <= x.range[1]]
    if not met:
        return own
    if x.pieces is None:
        return None
    return tuple(sorted({*own, *(k for place in met for k in _crossings(x.pieces, place))}))


def _crossings(x: Pieces, place: float) -> Iterator[float]:
    """Where x goes above a number or below it, or stays there."""
    for f, at in ((x, place), (-x, -place)):
        yield from f.then(Pieces((at,), ((0.0,), (1.0,)))).knots


def _composed_growth(f: Growth, x: Growth) -> Growth:
    """The growth of f(x), if it has no bound."""
    if x == Growth.BOUNDED:
        return Growth.BOUNDED if f < Growth.UNKNOWN else Growth.UNKNOWN
    if f <= Growth.POLYNOMIAL:
        return max(f, x) if f else Growth.BOUNDED
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
    if x.pieces:
        return _of_pieces(-x.pieces)
    return About(x.kinks, x.jumps, (-x.range[1], -x.range[0]), x.growth, x.parity)


def _mul(x: About, y: About) -> About:
    if x.pieces and y.pieces and x.pieces.degree + y.pieces.degree <= MOST_DEGREE:
        total = x.pieces * y.pieces
        if _kept(total):
            return _of_pieces(total)
    steep, flat = max(x.growth, y.growth), min(x.growth, y.growth)
    growth = max(steep, Growth.POLYNOMIAL) if flat > Growth.BOUNDED else steep
    kinks, jumps = _union(x.kinks, y.kinks), _union(x.jumps, y.jumps)
    return About(kinks, jumps, _corners(x.range, y.range), growth, x.parity * y.parity)


def _scaled(x: About, factor: float) -> About:
    return _mul(x, _of_pieces(Pieces.constant(factor)))


def _div(x: About, y: About) -> About:
    """By a number that is not 0, a parameter, or what keeps away from 0."""
    if y.constant and y.pieces:
        value = y.pieces.pieces[0][0]
        return _scaled(x, 1 / value) if value else About()
    if y.constant:
        return _mul(x, PARAMETER)
    low, high = y.range
    if low <= 0 <= high or y.growth == Growth.UNKNOWN:
        return About()
    ends = sorted((1 / low, 1 / high))
    return _mul(x, About(y.kinks, y.jumps, (ends[0], ends[1]), Growth.BOUNDED, y.parity))


def _pow(x: About, y: About) -> About:
    """A whole power is a product; other powers of what keeps above 0 are smooth functions of it."""
    if not y.constant:
        base = x.pieces.pieces[0][0] if x.constant and x.pieces else 0.0
        return _unary(fn.exp, fn.exp.about(), _scaled(y, log(base))) if base > 0 else About()
    power = y.pieces.pieces[0][0] if y.pieces else None
    if power is not None and power.is_integer() and 0 <= power <= MOST_DEGREE:
        return _whole_power(x, int(power))
    if x.range[0] <= 0 or power is None:
        return About()
    low, high = sorted(end**power for end in x.range)
    growth = Growth.BOUNDED if isfinite(high) else max(x.growth, Growth.POLYNOMIAL)
    return About(x.kinks, x.jumps, (low, high), growth, 1 if x.parity == 1 else 0)


def _whole_power(x: About, n: int) -> About:
    if x.pieces and x.pieces.degree * n <= MOST_DEGREE:
        return _of_pieces(x.pieces**n)
    out = _of_pieces(Pieces.constant(1.0))
    for _ in range(n):
        out = _mul(out, x)
    low, high = out.range
    return About(
        out.kinks, out.jumps, (max(low, 0.0), high) if n % 2 == 0 else out.range, out.growth, out.parity
    )


def _maximum(x: About, y: About) -> About:
    if x.pieces and y.pieces and _kept(larger := x.pieces.larger(y.pieces)):
        return _of_pieces(larger)
    low, high = (max(a, b) for a, b in zip(x.range, y.range, strict=True))
    growth = Growth.BOUNDED if isfinite(low) and isfinite(high) else max(x.growth, y.growth)
    same = 1 if x.parity == y.parity == 1 else 0
    return About(None, _union(x.jumps, y.jumps), (low, high), growth, same)


def _union(a: Places, b: Places) -> Places:
    return None if a is None or b is None else tuple(sorted({*a, *b}))


def _corners(x: Interval, y: Interval) -> Interval:
    """Bounds of products; 0 times infinity is 0."""
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
