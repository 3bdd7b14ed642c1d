"""The computation of one tile of pairs, recorded once and run for every tile.

The engine computes with `Traced` arrays, which have a shape but no values; what it does to them is a list
of steps. A run goes through the list with the values of one tile and drops every array after its last use, so
the workspace is what a tile needs at one time, whatever the length of the program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import array_api_compat.numpy as numpy_api
import numpy as np

from netsor.limits.fused import Fused, fuse

__all__ = ["Span", "Tape", "Traced"]

Span = tuple[int, int]
Shape = tuple[int, ...]

ELEMENTWISE = frozenset(
    """abs acos acosh add asin asinh astype atan atan2 atanh ceil clip copysign cos cosh divide equal exp
    expm1 floor greater greater_equal isfinite isinf isnan less less_equal log log10 log1p log2 logical_and
    logical_not logical_or maximum minimum multiply negative not_equal positive pow real remainder sign sin
    sinh sqrt square subtract tan tanh where""".split()  # noqa: SIM905
)
CONSTANT = frozenset(("zeros", "ones", "full", "eye", "asarray", "linspace", "arange"))


class Tape:
    """A list of steps; step k computes value k from earlier values."""

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self.shapes: list[Shape] = []
        self.dtypes: list[Any] = []
        self.cuts: set[int] = set()
        self.steps: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self.leaves: dict[int, Callable[[Mapping[Span, Span]], Any]] = {}
        self.constants: dict[int, Any] = {}
        self.namespace = Namespace(self)
        self.largest = 1
        self.known: dict[Any, tuple[Traced, Any]] = {}

    # Recording

    def leaf(self, key: Any, source: Any, shape: Any, read: Callable[[Mapping[Span, Span]], Any]) -> Traced:
        """Values that differ from tile to tile: `read` gets the inputs that stand for those of the trace.

        One key is one leaf; it may hold the id of `source`, which the tape keeps.
        """
        if key not in self.known:
            self.leaves[len(self.steps)] = read
            dtype = getattr(source, "dtype", np.float64)
            self.known[key] = (self._add(shape, dtype, _nothing, (), {}), source)
        return self.known[key][0]

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], shape: Any, dtype: Any = None) -> Traced:
        """A function of arrays whose shape is known."""
        dtype = dtype or np.result_type(*(a.dtype for a in _traced(args)))
        return self._add(shape, dtype, fn, args, {})

    def constant(self, value: Any) -> Traced:
        """Values that all tiles share."""
        array = np.asarray(value)
        self.constants[len(self.steps)] = array
        return self._add(array.shape, array.dtype, _nothing, (), {})

    def elementwise(self, fn: Callable[..., Any], *args: Any, dtype: Any = None, **options: Any) -> Traced:
        """A function that broadcasts its array arguments."""
        arrays = [a for a in args if hasattr(a, "shape")]
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        return self._add(shape, dtype or np.result_type(*(a.dtype for a in arrays)), fn, args, options)

    def rule(self, fn: Callable[..., Any], *args: Any) -> Traced:
        """An elementwise function of the array API: one step, or for compiled loops the steps inside it."""
        if not self.compiled:
            return self.elementwise(fn, *args)
        before = len(self.steps)
        try:
            made = fn(*args)
        except (TypeError, AttributeError, ValueError):  # it looks at values
            self._forget(before)
            return self.elementwise(fn, *args)
        self.cuts.add(len(self.steps) - 1)
        return made

    def _forget(self, count: int) -> None:
        """Drop all steps from `count` on."""
        for table in (self.steps, self.shapes, self.dtypes):
            del table[count:]
        for table in (self.leaves, self.constants):
            for k in [k for k in table if k >= count]:
                del table[k]
        self.known = {key: (leaf, source) for key, (leaf, source) in self.known.items() if leaf.step < count}

    def structural(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Any other function of arrays; its shape is found by calling it on zeros of one byte."""
        seen: list[Traced] = []

        def dummy(x: Any) -> Any:
            if isinstance(x, Traced):
                seen.append(x)
                return np.broadcast_to(np.int8(0), x.shape)
            return [dummy(y) for y in x] if isinstance(x, list) else x

        shape = np.shape(fn(*map(dummy, args), **options))
        return self._add(shape, seen[0].dtype, fn, args, options)

    def _add(
        self, shape: Shape, dtype: Any, fn: Callable[..., Any], args: tuple[Any, ...], options: dict
    ) -> Traced:
        self.steps.append((fn, args, options))
        self.shapes.append(tuple(shape))
        self.dtypes.append(np.dtype(dtype))
        self.largest = max(self.largest, prod(shape))
        return Traced(self, len(self.steps) - 1, tuple(shape), np.dtype(dtype))

    # Running

    def prepare(self, outputs: list[Any]) -> None:
        """Fix what is asked for: find the steps that it needs and where each value is used last."""
        self.outputs = {x.step: x for x in outputs if isinstance(x, Traced)}
        needed = set(self.outputs)
        for k in range(len(self.steps) - 1, -1, -1):
            if k in needed:
                needed.update(a.step for a in _traced(self.steps[k][1]))
        order = sorted(needed)
        self.order: list[int | Fused] = fuse(self, order, set(self.outputs)) if self.compiled else [*order]
        last: dict[int, int] = {}
        for at, part in enumerate(self.order):
            for k in part.inputs if isinstance(part, Fused) else self._reads(part):
                last[k] = at
        self.drops: dict[int, list[int]] = {}
        for value, at in last.items():
            self.drops.setdefault(at, []).append(value)

    def traced_arguments(self, k: int) -> Iterator[Traced]:
        """The arrays that step k computes with."""
        return _traced(self.steps[k][1])

    def _reads(self, k: int) -> list[int]:
        return [a.step for a in self.traced_arguments(k)]

    def run(self, spans: Mapping[Span, Span]) -> Iterator[tuple[int, Any]]:
        """(step, value) of every output, for the inputs that `spans` puts in place of those of the trace."""
        values: dict[int, Any] = dict(self.constants)
        for at, part in enumerate(self.order):
            for k, value in part.run(values) if isinstance(part, Fused) else self._step(part, values, spans):
                values[k] = value
                if k in self.outputs:
                    yield k, value
            for dead in self.drops.get(at, ()):
                del values[dead]

    def _step(self, k: int, values: dict[int, Any], spans: Mapping[Span, Span]) -> Iterator[tuple[int, Any]]:
        def value(x: Any) -> Any:
            if isinstance(x, Traced):
                return values[x.step]
            return [value(y) for y in x] if isinstance(x, list) else x

        fn, args, options = self.steps[k]
        if k in self.leaves:
            yield k, self.leaves[k](spans)
        elif k in self.constants:
            yield k, self.constants[k]
        else:
            yield k, fn(*[value(a) for a in args], **options)


