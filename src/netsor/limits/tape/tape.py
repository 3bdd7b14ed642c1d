"""Computations that are recorded once and run for many inputs.

The rules compute with `Traced` arrays, which have a shape but no values; a tape is the resulting list of
steps. There are two kinds of tapes. One computes the quantities of single inputs, for all of them. The other
computes a tile of pairs of inputs from these, and runs once for every tile.

Recording also simplifies: it computes constants at once, merges equal steps, and moves functions of one side
of a tile to the tape of single inputs, so that they run once and not for every tile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from netsor.limits.tape.formulas import FULL, LEFT, RIGHT, formula_of
from netsor.limits.tape.traced import Namespace, Traced, array_namespace

Span = tuple[int, int]
Shape = tuple[int, ...]
Array = Traced | np.ndarray


class TapeStep(NamedTuple):
    """A function and its arguments: values of earlier steps, wherever these are traced.

    kind   what the function does: steps of one kind differ only in their arguments. None is a function of
           NumPy arrays, which no other library can run
    bound  a function of a probe and the arguments that returns a perturbed value; see
           `netsor.limits.error_probes`
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    kind: Any = None
    bound: Callable[..., Any] | None = None

    def reads(self) -> Iterator[Traced]:
        return _traced(self.args)


def _not_computed() -> None:
    raise AssertionError("leaves, constants and error bounds are not computed")


NOTHING = TapeStep(_not_computed, (), {})


class Leaf(NamedTuple):
    """A value that differs between runs: a function of the spans of a tile and of what it reads.

    arrays  arrays of another tape, arrays with values, or the name of an array that a run is given
    kind    leaves of one kind differ only in their arrays; None for a function of NumPy arrays
    """

    fn: Callable[..., Any]
    arrays: tuple[Any, ...]
    kind: Any

    def read(self, given: Mapping[Any, Any], spans: Mapping[Span, Span]) -> Any:
        values = []
        for array in self.arrays:
            key = array.step if isinstance(array, Traced) else array if isinstance(array, str) else None
            values.append(array if key is None else given[key])
        return self.fn(spans, *values)


@dataclass(frozen=True)
class TileSide:
    """A quantity of single inputs (repeats, inputs, ...) in a tile, with its inputs on axis 1 or 2."""

    array: Any
    span: Span
    axis: int


