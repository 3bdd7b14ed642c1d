"""Inputs of different lengths as one group: a short sequence is the front of a longer one.

A recurrent network does the same to the first tokens of every sequence. So a short sequence is padded with
its last token, whose results nobody reads, and every statement about it is written as one about the front of
the padded array. Statements that then are equal are one statement: what sequences of all lengths have in
common is computed at once for all of them, and each has its own Outputs. Whatever is not in common is
still right, but pays for all inputs of the group; so groups stay apart where little is shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from netsor.build.network import Group, Joint
from netsor.lang.expr import Apply, Expr, Ref, Slice
from netsor.lang.index_maps import at
from netsor.lang.program import (
    Embedding,
    Input,
    LinComb,
    MatMul,
    Moment,
    Nonlin,
    Output,
    Program,
    Scalar,
    Statement,
    rename_statement,
    used_by,
)

__all__ = ["Padding", "pad"]

OVERHEAD = 2**10  # what a step costs beside its elements, in elements
NEW = 0.25  # the part of the matrix products of the shorter inputs that the longest one need not have

Bin = list[int]  # groups that become one, the longest last


@dataclass(frozen=True)
class Padding:
    """A joint program on padded inputs, and how they come from the arrays of another joint program.

    made   the program; its arrays come from `data`
    parts  for each padded array the arrays that it is made of, and the order of their inputs
    """

    made: Joint
    parts: dict[str, tuple[list[str], np.ndarray]]

    def data(self, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of the padded inputs."""
        found = {name: array for name, array in data.items() if name in self.made.program.data}
        for name, (names, order) in self.parts.items() if data else ():
            like = self.made.program.data[name]
            found[name] = np.concatenate([_extended(data[n], like.shape) for n in names])[order]
        return found


def pad(made: Joint) -> Padding | None:
    """The joint program with inputs of different lengths as one group, or None if they share too little."""
    bins = [] if made.concrete else _bins(made)
    while bins:
        shared = _Shared(made, bins)
        worth = [part for part in bins if shared.is_worth_it(part)]
        if worth == bins:
            return shared.padding()
        bins = worth
    return None


def _bins(made: Joint) -> list[Bin]:
    """Groups of similar lengths, whose arrays differ in the length of their first axes alone."""
    alike: dict[Any, Bin] = {}
    shapes = {name: array.shape for name, array in made.program.data.items()}
    for r, group in enumerate(made.groups):
        own = [shapes.get(name) for name in group.data]
        alike.setdefault(tuple(s and (len(s), s[1:]) for s in own), []).append(r)

    def length(r: int) -> int:
        return sum(shape[0] for name in made.groups[r].data if (shape := shapes.get(name)))

    bins: list[Bin] = []
    for groups in alike.values():
        before = (0, 0)
        for r in sorted(groups, key=length):
            new = (length(r), len(made.groups[r].members))
            joined = (new[0], before[1] + new[1])
            if _cost(joined) < _cost(before, new):
                bins[-1].append(r)
                before = joined
            else:
                bins.append([r])
                before = new
    return [part for part in bins if len(part) > 1]


def _cost(*groups: tuple[int, int]) -> int:
    """What all pairs of tokens of groups of (length, inputs) cost, if each group is one."""
    return sum(n * k for n, k in groups) ** 2 + OVERHEAD * sum(n for n, _ in groups) ** 2


