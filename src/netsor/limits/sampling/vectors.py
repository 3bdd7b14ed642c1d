"""The vectors without index axes that matrices multiply and outputs read, as sums of products of atoms.

    h = sum_p c_p (prod sampled atoms) (prod exact atoms)

E[h h'] is then a sum over pairs of parts: an average over points times expectations of exact atoms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from netsor.lang.analysis import about
from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees
from netsor.lang.functions import add, div, mul, neg, sub
from netsor.lang.ops import Function
from netsor.lang.program import Embedding, Input, LinComb, MatMul, Normal, Output, used_by
from netsor.lang.types import C
from netsor.limits.rules.atoms import HOLE, Atom, LinearTerm, Product, Size, replace_exprs
from netsor.limits.rules.lincomb import written_out
from netsor.limits.rules.questions import Answering, of_parts, remembered
from netsor.limits.rules.setting import Setting

RowKey = tuple[Atom, ...] | Expr  # a product of sampled atoms, or a whole expression of sampled forms
Combination = dict[str, Expr]  # coefficients by name of an input or of a product with a matrix
ONE = Const(1.0)
SAMPLED = ""  # stands for the family of an atom all of whose families are sampled


class Part(NamedTuple):
    """A product: constants, sampled atoms, and at most one atom of each exact family, sorted by family."""

    constants: tuple[Expr, ...]
    row: RowKey
    exact: tuple[tuple[str, Atom], ...] = ()


@dataclass(frozen=True)
class Piece:
    """A core times factors, for some inputs: row numbers in its group, and in the tables of families."""

    group: int
    core: np.ndarray
    factors: dict[int, np.ndarray]

    def at(self, index: Any) -> Piece:
        """Return the piece for some of the inputs, with an index of NumPy."""
        return Piece(self.group, self.core[index], {f: atoms[index] for f, atoms in self.factors.items()})

    def spread(self, n: int) -> Piece:
        """Return the piece for n inputs; an input that is the only one stands for all."""
        return self.at(np.broadcast_to(np.arange(len(self.core)), n))

    @staticmethod
    def joined(pieces: list[Piece]) -> Piece:
        """Join pieces of one group with factors of the same families."""
        factors = {f: np.concatenate([p.factors[f] for p in pieces]) for f in pieces[0].factors}
        return Piece(pieces[0].group, np.concatenate([p.core for p in pieces]), factors)


@dataclass
class NeededVector:
    """A vector for some inputs, which matrices multiply or outputs read.

    uses      the matrices that multiply it; `""` stands for all readouts
    depth     the largest number of matrices on a path from an input to this vector
    cluster   vectors that share a matrix, directly or through others; only these have second moments
    pieces    by the families in which they are odd; only those with equal families have second moments
    """

    expr: Expr
    inputs: int
    uses: set[str] = field(default_factory=set)
    parts: list[Part] = field(default_factory=list)
    depth: int = 0
    cluster: int = -1
    pieces: dict[frozenset[str], Piece] = field(default_factory=dict)


class Vectors:
    """`needed`: all vectors that outputs need and that fit, by depth and in the order of the program.

    This order puts early tokens of all sequences first: later tokens depend on them.

    A vector fits if it consists of coordinatewise functions without parameters of Gaussian variables without
    index axes, and if each product has at most one atom of each family that is not `drawn`.
    """

    def __init__(self, r: Setting) -> None:
        self.r, self.forms, self.drawn = r, r.forms, r.sampled
        self.needed: dict[Expr, NeededVector] = {}
        self.answers: dict[str, dict[Any, Any]] = {}
        for vector in _needed_vectors(r):
            parts = self._parts(vector.expr)
            if parts is not None:
                vector.parts, vector.depth = parts, self._depth(parts, vector.expr)
                self.needed[vector.expr] = vector
        self.needed = dict(sorted(self.needed.items(), key=lambda item: item[1].depth))
        # The exact families with variables that are not centred, or with atoms that are neither odd nor even.
        exact = {item for vector in self.needed.values() for part in vector.parts for item in part.exact}
        self._asymmetric = {family for family, atom in exact if not self._parity(atom)}

    def odd_families(self, part: Part) -> frozenset[str]:
        """Return the families in which a part is odd.

        Flipping the sign of all variables of a centred family changes no law but flips an odd product, so
        its expectation is 0. Parts that are odd in different families therefore have no second moment: for
        example, the terms of a tangent that belong to different matrices.
        """
        odd = {family for family, atom in part.exact if self._parity(atom) == -1}
        return frozenset(odd - self._asymmetric)

    def _parity(self, atom: Atom) -> int:
        """Return 1 for an even and -1 for an odd function of a centred variable, else 0."""
        return about(atom.body, HOLE.name).parity if self.forms.is_centred(atom.forms[0]) else 0

    def _parts(self, e: Expr) -> list[Part] | None:
        """Return the vector as a sum of parts, or None if it does not fit."""
        if self._is_large(e):
            return [Part((), e)] if self._is_sampled_function(e) else None
        parts = []
        for product in self.products(e):
            part = self._part(product)
            if part is None:
                return None
            parts.append(part)
        if self.forms.is_affine(e) and any(part.row for part in parts):
            return None  # an affine vector is Gaussian: its second moments are covariances, which are exact
        if len(parts) == 1 or any(part.exact for part in parts):
            return parts
        if any(self.combination(form) is None for form in self.forms.maximal_forms(e)):
            return None
        return [Part((), e)]  # no part has an exact atom, so the whole vector is one sampled row

    def _is_large(self, e: Expr) -> bool:
        """Return whether there are so many products that it is faster to sample the whole vector.

        The state of a GRU has T parts after T tokens and its tangent about T^2: at most the square of the
        size of the expression.
        """
        size: Size = self.size(e)
        if size.products <= 2**9:  # few enough in any case
            return False
        nodes = sum(1 for _ in subtrees(e))
        return size.products > min(nodes**2, 2**17) or size.factors > 2**22  # limits of memory and time

    @of_parts
    def products(self, expr: Expr) -> Answering:
        """Return a vector as a sum of products; keep sums of sampled vectors whole.

        For example, the cell of an LSTM in its tangent stays one factor.
        """
        return (yield from self.forms.multiplied_out(expr, self._is_sampled_sum))

    @of_parts
    def size(self, expr: Expr) -> Answering:
        """Return the number of products and of factors in that sum, without forming it."""
        return (yield from self.forms.multiplied_size(expr, self._is_sampled_sum))

    def _is_sampled_sum(self, e: Expr) -> bool:
        is_sum = isinstance(e, Apply) and e.op in (add, sub)
        return is_sum and not self.forms.is_affine(e) and self.forms.families_in(e) <= self.drawn

    def _depth(self, parts: list[Part], e: Expr) -> int:
        atoms = {atom for part in parts for _, atom in part.exact}
        atoms |= {atom for part in parts if isinstance(part.row, tuple) for atom in part.row}
        forms = {form for atom in atoms for form in atom.forms} if atoms else self.forms.maximal_forms(e)
        leaves = {name for form in forms for name in self.combination(form) or ()}
        sources = (self.r.program.definitions[name] for name in leaves)
        behind = [self.forms.resolved(Ref(s.operand)) for s in sources if isinstance(s, MatMul)]
        return 1 + max((self.needed[expr].depth for expr in behind), default=0)

    def _part(self, product: Product) -> Part | None:
        sampled: list[Atom] = []
        exact: dict[str, Atom] = {}
        for atom in product.atoms:
            home = self._home(atom)
            if home is None or home in exact:
                return None
            if home == SAMPLED:
                sampled.append(atom)
            else:
                exact[home] = atom
        are_numbers = all(map(self._is_number, product.constants))
        return Part(product.constants, tuple(sampled), tuple(sorted(exact.items()))) if are_numbers else None

    @remembered
    def _home(self, atom: Atom) -> str | None:
        """Return the exact family of an atom, SAMPLED if all are drawn, or None if it does not fit."""
        families = self.forms.families_of(atom)
        alone = len(families) == 1 and atom.unary
        home = SAMPLED if families <= self.drawn else next(iter(families)) if alone else None
        return home if self._is_plain(atom.expr, atom.forms) else None

    def _is_sampled_function(self, e: Expr) -> bool:
        """Return whether a vector is sampled altogether, and is a plain function of its forms."""
        is_sampled = self.forms.families_in(e) <= self.drawn and not self.forms.is_affine(e)
        return is_sampled and self._is_plain(e, self.forms.maximal_forms(e))

    def _is_plain(self, e: Expr, forms: Iterable[Expr]) -> bool:
        """Return whether it is made of coordinatewise functions without parameters of forms without index."""
        body = replace_exprs(e, dict.fromkeys(forms, HOLE))
        nodes = (node for node in subtrees(body) if isinstance(node, Apply))
        return (
            all(isinstance(node.op, Function) and node.pick is None for node in nodes)
            and {HOLE.name}.issuperset(refs(body))
            and all(self.combination(form) is not None for form in forms)
        )

    def _is_number(self, c: Expr) -> bool:
        """Return whether a constant is one number per input, and not the limit of a C-var."""
        return self.r.index(c) == () and not self._has_limits(c)

    def _has_limits(self, e: Expr) -> bool:
        """Return whether an expression has limits of C-vars: these may differ between repeats."""
        return any(isinstance(self.r.program.types.get(name), C) for name in refs(e))

    # Forms

    @remembered
    def combination(self, form: Expr) -> Combination | None:
        """Return a Gaussian variable, up to its mean, as a sum of inputs and products with matrices."""
        form = written_out(self.forms, form)
        if self.r.index(form) != () or self._has_limits(form):
            return None
        total: Combination = {}
        for term in self.forms.terms(form):
            leaf = self._leaf(term.form)
            if leaf is None or not all(self.r.index(factor) == () for factor, _ in term.factors):
                return None
            for name, coef in leaf.items():
                scaled = _scaled(coef, term)
                total[name] = Apply(add, (total[name], scaled)) if name in total else scaled
        return total

    def _leaf(self, form: Expr) -> Combination | None:
        if not isinstance(form, Ref):
            return None
        types = self.r.program.types
        match self.r.program.definitions[form.name]:
            case LinComb():
                return self.combination(form)
            case Input(law=Embedding(matrix, _)) if types[matrix].index == ():
                return {form.name: ONE}
            case Input(law=Normal()):
                return {form.name: ONE} if self.r.index(form) == () else None
            case MatMul(matrix=matrix, operand=operand) if types[matrix].index == ():
                return {form.name: ONE} if self.forms.resolved(Ref(operand)) in self.needed else None
        return None


def _scaled(coef: Expr, term: LinearTerm) -> Expr:
    """Multiply a coefficient by the sign and the factors of a term."""
    for factor, divides in term.factors:
        coef = factor if coef == ONE and not divides else Apply(div if divides else mul, (coef, factor))
    return coef if term.sign == 1 else Apply(neg, (coef,))


def _needed_vectors(r: Setting) -> Iterable[NeededVector]:
    """Return the operands of matrices and of outputs, in the order of the program."""
    program, needed = r.program, set[str]()  # the variables that outputs depend on
    for s in reversed(program.statements):
        if isinstance(s, Output) or s.name in needed:
            needed.update(used_by(s))
    uses: list[tuple[int, Expr, str | None, str]] = []
    places = {s.name: k for k, s in enumerate(program.statements) if not isinstance(s, Output)}
    for s in program.statements:
        if isinstance(s, MatMul) and s.name in needed:
            uses.append((places[s.operand], r.forms.resolved(Ref(s.operand)), s.operand, s.matrix))
        elif isinstance(s, Output):
            for name in dict.fromkeys(t.operand for t in s.terms):
                whole = r.forms.resolved(Ref(name))
                for e in _peeled(r, whole):
                    uses.append((places[name], e, name if e is whole else None, ""))
    vectors: dict[Expr, NeededVector] = {}
    for _, expr, name, use in sorted(uses, key=lambda item: item[0]):
        if expr not in vectors:
            vectors[expr] = NeededVector(expr, r.inputs_of(Ref(name) if name else expr))
        vectors[expr].uses.add(use)
    return vectors.values()


def _peeled(r: Setting, e: Expr) -> Iterator[Expr]:
    """Yield the vectors inside linear operations on index axes: h and h' in mean(stack(h, h'))."""
    if all(isinstance(node.op, Function) for node in subtrees(e) if isinstance(node, Apply)):
        yield e
    elif isinstance(e, Apply) and r.forms.is_linear_head(e):
        for arg in e.args:
            yield from _peeled(r, arg)
