"""Tapes as one graph whose nodes are sorted by operation.

Two nodes have the same operation if they differ only in the values that they read and in numbers. Such nodes
can run together as a batch, and repeated ones in a loop; see `batches`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from math import prod
from typing import Any

import numpy as np

from netsor.limits.tape.tape import Tape, TapeStep, hashable
from netsor.limits.tape.traced import NeedsValuesError, Traced


class Hole(Enum):
    """Stands in a pattern for a value that is read, or for a number."""

    READ = "read"
    NUMBER = "number"


@dataclass(frozen=True)
class Operation:
    """A function and its arguments, with holes for everything that differs between nodes."""

    fn: Callable[..., Any]
    pattern: tuple[Any, ...]
    options: dict[str, Any]
    size: int  # number of elements of the result

    def __call__(self, reads: Iterable[Any], numbers: Iterable[Any]) -> Any:
        values = {Hole.READ: iter(reads), Hole.NUMBER: iter(numbers)}

        def filled(x: Any) -> Any:
            if isinstance(x, Hole):
                return next(values[x])
            return type(x)(map(filled, x)) if isinstance(x, list | tuple) else x

        return self.fn(*map(filled, self.pattern), **self.options)


def in_library(operation: Operation, xp: Any, real: Any) -> Operation:
    """Return the operation with functions and real type of an array library in place of NumPy's."""

    def dtype(x: Any) -> Any:
        return real if isinstance(x, np.dtype | type) and np.dtype(x).kind == "f" else x

    fn, name = operation.fn, getattr(operation.fn, "__name__", "")
    if fn is np.linalg.diagonal:
        fn = xp.linalg.diagonal
    elif fn is getattr(np, name, None):
        names = {"transpose": "permute_dims", "concatenate": "concat"}  # those that the array API changed
        fn = getattr(xp, names.get(name, name))
    options = {name: dtype(x) if name == "dtype" else x for name, x in operation.options.items()}
    pattern = tuple(dtype(x) if isinstance(x, np.dtype) else x for x in operation.pattern)
    return replace(operation, fn=fn, pattern=pattern, options=options)


class _Same(dict):
    """Maps each span to itself: tiles stay where they were recorded."""

    def __missing__(self, key: Any) -> Any:
        return key


