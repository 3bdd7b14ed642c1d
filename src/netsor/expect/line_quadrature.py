"""Integrals of a function of one Gaussian variable, and of its products with Hermite polynomials.

Smooth functions take the trapezoid rule with step 2^-level, which converges exponentially for functions that
are analytic in a strip (Trefethen and Weideman, The exponentially convergent trapezoidal rule, SIAM Review
2014). Functions with kinks or jumps take Gauss-Legendre panels, and a panel with a kink is split there.
Both rules have the same nodes for all inputs, so that the coefficients of all inputs are matrix products, and
they are symmetric about t = 0, where Hermite functions are even or odd: half the nodes need tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import pairwise
from math import ceil, log2, pi, prod
from operator import add
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.polynomial import Chebyshev
from numpy.polynomial.chebyshev import chebpts1, chebpts2, chebvander
from numpy.polynomial.legendre import leggauss, legvander

from netsor.lang.libraries import is_traced

__all__ = ["Sums", "choose_reach", "find_kinks", "hermite_functions", "mean", "two_levels"]

Array = Any
Function = Callable[[Array], Array]

BLOCK = 2**17  # elements of one temporary array: 1 MB in float64
LARGE = 2**15  # elements of arrays that are worth a thread
REACHES = (14, 20, 32)  # ranges |t| <= reach: bounded functions and polynomials, moderate and steep exp(x)
FIRST_LEVEL, LAST_LEVEL, TRACED_LEVEL = 3, 11, 5
LAST_PANEL_LEVEL = 8
ORDER = 28  # Gauss-Legendre nodes per panel
XI, OMEGA = leggauss(ORDER)


@dataclass(frozen=True)
class Grid:
    """Equally spaced nodes t >= 0, a block of the trapezoid rule; the node 0 counts half, on either side."""

    start: float
    step: float
    count: int

    @property
    def nodes(self) -> np.ndarray:
        return self.start + self.step * np.arange(self.count)

    @property
    def weights(self) -> np.ndarray:
        return np.where(self.nodes == 0, self.step / 2, self.step)


@dataclass(frozen=True)
class Panels:
    """Neighbouring panels in t >= 0 with `ORDER` Gauss-Legendre nodes each."""

    start: float
    width: float
    count: int

    @property
    def nodes(self) -> np.ndarray:
        left = self.start + self.width * np.arange(self.count)
        return (left[:, None] + self.width * (XI + 1) / 2).ravel()

    @property
    def weights(self) -> np.ndarray:
        return np.tile(OMEGA * self.width / 2, self.count)


@dataclass(frozen=True)
class Sums:
    """What one rule gives for f at each input; t is standard normal and x = m + s t."""

    coefs: Array  # E[f(x) h_k(t)], k < terms
    square: Array  # E[f(x)^2]
    absolute: Array  # E[|f(x)|]
    edge: Array  # the part of E[f(x)^2] from the last unit of the range on either side
    slope: Array  # E[(x f'(x))^2], roughly: how rounding of x is amplified

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def half(self) -> Sums:
        return Sums(*(getattr(self, name) / 2 for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Split:
    """The panel that holds a kink, per input: its start, and what the split rule gives there."""

    start: Array  # shape (...,)
    moments: Array  # shape (..., ORDER): replaces weight * f * sqrt(density) at the nodes of the panel
    square: Array  # shape (...,): the panel's part of E[f^2]
    width: float

    def mirrored(self) -> Split:
        """The same for f(m - s t)."""
        moments = array_namespace(self.moments).flip(self.moments, axis=-1)
        return Split(-self.start - self.width, moments, self.square, self.width)


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


@lru_cache(maxsize=8)
def hermite_table(block: Grid | Panels, terms: int) -> np.ndarray:
    """h_k(t) sqrt(density(t)) at the nodes of a block, shape (nodes, terms)."""
    t = block.nodes
    return np.stack(list(hermite_functions(t, density_root(t), terms))).T


def like(table: Any, x: Array) -> Array:
    """A table as an array of the library, dtype and device of x."""
    return array_namespace(x).asarray(table, dtype=x.dtype, device=device(x))


def eps_of(x: Array) -> float:
    """The relative spacing of numbers of the dtype of x."""
    return float(array_namespace(x).finfo(x.dtype).eps)


def norm(v: Array) -> Array:
    xp = array_namespace(v)
    return xp.sqrt(xp.sum(v**2, axis=-1))


def call(fn: Function, x: Array) -> Array:
    """f(x) without NumPy's warnings: f may well overflow on its way to a finite value far out."""
    with np.errstate(all="ignore"):
        return fn(x)


