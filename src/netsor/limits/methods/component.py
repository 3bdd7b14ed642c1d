"""Atoms whose expectation is asked for, and what is known of them before any number is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from netsor.expect.closed.bodies import recognised
from netsor.expect.quadrature.kinks import find_kinks
from netsor.lang.analysis import about
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, refs
from netsor.lang.functions import pow_
from netsor.lang.ops import Function
from netsor.lang.show import shown_short
from netsor.limits.recursion.covariances import cov, variance
from netsor.limits.recursion.forms import HOLE, Atom
from netsor.limits.recursion.pairs import Pair, PerInput
from netsor.limits.recursion.recorder import Asking, Recorder
from netsor.limits.recursion.values import OWN, mean

__all__ = ["Component", "callable_of", "kinks_of", "known_function", "name_of", "statistics"]

Array = Any
LONGEST = 1000  # characters of an expression in a plan
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Component:
    """A product of atoms of the left side and of the right side that share families."""

    left: tuple[Atom, ...]
    right: tuple[Atom, ...]
    pair: Pair

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        return (*self.left, *self.right)

    @property
    def is_unary(self) -> bool:
        """Whether each atom is a function of one form."""
        return all(atom.unary for atom in self.atoms)

    @cached_property
    def what(self) -> str:
        """The expectation in words."""
        if self.is_unary and len(self.atoms) <= 2:
            return f"E[{' '.join(map(name_of, self.atoms))}]"
        shown = " * ".join(shown_short(atom.expr, LONGEST) for atom in self.atoms[:3])
        return f"E[{shown}{' ...' if len(self.atoms) > 3 else ''}]"

    @cached_property
    def variables(self) -> tuple[tuple[int, Expr], ...]:
        """The distinct forms of the left (0) and of the right (1) side."""
        sides = ((0, self.left), (1, self.right))
        return tuple(dict.fromkeys((side, form) for side, atoms in sides for a in atoms for form in a.forms))

    def mean(self, side: int, form: Expr) -> Asking:
        """E of a form, as a block."""
        return self.pair.side(side, (yield mean, form))

    def cov(self, one: tuple[int, Expr], two: tuple[int, Expr]) -> Asking:
        """The covariance of two forms of either side as a block; None is a structural zero."""
        (side, e), (other, f) = one, two
        if side > other:
            (side, e), (other, f) = two, one
        if side != other:
            return (yield cov, e, f, self.pair)
        if e == f:
            return self.pair.side(side, (yield variance, e))
        found = yield cov, e, f, OWN
        if found is None:
            return None
        return self.pair.side(side, PerInput(found.array, max(found.left, found.right)))


@cache
def known_function(body: Expr) -> tuple[Function, dict] | None:
    """The function with a closed form that the body of an atom is, with its options."""
    return recognised(body, HOLE.name)


def name_of(atom: Atom) -> str:
    match atom.body:
        case Apply(op, (_, Const(power))) if op is pow_:
            return f"{op.name} {power:g}"
        case Apply(op):
            return op.name
    return "x"


def callable_of(atom: Atom, known: Mapping[str, Block], rank: int) -> Callable[[Array], Array]:
    """The atom as a function of arrays (repeats, inputs, index..., points), with its constants known."""

    def fn(x: Array) -> Array:
        return evaluate(atom.body, {**known, HOLE.name: Block(x, rank, True)}).array

    return fn


def kinks_of(r: Recorder, atom: Atom) -> tuple[float, ...]:
    """Where a function without parameters is not smooth; found once for each function."""
    if set(refs(atom.body)) != {HOLE.name}:
        return ()
    if atom.body not in r.forms.kinks:
        known = about(atom.body, HOLE.name).kinks
        r.forms.kinks[atom.body] = find_kinks(callable_of(atom, {}, 0)) if known is None else known
    return r.forms.kinks[atom.body]


def statistics(r: Recorder, atom: Atom) -> Asking:
    """Mean and variance of the form of an atom, with the index axes of the atom."""
    (form,), rank = atom.forms, r.rank(atom.expr)
    m: PerInput = yield mean, form
    q: PerInput = yield variance, form
    return m.widened(rank), q.widened(rank)
