"""Derivatives of users' functions: the user's, else JAX's if it can trace the function, else differences.

Where seventh differences show that the function is smooth, a stencil of nine points around x is used. Its
error is rounding, about 1e-12, for functions that vary over lengths of 0.1 and more. Elsewhere a stencil of
five points is used, to the left of x, around it, or to the right: the one with the smallest fourth difference
(Harten et al. 1987, ENO schemes). So no kink lies inside the stencil, and next to a kink the derivative is
that of its own side. Two kinks closer than 0.01 are not resolved. `coarser` doubles the step so many times;
the change estimates the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from netsor.lang.array_api import double_precision, is_traced
from netsor.lang.ops import Function, Mixing

STEP = 2.0**-10  # a power of 2, so that x + k step is exact


def partial_of(op: Function, place: int, coarser: int = 0) -> Function:
    """Return the derivative of a user's function by its argument number `place`, as a function."""
    name = f"d_{op.name}" if op.arity == 1 else f"d{place + 1}_{op.name}"
    given = getattr(op.fn, "derivatives", ())
    if place < len(given):
        derivative = given[place]
    else:
        derivative = PartialDerivative(op.fn, _traces(op.fn, op.arity, ()), coarser, place)
    return Function(name, derivative, op.arity, op.params, op.defaults, user=True)


def directional(op: Mixing, coarser: int = 0) -> Mixing:
    """Return the directional derivative of a user's function of members, by members and directions."""
    given = getattr(op.fn, "derivatives", ())
    derivative = given[0] if given else DirectionalDerivative(op.fn, _traces(op.fn, 1, (3,)), coarser)
    return Mixing(f"d_{op.name}", derivative, op.reduces, masked=True, user=True)


def by_differences(op: Function | Mixing) -> bool:
    """Whether a derivative is computed by finite differences."""
    return isinstance(op.fn, _Derivative) and not op.fn.by_jax


@dataclass(frozen=True)
class _Derivative:
    """The derivative of a user's function, by JAX or by finite differences."""

    fn: Callable[..., Any]
    by_jax: bool
    coarser: int = 0

    @property
    def has_changed(self) -> bool:
        """Whether the function has changed since a program was made with it."""
        return getattr(self.fn, "has_changed", False)


@dataclass(frozen=True)
class PartialDerivative(_Derivative):
    """The derivative of a coordinatewise function by the argument at `place`."""

    place: int = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        shape = np.broadcast_shapes(*(np.shape(a) for a in args))

        def along(x: object) -> Any:
            return self.fn(*(x if k == self.place else a for k, a in enumerate(args)), **options)

        x = args[self.place]
        if self.by_jax:
            return _jvp(along, x, shape)
        x = np.broadcast_to(np.asarray(x, float), shape)
        with np.errstate(all="ignore"):
            size = np.exp2(np.floor(np.log2(np.maximum(np.abs(x), 1.0))))  # x + step has no rounding
            step = STEP * 2**self.coarser * size
            return _difference(lambda k: along(x + k * step), step)


class DirectionalDerivative(_Derivative):
    """The derivative of a function of members (m, ...) along directions (m, ...)."""

    def __call__(self, members: Any, directions: Any) -> Any:
        if self.by_jax:
            return _jvp(self.fn, members, members.shape, directions)
        with np.errstate(all="ignore"):
            size = np.maximum(np.abs(members).max(axis=0), 1.0) / np.abs(directions).max(axis=0)
            step = STEP * 2**self.coarser * np.where(np.isfinite(size), size, 1.0)
            return _difference(lambda k: np.asarray(self.fn(members + k * step * directions)), step)


def _difference(value: Callable[[int], np.ndarray], step: np.ndarray) -> np.ndarray:
    """Compute f'(x) from value(k) = f(x + k step), by the stencil on which f is smoothest."""
    stencils = (  # positions of the points in units of the step, and weights of their values
        ((-2, -1, 0, 1, 2), (1 / 12, -8 / 12, 0.0, 8 / 12, -1 / 12)),
        ((-4, -3, -2, -1, 0), (3 / 12, -16 / 12, 36 / 12, -48 / 12, 25 / 12)),
        ((0, 1, 2, 3, 4), (-25 / 12, 48 / 12, -36 / 12, 16 / 12, -3 / 12)),
    )
    fourth = (1.0, -4.0, 6.0, -4.0, 1.0)
    seventh = (1.0, -7.0, 21.0, -35.0, 35.0, -21.0, 7.0, -1.0)
    eighth_order = (4 / 5, -1 / 5, 4 / 105, -1 / 280)  # weights of f(x + k step) - f(x - k step), k = 1 to 4
    values = {k: np.asarray(value(k), float) for k in range(-4, 5)}
    rough = [abs(sum(w * values[k] for w, k in zip(fourth, at, strict=True))) for at, _ in stencils]
    slopes = [sum(w * values[k] for k, w in zip(at, weights, strict=True)) for at, weights in stencils]
    centre, left, right = rough
    rounding = 64 * np.finfo(float).eps * np.abs(values[0])  # rounding of differences with weights up to 35
    side = np.where(left <= right, slopes[1], slopes[2])
    # The symmetric stencil is the most accurate, unless it contains a kink: then its fourth difference is
    # much larger.
    near = np.where(centre <= 4.0 * np.minimum(left, right) + rounding, slopes[0], side)
    wide = sum(w * (values[k] - values[-k]) for k, w in enumerate(eighth_order, 1))
    sevenths = (np.abs(sum(w * values[k + first] for k, w in enumerate(seventh))) for first in (-4, -3))
    # If a kink is near, one of the two seventh differences is at least half of the fourth differences.
    smooth = np.maximum(*sevenths) <= np.maximum(np.maximum(left, right), centre) / 8 + 2 * rounding
    return np.where(smooth, wide, near) / step


def _jvp(fn: Callable[[Any], Any], x: object, shape: tuple[int, ...], direction: object = None) -> Any:
    import jax  # type: ignore[import-not-found]

    with double_precision():
        one = jax.numpy.broadcast_to(jax.numpy.asarray(x), shape)
        along = jax.numpy.ones_like(one) if direction is None else jax.numpy.asarray(direction)
        slope = jax.jvp(fn, (one,), (along,))[1]
        return slope if is_traced(slope) else np.asarray(slope)


@cache
def _traces(fn: Callable[..., Any], count: int, shape: tuple[int, ...]) -> bool:
    """Whether JAX is installed and can trace the function with `count` arguments."""
    if find_spec("jax") is None:
        return False
    import jax  # type: ignore[import-not-found]

    try:
        with double_precision():
            jax.make_jaxpr(fn)(*(jax.numpy.ones((*shape, 2)),) * count)
    except Exception:  # a user's function may raise anything on unfamiliar arrays
        return False
    return True