# The two rules.


def two_levels(
    fn: Function, m: Array, s: Array, terms: int, level: int, reach: int, kinks: Sequence[float] = ()
) -> tuple[Sums, Sums]:
    """The sums at a level and at the level below, whose distance bounds the error of the finer one."""
    if kinks:
        fine, coarse = (_panel_rule(fn, m, s, terms, at, reach, kinks) for at in (level, level - 1))
        return fine, coarse
    step = 2.0 ** (1 - level)
    coarse = trapezoid(fn, m, s, terms, reach, step, 0.0)
    return (coarse + trapezoid(fn, m, s, terms, reach, step, step / 2)).half(), coarse


def trapezoid(
    fn: Function, m: Array, s: Array, terms: int, reach: int, step: float, shift: float = 0.0
) -> Sums:
    """Sums over the nodes shift + step * j in [-reach, reach]."""
    total, width = round(reach / step) + (shift == 0.0), _width(m, terms, 1)
    blocks = [Grid(shift + step * at, step, min(width, total - at)) for at in range(0, total, width)]
    return reduce(Sums.__add__, (_block(fn, m, s, terms, reach, block, ()) for block in blocks))


def _panel_rule(
    fn: Function, m: Array, s: Array, terms: int, level: int, reach: int, kinks: Sequence[float]
) -> Sums:
    """Sums over panels of width 2^(2 - level); a panel that holds a kink of an input is split there."""
    panel = 2.0 ** (2 - level)
    total, width = round(reach / panel), _width(m, terms, ORDER)
    blocks = [Panels(panel * at, panel, min(width, total - at)) for at in range(0, total, width)]
    splits = _splits(fn, m, s, kink_places(m, s, kinks, reach), panel)
    return reduce(Sums.__add__, (_block(fn, m, s, terms, reach, block, splits) for block in blocks))


def _width(m: Array, terms: int, unit: int) -> int:
    """How many units of nodes make a block whose arrays stay below BLOCK elements."""
    return max(BLOCK // (unit * max(prod(m.shape), terms)), 8 // unit, 1)


def _block(
    fn: Function, m: Array, s: Array, terms: int, reach: int, block: Grid | Panels, splits: Sequence[Split]
) -> Sums:
    """The sums over the nodes of the block and their mirror images."""
    table = like(hermite_table(block, terms), m)
    sides = [(s, splits), (-s, [split.mirrored() for split in splits])]
    large = isinstance(m, np.ndarray) and m.size * block.nodes.size >= LARGE
    (right, sums), (left, mirrored) = _both(
        lambda side: _side(fn, m, side[0], reach, block, side[1]), sides, large
    )
    even, odd = (right + left) @ table[:, ::2], (right - left) @ table[:, 1::2]
    return Sums(_interleave(even, odd), *(x + y for x, y in zip(sums, mirrored, strict=True)))


def _both(fn: Callable[[Any], Any], sides: list[Any], large: bool) -> list[Any]:
    """The function on either side, on two threads if the arrays are large."""
    if not large:
        return [fn(side) for side in sides]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(fn, sides))


def _interleave(even: Array, odd: Array) -> Array:
    """even_0, odd_0, even_1, ..."""
    xp = array_namespace(even, odd)
    count = odd.shape[-1]
    pairs = xp.reshape(xp.stack([even[..., :count], odd], axis=-1), (*odd.shape[:-1], 2 * count))
    return pairs if even.shape[-1] == count else xp.concat([pairs, even[..., count:]], axis=-1)


