"""From vectors to a schedule: vectors as factors and cores, cores as parts, parts as rows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from netsor.lang.components import components
from netsor.lang.expr import Apply, Expr, Ref, refs
from netsor.lang.program import MatMul
from netsor.limits.methods.closed import closed_pair
from netsor.limits.methods.near_parallel import NearParallel
from netsor.limits.rules.atoms import Atom
from netsor.limits.rules.setting import Setting
from netsor.limits.sampling.records import (
    AtomKind,
    Core,
    CoreGroup,
    ExactAtom,
    Family,
    Form,
    Link,
    Piece,
    Recursion,
    SampledRow,
    Schedule,
    Table,
    VectorPieces,
    VectorStep,
)
from netsor.limits.sampling.recursions import CoreKey, Follows, PartKey, RowKey, find_recursions, joined
from netsor.limits.sampling.vectors import NeededVector, Part, Vectors

Term = tuple[slice, VectorPieces, Expr]  # rows of a form with W h, the vector h, and the coefficient of W h
Kind = tuple[Expr, bool]  # the function of an atom, and whether its variable is centred


def schedule_of(x: Setting, most_states: int = 0) -> Schedule | None:
    """Return the schedule of the vectors that outputs need, or None if it has nothing to sample.

    most_states   largest number of values that recursions may keep for each sample point
    """
    vectors = Vectors(x)
    if not any(part.row for vector in vectors.needed.values() for part in vector.parts):
        return None
    return _ScheduleBuilder(vectors, most_states).schedule()


# Variables and exact atoms


class _Variables:
    """Numbers of families, and the rows of the forms and atoms so far."""

    def __init__(self, vectors: Vectors, pieces: dict[Expr, VectorPieces]) -> None:
        self.r, self.vectors, self.pieces = vectors.r, vectors, pieces
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
        families = self.r.forms.families
        return self.number(next(families[name] for name in refs(form) if name in families))

    def add_form(self, form: Expr, new: list[Form]) -> slice:
        """Return the rows of a form; give it rows, and add it to `new`, if it has none yet."""
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
        """Yield the contributions of the products with matrices in a form to its covariances."""
        new: list[tuple[str, Term]] = []
        for name, coef in coefs.items():
            source = self.r.program.definitions[name]
            if isinstance(source, MatMul):
                term = rows, self.pieces[self.r.forms.resolved(Ref(source.operand))], coef
                new.append((source.matrix, term))
                self._terms.setdefault((family, source.matrix), []).append(term)
        for matrix, term in new:
            for terms in _without_repeats(self._terms[family, matrix]):
                for odd in term[1].pieces:
                    # Pieces that are odd in different families have no second moments.
                    alike = [t for t in terms if odd in t[1].pieces]
                    if alike:
                        yield _link(matrix, term, alike, odd)

    def meet(self, atoms: Iterable[tuple[str, Atom]]) -> None:
        """Note that E of products of these atoms, each given with its family, is needed."""
        kinds: dict[int, set[Kind]] = {}
        for family, atom in atoms:
            kinds.setdefault(self.number(family), set()).add(self._kind(atom))
        self._meetings.update((n, a, b) for n, alike in kinds.items() for a, b in product(alike, repeat=2))

    def _kind(self, atom: Atom) -> Kind:
        return atom.body, self.r.forms.is_centred(atom.forms[0])

    def add_atom(self, atom: Atom, new_forms: list[Form], new: list[ExactAtom]) -> slice:
        """Return the rows of an exact atom; give it rows, and add it to `new`, if it has none yet."""
        if atom not in self.atoms:
            (form,) = atom.forms
            forms, number = self.add_form(form, new_forms), self.family_of(form)
            family, members = self.families[number], self._kinds[number]
            self.atoms[atom] = rows = slice(family.atoms, family.atoms + forms.stop - forms.start)
            family.atoms = rows.stop
            kind = self._kind(atom)
            _, kind_rows, kind_forms = members.setdefault(kind, (atom, [], []))
            kind_rows.append(rows)
            kind_forms.append(forms)
            kinds = {
                met: self._atom_kind(number, met, atom, kind[1], *members[met])
                for met in members
                if (number, kind, met) in self._meetings
            }
            new.append(ExactAtom(atom, number, rows, forms, tuple(kinds.values()), kinds[kind]))
        return self.atoms[atom]

    def _atom_kind(
        self, family: int, kind: Kind, atom: Atom, centred: bool, met: Atom, rows: Any, forms: Any
    ) -> AtomKind:
        rule = closed_pair(atom.body, met.body, centred and kind[1])
        parallel = rule.parallel if rule else NearParallel.of(atom.body, met.body, closed=False)
        tables = (_as_slice(_row_numbers(slices)) for slices in (rows, forms))
        return AtomKind((family, *kind), met, rule, parallel, *tables)


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


def _spread(rows: slice, n: int) -> np.ndarray:
    """Return row numbers for n inputs; repeat a row that all inputs share."""
    return np.broadcast_to(np.arange(rows.start, rows.stop), n)


def _as_slice(rows: np.ndarray) -> Table:
    """Return row numbers as a slice if they are consecutive: a slice of a table is no copy."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if np.array_equal(rows, np.arange(first, last + 1)) else rows


