"""In which order to compute a graph: what does the same at once, what repeats in a loop.

Nodes that do the same have a colour. Colours that need each other in turn are a recurrence: the layers of a
deep network, the tokens of a sequence. Everything else is computed colour by colour. The nodes of a
recurrence have levels, by the longest way within it; where the colours of the levels repeat with a period,
one period is the body of a loop. A level may have more nodes than the next one (pairs of tokens: fewer and
fewer have a next token); then nodes are repeated, so that all rounds of a loop are equally wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from netsor.limits.tape.graph import Graph

__all__ = ["Batch", "Carried", "Group", "Loop", "Schedule", "Slot", "schedule"]

FEWEST_ROUNDS = 4
MOST_PADDING, LITTLE_PADDING = 4.0, 1.4  # a loop computes at most so many times what it stands for
LARGE = 2**21  # elements of all results of a loop, beyond which padding costs more than compiling
ROUNDS = (2, 1, 4)  # how far back nodes are compared, until a short schedule is found
SHORT = 150

Table = np.ndarray  # (rounds, members) of nodes or positions


@dataclass(frozen=True)
class Batch:
    """Nodes of one operation that do not need each other."""

    nodes: list[int]


@dataclass
class Slot:
    """Where an argument of a group comes from, as positions in a row of values put one after the other:

    those of groups of the same round (`now`), those carried from the round before, those known before the
    loop (`given`).
    """

    width: int  # members, or 1 if all members read the same value
    shared: int | None = None  # one node for all members and rounds
    now: list[int] = field(default_factory=list)
    carried: int | None = None
    given: int | None = None
    index: Table | None = None  # None: the row as it is


@dataclass(frozen=True)
class Carried:
    """What a round leaves for the next one: positions in the values of its groups put one after the other."""

    first: np.ndarray  # nodes, before the first round
    groups: list[int]
    index: Table | None


@dataclass
class Group:
    """The nodes of one colour and level of all rounds."""

    nodes: Table
    slots: list[Slot] = field(default_factory=list)
    kept: str = ""  # "all" if values of all rounds are read after the loop, "last" if those of the last only

    @property
    def width(self) -> int:
        return self.nodes.shape[1]


@dataclass
class Loop:
    """A body of groups in order, computed `rounds` times; `given` are tables of nodes known before."""

    rounds: int
    groups: list[Group]
    carried: list[Carried] = field(default_factory=list)
    given: list[Table] = field(default_factory=list)


Schedule = list[Batch | Loop]


def schedule(graph: Graph) -> Schedule:
    """The shortest schedule that is found."""
    best: Schedule | None = None
    for rounds in ROUNDS:
        made = _Scheduler(graph, graph.colours(rounds)).run()
        if best is None or length(made) < length(best):
            best = made
        if length(best) <= SHORT:
            break
    assert best is not None
    return best


def length(parts: Schedule) -> int:
    """How many computations are written down."""
    return sum(len(part.groups) if isinstance(part, Loop) else 1 for part in parts)


class _Scheduler:
    def __init__(self, graph: Graph, colour: list[int]) -> None:
        self.graph, self.colour = graph, colour
        self.round = np.full(len(graph), -1)  # of the loop that is being built
        self.group = np.zeros(len(graph), int)
        self.position = np.zeros(len(graph), int)

    def run(self) -> Schedule:
        parts: Schedule = []
        for nodes, recurrent in _strata(self.graph, self.colour):
            parts += self._recurrence(nodes) if recurrent else [Batch(nodes)]
        self._mark_kept(parts)
        return parts

    # Levels of a recurrence

    def _recurrence(self, nodes: list[int]) -> Schedule:
        level: dict[int, int] = {}
        levels: list[dict[int, list[int]]] = []
        for v in nodes:
            at = level[v] = 1 + max((level.get(s, -1) for s in self.graph.reads[v]), default=-1)
            if at == len(levels):
                levels.append({})
            levels[at].setdefault(self.colour[v], []).append(v)
        seen: dict[frozenset[int], int] = {}
        signatures = np.array([seen.setdefault(frozenset(x), len(seen)) for x in levels])
        return list(self._rolled(levels, signatures, 0, len(levels)))

    def _rolled(self, levels: list, signatures: np.ndarray, start: int, stop: int) -> Iterator[Batch | Loop]:
        """The levels from start to stop, with the loop that saves most and others before and after it."""
        for first, period, rounds in _repetitions(levels, signatures, start, stop):
            while rounds >= FEWEST_ROUNDS:
                loop = self._loop(levels, first, period, rounds)
                if loop:
                    yield from self._rolled(levels, signatures, start, first)
                    yield loop
                    yield from self._rolled(levels, signatures, first + period * rounds, stop)
                    return
                rounds = (rounds + 1) // 2
        for at in range(start, stop):
            yield from (Batch(nodes) for nodes in levels[at].values())

    # Loops

    def _loop(self, levels: list, first: int, period: int, rounds: int) -> Loop | None:
        """The loop over these levels, or None if a round reads more than the round before it."""
        groups = []
        for at in range(first, first + period):
            for colour in levels[at]:
                groups.append([levels[at + k * period][colour] for k in range(rounds)])
        wide = [max(map(len, lists)) for lists in groups]
        if self._is_wasteful(groups, wide):
            return None
        loop = Loop(rounds, [Group(_padded(lists, n)) for lists, n in zip(groups, wide, strict=True)])
        for g, group in enumerate(loop.groups):
            self.round[group.nodes] = np.arange(rounds)[:, None]
            self.group[group.nodes] = g
        for lists in groups:
            for nodes in lists:
                self.position[nodes] = np.arange(len(nodes))
        done = all(self._fill(loop, group) for group in loop.groups)
        for group in loop.groups:
            self.round[group.nodes] = -1
        return loop if done else None

    def _is_wasteful(self, groups: list[list[list[int]]], wide: list[int]) -> bool:
        made = useful = 0
        for lists, width in zip(groups, wide, strict=True):
            operation = self.graph.operations[self.graph.operation[lists[0][0]]]
            assert operation is not None
            made += operation.size * width * len(lists)
            useful += operation.size * sum(map(len, lists))
        return made > useful * (LITTLE_PADDING if made > LARGE else MOST_PADDING)

    def _fill(self, loop: Loop, group: Group) -> bool:
        reads = np.array([[self.graph.reads[v] for v in row] for row in group.nodes.tolist()], dtype=int)
        for k in range(reads.shape[2] if reads.ndim == 3 else 0):
            slot = self._slot(loop, reads[:, :, k])
            if slot is None:
                return False
            group.slots.append(slot)
        return True

    def _slot(self, loop: Loop, source: Table) -> Slot | None:
        if (source == source[0, 0]).all():
            return Slot(1, shared=int(source[0, 0])) if self.round[source[0, 0]] < 0 else None
        if (source == source[:, :1]).all():
            source = source[:, :1]
        k = np.arange(loop.rounds)[:, None]
        made = self.round[source]
        now, before, outside = made == k, (made == k - 1) & (made >= 0), made < 0
        if not (now | before | outside).all():
            return None
        carried = before | (outside & (k == 0)) if before.any() else np.zeros_like(before)
        given, width = outside & ~carried, source.shape[1]
        if before.any() and not carried[0].any():
            return None
        slot, index, offset = Slot(width), np.zeros(source.shape, int), 0
        for g in np.unique(self.group[source[now]]).tolist():
            mine = now & (self.group[source] == g)
            index[mine] = offset + self.position[source[mine]]
            slot.now.append(g)
            offset += loop.groups[g].width
        columns = np.broadcast_to(np.arange(width), source.shape)
        if carried.any():
            slot.carried = self._carry(loop, source, carried)
            index[carried] = offset + columns[carried]
            offset += width
        if given.any():
            slot.given = _kept_once(loop.given, np.where(given, source, source[given][0]))
            index[given] = offset + columns[given]
            offset += width
        slot.index = _unless_plain(index, offset)
        return slot

    def _carry(self, loop: Loop, source: Table, carried: Table) -> int:
        first = np.where(carried[0], source[0], source[0][carried[0]][0])
        later, wanted = source[1:], carried[1:]
        groups = np.unique(self.group[later[wanted]]).tolist()
        index, offset = np.zeros(source.shape, int), 0
        for g in groups:
            mine = wanted & (self.group[later] == g)
            index[:-1][mine] = offset + self.position[later[mine]]
            offset += loop.groups[g].width
        index[-1] = index[-2]  # what is left at the end is not read
        made = Carried(first, groups, _unless_plain(index, offset))
        for at, other in enumerate(loop.carried):
            if _same(made, other):
                return at
        loop.carried.append(made)
        return len(loop.carried) - 1

    # What is read after a loop

    def _mark_kept(self, parts: Schedule) -> None:
        part = np.zeros(len(self.graph), int)
        for at, p in enumerate(parts):
            for nodes in [g.nodes for g in p.groups] if isinstance(p, Loop) else [p.nodes]:
                part[nodes] = at
        read = np.zeros(len(self.graph), bool)
        read[self.graph.outputs] = True
        for v, sources in enumerate(self.graph.reads):
            for s in sources:
                if part[s] != part[v]:
                    read[s] = True
        for p in parts:
            for group in p.groups if isinstance(p, Loop) else []:
                group.kept = "all" if read[group.nodes[:-1]].any() else ""
                group.kept = group.kept or ("last" if read[group.nodes[-1]].any() else "")


def _padded(lists: list[list[int]], width: int) -> Table:
    """Nodes of all rounds; short rounds repeat their last node."""
    return np.array([nodes + nodes[-1:] * (width - len(nodes)) for nodes in lists])


def _unless_plain(index: Table, size: int) -> Table | None:
    plain = size == index.shape[1] and (index == np.arange(size)).all()
    return None if plain else index


def _kept_once(tables: list[Table], table: Table) -> int:
    for at, other in enumerate(tables):
        if np.array_equal(other, table):
            return at
    tables.append(table)
    return len(tables) - 1


def _same(a: Carried, b: Carried) -> bool:
    if a.groups != b.groups or not np.array_equal(a.first, b.first):
        return False
    if a.index is None or b.index is None:
        return a.index is b.index
    return np.array_equal(a.index, b.index)


def _repetitions(
    levels: list, signatures: np.ndarray, start: int, stop: int
) -> Iterator[tuple[int, int, int]]:
    """First level, period and number of rounds of repeating levels, those first that save most."""
    found = []
    size = np.concatenate([[0], np.cumsum([len(level) for level in levels])])
    for period in range(1, (stop - start) // FEWEST_ROUNDS + 1):
        same = signatures[start : stop - period] == signatures[start + period : stop]
        for first, count in _runs(same):
            rounds = count // period + 1
            if rounds >= FEWEST_ROUNDS:
                first += start
                saved = size[first + period * rounds] - size[first + period]
                found.append((-saved, period, first, rounds))
    return ((first, period, rounds) for _, period, first, rounds in sorted(found))


def _runs(same: np.ndarray) -> Iterator[tuple[int, int]]:
    """Start and length of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(int)))
    for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield a, b - a


