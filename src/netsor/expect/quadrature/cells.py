"""A function on a line as polynomials on cells, which are halved where it is rough.

A cell has 16 Gauss-Legendre nodes. It is done when the polynomial through them meets f at check points. The
first cells are checked so densely that nothing wider than `scale_for` says is overlooked, at points without
a period, so that no wave looks like a slower one. Halving goes down to rounding: at jumps and kinks, which
become ends of cells, and towards cusps and poles, where cells shrink like 2^-n. Where there are too many
rough places, f is given up, and what is missed there is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.polynomial.legendre import leggauss, legvander

from netsor.expect.quadrature.line import Sums
from netsor.expect.quadrature.nodes import Array, density_root, hermite_functions

__all__ = ["Cells", "cells", "scale_for"]

XI, OMEGA = leggauss(16)
TO_LEGENDRE = np.linalg.inv(legvander(XI, 15))  # from values at the nodes to coefficients
WIDTH = 1 / 16  # of the first cells: Hermite functions up to order 4096 are polynomials of degree 16 there
SCALE = 2e-5  # standard deviations
MOST_CHECKS = 2**23  # of the first cells, for all inputs together: with more inputs, the scale is larger
LEAST_CHECKS, SEEN = 24, 8.0  # the density beyond |t| = 8 is below 1e-14: no dense checks there
MOST_ROUGH, MOST_HALVINGS = 2**12, 50
TOLERANCE = 1e-14  # of f sqrt(density), relative to sqrt(E[f^2])
NOISE = 1e4  # of the tolerance: what is more is no rounding inside f
POINT, END = (
    1e-9,
    1e-9,
)  # cells as narrow as that count as a point; of a cell, where it is checked at its ends
KEPT_TERMS = 512  # of a table of Hermite functions at all first nodes that is kept
BLOCK, TABLE = 2**19, 2**22  # elements of arrays
LEVELS = 64  # of cells that shrink towards a point: if the integrals over them are equal, they diverge

Line = Callable[[Array], Array]  # from t (points,) to f (inputs, points)


@dataclass(frozen=True)
class Cells:
    """Cells from the left to the right, and f at the nodes of each; t is in standard deviations."""

    left: Array  # shape (cells,)
    width: Array  # shape (cells,)
    values: Array  # shape (inputs, cells, 16): f at the nodes
    miss: Array  # shape (inputs, cells): the largest distance of f to its polynomial at the check points
    ends: Array  # shape (inputs, cells): and at the ends
    bound: Array  # shape (inputs, cells): what it may be
    noise: Array  # shape (inputs, cells): and what it may be if halving is of no use
    offset: Array  # shape (inputs,): mean / deviation

    @property
    def nodes(self) -> Array:
        return self.left[:, None] + self.width[:, None] * ((XI + 1) / 2)

    @property
    def weights(self) -> Array:
        return self.width[:, None] * (OMEGA / 2)

    @property
    def density_root(self) -> Array:
        """The largest value of sqrt(density) in each cell."""
        right = self.left + self.width
        return density_root(np.where(self.left * right <= 0, 0.0, np.minimum(abs(self.left), abs(right))))

    @property
    def rough(self) -> Array:
        """Where f is not the polynomial through the nodes."""
        return np.any(~(np.maximum(self.miss, self.ends) <= self.bound), axis=0)

    @property
    def points(self) -> Array:
        return self.width < POINT

    def square(self, values: Array) -> Array:
        """E[f^2] from values (inputs, nodes)."""
        return (values * density_root(self.nodes.reshape(-1))) ** 2 @ self.weights.reshape(-1)

    def sums(self, terms: int, reach: float) -> tuple[Sums, Array, Array]:
        """What the cells give, and what they may miss of the coefficients (in norm) and of E[f^2].

        The squares of the first Hermite functions add up to sqrt(terms) at most, so that what is missed at a
        point counts by its integral. But the integral of f^2 may well diverge there, if it falls slowly.
        """
        f, first = self.values.reshape(len(self.values), -1), (self.width == WIDTH) & (terms <= KEPT_TERMS)
        square, coefs = self.square(f), self.take(~first)._coefs(terms)
        if first.any():
            table, rows = _first_table(reach, terms), ((self.left[first] + reach) / WIDTH).astype(int)
            values = self.take(first)._weighted()
            coefs += values @ (table if len(rows) == len(table) else table[rows]).reshape(-1, terms)
        miss, point = self.miss * self.density_root, self.points
        off = np.sqrt(np.sum(miss[:, ~point] ** 2 * self.width[~point], axis=1))
        at_points = terms**0.25 * np.sum(miss[:, point] * self.width[point], axis=1)
        times = np.where(self.rough, LEVELS, 1)[point]
        lost = np.sum(miss[:, point] ** 2 * self.width[point] * times, axis=1)
        edge = self.take(np.abs(self.left + self.width / 2) > reach - 1)
        sums = Sums(coefs, square, edge.square(edge.values.reshape(len(f), -1)), self.take(~point)._slope())
        return sums, off + at_points, 2 * off * np.sqrt(square) + lost

    def _weighted(self) -> Array:
        """f sqrt(density) times the weights, shape (inputs, nodes)."""
        values = self.values * density_root(self.nodes) * self.weights
        return values.reshape(len(values), -1)

    def _coefs(self, terms: int) -> Array:
        """The part of the Hermite coefficients that comes from these cells."""
        t, values, step = self.nodes.reshape(-1), self._weighted(), max(1, TABLE // terms)
        coefs = np.zeros((len(values), terms))
        for at in range(0, len(t), step):
            coefs += values[:, at : at + step] @ _table(t[at : at + step], terms)
        return coefs

    def _slope(self) -> Array:
        """E[(x f'(x))^2], roughly."""
        slope = np.diff(self.values, axis=2) / np.diff(XI) * 2 / self.width[:, None]
        t, weight = self.nodes[:, 1:], self.weights[:, 1:]
        return np.sum(((self.offset[:, None, None] + t) * slope * density_root(t)) ** 2 * weight, axis=(1, 2))

    def take(self, which: Array) -> Cells:
        own = {name: getattr(self, name)[:, which] for name in ("values", "miss", "ends", "bound", "noise")}
        return Cells(left=self.left[which], width=self.width[which], **own, offset=self.offset)


def scale_for(inputs: int) -> float:
    """The width of what is not overlooked, in standard deviations."""
    return max(SCALE, 4 * SEEN * inputs / MOST_CHECKS)


def cells(f: Line, offset: Array, reach: float, places: Array, eps: float, scale: float) -> Cells:
    """Cells of f in [-reach, reach], some of which end at the given places.

    `offset` (inputs,) is mean / deviation: the argument of f is rounded by eps (|offset| + |t|) deviations.
    """
    even = np.arange(-reach, reach + WIDTH / 2, WIDTH)
    ends = np.unique(np.concatenate([even, places[np.abs(places) < reach]]))
    left, width = ends[:-1], np.diff(ends)
    start = _look(f, left, width, 1)
    size = np.sqrt(np.sum(start.values**2 * start.weights * density_root(start.nodes) ** 2, axis=(1, 2)))

    def look(left: Array, width: Array, checks: int) -> Cells:
        found = _look(f, left, width, checks)
        most = np.abs(found.values).max(axis=2)
        slope = np.ptp(found.values, axis=2) / width
        noise = 32 * eps * (most + (np.abs(offset[:, None]) + np.abs(left)) * slope)
        least = max(TOLERANCE, 64 * eps) * size[:, None] / found.density_root
        return replace(found, bound=np.maximum(noise, least), noise=NOISE * least, offset=offset)

    found = _sorted(_parts(look, left, width, scale))
    return _cut_at_points(look, found, ends, scale)


def _parts(look: Callable[..., Cells], left: Array, width: Array, scale: float) -> list[Cells]:
    """Cells with as many checks as their width asks for."""
    near = (left < SEEN) & (left + width > -SEEN)
    checks = np.where(near, 2 ** np.ceil(np.log2(2 * width / scale)), LEAST_CHECKS)
    checks = np.maximum(checks, LEAST_CHECKS).astype(int)
    return [
        part for n in np.unique(checks) for part in _halved(look, left[checks == n], width[checks == n], n)
    ]


def _table(t: Array, terms: int) -> Array:
    """Hermite functions, shape (nodes, terms)."""
    return np.stack(list(hermite_functions(t, density_root(t), terms))).T


@lru_cache(maxsize=2)
def _first_table(reach: float, terms: int) -> Array:
    """The same for all first cells, shape (cells, 16, terms)."""
    t = np.arange(-reach, reach, WIDTH)[:, None] + WIDTH * ((XI + 1) / 2)
    return np.ascontiguousarray(_table(t.reshape(-1), terms)).reshape(len(t), 16, terms)


def _look(f: Line, left: Array, width: Array, checks: int) -> Cells:
    """f at the nodes and at the check points of each cell."""
    points, matrix = _checks(checks)
    inside = np.concatenate([(XI + 1) / 2, points])
    values, misses = [], []
    step = max(1, BLOCK // len(inside))
    for at in range(0, len(left), step):
        t = left[at : at + step, None] + width[at : at + step, None] * inside
        with np.errstate(all="ignore"):
            y = f(t.ravel())
            y = y.reshape(len(y), *t.shape)
            miss = np.abs(y[..., 16:] - y[..., :16] @ matrix)
            misses.append(np.stack([miss[..., :-2].max(axis=2), miss[..., -2:].max(axis=2)]))
        values.append(y[..., :16])
    miss, ends = np.concatenate(misses, axis=2)
    return Cells(left, width, np.concatenate(values, axis=1), miss, ends, 0 * miss, 0 * miss, 0 * miss[:, 0])


@lru_cache(maxsize=32)
def _checks(count: int) -> tuple[Array, Array]:
    """Points in (0, 1), one at random in each of `count` parts, and the matrix from values at nodes to those.

    Two are at the very ends, where a jump would leave all others on one side.
    """
    points = (np.arange(count) + np.random.default_rng(count).uniform(size=count)) / count
    points = np.concatenate([points, [END, 1 - END]])
    return points, (legvander(2 * points - 1, 15) @ TO_LEGENDRE).T


def _halved(look: Callable[..., Cells], left: Array, width: Array, checks: int) -> list[Cells]:
    """Cells that are smooth, and those that are given up."""
    done, before = [], [np.full((1, len(left)), np.inf)] * 3
    for halvings in range(MOST_HALVINGS + 1):
        found = look(left, width, checks)
        most = np.maximum(found.miss, found.ends)
        noise = (most > before[0] / 2) & (most <= found.noise)  # three halvings were of no use
        rough = np.any(~((most <= found.bound) | noise), axis=0) & (halvings < MOST_HALVINGS)
        rough &= rough.sum() <= MOST_ROUGH
        done.append(found.take(~rough))
        if not rough.any():
            break
        before = [np.tile(x[:, rough], 2) for x in (*before[1:], most)]
        left, width = left[rough], width[rough] / 2
        left, width = np.concatenate([left, left + width]), np.tile(width, 2)
        checks = max(checks // 2, LEAST_CHECKS)
    return done


def _sorted(parts: list[Cells]) -> Cells:
    joined = {}
    for name in ("left", "width", "values", "miss", "ends", "bound", "noise"):
        arrays = [getattr(part, name) for part in parts]
        joined[name] = np.concatenate(arrays, axis=min(arrays[0].ndim - 1, 1))
    made = Cells(**joined, offset=parts[0].offset)
    return made.take(np.argsort(made.left))


def _cut_at_points(look: Callable[..., Cells], found: Cells, ends: Array, scale: float) -> Cells:
    """The first cells with a jump or a kink inside, once more, from ends at these.

    That saves the many cells on the way there. A cell that holds a jump is worth nothing then, but may be
    missed.
    """
    narrow = np.flatnonzero(found.points)
    if not narrow.size:
        return found
    clusters = np.split(narrow, np.flatnonzero(np.diff(narrow) > 1) + 1)
    least = np.array([cluster[np.argmin(found.width[cluster])] for cluster in clusters])
    middle = found.left + found.width / 2
    around = np.unique(np.searchsorted(ends, middle[least]) - 1)
    cuts = np.unique(np.concatenate([ends[around], ends[around + 1], middle[least]]))
    inside = np.isin(np.searchsorted(ends, (cuts[1:] + cuts[:-1]) / 2) - 1, around)
    others = found.take(~np.isin(np.searchsorted(ends, middle) - 1, around))
    high, low = (
        np.stack([of_all(found.values[:, cluster], axis=(1, 2)) for cluster in clusters], axis=1)
        for of_all in (np.max, np.min)
    )
    size, nothing = high - low, 0 * found.values[:, least]
    jumps = replace(found.take(least), values=nothing, miss=size, ends=size, bound=size)
    return _sorted([others, jumps, *_parts(look, cuts[:-1][inside], np.diff(cuts)[inside], scale)])
