"""Computations recorded once and run for many inputs.

The engine computes with `Traced` arrays, which have a shape but no values; what it does to them is a list
of steps. There are two kinds of tapes. One computes what belongs to single inputs, for all of them. The
other computes a tile of pairs of inputs from it, and is run for every tile.

Recording tidies up: what is constant is computed at once, equal steps are one step, and what belongs to one
side of a tile is computed before the tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from netsor.limits.tape.formulas import FULL, LEFT, RIGHT, formula_of
from netsor.limits.tape.traced import Namespace, Traced

__all__ = ["Span", "Step", "Tape", "hashable"]

Span = tuple[int, int]
Shape = tuple[int, ...]
Given = Mapping[Any, Any]
Read = Callable[[Given, Mapping[Span, Span]], Any]


class Elementary(Protocol):
    """An elementwise function that knows whether it is made of operations that can be recorded."""

    @property
    def elementary(self) -> bool: ...

    def __call__(self, *args: Any) -> Any: ...


class Step(NamedTuple):
    """A function, and its arguments: values of earlier steps where they are traced.

    kind  what the function does: steps of one kind differ in their arguments alone. None is a function for
          NumPy arrays only
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    kind: Any = None

    def reads(self) -> Iterator[Traced]:
        return _traced(self.args)


@dataclass(frozen=True)
class Side:
    """A quantity of single inputs (repeats, inputs, ...) in a tile: its inputs are on axis 1 or 2."""

    array: Any
    span: Span
    axis: int


