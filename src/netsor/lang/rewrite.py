"""Term rewriting: equations between expressions, applied from left to right.

A rule maps an expression to an equal one, or to None if its pattern does not match. The rules of a table are
tried in order; see F. Baader and T. Nipkow, Term Rewriting and All That (1998).

| rule           | from                | to        |
| -------------- | ------------------- | --------- |
| `zero_factor`  | 0 x, 0 / x, -0      | 0         |
| `zero_summand` | 0 + x, x - 0, 0 - x | x, x, -x  |
| `unit_factor`  | 1 x, x / 1, x^1     | x         |
| `folded`       | f(2, 3)             | its value |
| `undefined`    | f(x, inf), x / 0    | NaN       |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, subtrees
from netsor.lang.functions import add, div, mul, neg, pow_, sub
from netsor.lang.ops import Function

Rule = Callable[[Apply], Expr | None]
ZERO, ONE = Const(0.0), Const(1.0)


def at_head(e: Expr, rules: Sequence[Rule]) -> Expr:
    """Apply the first rule that matches the root of an expression; return it unchanged if none does."""
    if isinstance(e, Apply):
        for rule in rules:
            simpler = rule(e)
            if simpler is not None:
                return simpler
    return e


def rewritten(e: Expr, rules: Sequence[Rule]) -> Expr:
    """Apply one rule to each node of an expression, arguments first."""
    normal: dict[Expr, Expr] = {}
    for node in subtrees(e):
        if isinstance(node, Apply):
            args = tuple(normal[a] for a in node.args)
            normal[node] = at_head(Apply(node.op, args, node.attrs, node.pick), rules)
        else:
            normal[node] = node
    return normal[e]


def zero_factor(e: Apply) -> Expr | None:
    """0 x = 0 / x = -0 = 0."""
    match e:
        case Apply(op, (a, b)) if op is mul and ZERO in (a, b):
            return ZERO
        case Apply(op, (a, *_)) if a == ZERO and op in (div, neg):
            return ZERO
    return None


def zero_summand(e: Apply) -> Expr | None:
    """0 + x = x - 0 = x,  0 - x = -x."""
    match e:
        case Apply(op, (a, b)) if op is add and ZERO in (a, b):
            return b if a == ZERO else a
        case Apply(op, (a, b)) if op is sub and ZERO in (a, b):
            return a if b == ZERO else Apply(neg, (b,))
    return None


def unit_factor(e: Apply) -> Expr | None:
    """1 x = x / 1 = x^1 = x."""
    match e:
        case Apply(op, (a, b)) if b == ONE and op in (div, pow_):
            return a
        case Apply(op, (a, b)) if op is mul and ONE in (a, b):
            return b if a == ONE else a
    return None


def folded(e: Apply) -> Expr | None:
    """Evaluate a function of numbers; the result may be infinite or NaN."""
    if isinstance(e.op, Function) and all(isinstance(a, Const) for a in e.args):
        with np.errstate(all="ignore"):
            return Const(float(evaluate(e, {}).array))
    return None


def undefined(e: Apply) -> Expr | None:
    """An expression with an infinite argument or a division by 0 is NaN, so that 0 times it is not 0."""
    infinite = any(isinstance(a, Const) and not isfinite(a.value) for a in e.args)
    if infinite or (e.op is div and e.args[1] == ZERO):
        return Const(float("nan"))
    return None


ZEROS: tuple[Rule, ...] = (zero_summand, zero_factor)
SIMPLER: tuple[Rule, ...] = (undefined, folded, *ZEROS, unit_factor)
