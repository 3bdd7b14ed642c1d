"""The Gaussian variables and exact atoms of a schedule: their rows in tables, and numbers from the inputs.

The *rows* of a table are the variables of a family, or the atoms of an exact family, in the order in which
they become known, one row for each input. Rows depend on shapes alone; means, data, coefficients and
variances (`Numbers`) are one step of the recording, which a run computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import product
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from netsor.lang.expr import Const, Expr, Ref, refs
from netsor.lang.program import Embedding, MatMul, Normal
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
from netsor.limits.sampling.vectors import Piece, Vectors
from netsor.limits.tape.traced import Traced

Table = slice | np.ndarray  # row numbers of a table
Kind = tuple[int, Expr, bool]  # the family and function of an atom, and whether its variable is centred


@dataclass(eq=False)
class MatrixTerms:
    """Products c W h in the forms of a family, each form once: a row for each form and input.

    products  the pieces of the vectors h, odd in the same families; the rows of the forms; the coefficients c
    """

    matrix: str
    products: list[tuple[Piece, slice, Expr]] = field(default_factory=list)
    size: int = 0

    def add(self, piece: Piece, form: slice, coef: Expr) -> slice:
        """Add a product, and return its rows."""
        self.products.append((piece.spread(_count(form)), form, coef))
        self.size += _count(form)
        return slice(self.size - _count(form), self.size)

    @cached_property
    def piece(self) -> Piece:
        """The pieces of all products, one after the other."""
        return Piece.joined([piece for piece, _, _ in self.products])

    @cached_property
    def forms(self) -> np.ndarray:
        return np.concatenate([np.r_[form] for _, form, _ in self.products])


@dataclass
class Family:
    """Gaussian variables that depend on each other: one row for each form and input.

    drawn   whether the family is sampled
    size    number of variables so far
    atoms   number of rows in the table of products of exact atoms; row 0 is the number 1
    means   whether row 0 is needed, which holds the expectations of the atoms
    terms   products with matrices, by matrix, families in which they are odd, and occurrence in a form
    """

    drawn: bool
    size: int = 0
    atoms: int = 1
    means: bool = False
    forms: list[Form] = field(default_factory=list)
    terms: dict[tuple[str, frozenset[str], int], MatrixTerms] = field(default_factory=dict)


class Link(NamedTuple):
    """Rows of products c W h, and all products c' W h' up to `stop`: c c' var_W E[h h'] is a covariance."""

    terms: MatrixTerms
    rows: slice
    others: MatrixTerms
    stop: int


@dataclass(frozen=True)
class Form:
    """A Gaussian variable: its rows in its family, and where its covariances come from.

    coefs   by name, the coefficients of the inputs and of the products with matrices that it adds up
    """

    expr: Expr
    family: int
    rows: slice
    links: list[Link]
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
        return max((_count(form.rows) for form in self.forms), default=0)


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
            family.forms.append(Form(form, number, rows, self._links(coefs, family, rows), coefs))
            step.forms.append(family.forms[-1])
        return self.forms[form]

    def _links(self, coefs: dict[str, Expr], family: Family, rows: slice) -> list[Link]:
        """Return the contributions of the products with matrices in a form to its covariances."""
        new = []
        seen: Counter[str] = Counter()
        for name, coef in coefs.items():
            source = self.r.program.definitions[name]
            if isinstance(source, MatMul):
                vector = self.vectors.needed[self.r.forms.resolved(Ref(source.operand))]
                for odd, piece in vector.pieces.items():
                    key = source.matrix, odd, seen[source.matrix]
                    terms = family.terms.setdefault(key, MatrixTerms(source.matrix))
                    new.append((key, terms, terms.add(piece, rows, coef)))
                seen[source.matrix] += 1
        # Pieces that are odd in different families have no second moments.
        return [
            Link(terms, places, others, others.size)
            for key, terms, places in new
            for other, others in family.terms.items()
            if key[:2] == other[:2]
        ]

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
            self.atoms[atom] = rows = slice(family.atoms, family.atoms + _count(forms))
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
        atom, *tables = self._kinds[met]
        rows, forms = (as_slice(np.concatenate([np.r_[s] for s in slices])) for slices in tables)
        return AtomKind(met, atom, rule, parallel, rows, forms)


def as_slice(rows: np.ndarray) -> Table:
    """Return row numbers as a slice if they are consecutive: a slice of a table is no copy."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if np.array_equal(rows, np.arange(first, last + 1)) else rows


def _count(rows: slice) -> int:
    return rows.stop - rows.start


# Numbers


@dataclass(frozen=True)
class Numbers:
    """What a schedule reads from data and parameters.

    means      by family: E of its variables, `(variables,)`
    features   by family: F `(variables, features)`, where F F^T is the covariance that comes from the inputs
    coefs      the coefficients of products with a matrix, and the variance of the matrix
    constants  by group: the constant of each part, `(parts,)`; None if all are 1
    """

    means: list[np.ndarray]
    features: list[np.ndarray]
    coefs: dict[MatrixTerms, tuple[np.ndarray, float]]
    constants: list[np.ndarray | None]


