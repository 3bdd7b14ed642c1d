"""Tapes as one graph whose nodes are sorted by what they do.

Two nodes have the same operation if they differ only in the values that they read and in numbers. Such nodes
can be computed together, and operations that repeat can be computed in a loop: see `batches`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.limits.tape.tape import Step, Tape, hashable
from netsor.limits.tape.traced import NeedsValuesError, Traced

__all__ = ["Graph", "Operation", "in_library"]


class Hole:
    """Stands in a pattern for a value that is read, or for a number."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


READ, NUMBER = Hole("read"), Hole("number")
NAMES = {"transpose": "permute_dims", "concatenate": "concat"}  # what the array API calls functions of NumPy


@dataclass(frozen=True)
class Operation:
    """A function and its arguments, with holes for what differs from node to node."""

    fn: Callable[..., Any]
    pattern: tuple[Any, ...]
    options: dict[str, Any]
    size: int  # elements of its result

    def __call__(self, reads: Iterable[Any], numbers: Iterable[Any]) -> Any:
        values = {READ: iter(reads), NUMBER: iter(numbers)}

        def filled(x: Any) -> Any:
            if isinstance(x, Hole):
                return next(values[x])
            return type(x)(map(filled, x)) if isinstance(x, list | tuple) else x

        return self.fn(*map(filled, self.pattern), **self.options)


def in_library(operation: Operation, xp: Any, real: Any) -> Operation:
    """The operation with the functions of an array library in place of NumPy's, and its real numbers."""

    def dtype(x: Any) -> Any:
        return real if isinstance(x, np.dtype | type) and np.dtype(x).kind == "f" else x

    fn, name = operation.fn, getattr(operation.fn, "__name__", "")
    if fn is np.linalg.diagonal:
        fn = xp.linalg.diagonal
    elif fn is getattr(np, name, None):
        fn = getattr(xp, NAMES.get(name, name))
    options = {name: dtype(x) if name == "dtype" else x for name, x in operation.options.items()}
    pattern = tuple(dtype(x) if isinstance(x, np.dtype) else x for x in operation.pattern)
    return Operation(fn, pattern, options, operation.size)


class _Same(dict):
    """Tiles are where they were recorded."""

    def __missing__(self, key: Any) -> Any:
        return key


