"""Gauss-Legendre panels split at a kink: the nodes stay, and their weights absorb the kink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import pairwise
from operator import add

import numpy as np
from numpy.polynomial.legendre import legvander

from netsor.expect.quadrature.hermite_functions import (
    OMEGA,
    ORDER,
    XI,
    Array,
    Function,
    Panels,
    UniformGrid,
    call,
    density_root,
    like,
)
from netsor.lang.array_api import array_namespace, is_traced


@dataclass(frozen=True)
class Split:
    """The panel that contains a kink, for each input: its start, and the results of the split rule."""

    start: Array  # shape (...,)
    moments: Array  # shape (..., ORDER): replaces weight * f * sqrt(density) at the nodes of the panel
    square: Array  # shape (...,): contribution of the panel to E[f^2]
    width: float

    def mirrored(self) -> Split:
        """Return the split for f(m - s t)."""
        moments = array_namespace(self.moments).flip(self.moments, axis=-1)
        return Split(-self.start - self.width, moments, self.square, self.width)


def kink_places(m: Array, s: Array, kinks: Sequence[float], reach: float) -> Array:
    """Return the places of kinks on the t-axis, clipped to the range, shape (..., kinks)."""
    xp = array_namespace(m, s)
    places = (like(sorted(kinks), m) - m[..., None]) / s[..., None]
    return xp.clip(places, -float(reach), float(reach))


def splits_at(fn: Function, m: Array, s: Array, places: Array, width: float) -> list[Split]:
    count, near = places.shape[-1], _neighbours(places, width)
    around = [places[..., max(0, i - near) : min(i + near + 1, count)] for i in range(count)]
    return [_split(fn, m, s, around[i], places[..., i], width) for i in range(count)]


def _neighbours(places: Array, width: float) -> int:
    """Return how many kinks on either side of a kink may lie in the same panel."""
    count = places.shape[-1]
    if is_traced(places):
        return count - 1
    apart = [places[..., d:] - places[..., : count - d] for d in range(1, count)]
    return sum(bool(array_namespace(gap).any((gap < width) & (gap > 0))) for gap in apart)


def _split(fn: Function, m: Array, s: Array, places: Array, place: Array, width: float) -> Split:
    """Return the panel around `place`, integrated piecewise between all kinks inside it, given in `places`.

    On the panel, Hermite functions are polynomials of degree below ORDER up to rounding. So the integrals of
    f sqrt(density) against Legendre polynomials determine its integral against every Hermite function.
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
    """Return, over [lo, hi], the integrals of f sqrt(density) P_l on the panel, and of f^2 density."""
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


def replaced(
    block: UniformGrid | Panels, splits: Sequence[Split], values: Array, squares: Array
) -> tuple[Array, Array]:
    """Replace plain panels by split ones."""
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
