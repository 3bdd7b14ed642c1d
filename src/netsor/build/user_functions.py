"""Functions of the user: wrap them, test that they act coordinatewise, and recognise equal ones.

Two functions are equal if all objects that they reach are equal
(`build.dependencies`), and their values at fixed points are equal bit for bit. The values catch dependencies
that are invisible from Python.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from netsor.arguments import a_type
from netsor.build.dependencies import content_of, state_of
from netsor.build.source_lines import fail
from netsor.errors import BuildError, FunctionError
from netsor.lang.numerical_derivatives import DirectionalDerivative, PartialDerivative

REMEDY = (
    "Rule Nonlin: a function acts on each coordinate by itself, fn(x)[i] depends on x[i] alone, and the "
    "shape stays. An average over the width is a Moment, `ns.mean(h)`, passed as `params=`."
)
MIXING = (
    "Rule Nonlin: with axes= a function takes one array whose first axis runs over the members, and returns "
    "one with the same first axis or without it; it acts on each coordinate (the other axis) by itself."
)


class UserFunction:
    """A function of the user. It receives copies of arrays, which it may modify, and returns real numbers.

    derivatives  the user's derivatives by each argument, if given
    takes        (number of vectors, number of parameters, number of blocks whose members it mixes)
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        derivatives: tuple[UserFunction, ...] = (),
        takes: tuple[int, int, int] = (1, 0, 0),
    ) -> None:
        self.fn, self.derivatives, self.takes = fn, derivatives, takes
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.values = self._values()  # a digest of those at fixed points, at creation
        self.key = state_of(fn), self.values, takes, tuple(d.key for d in derivatives)
        self._hash = hash(self.key)

    def __call__(self, *args: Any, **options: Any) -> Any:
        empty = next((a for a in args if isinstance(a, np.ndarray) and a.size == 0), None)
        if empty is not None:
            return self._of_nothing(empty, [np.shape(a) for a in args])
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]  # fn may write to them
        out = self.fn(*copies, **options)
        if hasattr(out, "dtype") and all(isinstance(a, np.ndarray | float | np.generic) for a in args):
            out = np.asarray(out)  # from any array library
        if isinstance(out, np.ndarray | np.generic) and out.dtype.kind in "biu":
            like = next((a.dtype for a in args if isinstance(a, np.ndarray)), np.dtype(float))
            return out.astype(like)
        return out

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, UserFunction) or self._hash != other._hash or self.key != other.key:
            return False
        # Keys date from creation; an object that was equal then may have changed since.
        return self.fn is other.fn or not (self.has_changed or other.has_changed)

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self):
        return portable(self.fn), self.derivatives, self.takes, self.values

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Restore a function from another process, and check that it returns the same values here."""
        *arguments, values = state
        self.__init__(*arguments)
        if self.values != values:
            raise FunctionError(
                f"`{self.__name__}` gives other values here than where it was pickled",
                remedy="A global or an object that it reads differs, or its library rounds otherwise. Pass "
                "such values as arguments (functools.partial), or let its module travel, too: "
                "cloudpickle.register_pickle_by_value(module).",
            )

    def __repr__(self) -> str:
        return f"<function {self.__name__}>"

    def _of_nothing(self, like: np.ndarray, shapes: list[tuple[int, ...]]) -> np.ndarray:
        """The value for empty arrays, which many functions do not accept."""
        shape = np.broadcast_shapes(*shapes)
        if self.takes[2]:  # whether the function removes the axis of the members
            small = self(*(np.ones((*s[:1], *(1,) * len(s[1:]))) for s in shapes))
            shape = shape[len(shape) - np.ndim(small) :]
        return np.empty(shape, like.dtype)

    def _values(self) -> str:
        """A digest of the values at fixed points, bit for bit (all NaN are equal), and of errors."""
        digest = hashlib.sha256()
        for args in _points(*self.takes):
            try:
                with np.errstate(all="ignore"):
                    out = np.asarray(self(*args))
            except Exception as error:  # whatever the user's function raises; `probe` tells the user
                digest.update(type(error).__name__.encode())
                continue
            digest.update(f"{out.dtype} {out.shape}".encode())
            if out.dtype.kind in "biufc":
                digest.update(np.where(np.isnan(out), np.nan, out).tobytes())
        return digest.hexdigest()

    @property
    def has_changed(self) -> bool:
        """Whether the values at the fixed points differ from those at creation."""
        return self._values() != self.values or any(d.has_changed for d in self.derivatives)

    @property
    def likeness(self) -> tuple[Any, ...]:
        """A key that is equal for copies of a function that are created each time the network is read."""
        code = getattr(self.fn, "__code__", type(self.fn))
        return code, self.values, *(d.likeness for d in self.derivatives)

    @property
    def record(self) -> dict[str, Any]:
        """A key that other processes can compare: digests of code and of values."""
        code = content_of(self.fn, *(d.fn for d in self.derivatives))
        return {"code": code, "values": [self.values, *(d.values for d in self.derivatives)]}


def portable(value: object) -> Any:
    """Wrap functions and their parameters so that pickle can store them, by name where it can, else by value.

    Objects that functions stored by value share stay shared among themselves.
    """
    try:
        pickle.dumps(value)
    except (AttributeError, TypeError, pickle.PicklingError):
        return _ByValue(value)
    return value


@dataclass(frozen=True)
class _ByValue:
    """A value that cloudpickle stores; loading returns the value itself."""

    value: Any

    def __reduce__(self) -> tuple[Any, ...]:
        if not importlib.util.find_spec("cloudpickle"):
            raise BuildError(
                "a lambda or a function inside another one cannot be pickled by name",
                remedy='Define it in a module, or install cloudpickle: pip install "netsor[scale]".',
            )
        import cloudpickle

        return pickle.loads, (cloudpickle.dumps(self.value),)


@cache
def _points(vectors: int, params: int, blocks: int) -> list[list[Any]]:
    """Fixed arguments: ordinary ones, and of sizes from 1e-9 to 1e9, where functions may overflow."""
    rng = np.random.default_rng(28)
    if blocks:
        return [list(rng.standard_normal((blocks, members, 64))) for members in (3, 2, 5)]
    near = rng.standard_normal((vectors, 128)) * np.repeat([1.0, 30.0], 64)
    near[:, :4] = [0.0, -0.0, 1.0, -1.0]
    sizes = np.geomspace(1e-9, 1e9, 128)
    far = np.stack([rng.permutation(np.concatenate([sizes, -sizes])) for _ in range(vectors)])
    at = [rng.random(params) + 0.5, 10 * rng.random(params)]
    return [[*x, *c] for x, c in zip((near, far), at, strict=True)]


_OUTCOMES: dict[Any, bool] = {}  # of the last 1024 tests; equal functions are tested once


def probe(fn: UserFunction, label: str) -> bool:
    """Test that a function acts coordinatewise, and its derivatives.

    Return whether a function that mixes members (the first axis) removes their axis.
    """
    code = content_of(fn.fn, *(d.fn for d in fn.derivatives), texts=True)
    key = code, fn.likeness, fn.takes
    if key not in _OUTCOMES:
        removes = _check_coordinatewise(fn, label)
        _check_derivatives(fn, label)
        while len(_OUTCOMES) > 1024:
            _OUTCOMES.pop(next(iter(_OUTCOMES)), None)
        _OUTCOMES[key] = removes
    return _OUTCOMES[key]


def _check_coordinatewise(fn: UserFunction, label: str) -> bool:
    """Compare the values at all coordinates, taken in some order, with those in arrays of other shapes."""
    vectors, params, blocks = fn.takes
    rng, size, rule = np.random.default_rng(0), 20_000, MIXING if blocks else REMEDY
    members = (3,) * blocks
    arrays = rng.standard_normal((vectors + blocks, *members, size))
    arrays *= np.repeat([1.0, 30.0], [size - 100, 100])
    constants = rng.random(params) + 0.5

    def value(which: np.ndarray) -> np.ndarray:
        return _call(fn, label, rule, *(x[..., which] for x in arrays), *constants)

    same = partial(np.allclose, rtol=1e-9, atol=1e-12, equal_nan=True)
    few = np.arange(6)
    first = value(few)
    kept = members if first.ndim > 1 else ()  # the axes that the function keeps

    def checked(which: np.ndarray) -> np.ndarray:
        out = value(which)
        if out.shape != (*kept, *which.shape):
            turned = f"`{label}` turns shape {(*members, *which.shape)} into {out.shape}"
            raise fail(turned, rule, FunctionError)
        return out

    checked(few)
    order, whole = rng.permutation(size), np.empty((*kept, size))
    whole[..., order] = checked(order)
    # The same coordinates in arrays of other sizes and shapes: a function that reads neighbours differs.
    shapes = [order[:4], order[:1], order[-35:].reshape(5, 7), order[-24:].reshape(2, 3, 4), order[:1000]]
    for which in (few, *shapes):
        if not same(checked(which), whole[..., which]):
            raise fail(f"`{label}` does not act coordinatewise", rule, FunctionError)
    stop = time.perf_counter() + 0.05
    for k in range(500):
        if not same(value(few), first):
            raise fail(
                f"`{label}` gives other numbers when it is called again",
                "Rule Nonlin: a nonlinearity is one function of real numbers, without chance or memory.",
                FunctionError,
            )
        if k > 100 and time.perf_counter() > stop:  # a slow function
            break
    return bool(blocks) and not kept


def _check_derivatives(fn: UserFunction, label: str) -> None:
    """Compare the user's derivatives with finite differences."""
    vectors, params, blocks = fn.takes
    rng = np.random.default_rng(1)
    # A directional derivative takes the members and their directions.
    args = [*rng.standard_normal((2, 3, 500) if blocks else (vectors, 500)), *(rng.random(params) + 0.5)]
    for k, derivative in enumerate(fn.derivatives):
        slopes = _call(derivative, f"the derivative of {label}", MIXING if blocks else REMEDY, *args)
        by_differences = DirectionalDerivative if blocks else partial(PartialDerivative, place=k)
        expected = by_differences(fn, by_jax=False)(*args)
        alike = slopes.shape == expected.shape and np.abs(slopes - expected) <= 1e-5 * (1 + np.abs(expected))
        if np.mean(alike) < 0.95:  # a few points may be next to a kink, where differences are wrong
            raise fail(
                f"the derivative of `{label}` is not its derivative",
                "It is not what differences of the function are, at more than a few places. Give a function "
                "of the same arguments, or leave it out.",
                FunctionError,
            )