class Graph:
    """The nodes of a tape of pairs and of the tape of single inputs that it reads.

    A node reads earlier nodes. It is an operation, a constant or an input; `operation` numbers what it does.
    """

    def __init__(self, single: Tape, tape: Tape, outputs: Iterable[Traced]) -> None:
        self.operations: list[Operation | None] = []
        self.operation: list[int] = []
        self.reads: list[tuple[int, ...]] = []
        self.numbers: list[tuple[float, ...]] = []
        self.constants: dict[int, np.ndarray] = {}
        self.inputs: dict[int, str] = {}
        self._numbered: dict[Any, int] = {}
        self._known_constants: dict[Any, int] = {}
        outputs = list(outputs)
        needed = tape.needed(x.step for x in outputs if x.tape is tape)
        read = [x for k in needed if k in tape.leaves for x in tape.reads_of[k][1]]
        first = single.needed(x.step for x in [*read, *outputs] if isinstance(x, Traced) and x.tape is single)
        self._places: dict[Tape, dict[int, int]] = {single: {}, tape: {}}
        self._add_all(single, first)
        self._add_all(tape, needed)
        self.outputs = [self.place(x) for x in outputs]

    def __len__(self) -> int:
        return len(self.reads)

    def place(self, x: Traced) -> int:
        return self._places[x.tape][x.step]

    def colours(self, rounds: int) -> list[int]:
        """Numbers for nodes that do the same with what came about in the same way, so many steps back."""
        colour = self.operation
        for _ in range(rounds):
            seen: dict[Any, int] = {}
            colour = [
                seen.setdefault((c, *[colour[s] for s in reads]), len(seen))
                for c, reads in zip(colour, self.reads, strict=True)
            ]
        return colour

    # Building

    def _add_all(self, tape: Tape, steps: list[int]) -> None:
        places = self._places[tape]
        for k in steps:
            if k in tape.constants:
                places[k] = self._constant(tape.constants[k])
            elif k in tape.leaves:
                places[k] = self._leaf(tape, k)
            else:
                places[k] = self._step(tape, k, tape.steps[k])

    def _constant(self, value: np.ndarray) -> int:
        key = (value.shape, value.dtype.str, value.tobytes())
        if key not in self._known_constants:
            self._known_constants[key] = len(self)
            self.constants[len(self)] = value
            self._node(("constant", value.shape, value.dtype), lambda: None, (), ())
        return self._known_constants[key]

    def _leaf(self, tape: Tape, k: int) -> int:
        kind, arrays = tape.reads_of[k]
        like = (tape.shapes[k], tape.dtypes[k])
        if kind is None:
            raise NeedsValuesError("a leaf with values")
        if kind[0] == "input":
            self.inputs[len(self)] = kind[1]
            return self._node(("input", *like), lambda: None, (), ())
        varies = [isinstance(x, Traced) and x.step not in x.tape.constants for x in arrays]
        traced = [x for x, v in zip(arrays, varies, strict=True) if v]
        fixed = [_bytes(x) for x, v in zip(arrays, varies, strict=True) if not v]
        read, places = tape.leaves[k], [x.step for x in traced]

        def fn(*values: Any) -> Any:
            return read(dict(zip(places, values, strict=True)), _Same())

        key = (kind, *like, tuple(fixed), tuple(varies), tuple(x.shape for x in traced))
        if len(set(places)) < len(places):  # both sides read the same array
            key, traced, places = (*key, "same"), traced[:1], places[:1]
        pattern = (READ,) * len(traced)
        made = lambda: Operation(fn, pattern, {}, _size(tape, k))  # noqa: E731
        return self._node(key, made, tuple(self.place(x) for x in traced), ())

    def _step(self, tape: Tape, k: int, step: Step) -> int:
        if step.kind is None:
            raise NeedsValuesError("a function of NumPy arrays")
        found = _Found(step.fn)
        pattern = tuple(map(found.pattern, step.args))
        like = tuple((x.shape, x.dtype) for x in found.reads)
        key = (step.kind, hashable(pattern), hashable(step.options), tape.shapes[k], tape.dtypes[k], like)

        def made() -> Operation:
            return Operation(step.fn, pattern, step.options, _size(tape, k))

        return self._node(key, made, tuple(map(self.place, found.reads)), tuple(found.numbers))

    def _node(self, key: Any, make: Any, reads: tuple[int, ...], numbers: tuple[float, ...]) -> int:
        if key not in self._numbered:
            self._numbered[key] = len(self.operations)
            self.operations.append(make())
        self.operation.append(self._numbered[key])
        self.reads.append(reads)
        self.numbers.append(numbers)
        return len(self.reads) - 1


class _Found:
    """The values and numbers among the arguments of a step."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.reads: list[Traced] = []
        self.numbers: list[float] = []
        self.picks, self.fixed = fn is operator.getitem, fn is operator.pow

    def pattern(self, x: Any) -> Any:
        if isinstance(x, Traced):
            self.reads.append(x)
            return READ
        if isinstance(x, list):
            return [self.pattern(y) for y in x]
        if isinstance(x, float) and not self.fixed:
            self.numbers.append(x)
            return NUMBER
        if self.picks and isinstance(x, tuple):  # which token, for example
            return tuple(self._position(y) for y in x)
        return x

    def _position(self, x: Any) -> Any:
        if type(x) is int and x >= 0:
            self.numbers.append(x)
            return NUMBER
        return x


def _size(tape: Tape, k: int) -> int:
    return int(np.prod(tape.shapes[k], dtype=int))


def _bytes(x: Any) -> Any:
    value = x.tape.constants[x.step] if isinstance(x, Traced) else np.asarray(x)
    return value.shape, value.dtype.str, value.tobytes()
