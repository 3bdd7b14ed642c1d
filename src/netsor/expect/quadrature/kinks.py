"""Where a function of one variable has kinks or jumps, found from its values."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev
from numpy.polynomial.chebyshev import chebpts1, chebpts2, chebvander

from netsor.expect.quadrature.hermite_functions import Function, call

CELL = 0.5
DEPTHS = (12, 8, 5, 3)  # halvings after which jumps of f and f', and of higher derivatives, become visible
TOLERANCE = 1e-11  # error of a polynomial on a cell, relative to the size of f

Cluster = tuple[float, float, float]  # start, end, size of f


def find_kinks(fn: Function, low: float = -50.0, high: float = 50.0) -> tuple[float, ...]:
    """Return where a function of one variable, or its first, second or third derivative, jumps.

    Cells that a polynomial of degree 15 does not fit are halved repeatedly. In the remaining cells, a kink
    must make f one polynomial up to a point and another one from there on. No smooth function does that.
    """

    def f(x: np.ndarray) -> np.ndarray:
        return np.asarray(call(fn, x), dtype=float) + 0 * x

    clusters = _rough_clusters(f, low, high)
    kinks: list[float] = []
    failures = 0
    for depth in DEPTHS:
        # Begin near 0, where most Gaussians have most of their mass.
        for cluster in sorted(clusters.get(depth, []), key=lambda cluster: abs(cluster[0])):
            if failures > 24 or len(kinks) > 48:  # rough without kinks, like a wave: searching on is useless
                return tuple(sorted(kinks))
            x = _locate(f, *cluster)
            failures += x is None
            if x is not None and all(abs(x - other) > 1e-6 for other in kinks):
                kinks.append(x)
    return tuple(sorted(kinks))


def _rough_clusters(f: Function, low: float, high: float) -> dict[int, list[Cluster]]:
    """Return the clusters of cells where f looks rough, for each depth."""
    left, scale = _cells(f, low, high)
    clusters, width = {}, CELL
    for depth in range(max(DEPTHS) + 1):
        bad = _is_rough(f, left, width, scale)
        left, scale = left[bad], scale[bad]
        if left.size > 2**14:
            break
        clusters[depth] = _clusters(left, scale, width)
        left, scale, width = np.concatenate([left, left + width / 2]), np.tile(scale, 2), width / 2
    return clusters


def _cells(f: Function, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts of the cells, and the size of f near each: within 8 of it, or within 5 of 0."""
    left = np.arange(low, high, CELL)
    size = np.abs(f(left[:, None] + CELL * np.linspace(0, 1, 8))).max(axis=1)
    size = np.where(np.isfinite(size), size, 0.0)
    middle = size[np.abs(left) <= 5].max(initial=0.0)
    around = [size[max(0, i - 16) : i + 17].max() for i in range(left.size)]
    return left, np.maximum(around, middle)


@lru_cache(maxsize=1)
def _cell_points() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return nodes, check points between them, and the matrix from values at the nodes to values there."""
    nodes = chebpts1(16)
    checks = (nodes[1:] + nodes[:-1]) / 2
    return nodes, checks, chebvander(checks, 15) @ np.linalg.inv(chebvander(nodes, 15))


def _is_rough(f: Function, left: np.ndarray, width: float, scale: np.ndarray) -> np.ndarray:
    """Return whether interpolation fails on each cell, extended by a tenth on either side."""
    nodes, checks, matrix = _cell_points()
    middle, half = (left + width / 2)[:, None], 0.6 * width
    with np.errstate(all="ignore"):
        miss = np.abs(f(middle + half * checks) - f(middle + half * nodes) @ matrix.T).max(axis=1)
    return np.isfinite(miss) & (miss > TOLERANCE * scale)


def _clusters(left: np.ndarray, scale: np.ndarray, width: float) -> list[Cluster]:
    """Merge neighbouring cells into clusters."""
    left, scale = left[np.argsort(left)], scale[np.argsort(left)]
    groups = np.split(np.arange(left.size), np.flatnonzero(np.diff(left) > 1.5 * width) + 1)
    spans = ((left[g[0]] - width / 8, left[g[-1]] + 9 * width / 8, scale[g].max()) for g in groups if g.size)
    return [(float(start), float(end), float(size)) for start, end, size in spans]


def _locate(f: Function, a: float, b: float, scale: float) -> float | None:
    """Return the point of [a, b] up to which f is one polynomial and from which on another, or None."""
    for width in (0.25, 0.06, 0.015, 0.004):
        before, after = _fit(f, a - width, a, scale), _fit(f, b, b + width, scale)
        if before is not None and after is not None:
            kink = _refine(before, after, _bisect(f, before, after, a, b), scale)
            return kink if _is_kink(f, before, after, kink, width, scale) else None
    return None


def _fit(f: Function, a: float, b: float, scale: float) -> Chebyshev | None:
    """Return the polynomial of degree 12 through f on [a, b], or None if it does not fit."""
    x = (a + b) / 2 + (b - a) / 2 * chebpts2(40)
    y = f(x)
    if not np.all(np.isfinite(y)):
        return None
    fit = Chebyshev.fit(x, y, 12, domain=[a, b])
    return fit if np.abs(fit(x) - y).max() <= TOLERANCE * scale else None


def _bisect(f: Function, before: Chebyshev, after: Chebyshev, a: float, b: float) -> float:
    """Return the point where f stops being nearer to `before` and starts being nearer to `after`."""
    for _ in range(11):  # each round divides the interval by 64
        x = np.linspace(a, b, 65)
        y = f(x[1:-1])
        far = np.abs(y - before(x[1:-1])) > np.abs(y - after(x[1:-1]))
        first = int(np.argmax(far)) if far.any() else 63
        a, b = float(x[first]), float(x[first + 1])
    return b


def _refine(before: Chebyshev, after: Chebyshev, kink: float, scale: float) -> float:
    """Refine the place of a jump in the second or third derivative: there the gap of lower order is zero."""
    gap = after - before.convert(domain=after.domain)
    sizes = [abs(gap.deriv(p)(kink)) for p in range(4)]
    meet, touch = sizes[0] < 1e-8 * scale, sizes[1] < 1e-5 * scale
    if meet and sizes[1] < 1e-3 * sizes[2]:
        return float(rounded(kink - gap.deriv(1)(kink) / gap.deriv(2)(kink), 1e-9))
    if meet and touch and sizes[2] < 1e-2 * sizes[3]:
        return float(rounded(kink - gap.deriv(2)(kink) / gap.deriv(3)(kink), 1e-7))
    return float(rounded(kink, 1e-11))


def rounded(x: Any, tolerance: float) -> np.ndarray:
    """Round x to six decimals where that changes it by less than the tolerance: users write such numbers."""
    return np.where(np.abs(x - np.round(x, 6)) < tolerance, np.round(x, 6) + 0.0, x)


def _is_kink(
    f: Function, before: Chebyshev, after: Chebyshev, kink: float, width: float, scale: float
) -> bool:
    """Return whether f is `before` on the left and `after` on the right, to 1e-8, and these two differ."""
    steps = width * np.geomspace(1e-8 / width, 1, 60)
    left, right = kink - steps, kink + steps
    miss = max(np.abs(f(left) - before(left)).max(), np.abs(f(right) - after(right)).max())
    differ = np.abs(after(right) - before(right)).max()
    return bool(miss <= 10 * TOLERANCE * scale and differ > 1e-9 * scale)
