"""Arrays without values: operations on them are recorded on a tape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from netsor.lang import array_api

if TYPE_CHECKING:
    from netsor.limits.tape.tape import Tape

Shape = tuple[int, ...]

ELEMENTWISE = frozenset(
    """abs acos acosh add asin asinh atan atan2 atanh ceil clip copysign cos cosh divide equal exp
    expm1 floor greater greater_equal isfinite isinf isnan less less_equal log log10 log1p log2 logical_and
    logical_not logical_or maximum minimum multiply negative not_equal positive pow real remainder sign sin
    sinh sqrt square subtract tan tanh where""".split()  # noqa: SIM905
)


class NeedsValuesError(TypeError):
    """A computation depends on values, so it cannot be recorded."""


def _binary(
    fn: Callable[[Any, Any], Any], dtype: DTypeLike | None = None
) -> tuple[Callable[..., Traced], Callable[..., Traced]]:
    """Return a binary operator of arrays, and its reflection."""

    def forward(self: Traced, other: Traced | float) -> Traced:
        return self.tape.elementwise(fn, self, other, dtype=dtype)

    def reflected(self: Traced, other: Traced | float) -> Traced:
        return self.tape.elementwise(fn, other, self, dtype=dtype)

    return forward, reflected


class Traced:
    """An array of a tape: a shape, a type, and the step that computes its values."""

    __array_ufunc__ = None
    __slots__ = ("dtype", "shape", "step", "tape")

    def __init__(self, tape: Tape, step: int, shape: Shape, dtype: np.dtype) -> None:
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
        return prod(self.shape)

    @property
    def T(self) -> Traced:
        return self.tape.permuted(self, (1, 0))

    def __getitem__(self, key: Any) -> Traced:
        return self.tape.structural(operator.getitem, self, key)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NeedsValuesError("a traced array has no values")

    __bool__ = __float__ = __array__ = __len__ = __iter__ = _refuse

    def __neg__(self) -> Traced:
        return self.tape.elementwise(operator.neg, self)

    __add__, __radd__ = _binary(operator.add)
    __sub__, __rsub__ = _binary(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul)
    __truediv__, __rtruediv__ = _binary(operator.truediv)
    __pow__, __rpow__ = _binary(operator.pow)
    __lt__, __gt__ = _binary(operator.lt, bool)
    __le__, __ge__ = _binary(operator.le, bool)
    __eq__ = _binary(operator.eq, bool)[0]  # type: ignore[assignment]
    __ne__ = _binary(operator.ne, bool)[0]  # type: ignore[assignment]
    __and__, __rand__ = _binary(operator.and_, bool)
    __or__, __ror__ = _binary(operator.or_, bool)
    __hash__ = object.__hash__  # == is recorded like any other operator, so identity decides


def array_namespace(*arrays: Any) -> Any:
    """Return the namespace of arrays; fast for traced ones, because a recording asks thousands of times."""
    if type(arrays[0]) is Traced:
        return arrays[0].tape.namespace
    return array_api.array_namespace(*arrays)


def _broadcast_rest(x: np.ndarray, rest: Shape) -> np.ndarray:
    """Broadcast all axes but the first: a run may have fewer repeats than were recorded."""
    return np.broadcast_to(x, (x.shape[0], *rest))


def _join_repeats(fn: Callable[..., np.ndarray], arrays: list[np.ndarray], axis: int) -> np.ndarray:
    """Stack or concatenate arrays whose first axis, the repeats, is broadcast."""
    repeats = max(len(a) for a in arrays)
    return fn([np.broadcast_to(a, (repeats, *a.shape[1:])) for a in arrays], axis=axis)


class Namespace:
    """The functions of the array API for traced arrays."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        if name in ("zeros", "ones", "full", "eye", "linspace", "arange"):
            return lambda *args, **options: self._constant(function(*args, **options))
        if name in ("zeros_like", "ones_like", "full_like"):
            return lambda x, *args: self._tape.constant(
                np.broadcast_to(function(np.zeros((), x.dtype), *args), x.shape)
            )
        is_fact = name in ("finfo", "isdtype", "result_type")
        if not callable(function) or isinstance(function, type) or is_fact:
            return function
        if name in ELEMENTWISE:
            return lambda *args, **options: self._tape.elementwise(function, *args, **options)
        return lambda *args, **options: self._tape.structural(function, *args, **options)

    def _constant(self, value: np.ndarray) -> Traced | np.ndarray:
        return self._tape.constant(value) if value.dtype.kind == "f" else value  # integers serve as indices

    def asarray(self, x: Traced | ArrayLike, dtype: DTypeLike | None = None) -> Traced | np.ndarray:
        return x if isinstance(x, Traced) else self._constant(np.asarray(x, dtype))

    def astype(self, x: Traced, dtype: DTypeLike) -> Traced:
        if x.dtype == dtype:
            return x
        return self._tape.elementwise(np.astype, x, dtype, dtype=dtype)

    def broadcast_to(self, x: Traced, shape: Shape) -> Traced:
        if tuple(shape) == x.shape:
            return x
        if x.ndim == len(shape) and shape[0] > 1 and x.ndim:  # the first axis is that of repeats
            full = (x.shape[0], *shape[1:])
            if full == x.shape:
                return x
            return self._tape.structural(_broadcast_rest, x, full[1:], result_shape=full)
        return self._tape.structural(np.broadcast_to, x, result_shape=tuple(shape), shape=tuple(shape))

    def stack(self, arrays: Sequence[Traced], axis: int = 0) -> Traced:
        return self._join(np.stack, arrays, axis)

    def concat(self, arrays: Sequence[Traced], axis: int = 0) -> Traced:
        return self._join(np.concat, arrays, axis)

    def _join(self, fn: Callable[..., np.ndarray], arrays: Sequence[Traced], axis: int) -> Traced:
        """Join arrays, some with a value per repeat and some with one value for all repeats."""
        if len({a.shape[:1] for a in arrays}) == 1 or axis == 0:
            return self._tape.structural(fn, list(arrays), axis=axis)
        return self._tape.structural(_join_repeats, fn, list(arrays), axis)

    def broadcast_arrays(self, *arrays: Traced) -> list[Traced]:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        return [self.broadcast_to(a, shape) for a in arrays]

    def reshape(self, x: Traced, shape: Shape) -> Traced:
        return self._tape.reshaped(x, tuple(shape))

    def permute_dims(self, x: Traced, axes: Shape) -> Traced:
        return self._tape.permuted(x, tuple(axes))

    def moveaxis(self, x: Traced, source: int | Shape, destination: int | Shape) -> Traced:
        order = np.moveaxis(np.broadcast_to(np.int8(0), range(2, 2 + x.ndim)), source, destination).shape
        return self._tape.permuted(x, tuple(n - 2 for n in order))

    def matrix_transpose(self, x: Traced) -> Traced:
        last = x.ndim - 1
        return self._tape.permuted(x, (*range(last - 1), last, last - 1))

    def matmul(self, x: Traced, y: Traced) -> Traced:
        shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
        product = self._tape.structural(np.matmul, x, y, result_shape=shape)
        self._tape.costs[product.step] = x.shape[-1]
        return product

    def vecdot(self, x: Traced, y: Traced) -> Traced:
        shape = np.broadcast_shapes(x.shape, y.shape)[:-1]
        product = self._tape.structural(np.vecdot, x, y, result_shape=shape)
        self._tape.costs[product.step] = x.shape[-1]
        return product

    def sum(self, x: Traced, axis: int | Shape | None = None, keepdims: bool = False) -> Traced:
        axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        gone = {a % x.ndim for a in axes}
        shape = tuple(1 if d in gone else n for d, n in enumerate(x.shape) if keepdims or d not in gone)
        return self._tape.structural(np.sum, x, result_shape=shape, axis=tuple(gone), keepdims=keepdims)

    @property
    def linalg(self) -> SimpleNamespace:
        return SimpleNamespace(diagonal=partial(self._tape.structural, np.linalg.diagonal))
