"""Expressions of one variable that have closed forms: sums, products and powers of functions that do.

relu(x)^3 is a piecewise polynomial; x gaussian(x) and sin(2 x + 1) step(x) are sums of terms.
"""

from __future__ import annotations

import cmath
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter

import numpy as np
from numpy.polynomial import polynomial as poly

from netsor.lang import functions as fn
from netsor.lang.analysis import About, about_parts
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.exp_terms import ExpTerm, ExpTerms, InnerPiece, terms_of_pieces
from netsor.lang.expr import Apply, Const, Expr, Ref, count_terms, refs
from netsor.lang.facts import Facts
from netsor.lang.ops import Function
from netsor.lang.show import show_expr

MOST_TERMS = 24  # with more terms, a Hermite series is faster and more exact


def recognised(body: Expr, name: str) -> tuple[Function, dict] | None:
    """Return the function that an expression of one variable equals, with its options, or None.

    If no registered function equals it, return a new one with the facts that are known about it.

    >>> from netsor.lang import parse_expr
    >>> recognised(parse_expr("relu(x)^3"), "x")
    (<function piecewise>, {'knots': (0.0,), 'pieces': ((0.0,), (0.0, 0.0, 0.0, 1.0))})
    """
    x = Ref(name)
    match body:
        case Ref() if body == x:
            return fn.identity, {}
        case Apply(Function() as op, (argument,), _, None) if argument == x and not op.user and not op.infix:
            return op, {**op.defaults, **body.options}
    if not set(refs(body)) <= {name} or count_terms(body) > 10_000:  # the text is its name
        return None
    parts = about_parts(body, name)
    traits, terms = parts[body], _terms_of(parts)[body]
    if terms is None or len(terms) > MOST_TERMS or any(len(t.coefs) > 25 for t in terms):
        return None
    if not _agrees_at_jumps(body, name, parts):
        return None
    f = traits.pieces
    if f and not f.knots:
        return fn.polynomial, {"coefs": f.pieces[0]}
    if f:
        return fn.piecewise, {"knots": f.knots, "pieces": f.pieces}
    facts = Facts(None, traits.kinks, traits.jumps, range=traits.range, growth=traits.growth, terms=terms)
    return Function(show_expr(body), lambda x: _value(body, name, x), facts=facts), {}


def _value(body: Expr, name: str, x: np.ndarray) -> np.ndarray:
    return evaluate(body, {name: Block(x, 0, True)}).array


def _agrees_at_jumps(body: Expr, name: str, parts: Mapping[Expr, About]) -> bool:
    """Return whether the expression takes the value from the left wherever a part jumps, as `piecewise`.

    The square of sign does not: it is 1, except for the value 0 at 0.
    """
    jumps = {k for part in parts.values() for k in part.jumps or ()}
    at = np.asarray(sorted(jumps))
    left = np.nextafter(at, -np.inf)
    return bool(np.allclose(_value(body, name, at), _value(body, name, left), rtol=1e-9, atol=1e-12))


def _terms_of(parts: Mapping[Expr, About]) -> dict[Expr, ExpTerms | None]:
    """Return each part of an expression as a sum of terms, or None; arguments come before their users."""
    terms: dict[Expr, ExpTerms | None] = {}
    for node, traits in parts.items():
        terms[node] = terms_of_pieces(traits.pieces) if traits.pieces else _composed(node, parts, terms)
    return terms


def _composed(
    node: Expr, parts: Mapping[Expr, About], terms_by_node: dict[Expr, ExpTerms | None]
) -> ExpTerms | None:
    match node:
        case Apply(op, (x, y)) if op in (fn.add, fn.sub, fn.mul):
            s, t = terms_by_node[x], terms_by_node[y]
            if s is None or t is None:
                return None
            if op is fn.mul:
                return _product(s, t)
            total = (*s, *(t if op is fn.add else _scaled(t, -1.0)))
            return total if len(total) <= 4 * MOST_TERMS else None
        case Apply(op, (x, Const(value))) if op is fn.div and value and (s := terms_by_node[x]):
            return _scaled(s, 1 / value)
        case Apply(op, (x, Const(power))) if (
            op is fn.pow_ and power in range(1, 9) and (s := terms_by_node[x])
        ):
            return _power(s, int(power))
        case Apply(op, (x,)) if op is fn.neg and (s := terms_by_node[x]):
            return _scaled(s, -1.0)
        case Apply(Function() as op, (x,)):
            terms, pieces = op.about(node.options).terms, parts[x].pieces
            if terms and pieces and pieces.affine:
                return tuple(_substituted(term, *pieces.affine) for term in terms)
    return None