def numbers_of(r: Recorder, families: list[Family], groups: list[CoreGroup]) -> Traced:
    """Record the step that computes the numbers of a schedule."""
    terms = [terms for family in families for terms in family.terms.values()]
    means = [[[r.ask(mean, f.expr).array, _count(f.rows)] for f in family.forms] for family in families]
    coefs = [[[_number(r, c), _count(form)] for _, form, c in t.products] for t in terms]
    variances = [r.variance(t.matrix) for t in terms]
    constants = [
        [[[_number(r, c) for c in part] for part in core.constants] for core in group.cores]
        for group in groups
    ]
    sources = [_sources(r, family) for family in families]

    def run(
        means: list[Any], sources: list[Any], coefs: list[Any], variances: list[Any], constants: list[Any]
    ) -> Numbers:
        return Numbers(
            [_joined(of_forms) for of_forms in means],
            [_features(f.size, *of_family) for f, of_family in zip(families, sources, strict=True)],
            {t: (_joined(c), var) for t, c, var in zip(terms, coefs, variances, strict=True)},
            [_constants(group, parts) for group, parts in zip(groups, constants, strict=True)],
        )

    return r.tape.call(run, (means, sources, coefs, variances, constants), (), np.float64)


def _number(r: Recorder, c: Expr) -> Any:
    """Return a constant `(1, inputs)`, or `(1, 1)` if all inputs share it."""
    return np.array([[c.value]]) if isinstance(c, Const) else r.ask(constant, c).array


def _joined(numbers: list[tuple[np.ndarray, int]]) -> np.ndarray:
    return np.concatenate([np.broadcast_to(x[0], n) for x, n in numbers])


def _constants(group: CoreGroup, constants: list[list[list[np.ndarray]]]) -> np.ndarray | None:
    if not any(part for parts in constants for part in parts):
        return None
    rows = []
    for core, parts in zip(group.cores, constants, strict=True):
        columns = [np.broadcast_to(reduce(mul, [np.ones(1), *(c[0] for c in p)]), core.inputs) for p in parts]
        rows.append(np.array(columns, float).T.ravel())
    joined = np.concatenate(rows)
    return None if np.all(joined == 1) else joined


def _sources(r: Recorder, family: Family) -> list[Any]:
    """Return what `_features` reads: data that matrices multiply, random vectors and their covariances."""
    data: dict[str, list[Any]] = {}
    vectors: dict[str, list[Any]] = {}
    for form in family.forms:
        for name, coef in form.coefs.items():
            law = getattr(r.program.definitions[name], "law", None)
            if isinstance(law, Embedding):
                data.setdefault(law.matrix, []).append([form.rows, _number(r, coef), embedded_data(r, law)])
            elif isinstance(law, Normal):
                vectors.setdefault(name, []).append([form.rows, _number(r, coef)])
    blocks = [[r.ask(cov, Ref(a), Ref(b), Pair(False)) for b in vectors] for a in vectors]
    return [
        [[r.variance(matrix), terms] for matrix, terms in data.items()],
        [[r.inputs_of(Ref(name)), terms] for name, terms in vectors.items()],
        [[block and block.array for block in row] for row in blocks],
    ]


def _features(size: int, data: list[Any], vectors: list[Any], blocks: list[Any]) -> np.ndarray:
    """Return F: the data that matrices multiply, and a root of the law of random vectors."""
    columns = []
    for variance, terms in data:
        table = np.zeros((size, terms[0][2].shape[-1]))
        for rows, coef, x in terms:
            table[rows] += coef[0][:, None] * np.asarray(x[0], float)
        columns.append(np.sqrt(variance / table.shape[1]) * table)
    counts = [count for count, _ in vectors]
    coefs, covariance = np.zeros((size, sum(counts))), np.zeros((sum(counts), sum(counts)))
    places = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1]) if counts else []
    for place, (_, terms), row in zip(places, vectors, blocks, strict=True):
        for rows, coef in terms:
            coefs[np.r_[rows], place] = coef[0]
        for other, block in zip(places, row, strict=True):
            covariance[np.ix_(place, other)] = 0.0 if block is None else block[0]
    # The covariance may be singular, so Cholesky could fail; an eigendecomposition gives a root anyway.
    deviations, axes = np.linalg.eigh(covariance)
    root = axes * np.sqrt(np.clip(deviations, 0.0, None))
    # Features stay as they are: a rotation to fewer columns would mix rows, and tiles of a store with
    # landmarks would no longer belong to one matrix.
    return np.concatenate([*columns, coefs @ root], axis=1)