def _side(
    fn: Function, m: Array, s: Array, reach: int, block: Grid | Panels, splits: Sequence[Split]
) -> tuple[Array, list[Array]]:
    """weight * f * sqrt(density) at the nodes, and the other fields of `Sums`."""
    xp = array_namespace(m, s)
    root, weight = like(density_root(block.nodes), m), like(block.weights, m)
    x = m[..., None] + s[..., None] * like(block.nodes, m)
    f = call(fn, x)
    values, squares = _replace(block, splits, f * root * weight, (f * root) ** 2 * weight)
    edge = squares * like(block.nodes >= reach - 1, m)
    slope = (_slope(x, f) * root[1:]) ** 2 * weight[1:]
    return values, [xp.sum(y, axis=-1) for y in (squares, xp.abs(values) * root, edge, slope)]


def _slope(x: Array, f: Array) -> Array:
    """x f'(x) from the differences of neighbouring nodes."""
    xp = array_namespace(x, f)
    dx = x[..., 1:] - x[..., :-1]
    return x[..., 1:] * (f[..., 1:] - f[..., :-1]) / xp.where(dx == 0, xp.ones_like(dx), dx)


# Splitting at kinks.


def kink_places(m: Array, s: Array, kinks: Sequence[float], reach: float) -> Array:
    """Where the kinks lie on the t-axis, clipped to the range, shape (..., kinks)."""
    xp = array_namespace(m, s)
    places = (like(sorted(kinks), m) - m[..., None]) / s[..., None]
    return xp.clip(places, -float(reach), float(reach))


def _splits(fn: Function, m: Array, s: Array, places: Array, width: float) -> list[Split]:
    count, near = places.shape[-1], _neighbours(places, width)
    around = [places[..., max(0, i - near) : min(i + near + 1, count)] for i in range(count)]
    return [_split(fn, m, s, around[i], places[..., i], width) for i in range(count)]


def _neighbours(places: Array, width: float) -> int:
    """How many kinks on either side of a kink may lie in the same panel."""
    count = places.shape[-1]
    if is_traced(places):
        return count - 1
    apart = [places[..., d:] - places[..., : count - d] for d in range(1, count)]
    return sum(bool(array_namespace(gap).any((gap < width) & (gap > 0))) for gap in apart)


def _split(fn: Function, m: Array, s: Array, places: Array, place: Array, width: float) -> Split:
    """The panel around `place`, integrated piecewise between all kinks inside it, which are in `places`.

    Over the panel the Hermite functions are polynomials of degree below ORDER to rounding, so the integrals
    of f sqrt(density) against Legendre polynomials give its integral against every Hermite function.
    """
    xp = array_namespace(m, s)
    start = xp.floor(place / width) * width
    inner = [xp.clip(places[..., i], start, start + width) for i in range(places.shape[-1])]
    edges = [start, *inner, start + width]
    pieces = [_piece(fn, m, s, start, width, lo, hi) for lo, hi in pairwise(edges)]
    moments, square = (reduce(add, parts) for parts in zip(*pieces, strict=True))
    return Split(start, moments @ like(_from_legendre(), m), square, width)


@lru_cache(maxsize=1)
def _from_legendre() -> np.ndarray:
    """The matrix from integrals against Legendre polynomials P_l to equivalent weights at the nodes."""
    rows = np.arange(ORDER)
    return (2 * rows[:, None] + 1) / 2 * legvander(XI, ORDER - 1).T * OMEGA


def _piece(
    fn: Function, m: Array, s: Array, start: Array, width: float, lo: Array, hi: Array
) -> tuple[Array, Array]:
    """Over [lo, hi]: the integrals of f sqrt(density) against P_l on the panel, and of f^2 density."""
    xp = array_namespace(m, s)
    t = lo[..., None] + (hi - lo)[..., None] * like((XI + 1) / 2, m)
    u = call(fn, m[..., None] + s[..., None] * t) * density_root(t, xp)
    weight = (hi - lo)[..., None] * like(OMEGA / 2, m)
    local = (t - start[..., None]) * (2 / width) - 1
    moments = [xp.sum(u * weight * p, axis=-1) for p in _legendre(local)]
    return xp.stack(moments, axis=-1), xp.sum(u**2 * weight, axis=-1)


