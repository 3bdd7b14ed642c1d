"""A product of atoms whose expectation is asked for, and what the program says about its functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from netsor.expect.closed.recognition import recognised
from netsor.expect.quadrature.kinks import find_kinks
from netsor.lang.analysis import about
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, refs
from netsor.lang.functions import pow_
from netsor.lang.ops import Function
from netsor.lang.show import shown_short
from netsor.limits.rules.atoms import HOLE, Atom
from netsor.limits.rules.lincomb import cov, mean, variance
from netsor.limits.rules.moment import OWN
from netsor.limits.rules.pairs import Pair, PerInput, PerPair
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.rules.setting import Setting

Array = Any
Variable = tuple[int, Expr]  # the side (0 or 1) and the form
Integral = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Component:
    """A product of atoms of the left and of the right input that share families, so it does not factor."""

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
        """The expectation as text, for plans and error messages."""
        if self.is_unary and len(self.atoms) <= 2:
            return f"E[{' '.join(map(name_of, self.atoms))}]"
        shown = " * ".join(shown_short(atom.expr, 1000) for atom in self.atoms[:3])
        return f"E[{shown}{' ...' if len(self.atoms) > 3 else ''}]"

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        """The distinct forms of the left (0) and of the right (1) input."""
        sides = ((0, self.left), (1, self.right))
        return tuple(dict.fromkeys((side, form) for side, atoms in sides for a in atoms for form in a.forms))

    def mean(self, side: int, form: Expr) -> Asking:
        """Return E[form] as a block over the pair."""
        return self.pair.side(side, (yield mean, form))

    def cov(self, one: Variable, two: Variable) -> Asking:
        """Return the covariance of two forms of either side as a block; None is a structural zero."""
        (side, e), (other, f) = one, two
        # `Pair` has its left input first; the covariance is symmetric.
        if side > other:
            (side, e), (other, f) = two, one
        if side != other:
            return (yield cov, e, f, self.pair)
        if e == f:
            return self.pair.side(side, (yield variance, e))
        block = yield cov, e, f, OWN
        return None if block is None else self.pair.side(side, block.per_input)


class Method(ABC):
    """A way to compute the expectation of a product of atoms.

    cost         approximate number of multiply-adds per entry
    otherwise    what the method falls back to for values on which it fails
    all_members  whether it needs covariances between all index entries, not only between equal ones
    """

    name: str
    cost: int
    otherwise = ""
    all_members = False

    @abstractmethod
    def applies(self, x: Setting, c: Component) -> bool:
        """Return whether the method computes this expectation, from the program and the input shapes."""

    @abstractmethod
    def value(self, r: Recorder, c: Component) -> Asking:
        """Return the block of the expectation, or None if the two sides turn out to be independent."""


@cache
def known_function(body: Expr) -> tuple[Function, dict] | None:
    """Return the registered function that the body of an atom equals, and its options; or None."""
    return recognised(body, HOLE.name)


def name_of(atom: Atom) -> str:
    match atom.body:
        case Apply(op, (_, Const(power))) if op is pow_:
            return f"{op.name} {power:g}"
        case Apply(op):
            return op.name
    return "x"


def callable_of(atom: Atom, constants: Mapping[str, Block], rank: int) -> Callable[[Array], Array]:
    """Return the atom as a function of arrays (repeats, inputs, index..., points), given its constants."""

    def fn(x: Array) -> Array:
        return evaluate(atom.body, {**constants, HOLE.name: Block(x, rank, True)}).array

    return fn


def kinks_of(r: Recorder, atom: Atom) -> tuple[float, ...]:
    """Return where a function is not smooth; a search runs once per function if no fact says it."""
    # With constants inside, the kinks may differ from input to input, so none is reported.
    if set(refs(atom.body)) != {HOLE.name}:
        return ()
    if atom.body not in r.forms.kinks:
        kinks = about(atom.body, HOLE.name).kinks
        r.forms.kinks[atom.body] = find_kinks(callable_of(atom, {}, 0)) if kinks is None else kinks
    return r.forms.kinks[atom.body]


def statistics(r: Recorder, atom: Atom) -> Asking:
    """Return mean and variance of the form of an atom, with as many index axes as the atom has."""
    (form,), rank = atom.forms, r.rank(atom.expr)
    m: PerInput = yield mean, form
    q: PerInput = yield variance, form
    return m.widened(rank), q.widened(rank)


def over_entries(
    r: Recorder, c: Component, variables: Sequence[Variable], method: str, integral: Integral
) -> Asking:
    """Record `integral(mean, cov) -> (value, error)` at the means and covariances of the variables.

    The integral receives mean `(entries..., d)` and cov `(entries..., d, d)` for d variables.
    """
    blocks: list[PerPair] = []
    places: list[tuple[int, ...]] = []
    for i, (side, form) in enumerate(variables):
        blocks.append((yield from c.mean(side, form)))
        places.append((i,))
        for j in range(i + 1):
            covariance = yield from c.cov(variables[i], variables[j])
            if covariance is not None:
                blocks.append(covariance)
                places.append((i, j))
    ranks = max(b.left for b in blocks), max(b.right for b in blocks)
    arrays = tuple(b.ranked(*ranks) for b in blocks)
    shape, d = np.broadcast_shapes(*(a.shape for a in arrays)), len(variables)

    def total(*values: Any) -> tuple[np.ndarray, np.ndarray]:
        # Covariances that are zero by structure have no block: their entries stay 0.
        entries = np.broadcast_shapes(*(np.shape(value) for value in values))
        mean, cov = np.zeros((*entries, d)), np.zeros((*entries, d, d))
        for place, value in zip(places, values, strict=True):
            (mean if len(place) == 1 else cov)[(..., *place)] = np.asarray(value)
            if len(place) == 2:
                cov[(..., *place[::-1])] = np.asarray(value)
        return integral(mean, cov)

    return PerPair(r.inexact(c.what, method, total, arrays, shape), c.pair, *ranks)
