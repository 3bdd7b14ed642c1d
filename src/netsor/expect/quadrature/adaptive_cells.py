"""A function on a line as polynomials on cells, which are halved where it is rough.

A cell has 16 Gauss-Legendre nodes. It is done when the polynomial through them agrees with f at check points,
so many that nothing wider than `scale_for` is overlooked, and without a period, so that no wave looks like a
slower one. Halving continues down to rounding, at jumps and kinks, which become ends of cells, and towards
cusps and poles. If there are too many rough places, the error of these cells counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy.polynomial.legendre import leggauss, legvander

from netsor.expect.quadrature.hermite_functions import (
    Array,
    Arrays,
    Integrand,
    density_root,
    eps_of,
    hermite_values,
    like,
)
from netsor.expect.quadrature.trapezoid import Sums

XI, OMEGA = leggauss(16)
TO_LEGENDRE = np.linalg.inv(legvander(XI, 15))  # from values at the nodes to coefficients
WIDTH = 1 / 16  # of the first cells: Hermite functions up to order 4096 have degree 16 there, to rounding
LEAST_CHECKS = 24  # check points per cell
SEEN = 8.0  # beyond |t| = 8 the density is below 1e-14, so cells there need no dense checks


@dataclass(frozen=True)
class Cells(Arrays):
    """Cells from left to right, and f at the nodes of each; t is in standard deviations."""

    f: Integrand
    left: Array  # shape (cells,)
    width: Array  # shape (cells,)
    values: Array  # shape (inputs, cells, 16): f at the nodes
    miss: Array  # shape (inputs, cells): the largest distance of f to its polynomial at the check points
    ends: Array  # shape (inputs, cells): this distance at the ends
    bound: Array  # shape (inputs, cells): the distance at which a cell is done
    noise: Array  # shape (inputs, cells): the distance at which a cell is done if halving does not help

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
    def points(self) -> Array:
        """Whether a cell is so narrow that it counts as a point."""
        return self.width < 1e-9

    def square(self, f: Integrand | None = None) -> Array:
        """Return E[f^2], of this function or of another one, shape (inputs,)."""
        t = self.nodes.reshape(-1)
        values = self.values.reshape(len(self.values), t.size) if f is None else _on_line(f, t)
        return (values * density_root(t)) ** 2 @ self.weights.reshape(-1)

    def sums(self, terms: int, reach: float) -> tuple[Sums, Array, Array]:
        """Return the sums of the cells, and bounds on the errors of the coefficients (in norm) and of E[f^2].

        The squares of the first Hermite functions add up to at most sqrt(terms), so an error at a point
        counts with its integral. But the integral of f^2 may diverge there, if it falls slowly.
        """
        first = (self.width == WIDTH) & (terms <= 512)
        square, coefs = self.square(), self.take(~first)._coefs(terms)
        if first.any():
            table, rows = _first_table(reach, terms), ((self.left[first] + reach) / WIDTH).astype(int)
            values = self.take(first)._weighted()
            coefs += values @ (table if len(rows) == len(table) else table[rows]).reshape(-1, terms)
        miss, point = self.miss * self.density_root, self.points
        off = np.sqrt(np.sum(miss[:, ~point] ** 2 * self.width[~point], axis=1))
        at_points = terms**0.25 * np.sum(miss[:, point] * self.width[point], axis=1)
        # Equal integrals of cells that shrink towards a point indicate divergence; allow for 64 of them.
        rough = np.any(~(np.maximum(self.miss, self.ends) <= self.bound), axis=0)
        times = np.where(rough, 64, 1)[point]
        lost = np.sum(miss[:, point] ** 2 * self.width[point] * times, axis=1)
        edge = self.take(np.abs(self.left + self.width / 2) > reach - 1)
        sums = Sums(coefs, square, edge.square(), self.take(~point)._slope())
        return sums, off + at_points, 2 * off * np.sqrt(square) + lost

    def _weighted(self) -> Array:
        """Return f sqrt(density) times the weights, shape (inputs, nodes)."""
        values = self.values * density_root(self.nodes) * self.weights
        return values.reshape(len(values), -1)

    def _coefs(self, terms: int) -> Array:
        """Return the contribution of these cells to the Hermite coefficients, (inputs, terms)."""
        t, values, step = self.nodes.reshape(-1), self._weighted(), max(1, 2**22 // terms)
        coefs = np.zeros((len(values), terms))
        for at in range(0, len(t), step):
            coefs += values[:, at : at + step] @ hermite_values(t[at : at + step], terms)
        return coefs

    def _slope(self) -> Array:
        """Return E[(x f'(x))^2], approximately."""
        slope = np.diff(self.values, axis=2) / np.diff(XI) * 2 / self.width[:, None]
        t, weight = self.nodes[:, 1:], self.weights[:, 1:]
        x = _offset(self.f)[:, None, None] + t
        return np.sum((x * slope * density_root(t)) ** 2 * weight, axis=(1, 2))

    def take(self, which: Array) -> Cells:
        return self.map(lambda x: x[which] if x.ndim == 1 else x[:, which])


def _offset(f: Integrand) -> Array:
    """Return mean / deviation, shape (inputs,)."""
    mean, deviation = (np.asarray(x, float).reshape(-1) for x in (f.m, f.s))
    return mean / deviation


def _on_line(f: Integrand, t: Array) -> Array:
    """Return f(m + s t), shape (inputs, nodes)."""
    return np.asarray(f(like(t, f.m)), float).reshape(-1, len(t))


def scale_for(inputs: int) -> float:
    """Return the width, in standard deviations, above which nothing is overlooked; more inputs, wider."""
    most_checks = 2**23  # check points of the first cells, for all inputs together: limits the time
    return max(2e-5, 4 * SEEN * inputs / most_checks)


def cells(f: Integrand, reach: float, scale: float) -> Cells:
    """Return cells of f in [-reach, reach], with ends at its kinks."""
    even, places = np.arange(-reach, reach + WIDTH / 2, WIDTH), np.asarray(f.places(reach), float).reshape(-1)
    ends = np.unique(np.concatenate([even, places[np.abs(places) < reach]]))
    left, width = ends[:-1], np.diff(ends)
    # The first look gives the size of f, which the bounds of all others depend on.
    size = np.sqrt(_look(f, np.zeros(1), left, width, 1).square())
    look = partial(_look, f, size)
    return _cut_at_points(look, _joined(_parts(look, left, width, scale)), ends, scale)


def _parts(look: Callable[..., Cells], left: Array, width: Array, scale: float) -> list[Cells]:
    """Return cells, halved where needed, with as many checks as their width requires."""
    near = (left < SEEN) & (left + width > -SEEN)
    checks = np.where(near, 2 ** np.ceil(np.log2(2 * width / scale)), LEAST_CHECKS)
    checks = np.maximum(checks, LEAST_CHECKS).astype(int)
    return [
        part for n in np.unique(checks) for part in _halved(look, left[checks == n], width[checks == n], n)
    ]


@lru_cache(maxsize=2)
def _first_table(reach: float, terms: int) -> Array:
    """Return Hermite functions at the nodes of all first cells, shape (cells, 16, terms)."""
    t = np.arange(-reach, reach, WIDTH)[:, None] + WIDTH * ((XI + 1) / 2)
    return np.ascontiguousarray(hermite_values(t.reshape(-1), terms)).reshape(len(t), 16, terms)


def _look(f: Integrand, size: Array, left: Array, width: Array, checks: int) -> Cells:
    """Evaluate f at the nodes and at the check points of each cell; `size` (inputs,) is sqrt(E[f^2])."""
    points, matrix = _checks(checks)
    inside = np.concatenate([(XI + 1) / 2, points])
    parts, misses = [], []
    step = max(1, 2**19 // len(inside))
    for at in range(0, len(left), step):
        t = left[at : at + step, None] + width[at : at + step, None] * inside
        with np.errstate(all="ignore"):
            y = _on_line(f, t.ravel()).reshape(-1, *t.shape)
            miss = np.abs(y[..., 16:] - y[..., :16] @ matrix)
            misses.append(np.stack([miss[..., :-2].max(axis=2), miss[..., -2:].max(axis=2)]))
        parts.append(y[..., :16])
    values, (miss, ends) = np.concatenate(parts, axis=1), np.concatenate(misses, axis=2)
    result, eps = Cells(f, left, width, values, miss, ends, miss, miss), eps_of(f.m)
    slope = np.ptp(values, axis=2) / width
    # Rounding changes the argument of f by eps (|offset| + |t|) deviations, and f by this times its slope, so
    # no cell can agree more closely than that.
    noise = 32 * eps * (np.abs(values).max(axis=2) + (np.abs(_offset(f)[:, None]) + np.abs(left)) * slope)
    least = max(1e-14, 64 * eps) * size[:, None] / result.density_root
    return replace(result, bound=np.maximum(noise, least), noise=1e4 * least)


@lru_cache(maxsize=32)
def _checks(count: int) -> tuple[Array, Array]:
    """Return points in (0, 1), a random one in each of `count` parts, and the matrix to values there.

    Two more points are at the very ends: a jump at an end would have all other points on one side.
    """
    points = (np.arange(count) + np.random.default_rng(count).uniform(size=count)) / count
    points = np.concatenate([points, [1e-9, 1 - 1e-9]])
    return points, (legvander(2 * points - 1, 15) @ TO_LEGENDRE).T


def _halved(look: Callable[..., Cells], left: Array, width: Array, checks: int) -> list[Cells]:
    """Halve cells until they are smooth or given up; return all of them."""
    done, before = [], [np.full((1, len(left)), np.inf)] * 3
    most_halvings, most_rough = 50, 2**12
    for halvings in range(most_halvings + 1):
        result = look(left, width, checks)
        most = np.maximum(result.miss, result.ends)
        noise = (most > before[0] / 2) & (most <= result.noise)  # three halvings did not help
        rough = np.any(~((most <= result.bound) | noise), axis=0) & (halvings < most_halvings)
        rough &= rough.sum() <= most_rough
        done.append(result.take(~rough))
        if not rough.any():
            break
        before = [np.tile(x[:, rough], 2) for x in (*before[1:], most)]
        left, width = left[rough], width[rough] / 2
        left, width = np.concatenate([left, left + width]), np.tile(width, 2)
        checks = max(checks // 2, LEAST_CHECKS)
    return done


def _joined(parts: Sequence[Cells]) -> Cells:
    """Return all cells from left to right."""
    joint = parts[0].map(lambda *xs: np.concatenate(xs, axis=min(xs[0].ndim - 1, 1)), *parts[1:])
    return joint.take(np.argsort(joint.left))


def _cut_at_points(look: Callable[..., Cells], result: Cells, ends: Array, scale: float) -> Cells:
    """Divide the first cells that contain a jump or a kink again, at exactly that place.

    A narrow cell that holds a jump then counts as 0, with the height of the jump as its error.
    """
    narrow = np.flatnonzero(result.points)
    if not narrow.size:
        return result
    clusters = np.split(narrow, np.flatnonzero(np.diff(narrow) > 1) + 1)
    least = np.array([cluster[np.argmin(result.width[cluster])] for cluster in clusters])
    middle = result.left + result.width / 2
    around = np.unique(np.searchsorted(ends, middle[least]) - 1)
    cuts = np.unique(np.concatenate([ends[around], ends[around + 1], middle[least]]))
    inside = np.isin(np.searchsorted(ends, (cuts[1:] + cuts[:-1]) / 2) - 1, around)
    elsewhere = result.take(~np.isin(np.searchsorted(ends, middle) - 1, around))
    high, low = (
        np.stack([of_all(result.values[:, cluster], axis=(1, 2)) for cluster in clusters], axis=1)
        for of_all in (np.max, np.min)
    )
    size, nothing = high - low, 0 * result.values[:, least]
    jumps = replace(result.take(least), values=nothing, miss=size, ends=size, bound=size)
    return _joined([elsewhere, jumps, *_parts(look, cuts[:-1][inside], np.diff(cuts)[inside], scale)])
