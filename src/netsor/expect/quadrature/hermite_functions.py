"""Integrands and nodes of rules on a line, Hermite functions at nodes, and array helpers for all rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Self

import numpy as np
from array_api_compat import device
from numpy.polynomial.legendre import leggauss

from netsor.lang.array_api import array_namespace

Array = Any
Function = Callable[[Array], Array]

ORDER = 28  # Gauss-Legendre nodes per panel
XI, OMEGA = leggauss(ORDER)
gauss_legendre = cache(leggauss)


@dataclass(frozen=True)
class Arrays:
    """Base of dataclasses of arrays, and of such dataclasses; other fields are kept as they are."""

    def map(self, fn: Callable[..., Array], *others: Self) -> Self:
        """Apply a function to all arrays, and to those of others at the same places."""

        def mapped(value: Any, *more: Any) -> Any:
            if isinstance(value, Arrays):
                return value.map(fn, *more)
            return fn(value, *more) if hasattr(value, "shape") else value

        return type(self)(*map(mapped, *(vars(x).values() for x in (self, *others))))

    def __getitem__(self, index: Any) -> Self:
        """Index the leading axes of all arrays (no `...` in the index)."""
        index = index if isinstance(index, tuple) else (index,)
        return self.map(lambda x: x[(*index, ...)])


@dataclass(frozen=True)
class Integrand:
    """t -> f(m + s t) at inputs of mean m and deviation s, arrays of shape (...,)."""

    fn: Function
    m: Array
    s: Array
    kinks: tuple[float, ...] = ()  # where f is not smooth, in ascending order

    def __call__(self, t: Array) -> Array:
        """Return f at nodes (..., nodes) or (nodes,)."""
        return call(self.fn, self.m[..., None] + self.s[..., None] * t)

    def places(self, reach: float) -> Array:
        """Return the places of kinks on the t-axis, clipped to the range, shape (..., kinks)."""
        places = (like(self.kinks, self.m) - self.m[..., None]) / self.s[..., None]
        return array_namespace(self.m, self.s).clip(places, -float(reach), float(reach))


@dataclass(frozen=True)
class Panels:
    """Neighbouring panels in t >= 0 with Gauss-Legendre nodes; one node each makes the trapezoid rule."""

    start: float
    width: float
    count: int
    order: int = ORDER

    @property
    def nodes(self) -> np.ndarray:
        xi, left = gauss_legendre(self.order)[0], self.start + self.width * np.arange(self.count)
        return (left[:, None] + self.width * (xi + 1) / 2).ravel()

    @property
    def weights(self) -> np.ndarray:
        weights = np.tile(gauss_legendre(self.order)[1] * self.width / 2, self.count)
        return np.where(self.nodes == 0, weights / 2, weights)  # the node 0 is on both sides of 0


def density_root(t: Array, xp: Any = np) -> Array:
    """sqrt of the standard normal density, (2 pi)^(-1/4) exp(-t^2 / 4)."""
    return (2 * np.pi) ** -0.25 * xp.exp(-(t**2) / 4)


def hermite_functions(t: Array, first: Array, terms: int) -> Iterator[Array]:
    """h_k(t) * first for k < terms, with the orthonormal probabilists' Hermite polynomials h_k.

    sqrt(k + 1) h_{k+1} = t h_k - sqrt(k) h_{k-1} (DLMF 18.9); first = `density_root(t)` avoids overflow.
    """
    before, now = 0 * first, first
    for k in range(terms):
        yield now
        before, now = now, (t * now - k**0.5 * before) / (k + 1) ** 0.5


def hermite_values(t: np.ndarray, terms: int) -> np.ndarray:
    """Return h_k(t) sqrt(density(t)), shape (nodes, terms)."""
    return np.stack(list(hermite_functions(t, density_root(t), terms))).T


@lru_cache(maxsize=40)  # refining a series alternates between some forty tables
def hermite_table(block: Panels, terms: int) -> np.ndarray:
    """Return `hermite_values` at the nodes of a block."""
    return hermite_values(block.nodes, terms)


def like(table: Any, x: Array) -> Array:
    """Return a table as an array of the library, dtype and device of x."""
    return array_namespace(x).asarray(table, dtype=x.dtype, device=device(x))


def eps_of(x: Array) -> float:
    """Return the relative spacing of numbers of the dtype of x."""
    return float(array_namespace(x).finfo(x.dtype).eps)


def call(fn: Function, x: Array) -> Array:
    """Return f(x) without NumPy's warnings: far out, f may overflow on its way to a finite value."""
    with np.errstate(all="ignore"):
        return fn(x)
