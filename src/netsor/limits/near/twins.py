"""The kernel of pairs of nearly equal inputs, from a program of both.

The statements of one input, and the same of another, are one program, in which the pairs run along the axis
of inputs. An entry is (K + K' - G) / 2, with the variances K and K' of both outputs and their gap G =
Var(v^T y - v^T y') / n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.build.network import Group
from netsor.lang.program import Output, Program, Statement, rename_statement, used_by
from netsor.limits.assembly import Rows
from netsor.limits.near.gaps import second_gap
from netsor.limits.near.search import Place, close_places
from netsor.limits.on_numpy.kernel import single_values
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.recursion.outputs import output_own, output_tied
from netsor.limits.recursion.pairs import Pair
from netsor.limits.recursion.recorder import Asking, Recorder

__all__ = ["Entries", "near_entries"]

Array = Any
Maker = Callable[[Program, Mapping[str, tuple[int, ...]]], Recorder]
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


def near_entries(
    program: Program,
    rows: Rows,
    data: Mapping[str, Array],
    params: Mapping[str, Array],
    make: Maker,
    nudges: Any,
) -> list[Entries]:
    """The entries of all pairs of outputs whose data are nearly equal, or equal."""
    jobs: dict[tuple[int, int], Wanted] = {}
    owner = {o: g for g, group in enumerate(rows.groups) for o in group.outputs}
    for left, right in close_places(program, rows.groups, data):
        for o, ours in _by_output(left).items():
            for p, theirs in _by_output(right).items():
                if left is not right or o < p or (o == p and len(ours) > 1):
                    asked = jobs.setdefault((owner[o], owner[p]), {})
                    asked.setdefault((o, p, left is right and o == p), []).append((ours, theirs))
    found = []
    for (g, h), wanted in jobs.items():
        found += _entries(program, rows, (rows.groups[g], rows.groups[h]), wanted, data, params, make, nudges)
    return found


def _by_output(places: list[Place]) -> dict[int, Array]:
    """The members of each Output."""
    found: dict[int, list[int]] = {}
    for place in places:
        found.setdefault(place.output, []).append(place.member)
    return {o: np.array(members) for o, members in found.items()}


def _entries(
    program: Program,
    rows: Rows,
    groups: tuple[Group, Group],
    wanted: Wanted,
    data: Mapping[str, Array],
    params: Mapping[str, Array],
    make: Maker,
    nudges: Any,
) -> list[Entries]:
    """Of two groups: all pairs of members at once, for all pairs of Outputs; none where indices do not run
    together."""
    twins = Twins.of(program, *groups, [(o, p) for o, p, _ in wanted])
    pairs = list(dict.fromkeys((int(a[0]), int(b[0])) for some in wanted.values() for a, b in some))
    given = dict(params)
    for name in twins.program.data:
        given[name] = data.get(name)
    for side, group in enumerate(groups):
        for name in group.data:
            new = twins.names.get(name, name) if side else name
            if new in twins.program.data:
                given[new] = _members(data[name], program.data[name].ndim, [pair[side] for pair in pairs])
    recorder = make(twins.program, {name: given[name].shape for name in twins.program.data})
    blocks = [
        recorder.ask(output_own, 2 * k) if equal else recorder.ask(_entry, 2 * k, 2 * k + 1)
        for k, (_, _, equal) in enumerate(wanted)
    ]
    mixed = any(type(key[-1]) is Pair and not key[-1].tied for key in recorder.kept)
    if recorder.missing or (mixed and any(type_.index for type_ in twins.program.types.values())):
        return []
    made = [block for block in blocks if block is not None]
    prepared, values = Prepared(recorder.tape, [b.array for b in made]), []
    for nudge in nudges:
        run = single_values(prepared, {**given, "nudge": nudge})
        values.append([None if b is None else run[b.array.step][0] for b in blocks])
    found = []
    for k, ((o, p, _), some) in enumerate(wanted.items()):
        if blocks[k] is not None:
            shape = (len(nudges), len(pairs), *rows.left[o].shape[1:])
            table = np.stack([np.broadcast_to(v[k], shape[1:]) for v in values])
            for ours, theirs in some:
                value = table[:, pairs.index((int(ours[0]), int(theirs[0])))]
                found += _placed(rows, o, p, ours, theirs, value)
    return found


def _members(array: Array, rank: int, members: list[int]) -> Array:
    return array[np.array(members)] if array.ndim > rank else np.stack([array] * len(members))


def _entry(r: Recorder, o: int, p: int) -> Asking:
    """(K + K' - G) / 2."""
    own = (yield output_own, o), (yield output_own, p)
    gap = yield output_tied, o, p, second_gap
    return None if gap is None else (own[0] + own[1] - gap) * 0.5


def _placed(rows: Rows, o: int, p: int, ours: Array, theirs: Array, value: Array) -> list[Entries]:
    """Where the value of two sets of equal members stands, on either side of the diagonal."""
    found = []
    for first, second, members, others in ((o, p, ours, theirs), (p, o, theirs, ours)):
        left, right = np.broadcast_arrays(
            rows.left[first][members][:, None], rows.right[second][others][None]
        )
        values = np.broadcast_to(value[:, None, None], (len(value), *left.shape))
        there = (left >= 0) & (right >= 0) & np.isfinite(values).all(axis=0)
        found.append(Entries(left[there], right[there], values[:, there]))
    return found