def _legendre(z: Array) -> Iterator[Array]:
    """P_0(z), P_1(z), ... by (l + 1) P_{l+1} = (2 l + 1) z P_l - l P_{l-1} (DLMF 18.9)."""
    before, now = 0 * z, 0 * z + 1
    for degree in range(ORDER):
        yield now
        before, now = now, ((2 * degree + 1) * z * now - degree * before) / (degree + 1)


def _replace(
    block: Grid | Panels, splits: Sequence[Split], values: Array, squares: Array
) -> tuple[Array, Array]:
    """Put the split panels in the place of the plain ones."""
    if not isinstance(block, Panels):
        return values, squares
    xp, tiles = array_namespace(values), block.count
    centre = like(np.repeat(block.start + block.width * (np.arange(tiles) + 0.5), ORDER), values)
    for split in splits:
        inside = xp.abs(centre - (split.start + block.width / 2)[..., None]) < block.width / 2
        moments = xp.concat([split.moments] * tiles, axis=-1)
        values = xp.where(inside, moments, values)
        squares = xp.where(inside, split.square[..., None] / ORDER, squares)
    return values, squares


# Choices that depend on the values.


def any_above(size: Array, bound: Array) -> bool:
    """Whether a size is above its bound somewhere; what is not a number counts as done."""
    return bool(array_namespace(size).any(size > bound))


def choose_reach(fn: Function, m: Array, s: Array) -> int:
    """The first range [-reach, reach] outside which E[f^2] is negligible for all inputs."""
    xp = array_namespace(m, s)
    best, eps = REACHES[0], eps_of(m)
    for reach in REACHES:
        sums = trapezoid(fn, m, s, 1, reach, 2.0**-FIRST_LEVEL, 0.0)
        if not bool(xp.all(xp.isfinite(sums.square))):
            return best
        best = reach
        if not any_above(xp.sqrt(sums.edge), eps * xp.sqrt(sums.square)):
            return best
    return best


def least_level(terms: int) -> int:
    """The level whose coarser neighbour resolves the Hermite functions, of frequency up to sqrt(terms)."""
    return max(FIRST_LEVEL, ceil(1 + log2((terms**0.5 + 13) / (2 * pi))))


def last_level(kinks: Sequence[float]) -> int:
    return LAST_PANEL_LEVEL if kinks else LAST_LEVEL


# The mean of one function.


def mean(fn: Function, m: Array, q: Array, kinks: Sequence[float] = ()) -> tuple[Array, Array]:
    """E[f(x)] for x of mean m and variance q, arrays of shape (...,), and a bound of its error."""
    xp = array_namespace(m, q)
    m, q = xp.broadcast_arrays(m, q)
    s = xp.sqrt(xp.where(q > 0, q, xp.ones_like(q)))
    fine, coarse = _traced_levels(fn, m, s, kinks) if is_traced(m, q) else _mean_levels(fn, m, s, kinks)
    change = xp.abs(fine.coefs - coarse.coefs)[..., 0]
    amplified = 8 + xp.sqrt(fine.slope / xp.where(fine.square > 0, fine.square, xp.ones_like(q)))
    error = change + eps_of(m) * (amplified * fine.absolute + xp.sqrt(fine.edge))
    return xp.where(q > 0, fine.coefs[..., 0], call(fn, m[..., None])[..., 0]), xp.where(q > 0, error, 0 * q)


def _traced_levels(fn: Function, m: Array, s: Array, kinks: Sequence[float]) -> tuple[Sums, Sums]:
    return two_levels(fn, m, s, 1, TRACED_LEVEL, REACHES[1], kinks)


