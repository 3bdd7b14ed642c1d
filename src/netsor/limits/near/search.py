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
NEIGHBOURS = 8  # of every input, at most so many are looked at
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
    kinds: dict[Any, list[tuple[list[Place], list[Array]]]] = {}
    known: dict[Expr, Array] = {}
    for group in groups:
        for o in group.outputs:
            keys, arrays = _features(program, o, data, len(group.members), known)
            places = [Place(o, k) for k in range(len(group.members)) if o in group.outputs_of(k)]
            if arrays:
                kinds.setdefault(keys, []).append((places, arrays))
    found = []
    for same in kinds.values():
        places = [place for some, _ in same for place in some]
        parts = [np.concatenate(column) for column in zip(*(arrays for _, arrays in same), strict=True)]
        found += _close(places, parts) if len(places) > 1 else []
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


def _close(places: list[Place], parts: list[Array]) -> list[tuple[list[Place], list[Place]]]:
    """Pairs among places with data (places, ...) in several parts."""
    rng = np.random.default_rng(0)
    sights: Array = sum(part @ rng.standard_normal((part.shape[1], PROJECTIONS)) for part in parts)
    size = np.sqrt(sum(np.sum(part**2, axis=1) for part in parts))
    order = np.argsort(sights[:, 0], kind="stable")
    order = order[_beside(sights[order, 0], size[order])]
    classes: dict[Any, list[int]] = {}
    for i in order.tolist():
        classes.setdefault(tuple(part[i].tobytes() for part in parts), []).append(i)
    sets = [sorted(same) for same in classes.values()]
    firsts = np.array([same[0] for same in sets], int)
    pairs = [(k, k) for k, same in enumerate(sets) if len(same) > 1]
    pairs += _neighbours([part[firsts] for part in parts], sights[firsts], size[firsts])
    members = [[places[i] for i in same] for same in sets]
    return [(members[i], members[j]) for i, j in pairs]


def _beside(sights: Array, size: Array) -> Array:
    """Which of some sorted projections have one beside them that is close."""
    near = np.diff(sights) <= REACH * np.maximum(size[1:], size[:-1])
    return np.concatenate([near, [False]]) | np.concatenate([[False], near])


def _neighbours(parts: list[Array], sights: Array, size: Array) -> list[tuple[int, int]]:
    """Pairs of rows whose distance is below CLOSE of the larger norm, in the order of their first
    projection."""
    found = []
    for step in range(1, min(NEIGHBOURS + 1, len(size))):
        limit = np.maximum(size[:-step], size[step:])
        apart = np.abs(sights[step:] - sights[:-step])
        if not (apart[:, 0] <= REACH * limit).any():
            break
        i = np.nonzero((apart <= REACH * limit[:, None]).all(axis=1))[0]
        distance = np.sqrt(sum(np.sum((part[i] - part[i + step]) ** 2, axis=1) for part in parts))
        found += [(k, k + step) for k in i[distance <= CLOSE * limit[i]].tolist()]
    return found