def _call(fn: UserFunction, label: str, rule: str, *args: object) -> np.ndarray:
    """Call a function, and raise a FunctionError if it fails or returns anything but float64 numbers."""
    try:
        with np.errstate(all="ignore"):
            out = fn(*args)
            array = np.asarray(out)
    except Exception as error:  # whatever the user's function raises
        count = "one argument" if len(args) == 1 else f"{len(args)} arguments"
        message = (str(error).strip().splitlines() or [""])[0][:200]
        raise fail(
            f"`{label}` fails on arrays: {type(error).__name__}: {message}",
            f"It is called with {count}: arrays for the vectors, then a number for each parameter. {rule}",
            FunctionError,
        ) from error
    if array.dtype.kind not in "biuf":
        kind = f"an array of {array.dtype}" if isinstance(out, np.ndarray) else f"{a_type(out)}"
        raise fail(f"`{label}` returns {kind}, not real numbers", rule, FunctionError)
    if array.dtype.kind == "f" and array.dtype.itemsize < 8:
        raise fail(
            f"`{label}` returns {array.dtype}, which has fewer digits than the float64 that it is given",
            "Write it with NumPy, or with the functions of its argument: `xp = x.__array_namespace__()`. For "
            'JAX turn on double precision first: jax.config.update("jax_enable_x64", True).',
            FunctionError,
        )
    return array.astype(float)
