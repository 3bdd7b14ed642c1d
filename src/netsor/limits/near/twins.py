"""The kernel of pairs of nearly equal inputs, from a program of both.

The statements of one input, and the same of another, are one program, in which the pairs run along the axis
of inputs. An entry is (K + K' - G) / 2, with the variances K and K' of both outputs and their gap G =
Var(v^T y - v^T y') / n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.build.network import Group
from netsor.lang.program import Output, Program, Statement, rename_statement, used_by
from netsor.limits.assembly import Rows
from netsor.limits.near.gaps import second_gap
from netsor.limits.near.search import Place, close_places
from netsor.limits.nudges import Nudge
from netsor.limits.on_numpy.kernel import single_values
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.recursion.outputs import output_own, output_tied
from netsor.limits.recursion.pairs import Pair
from netsor.limits.recursion.recorder import Asking, Recorder

__all__ = ["Entries", "NearPairs"]

Array = Any
Outputs = tuple[int, int]
Wanted = dict[
    tuple[int, int, bool], list[tuple[Array, Array]]
]  # sets of members, by Outputs and whether they are equal


@dataclass(frozen=True)
class Entries:
    """Entries of a kernel matrix: their rows and columns, and their values at each nudge."""

    rows: Array
    cols: Array
    values: Array  # (nudges, entries)


@dataclass(frozen=True)
class Twins:
    """A program of two inputs: Outputs 2 k and 2 k + 1 are the k-th pair; `names` are those of the second
    input."""

    program: Program
    names: Mapping[str, str]

    @classmethod
    def of(cls, program: Program, left: Group, right: Group, pairs: list[Outputs]) -> Twins:
        """What some Outputs of one group and of another need; of one group, its statements twice."""
        ours, theirs = (_upstream(program, [pair[side] for pair in pairs]) for side in (0, 1))
        names: dict[str, str] = {}
        if left is right:
            suffix = "_"
            while any(name + suffix in {**program.data, **program.definitions} for name in theirs):
                suffix += "_"
            names = {name: name + suffix for name in left.data}
            for s in program.statements:
                if not isinstance(s, Output) and s.name in theirs and not names.keys().isdisjoint(used_by(s)):
                    names[s.name] = s.name + suffix
        body: list[Statement] = []
        for s in program.statements:
            if not isinstance(s, Output):
                if s.name in ours or (s.name in theirs and s.name not in names):
                    body.append(s)
                if s.name in theirs and s.name in names:
                    body.append(rename_statement(s, names, {}))
        for o, p in pairs:
            body += [program.outputs[o], rename_statement(program.outputs[p], names, {})]
        data = {name: array for name, array in program.data.items() if name in ours | theirs}
        data |= {new: program.data[name] for name, new in names.items() if name in data}
        return cls(Program(tuple(body), data), names)


def _upstream(program: Program, outputs: list[int]) -> set[str]:
    """All variables and data that some Outputs need."""
    found: set[str] = set()
    stack = [name for o in outputs for name in used_by(program.outputs[o])]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += used_by(program.definitions[name]) if name in program.definitions else []
    return found


@dataclass(frozen=True)
class NearPairs:
    """The entries of a kernel between outputs whose data are nearly equal, or equal.

    make        a recorder of a program of two inputs, for data of given shapes
    nudges      of runs of the kernel, and
    diagonals   of these: equal outputs have their variance as covariance
    """

    program: Program
    rows: Rows
    data: Mapping[str, Array]
    params: Mapping[str, Array]
    make: Callable[[Program, Mapping[str, tuple[int, ...]]], Recorder]
    nudges: Sequence[Nudge]
    diagonals: Sequence[Array]

    def entries(self) -> Iterator[Entries]:
        jobs: dict[tuple[int, int], Wanted] = {}
        owner = {o: g for g, group in enumerate(self.rows.groups) for o in group.outputs}
        for left, right in close_places(self.program, self.rows.groups, self.data):
            for o, ours in _by_output(left).items():
                for p, theirs in _by_output(right).items():
                    equal = left is right and o == p
                    if equal and self.rows.symmetric:
                        variances = [d[self.rows.left[o][ours[0]]] for d in self.diagonals]
                        yield from self._placed(o, p, ours, theirs, np.stack(variances))
                    elif left is not right or o <= p:
                        asked = jobs.setdefault((owner[o], owner[p]), {})
                        asked.setdefault((o, p, equal), []).append((ours, theirs))
        for (g, h), wanted in jobs.items():
            yield from self._of_groups(self.rows.groups[g], self.rows.groups[h], wanted)

    def _of_groups(self, left: Group, right: Group, wanted: Wanted) -> Iterator[Entries]:
        """All pairs of members at once, for all pairs of Outputs; none where members of an index mix."""
        twins = Twins.of(self.program, left, right, [(o, p) for o, p, _ in wanted])
        pairs = list(dict.fromkeys((int(a[0]), int(b[0])) for some in wanted.values() for a, b in some))
        given = self._given(twins, left, right, pairs)
        recorder = self.make(twins.program, {name: given[name].shape for name in twins.program.data})
        blocks = [
            recorder.ask(output_own, 2 * k) if equal else recorder.ask(_entry, 2 * k, 2 * k + 1)
            for k, (_, _, equal) in enumerate(wanted)
        ]
        mixed = any(type(key[-1]) is Pair and not key[-1].tied for key in recorder.kept)
        if recorder.missing or (mixed and any(type_.index for type_ in twins.program.types.values())):
            return
        prepared = Prepared(recorder.tape, [block.array for block in blocks if block is not None])
        runs = [single_values(prepared, {**given, **nudge}) for nudge in self.nudges]
        place = {pair: k for k, pair in enumerate(pairs)}
        for block, ((o, p, _), some) in zip(blocks, wanted.items(), strict=True):
            if block is not None:
                shape = (len(pairs), *self.rows.left[o].shape[1:])
                table = np.stack([np.broadcast_to(run[block.array.step][0], shape) for run in runs])
                for ours, theirs in some:
                    value = table[:, place[int(ours[0]), int(theirs[0])]]
                    yield from self._placed(o, p, ours, theirs, value)

    def _given(self, twins: Twins, left: Group, right: Group, pairs: list[Outputs]) -> dict[str, Array]:
        """The data of a program of two inputs."""
        given = {**self.params, **{name: a for name, a in self.data.items() if name in twins.program.data}}
        for side, group in enumerate((left, right)):
            members = [pair[side] for pair in pairs]
            for name in group.data:
                array = self.data[name]
                one = array.ndim == self.program.data[name].ndim
                made = np.stack([array] * len(members)) if one else array[np.array(members)]
                given[twins.names.get(name, name) if side else name] = made
        return given

    def _placed(self, o: int, p: int, ours: Array, theirs: Array, value: Array) -> Iterator[Entries]:
        """Where the value of two sets of equal members stands, on either side of the diagonal."""
        for first, second, members, others in ((o, p, ours, theirs), (p, o, theirs, ours)):
            left, right = np.broadcast_arrays(
                self.rows.left[first][members][:, None], self.rows.right[second][others][None]
            )
            values = np.broadcast_to(value[:, None, None], (len(value), *left.shape))
            there = (left >= 0) & (right >= 0) & np.isfinite(values).all(axis=0)
            yield Entries(left[there], right[there], values[:, there])


def _by_output(places: list[Place]) -> dict[int, Array]:
    """The members of each Output."""
    found: dict[int, list[int]] = {}
    for place in places:
        found.setdefault(place.output, []).append(place.member)
    return {o: np.array(members) for o, members in found.items()}


def _entry(r: Recorder, o: int, p: int) -> Asking:
    """(K + K' - G) / 2."""
    own = (yield output_own, o), (yield output_own, p)
    gap = yield output_tied, o, p, second_gap
    return None if gap is None else (own[0] + own[1] - gap) * 0.5
