"""Arrays without values: what is done to them is recorded on a tape."""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.lang import libraries

if TYPE_CHECKING:
    from netsor.limits.tape.tape import Tape

__all__ = ["Namespace", "NeedsValuesError", "Traced", "array_namespace", "tape_of"]

Shape = tuple[int, ...]

ELEMENTWISE = frozenset(
    """abs acos acosh add asin asinh atan atan2 atanh ceil clip copysign cos cosh divide equal exp
    expm1 floor greater greater_equal isfinite isinf isnan less less_equal log log10 log1p log2 logical_and
    logical_not logical_or maximum minimum multiply negative not_equal positive pow real remainder sign sin
    sinh sqrt square subtract tan tanh where""".split()  # noqa: SIM905
)
CONSTANT = frozenset(("zeros", "ones", "full", "eye", "linspace", "arange"))
FACTS = ("finfo", "isdtype", "result_type")


class NeedsValuesError(TypeError):
    """What to compute depends on values, so it cannot be recorded."""


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


def tape_of(*arrays: Any) -> Tape | None:
    """The tape of traced arrays, or None for arrays with values."""
    return next((a.tape for a in arrays if isinstance(a, Traced)), None)


def array_namespace(*arrays: Any) -> Any:
    """The namespace of arrays; at once for traced ones, of which a recording asks thousands of times."""
    if type(arrays[0]) is Traced:
        return arrays[0].tape.namespace
    return libraries.array_namespace(*arrays)


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


class Namespace:
    """The functions of the array API, on traced arrays."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if name in CONSTANT:
            return lambda *args, **options: self._constant(found(*args, **options))
        if name in ("zeros_like", "ones_like", "full_like"):
            return lambda x, *args: self._tape.constant(
                np.broadcast_to(found(np.zeros((), x.dtype), *args), x.shape)
            )
        if not callable(found) or isinstance(found, type) or name in FACTS:
            return found
        if name in ELEMENTWISE:
            return lambda *args, **options: self._tape.elementwise(found, *args, **options)
        return lambda *args, **options: self._tape.structural(found, *args, **options)

    def _constant(self, value: Any) -> Any:
        return self._tape.constant(value) if value.dtype.kind == "f" else value  # integers are indices

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        return x if isinstance(x, Traced) else self._constant(np.asarray(x, dtype))

    def astype(self, x: Any, dtype: Any) -> Any:
        if x.dtype == dtype:
            return x
        return self._tape.elementwise(np.astype, x, dtype, dtype=dtype)

    def broadcast_to(self, x: Any, shape: Shape) -> Any:
        if tuple(shape) == x.shape:
            return x
        return self._tape.structural(np.broadcast_to, x, made=tuple(shape), shape=tuple(shape))

    def broadcast_arrays(self, *arrays: Any) -> list[Any]:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        return [self.broadcast_to(a, shape) for a in arrays]

    def reshape(self, x: Any, shape: Shape) -> Any:
        return self._tape.reshaped(x, tuple(shape))

    def permute_dims(self, x: Any, axes: Shape) -> Any:
        return self._tape.permuted(x, tuple(axes))

    def moveaxis(self, x: Any, source: Any, destination: Any) -> Any:
        order = np.moveaxis(np.broadcast_to(np.int8(0), range(2, 2 + x.ndim)), source, destination).shape
        return self._tape.permuted(x, tuple(n - 2 for n in order))

    def matrix_transpose(self, x: Any) -> Any:
        last = x.ndim - 1
        return self._tape.permuted(x, (*range(last - 1), last, last - 1))

    def matmul(self, x: Any, y: Any) -> Any:
        made = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
        product = self._tape.structural(np.matmul, x, y, made=made)
        self._tape.costs[product.step] = x.shape[-1]
        return product

    def vecdot(self, x: Any, y: Any) -> Any:
        made = np.broadcast_shapes(x.shape, y.shape)[:-1]
        product = self._tape.structural(np.vecdot, x, y, made=made)
        self._tape.costs[product.step] = x.shape[-1]
        return product

    def sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        gone = {a % x.ndim for a in axes}
        made = tuple(1 if d in gone else n for d, n in enumerate(x.shape) if keepdims or d not in gone)
        return self._tape.structural(np.sum, x, made=made, axis=tuple(gone), keepdims=keepdims)

    @property
    def linalg(self) -> _Linalg:
        return _Linalg(self._tape)


class _Linalg:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def diagonal(self, x: Any) -> Any:
        return self._tape.structural(np.linalg.diagonal, x)