def _row_numbers(slices: list[slice]) -> np.ndarray:
    return np.concatenate([np.arange(s.start, s.stop) for s in slices])


# Vectors, cores and parts


@dataclass
class _VectorPiece:
    """Parts of a vector that are odd in the same families, as common factors (None is 1) and a core."""

    odd: frozenset[str]
    parts: list[Part]
    factors: dict[str, Atom | None]
    core: CoreKey


@dataclass
class _GroupLists:
    """The parts of a group while they are collected; see `CoreGroup` and `Recursion`."""

    pool: int
    size: int = 0
    count: int = 0
    plain: bool = True
    sampled: list[np.ndarray] = field(default_factory=list)
    starts: list[np.ndarray] = field(default_factory=list)
    atoms: list[tuple[int, list[dict[int, np.ndarray]]]] = field(default_factory=list)
    constants: list[tuple[list[tuple[Expr, ...]], int]] = field(default_factory=list)
    before: list[np.ndarray] = field(default_factory=list)
    factor: list[np.ndarray] = field(default_factory=list)

    def add(
        self,
        keys: Sequence[PartKey],
        sampled: list[np.ndarray],
        atoms: list[dict[int, np.ndarray]],
        before: np.ndarray,
        factor: np.ndarray,
    ) -> tuple[slice, slice]:
        """Add the parts of the rows of a new core; return these rows and parts."""
        n = len(factor)
        parts = np.stack(sampled, axis=1).ravel() if sampled else np.zeros(0, int)
        self.plain &= np.array_equal(parts, np.arange(self.count, self.count + len(parts)))
        self.sampled.append(parts)
        self.starts.append(self.count + len(keys) * np.arange(n))
        self.atoms.append((n, atoms))
        self.constants.append(([constants for constants, _, _ in keys], n))
        self.before.append(before)
        self.factor.append(factor)
        self.count += len(parts)
        self.size += n
        return slice(self.size - n, self.size), slice(self.count - len(parts), self.count)

    def group(self, families: list[Family]) -> CoreGroup:
        atoms: dict[int, np.ndarray] = {}
        for number in sorted({f for _, parts in self.atoms for part in parts for f in part}):
            columns = []
            for n, parts in self.atoms:
                # Parts without an atom of this family point to row 0, the number 1.
                none = np.zeros(n, int)
                if parts:
                    columns.append(np.stack([part.get(number, none) for part in parts], axis=1).ravel())
            atoms[number] = np.concatenate(columns)
            families[number].means |= bool(np.any(atoms[number] == 0))
        before, factor = np.concatenate(self.before), np.concatenate(self.factor)
        recursion = Recursion.of(before, factor) if np.any(before >= 0) else None
        sampled, starts = np.concatenate(self.sampled), np.concatenate(self.starts)
        return CoreGroup(self.pool, self.size, sampled, starts, atoms, self.constants, recursion)


