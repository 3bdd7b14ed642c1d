"""Masks outside functions: f(m h) = m f(h) + (1 - m) f(0), where m = step(g) is 0 or 1.

This holds for every function, and what is left are products of functions of g and of functions of h, which
are independent: dropout in front of an activation has the closed forms of the activation.
"""

from __future__ import annotations

from math import isfinite

import numpy as np

from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, refs, subtrees, transform
from netsor.lang.functions import add, div, mul, neg, step, sub
from netsor.lang.ops import Function
from netsor.lang.program import Input, Normal, Program

__all__ = ["masks_of", "masks_outside"]

LINEAR = (add, sub, neg, mul)  # products of masks and functions are multiplied out as they are
MOST_MASKS = 3  # in one function: each doubles the number of its terms
ZERO, ONE = Const(0.0), Const(1.0)


def masks_of(program: Program) -> frozenset[Expr]:
    """All steps of inputs that are drawn by themselves."""
    nodes = (node for expr in program.expressions() for node in subtrees(expr))
    return frozenset(e for e in nodes if isinstance(e, Apply) and e.op is step and _is_drawn(e, program))


def _is_drawn(e: Expr, program: Program) -> bool:
    sources = [program.definitions.get(name) for name in refs(e)]
    return bool(sources) and all(isinstance(s, Input) and isinstance(s.law, Normal) for s in sources)


def masks_outside(expr: Expr, masks: frozenset[Expr]) -> Expr:
    """The expression with masks in front of the functions that they stand in."""
    if not masks:
        return expr
    done: dict[Expr, Expr] = {}
    for node in subtrees(expr):
        if isinstance(node, Apply):
            made = Apply(node.op, tuple(done[a] for a in node.args), node.attrs, node.pick)
            inside = _inside(made, masks)
            done[node] = _without(made, inside) if len(inside) <= MOST_MASKS else made
        else:
            done[node] = node
    return done[expr]


def _without(expr: Expr, masks: list[Expr]) -> Expr:
    """m f(1) + (1 - m) f(0) of the first mask m, with the other masks of either part in front of it, too."""
    if not masks:
        return expr
    mask, rest = masks[0], masks[1:]
    on, off = (_simplified(transform(expr, lambda ref: ref, {mask: value})) for value in (ONE, ZERO))
    if on is None or off is None or set(refs(mask)) & {*refs(on), *refs(off)}:
        return _without(expr, rest)
    kept = Apply(mul, (mask, _without(on, rest)))
    if off == ZERO:
        return kept
    return Apply(add, (kept, Apply(mul, (Apply(sub, (ONE, mask)), _without(off, rest)))))


def _inside(expr: Apply, masks: frozenset[Expr]) -> list[Expr]:
    """The masks in a function of numbers, with nothing but such functions between."""
    if not isinstance(expr.op, Function) or expr.op in LINEAR:
        return []
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    todo = list(expr.args[1:] if expr.op is div else expr.args)
    while todo:
        e = todo.pop()
        if e in masks:
            found[e] = None
        elif isinstance(e, Apply) and isinstance(e.op, Function) and e not in seen:
            seen.add(e)
            todo += e.args
    return list(found)


def _simplified(expr: Expr) -> Expr | None:
    """Without what numbers make superfluous; None if a number in it is not finite."""
    done: dict[Expr, Expr] = {}
    for node in subtrees(expr):
        made = _simpler(node, tuple(done[a] for a in node.args)) if isinstance(node, Apply) else node
        if isinstance(made, Const) and not isfinite(made.value):
            return None
        done[node] = made
    return done[expr]


def _simpler(node: Apply, args: tuple[Expr, ...]) -> Expr:
    made = Apply(node.op, args, node.attrs, node.pick)
    if isinstance(node.op, Function) and all(isinstance(a, Const) for a in args):
        with np.errstate(all="ignore"):
            return Const(float(evaluate(made, {}).array))
    match node.op, args:
        case op, (a, b) if op is mul and ZERO in (a, b):
            return ZERO
        case op, (a, b) if op is mul and ONE in (a, b):
            return b if a == ONE else a
        case op, (a, b) if op is add and ZERO in (a, b):
            return b if a == ZERO else a
    return made
