"""The tables of Gaussian variables and of exact atoms of a schedule, filled in the order of first use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np

from netsor.lang.expr import Expr, refs
from netsor.lang.program import MatMul
from netsor.limits.methods.closed import closed_pair
from netsor.limits.methods.near_parallel import NearParallel
from netsor.limits.recursion.forms import Atom
from netsor.limits.sampling.schedule import ExactAtom, Factor, Family, Form, Link, Peer, State, Table
from netsor.limits.sampling.vectors import Vectors

__all__ = ["Variables", "spread"]

Term = tuple[slice, State, Expr]  # the rows of a form, a vector in it behind a matrix, its coefficient
Kind = tuple[Expr, bool]  # the function of an atom, and whether its variable is centred


class Variables:
    """Families by number, and the rows of forms and atoms that have come so far."""

    def __init__(self, vectors: Vectors, states: dict[Expr, State]) -> None:
        self.r, self.vectors, self.states = vectors.r, vectors, states
        self.families: list[Family] = []
        self.forms: dict[Expr, slice] = {}
        self.atoms: dict[Atom, slice] = {}
        self._numbers: dict[str, int] = {}
        self._kinds: list[dict[Kind, tuple[Atom, list[slice], list[slice]]]] = []
        self._meetings: set[tuple[int, Kind, Kind]] = set()
        self._terms: dict[tuple[int, str], list[Term]] = {}

    def number(self, family: str) -> int:
        if family not in self._numbers:
            self._numbers[family] = len(self.families)
            self.families.append(Family(family, family in self.vectors.drawn))
            self._kinds.append({})
        return self._numbers[family]

    def family_of(self, form: Expr) -> int:
        known = self.r.forms.families
        return self.number(next(known[name] for name in refs(form) if name in known))

    def add_form(self, form: Expr, new: list[Form]) -> slice:
        """The rows of a form; if it has none yet, it is one of the new ones."""
        if form not in self.forms:
            number = self.family_of(form)
            family = self.families[number]
            rows = slice(family.size, family.size + self.r.inputs_of(form))
            family.size = rows.stop
            self.forms[form] = rows
            coefs = self.vectors.combination(form)
            assert coefs is not None
            new.append(Form(form, number, rows, tuple(self._links(coefs, number, rows)), coefs))
            family.forms.append(new[-1])
        return self.forms[form]

    def _links(self, coefs: dict[str, Expr], family: int, rows: slice) -> Iterator[Link]:
        """What the products with matrices in a form contribute to its covariances."""
        own: list[tuple[str, Term]] = []
        for name, coef in coefs.items():
            source = self.r.program.definitions[name]
            if isinstance(source, MatMul):
                term = rows, self.states[self.r.forms.operand_of(source)], coef
                own.append((source.matrix, term))
                self._terms.setdefault((family, source.matrix), []).append(term)
        for matrix, term in own:
            for others in _without_repeats(self._terms[family, matrix]):
                for odd in term[1].pieces:
                    alike = [other for other in others if odd in other[1].pieces]
                    if alike:
                        yield _link(matrix, term, alike, odd)

    def meet(self, atoms: Iterable[tuple[str, Atom]]) -> None:
        """Note that the expectations of products of these atoms, each with its family, are needed."""
        kinds: dict[int, set[Kind]] = {}
        for family, atom in atoms:
            kinds.setdefault(self.number(family), set()).add(self._kind(atom))
        self._meetings.update((n, a, b) for n, some in kinds.items() for a, b in product(some, repeat=2))

    def _kind(self, atom: Atom) -> Kind:
        return atom.body, self.r.forms.is_centred(atom.forms[0])

    def add_atom(self, atom: Atom, forms: list[Form], new: list[ExactAtom]) -> slice:
        """The rows of an exact atom; if it has none yet, it is one of the new ones."""
        if atom not in self.atoms:
            (form,) = atom.forms
            places, number = self.add_form(form, forms), self.family_of(form)
            family, kinds = self.families[number], self._kinds[number]
            self.atoms[atom] = rows = slice(family.atoms, family.atoms + places.stop - places.start)
            family.atoms = rows.stop
            own = self._kind(atom)
            _, its_rows, its_forms = kinds.setdefault(own, (atom, [], []))
            its_rows.append(rows)
            its_forms.append(places)
            peers = {
                kind: self._peer(number, kind, atom, own[1], *members)
                for kind, members in kinds.items()
                if (number, own, kind) in self._meetings
            }
            new.append(ExactAtom(atom, number, rows, places, tuple(peers.values()), peers[own]))
        return self.atoms[atom]

    def _peer(
        self,
        family: int,
        kind: tuple[Expr, bool],
        atom: Atom,
        centred: bool,
        peer: Atom,
        rows: Any,
        forms: Any,
    ) -> Peer:
        rule = closed_pair(atom.body, peer.body, centred and kind[1])
        parallel = rule.parallel if rule else NearParallel.of(atom.body, peer.body, closed=False)
        return Peer(
            (family, *kind),
            peer,
            rule,
            parallel,
            _as_slice(_row_numbers(rows)),
            _as_slice(_row_numbers(forms)),
        )


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


def _link(matrix: str, term: Term, others: list[Term], odd: frozenset[str]) -> Link:
    """The covariances of a form with others, all with the same matrix, of pieces that are odd in the same
    families."""
    rows, piece, coef = term[0], term[1].pieces[odd], term[2]
    n, sizes = rows.stop - rows.start, [r.stop - r.start for r, _, _ in others]

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.broadcast_to(x, m) for x, m in zip(parts, sizes, strict=True)])

    factors = []
    for family, own in piece.factors.items():  # the same families for all vectors that one matrix multiplies
        other = joined([s.pieces[odd].factors[family] for _, s, _ in others])
        factors.append(Factor(family, np.broadcast_to(own, n), other))
    return Link(
        matrix,
        piece.group,
        np.broadcast_to(piece.core, n),
        joined([s.pieces[odd].core for _, s, _ in others]),
        tuple(factors),
        coef,
        tuple((c, m) for (_, _, c), m in zip(others, sizes, strict=True)),
        _row_numbers([r for r, _, _ in others]),
    )


def spread(rows: slice, n: int) -> np.ndarray:
    """Row numbers for n inputs; a row that all inputs share is repeated."""
    return np.broadcast_to(np.arange(rows.start, rows.stop), n)


def _as_slice(rows: np.ndarray) -> Table:
    """Row numbers as a slice if they are neighbours."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if np.array_equal(rows, np.arange(first, last + 1)) else rows


def _row_numbers(slices: list[slice]) -> np.ndarray:
    return np.concatenate([np.arange(s.start, s.stop) for s in slices])
