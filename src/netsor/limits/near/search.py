"""Which outputs of which inputs depend on nearly equal data.

The data that an output depends on are one long vector for each input. Outputs that depend on data in the
same way are compared: the vectors are sorted by a random projection, and neighbours are checked, so that
the pairs of B inputs cost B log B. Equal vectors are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.build.network import Group
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Expr, Ref, refs
from netsor.lang.program import Embedding, Input, Program, used_by

__all__ = ["Place", "close_places"]

Array = Any
CLOSE = 1e-4  # of the larger norm: beyond, covariances have digits enough
REACH = 6 * CLOSE  # the same for projections on random vectors
MOST_PAIRS = 2**14  # of nearly equal data, about; of more, those nearest in projection are taken
MOST_LOOKS = 64  # at pairs, for each input
PROJECTIONS = 3
MOST_STATEMENTS = 2**21  # to be read, for all outputs together


@dataclass(frozen=True)
class Place:
    """An Output statement and a member of its group."""

    output: int
    member: int


def close_places(
    program: Program, groups: tuple[Group, ...], data: Mapping[str, Array]
) -> list[tuple[list[Place], list[Place]]]:
    """Pairs of sets of places with equal data each, between which data are nearly equal, or equal."""
    if len(program.outputs) * len(program.statements) > MOST_STATEMENTS:
        return []
    kinds: dict[Any, list[tuple[int, int, list[Array]]]] = {}
    known: dict[Expr, Array] = {}
    for group in groups:
        for o in group.outputs:
            keys, arrays = _features(program, o, data, len(group.members), known)
            if arrays:
                kinds.setdefault(keys, []).append((o, len(group.members), arrays))
    found = []
    for same in kinds.values():
        outputs, counts, columns = zip(*same, strict=True)
        parts = [np.concatenate(list(c)) for c in zip(*columns, strict=True)]
        ends = np.cumsum(counts)
        for pair in _close(parts):
            which = [np.searchsorted(ends, rows, side="right") for rows in pair]
            one, two = (
                [Place(outputs[k], int(i - ends[k] + counts[k])) for i, k in zip(rows, of, strict=True)]
                for rows, of in zip(pair, which, strict=True)
            )
            found.append((one, one if pair[0] is pair[1] else two))
    return found


def _features(
    program: Program, o: int, data: Mapping[str, Array], members: int, known: dict[Expr, Array]
) -> tuple[tuple[Any, ...], list[Array]]:
    """What the data of an output are multiplied by, and these data, (members, ...)."""
    output = program.outputs[o]
    keys: list[Any] = [tuple(sorted(t.readout for t in output.terms))]
    arrays = []
    for matrix, expr in _data_of(program, used_by(output)):
        if expr not in known:
            blocks = {}
            for name in refs(expr):
                rank, array = program.data[name].ndim, np.asarray(data[name])
                blocks[name] = Block(array if array.ndim > rank else array[None], rank)
            known[expr] = evaluate(expr, blocks).array
        array = known[expr]
        keys.append((matrix, array.shape[1:]))
        arrays.append(np.broadcast_to(array, (members, *array.shape[1:])).reshape(members, -1))
    return tuple(keys), arrays


def _data_of(program: Program, names: list[str]) -> list[tuple[str, Expr]]:
    """The data that some variables depend on, each with the matrix that multiplies it, in order."""
    found: dict[tuple[str, Expr], None] = {}
    seen, stack = set(names), list(names)
    while stack:
        name = stack.pop()
        s = program.definitions.get(name)
        if s is None:
            found["", Ref(name)] = None
        elif isinstance(s, Input) and isinstance(s.law, Embedding):
            found[s.law.matrix, s.law.data] = None
        else:
            new = [n for n in used_by(s) if n not in seen]
            seen.update(new)
            stack += reversed(new)
    return list(found)


def _close(parts: list[Array]) -> list[tuple[Array, Array]]:
    """Pairs of sets of equal rows, which are given in several parts."""
    rng = np.random.default_rng(0)
    sights: Array = sum(part @ rng.standard_normal((part.shape[1], PROJECTIONS)) for part in parts)
    size = np.sqrt(sum(np.einsum("ij,ij->i", part, part) for part in parts))
    order = np.argsort(sights[:, 0], kind="stable")
    order = order[np.unique(_beside(sights[order], size[order]))]
    classes: dict[Any, list[int]] = {}
    for i in order.tolist():
        classes.setdefault(tuple(part[i].tobytes() for part in parts), []).append(i)
    sets = [np.sort(same) for same in classes.values()]
    firsts = np.array([same[0] for same in sets], int)
    one, two = _beside(sights[firsts], size[firsts])
    i, j = firsts[one], firsts[two]
    distance = np.sqrt(sum(np.sum((part[i] - part[j]) ** 2, axis=1) for part in parts))
    near = np.nonzero(distance <= CLOSE * np.maximum(size[i], size[j]))[0]
    equal = [(same, same) for same in sets if len(same) > 1]
    return equal + [(sets[one[k]], sets[two[k]]) for k in near]


def _beside(sights: Array, size: Array) -> Array:
    """Pairs (2, pairs) of rows whose projections are near, which are sorted by the first of them."""
    found, count, looks = [np.zeros((2, 0), int)], 0, 0
    for step in range(1, len(size)):
        limit = REACH * np.maximum(size[:-step], size[step:])
        i = np.nonzero(sights[step:, 0] - sights[:-step, 0] <= limit)[0]
        looks += i.size
        if not i.size or count > MOST_PAIRS or looks > MOST_LOOKS * len(size):
            break
        i = i[(np.abs(sights[i + step] - sights[i]) <= limit[i, None]).all(axis=1)]
        found.append(np.stack([i, i + step]))
        count += i.size
    return np.concatenate(found, axis=1)