class Tape:
    """A list of steps; step k computes value k from earlier values. Constants have the dtype of the tape."""

    def __init__(self, compiled: bool = False, dtype: DTypeLike = np.float64, share: float = 1.0) -> None:
        self.compiled, self.dtype = compiled, np.dtype(dtype)
        self.share = share  # the number of inputs, as a fraction of those of the whole kernel
        self.namespace = Namespace(self)
        self.steps: list[TapeStep] = []
        self.shapes: list[Shape] = []
        self.dtypes: list[np.dtype] = []
        self.leaves: dict[int, Leaf] = {}
        self.inputs: dict[str, Traced] = {}  # what a run is given, by name
        self.constants: dict[int, np.ndarray] = {}
        self.rules: set[int] = set()  # the steps that are closed forms
        self.costs: dict[int, int] = {}  # multiply-adds per element, if not one
        self.opaque = False  # whether some values are not arrays, so that inputs cannot run in batches
        self.largest = 1
        self._recorded: dict[Hashable, Any] = {}
        self.sides: dict[int, TileSide] = {}  # by step that reads a quantity of one side
        self._permuted: dict[int, tuple[Traced, Shape]] = {}
        self._exact: dict[int, Traced] = {}  # by step that only adds an error bound, the value without it

    # What a tape reads

    def input(self, name: str, shape: Shape, dtype: DTypeLike) -> Traced:
        """Return the array that a run is given under this name."""
        self.inputs[name] = self.leaf(("input", name), shape, dtype, (name,), _value_alone, ("input",))
        return self.inputs[name]

    def needed(self, outputs: Iterable[int]) -> list[int]:
        """Return the outputs and all steps that they need, in order."""
        steps = set(outputs)
        for k in range(len(self.steps) - 1, -1, -1):
            if k in steps:
                steps.update(a.step for a in self.steps[k].reads())
        return sorted(steps)

    def sources(self, steps: Iterable[int]) -> dict[int, Traced]:
        """Return what some steps read from another tape, by step there."""
        return {a.step: a for k in steps if k in self.leaves for a in _traced(self.leaves[k].arrays)}

    def dependence(self, names: Iterable[str]) -> dict[int, str]:
        """Return, for each step that depends on a named array, the name of that array."""
        name_of = {self.inputs[name].step: name for name in names}
        for k, step in enumerate(self.steps):
            name = next((name_of[a.step] for a in step.reads() if a.step in name_of), None)
            if name is not None:
                name_of[k] = name
        return name_of

    def leaf(
        self,
        key: Hashable,
        shape: Shape,
        dtype: DTypeLike,
        arrays: tuple[Any, ...],
        fn: Callable[..., Any],
        kind: Any = None,
    ) -> Traced:
        """Record a function of the spans of a tile and of arrays; equal keys give the same leaf."""

        def make() -> Traced:
            self.leaves[len(self.steps)] = Leaf(fn, tuple(map(_constant_or_traced, arrays)), kind)
            return self._add(NOTHING, shape, dtype)

        return self.once(key, make)

    def shared(self, array: Array) -> Traced:
        """Return an array of another tape, or with values, that is the same for all tiles."""
        array = _constant_or_traced(array)
        if not isinstance(array, Traced):
            return self.constant(array)
        return self.leaf(
            ("shared", array.step), array.shape, array.dtype, (array,), _value_alone, ("shared",)
        )

    def side(self, array: Array, span: Span, axis: int) -> Traced:
        """Move the inputs of (repeats, inputs, index...) to axis 1 or 2 of (repeats, left, right...)."""
        index = array.shape[2:]
        if array.shape[1] == 1:
            return self.reshaped(self.shared(array), (array.shape[0], 1, 1, *index))
        count = span[1] - span[0]
        shape = (array.shape[0], *((count, 1) if axis == 1 else (1, count)), *index)

        def tile(spans: Mapping[Span, Span], values: np.ndarray) -> np.ndarray:
            part = slice(*spans[span])
            return values[:, part, None, ...] if axis == 1 else values[:, None, part, ...]

        key, kind = ("side", hashable(array), span, axis), ("side", span, axis)
        leaf = self.leaf(key, shape, array.dtype, (array,), tile, kind)
        self.sides[leaf.step] = TileSide(array, span, axis)
        return leaf

    def constant(self, value: ArrayLike) -> Traced:
        """Return values that all runs share."""
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array.astype(self.dtype, copy=False)
        self.constants[len(self.steps)] = array
        return self._add(NOTHING, array.shape, array.dtype)

    # Recording

    def call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        shape: Sequence[int],
        dtype: DTypeLike | None = None,
        kind: Any = None,
        bound: Callable[..., Any] | None = None,
    ) -> Traced:
        """Record a function of arrays whose result has a known shape; `TapeStep` explains kind and bound."""
        dtype = dtype or np.result_type(*(a.dtype for a in _traced(args)))
        return self._add(TapeStep(fn, args, {}, kind, bound), shape, dtype)

    def bounded(self, x: Traced, bound: Callable[..., Any], *reads: Any) -> Traced:
        """Attach an error bound to an array; the bound may read further arrays. Plain runs skip the step."""
        if x.step in self.constants:
            return x
        side = self.sides.get(x.step)
        # A function of one side stays on its side, so that its bound is applied once per input.
        if side and not reads and isinstance(side.array, Traced):
            return self.side(side.array.tape.bounded(side.array, bound), side.span, side.axis)
        step = NOTHING._replace(args=(x, *reads), bound=bound)
        bounded = self.once(
            ("bounded", x.step, bound, hashable(reads)), lambda: self._add(step, x.shape, x.dtype)
        )
        self._exact[bounded.step] = x
        return bounded

    def exact(self, x: Traced) -> Traced:
        """Return the array without the error bounds that it carries."""
        while x.step in self._exact:
            x = self._exact[x.step]
        return x

    def without_bounds(self) -> Tape:
        """Return the tape of plain runs, in which no step reads one that only adds an error bound."""
        if not self._exact:
            return self
        plain = copy(self)
        plain.steps = [
            step._replace(args=tuple(_replaced(a, self.exact) for a in step.args))
            if any(a.step in self._exact for a in step.reads())
            else step
            for step in self.steps
        ]
        return plain

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` records; record it only for the first use of a key."""
        if key not in self._recorded:
            self._recorded[key] = make()
        return self._recorded[key]

    def elementwise(
        self, fn: Callable[..., Any], *args: Any, dtype: DTypeLike | None = None, **options: Any
    ) -> Traced:
        """Record a function that broadcasts its array arguments."""
        arrays = [a for a in args if hasattr(a, "shape")]
        shape = _broadcast([a.shape for a in arrays])
        dtype = np.dtype(dtype or np.result_type(*(a.dtype for a in arrays)))
        traced = [a for a in arrays if isinstance(a, Traced)]
        if all(a.step in self.constants for a in traced):
            return self.constant(fn(*map(self._value, args), **options))
        args = self._with_numbers(args, shape, dtype)
        side = self._on_one_side(fn, args, dtype, options)
        return self._once(shape, dtype, fn, args, options) if side is None else side

    def rule(self, fn: Callable[..., Any], *args: Any) -> Traced:
        """Record an elementwise function: as one step with a formula if loops are compiled, else inline."""
        if not self.compiled or not getattr(fn, "elementary", False):
            return self.elementwise(fn, *args)
        kinds = self._kinds(args)
        formula = None if FULL not in kinds else formula_of(fn, kinds, self.dtype.name, Tape)
        if formula is None:
            return fn(*args)
        shape = _broadcast([a.shape for a in args if hasattr(a, "shape")])
        value = self._once(shape, formula.dtype, formula, tuple(formula.arguments(self, list(args))), {})
        self.costs[value.step] = len(formula.steps)
        self.rules.add(value.step)
        return value

    def _kinds(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return FULL, LEFT or RIGHT for each argument, or ("number", its value)."""
        kinds: list[Any] = []
        placed: dict[int, set[Any]] = {LEFT: set(), RIGHT: set()}
        for a in args:
            side = self.sides.get(a.step) if isinstance(a, Traced) else None
            if side is not None:
                kinds.append(side.axis)
                placed[side.axis].add((side.span, len(side.array.shape)))
            elif isinstance(a, Traced) and a.step in self.constants and a.size == 1:
                kinds.append(("number", float(self.constants[a.step].item())))
            else:
                kinds.append(FULL if isinstance(a, Traced) else ("number", float(a)))
        # Arguments on one side must align there before they are combined, so ranks and spans must agree.
        apart = {axis for axis, places in placed.items() if len(places) > 1}
        return tuple(FULL if kind in apart else kind for kind in kinds)

    def bytes(self, k: int) -> int:
        """Return the size of the value of a step."""
        return prod(self.shapes[k]) * self.dtypes[k].itemsize

    def structural(
        self, fn: Callable[..., Any], *args: Any, result_shape: Shape | None = None, **options: Any
    ) -> Traced:
        """Record any other function of arrays. Without `result_shape`, call it on zeros of one byte."""
        traced = list(_traced(args))
        if all(a.step in self.constants for a in traced):
            return self.constant(fn(*map(self._value, args), **options))
        if result_shape is None:
            zeros = (_replaced(a, lambda x: np.broadcast_to(np.int8(0), x.shape)) for a in args)
            result_shape = np.shape(fn(*zeros, **options))
        return self._once(result_shape, traced[0].dtype, fn, args, options)

    def reshaped(self, x: Traced, shape: Shape) -> Traced:
        """Return the array in another shape; an array of one side stays on its side."""
        if shape == x.shape:
            return x
        side = self.sides.get(x.step)
        if side and shape[:3] == x.shape[:3]:
            array = side.array
            new = (*array.shape[:2], *shape[3:])
            return self.side(array_namespace(array).reshape(array, new), side.span, side.axis)
        flexible = bool(shape and x.shape) and shape[0] == x.shape[0] > 1 and all(shape)
        # A run may have fewer repeats than were recorded, so leave the first axis open.
        asked = (-1, *shape[1:]) if flexible else shape
        return self.structural(np.reshape, x, result_shape=shape, shape=asked)

    def permuted(self, x: Traced, axes: Shape) -> Traced:
        """Return the array with its axes in another order; exchanging axes twice gives the array itself."""
        if x.size == 1 or axes == tuple(range(x.ndim)):
            return x
        # Combine with the exchange before: two that undo each other leave no step.
        if x.step in self._permuted:
            inner, before = self._permuted[x.step]
            return self.permuted(inner, tuple(before[a] for a in axes))
        side = self.sides.get(x.step)
        if side and axes[0] == 0 and sorted(axes[1:3]) == [1, 2]:
            order = (0, 1, *(a - 1 for a in axes[3:]))
            array = array_namespace(side.array).permute_dims(side.array, order)
            return self.side(array, side.span, side.axis if axes[1] == 1 else 3 - side.axis)
        transposed = self.structural(np.transpose, x, result_shape=tuple(x.shape[a] for a in axes), axes=axes)
        if transposed.step not in self.constants:
            self._permuted[transposed.step] = (x, axes)
        return transposed

    # Simplifications

    def _value(self, x: Any) -> Any:
        return _replaced(x, lambda a: self.constants[a.step])

    def _with_numbers(self, args: tuple[Any, ...], shape: Shape, dtype: np.dtype) -> tuple[Any, ...]:
        """Replace constants of one element by numbers if the other arguments give the result's shape."""
        single = [type(a) is Traced and a.step in self.constants and a.size == 1 for a in args]
        shapes = [a.shape for a, one in zip(args, single, strict=True) if hasattr(a, "shape") and not one]
        if dtype.kind != "f" or not any(single) or _broadcast(shapes) != shape:
            return args
        return tuple(
            float(self.constants[a.step].item()) if one and a.dtype == dtype else a
            for a, one in zip(args, single, strict=True)
        )

    def _on_one_side(
        self, fn: Callable[..., Any], args: tuple[Any, ...], dtype: np.dtype, options: dict
    ) -> Traced | None:
        """Record a function of one side on the tape of single inputs; None if it depends on both sides."""
        sides = [self.sides.get(a.step) if type(a) is Traced else None for a in args]
        if not any(sides):
            return None
        placed = {(s.span, s.axis) for s in sides if s}
        has_pairs = any(hasattr(a, "shape") and s is None for a, s in zip(args, sides, strict=True))
        ranks = {len(s.array.shape) for s in sides if s}
        if len(placed) != 1 or has_pairs or len(ranks) != 1:
            return None
        singles = [s.array if s else a for a, s in zip(args, sides, strict=True)]
        tape = next((x.tape for x in singles if isinstance(x, Traced)), None)
        if tape is None:
            with np.errstate(all="ignore"):
                array = fn(*singles, **options)
        else:
            array = tape.elementwise(fn, *singles, dtype=dtype, **options)
        return self.side(array, *placed.pop())

    def _once(
        self, shape: Shape, dtype: np.dtype, fn: Callable[..., Any], args: tuple[Any, ...], options: dict
    ) -> Traced:
        """Return the step, which is new only if no equal step exists."""
        key = (fn, *map(hashable, args), hashable(options) if options else None, shape, dtype)
        return self.once(key, lambda: self._add(TapeStep(fn, args, options, fn), shape, dtype))

    def _add(self, step: TapeStep, shape: Sequence[int], dtype: DTypeLike) -> Traced:
        self.steps.append(step)
        self.shapes.append(tuple(shape))
        self.dtypes.append(np.dtype(dtype))
        self.largest = max(self.largest, prod(shape))
        return Traced(self, len(self.steps) - 1, self.shapes[-1], self.dtypes[-1])


def _broadcast(shapes: list[Shape]) -> Shape:
    """Return the common shape; equal shapes, the usual case, take no call of NumPy."""
    if shapes and all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    return np.broadcast_shapes(*shapes)


def _replaced(x: Any, value: Callable[[Traced], Any]) -> Any:
    """Return an argument with values in place of traced arrays, also of those in a list."""
    if isinstance(x, Traced):
        return value(x)
    return [_replaced(y, value) for y in x] if isinstance(x, list) else x


def _constant_or_traced(x: Any) -> Any:
    """Return the value of an array that is a constant of its tape; return anything else as it is."""
    return x.tape.constants.get(x.step, x) if isinstance(x, Traced) else x


def _value_alone(_: Mapping[Span, Span], value: Any) -> Any:
    return value


def _traced(args: Any) -> Iterator[Traced]:
    for x in args:
        if isinstance(x, Traced):
            yield x
        elif isinstance(x, list):
            yield from _traced(x)


def hashable(x: Any) -> Hashable:
    """Return arguments as a key, in which a traced array is its step."""
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
