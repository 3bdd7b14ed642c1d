"""The vectors without index axes that matrices multiply and outputs read, as sums of products of atoms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from netsor.lang.analysis import about
from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees
from netsor.lang.functions import add, div, mul, neg, sub
from netsor.lang.ops import Function
from netsor.lang.program import Embedding, Input, LinComb, MatMul, Normal, Output, used_by
from netsor.lang.types import C
from netsor.limits.recursion.forms import HOLE, Asking, Atom, Product, Size, of_parts
from netsor.limits.recursion.recorder import Recorder

__all__ = ["Part", "Vector", "Vectors"]

RowKey = tuple[Atom, ...] | Expr  # a product of sampled atoms, or an expression of sampled forms alone
Combination = dict[str, Expr]  # the coefficients of inputs and of products with matrices, by name
ONE = Const(1.0)
FEW_PARTS, MOST_PARTS, MOST_FACTORS = 2**9, 2**17, 2**22  # of a vector; see `_is_large`
SAMPLED = ""  # in place of the family of an atom


@dataclass(frozen=True)
class Part:
    """A product of constants, sampled atoms, and an atom of some exact families."""

    constants: tuple[Expr, ...]
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


class Vectors:
    """All vectors that outputs need and that fit, by their depth and in the order of the program: `found`.

    So early tokens of all sequences come first, which matter for all later ones.

    A vector fits if it is made of coordinatewise functions without parameters of Gaussian variables without
    index, with at most one atom of each family that is not `drawn` in a product.
    """

    def __init__(self, r: Recorder, drawn: frozenset[str]) -> None:
        self.r, self.forms, self.drawn = r, r.forms, drawn
        self.found: dict[Expr, Vector] = {}
        self._linear: dict[Expr, Combination | None] = {}
        self._homes: dict[Atom, str | None] = {}
        self.answers: dict[str, dict[Expr, Any]] = {}
        for vector in _needed_vectors(r):
            parts = self._parts(vector.expr)
            if parts is not None:
                vector.parts, vector.depth = parts, self._depth(parts, vector.expr)
                self.found[vector.expr] = vector
        self.found = dict(sorted(self.found.items(), key=lambda item: item[1].depth))
        self._symmetric = self._symmetric_families()

    def _symmetric_families(self) -> set[str]:
        """Exact families whose variables are centred, and whose atoms are all odd or even."""
        exact = [item for v in self.found.values() for part in v.parts for item in part.exact.items()]
        return {f for f, _ in exact} - {
            f
            for f, atom in dict.fromkeys(exact)
            if not (self.forms.is_centred(atom.forms[0]) and about(atom.body, HOLE.name).parity)
        }

    def odd_families(self, part: Part) -> frozenset[str]:
        """The families in which a part is odd.

        E of a product is 0 if it is odd in a family: its variables could all change their sign. So parts that
        are odd in different families have no second moment, as the share of each matrix in a tangent.
        """
        return frozenset(
            f
            for f, atom in part.exact.items()
            if f in self._symmetric and about(atom.body, HOLE.name).parity == -1
        )

    def _parts(self, e: Expr) -> list[Part] | None:
        """The vector as a sum of parts, or None if it does not fit."""
        if self._is_large(e):
            return [Part((), e, {})] if self._stays_whole(e) else None
        made = []
        for product in self.products(e):
            part = self._part(product)
            if part is None:
                return None
            made.append(part)
        if self.forms.is_affine(e) and any(part.row for part in made):
            return None  # its second moments are covariances, which are not averaged
        if len(made) == 1 or any(part.exact for part in made):
            return made
        if any(self.combination(form) is None for form in self.forms.maximal_forms(e)):
            return None
        return [Part((), e, {})]  # all of it is sampled: one row is enough

    def _is_large(self, e: Expr) -> bool:
        """Whether there are so many products that sampling all of it takes less time.

        For T tokens the state of a GRU has T parts, and its tangent about T^2: not more than the square of
        the size of the expression.
        """
        size: Size = self.size(e)
        if size.products <= FEW_PARTS:
            return False
        nodes = sum(1 for _ in subtrees(e))
        return size.products > min(nodes**2, MOST_PARTS) or size.factors > MOST_FACTORS

    def _stays_whole(self, e: Expr) -> bool:
        """Whether all of a vector is sampled, and is a plain function of its forms."""
        forms = self.forms.maximal_forms(e)
        names = {name for form in forms for name in refs(form)}
        nodes = (node for node in subtrees(e, forms) if isinstance(node, Apply))
        return (
            self.forms.families_in(e) <= self.drawn
            and not self.forms.is_affine(e)
            and all(isinstance(node.op, Function) and node.pick is None for node in nodes)
            and names.issuperset(refs(e))
            and all(self.combination(form) is not None for form in forms)
        )

    @of_parts
    def products(self, expr: Expr) -> Asking:
        """A sum of products; sums of sampled vectors stay whole, as the cell of an LSTM in its tangent."""
        return (yield from self.forms.multiplied_out(expr, self._is_sampled_sum))

    @of_parts
    def size(self, expr: Expr) -> Asking:
        """How large that sum is."""
        return (yield from self.forms.multiplied_size(expr, self._is_sampled_sum))

    def _is_sampled_sum(self, e: Expr) -> bool:
        is_sum = isinstance(e, Apply) and e.op in (add, sub)
        return is_sum and not self.forms.is_affine(e) and self.forms.families_in(e) <= self.drawn

    def _depth(self, parts: list[Part], e: Expr) -> int:
        atoms = {atom for part in parts for atom in part.exact.values()}
        atoms |= {atom for part in parts if isinstance(part.row, tuple) for atom in part.row}
        forms = {form for atom in atoms for form in atom.forms} if atoms else self.forms.maximal_forms(e)
        leaves = {name for form in forms for name in self.combination(form) or ()}
        sources = (self.r.program.definitions[name] for name in leaves)
        behind = [self.forms.resolved(Ref(s.operand)) for s in sources if isinstance(s, MatMul)]
        return 1 + max((self.found[expr].depth for expr in behind), default=0)

    def _part(self, product: Product) -> Part | None:
        sampled: list[Atom] = []
        exact: dict[str, Atom] = {}
        for atom in product.atoms:
            home = self._homes[atom] if atom in self._homes else self._home(atom)
            if home is None or home in exact:
                return None
            if home == SAMPLED:
                sampled.append(atom)
            else:
                exact[home] = atom
        known = all(map(self._is_number, product.constants))
        return Part(product.constants, tuple(sampled), exact) if known else None

    def _home(self, atom: Atom) -> str | None:
        """The exact family of an atom, SAMPLED if all of it is drawn, or None if it does not fit."""
        families = self.forms.families_of(atom)
        alone = len(families) == 1 and atom.unary
        home = SAMPLED if families <= self.drawn else next(iter(families)) if alone else None
        self._homes[atom] = home if self._is_plain(atom) else None
        return self._homes[atom]

    def _is_plain(self, atom: Atom) -> bool:
        """Coordinatewise functions without parameters of Gaussian variables without index."""
        nodes = (node for node in subtrees(atom.expr) if isinstance(node, Apply))
        names = {HOLE.name} if atom.unary else {name for form in atom.forms for name in refs(form)}
        return (
            all(isinstance(node.op, Function) and node.pick is None for node in nodes)
            and names.issuperset(refs(atom.body))
            and all(self.combination(form) is not None for form in atom.forms)
        )

    def _is_number(self, c: Expr) -> bool:
        """A constant for each input, or for all of them, that is no limit of a C-var."""
        limits = any(isinstance(self.r.program.types.get(name), C) for name in refs(c))
        return not limits and self.r.index(c) == ()

    # Forms

    def combination(self, form: Expr) -> Combination | None:
        """A Gaussian variable as a combination of inputs and of products with matrices, up to its mean."""
        if form not in self._linear:
            self._linear[form] = self._combined(form)
        return self._linear[form]

    def _combined(self, e: Expr) -> Combination | None:
        if self.forms.is_constant(e):
            return {} if self._is_number(e) else None
        if self.r.index(e) != ():
            return None
        if isinstance(e, Ref):
            return self._leaf(e.name)
        assert isinstance(e, Apply)
        if e.op in (add, sub):
            left, right = (self.combination(a) for a in e.args)
            return _sum(left, right, Const(-1.0) if e.op is sub else ONE)
        if e.op is neg:
            return _sum({}, self.combination(e.args[0]), Const(-1.0))
        if not isinstance(e.op, Function):
            return None
        x, y = e.args
        vector, factor = (y, x) if self.forms.is_constant(x) else (x, y)
        if not self._is_number(factor):
            return None
        return _sum({}, self.combination(vector), Apply(div, (ONE, factor)) if e.op is div else factor)

    def _leaf(self, name: str) -> Combination | None:
        types = self.r.program.types
        match self.r.program.definitions[name]:
            case LinComb(expr=expr):
                return self.combination(expr)
            case Input(law=Normal()):
                return {name: ONE}
            case Input(law=Embedding(matrix, _)) if types[matrix].index == ():
                return {name: ONE}
            case MatMul(matrix=matrix, operand=operand) if types[matrix].index == ():
                return {name: ONE} if self.forms.resolved(Ref(operand)) in self.found else None
        return None


def _sum(left: Combination | None, right: Combination | None, scale: Expr) -> Combination | None:
    if left is None or right is None:
        return None
    total = dict(left)
    for name, coef in right.items():
        scaled = coef if scale == ONE else scale if coef == ONE else Apply(mul, (scale, coef))
        total[name] = Apply(add, (total[name], scaled)) if name in total else scaled
    return total


def _needed_vectors(r: Recorder) -> Iterable[Vector]:
    """Operands of matrices and of outputs in the order of the program."""
    program, needed, found = r.program, _needed(r), []
    places = {s.name: k for k, s in enumerate(program.statements) if not isinstance(s, Output)}
    for s in program.statements:
        if isinstance(s, MatMul) and s.name in needed:
            found.append((places[s.operand], r.forms.resolved(Ref(s.operand)), s.operand, s.matrix))
        elif isinstance(s, Output):
            for name in dict.fromkeys(t.operand for t in s.terms):
                whole = r.forms.resolved(Ref(name))
                for e in _peeled(r, whole):
                    found.append((places[name], e, name if e is whole else None, ""))
    vectors: dict[Expr, Vector] = {}
    for _, expr, name, use in sorted(found, key=lambda item: item[0]):
        if expr not in vectors:
            vectors[expr] = Vector(expr, r.inputs_of(Ref(name) if name else expr))
        vectors[expr].uses.add(use)
    return vectors.values()


def _needed(r: Recorder) -> set[str]:
    """The variables that outputs depend on."""
    needed: set[str] = set()
    for s in reversed(r.program.statements):
        if isinstance(s, Output) or s.name in needed:
            needed.update(used_by(s))
    return needed


def _peeled(r: Recorder, e: Expr) -> Iterator[Expr]:
    """What linear operations on index axes take apart: the vectors in mean(stack(...))."""
    if all(isinstance(node.op, Function) for node in subtrees(e) if isinstance(node, Apply)):
        yield e
    elif isinstance(e, Apply) and r.forms.is_linear_head(e):
        for arg in e.args:
            yield from _peeled(r, arg)