class Graph:
    """The nodes of a tape of pairs and of the tape of single inputs that it reads.

    A node is an operation, a constant or an input, and reads earlier nodes. `operation` numbers operations.
    """

    def __init__(self, single: Tape, tape: Tape, outputs: Iterable[Traced]) -> None:
        self.operations: list[Operation | None] = []
        self.operation: list[int] = []
        self.reads: list[tuple[int, ...]] = []
        self.numbers: list[tuple[float, ...]] = []
        self.constants: dict[int, np.ndarray] = {}
        self.inputs: dict[int, str] = {}
        self._numbered: dict[Any, int] = {}
        self._constant_nodes: dict[Any, int] = {}
        self._places: dict[Tape, dict[int, int]] = {single: {}, tape: {}}
        plain, plain_single = tape.without_bounds(), single.without_bounds()
        outputs = [x.tape.exact(x) for x in outputs]
        needed = plain.needed(x.step for x in outputs if x.tape is tape)
        read = tape.sources(needed).values()
        first = [single.exact(x).step for x in [*read, *outputs] if x.tape is single]
        self._add_all(single, plain_single, plain_single.needed(first))
        self._add_all(tape, plain, needed)
        self.outputs = [self.place(x) for x in outputs]

    def __len__(self) -> int:
        return len(self.reads)

    def place(self, x: Traced) -> int:
        return self._places[x.tape][x.tape.exact(x).step]

    def operation_of(self, node: int) -> Operation:
        operation = self.operations[self.operation[node]]
        assert operation is not None
        return operation

    def colours(self, rounds: int) -> list[int]:
        """Number nodes so that equal numbers mean equal operations, also of the nodes read, `rounds` deep."""
        colour = self.operation
        for _ in range(rounds):
            seen: dict[Any, int] = {}
            colour = [
                seen.setdefault((c, *[colour[s] for s in reads]), len(seen))
                for c, reads in zip(colour, self.reads, strict=True)
            ]
        return colour

    # Building

    def _add_all(self, tape: Tape, plain: Tape, steps: list[int]) -> None:
        """Add steps of a tape, without their error bounds."""
        places = self._places[tape]
        for k in steps:
            if k in tape.constants:
                places[k] = self._constant(tape.constants[k])
            elif k in tape.leaves:
                places[k] = self._leaf(tape, k)
            else:
                places[k] = self._step(tape, k, plain.steps[k])

    def _constant(self, value: np.ndarray) -> int:
        # Equal constants are one node, so that steps that read them stay equal.
        key = (value.shape, value.dtype.str, value.tobytes())
        if key not in self._constant_nodes:
            self._constant_nodes[key] = len(self)
            self.constants[len(self)] = value
            self._node(("constant", value.shape, value.dtype), None, (), ())
        return self._constant_nodes[key]

    def _leaf(self, tape: Tape, k: int) -> int:
        leaf, like = tape.leaves[k], (tape.shapes[k], tape.dtypes[k])
        if leaf.kind is None:
            raise NeedsValuesError("a leaf with values")
        if leaf.kind[0] == "input":
            self.inputs[len(self)] = leaf.arrays[0]
            return self._node(("input", *like), None, (), ())
        reads = [x for x in leaf.arrays if isinstance(x, Traced)]
        pattern = tuple(Hole.READ if isinstance(x, Traced) else x for x in leaf.arrays)
        key = (leaf.kind, *like, hashable(pattern), *(x.shape for x in reads))
        operation = Operation(partial(leaf.fn, _Same()), pattern, {}, prod(tape.shapes[k]))
        return self._node(key, operation, tuple(map(self.place, reads)), ())

    def _step(self, tape: Tape, k: int, step: TapeStep) -> int:
        if step.kind is None:
            raise NeedsValuesError("a function of NumPy arrays")
        pattern, reads, numbers = _arguments(step)
        like = tuple((x.shape, x.dtype) for x in reads)
        key = (step.kind, hashable(pattern), hashable(step.options), tape.shapes[k], tape.dtypes[k], like)
        operation = Operation(step.fn, pattern, step.options, prod(tape.shapes[k]))
        return self._node(key, operation, tuple(map(self.place, reads)), tuple(numbers))

    def _node(
        self, key: Any, operation: Operation | None, reads: tuple[int, ...], numbers: tuple[float, ...]
    ) -> int:
        """Add a node; the first node of a key defines the operation."""
        if key not in self._numbered:
            self._numbered[key] = len(self.operations)
            self.operations.append(operation)
        self.operation.append(self._numbered[key])
        self.reads.append(reads)
        self.numbers.append(numbers)
        return len(self.reads) - 1


def _arguments(step: TapeStep) -> tuple[tuple[Any, ...], list[Traced], list[float]]:
    """Return the pattern of the arguments of a step, what it reads, and its numbers."""
    reads: list[Traced] = []
    numbers: list[float] = []

    def number(x: float) -> Hole:
        numbers.append(x)
        return Hole.NUMBER

    def pattern(x: Any) -> Any:
        if isinstance(x, Traced):
            reads.append(x)
            return Hole.READ
        if isinstance(x, list):
            return [pattern(y) for y in x]
        if isinstance(x, float) and step.fn is not operator.pow:
            return number(x)
        if isinstance(x, tuple) and step.fn is operator.getitem:  # positions, such as that of a token
            return tuple(number(y) if type(y) is int and y >= 0 else y for y in x)
        return x

    return tuple(map(pattern, step.args)), reads, numbers