def _mean_levels(fn: Function, m: Array, s: Array, kinks: Sequence[float]) -> tuple[Sums, Sums]:
    """Refine until the mean stops changing."""
    level, reach, kinks = FIRST_LEVEL, choose_reach(fn, m, s), sorted(kinks)
    fine, coarse = two_levels(fn, m, s, 1, level, reach, kinks)
    while level < last_level(kinks) and _moves(fine, coarse):
        level += 1
        fine, coarse = two_levels(fn, m, s, 1, level, reach, kinks)
    return fine, coarse


def _moves(fine: Sums, coarse: Sums) -> bool:
    """Whether the means of two rules differ by more than rounding."""
    change = array_namespace(fine.coefs).abs(fine.coefs - coarse.coefs)[..., 0]
    return any_above(change, 32 * eps_of(change) * fine.absolute)


# Finding the kinks of a function.

CELL, MOST_CELLS = 0.5, 2**16
DEPTHS = (12, 8, 5, 3)  # halvings of a cell at which jumps of f and f', and of higher derivatives, show
CELL_TOLERANCE, FIT_TOLERANCE, LEAST_JUMP = 1e-11, 1e-11, 1e-9
FIT_WIDTHS = (0.25, 0.06, 0.015, 0.004)


Cluster = tuple[float, float, float, float]  # start, end, room on either side, size of f


def find_kinks(fn: Function, low: float = -50.0, high: float = 50.0) -> tuple[float, ...]:
    """Where a function of one variable, or its first, second or third derivative, jumps.

    Cells that a polynomial of degree 15 does not fit are halved again and again. A kink in what is left must
    make f one polynomial up to a point and another one from there on, which no smooth function does.
    """
    f = _plain(fn)
    clusters = _rough_clusters(f, low, high)
    kinks: list[float] = []
    for depth in DEPTHS:
        found = [_locate(f, *cluster) for cluster in clusters.get(depth, ())]
        kinks += [x for x in found if x is not None and all(abs(x - known) > 1e-6 for known in kinks)]
    return tuple(sorted(kinks))


def _rough_clusters(f: Function, low: float, high: float) -> dict[int, list[Cluster]]:
    """Where f looks rough at each depth."""
    left, scale = _cells(f, low, high)
    clusters, width = {}, CELL
    for depth in range(max(DEPTHS) + 1):
        bad = _is_rough(f, left, width, scale)
        left, scale = left[bad], scale[bad]
        if left.size > MOST_CELLS:
            break
        clusters[depth] = _clusters(left, scale, width)
        left, scale, width = np.concatenate([left, left + width / 2]), np.tile(scale, 2), width / 2
    return clusters


def _plain(fn: Function) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.asarray(call(fn, x), dtype=float) + 0 * x


