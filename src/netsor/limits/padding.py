"""Inputs of different lengths as one group: a short sequence is the front of a longer one.

A recurrent network does the same to the first tokens of every sequence. So a short sequence is padded with
copies of its last token, and no Output reads the results at these copies. Statements about the sequence
become statements about the front of the padded array, and equal ones merge, while each length has its own
Outputs. Statements of a single length are computed for all inputs, so groups merge only if they share nearly
all matrix products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from netsor.build.joint_program import InputGroup, Joint
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

OVERHEAD = 2**10  # elements: one NumPy call takes as long as computing so many
NEW = 0.25  # largest fraction of matrix products of shorter inputs that the longest input may lack

Bin = list[int]  # groups that become one group, the longest last


@dataclass(frozen=True)
class Padding:
    """A joint program on padded inputs, and how its arrays come from those of another joint program."""

    joint: Joint
    parts: dict[str, tuple[list[str], np.ndarray]]  # by padded array, its parts and the order of their inputs

    def data(self, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arrays of the padded inputs, (inputs, length, ...)."""
        arrays = {name: array for name, array in data.items() if name in self.joint.program.data}
        for name, (names, order) in self.parts.items() if data else ():
            like = self.joint.program.data[name]
            arrays[name] = np.concatenate([_extended(data[n], like.shape) for n in names])[order]
        return arrays


def pad(joint: Joint) -> Padding | None:
    """Return the joint program with inputs of different lengths as one group, or None if it does not pay."""
    bins = [] if joint.concrete else _bins(joint)
    # Without one bin, others may share fewer statements, so check the remaining bins again.
    while bins:
        shared = _Shared(joint, bins)
        worth = [part for part in bins if shared.is_worth_it(part)]
        if worth == bins:
            return shared.padding()
        bins = worth
    return None


def _bins(joint: Joint) -> list[Bin]:
    """Return groups of similar lengths, whose arrays differ only in the length of their first axes."""
    alike: dict[Any, Bin] = {}
    shapes = {name: array.shape for name, array in joint.program.data.items()}
    for r, group in enumerate(joint.groups):
        own_shapes = [shapes.get(name) for name in group.data]
        alike.setdefault(tuple(s and (len(s), s[1:]) for s in own_shapes), []).append(r)

    def length(r: int) -> int:
        return sum(shape[0] for name in joint.groups[r].data if (shape := shapes.get(name)))

    bins: list[Bin] = []
    for groups in alike.values():
        before = (0, 0)
        for r in sorted(groups, key=length):
            new = (length(r), len(joint.groups[r].members))
            joined = (new[0], before[1] + new[1])
            joins = _cost(joined) < _cost(before, new)
            if not joins:
                bins.append([])
            bins[-1].append(r)
            before = joined if joins else new
    # A bin of one group has nothing to pad.
    return [part for part in bins if len(part) > 1]


def _cost(*groups: tuple[int, int]) -> int:
    """Return the cost of groups of (length, inputs): elements of all pairs of tokens, plus calls."""
    return sum(n * k for n, k in groups) ** 2 + OVERHEAD * sum(n for n, _ in groups) ** 2


