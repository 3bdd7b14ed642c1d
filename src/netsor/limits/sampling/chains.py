"""Which cores are linear recursions, and which of these hold others: found from what they are sums of.

The state of a GRU is a multiple of the state before it and something new (`Follows`). What is new may hold
another core, as the share of the update gate in a tangent has the state before it (`Nest`). The second
moments of such chains take T^2 products at a sample point; see `recursions` and `nested`. The loops are
compiled by Numba (the extra `fast`); without it, and where there is little to gain, vectors are written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from netsor.limits.on_numpy.loops import is_available
from netsor.limits.recursion.forms import Atom

__all__ = ["CoreKey", "Follows", "Known", "Nest", "PartKey", "find_recursions", "joined"]

GAIN = 6  # how many products of written-out parts cost as much as one step of the loop
HELD = 4  # how many parts cost as much as one that holds a core

PartKey = tuple[Any, Any, tuple[tuple[str, Atom], ...]]  # constants, sampled row, exact atoms by family
Whole = tuple[frozenset[PartKey], int]  # what a core is a sum of, in any order
Known = Mapping[Whole, "CoreKey"]


@dataclass(frozen=True)
class CoreKey:
    """What a core is a sum of, and for how many inputs."""

    parts: tuple[PartKey, ...]
    inputs: int

    @cached_property
    def _hash(self) -> int:
        return hash((self.parts, self.inputs))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def whole(self) -> Whole:
        return frozenset(self.parts), self.inputs


@dataclass(frozen=True)
class Nest:
    """Parts of a core that are a sampled factor and exact atoms times another core.

    part     the factor and the atoms, as a part that holds the core
    core     what it holds
    factor   what multiplies the core that the row before holds, or None
    own      the parts that the held core has beside it
    """

    part: PartKey
    core: CoreKey
    factor: Atom | None
    own: tuple[PartKey, ...]


@dataclass(frozen=True)
class Follows:
    """A core is `factor` times the core `before`, its `own` parts (by their numbers), and what it holds."""

    before: CoreKey
    factor: Atom
    own: tuple[int, ...]
    nest: Nest | None = None


def find_recursions(cores: Sequence[CoreKey], room: int, known: Known) -> dict[CoreKey, Follows]:
    """Which cores of a group follow which, if it is worth it; no two follow the same one.

    room    numbers that may be kept for each sample point, if that takes more than written-out parts
    known   all cores, which may be within these
    """
    if not is_available():
        return {}
    found: dict[CoreKey, Follows] = {}
    free = set(cores)
    for core in cores:
        options = [f for f in _options(core, known) if f.before in free]
        if options:
            found[core] = min(options, key=lambda f: len(f.own))
            free.remove(found[core].before)
    nested = _with_nests(found, known)
    found = nested if _is_less(nested, found) else found
    return found if _is_worth_it(cores, found, room) else {}


def joined(sets: Sequence[list[CoreKey]], room: int, known: Known) -> list[list[CoreKey]]:
    """Sets of cores with second moments, each with those that go on where it ends: one recursion serves both.

    As the last state, which only outputs read.
    """
    made = [list(cores) for cores in sets]
    home = {core: cores for cores in made for core in cores}
    for cores in list(made):
        other = next((home[f.before] for f in _options(cores[0], known) if home[f.before] is not cores), None)
        if other is None:
            continue
        follows = find_recursions([*other, *cores], room, known)
        if all(core in follows and home[follows[core].before] is other for core in cores):
            made = [some for some in made if some is not cores]
            other += cores
            home.update(dict.fromkeys(cores, other))
    return made


def _options(core: CoreKey, known: Known) -> list[Follows]:
    """Every way to see a core as a factor times another one and something new."""
    multiples: dict[Atom, dict[int, PartKey]] = {}
    for k, (constants, row, exact) in enumerate(core.parts):
        if isinstance(row, tuple) and row:
            multiples.setdefault(row[0], {})[k] = constants, row[1:], exact
    options = []
    for factor, rest in multiples.items():
        before = known.get((frozenset(rest.values()), core.inputs))
        if before is not None and len(rest) < len(core.parts):
            own = tuple(k for k in range(len(core.parts)) if k not in rest)
            options.append(Follows(before, factor, own))
    return options


# Cores within parts


def _with_nests(found: Mapping[CoreKey, Follows], known: Known) -> dict[CoreKey, Follows]:
    """The same recursions, in which new parts that are multiples of another core hold it.

    No atoms of held cores are of the families that multiply them.
    """
    made: dict[CoreKey, Follows] = {}
    for core, follows in found.items():  # in the order of the program
        before = made.get(follows.before)
        made[core] = _nested(core, follows, before.nest if before else None, known)
    nests = [f.nest for f in made.values() if f.nest]
    around = {family for nest in nests for family, _ in nest.part[2]}
    inside = {family for nest in nests for _, _, exact in nest.own for family, _ in exact}
    return made if around.isdisjoint(inside) else dict(found)


def _nested(core: CoreKey, follows: Follows, before: Nest | None, known: Known) -> Follows:
    """A core with the one that its new parts hold, of those that go on from what the row before holds."""
    multiples: dict[PartKey, dict[int, PartKey]] = {}
    for k in follows.own:
        for part, rest in _quotients(core.parts[k]):
            multiples.setdefault(part, {})[k] = rest
    for part, rest in sorted(multiples.items(), key=lambda item: -len(item[1])):
        held = known.get((frozenset(rest.values()), core.inputs))
        nest = _nest(part, held, before) if held is not None and len(held.parts) == len(rest) else None
        if nest:
            return replace(follows, own=tuple(k for k in follows.own if k not in rest), nest=nest)
    return follows


def _quotients(part: PartKey) -> Iterable[tuple[PartKey, PartKey]]:
    """Every way to see a part as a sampled atom, with or without one exact atom, times another part."""
    constants, row, exact = part
    for k, atom in enumerate(row if isinstance(row, tuple) else ()):
        for some in ((), *((item,) for item in exact)):
            rest = tuple(item for item in exact if item not in some)
            yield ((), (atom,), some), (constants, (*row[:k], *row[k + 1 :]), rest)


def _nest(part: PartKey, held: CoreKey, before: Nest | None) -> Nest | None:
    if before is None:
        return Nest(part, held, None, held.parts)
    for option in _options(held, {before.core.whole: before.core}):
        return Nest(part, held, option.factor, tuple(held.parts[k] for k in option.own))
    return None


# What is worth it


def _weight(found: Mapping[CoreKey, Follows]) -> int:
    """The parts that recursions have beside what they follow, about."""
    return sum(core.inputs * (len(f.own) + (HELD if f.nest else 0)) for core, f in found.items())


def _is_less(nested: Mapping[CoreKey, Follows], plain: Mapping[CoreKey, Follows]) -> bool:
    """Whether cores within parts are less work than all of their parts."""
    return _weight(nested) < _weight(plain)


def _is_worth_it(cores: Sequence[CoreKey], found: Mapping[CoreKey, Follows], room: int) -> bool:
    """Whether a loop over rows takes less time than products of all parts, and has the memory."""
    rows = sum(core.inputs for core in cores)
    parts = sum(core.inputs * len(core.parts) for core in cores)
    own = _weight(found) + sum(core.inputs * len(core.parts) for core in cores if core not in found)
    chains = rows - sum(core.inputs for core in found)
    states = chains * rows * (4 if any(f.nest for f in found.values()) else 1)
    return parts**2 > GAIN * (rows + own) ** 2 and states <= max(parts, room)