class Tape:
    """A list of steps; step k computes value k from earlier values. Constants have its dtype."""

    def __init__(self, compiled: bool = False, dtype: Any = np.float64, share: float = 1.0) -> None:
        self.compiled, self.dtype = compiled, np.dtype(dtype)
        self.share = share  # of the inputs of a larger kernel that this one is a part of
        self.namespace = Namespace(self)
        self.steps: list[Step] = []
        self.shapes: list[Shape] = []
        self.dtypes: list[Any] = []
        self.leaves: dict[int, Read] = {}
        self.reads_of: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self.constants: dict[int, np.ndarray] = {}
        self.sources: dict[int, Traced] = {}
        self.cuts: set[int] = set()
        self.costs: dict[int, int] = {}  # multiply-adds for an element, where they are not one
        self.hoisted: dict[Any, Any] = {}  # functions of one side, by the formula that they are part of
        self.opaque = False  # whether some values are not arrays
        self._names: dict[str, Traced] = {}
        self.largest = 1
        self._known: dict[Any, Traced] = {}
        self._kept: list[Any] = []
        self._sides: dict[int, Side] = {}
        self._permuted: dict[int, tuple[Traced, Shape]] = {}

    # What a tape reads

    def input(self, name: str, shape: Shape, dtype: Any) -> Traced:
        """An array that is given by name."""
        key = ("input", name)
        self._names[name] = self.leaf(key, shape, dtype, lambda given, _: given[name], key)
        return self._names[name]

    def names(self) -> dict[str, Shape]:
        """The shapes of the arrays that are given by name."""
        return {name: x.shape for name, x in self._names.items()}

    def needed(self, outputs: Iterable[int]) -> list[int]:
        """The steps that some steps need, and these, in order."""
        found = set(outputs)
        for k in range(len(self.steps) - 1, -1, -1):
            if k in found:
                found.update(a.step for a in self.steps[k].reads())
        return sorted(found)

    def dependence(self, names: Iterable[str]) -> dict[int, str]:
        """For each step that depends on one of the named arrays, its name."""
        found = {self._names[name].step: name for name in names}
        for k, step in enumerate(self.steps):
            name = next((found[a.step] for a in step.reads() if a.step in found), None)
            if name is not None:
                found[k] = name
        return found

    def leaf(
        self, key: Any, shape: Any, dtype: Any, read: Read, kind: Any = None, arrays: tuple[Any, ...] = ()
    ) -> Traced:
        """Values that differ from run to run; one key is one leaf.

        Leaves of one kind differ only in the arrays of another tape that they read.
        """
        if key not in self._known:
            self.leaves[len(self.steps)] = read
            self.reads_of[len(self.steps)] = (kind, arrays)
            self._known[key] = self._add(shape, dtype, _nothing, (), {})
        return self._known[key]

    def reader(self, array: Any) -> Callable[[Given], Any]:
        """How to read an array of another tape, or one with values, in a run of this tape."""
        if not isinstance(array, Traced):
            return lambda given: array
        if array.step in array.tape.constants:
            value = array.tape.constants[array.step]
            return lambda given: value
        self.sources[array.step] = array
        return lambda given: given[array.step]

    def shared(self, array: Any) -> Traced:
        """An array of another tape, or with values, that is the same for all tiles."""
        if not isinstance(array, Traced):
            return self.constant(array)
        read = self.reader(array)
        if array.step in array.tape.constants:
            return self.constant(read({}))
        key, kind = ("shared", array.step), ("shared",)
        return self.leaf(key, array.shape, array.dtype, lambda given, _: read(given), kind, (array,))

    def side(self, array: Any, span: Span, axis: int) -> Traced:
        """(repeats, inputs, ...) with its inputs on one of the axes 1 and 2 of a tile."""
        rest = array.shape[2:]
        if array.shape[1] == 1:
            return self.reshaped(self.shared(array), (array.shape[0], 1, 1, *rest))
        read, count = self.reader(array), span[1] - span[0]
        shape = (array.shape[0], *((count, 1) if axis == 1 else (1, count)), *rest)

        def tile(given: Given, spans: Mapping[Span, Span]) -> Any:
            part = slice(*spans[span])
            return read(given)[
                (slice(None), part, None, ...) if axis == 1 else (slice(None), None, part, ...)
            ]

        key, kind = ("side", self._name(array), span, axis), ("side", span, axis)
        made = self.leaf(key, shape, array.dtype, tile, kind, (array,))
        self._sides[made.step] = Side(array, span, axis)
        return made

    def constant(self, value: Any) -> Traced:
        """Values that all runs share."""
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array.astype(self.dtype, copy=False)
        self.constants[len(self.steps)] = array
        return self._add(array.shape, array.dtype, _nothing, (), {})

    def _name(self, array: Any) -> Any:
        """A key for an array, which the tape keeps if it is known by its id."""
        if isinstance(array, Traced):
            return array.step
        self._kept.append(array)
        return ("id", id(array))

    # Recording

    def call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], shape: Any, dtype: Any = None, kind: Any = None
    ) -> Traced:
        """A function of arrays whose shape is known; see `Step` for its kind."""
        dtype = dtype or np.result_type(*(a.dtype for a in _traced(args)))
        return self._add(shape, dtype, fn, args, {}, kind)

    def once(self, key: Any, make: Callable[[], Traced]) -> Traced:
        """What `make` records, the first time that a key is asked for."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def elementwise(self, fn: Callable[..., Any], *args: Any, dtype: Any = None, **options: Any) -> Traced:
        """A function that broadcasts its array arguments."""
        arrays = [a for a in args if hasattr(a, "shape")]
        shape = _broadcast([a.shape for a in arrays])
        dtype = np.dtype(dtype or np.result_type(*(a.dtype for a in arrays)))
        traced = [a for a in arrays if isinstance(a, Traced)]
        if all(a.step in self.constants for a in traced):
            return self.constant(fn(*map(self._value, args), **options))
        args = self._with_numbers(args, shape, dtype)
        made = self._on_one_side(fn, args, dtype, options)
        return self._once(shape, dtype, fn, args, options) if made is None else made

    def rule(self, fn: Elementary, *args: Any) -> Traced:
        """An elementwise function as one step; for compiled loops one that knows the operations inside it."""
        if not self.compiled or not fn.elementary:
            return self.elementwise(fn, *args)
        kinds = self._kinds(args)
        formula = None if FULL not in kinds else formula_of(fn, kinds, self.dtype.name, _blank)
        if formula is None:
            return fn(*args)
        shape = _broadcast([a.shape for a in args if hasattr(a, "shape")])
        made = self._once(shape, formula.dtype, formula, tuple(formula.arguments(self, list(args))), {})
        self.costs[made.step] = len(formula.lines)
        self.cuts.add(made.step)
        return made

    def _kinds(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What each argument belongs to, or its value if it is a number."""
        kinds: list[Any] = []
        placed: dict[int, set[Any]] = {LEFT: set(), RIGHT: set()}
        for a in args:
            side = self._sides.get(a.step) if isinstance(a, Traced) else None
            if side is not None:
                kinds.append(side.axis)
                placed[side.axis].add((side.span, len(side.array.shape)))
            elif isinstance(a, Traced) and a.step in self.constants and a.size == 1:
                kinds.append(("number", float(self.constants[a.step].item())))
            else:
                kinds.append(FULL if isinstance(a, Traced) else ("number", float(a)))
        apart = {axis for axis, places in placed.items() if len(places) > 1}  # of different ranks
        return tuple(FULL if kind in apart else kind for kind in kinds)

    def side_of(self, x: Traced) -> Side:
        return self._sides[x.step]

    def is_side(self, k: int) -> bool:
        """Whether a step reads a quantity of one side."""
        return k in self._sides

    def origin(self, k: int) -> tuple[int, int]:
        """Of a leaf: the side and the array that it reads there, or (FULL, the number that is its name)."""
        side = self._sides.get(k)
        if side is not None:
            return side.axis, side.array.step
        return FULL, int(self.reads_of[k][0][1])

    def place(self, name: str) -> int:
        """The step of an array that is given by name."""
        return self._names[name].step

    def depends(self, step: int, name: str) -> bool:
        return self._names[name].step in self.needed([step])

    def structural(
        self, fn: Callable[..., Any], *args: Any, made: Shape | None = None, **options: Any
    ) -> Any:
        """Any other function of arrays; its shape is given, or found by calling it on zeros of one byte."""
        traced = list(_traced(args))
        if all(a.step in self.constants for a in traced):
            return self.constant(fn(*map(self._value, args), **options))
        shape = np.shape(fn(*map(_zeros, args), **options)) if made is None else made
        return self._once(shape, traced[0].dtype, fn, args, options)

    def reshaped(self, x: Traced, shape: Shape) -> Traced:
        """The array in another shape; one that belongs to a side stays there."""
        if shape == x.shape:
            return x
        side = self._sides.get(x.step)
        if side and shape[:3] == x.shape[:3]:
            array = side.array
            new = (*array.shape[:2], *shape[3:])
            return self.side(_namespace(array).reshape(array, new), side.span, side.axis)
        return self.structural(np.reshape, x, made=shape, shape=shape)

    def permuted(self, x: Traced, axes: Shape) -> Traced:
        """The array with its axes in another order; what undoes an exchange gives the array before it."""
        if x.size == 1 or axes == tuple(range(x.ndim)):
            return x
        if x.step in self._permuted:
            inner, before = self._permuted[x.step]
            return self.permuted(inner, tuple(before[a] for a in axes))
        side = self._sides.get(x.step)
        if side and axes[0] == 0 and sorted(axes[1:3]) == [1, 2]:
            array = _namespace(side.array).permute_dims(side.array, (0, 1, *(a - 1 for a in axes[3:])))
            return self.side(array, side.span, side.axis if axes[1] == 1 else 3 - side.axis)
        made = self.structural(np.transpose, x, made=tuple(x.shape[a] for a in axes), axes=axes)
        if made.step not in self.constants:
            self._permuted[made.step] = (x, axes)
        return made

    # Tidying up

    def _value(self, x: Any) -> Any:
        if isinstance(x, Traced):
            return self.constants[x.step]
        return [self._value(y) for y in x] if isinstance(x, list) else x

    def _with_numbers(self, args: tuple[Any, ...], shape: Shape, dtype: Any) -> tuple[Any, ...]:
        """Constants of one element as numbers, if the other arguments have the shape of the result."""
        single = [type(a) is Traced and a.step in self.constants and a.size == 1 for a in args]
        if dtype.kind != "f" or not any(single):
            return args
        others = [a.shape for a, one in zip(args, single, strict=True) if hasattr(a, "shape") and not one]
        if _broadcast(others) != shape:
            return args
        plain = [one and a.dtype == dtype for a, one in zip(args, single, strict=True)]
        return tuple(
            float(self.constants[a.step].item()) if one else a for a, one in zip(args, plain, strict=True)
        )

    def _on_one_side(self, fn: Any, args: tuple[Any, ...], dtype: Any, options: dict) -> Traced | None:
        """A function of quantities of one side, computed for all inputs before the tiles."""
        sides = [self._sides.get(a.step) if type(a) is Traced else None for a in args]
        if not any(sides):
            return None
        placed = {(s.span, s.axis) for s in sides if s}
        others = [a for a, s in zip(args, sides, strict=True) if hasattr(a, "shape") and s is None]
        ranks = {len(s.array.shape) for s in sides if s}
        if len(placed) != 1 or others or len(ranks) != 1:
            return None
        parts = [s.array if s else a for a, s in zip(args, sides, strict=True)]
        before = next((p.tape for p in parts if isinstance(p, Traced)), None)
        if before is None:
            with np.errstate(all="ignore"):
                array = fn(*parts, **options)
        else:
            array = before.elementwise(fn, *parts, dtype=dtype, **options)
        return self.side(array, *placed.pop())

    def _once(self, shape: Shape, dtype: Any, fn: Callable[..., Any], args: Any, options: dict) -> Traced:
        """A new step, or the step that does the same."""
        key = (fn, *map(hashable, args), hashable(options) if options else None, shape, dtype)
        if key not in self._known:
            self._known[key] = self._add(shape, dtype, fn, args, options, fn)
        return self._known[key]

    def _add(
        self, shape: Shape, dtype: Any, fn: Callable[..., Any], args: Any, options: dict, kind: Any = None
    ) -> Traced:
        shape, dtype = tuple(shape), np.dtype(dtype)
        self.steps.append(Step(fn, args, options, kind))
        self.shapes.append(shape)
        self.dtypes.append(dtype)
        self.largest = max(self.largest, prod(shape))
        return Traced(self, len(self.steps) - 1, shape, dtype)