# Recurrences


def _strata(graph: Graph, colour: list[int]) -> Iterator[tuple[list[int], bool]]:
    """Nodes that are computed together, in order, and whether their colours need each other in turn."""
    count = max(colour, default=-1) + 1
    needs: list[set[int]] = [set() for _ in range(count)]
    nodes: list[list[int]] = [[] for _ in range(count)]
    for v, reads in enumerate(graph.reads):
        if graph.operations[graph.operation[v]] is not None:
            nodes[colour[v]].append(v)
            needs[colour[v]].update(colour[s] for s in reads)
    for component in _components(needs):
        members = sorted(v for c in component for v in nodes[c])
        if members:
            yield members, len(component) > 1 or component[0] in needs[component[0]]


def _components(needs: list[set[int]]) -> Iterator[list[int]]:
    """Strongly connected components, each after those that it needs (Tarjan 1972)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    waiting: list[int] = []
    open_: set[int] = set()
    for root in range(len(needs)):
        path: list[tuple[int, Iterator[int]]] = [] if root in number else [(root, iter(()))]
        while path:
            v, rest = path[-1]
            if v not in number:
                number[v] = low[v] = len(number)
                waiting.append(v)
                open_.add(v)
                rest = iter(needs[v])
                path[-1] = (v, rest)
            for w in rest:
                if w not in number:
                    path.append((w, iter(())))
                    break
                if w in open_:
                    low[v] = min(low[v], number[w])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[v])
                if low[v] == number[v]:
                    at = waiting.index(v)
                    component = waiting[at:]
                    del waiting[at:]
                    open_.difference_update(component)
                    yield component
