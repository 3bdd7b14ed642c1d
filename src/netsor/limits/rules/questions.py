"""Questions about expressions with remembered answers: recursion over expressions without Python's stack."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import Any

from netsor.lang.expr import Apply, Expr

Answering = Generator[Expr, Any, Any]  # yields the subexpressions whose answers it needs


def of_parts(rule: Callable[..., Generator[Expr, Any, Any]]) -> Callable[[Any, Expr], Any]:
    """Make a method of a recursive question; the rule yields subexpressions and receives their answers."""
    name = rule.__name__

    @wraps(rule)
    def ask(self: Any, expr: Expr) -> Any:
        answers = self.answers.setdefault(name, {})
        if expr in answers:
            return answers[expr]
        path, answer = [(expr, rule(self, expr))], None
        while path:
            asked, steps = path[-1]
            try:
                wanted = steps.send(answer)
            except StopIteration as done:
                answer = answers[asked] = done.value
                path.pop()
                continue
            if wanted in answers:  # look again at every step: another thread may have added the answer
                answer = answers[wanted]
            else:
                answer = None
                path.append((wanted, rule(self, wanted)))
        return answer

    return ask


def remembered(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Make a method of a question about an expression or an atom that asks no other question of its kind."""

    @wraps(rule)
    def ask(self: Any, expr: Any) -> Any:
        answers = self.answers.setdefault(rule.__name__, {})
        if expr not in answers:
            answers[expr] = rule(self, expr)
        return answers[expr]

    return ask


def args_of(expr: Expr) -> tuple[Expr, ...]:
    return expr.args if isinstance(expr, Apply) else ()


def all_of(exprs: tuple[Expr, ...]) -> Answering:
    """Ask for all expressions until one answer is no."""
    for expr in exprs:
        if not (yield expr):
            return False
    return True
