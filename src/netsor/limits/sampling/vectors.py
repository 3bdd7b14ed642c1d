"""The vectors without index axes that matrices multiply and outputs read, as sums of products of atoms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees
from netsor.lang.functions import add, div, neg, sub
from netsor.lang.ops import Function
from netsor.lang.program import Embedding, Input, LinComb, MatMul, Nonlin, Normal, Output, used_by
from netsor.lang.types import C
from netsor.limits.recursion.forms import HOLE, Atom

if TYPE_CHECKING:
    from netsor.limits.recursion.engine import Engine

__all__ = ["Part", "Vector", "Vectors", "resolved"]

RowKey = tuple[Atom, ...] | Expr  # a product of sampled atoms, or an expression of sampled forms alone
Combination = dict[str, np.ndarray]  # the coefficients of inputs and of products with matrices, by name


class DeclinedError(Exception):
    """A vector that does not fit; it is left to the engine."""


@dataclass(frozen=True)
class Part:
    """A product of numbers (for each input, or one), sampled atoms, and an atom of some exact families."""

    constants: np.ndarray
    row: RowKey
    exact: dict[str, Atom]


@dataclass
class Vector:
    """A vector for some inputs, with the matrices that it meets; `""` stands for all readouts."""

    expr: Expr
    inputs: int
    uses: set[str] = field(default_factory=set)
    parts: list[Part] = field(default_factory=list)
    depth: int = 0  # how many matrices are behind it, one after the other
    cluster: int = -1


def resolved(engine: Engine, name: str) -> Expr:
    """The vector of that name as the engine asks for it: a function of G-vars."""
    source = engine.program.definitions[name]
    return engine.forms.unwound(source.expr) if isinstance(source, Nonlin) else Ref(name)


class Vectors:
    """All vectors that outputs need and that fit, by their depth and in the order of the program: `found`.

    So early tokens of all sequences come first, which matter for all later ones.

    A vector fits if it is made of coordinatewise functions without parameters of Gaussian variables without
    index, with at most one atom of each family that is not `drawn` in a product.
    """

    def __init__(self, engine: Engine, drawn: frozenset[str]) -> None:
        self.engine, self.forms, self.drawn = engine, engine.forms, drawn
        self.found: dict[Expr, Vector] = {}
        self._linear: dict[Expr, Combination] = {}
        self._checked: set[Atom] = set()
        for vector in _needed_vectors(engine):
            try:
                vector.parts = self._parts(vector.expr)
            except DeclinedError:
                continue
            vector.depth = self._depth(vector)
            self.found[vector.expr] = vector
        self.found = dict(sorted(self.found.items(), key=lambda item: item[1].depth))

    def _parts(self, e: Expr) -> list[Part]:
        made = [self._part(product) for product in self.forms.products(e)]
        if self.forms.is_affine(e) and any(part.row for part in made):
            raise DeclinedError  # its second moments are covariances, which the engine does not average
        if len(made) == 1 or any(part.exact for part in made):
            return made
        for form in self.forms.maximal_forms(e):
            self.combination(form)
        return [Part(np.ones(1), e, {})]  # all of it is sampled: one row is enough

    def _depth(self, vector: Vector) -> int:
        atoms = {atom for part in vector.parts for atom in part.exact.values()}
        atoms |= {atom for part in vector.parts if isinstance(part.row, tuple) for atom in part.row}
        forms = {form for atom in atoms for form in atom.forms}
        forms |= set() if atoms else set(self.forms.maximal_forms(vector.expr))
        leaves = {name for form in forms for name in self.combination(form)}
        sources = (self.engine.program.definitions[name] for name in leaves)
        behind = [resolved(self.engine, s.operand) for s in sources if isinstance(s, MatMul)]
        return 1 + max((self.found[expr].depth for expr in behind), default=0)

    def _part(self, product: Any) -> Part:
        sampled: list[Atom] = []
        exact: dict[str, Atom] = {}
        for atom in product.atoms:
            self._require_plain(atom)
            families = self.forms.families_of(atom)
            if families <= self.drawn:
                sampled.append(atom)
            elif len(families) == 1 and atom.unary and not families & exact.keys():
                exact[next(iter(families))] = atom
            else:
                raise DeclinedError
        return Part(self._number(product.constants), tuple(sampled), exact)

    def _require_plain(self, atom: Atom) -> None:
        if atom in self._checked:
            return
        for node in subtrees(atom.expr):
            if isinstance(node, Apply) and not (isinstance(node.op, Function) and node.pick is None):
                raise DeclinedError
        names = {HOLE.name} if atom.unary else {name for form in atom.forms for name in refs(form)}
        if not names.issuperset(refs(atom.body)):
            raise DeclinedError
        for form in atom.forms:
            self.combination(form)
        self._checked.add(atom)

    def _number(self, constants: Iterable[Expr]) -> np.ndarray:
        """A product of constants for each input, or for all of them."""
        value = np.ones(1)
        for c in constants:
            limits = any(isinstance(self.engine.program.types.get(name), C) for name in refs(c))
            if limits or self.engine.index(c) != ():
                raise DeclinedError
            value = value * self.engine.constant(c)[0]
        return value

    # Forms

    def combination(self, form: Expr) -> Combination:
        """A Gaussian variable as a combination of inputs and of products with matrices, up to its mean."""
        if form not in self._linear:
            self._linear[form] = self._combined(form)
        return self._linear[form]

    def _combined(self, e: Expr) -> Combination:
        if self.forms.is_constant(e):
            self._number([e])
            return {}
        if self.engine.index(e) != ():
            raise DeclinedError
        if isinstance(e, Ref):
            return self._leaf(e.name)
        assert isinstance(e, Apply)
        if e.op in (add, sub):
            left, right = (self.combination(a) for a in e.args)
            return _sum(left, right, -1.0 if e.op is sub else 1.0)
        if e.op is neg:
            return _sum({}, self.combination(e.args[0]), -1.0)
        if not isinstance(e.op, Function):
            raise DeclinedError
        x, y = e.args
        vector, factor = (y, x) if self.forms.is_constant(x) else (x, y)
        scale = self._number([factor])
        return _sum({}, self.combination(vector), 1 / scale if e.op is div else scale)

    def _leaf(self, name: str) -> Combination:
        types = self.engine.program.types
        match self.engine.program.definitions[name]:
            case LinComb(expr=expr):
                return self.combination(expr)
            case Input(law=Normal()):
                return {name: np.ones(1)}
            case Input(law=Embedding(matrix, _)) if types[matrix].index == ():
                return {name: np.ones(1)}
            case MatMul(matrix=matrix, operand=operand) if types[matrix].index == ():
                if resolved(self.engine, operand) in self.found:
                    return {name: np.ones(1)}
        raise DeclinedError


def _sum(left: Combination, right: Combination, scale: Any) -> Combination:
    total = dict(left)
    for name, coefs in right.items():
        total[name] = total.get(name, 0.0) + scale * coefs
    return total


def _needed_vectors(engine: Engine) -> Iterable[Vector]:
    """Operands of matrices and of outputs in the order of the program."""
    program, needed, found = engine.program, _needed(engine), []
    places = {s.name: k for k, s in enumerate(program.statements) if not isinstance(s, Output)}
    for s in program.statements:
        if isinstance(s, MatMul) and s.name in needed:
            found.append((places[s.operand], resolved(engine, s.operand), s.operand, s.matrix))
        elif isinstance(s, Output):
            for name in dict.fromkeys(t.operand for t in s.terms):
                whole = resolved(engine, name)
                for e in _peeled(engine, whole):
                    found.append((places[name], e, name if e is whole else None, ""))
    vectors: dict[Expr, Vector] = {}
    for _, expr, name, use in sorted(found, key=lambda item: item[0]):
        if expr not in vectors:
            vectors[expr] = Vector(expr, engine.inputs_of(Ref(name) if name else expr))
        vectors[expr].uses.add(use)
    return vectors.values()


def _needed(engine: Engine) -> set[str]:
    """The variables that outputs depend on."""
    needed: set[str] = set()
    for s in reversed(engine.program.statements):
        if isinstance(s, Output) or s.name in needed:
            needed.update(used_by(s))
    return needed


def _peeled(engine: Engine, e: Expr) -> Iterator[Expr]:
    """What linear operations on index axes take apart: the vectors in mean(stack(...))."""
    if all(isinstance(node.op, Function) for node in subtrees(e) if isinstance(node, Apply)):
        yield e
    elif isinstance(e, Apply) and engine.forms.is_linear_head(e):
        for arg in e.args:
            yield from _peeled(engine, arg)