def _cells(f: Function, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """The starts of the cells, and the size of f near each: within 8, and within 5 of the origin."""
    left = np.arange(low, high, CELL)
    size = np.abs(f(left[:, None] + CELL * np.linspace(0, 1, 8))).max(axis=1)
    size = np.where(np.isfinite(size), size, 0.0)
    middle = size[np.abs(left) <= 5].max(initial=0.0)
    around = [size[max(0, i - 16) : i + 17].max() for i in range(left.size)]
    return left, np.maximum(around, middle)


@lru_cache(maxsize=1)
def _cell_points() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interpolation points, check points between them, and the matrix from values at these to those."""
    nodes = chebpts1(16)
    checks = (nodes[1:] + nodes[:-1]) / 2
    return nodes, checks, chebvander(checks, 15) @ np.linalg.inv(chebvander(nodes, 15))


def _is_rough(f: Function, left: np.ndarray, width: float, scale: np.ndarray) -> np.ndarray:
    """Whether interpolation fails on a cell, a tenth of which is added on either side."""
    nodes, checks, matrix = _cell_points()
    middle, half = (left + width / 2)[:, None], 0.6 * width
    with np.errstate(all="ignore"):
        miss = np.abs(f(middle + half * checks) - f(middle + half * nodes) @ matrix.T).max(axis=1)
    return np.isfinite(miss) & (miss > CELL_TOLERANCE * scale)


def _clusters(left: np.ndarray, scale: np.ndarray, width: float) -> list[Cluster]:
    """Neighbouring cells as one cluster each."""
    left, scale = left[np.argsort(left)], scale[np.argsort(left)]
    groups = np.split(np.arange(left.size), np.flatnonzero(np.diff(left) > 1.5 * width) + 1)
    spans = [(left[g[0]] - width / 8, left[g[-1]] + 9 * width / 8, scale[g].max()) for g in groups if g.size]
    ends = [-np.inf, *(end for _, end, _ in spans)]
    starts = [*(start for start, _, _ in spans), np.inf]
    rooms = [min(a - end, start - b) for (a, b, _), end, start in zip(spans, ends, starts[1:], strict=False)]
    return [
        (float(a), float(b), float(room), float(size))
        for (a, b, size), room in zip(spans, rooms, strict=True)
    ]


def _locate(f: Function, a: float, b: float, room: float, scale: float) -> float | None:
    """The point of [a, b] up to which f is one polynomial and from which on it is another, if any."""
    for width in FIT_WIDTHS:
        if width > room:
            continue
        before, after = _fit(f, a - width, a, scale), _fit(f, b, b + width, scale)
        if before is not None and after is not None:
            kink = _refine(before, after, _bisect(f, before, after, a, b), scale)
            return kink if _is_kink(f, before, after, kink, width, scale) else None
    return None


def _fit(f: Function, a: float, b: float, scale: float) -> Chebyshev | None:
    """The polynomial of degree 12 through f on [a, b], if it fits."""
    x = (a + b) / 2 + (b - a) / 2 * chebpts2(40)
    y = f(x)
    if not np.all(np.isfinite(y)):
        return None
    found = Chebyshev.fit(x, y, 12, domain=[a, b])
    return found if np.abs(found(x) - y).max() <= FIT_TOLERANCE * scale else None


def _bisect(f: Function, before: Chebyshev, after: Chebyshev, a: float, b: float) -> float:
    """The point where f goes over from being nearer to `before` to being nearer to `after`."""
    for _ in range(64):
        middle = (a + b) / 2
        value = float(f(np.asarray([middle]))[0])
        near = abs(value - before(middle)) <= abs(value - after(middle))
        a, b = (middle, b) if near else (a, middle)
    return b


def _refine(before: Chebyshev, after: Chebyshev, kink: float, scale: float) -> float:
    """Where only the second or third derivative jumps, the gap of the one below is zero there."""
    gap = after - before.convert(domain=after.domain)
    sizes = [abs(gap.deriv(p)(kink)) for p in range(4)]
    meet, touch = sizes[0] < 1e-8 * scale, sizes[1] < 1e-5 * scale
    if meet and sizes[1] < 1e-3 * sizes[2]:
        return _round(kink - float(gap.deriv(1)(kink) / gap.deriv(2)(kink)), 1e-9)
    if meet and touch and sizes[2] < 1e-2 * sizes[3]:
        return _round(kink - float(gap.deriv(2)(kink) / gap.deriv(3)(kink)), 1e-7)
    return _round(kink, 1e-11)


def _round(x: float, tolerance: float) -> float:
    """The number with six decimals near x, if it is as near as that."""
    return round(x, 6) + 0.0 if abs(x - round(x, 6)) < tolerance else x


def _is_kink(
    f: Function, before: Chebyshev, after: Chebyshev, kink: float, width: float, scale: float
) -> bool:
    """Whether f is `before` on the left and `after` on the right, up to 1e-8, and these two differ."""
    steps = width * np.geomspace(1e-8 / width, 1, 60)
    left, right = kink - steps, kink + steps
    miss = max(np.abs(f(left) - before(left)).max(), np.abs(f(right) - after(right)).max())
    differ = np.abs(after(right) - before(right)).max()
    return bool(miss <= 10 * FIT_TOLERANCE * scale and differ > LEAST_JUMP * scale)
