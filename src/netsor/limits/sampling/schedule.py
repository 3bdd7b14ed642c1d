"""From vectors to a schedule: vectors as factors and cores, cores as parts, parts as rows of tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from netsor.lang.components import components
from netsor.lang.expr import Apply, Expr
from netsor.limits.rules.atoms import Atom
from netsor.limits.rules.setting import Setting
from netsor.limits.sampling.recursions import (
    ONE,
    Core,
    CoreGroup,
    CoreKey,
    Follows,
    Whole,
    find_recursions,
    joined,
    spread,
)
from netsor.limits.sampling.variables import Family, SampledRow, Variables, VectorStep
from netsor.limits.sampling.vectors import NeededVector, Part, Piece, RowKey, Vectors


@dataclass(frozen=True)
class Schedule:
    """The tables and steps of all vectors that fit.

    pools     by pool, its number of sampled rows
    together  by pool, a number that is the same if vectors have parts in several pools
    alive     largest number of rows of values of expressions that are kept at the same time
    """

    families: list[Family]
    groups: list[CoreGroup]
    pools: list[int]
    together: list[int]
    steps: list[VectorStep]
    vectors: dict[Expr, NeededVector]
    alive: int

    @cached_property
    def stages(self) -> list[list[VectorStep]]:
        """The steps, grouped by depth."""
        return [list(steps) for _, steps in groupby(self.steps, lambda step: step.depth)]

    @property
    def work(self) -> int:
        """Approximate number of multiply-adds per sample point."""
        return sum(map(self.work_of, self.steps))

    def work_of(self, step: VectorStep) -> int:
        """Return this number for one step, which combines its new rows with all rows so far."""
        drawn = (form.rows for form in step.forms if self.families[form.family].drawn)
        total = sum((rows.stop - rows.start) * rows.stop for rows in drawn)
        if step.core:
            new, group = step.core.parts.stop - step.core.parts.start, self.groups[step.core.group]
            total += new * (2 * step.core.rows.stop if group.recursion else step.core.parts.stop)
        return total


# From vectors to a schedule


def schedule_of(x: Setting, most_states: int = 0) -> Schedule | None:
    """Return the schedule of the vectors that outputs need, or None if it has nothing to sample.

    most_states   largest number of values that recursions may keep for each sample point
    """
    vectors = Vectors(x)
    if not any(part.row for vector in vectors.needed.values() for part in vector.parts):
        return None
    return _ScheduleBuilder(vectors, most_states).schedule()


class _VectorPiece(NamedTuple):
    """Parts of a vector that are odd in the same families, as common factors (None is 1) and a core."""

    odd: frozenset[str]
    parts: list[Part]
    factors: dict[str, Atom | None]
    core: CoreKey


class _ScheduleBuilder:
    def __init__(self, vectors: Vectors, most_states: int) -> None:
        self.vectors, self.r, self.most_states = vectors, vectors.r, most_states
        self.variables = Variables(vectors)
        self.by_parts: dict[Whole, CoreKey] = {}
        self.group_of: dict[CoreKey, int] = {}
        self.follows: dict[CoreKey, Follows] = {}
        self.groups: list[list[Core]] = []
        self.pool_of: dict[int, int] = {}  # by group
        self.pools: list[int] = []
        self.together: list[int] = []
        self.rows: dict[tuple[int, RowKey], slice] = {}
        self.cores: dict[CoreKey, Core] = {}
        self.steps: list[VectorStep] = []
        self.uses: dict[Expr, tuple[int, int]] = {}  # the first and the last step that reads an expression

    def schedule(self) -> Schedule:
        needed = self.vectors.needed
        pieces = self.split(list(needed.values()))
        for vector in needed.values():
            for p in pieces[vector.expr]:
                vector.pieces[p.odd] = self.add_piece(p, vector.inputs, vector.depth)
        families = self.variables.families
        groups = [CoreGroup.of(self.pool_of[k], cores) for k, cores in enumerate(self.groups)]
        for number, rows in ((f, rows) for group in groups for f, rows in group.atoms.items()):
            families[number].means |= bool(np.any(rows == 0))
        # Values are kept until the last step that reads them, then dropped.
        change = np.zeros(len(self.steps) + 1, int)
        for expr, (first, last) in self.uses.items():
            self.steps[last].expired.append(expr)
            change[first] += self.r.inputs_of(expr)
            change[last + 1] -= self.r.inputs_of(expr)
        alive = int(change.cumsum().max())
        return Schedule(families, groups, self.pools, self.together, self.steps, needed, alive)

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
        shared = {expr: set.intersection(*(set(p.exact) for p in parts)) for expr, parts in sums.items()}
        exact = {expr: {item for p in parts for item in p.exact} for expr, parts in sums.items()}
        # A family is a factor of all vectors of a cluster or of none: a link multiplies factor by factor.
        varying = {family for expr in sums for family, _ in exact[expr] - shared[expr]}
        common = sorted({family for items in exact.values() for family, _ in items} - varying)
        self.variables.meet(atom for items in shared.values() for family, atom in items if family in common)
        pieces = {}
        for expr, parts in sums.items():
            key = tuple(p._replace(exact=tuple(x for x in p.exact if x[0] in varying)) for p in parts)
            inputs, factors = self.vectors.needed[expr].inputs, dict(shared[expr])
            core = self.by_parts.setdefault((frozenset(key), inputs), CoreKey(key, inputs))
            pieces[expr] = _VectorPiece(odd, parts, {f: factors.get(f) for f in common}, core)
        return pieces

    def group(self, used: dict[CoreKey, set[Any]]) -> None:
        """Divide cores into groups that have second moments, groups into pools, and find recursions."""
        sets = components(list(used), lambda core: used[core])
        sets = joined(sets, self.most_states, self.by_parts)
        # Groups with a common sampled row share a pool, so that no values are kept twice.
        rows = [{part.row for core in cores for part in core.parts} for cores in sets]
        pools = components(list(range(len(sets))), lambda k: rows[k])
        self.group_of = {core: k for k, cores in enumerate(sets) for core in cores}
        self.pool_of = {k: pool for pool, members in enumerate(pools) for k in members}
        self.groups = [[] for _ in sets]
        for cores in sets:
            self.variables.meet(atom for core in cores for part in core.parts for _, atom in part.exact)
            self.follows |= find_recursions(cores, self.most_states, self.by_parts)
        self.pools = [0] * len(pools)
        clusters = [{k for n in pool for core in sets[n] for k, _ in used[core]} for pool in pools]
        together = components(list(range(len(pools))), lambda pool: clusters[pool])
        self.together = [next(k for k, alike in enumerate(together) if p in alike) for p in range(len(pools))]

    # Rows

    def add_piece(self, piece: _VectorPiece, n: int, depth: int) -> Piece:
        """Add a step: what this piece is the first to need of forms, atoms, sampled rows and its core."""
        step = VectorStep(depth)
        self.steps.append(step)
        # The atoms of parts come first: their rows are needed for the core.
        for part in piece.parts:
            for _, atom in part.exact:
                self.variables.add_atom(atom, step)
        if piece.core not in self.cores:
            self.cores[piece.core] = step.core = self.add_core(piece.core, step)
        core, factors = self.cores[piece.core], {}
        for name, atom in piece.factors.items():
            number = self.variables.number(name)
            factors[number] = spread(self.variables.atoms[atom] if atom else ONE, n)
            self.variables.families[number].means |= atom is None
        return Piece(core.group, spread(core.rows, n), factors)

    def add_core(self, key: CoreKey, step: VectorStep) -> Core:
        number, variables, follows = self.group_of[key], self.variables, self.follows.get(key)
        group, pool, parts = self.groups[number], self.pool_of[number], key.parts
        before = factor = None
        # Only a core that has rows already can be multiplied.
        if follows and follows.before in self.cores:
            parts = tuple(key.parts[k] for k in follows.new)
            before, factor = self.cores[follows.before].rows, self.add_row((follows.factor,), pool, step)
        first, first_part = (group[-1].rows.stop, group[-1].parts.stop) if group else (0, 0)
        core = Core(
            group=number,
            rows=slice(first, first + key.inputs),
            parts=slice(first_part, first_part + key.inputs * len(parts)),
            constants=[part.constants for part in parts],
            sampled=[self.add_row(part.row, pool, step) for part in parts],
            atoms=[{variables.number(f): variables.atoms[atom] for f, atom in p.exact} for p in parts],
            before=before,
            factor=factor,
        )
        group.append(core)
        return core

    def add_row(self, key: RowKey, pool: int, step: VectorStep) -> slice:
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
            self.variables.add_form(form, step)
        exprs = exprs[:1] if times else exprs
        for expr in exprs:
            self.use(expr)
        n = max([1, *map(self.r.inputs_of, exprs), times.stop - times.start if times else 1])
        self.rows[pool, key] = place = slice(self.pools[pool], self.pools[pool] + n)
        self.pools[pool] = place.stop
        step.rows.append(SampledRow(place, exprs, times))
        return place

    def use(self, expr: Expr) -> None:
        """Note the step that reads the values of an expression, and of its arguments if it is new."""
        step, is_new = len(self.steps) - 1, expr not in self.uses
        self.uses[expr] = step if is_new else self.uses[expr][0], step
        if is_new and isinstance(expr, Apply) and expr not in self.variables.forms:
            for arg in expr.args:
                self.use(arg)
