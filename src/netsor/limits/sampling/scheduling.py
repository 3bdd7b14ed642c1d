"""The schedule of a program: vectors as factors and cores, cores as parts, parts as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from netsor.lang.expr import Apply, Expr
from netsor.limits.recursion.components import components
from netsor.limits.recursion.forms import Atom
from netsor.limits.recursion.recorder import Recorder
from netsor.limits.sampling.chains import CoreKey, Follows, PartKey, find_recursions, joined
from netsor.limits.sampling.schedule import (
    Core,
    ExactAtom,
    Family,
    Form,
    Group,
    Inner,
    Parts,
    Piece,
    Recursion,
    Row,
    Schedule,
    State,
    Step,
)
from netsor.limits.sampling.variables import Variables, spread
from netsor.limits.sampling.vectors import Part, RowKey, Vector, Vectors

__all__ = ["schedule_of"]


def schedule_of(r: Recorder, drawn: frozenset[str], room: int = 0) -> Schedule | None:
    """The schedule of the vectors that outputs need, or None if it has nothing to sample.

    room   numbers that recursions may keep for each sample point
    """
    vectors = Vectors(r, drawn)
    if not any(part.row for vector in vectors.found.values() for part in vector.parts):
        return None
    return _Scheduler(vectors, room).schedule()


@dataclass
class _Piece:
    """Parts of a vector that are odd in the same families, as common factors (None is 1) and a core."""

    odd: frozenset[str]
    parts: list[Part]
    factors: dict[str, Atom | None]
    core: CoreKey


@dataclass
class _PartLists:
    """The parts of some rows as they are collected; `factors` are of the rows that others follow."""

    sampled: list[np.ndarray] = field(default_factory=list)
    atoms: list[tuple[int, list[dict[int, np.ndarray]]]] = field(default_factory=list)
    starts: list[np.ndarray] = field(default_factory=list)
    factors: list[np.ndarray] = field(default_factory=list)
    count: int = 0


@dataclass
class _Lists(_PartLists):
    """The parts of a group, and of cores within them."""

    before: list[np.ndarray] = field(default_factory=list)
    holds: list[np.ndarray] = field(default_factory=list)
    inner: _PartLists = field(default_factory=_PartLists)
    plain: bool = True


class _Scheduler:
    def __init__(self, vectors: Vectors, room: int) -> None:
        self.vectors, self.r, self.room = vectors, vectors.r, room
        self.states: dict[Expr, State] = {}
        self.variables = Variables(vectors, self.states)
        self.group_of: dict[CoreKey, int] = {}
        self.follows: dict[CoreKey, Follows] = {}
        self.groups: list[Group] = []
        self.lists: list[_Lists] = []
        self.pools: list[int] = []
        self.together: list[int] = []
        self.rows: dict[tuple[int, RowKey], slice] = {}
        self.cores: dict[CoreKey, Core] = {}
        self.holding: set[CoreKey] = set()  # cores that hold others
        self.steps: list[Step] = []
        self.first_use: dict[Expr, int] = {}
        self.last_use: dict[Expr, int] = {}

    def schedule(self) -> Schedule:
        pieces = self.cut(list(self.vectors.found.values()))
        for vector in self.vectors.found.values():
            self.add(vector, pieces[vector.expr])
        families = self.variables.families
        for group, lists in zip(self.groups, self.lists, strict=True):
            _finish(group, lists, families)
        expired: list[list[Expr]] = [[] for _ in self.steps]
        for expr, step in self.last_use.items():
            expired[step].append(expr)
        steps = [replace(step, expired=tuple(e)) for step, e in zip(self.steps, expired, strict=True)]
        tables = families, self.groups, self.pools, self.together
        return Schedule(*tables, steps, self.states, *self.most_alive())

    def most_alive(self) -> tuple[int, int]:
        """The most rows of values of expressions that are there at once: within a step, and after one."""
        alive, lasting = np.zeros(len(self.steps) + 1, int), np.zeros(len(self.steps) + 1, int)
        for expr, last in self.last_use.items():
            size, first = self.r.inputs_of(expr), self.first_use[expr]
            alive[first] += size
            alive[last + 1] -= size
            lasting[first] += size
            lasting[last] -= size
        return int(alive.cumsum().max()), int(lasting.cumsum().max())

    # Factors and cores

    def cut(self, vectors: list[Vector]) -> dict[Expr, list[_Piece]]:
        """Each vector as factors times cores, and which cores have second moments with each other."""
        pieces: dict[Expr, list[_Piece]] = {v.expr: [] for v in vectors}
        used: dict[CoreKey, set[Any]] = {}
        for k, cluster in enumerate(components(vectors, lambda v: v.uses)):
            alike: dict[frozenset[str], dict[Expr, list[Part]]] = {}
            for v in cluster:
                v.cluster = k
                for part in v.parts:
                    alike.setdefault(self.vectors.odd_families(part), {}).setdefault(v.expr, []).append(part)
            for odd, sums in alike.items():
                names = {f for parts in sums.values() for part in parts for f in part.exact}
                common = sorted(f for f in names if all(_is_common(parts, f) for parts in sums.values()))
                self.variables.meet(
                    (f, a) for parts in sums.values() for f, a in parts[0].exact.items() if f in common
                )
                for expr, parts in sums.items():
                    own = tuple(_without(part, common) for part in parts)
                    core = CoreKey(own, self.vectors.found[expr].inputs)
                    factors = {f: parts[0].exact.get(f) for f in common}
                    pieces[expr].append(_Piece(odd, parts, factors, core))
                    used.setdefault(core, set()).add((k, odd))
        known = {core.whole: core for core in used}
        sets = joined(components(list(used), lambda core: used[core]), self.room, known)
        rows = [{row for core in cores for _, row, _ in core.parts} for cores in sets]
        pools = components(list(range(len(sets))), lambda k: rows[k])
        self.group_of = {core: k for k, cores in enumerate(sets) for core in cores}
        pool_of = {k: pool for pool, members in enumerate(pools) for k in members}
        self.groups = [Group(pool=pool_of[k]) for k in range(len(sets))]
        for group, cores in zip(self.groups, sets, strict=True):
            self.variables.meet(item for core in cores for _, _, exact in core.parts for item in exact)
            found = find_recursions(cores, self.room, known)
            self.follows |= found
            nests = [f.nest for f in found.values() if f.nest]
            if nests:
                names = {family for nest in nests for family, _ in nest.part[2]}
                group.inner = Inner(families=frozenset(map(self.variables.number, names)))
        self.lists = [_Lists() for _ in sets]
        self.pools = [0] * len(pools)
        clusters = [{k for n in pool for core in sets[n] for k, _ in used[core]} for pool in pools]
        together = components(list(range(len(pools))), lambda pool: clusters[pool])
        self.together = [next(k for k, some in enumerate(together) if p in some) for p in range(len(pools))]
        return pieces

    # Rows

    def add(self, vector: Vector, pieces: list[_Piece]) -> None:
        made = {piece.odd: self.add_piece(piece, vector.inputs, vector.depth) for piece in pieces}
        self.states[vector.expr] = State(vector.cluster, vector.inputs, made)

    def add_piece(self, piece: _Piece, n: int, depth: int) -> Piece:
        """One step: the forms, atoms and sampled rows that this piece is the first to need, and its core."""
        forms: list[Form] = []
        atoms: list[ExactAtom] = []
        rows: list[Row] = []
        for part in piece.parts:
            for atom in part.exact.values():
                self.variables.add_atom(atom, forms, atoms)
        core = self.cores.get(piece.core)
        known = core is not None
        if core is None:
            core = self.cores[piece.core] = self.add_core(piece.core, forms, rows)
        self.steps.append(Step(tuple(forms), tuple(atoms), tuple(rows), None if known else core, depth))
        factors = {}
        for name, atom in piece.factors.items():
            number = self.variables.number(name)
            factors[number] = spread(self.variables.atoms[atom], n) if atom else np.zeros(n, int)
            self.variables.families[number].means |= atom is None
        return Piece(core.group, spread(core.rows, n), factors)

    def add_core(self, key: CoreKey, forms: list[Form], rows: list[Row]) -> Core:
        n = key.inputs
        number = self.group_of[key]
        group, lists, follows = self.groups[number], self.lists[number], self.follows.get(key)
        if follows and follows.before not in self.cores:  # it comes later
            follows = None
        nest = follows.nest if follows else None
        if nest and follows and follows.before not in self.holding:  # what it holds goes on from nothing
            nest = replace(nest, factor=None, own=nest.core.parts)
        own = [key.parts[k] for k in follows.own] if follows else list(key.parts)
        before, factor, scale = np.full((3, n), -1)
        if follows:
            before = spread(self.cores[follows.before].rows, n)
            factor = spread(self.add_row((follows.factor,), group.pool, forms, rows), n)
        if nest and nest.factor:
            scale = spread(self.add_row((nest.factor,), group.pool, forms, rows), n)

        def add(lists: _PartLists, parts: Parts, keys: Sequence[PartKey], factor: np.ndarray) -> slice:
            sampled = [spread(self.add_row(row, group.pool, forms, rows), n) for _, row, _ in keys]
            return self.add_parts(lists, parts, keys, sampled, factor)

        keys = [nest.part, *own] if nest else own
        parts = add(lists, group, keys, factor)
        inner = slice(0, 0)
        if group.inner:
            inner = add(lists.inner, group.inner, nest.own if nest else (), scale)
        lists.plain &= np.array_equal(lists.sampled[-1], np.arange(parts.start, parts.stop))
        if nest:
            self.holding.add(key)
        lists.before.append(before)
        lists.holds.append(np.tile([nest is not None and k == 0 for k in range(len(keys))], n))
        group.size += n
        rows_of = slice(group.size - n, group.size)
        return Core(number, rows_of, parts, self.pools[group.pool], lists.plain, inner)

    def add_parts(
        self,
        lists: _PartLists,
        parts: Parts,
        keys: Sequence[PartKey],
        sampled: list[np.ndarray],
        factor: np.ndarray,
    ) -> slice:
        """The parts of some rows, for as many inputs as there are factors."""
        n, atoms = len(factor), self.variables.atoms
        places = np.stack(sampled, axis=1).ravel() if sampled else np.zeros(0, int)
        lists.sampled.append(places)
        lists.atoms.append(
            (n, [{self.variables.number(f): spread(atoms[a], n) for f, a in exact} for _, _, exact in keys])
        )
        lists.starts.append(lists.count + len(keys) * np.arange(n))
        lists.factors.append(factor)
        parts.factors.append(([constants for constants, _, _ in keys], n))
        lists.count += len(places)
        return slice(lists.count - len(places), lists.count)

    def add_row(self, key: RowKey, pool: int, forms: list[Form], rows: list[Row]) -> slice:
        """The place of sampled values in their pool; a new product is an atom times a row if it can be."""
        if (pool, key) in self.rows:
            return self.rows[pool, key]
        if isinstance(key, tuple):
            exprs, used = tuple(atom.expr for atom in key), [form for atom in key for form in atom.forms]
            rest = self.rows.get((pool, key[1:])) if len(key) > 1 else None
        else:
            exprs, used, rest = (key,), self.r.forms.maximal_forms(key), None
        for form in used:
            self.variables.add_form(form, forms)
        exprs = exprs[:1] if rest else exprs
        for expr in exprs:
            self.use(expr)
        n = max([1, *map(self.r.inputs_of, exprs), rest.stop - rest.start if rest else 1])
        self.rows[pool, key] = place = slice(self.pools[pool], self.pools[pool] + n)
        self.pools[pool] = place.stop
        rows.append(Row(place, exprs, rest))
        return place

    def use(self, expr: Expr) -> None:
        """Note the step at which the values of an expression are read; its parts if it is new."""
        new = expr not in self.last_use
        self.first_use.setdefault(expr, len(self.steps))
        self.last_use[expr] = len(self.steps)
        if new and isinstance(expr, Apply) and expr not in self.variables.forms:
            for arg in expr.args:
                self.use(arg)


def _finish(group: Group, lists: _Lists, families: list[Family]) -> None:
    _join(group, lists, families)
    before = np.concatenate(lists.before)
    group.recursion = Recursion.of(before, np.concatenate(lists.factors)) if np.any(before >= 0) else None
    if group.inner:
        _join(group.inner, lists.inner, families)
        group.inner.factor = np.concatenate(lists.inner.factors)
        group.inner.holds = np.concatenate(lists.holds)


def _join(parts: Parts, lists: _PartLists, families: list[Family]) -> None:
    parts.sampled, parts.starts = np.concatenate(lists.sampled), np.concatenate(lists.starts)
    for number in sorted({f for _, atoms in lists.atoms for part in atoms for f in part}):
        columns = []
        for n, atoms in lists.atoms:
            none = np.zeros(n, int)
            columns += [np.stack([part.get(number, none) for part in atoms], axis=1).ravel()] if atoms else []
        parts.atoms[number] = np.concatenate(columns)
        families[number].means |= bool(np.any(parts.atoms[number] == 0))


def _is_common(parts: list[Part], family: str) -> bool:
    return len({part.exact.get(family) for part in parts}) == 1


def _without(part: Part, common: list[str]) -> tuple[Any, ...]:
    """What tells a part of a core from others."""
    rest = tuple((f, a) for f, a in sorted(part.exact.items()) if f not in common)
    return part.constants, part.row, rest