class _Shared:
    """The statements of a program with some groups made one: equal statements are one."""

    def __init__(self, made: Joint, bins: list[Bin]) -> None:
        self.made, self.bins = made, bins
        self.front: dict[str, tuple[str, int | None]] = {}  # the padded array, and how much of it is front
        self.samples: dict[str, np.ndarray] = {}
        for part in bins:
            self._name_arrays([made.groups[r].data for r in part])
        self.names: dict[str, str] = {}
        self.known: dict[Any, str] = {}
        self.statements: list[Statement] = []
        self.outputs: dict[Any, int] = {}
        self.number: list[int] = []
        self.owner = {name: r for r, group in enumerate(made.groups) for name in group.data}
        self.products: list[set[str]] = [set() for _ in made.groups]
        group_of = [r for r, group in enumerate(made.groups) for _ in group.outputs]
        seen: Counter[Any] = Counter()
        for s in made.program.statements:
            if isinstance(s, Output):
                self._add_output(s, group_of[len(self.number)], seen)
            else:
                self._add(s)

    def _name_arrays(self, arrays: list[tuple[str, ...]]) -> None:
        """The arrays of a bin under the names of the longest, as long as the longest of their kind."""
        data = self.made.program.data
        for names in zip(*arrays, strict=True):
            if names[0] in data and data[names[0]].ndim:
                longest = max(len(data[name]) for name in names)
                like = data[names[-1]]
                self.samples[names[-1]] = _extended(like, (longest, *like.shape[1:]))[0]
                for name in names:
                    size = len(data[name])
                    self.front[name] = (names[-1], None if size == longest else size)
            elif names[0] in data:
                self.samples[names[-1]] = data[names[-1]]
                self.front |= dict.fromkeys(names, (names[-1], None))

    # Statements

    def _add(self, s: Any) -> None:
        owner = next((self.owner[name] for name in used_by(s) if name in self.owner), None)
        if owner is not None:
            self.owner[s.name] = owner
        product = isinstance(s, MatMul) or (isinstance(s, Input) and isinstance(s.law, Embedding))
        s = self._rewritten(s)
        key = replace(s, name="")
        random = isinstance(s, Input) and not isinstance(s.law, Embedding)
        if random or key not in self.known:
            self.statements.append(s)
            self.known[key] = s.name
        else:
            self.names[s.name] = self.known[key]
        if product and owner is not None:
            self.products[owner].add(self.known[key])

    def _add_output(self, s: Output, group: int, seen: Counter[Any]) -> None:
        """An Output of another group may be the same; of two equal ones of its own group, each is one."""
        s = rename_statement(s, self.names, {})  # type: ignore[assignment]
        seen[group, s.terms] += 1
        key = (s.terms, seen[group, s.terms])
        if key not in self.outputs:
            self.outputs[key] = len(self.outputs)
            self.statements.append(s)
        self.number.append(self.outputs[key])

    def _rewritten(self, s: Statement) -> Any:
        match s:
            case Input(law=Embedding(data=data) as law):
                s = replace(s, law=replace(law, data=self._front(data)))
            case LinComb() | Nonlin() | Moment() | Scalar():
                s = replace(s, expr=self._front(s.expr))
        return rename_statement(s, self.names, {})

    def _front(self, expr: Expr) -> Expr:
        """The expression in terms of padded arrays; an index counts from the front of them."""
        match expr:
            case Ref(name) if name in self.front:
                padded, size = self.front[name]
                return Ref(padded) if size is None else Apply(at, (Ref(padded),), _index(Slice(0, size, 1)))
            case Apply(op, (Ref(name),), (("index", (first, *rest)),)) if op is at and name in self.front:
                item = _counted(first, len(self.made.program.data[name]))
                if item is not None:
                    return Apply(at, (Ref(self.front[name][0]),), _index(item, *rest))
        if isinstance(expr, Apply) and any(name in self.front for name in expr.names):
            return replace(expr, args=tuple(map(self._front, expr.args)))
        return expr

    # What comes of it

    def is_worth_it(self, part: Bin) -> bool:
        """Whether nearly all matrix products of the shorter inputs are among those of the longest."""
        products = [self.products[r] for r in part]
        longest = max(map(len, products))
        shorter = sum(map(len, products)) - longest
        return len(set().union(*products)) - longest <= NEW * shorter

    def padding(self) -> Padding:
        data = {n: a for n, a in self.made.program.data.items() if n not in self.front} | self.samples
        program = Program(tuple(self.statements), data)
        groups, parts = [], {}
        joined = {r for part in self.bins for r in part}
        for part in [*self.bins, *([r] for r in range(len(self.made.groups)) if r not in joined)]:
            groups.append(self._group(part))
            if len(part) > 1:
                members = [m for r in part for m in self.made.groups[r].members]
                for names in zip(*(self.made.groups[r].data for r in part), strict=True):
                    if names[0] in self.front:
                        parts[names[-1]] = (list(names), np.argsort(members))
        return Padding(Joint(program, {}, tuple(groups)), parts)

    def _group(self, part: Bin) -> Group:
        """The groups of a bin as one; the Outputs of the longest are the last ones."""
        groups = [self.made.groups[r] for r in part]
        numbers = [tuple(self.number[o] for o in group.outputs) for group in groups]
        own = dict(sorted((m, n) for g, n in zip(groups, numbers, strict=True) for m in g.members))
        last = set(numbers[-1])
        outputs = sorted({o for n in numbers for o in n}, key=lambda o: (o in last, o))
        return Group(tuple(own), tuple(outputs), groups[-1].data, tuple(own.values()))


def _extended(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """(inputs, ...) of an array with or without inputs, its first axis made longer by its last entry."""
    inputs = array if array.ndim > len(shape) else array[None]
    if not shape or inputs.shape[1] == shape[0]:
        return inputs
    last = np.repeat(inputs[:, -1:], shape[0] - inputs.shape[1], axis=1)
    return np.concatenate([inputs, last], axis=1)


def _counted(item: Any, size: int) -> Any:
    """An item of an index as one that counts from the front, or None if there is none."""
    if isinstance(item, Slice):
        start, stop, step = item.builtin.indices(size)
        return Slice(start, stop, step) if step > 0 else None
    return item % size if isinstance(item, int) else None


def _index(*items: Any) -> tuple[tuple[str, Any], ...]:
    return (("index", items),)