def _scaled(terms: ExpTerms, factor: float) -> ExpTerms:
    return tuple(t.scaled(factor) for t in terms)


def _product(s: ExpTerms, t: ExpTerms) -> ExpTerms | None:
    """Return all products of two terms, or None if one of the products is no term."""
    parts: list[ExpTerm | InnerPiece] = []
    for a in s:
        for b in t:
            both = _pair(a, b)
            if both is None or len(parts) > 4 * MOST_TERMS:
                return None
            parts += both
    return tuple(t for t in parts if any(t.coefs))


def _power(terms: ExpTerms, n: int) -> ExpTerms | None:
    lower = _power(terms, n - 1) if n > 1 else None
    return terms if n == 1 else lower and _product(terms, lower)


def _pair(a: ExpTerm | InnerPiece, b: ExpTerm | InnerPiece) -> list[ExpTerm] | None:
    """Return the product of two terms as a sum of terms; Re(A) Re(B) = Re(A B + A conj(B)) / 2."""
    if isinstance(a, InnerPiece) or isinstance(b, InnerPiece):
        left, right = (x.halves() if isinstance(x, InnerPiece) else [x] for x in (a, b))
        return _joined([_pair(x, y) for x in left for y in right])
    if a.is_complex and b.is_complex:
        return _joined([_times(a.scaled(0.5), x) for x in (b, b.conjugate())])
    return _times(a, b)


def _joined(parts: list[list[ExpTerm] | None]) -> list[ExpTerm] | None:
    return None if None in parts else [term for part in parts for term in part or ()]


def _times(a: ExpTerm, b: ExpTerm) -> list[ExpTerm] | None:
    """Multiply two terms: polynomials and exponentials multiply, and two sharp indicators intersect.

    The intersection is a half line, an interval (a difference of half lines) or empty. Return None if one of
    two indicators has noise.
    """
    whole = ExpTerm(_plain(poly.polymul(a.coefs, b.coefs)), a.rate + b.rate, bend=a.bend + b.bend)
    if a.knot is None or b.knot is None:
        edge = a if b.knot is None else b
        return [replace(whole, knot=edge.knot, noise=edge.noise, side=edge.side, tie=edge.tie)]
    if a.noise or b.noise:
        return None
    if a.side == b.side:
        _, edge = max(((t.side * knot, t) for t, knot in ((a, a.knot), (b, b.knot))), key=itemgetter(0))
        return [replace(whole, knot=edge.knot, side=edge.side, tie=edge.tie)]
    (low, first), (high, last) = ((a.knot, a), (b.knot, b)) if a.side == 1 else ((b.knot, b), (a.knot, a))
    if low >= high:
        return []
    return [replace(whole, knot=low, tie=first.tie), replace(whole, knot=high, tie=1 - last.tie).scaled(-1.0)]


def _plain(coefs: np.ndarray) -> tuple[complex, ...]:
    return tuple(c.item() for c in coefs)


def _substituted(term: ExpTerm | InnerPiece, slope: float, shift: float) -> ExpTerm | InnerPiece:
    """Return the term at slope x + shift, as a term of x."""
    coefs = _plain(poly.Polynomial(term.coefs)(poly.Polynomial([shift, slope])).coef)
    if isinstance(term, InnerPiece):
        low, high = sorted((end - shift) / slope for end in (term.low, term.high))
        return InnerPiece(coefs, low, high)
    factor = cmath.exp(term.rate * shift - term.bend * shift**2)
    return ExpTerm(
        coefs,
        term.rate * slope - 2 * term.bend * slope * shift,
        None if term.knot is None else (term.knot - shift) / slope + 0.0,
        term.noise / slope**2,
        term.side if slope > 0 else -term.side,
        term.tie,
        term.bend * slope**2,
    ).scaled(factor if term.is_complex else factor.real)