class _ScheduleBuilder:
    def __init__(self, vectors: Vectors, most_states: int) -> None:
        self.vectors, self.r, self.most_states = vectors, vectors.r, most_states
        self.pieces: dict[Expr, VectorPieces] = {}
        self.variables = _Variables(vectors, self.pieces)
        self.group_of: dict[CoreKey, int] = {}
        self.follows: dict[CoreKey, Follows] = {}
        self.groups: list[_GroupLists] = []
        self.pools: list[int] = []
        self.together: list[int] = []
        self.rows: dict[tuple[int, RowKey], slice] = {}
        self.cores: dict[CoreKey, Core] = {}
        self.steps: list[VectorStep] = []
        self.first_use: dict[Expr, int] = {}
        self.last_use: dict[Expr, int] = {}

    def schedule(self) -> Schedule:
        pieces = self.split(list(self.vectors.needed.values()))
        for vector in self.vectors.needed.values():
            added = {p.odd: self.add_piece(p, vector.inputs, vector.depth) for p in pieces[vector.expr]}
            self.pieces[vector.expr] = VectorPieces(vector.cluster, vector.inputs, added)
        families = self.variables.families
        groups = [lists.group(families) for lists in self.groups]
        expired: list[list[Expr]] = [[] for _ in self.steps]
        # Values are kept until the last step that reads them, then dropped.
        for expr, step in self.last_use.items():
            expired[step].append(expr)
        steps = [replace(step, expired=tuple(e)) for step, e in zip(self.steps, expired, strict=True)]
        return Schedule(families, groups, self.pools, self.together, steps, self.pieces, self.most_alive())

    def most_alive(self) -> int:
        """Return the largest number of rows of values that are kept at the same time."""
        change = np.zeros(len(self.steps) + 1, int)
        for expr, last in self.last_use.items():
            size = self.r.inputs_of(expr)
            change[self.first_use[expr]] += size
            change[last + 1] -= size
        return int(change.cumsum().max())

    # Factors and cores

    def split(self, vectors: list[NeededVector]) -> dict[Expr, list[_VectorPiece]]:
        """Write each vector as factors times cores, and group the cores that have second moments."""
        pieces: dict[Expr, list[_VectorPiece]] = {v.expr: [] for v in vectors}
        used: dict[CoreKey, set[Any]] = {}
        for k, cluster in enumerate(components(vectors, lambda v: v.uses)):
            by_odd: dict[frozenset[str], dict[Expr, list[Part]]] = {}
            for v in cluster:
                v.cluster = k
                for part in v.parts:
                    by_odd.setdefault(self.vectors.odd_families(part), {}).setdefault(v.expr, []).append(part)
            for odd, sums in by_odd.items():
                for expr, piece in self.factored(odd, sums).items():
                    pieces[expr].append(piece)
                    used.setdefault(piece.core, set()).add((k, odd))
        self.group(used)
        return pieces

    def factored(self, odd: frozenset[str], sums: dict[Expr, list[Part]]) -> dict[Expr, _VectorPiece]:
        """Take out the atoms that all parts of each vector have in common."""
        names = {f for parts in sums.values() for part in parts for f in part.exact}
        # A family is a factor of all vectors of a cluster or of none: a link multiplies factor by factor.
        common = sorted(f for f in names if all(_is_common(parts, f) for parts in sums.values()))
        firsts = [parts[0].exact for parts in sums.values()]
        self.variables.meet((f, a) for exact in firsts for f, a in exact.items() if f in common)
        pieces = {}
        for expr, parts in sums.items():
            core = CoreKey(tuple(_without(part, common) for part in parts), self.vectors.needed[expr].inputs)
            pieces[expr] = _VectorPiece(odd, parts, {f: parts[0].exact.get(f) for f in common}, core)
        return pieces

    def group(self, used: dict[CoreKey, set[Any]]) -> None:
        """Divide cores into groups that have second moments, groups into pools, and find recursions."""
        by_parts = {core.whole: core for core in used}
        sets = joined(components(list(used), lambda core: used[core]), self.most_states, by_parts)
        # Groups with a common sampled row share a pool, so that no values are kept twice.
        rows = [{row for core in cores for _, row, _ in core.parts} for cores in sets]
        pools = components(list(range(len(sets))), lambda k: rows[k])
        self.group_of = {core: k for k, cores in enumerate(sets) for core in cores}
        pool_of = {k: pool for pool, members in enumerate(pools) for k in members}
        self.groups = [_GroupLists(pool=pool_of[k]) for k in range(len(sets))]
        for cores in sets:
            self.variables.meet(item for core in cores for _, _, exact in core.parts for item in exact)
            self.follows |= find_recursions(cores, self.most_states, by_parts)
        self.pools = [0] * len(pools)
        clusters = [{k for n in pool for core in sets[n] for k, _ in used[core]} for pool in pools]
        together = components(list(range(len(pools))), lambda pool: clusters[pool])
        self.together = [next(k for k, alike in enumerate(together) if p in alike) for p in range(len(pools))]

    # Rows

    def add_piece(self, piece: _VectorPiece, n: int, depth: int) -> Piece:
        """Add a step: what this piece is the first to need of forms, atoms, sampled rows and its core."""
        forms: list[Form] = []
        atoms: list[ExactAtom] = []
        rows: list[SampledRow] = []
        # The atoms of parts come first: their rows are needed for the core.
        for part in piece.parts:
            for atom in part.exact.values():
                self.variables.add_atom(atom, forms, atoms)
        is_new = piece.core not in self.cores
        if is_new:
            self.cores[piece.core] = self.add_core(piece.core, forms, rows)
        core = self.cores[piece.core]
        self.steps.append(
            VectorStep(tuple(forms), tuple(atoms), tuple(rows), core if is_new else None, depth)
        )
        factors = {}
        for name, atom in piece.factors.items():
            number = self.variables.number(name)
            factors[number] = _spread(self.variables.atoms[atom], n) if atom else np.zeros(n, int)
            self.variables.families[number].means |= atom is None
        return Piece(core.group, _spread(core.rows, n), factors)

    def add_core(self, key: CoreKey, forms: list[Form], rows: list[SampledRow]) -> Core:
        n, number, variables = key.inputs, self.group_of[key], self.variables
        group, follows = self.groups[number], self.follows.get(key)
        if follows and follows.before not in self.cores:  # the core before has no rows yet
            follows = None

        def sampled(row: RowKey) -> np.ndarray:
            return _spread(self.add_row(row, group.pool, forms, rows), n)

        before, factor = np.full((2, n), -1)
        if follows:
            before, factor = _spread(self.cores[follows.before].rows, n), sampled((follows.factor,))
        keys = [key.parts[k] for k in follows.new] if follows else key.parts
        part_rows = [sampled(row) for _, row, _ in keys]
        atoms = [
            {variables.number(f): _spread(variables.atoms[atom], n) for f, atom in exact}
            for _, _, exact in keys
        ]
        core_rows, parts = group.add(keys, part_rows, atoms, before, factor)
        return Core(number, core_rows, parts, self.pools[group.pool], group.plain)

    def add_row(self, key: RowKey, pool: int, forms: list[Form], rows: list[SampledRow]) -> slice:
        """Return the rows of sampled values in their pool; build a product from a known one if possible."""
        if (pool, key) in self.rows:
            return self.rows[pool, key]
        if isinstance(key, tuple):
            exprs, used = tuple(atom.expr for atom in key), [form for atom in key for form in atom.forms]
            # A product is a new atom times a known product, if the schedule has that: one multiplication.
            times = self.rows.get((pool, key[1:])) if len(key) > 1 else None
        else:
            exprs, used, times = (key,), self.r.forms.maximal_forms(key), None
        for form in used:
            self.variables.add_form(form, forms)
        exprs = exprs[:1] if times else exprs
        for expr in exprs:
            self.use(expr)
        n = max([1, *map(self.r.inputs_of, exprs), times.stop - times.start if times else 1])
        self.rows[pool, key] = place = slice(self.pools[pool], self.pools[pool] + n)
        self.pools[pool] = place.stop
        rows.append(SampledRow(place, exprs, times))
        return place

    def use(self, expr: Expr) -> None:
        """Note the step that reads the values of an expression, and of its arguments if it is new."""
        is_new = expr not in self.last_use
        self.first_use.setdefault(expr, len(self.steps))
        self.last_use[expr] = len(self.steps)
        if is_new and isinstance(expr, Apply) and expr not in self.variables.forms:
            for arg in expr.args:
                self.use(arg)


def _is_common(parts: list[Part], family: str) -> bool:
    return len({part.exact.get(family) for part in parts}) == 1


def _without(part: Part, common: list[str]) -> PartKey:
    """Return a part without the atoms of some families, as the key of a part of a core."""
    exact = tuple((f, a) for f, a in sorted(part.exact.items()) if f not in common)
    return part.constants, part.row, exact
