"""What an expression is for the limit: constant, affine in G-vars, a product of atoms.

In the limit a G-var is a Gaussian number, so everything affine in G-vars (with C-vars as coefficients)
is Gaussian too: a *form*. A nonlinearity of one form is an *atom*, whatever it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from netsor.lang.check import Inferred
from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees, transform
from netsor.lang.functions import add, div, mul, neg, pow_, sub
from netsor.lang.index_maps import contract
from netsor.lang.ops import Function, IndexMap
from netsor.lang.program import (
    Embedding,
    Input,
    LinComb,
    MatMul,
    Moment,
    Nonlin,
    Normal,
    Program,
    Scalar,
)
from netsor.lang.sampling import input_mean
from netsor.lang.types import C, G
from netsor.limits.recursion.components import components

__all__ = ["HOLE", "Atom", "Forms", "Product", "replace_exprs"]

HOLE = Ref("@")


@dataclass(frozen=True)
class Atom:
    """A function of Gaussian forms: `body` with its forms, or with HOLE in place of the only one."""

    body: Expr
    forms: tuple[Expr, ...]
    unary: bool

    @cached_property
    def _hash(self) -> int:
        return hash((self.body, self.forms, self.unary))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def expr(self) -> Expr:
        """The atom as an expression of its forms."""
        return replace_exprs(self.body, {HOLE: self.forms[0]}) if self.unary else self.body

    @property
    def is_identity(self) -> bool:
        return self.body == HOLE


@dataclass(frozen=True)
class Product:
    """A product of constants (numbers and C-vars) and atoms."""

    constants: tuple[Expr, ...] = ()
    atoms: tuple[Atom, ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.constants, self.atoms))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class LinearTerm:
    """A sign, constants to multiply by (or to divide by), and a form that is no sum or multiple."""

    form: Expr
    sign: int = 1
    factors: tuple[tuple[Expr, bool], ...] = ()

    def times(self, sign: int, *factors: tuple[Expr, bool]) -> LinearTerm:
        return LinearTerm(self.form, self.sign * sign, self.factors + factors)


@dataclass
class Forms:
    """Static facts about the expressions of a program; every answer is remembered."""

    program: Program
    inferred: dict[Expr, Inferred] = field(default_factory=dict)
    _affine: dict[Expr, bool] = field(default_factory=dict)
    _constant: dict[Expr, bool] = field(default_factory=dict)
    _unwound: dict[Expr, Expr] = field(default_factory=dict)
    _products: dict[Expr, tuple[Product, ...]] = field(default_factory=dict)
    kinks: dict[Expr, tuple[float, ...]] = field(default_factory=dict)
    trusted: dict[Expr, bool] = field(default_factory=dict)
    _sources: dict[Expr, frozenset[str]] = field(default_factory=dict)
    _centred: dict[Expr, bool] = field(default_factory=dict)
    _terms: dict[Expr, tuple[LinearTerm, ...]] = field(default_factory=dict)
    _families_of: dict[Atom, frozenset[str]] = field(default_factory=dict)
    _families_in: dict[Expr, frozenset[str]] = field(default_factory=dict)

    # Kinds of expressions

    def is_constant(self, expr: Expr) -> bool:
        """No vectors: numbers, data and C-vars."""
        if expr not in self._constant:
            match expr:
                case Const():
                    found = True
                case Ref(name):
                    found = name in self.program.data or isinstance(self.program.types[name], C)
                case Apply(args=args):
                    found = all(map(self.is_constant, args))
            self._constant[expr] = found
        return self._constant[expr]

    def is_affine(self, expr: Expr) -> bool:
        """Gaussian in the limit: linear in G-vars with constant coefficients, plus a constant."""
        if expr not in self._affine:
            if isinstance(expr, Ref) or self.is_constant(expr):
                name = expr.name if isinstance(expr, Ref) else ""
                found = self.is_constant(expr) or isinstance(self.program.types[name], G)
            else:
                found = self.is_linear_head(expr) and all(
                    map(self.is_affine, expr.args if isinstance(expr, Apply) else ())
                )
            self._affine[expr] = found
        return self._affine[expr]

    def is_linear_head(self, expr: Expr) -> bool:
        """An operation that is linear in its vector arguments."""
        if not isinstance(expr, Apply) or self.is_constant(expr):
            return False
        op, constant = expr.op, [self.is_constant(a) for a in expr.args]
        if op in (add, sub, neg):
            return True
        if op is mul:
            return any(constant)
        if op is div:
            return constant[1]
        if op is contract:
            return constant[0]
        return isinstance(op, IndexMap)

    def sources(self, form: Expr) -> frozenset[str]:
        """The matrices and inputs that a form is made of; without a common one, forms are independent."""
        if form not in self._sources:
            match form:
                case Ref(name) if not self.is_constant(form):
                    self._sources[form] = self._sources_of(name)
                case Apply(args=args):
                    self._sources[form] = frozenset().union(*map(self.sources, args))
                case _:
                    self._sources[form] = frozenset()
        return self._sources[form]

    def _sources_of(self, name: str) -> frozenset[str]:
        match self.program.definitions[name]:
            case LinComb(expr=expr):
                return self.sources(expr)
            case Input(law=Embedding(matrix, _)) | MatMul(matrix=matrix):
                return frozenset([f"{matrix} "])
        return frozenset([self.families[name]])

    def is_centred(self, form: Expr) -> bool:
        """Whether the mean of a form (or the value of a constant) is 0 whatever the data are."""
        if form not in self._centred:
            self._centred[form] = self._find_centred(form)
        return self._centred[form]

    def _find_centred(self, form: Expr) -> bool:
        match form:
            case Const(value):
                return value == 0
            case Ref(name):
                source = self.program.definitions.get(name)
                match source:
                    case LinComb(expr=expr) | Scalar(expr=expr):
                        return self.is_centred(expr)
                    case Moment(expr=expr):
                        return self.is_affine(self.unwound(expr)) and self.is_centred(self.unwound(expr))
                    case Input(law=Normal()):
                        return not np.any(input_mean(source))
                return isinstance(source, MatMul | Input)
            case Apply(op, args):
                if op is mul:
                    return any(map(self.is_centred, args))
                if op is div:
                    return self.is_centred(args[0])
                linear = op in (add, sub, neg) or isinstance(op, IndexMap)
                return linear and all(map(self.is_centred, args[1:] if op is contract else args))
        return False

    def unwound(self, expr: Expr) -> Expr:
        """The expression as a function of G-vars and constants."""
        if expr not in self._unwound:
            self._unwound[expr] = transform(expr, self._unwind_ref)
        return self._unwound[expr]

    def _unwind_ref(self, ref: Ref) -> Expr:
        source = self.program.definitions.get(ref.name)
        return self.unwound(source.expr) if isinstance(source, Nonlin) else ref

    def resolved(self, e: Expr) -> Expr:
        """A vector by its name as a function of G-vars; anything else as it is."""
        source = self.program.definitions.get(e.name) if isinstance(e, Ref) else None
        return self.unwound(source.expr) if isinstance(source, Nonlin) else e

    def operand_of(self, product: MatMul) -> Expr:
        """What a matrix multiplies, as a function of G-vars."""
        return self.resolved(Ref(product.operand))

    def matrix_of(self, name: str) -> str | None:
        """The matrix that makes a variable, if one does."""
        match self.program.definitions.get(name):
            case MatMul(matrix=matrix) | Input(law=Embedding(matrix=matrix)):
                return matrix
        return None

    def has_uniform_mean(self, form: Expr) -> bool:
        """Whether the mean of a form is the same for all members of its index, whatever the data are."""
        match form:
            case _ if self.is_centred(form):
                return True
            case Ref(name) if isinstance(source := self.program.definitions.get(name), LinComb | Input):
                if isinstance(source, LinComb):
                    return self.has_uniform_mean(source.expr)
                return len(set(input_mean(source).tolist())) == 1
            case Ref(name):
                shape = (
                    self.program.data[name].shape
                    if name in self.program.data
                    else self.program.types[name].index
                )
                return set(shape) <= {1}
            case Apply(op, args):
                return isinstance(op, Function) and all(map(self.has_uniform_mean, args))
        return True

    def terms(self, expr: Expr) -> tuple[LinearTerm, ...]:
        """A form as a sum of multiples of forms that are none themselves; names stay whole."""
        if expr not in self._terms:
            match expr:
                case Apply(op, (a, b)) if op in (add, sub):
                    sign = -1 if op is sub else 1
                    found = (*self.terms(a), *(t.times(sign) for t in self.terms(b)))
                case Apply(op, (a,)) if op is neg:
                    found = tuple(t.times(-1) for t in self.terms(a))
                case Apply(op, (a, b)) if op in (mul, div):
                    vector, factor = (b, a) if op is mul and self.is_constant(a) else (a, b)
                    found = tuple(t.times(1, (factor, op is div)) for t in self.terms(vector))
                case _:
                    found = () if self.is_constant(expr) else (LinearTerm(expr),)
            self._terms[expr] = found
        return self._terms[expr]

    # Products of atoms

    def products(self, expr: Expr) -> tuple[Product, ...]:
        """The expression as a sum of products of atoms; products of sums are multiplied out."""
        if expr not in self._products:
            self._products[expr] = tuple(self._multiply_out(self.unwound(expr)))
        return self._products[expr]

    def _multiply_out(self, expr: Expr) -> Iterator[Product]:
        if self.is_constant(expr):
            yield Product((expr,))
            return
        atom = self.as_atom(expr)
        plain = atom.unary and refs(atom.body) == [HOLE.name]
        if isinstance(expr, Apply) and not plain and self._splits(expr):
            yield from self._distribute(expr)
        else:
            yield Product((), (atom,))

    def _splits(self, expr: Apply) -> bool:
        """Arithmetic that can be multiplied out: an atom without parameters is worth more than its parts."""
        if expr.op is pow_:
            return expr.args[1] in (Const(2.0), Const(3.0))
        return expr.op in (add, sub, neg, mul) or (expr.op is div and self.is_constant(expr.args[1]))

    def _distribute(self, expr: Apply) -> Iterator[Product]:
        if expr.op is pow_:
            base, power = expr.args
            rest = base if power == Const(2.0) else Apply(mul, (base, base))
            expr = Apply(mul, (base, rest))
        if expr.op is mul:
            for p in self.products(expr.args[0]):
                for q in self.products(expr.args[1]):
                    yield self._merge(Product(p.constants + q.constants, p.atoms + q.atoms))
        elif expr.op is div:
            inverse = Apply(div, (Const(1.0), expr.args[1]))
            for p in self.products(expr.args[0]):
                yield Product((*p.constants, inverse), p.atoms)
        else:
            minus = (Const(-1.0),)
            for k, arg in enumerate(expr.args):
                for p in self.products(arg):
                    sign = minus if expr.op is neg or (expr.op is sub and k == 1) else ()
                    yield Product(sign + p.constants, p.atoms)

    def _merge(self, product: Product) -> Product:
        """Atoms of one form become one atom."""
        merged: dict[Expr, Atom] = {}
        rest: list[Atom] = []
        for atom in product.atoms:
            if not atom.unary:
                rest.append(atom)
            elif atom.forms[0] in merged:
                body = Apply(mul, (merged[atom.forms[0]].body, atom.body))
                merged[atom.forms[0]] = Atom(body, atom.forms, True)
            else:
                merged[atom.forms[0]] = atom
        return Product(product.constants, (*merged.values(), *rest))

    def as_atom(self, expr: Expr) -> Atom:
        """The expression as a function of its forms; of one, if it has only one and mixes no index."""
        forms = self.maximal_forms(expr)
        unique = tuple(dict.fromkeys(forms))
        if len(unique) == 1 and not self.mixes(expr, unique):
            return Atom(replace_exprs(expr, {unique[0]: HOLE}), unique, True)
        names = {name for form in unique for name in refs(form) if not self.is_constant(Ref(name))}
        if len(names) == 1:
            ref = Ref(names.pop())
            if not self.mixes(expr, (ref,)):
                return Atom(replace_exprs(expr, {ref: HOLE}), (ref,), True)
        return Atom(expr, unique, False)

    def maximal_forms(self, expr: Expr) -> list[Expr]:
        """The largest affine subexpressions that are not constant."""
        if self.is_constant(expr):
            return []
        if self.is_affine(expr):
            return [expr]
        assert isinstance(expr, Apply), f"{expr} is neither a form nor unwound"
        return [form for arg in expr.args for form in self.maximal_forms(arg)]

    def mixes(self, expr: Expr, leaves: tuple[Expr, ...]) -> bool:
        """Whether an index map or a mixing operation stands between the expression and a leaf of it."""
        if expr in leaves or self.is_constant(expr):
            return False
        assert isinstance(expr, Apply)
        return not isinstance(expr.op, Function) or any(self.mixes(a, leaves) for a in expr.args)

    # Independent families

    @cached_property
    def families(self) -> dict[str, str]:
        """For every G-var the representative of its family; different families are independent."""
        labels: dict[str, list[Any]] = {
            n: [] for n, type_ in self.program.types.items() if isinstance(type_, G)
        }

        def join(label: Any, names: Iterable[str]) -> None:
            for name in names:
                if name in labels:
                    labels[name].append(label)

        for s in self.program.statements:
            match s:
                case Input(law=Embedding(matrix, _)) | MatMul(matrix=matrix):
                    join(("matrix", matrix), [s.name])
                case Input(law=Normal(cross=cross)):
                    join(s.name, [s.name, *(name for name, _ in cross)])
                case LinComb():
                    join(s.name, [s.name, *refs(s.expr)])
        seen: set[Expr] = set()
        for expr in self.program.expressions():
            for node in subtrees(self.unwound(expr), seen):
                seen.add(node)
                if isinstance(node, Apply) and self.is_affine(node) and not self.is_constant(node):
                    join(node, refs(node))
        return {name: part[0] for part in components(list(labels), labels.__getitem__) for name in part}

    def families_in(self, expr: Expr) -> frozenset[str]:
        """The families of all G-vars that an expression is made of."""
        if expr not in self._families_in:
            match expr:
                case Ref(name) if name in self.families:
                    found = frozenset([self.families[name]])
                case Ref(name) if isinstance(source := self.program.definitions.get(name), Nonlin):
                    found = self.families_in(source.expr)
                case Apply(args=args):
                    found = frozenset().union(*map(self.families_in, args))
                case _:
                    found = frozenset()
            self._families_in[expr] = found
        return self._families_in[expr]

    def families_of(self, atom: Atom) -> frozenset[str]:
        """The families that an atom depends on."""
        if atom not in self._families_of:
            names = (name for form in atom.forms for name in refs(form))
            self._families_of[atom] = frozenset(self.families[n] for n in names if n in self.families)
        return self._families_of[atom]


def replace_exprs(expr: Expr, table: Mapping[Expr, Expr]) -> Expr:
    """The expression with the largest parts that `table` knows replaced; a part may hold another one."""
    if expr in table:
        return table[expr]
    if isinstance(expr, Apply):
        return Apply(expr.op, tuple(replace_exprs(a, table) for a in expr.args), expr.attrs, expr.pick)
    return expr
