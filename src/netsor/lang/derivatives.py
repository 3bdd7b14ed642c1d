"""Derivatives of users' functions: the one that is given, else JAX's if it can trace them, else differences.

Differences are taken over nine points around x where the function is smooth, by its seventh differences: the
error is rounding, about 1e-12, for functions that vary over lengths of 0.1 and more. Otherwise over five, to
the left, around, or to the right of x, wherever it is smoothest by its fourth difference (the choice of
stencils of Harten et al. 1987): so a kink never is between them, and next to one the derivative is that of
its own side. Two kinks closer than 0.01 are beyond it. What a `coarser` step changes, so many times twice as
long, tells the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from netsor.lang.libraries import double_precision, is_traced
from netsor.lang.ops import Function, Mixing

__all__ = ["STEP", "Along", "Slope", "by_differences", "directional", "partial_of"]

STEP = 2.0**-10
STENCILS = (  # positions of the points in steps, and weights of their values
    ((-2, -1, 0, 1, 2), (1 / 12, -8 / 12, 0.0, 8 / 12, -1 / 12)),
    ((-4, -3, -2, -1, 0), (3 / 12, -16 / 12, 36 / 12, -48 / 12, 25 / 12)),
    ((0, 1, 2, 3, 4), (-25 / 12, 48 / 12, -36 / 12, 16 / 12, -3 / 12)),
)
FOURTH = (1.0, -4.0, 6.0, -4.0, 1.0)
SEVENTH = (1.0, -7.0, 21.0, -35.0, 35.0, -21.0, 7.0, -1.0)
WIDE = (4 / 5, -1 / 5, 4 / 105, -1 / 280)  # of f(x + k step) - f(x - k step) for k = 1, ..., 4
FALLING = 1 / 8  # of the fourth differences: next to a kink one of two seventh ones is half of these or more
SMOOTH = 4.0  # times the roughness on either side that the symmetric stencil may have


def partial_of(op: Function, place: int, coarser: int = 0) -> Function:
    """The derivative of a user's function with respect to one of its arguments, as a function."""
    name = f"d_{op.name}" if op.arity == 1 else f"d{place + 1}_{op.name}"
    given = getattr(op.fn, "derivatives", ())
    own = given[place] if place < len(given) else Slope(op.fn, place, _traces(op.fn, op.arity, ()), coarser)
    return Function(name, own, op.arity, op.params, op.defaults, user=True)


def directional(op: Mixing, coarser: int = 0) -> Mixing:
    """The derivative of a user's function of members along directions, a function of both."""
    given = getattr(op.fn, "derivatives", ())
    own = given[0] if given else Along(op.fn, _traces(op.fn, 1, (3,)), coarser)
    return Mixing(f"d_{op.name}", own, op.reduces, masked=True, user=True)


def by_differences(op: Function | Mixing) -> bool:
    """Whether the values of a derivative are differences."""
    return isinstance(op.fn, Slope | Along) and not op.fn.by_jax


@dataclass(frozen=True)
class Slope:
    """The derivative of a coordinatewise function in the argument at `place`."""

    fn: Callable[..., Any]
    place: int
    by_jax: bool
    coarser: int = 0

    @property
    def has_changed(self) -> bool:
        """Whether the function has changed since a program was made with it."""
        return getattr(self.fn, "has_changed", False)

    def __call__(self, *args: Any, **options: Any) -> Any:
        shape = np.broadcast_shapes(*(np.shape(a) for a in args))

        def along(x: Any) -> Any:
            return self.fn(*(x if k == self.place else a for k, a in enumerate(args)), **options)

        x = args[self.place]
        if self.by_jax:
            return _jvp(along, x, shape)
        x = np.broadcast_to(np.asarray(x, float), shape)
        with np.errstate(all="ignore"):
            size = np.exp2(np.floor(np.log2(np.maximum(np.abs(x), 1.0))))  # x + step has no rounding
            step = STEP * 2**self.coarser * size
            return _difference(lambda k: along(x + k * step), step)


@dataclass(frozen=True)
class Along:
    """The derivative of a function of members (their first axis) along a direction."""

    fn: Callable[..., Any]
    by_jax: bool
    coarser: int = 0

    @property
    def has_changed(self) -> bool:
        """Whether the function has changed since a program was made with it."""
        return getattr(self.fn, "has_changed", False)

    def __call__(self, members: Any, directions: Any) -> Any:
        if self.by_jax:
            return _jvp(self.fn, members, members.shape, directions)
        with np.errstate(all="ignore"):
            size = np.maximum(np.abs(members).max(axis=0), 1.0) / np.abs(directions).max(axis=0)
            step = STEP * 2**self.coarser * np.where(np.isfinite(size), size, 1.0)
            return _difference(lambda k: np.asarray(self.fn(members + k * step * directions)), step)


def _difference(value: Callable[[int], np.ndarray], step: np.ndarray) -> np.ndarray:
    """f'(x) from f(x + k step), where f is smoothest."""
    values = {k: np.asarray(value(k), float) for k in range(-4, 5)}
    rough = [abs(sum(w * values[k] for w, k in zip(FOURTH, at, strict=True))) for at, _ in STENCILS]
    slopes = [sum(w * values[k] for k, w in zip(at, weights, strict=True)) for at, weights in STENCILS]
    centre, left, right = rough
    rounding = 64 * np.finfo(float).eps * np.abs(values[0])
    side = np.where(left <= right, slopes[1], slopes[2])
    near = np.where(centre <= SMOOTH * np.minimum(left, right) + rounding, slopes[0], side)
    wide = sum(w * (values[k] - values[-k]) for k, w in enumerate(WIDE, 1))
    finer, other = (np.abs(sum(w * values[k + first] for k, w in enumerate(SEVENTH))) for first in (-4, -3))
    smooth = np.maximum(finer, other) <= FALLING * np.maximum(np.maximum(left, right), centre) + 2 * rounding
    return np.where(smooth, wide, near) / step


def _jvp(fn: Callable[[Any], Any], x: Any, shape: tuple[int, ...], direction: Any = None) -> Any:
    import jax  # type: ignore[import-not-found]

    with double_precision():
        one = jax.numpy.broadcast_to(jax.numpy.asarray(x), shape)
        along = jax.numpy.ones_like(one) if direction is None else jax.numpy.asarray(direction)
        found = jax.jvp(fn, (one,), (along,))[1]
        return found if is_traced(found) else np.asarray(found)


@cache
def _traces(fn: Callable[..., Any], count: int, shape: tuple[int, ...]) -> bool:
    """Whether JAX is there and can trace a function of so many arguments."""
    if find_spec("jax") is None:
        return False
    import jax  # type: ignore[import-not-found]

    try:
        with double_precision():
            jax.make_jaxpr(fn)(*(jax.numpy.ones((*shape, 2)),) * count)
    except Exception:  # whatever a user's function does with arrays that it does not know
        return False
    return True
