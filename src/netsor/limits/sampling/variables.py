"""The Gaussian variables and exact atoms of a schedule: their rows in tables, and numbers from the inputs.

The *rows* of a table are the variables of a family, or the atoms of an exact family, in the order in which
they become known, one row for each input. Rows depend on shapes alone; means, data, coefficients and
variances (`Numbers`) are one step of the recording, which a run computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from netsor.lang.expr import Const, Expr, Ref, refs
from netsor.lang.program import Embedding, Input, Law, MatMul, Normal
from netsor.limits.methods.closed import ClosedPair, closed_pair
from netsor.limits.methods.component import name_of
from netsor.limits.methods.near_parallel import NearParallel
from netsor.limits.rules.atoms import Atom
from netsor.limits.rules.input import embedded_data
from netsor.limits.rules.lincomb import cov, mean
from netsor.limits.rules.moment import constant
from netsor.limits.rules.pairs import Pair
from netsor.limits.rules.recorder import Recorder
from netsor.limits.sampling.recursions import Core, CoreGroup
from netsor.limits.sampling.vectors import NeededVector, Piece, Vectors
from netsor.limits.tape.traced import Traced

Table = slice | np.ndarray  # row numbers of a table
Term = tuple[slice, NeededVector, Expr]  # rows of a form with W h, the vector h, the coefficient of W h
Kind = tuple[int, Expr, bool]  # the family and function of an atom, and whether its variable is centred


@dataclass
class Family:
    """Gaussian variables that depend on each other: one row for each form and input.

    drawn   whether the family is sampled
    size    number of variables so far
    atoms   number of rows in the table of products of exact atoms; row 0 is the number 1
    means   whether row 0 is needed, which holds the expectations of the atoms
    """

    drawn: bool
    size: int = 0
    atoms: int = 1
    means: bool = False
    forms: list[Form] = field(default_factory=list)


@dataclass(frozen=True)
class Link:
    """var_W E[h h'] times two coefficients: the covariance of a form with W h and the forms with W h'.

    left, right     pieces of h, and of all h' one after the other
    coef, coefs     the coefficient of W h, and those of W h' with their numbers of inputs
    columns         the rows of the forms with W h', in their family
    """

    matrix: str
    left: Piece
    right: Piece
    coef: Expr
    coefs: tuple[tuple[Expr, int], ...]
    columns: np.ndarray


@dataclass(frozen=True)
class Form:
    """A Gaussian variable: its rows in its family, and where its covariances come from.

    coefs   by name, the coefficients of the inputs and of the products with matrices that it adds up
    """

    expr: Expr
    family: int
    rows: slice
    links: tuple[Link, ...]
    coefs: dict[str, Expr]


@dataclass(frozen=True)
class AtomKind:
    """The atoms of one kind so far, as a new atom is multiplied by them.

    rule     the closed form of E of the products with the new atom; None if a Hermite series is needed
    rows     rows of the atoms in the table of products
    forms    rows of their variables
    """

    key: Kind
    atom: Atom
    rule: ClosedPair | None
    parallel: NearParallel | None
    rows: Table
    forms: Table

    def product_name(self, new: ExactAtom) -> str:
        """Return the expectation of the product with a new atom as text."""
        return f"E[{name_of(new.atom)} {name_of(self.atom)}]"

    @property
    def is_inexact(self) -> bool:
        """Whether errors exceed rounding: a series leaves out terms, and steep functions amplify rounding."""
        return self.rule is None or self.parallel is not None


@dataclass(frozen=True)
class ExactAtom:
    """A function of one variable of a family that is not sampled.

    forms    the rows of its variable
    kinds    all kinds that it is multiplied by, its own `kind` included
    """

    atom: Atom
    rows: slice
    forms: slice
    kinds: tuple[AtomKind, ...]
    kind: AtomKind

    @property
    def family(self) -> int:
        return self.kind.key[0]


@dataclass(frozen=True)
class SampledRow:
    """Sampled values to compute: a product of expressions, times the rows `times` of the pool if given."""

    rows: slice
    exprs: tuple[Expr, ...]
    times: slice | None


@dataclass
class VectorStep:
    """What becomes known with one vector, in this order.

    depth     number of matrices behind the vector; steps of one depth do not need each other
    expired   expressions whose values no later step reads
    """

    depth: int
    forms: list[Form] = field(default_factory=list)
    atoms: list[ExactAtom] = field(default_factory=list)
    rows: list[SampledRow] = field(default_factory=list)
    core: Core | None = None
    expired: list[Expr] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        return max((form.rows.stop - form.rows.start for form in self.forms), default=0)


# Rows of forms and atoms


class Variables:
    """Numbers of families, and the rows of the forms and atoms so far."""

    def __init__(self, vectors: Vectors) -> None:
        self.r, self.vectors = vectors.r, vectors
        self.families: list[Family] = []
        self.forms: dict[Expr, slice] = {}
        self.atoms: dict[Atom, slice] = {}
        self._numbers: dict[str, int] = {}
        self._kinds: dict[Kind, tuple[Atom, list[slice], list[slice]]] = {}  # rows of atoms and of variables
        self._meetings: set[tuple[Kind, Kind]] = set()
        self._terms: dict[tuple[int, str], list[Term]] = {}

    def number(self, family: str) -> int:
        if family not in self._numbers:
            self._numbers[family] = len(self.families)
            self.families.append(Family(family in self.vectors.drawn))
        return self._numbers[family]

    def family_of(self, form: Expr) -> int:
        families = self.r.forms.families
        return self.number(next(families[name] for name in refs(form) if name in families))

    def add_form(self, form: Expr, step: VectorStep) -> slice:
        """Return the rows of a form; if it has none yet, give it rows, and add it to the step."""
        if form not in self.forms:
            number = self.family_of(form)
            family = self.families[number]
            self.forms[form] = rows = slice(family.size, family.size + self.r.inputs_of(form))
            family.size = rows.stop
            coefs = self.vectors.combination(form)
            assert coefs is not None
            family.forms.append(Form(form, number, rows, tuple(self._links(coefs, number, rows)), coefs))
            step.forms.append(family.forms[-1])
        return self.forms[form]

    def _links(self, coefs: dict[str, Expr], family: int, rows: slice) -> Iterator[Link]:
        """Yield the contributions of the products with matrices in a form to its covariances."""
        new: list[tuple[str, Term]] = []
        for name, coef in coefs.items():
            source = self.r.program.definitions[name]
            if isinstance(source, MatMul):
                term = rows, self.vectors.needed[self.r.forms.resolved(Ref(source.operand))], coef
                new.append((source.matrix, term))
                self._terms.setdefault((family, source.matrix), []).append(term)
        for matrix, term in new:
            for terms in _without_repeats(self._terms[family, matrix]):
                for odd in term[1].pieces:
                    # Pieces that are odd in different families have no second moments.
                    alike = [t for t in terms if odd in t[1].pieces]
                    if alike:
                        yield _link(matrix, term, alike, odd)

    def meet(self, atoms: Iterable[Atom]) -> None:
        """Note that E of products of these atoms is needed."""
        kinds = {self._kind(atom): None for atom in dict.fromkeys(atoms)}
        self._meetings.update((a, b) for a, b in product(kinds, repeat=2) if a[0] == b[0])

    def _kind(self, atom: Atom) -> Kind:
        form = atom.forms[0]
        return self.family_of(form), atom.body, self.r.forms.is_centred(form)

    def add_atom(self, atom: Atom, step: VectorStep) -> slice:
        """Return the rows of an exact atom; if it has none yet, give it rows, and add it to the step."""
        if atom not in self.atoms:
            forms, kind = self.add_form(atom.forms[0], step), self._kind(atom)
            family = self.families[kind[0]]
            self.atoms[atom] = rows = slice(family.atoms, family.atoms + forms.stop - forms.start)
            family.atoms = rows.stop
            _, kind_rows, kind_forms = self._kinds.setdefault(kind, (atom, [], []))
            kind_rows.append(rows)
            kind_forms.append(forms)
            kinds = {met: self._met(kind, met) for met in self._kinds if (kind, met) in self._meetings}
            step.atoms.append(ExactAtom(atom, rows, forms, tuple(kinds.values()), kinds[kind]))
        return self.atoms[atom]

    def _met(self, kind: Kind, met: Kind) -> AtomKind:
        """Return the atoms of a kind so far, for products with a new atom of another kind."""
        (_, new, new_is_centred), (_, body, is_centred) = kind, met
        rule = closed_pair(new, body, new_is_centred and is_centred)
        parallel = rule.parallel if rule else NearParallel.of(new, body, closed=False)
        atom, rows, forms = self._kinds[met]
        return AtomKind(met, atom, rule, parallel, *(as_slice(_row_numbers(s)) for s in (rows, forms)))


def _without_repeats(terms: list[Term]) -> list[list[Term]]:
    """Divide terms into lists in which no form occurs twice, since one write sets each row only once."""
    lists: list[list[Term]] = []
    seen: dict[int, int] = {}
    for term in terms:
        k = seen[term[0].start] = seen.get(term[0].start, -1) + 1
        if k == len(lists):
            lists.append([])
        lists[k].append(term)
    return lists


def _link(matrix: str, term: Term, terms: list[Term], odd: frozenset[str]) -> Link:
    """Return the covariances of a form with the others of one matrix, through pieces that are odd alike."""
    rows, vector, coef = term
    left, n, sizes = vector.pieces[odd], rows.stop - rows.start, [r.stop - r.start for r, _, _ in terms]
    pieces = [v.pieces[odd] for _, v, _ in terms]

    def join(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.broadcast_to(x, m) for x, m in zip(parts, sizes, strict=True)])

    # All vectors that one matrix multiplies have factors of the same families.
    right = {family: join([piece.factors[family] for piece in pieces]) for family in left.factors}
    factors = {family: np.broadcast_to(atoms, n) for family, atoms in left.factors.items()}
    return Link(
        matrix,
        Piece(left.group, np.broadcast_to(left.core, n), factors),
        Piece(left.group, join([piece.core for piece in pieces]), right),
        coef,
        tuple((c, m) for (_, _, c), m in zip(terms, sizes, strict=True)),
        _row_numbers([r for r, _, _ in terms]),
    )


def as_slice(rows: np.ndarray) -> Table:
    """Return row numbers as a slice if they are consecutive: a slice of a table is no copy."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if np.array_equal(rows, np.arange(first, last + 1)) else rows


def _row_numbers(slices: list[slice]) -> np.ndarray:
    return np.concatenate([np.arange(s.start, s.stop) for s in slices])


# Numbers


def numbers_of(r: Recorder, families: list[Family], groups: list[CoreGroup]) -> Traced:
    """Record the step that computes the numbers of a schedule."""
    asked: dict[Any, Any] = {}

    def ask(key: tuple[Any, ...], *question: Any) -> None:
        if key not in asked:
            answer = r.ask(*question)
            asked[key] = None if answer is None else answer.array

    def ask_for_constants(constants: Iterable[Expr]) -> None:
        for c in constants:
            if not isinstance(c, Const):
                ask(("constant", c), constant, c)

    for family in families:
        for form in family.forms:
            ask(("mean", form.expr), mean, form.expr)
            ask_for_constants(form.coefs.values())
            for name in form.coefs:
                law = _law(r, name)
                if isinstance(law, Embedding):
                    asked["data", name] = embedded_data(r, law)
                    asked["var", law.matrix] = r.variance(law.matrix)
            for link in form.links:
                asked["var", link.matrix] = r.variance(link.matrix)
        names = _random_vectors(r, family)
        for name in names:
            for other in names:
                # Random vectors of one family may be correlated, also with each other.
                ask(("cov", name, other), cov, Ref(name), Ref(other), Pair(False))
    for core in (core for group in groups for core in group.cores):
        ask_for_constants(c for constants in core.constants for c in constants)
    keys = [key for key, array in asked.items() if isinstance(array, Traced)]

    def run(*arrays: np.ndarray) -> Numbers:
        return Numbers(r, families, groups, {**asked, **dict(zip(keys, arrays, strict=True))})

    return r.tape.call(run, tuple(asked[key] for key in keys), (), np.float64)


def _law(r: Recorder, name: str) -> Law | None:
    source = r.program.definitions[name]
    return source.law if isinstance(source, Input) else None


def _random_vectors(r: Recorder, family: Family) -> list[str]:
    """Return the names of the random vectors in the forms of a family."""
    names = dict.fromkeys(name for form in family.forms for name in form.coefs)
    return [name for name in names if isinstance(_law(r, name), Normal)]


class Numbers:
    """The numbers of a schedule, computed from the values of its questions.

    means      by family: E of its variables, `(variables,)`
    features   by family: F `(variables, features)`, where F F^T is the covariance that comes from the inputs
    constants  by group: the constant of each part, `(parts,)`; None if all are 1
    scales     by link: var_W times the coefficient of its form, and the coefficients of the other forms
    """

    def __init__(
        self, r: Recorder, families: list[Family], groups: list[CoreGroup], values: dict[Any, Any]
    ) -> None:
        self._r, self._values = r, values
        self.means = [self._means(family) for family in families]
        self.features = [self._features(family) for family in families]
        self.constants = [self._constants(group) for group in groups]
        links = (link for family in families for form in family.forms for link in form.links)
        self.scales = {id(link): self._scales(link) for link in links}
        # Only the results are read from here on.
        self._values = {}

    def _number(self, c: Expr) -> np.ndarray:
        """Return a constant `(inputs,)`, or `(1,)` if all inputs share it."""
        return np.array([c.value]) if isinstance(c, Const) else self._values["constant", c][0]

    def _means(self, family: Family) -> np.ndarray:
        means = np.zeros(family.size)
        for form in family.forms:
            means[form.rows] = self._values["mean", form.expr][0]
        return means

    def _scales(self, link: Link) -> tuple[np.ndarray, np.ndarray]:
        scale = self._values["var", link.matrix] * self._number(link.coef)
        coefs = [np.broadcast_to(self._number(c), n) for c, n in link.coefs]
        return np.broadcast_to(scale, len(link.left.core)), np.concatenate(coefs)

    def _constants(self, group: CoreGroup) -> np.ndarray | None:
        if not any(constants for core in group.cores for constants in core.constants):
            return None
        rows = []
        for core in group.cores:
            columns = [np.broadcast_to(self._product(constants), core.inputs) for constants in core.constants]
            rows.append(np.array(columns, float).T.ravel())
        joined = np.concatenate(rows)
        return None if np.all(joined == 1) else joined

    def _product(self, constants: Iterable[Expr]) -> np.ndarray:
        value = np.ones(1)
        for c in constants:
            value = value * self._number(c)
        return value

    def _features(self, family: Family) -> np.ndarray:
        """Return F: the data that matrices multiply, and a root of the law of random vectors."""
        columns, count = {}, 0
        for name in _random_vectors(self._r, family):
            n = self._r.inputs_of(Ref(name))
            columns[name], count = np.arange(count, count + n), count + n
        coefs, data = np.zeros((family.size, count)), {}
        for form in family.forms:
            rows = form.rows
            for name, coef in form.coefs.items():
                law = _law(self._r, name)
                if name in columns:
                    coefs[np.arange(rows.start, rows.stop), columns[name]] = self._number(coef)
                elif isinstance(law, Embedding):
                    x = np.asarray(self._values["data", name][0], float)
                    table = data.setdefault(law.matrix, np.zeros((family.size, x.shape[1])))
                    table[rows] += np.reshape(self._number(coef), (-1, 1)) * x
        # The covariance may be singular, so Cholesky could fail; an eigendecomposition gives a root anyway.
        variances, vectors = np.linalg.eigh(self._covariance(columns, count))
        root = vectors * np.sqrt(np.clip(variances, 0.0, None))
        scaled = [np.sqrt(self._values["var", m] / x.shape[1]) * x for m, x in data.items()]
        # Features stay as they are: a rotation to fewer columns would mix rows, and tiles of a store with
        # landmarks would no longer belong to one matrix.
        return np.concatenate([*scaled, coefs @ root], axis=1)

    def _covariance(self, columns: dict[str, np.ndarray], count: int) -> np.ndarray:
        """Return the covariance of the random vectors of a family, `(count, count)`."""
        covariance = np.zeros((count, count))
        for name in columns:
            for other in columns:
                block = self._values["cov", name, other]
                if block is not None:
                    covariance[np.ix_(columns[name], columns[other])] = block[0]
        return covariance