class Namespace:
    """The functions of the array API, on traced arrays."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        found = _lookup(name)
        if name in CONSTANT:
            return lambda *args, **options: self._constant(found, *args, **options)
        if name in ("zeros_like", "ones_like", "full_like"):
            return lambda x, *args: self._tape.constant(
                np.broadcast_to(found(np.zeros((), x.dtype), *args), x.shape)
            )
        if name == "linalg":
            return _Linalg(self._tape)
        if not callable(found) or isinstance(found, type) or name in ("finfo", "isdtype", "result_type"):
            return found
        if name in ELEMENTWISE:
            return lambda *args, **options: self._tape.elementwise(found, *args, **options)
        return lambda *args, **options: self._tape.structural(found, *args, **options)

    def _constant(self, found: Callable, *args: Any, **options: Any) -> Any:
        if isinstance(args[0], Traced):
            return args[0]
        value = found(*args, **options)
        return self._tape.constant(value) if value.dtype.kind == "f" else value  # integers are indices

    def astype(self, x: Any, dtype: Any) -> Any:
        if x.dtype == dtype:
            return x
        return self._tape.elementwise(numpy_api.astype, x, dtype, dtype=dtype)

    def broadcast_to(self, x: Any, shape: Shape) -> Any:
        return x if tuple(shape) == x.shape else self._tape.structural(np.broadcast_to, x, shape=tuple(shape))

    def reshape(self, x: Any, shape: Shape) -> Any:
        return x if tuple(shape) == x.shape else self._tape.structural(np.reshape, x, shape=tuple(shape))


class _Linalg:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def diagonal(self, x: Any) -> Any:
        return self._tape.structural(numpy_api.linalg.diagonal, x)


class Traced:
    """An array of a tape: a shape and a type, and the step that will compute its values."""

    __array_ufunc__ = None
    __slots__ = ("dtype", "shape", "step", "tape")

    def __init__(self, tape: Tape, step: int, shape: Shape, dtype: Any) -> None:
        self.tape, self.step, self.shape, self.dtype = tape, step, shape, dtype

    def __array_namespace__(self, *, api_version: str | None = None) -> Namespace:
        return self.tape.namespace

    def __repr__(self) -> str:
        return f"<traced {self.shape}>"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def __getitem__(self, key: Any) -> Traced:
        return self.tape.structural(operator.getitem, self, key)

    def __bool__(self) -> bool:
        raise TypeError("a traced array has no truth value")

    def __neg__(self) -> Traced:
        return self.tape.elementwise(operator.neg, self)


def _binary(fn: Callable[[Any, Any], Any], dtype: Any = None) -> tuple[Callable, Callable]:
    def forward(self: Traced, other: Any) -> Traced:
        return self.tape.elementwise(fn, self, other, dtype=dtype)

    def backward(self: Traced, other: Any) -> Traced:
        return self.tape.elementwise(fn, other, self, dtype=dtype)

    return forward, backward


for _name in ("add", "sub", "mul", "truediv", "pow"):
    _forward, _backward = _binary(getattr(operator, _name))
    setattr(Traced, f"__{_name}__", _forward)
    setattr(Traced, f"__r{_name}__", _backward)
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "and_", "or_"):
    _forward, _ = _binary(getattr(operator, _name), dtype=bool)
    setattr(Traced, f"__{_name.rstrip('_')}__", _forward)


def _lookup(name: str) -> Any:
    try:
        return getattr(numpy_api, name)
    except AttributeError:
        return getattr(np, name)


def _traced(args: Any) -> Iterator[Traced]:
    for x in args:
        if isinstance(x, Traced):
            yield x
        elif isinstance(x, list):
            yield from _traced(x)


def _nothing() -> None:
    raise AssertionError("leaves and constants are not computed")