class _Shared:
    """The statements of a program with some groups merged, in which equal statements are one."""

    def __init__(self, joint: Joint, bins: list[Bin]) -> None:
        self.joint, self.bins = joint, bins
        # By array of an input, the padded array and the length of the front (None is all of it).
        self.front: dict[str, tuple[str, int | None]] = {}
        self.samples: dict[str, np.ndarray] = {}
        for part in bins:
            self._name_arrays([joint.groups[r].data for r in part])
        self.names: dict[str, str] = {}  # by merged statement, the name of the statement that stays
        self.name_of: dict[Any, str] = {}
        self.statements: list[Statement] = []
        self.outputs: dict[Any, int] = {}
        self.number: list[int] = []
        self.owner = {name: r for r, group in enumerate(joint.groups) for name in group.data}
        self.products: list[set[str]] = [set() for _ in joint.groups]
        group_of = [r for r, group in enumerate(joint.groups) for _ in group.outputs]
        seen: Counter[Any] = Counter()
        for s in joint.program.statements:
            if isinstance(s, Output):
                # Merge equal Outputs of different groups; equal Outputs of one group stay apart.
                group, terms = group_of[len(self.number)], rename_statement(s, self.names, {}).terms  # type: ignore
                seen[group, terms] += 1
                key = (terms, seen[group, terms])
                if key not in self.outputs:
                    self.outputs[key] = len(self.outputs)
                    self.statements.append(replace(s, terms=terms))
                self.number.append(self.outputs[key])
            else:
                self._add(s)

    def _name_arrays(self, arrays: list[tuple[str, ...]]) -> None:
        """Name the arrays of a bin after its longest group; pad them to the longest of their kind."""
        data = self.joint.program.data
        for names in zip(*arrays, strict=True):
            if names[0] in data:
                like, sizes = data[names[-1]], [data[name].shape[:1] for name in names]
                self.samples[names[-1]] = _extended(like, (*max(sizes), *like.shape[1:]))[0]
                for name, size in zip(names, sizes, strict=True):
                    self.front[name] = (names[-1], None if size == max(sizes) else size[0])

    # Statements

    def _add(self, s: Any) -> None:
        owner = next((self.owner[name] for name in used_by(s) if name in self.owner), None)
        if owner is not None:
            self.owner[s.name] = owner
        product = isinstance(s, MatMul) or (isinstance(s, Input) and isinstance(s.law, Embedding))
        match s:
            case Input(law=Embedding(data=data) as law):
                s = replace(s, law=replace(law, data=self._front(data)))
            case LinComb() | Nonlin() | Moment() | Scalar():
                s = replace(s, expr=self._front(s.expr))
        s = rename_statement(s, self.names, {})
        key = replace(s, name="")
        # Random inputs with equal laws are still different vectors, so they never merge.
        random = isinstance(s, Input) and not isinstance(s.law, Embedding)
        if random or key not in self.name_of:
            self.statements.append(s)
            self.name_of[key] = s.name
        else:
            self.names[s.name] = self.name_of[key]
        if product and owner is not None:
            self.products[owner].add(self.name_of[key])

    def _front(self, expr: Expr) -> Expr:
        """Return the expression in terms of padded arrays, with indices that count from the front."""
        match expr:
            case Ref(name) if name in self.front:
                padded, size = self.front[name]
                return Ref(padded) if size is None else _at(padded, Slice(0, size, 1))
            case Apply(op, (Ref(name),), (("index", (first, *rest)),)) if op is at and name in self.front:
                item = _counted(first, len(self.joint.program.data[name]))
                if item is not None:
                    return _at(self.front[name][0], item, *rest)
        if isinstance(expr, Apply) and any(name in self.front for name in expr.names):
            return replace(expr, args=tuple(map(self._front, expr.args)))
        return expr

    # The result

    def is_worth_it(self, part: Bin) -> bool:
        """Return whether nearly all matrix products of the shorter inputs are among those of the longest."""
        products = [self.products[r] for r in part]
        longest = max(map(len, products))
        shorter = sum(map(len, products)) - longest
        return len(set().union(*products)) - longest <= NEW * shorter

    def padding(self) -> Padding:
        data = {n: a for n, a in self.joint.program.data.items() if n not in self.front} | self.samples
        program = Program(tuple(self.statements), data)
        joined, parts = set(chain(*self.bins)), {}
        for part in self.bins:
            order = np.argsort([m for r in part for m in self.joint.groups[r].members])
            for names in zip(*(self.joint.groups[r].data for r in part), strict=True):
                if names[0] in self.front:
                    parts[names[-1]] = (list(names), order)
        alone = [[r] for r in range(len(self.joint.groups)) if r not in joined]
        groups = tuple(map(self._group, [*self.bins, *alone]))
        return Padding(Joint(program, {}, groups), parts)

    def _group(self, part: Bin) -> InputGroup:
        """Return the groups of a bin as one; the Outputs of the longest group come last."""
        groups = [self.joint.groups[r] for r in part]
        numbers = [tuple(self.number[o] for o in group.outputs) for group in groups]
        outputs_of = dict(sorted((m, n) for g, n in zip(groups, numbers, strict=True) for m in g.members))
        last = set(numbers[-1])
        outputs = sorted({o for n in numbers for o in n}, key=lambda o: (o in last, o))
        return InputGroup(tuple(outputs_of), tuple(outputs), groups[-1].data, tuple(outputs_of.values()))


def _extended(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Extend an array by copies of its last entry to (inputs, length, ...); add the axis of inputs."""
    inputs = array if array.ndim > len(shape) else array[None]
    if not shape or inputs.shape[1] == shape[0]:
        return inputs
    last = np.repeat(inputs[:, -1:], shape[0] - inputs.shape[1], axis=1)
    return np.concatenate([inputs, last], axis=1)


def _counted(item: Any, size: int) -> Any:
    """Return an item of an index counted from the front, not the end of the padding; None if impossible."""
    if isinstance(item, Slice):
        start, stop, step = item.builtin.indices(size)
        return Slice(start, stop, step) if step > 0 else None
    return item % size if isinstance(item, int) else None


def _at(name: str, *items: Any) -> Expr:
    return Apply(at, (Ref(name),), (("index", items),))
