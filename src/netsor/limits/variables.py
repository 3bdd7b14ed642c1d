"""The tables of Gaussian variables and of exact atoms of a schedule, filled in the order of first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.expect.closed.forms import find
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Expr, Ref, refs
from netsor.lang.program import Embedding, Input, MatMul, Normal
from netsor.limits.expectation import known_function
from netsor.limits.forms import Atom
from netsor.limits.pairs import Pair
from netsor.limits.schedule import ExactAtom, Factor, Family, Form, Link, Peer, Rows, State, Static
from netsor.limits.vectors import Vectors, resolved

if TYPE_CHECKING:
    from netsor.limits.engine import Engine

__all__ = ["Variables", "spread"]

Term = tuple[slice, State, np.ndarray]  # the rows of a form, a vector in it behind a matrix, coefficients


class Variables:
    """Families by number, and the rows of forms and atoms that have come so far."""

    def __init__(self, vectors: Vectors, states: dict[Expr, State]) -> None:
        self.engine: Engine = vectors.engine
        self.vectors, self.states = vectors, states
        self.families: list[Family] = []
        self.forms: dict[Expr, slice] = {}
        self.atoms: dict[Atom, slice] = {}
        self._numbers: dict[str, int] = {}
        self._members: list[list[Expr]] = []
        self._kinds: list[dict[tuple[Expr, bool], tuple[Atom, list[slice], list[slice]]]] = []
        self._terms: dict[tuple[int, str], list[Term]] = {}

    def number(self, family: str) -> int:
        if family not in self._numbers:
            self._numbers[family] = len(self.families)
            self.families.append(Family(family, family in self.vectors.drawn))
            self._members.append([])
            self._kinds.append({})
        return self._numbers[family]

    def family_of(self, form: Expr) -> int:
        known = self.engine.forms.families
        return self.number(next(known[name] for name in refs(form) if name in known))

    def add_form(self, form: Expr, new: list[Form]) -> slice:
        """The rows of a form; if it has none yet, it is one of the new ones."""
        if form not in self.forms:
            number = self.family_of(form)
            family = self.families[number]
            rows = slice(family.size, family.size + self.engine.inputs_of(form))
            family.size = rows.stop
            self.forms[form] = rows
            self._members[number].append(form)
            new.append(Form(form, number, rows, tuple(self._links(form, number, rows))))
        return self.forms[form]

    def _links(self, form: Expr, family: int, rows: slice) -> Iterator[Link]:
        """What the products with matrices in a form contribute to its covariances."""
        own: list[tuple[str, State, np.ndarray]] = []
        for name, coefs in self.vectors.combination(form).items():
            source = self.engine.program.definitions[name]
            if isinstance(source, MatMul):
                state = self.states[resolved(self.engine, source.operand)]
                own.append((source.matrix, state, coefs))
                self._terms.setdefault((family, source.matrix), []).append((rows, state, coefs))
        for matrix, state, coefs in own:
            scaled = (rows, state, self.engine.variance(matrix) * coefs)
            for others in _without_repeats(self._terms[family, matrix]):
                yield _link(scaled, others)

    def add_atom(self, atom: Atom, forms: list[Form], new: list[ExactAtom]) -> slice:
        """The rows of an exact atom; if it has none yet, it is one of the new ones."""
        if atom not in self.atoms:
            (form,) = atom.forms
            places, number = self.add_form(form, forms), self.family_of(form)
            family, kinds = self.families[number], self._kinds[number]
            self.atoms[atom] = rows = slice(family.atoms, family.atoms + places.stop - places.start)
            family.atoms = rows.stop
            centred = self.engine.expectations.is_centred(form)
            _, its_rows, its_forms = kinds.setdefault((atom.body, centred), (atom, [], []))
            its_rows.append(rows)
            its_forms.append(places)
            peers = {kind: _peer(number, kind, atom, centred, *members) for kind, members in kinds.items()}
            new.append(
                ExactAtom(atom, number, rows, places, tuple(peers.values()), peers[atom.body, centred])
            )
        return self.atoms[atom]

    # Means, and covariances that do not depend on second moments

    def finish(self) -> None:
        for family, members in zip(self.families, self._members, strict=True):
            family.mean = np.zeros(family.size)
            for form in members:
                family.mean[self.forms[form]] = self.engine.mean(form)[0]
            family.static = self._static(family.size, members)

    def _static(self, size: int, members: list[Expr]) -> Static:
        """Data by the matrix that multiplies them, and the coefficients of random vectors."""
        columns, start = self._random_vectors(members)
        weights, data = np.zeros((size, start)), {}
        for form in members:
            rows = self.forms[form]
            for name, coefs in self.vectors.combination(form).items():
                source = self.engine.program.definitions[name]
                if name in columns:
                    weights[np.arange(rows.start, rows.stop), columns[name]] = coefs
                elif isinstance(source, Input) and isinstance(source.law, Embedding):
                    x = self._data(source.law)
                    table = data.setdefault(source.law.matrix, np.zeros((size, x.shape[1])))
                    table[rows] += np.reshape(coefs, (-1, 1)) * x
        scaled = [np.sqrt(self.engine.variance(m) / x.shape[1]) * x for m, x in data.items()]
        joined = np.concatenate([np.zeros((size, 0)), *scaled], axis=1)
        if joined.shape[1] > size:
            joined = np.asarray(np.linalg.qr(joined.T, mode="r")).T  # the same products of rows
        return Static(joined, weights, self._covariance(columns, start))

    def _data(self, law: Embedding) -> np.ndarray:
        blocks = {name: self.engine.data[name] for name in refs(law.data)}
        return np.asarray(evaluate(law.data, blocks).array[0], float)

    def _random_vectors(self, members: list[Expr]) -> tuple[dict[str, np.ndarray], int]:
        """The columns of random vectors in a table of their own, and how many there are."""
        places, start = {}, 0
        for name in dict.fromkeys(name for form in members for name in self.vectors.combination(form)):
            source = self.engine.program.definitions[name]
            if isinstance(source, Input) and isinstance(source.law, Normal):
                n = self.engine.inputs_of(Ref(name))
                places[name], start = np.arange(start, start + n), start + n
        return places, start

    def _covariance(self, places: dict[str, np.ndarray], total: int) -> np.ndarray:
        cov = np.zeros((total, total))
        for name in places:
            for other in places:
                block = self.engine.cov(Ref(name), Ref(other), Pair(False), False)
                if block is not None:
                    cov[np.ix_(places[name], places[other])] = block[0]
        return cov


def _peer(
    family: int, kind: tuple[Expr, bool], atom: Atom, centred: bool, peer: Atom, rows: Any, forms: Any
) -> Peer:
    f, g = known_function(atom), known_function(peer)
    rule = find(*f, *g, zero_mean=centred and kind[1]) if f and g else None
    return Peer((family, *kind), peer, rule, _as_slice(_numbers(rows)), _as_slice(_numbers(forms)))


def _without_repeats(terms: list[Term]) -> list[list[Term]]:
    """Lists of terms in which no form occurs twice."""
    lists: list[list[Term]] = []
    seen: dict[int, int] = {}
    for term in terms:
        k = seen[term[0].start] = seen.get(term[0].start, -1) + 1
        if k == len(lists):
            lists.append([])
        lists[k].append(term)
    return lists


def _link(term: Term, others: list[Term]) -> Link:
    """The covariances of a form with others, all with the same matrix."""
    rows, state, coefs = term
    n, sizes = rows.stop - rows.start, [r.stop - r.start for r, _, _ in others]

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.broadcast_to(x, m) for x, m in zip(parts, sizes, strict=True)])

    factors = []
    for family, own in state.factors.items():  # the same families for all vectors that one matrix multiplies
        other = joined([s.factors[family] for _, s, _ in others])
        factors.append(Factor(family, np.broadcast_to(own, n), other))
    return Link(
        state.group,
        np.broadcast_to(state.core, n),
        joined([s.core for _, s, _ in others]),
        tuple(factors),
        np.broadcast_to(coefs, n),
        joined([c for _, _, c in others]),
        _numbers([r for r, _, _ in others]),
    )


def spread(rows: slice, n: int) -> np.ndarray:
    """Row numbers for n inputs; a row that all inputs share is repeated."""
    return np.broadcast_to(np.arange(rows.start, rows.stop), n)


def _as_slice(rows: np.ndarray) -> Rows:
    """Row numbers as a slice if they are neighbours."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if np.array_equal(rows, np.arange(first, last + 1)) else rows


def _numbers(slices: list[slice]) -> np.ndarray:
    return np.concatenate([np.arange(s.start, s.stop) for s in slices])
