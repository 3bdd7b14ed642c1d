"""The tables of Gaussian variables and of exact atoms of a schedule, filled in the order of first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.expect.closed_forms import find
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Expr, Ref, refs
from netsor.lang.program import Embedding, Input, MatMul
from netsor.limits.expectation import known_function
from netsor.limits.forms import Atom
from netsor.limits.pairs import Pair
from netsor.limits.schedule import ExactAtom, Factor, Family, Form, Link, Peer, Rows, State
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
            combinations = {form: self.vectors.combination(form) for form in members}
            names = dict.fromkeys(name for combination in combinations.values() for name in combination)
            places, total = self._inputs(list(names))
            weights, family.mean = np.zeros((family.size, total)), np.zeros(family.size)
            for form, combination in combinations.items():
                rows = self.forms[form]
                family.mean[rows] = self.engine.mean(form)[0]
                for name in combination.keys() & places.keys():
                    weights[np.arange(rows.start, rows.stop), places[name]] = combination[name]
            family.static = weights @ self._covariance(places, total) @ weights.T

    def _inputs(self, names: list[str]) -> tuple[dict[str, np.ndarray], int]:
        """The rows of inputs in a table of their own, and their number."""
        places, start = {}, 0
        for name in names:
            if isinstance(self.engine.program.definitions[name], Input):
                n = self.engine.inputs_of(Ref(name))
                places[name], start = np.arange(start, start + n), start + n
        return places, start

    def _covariance(self, places: dict[str, np.ndarray], total: int) -> np.ndarray:
        """The covariance of inputs; the data that one matrix multiplies are one product."""
        engine, cov = self.engine, np.zeros((total, total))
        data: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for name in places:
            source = engine.program.definitions[name]
            assert isinstance(source, Input)
            if isinstance(source.law, Embedding):
                x = evaluate(source.law.data, {n: engine.data[n] for n in refs(source.law.data)}).array[0]
                data.setdefault(source.law.matrix, []).append((places[name], np.asarray(x, float)))
                continue
            for other in places:
                block = engine.cov(Ref(name), Ref(other), Pair(False), False)
                if block is not None:
                    cov[np.ix_(places[name], places[other])] = block[0]
        for matrix, members in data.items():
            rows, x = (np.concatenate(parts) for parts in zip(*members, strict=True))
            cov[np.ix_(rows, rows)] = engine.variance(matrix) * (x @ x.T) / x.shape[1]
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
        np.broadcast_to(coefs, n)[:, None] * joined([c for _, _, c in others]),
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
