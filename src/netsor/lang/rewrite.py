"""Term rewriting: equations between expressions, applied from left to right.

A rule maps an expression to an equal one, or to None if its pattern does not match. The rules of a table are
tried in order; see F. Baader and T. Nipkow, Term Rewriting and All That (1998).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, transform
from netsor.lang.functions import add, div, mul, neg, pow_, sub
from netsor.lang.ops import Function

Rule = Callable[[Apply], Expr | None]
ZERO, ONE = Const(0.0), Const(1.0)


def at_head(e: Expr, rules: Sequence[Rule]) -> Expr:
    """Apply the first rule that matches the root of an expression; return it unchanged if none does."""
    results = (rule(e) for rule in rules if isinstance(e, Apply))
    return next((simpler for simpler in results if simpler is not None), e)


def rewritten(e: Expr, rules: Sequence[Rule]) -> Expr:
    """Apply one rule to each node of an expression, arguments first."""
    return transform(e, head=lambda node: at_head(node, rules))


def zero_factor(e: Apply) -> Expr | None:
    """0 x = 0 / x = -0 = 0."""
    zero = ZERO in e.args if e.op is mul else e.op in (div, neg) and e.args[0] == ZERO
    return ZERO if zero else None


def zero_summand(e: Apply) -> Expr | None:
    """0 + x = x - 0 = x,  0 - x = -x."""
    if e.op not in (add, sub) or ZERO not in e.args:
        return None
    a, b = e.args
    if b == ZERO:
        return a
    return b if e.op is add else Apply(neg, (b,))


def unit_factor(e: Apply) -> Expr | None:
    """1 x = x / 1 = x^1 = x."""
    if e.op in (mul, div, pow_) and e.args[1] == ONE:
        return e.args[0]
    return e.args[1] if e.op is mul and e.args[0] == ONE else None


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