def _blank(dtype: str) -> Tape:
    return Tape(True, dtype)


def _broadcast(shapes: list[Shape]) -> Shape:
    """The common shape, fast if there is nothing to do."""
    if shapes and all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    return np.broadcast_shapes(*shapes)


def _zeros(x: Any) -> Any:
    if isinstance(x, Traced):
        return np.broadcast_to(np.int8(0), x.shape)
    return [_zeros(y) for y in x] if isinstance(x, list) else x


def _traced(args: Any) -> Iterator[Traced]:
    for x in args:
        if isinstance(x, Traced):
            yield x
        elif isinstance(x, list):
            yield from _traced(x)


def hashable(x: Any) -> Any:
    """Arguments as a key: traced arrays by their step."""
    kind = type(x)
    if kind is Traced:  # first, as most arguments are
        return x.step
    if kind is str:
        return x
    if isinstance(x, list | tuple):
        return tuple(map(hashable, x))
    if isinstance(x, slice):
        return ("slice", x.start, x.stop, x.step)
    if isinstance(x, np.ndarray | np.generic):
        return ("array", x.shape, x.dtype.str, x.tobytes())
    if isinstance(x, float):
        return ("float", x.hex())  # 0.0 and -0.0 differ
    if isinstance(x, int):
        return (type(x), x)
    return tuple((k, hashable(v)) for k, v in x.items()) if isinstance(x, dict) else x


def _namespace(array: Any) -> Any:
    return array.tape.namespace if isinstance(array, Traced) else np


def _nothing() -> None:
    raise AssertionError("leaves and constants are not computed")
