"""The schedule of a graph: equal operations as a batch, repeated ones as a loop.

Nodes with the same operation and a similar history have the same colour. Colours that need each other in turn
form a recurrence: the layers of a deep network, the tokens of a sequence. All other nodes are computed colour
by colour. A node of a recurrence has a level, the length of the longest path to it within the recurrence.
Where the colours of the levels repeat with a period, one period is the body of a loop. A level may have more
nodes than the next one (fewer and fewer pairs of tokens have a next token). Then nodes are repeated, so that
all rounds of a loop have the same width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from netsor.limits.tape.graph import Graph

FEWEST_ROUNDS = 4  # fewer rounds compile as fast without a loop

Table = np.ndarray  # (rounds, members) of nodes or of positions


@dataclass(frozen=True)
class Batch:
    """Nodes of one operation that do not need each other."""

    nodes: list[int]


@dataclass
class Slot:
    """Where an argument of a step comes from, as positions in values that are put one after the other.

    First come values of steps of this round (`now`), then of steps of the round before (`before`), then
    nodes computed before the loop (`given`).
    """

    width: int  # number of members, or 1 if all members read the same value
    now: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    given: Table | None = None
    index: Table | None = None  # positions; None if the order is already right


@dataclass
class BodyStep:
    """A step of the body of a loop: the nodes of one colour and level, in all rounds."""

    nodes: Table
    slots: list[Slot] = field(default_factory=list)
    kept: str = ""  # "all" if values of all rounds are read after the loop, "last" if only the last ones are

    @property
    def width(self) -> int:
        return self.nodes.shape[1]

    def columns(self, of_node: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """Return what belongs to each node, such as the nodes that it reads, (items, rounds, members)."""
        return np.moveaxis(np.array([[of_node[v] for v in row] for row in self.nodes.tolist()]), 2, 0)


@dataclass
class Loop:
    """A body of steps in order, run `rounds` times.

    first  by step that the next round reads, and by position in it, the node that the first round reads
    """

    rounds: int
    steps: list[BodyStep]
    first: dict[int, dict[int, int]] = field(default_factory=dict)


Schedule = list[Batch | Loop]


def schedule(graph: Graph) -> Schedule:
    """Return the shortest of the schedules that different colourings give."""
    candidates: list[Schedule] = []
    for rounds in (2, 1, 4):  # how far back to compare nodes: 2 usually finds the loops, so try it first
        candidates.append(_LoopFinder(graph, graph.colours(rounds)).run())
        if length(candidates[-1]) <= 150:  # so few operations compile in seconds in JAX
            break
    return min(candidates, key=length)


def length(parts: Schedule) -> int:
    """Return the number of computations in a schedule, each counted once."""
    return sum(len(part.steps) if isinstance(part, Loop) else 1 for part in parts)


class _LoopFinder:
    def __init__(self, graph: Graph, colour: list[int]) -> None:
        self.graph, self.colour = graph, colour
        self.round = np.full(len(graph), -1)  # of the loop that is being built
        self.step = np.zeros(len(graph), int)
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
        """Yield the levels from start to stop: the loop that saves most, with others before and after it."""
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
        """Return the loop over these levels, or None if a round reads more than the round before it."""
        steps = []
        for at in range(first, first + period):
            for colour in levels[at]:
                steps.append([levels[at + k * period][colour] for k in range(rounds)])
        loop = Loop(rounds, [BodyStep(_padded(lists)) for lists in steps])
        if self._is_wasteful(loop, steps):
            return None
        for g, step in enumerate(loop.steps):
            self.round[step.nodes] = np.arange(rounds)[:, None]
            self.step[step.nodes] = g
            for nodes in steps[g]:
                self.position[nodes] = np.arange(len(nodes))
        complete = all(
            self._add_slot(loop, step, source)
            for step in loop.steps
            for source in step.columns(self.graph.reads)
        )
        for step in loop.steps:
            self.round[step.nodes] = -1
        return loop if complete else None

    def _is_wasteful(self, loop: Loop, steps: list[list[list[int]]]) -> bool:
        """Return whether too many nodes would be repeated; in large loops that costs more than compiling."""
        computed = useful = 0
        for step, lists in zip(loop.steps, steps, strict=True):
            size = self.graph.operation_of(lists[0][0]).size
            computed += size * step.nodes.size
            useful += size * sum(map(len, lists))
        return computed > useful * (1.4 if computed > 2**21 else 4.0)

    def _add_slot(self, loop: Loop, step: BodyStep, source: Table) -> bool:
        """Add where an argument comes from; return whether a round reads no more than the round before it."""
        if (source == source[:, :1]).all():
            source = source[:, :1]
        k = np.arange(loop.rounds)[:, None]
        computed = self.round[source]  # in which round; -1 is before the loop
        now, before, outside = computed == k, (computed == k - 1) & (computed >= 0), computed < 0
        if not (now | before | outside).all():
            return False
        steps, positions = self.step[source], self.position[source]
        # The first round finds what the loop starts with where later rounds find values of the round before.
        starts = outside[0] & before[1]
        steps[0, starts], positions[0, starts] = steps[1, starts], positions[1, starts]
        for m in np.flatnonzero(starts).tolist():
            node = int(source[0, m])
            nodes = loop.first.setdefault(int(steps[0, m]), {})
            before[0, m] = nodes.setdefault(int(positions[0, m]), node) == node
        slot, index, offset = Slot(source.shape[1]), np.zeros(source.shape, int), 0
        for reads, pieces in ((now, slot.now), (before, slot.before)):
            for g in np.unique(steps[reads]).tolist():
                here = reads & (steps == g)
                index[here] = offset + positions[here]
                pieces.append(g)
                offset += loop.steps[g].width
        given = ~(now | before)
        if given.any():
            slot.given = np.where(given, source, source[given][0])
            index[given] = offset + np.broadcast_to(np.arange(slot.width), source.shape)[given]
            offset += slot.width
        if offset != slot.width or (index != np.arange(offset)).any():
            slot.index = index
        step.slots.append(slot)
        return loop.first.keys() >= set(slot.before)

    # What is read after a loop

    def _mark_kept(self, parts: Schedule) -> None:
        """Mark the steps of loops whose values other parts or the outputs read."""
        part = {
            v: at
            for at, p in enumerate(parts)
            for nodes in ([step.nodes.flat for step in p.steps] if isinstance(p, Loop) else [p.nodes])
            for v in nodes
        }
        read = set(self.graph.outputs)
        for v, sources in enumerate(self.graph.reads):
            read.update(s for s in sources if part.get(s) != part.get(v))
        for step in (step for p in parts if isinstance(p, Loop) for step in p.steps):
            *earlier, last = (not read.isdisjoint(row) for row in step.nodes.tolist())
            step.kept = "all" if any(earlier) else "last" if last else ""


def _padded(lists: list[list[int]]) -> Table:
    """Return the nodes of all rounds, (rounds, width); short rounds repeat their last node."""
    width = max(map(len, lists))
    return np.array([nodes + nodes[-1:] * (width - len(nodes)) for nodes in lists])


def _repetitions(
    levels: list, signatures: np.ndarray, start: int, stop: int
) -> Iterator[tuple[int, int, int]]:
    """Yield first level, period and number of rounds of repeating levels, the largest savings first."""
    repetitions = []
    size = np.concatenate([[0], np.cumsum([len(level) for level in levels])])
    for period in range(1, (stop - start) // FEWEST_ROUNDS + 1):
        same = signatures[start : stop - period] == signatures[start + period : stop]
        edges = np.flatnonzero(np.diff(same, prepend=False, append=False))
        for first, end in (start + edges.reshape(-1, 2)).tolist():  # the runs of equal levels
            rounds = (end - first) // period + 1
            if rounds >= FEWEST_ROUNDS:
                saved = size[first + period * rounds] - size[first + period]
                repetitions.append((-saved, period, first, rounds))
    return ((first, period, rounds) for _, period, first, rounds in sorted(repetitions))


def _strata(graph: Graph, colour: list[int]) -> Iterator[tuple[list[int], bool]]:
    """Yield nodes that are computed together, in order, and whether they form a recurrence."""
    edges = np.array([(colour[v], colour[s]) for v, reads in enumerate(graph.reads) for s in reads], int)
    edges, count = edges.reshape(-1, 2), max(colour, default=-1) + 1
    matrix = coo_array((np.ones(len(edges)), tuple(edges.T)), shape=(count, count))
    component = connected_components(matrix, connection="strong")[1].tolist()
    nodes: dict[int, list[int]] = {}
    needs: dict[int, set[int]] = {}
    for v, operation in enumerate(graph.operation):
        if graph.operations[operation] is not None:
            nodes.setdefault(component[colour[v]], []).append(v)
            needs.setdefault(component[colour[v]], set()).update(component[colour[s]] for s in graph.reads[v])
    for k in TopologicalSorter({k: needed - {k} for k, needed in needs.items()}).static_order():
        if k in nodes:
            yield nodes[k], k in needs[k]
