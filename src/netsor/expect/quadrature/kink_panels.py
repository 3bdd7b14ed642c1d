"""Gauss-Legendre panels split at a kink: the nodes stay, and their weights absorb the kink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial.legendre import legvander

from netsor.expect.quadrature.hermite_functions import OMEGA, ORDER, XI, Array, Integrand, density_root, like
from netsor.lang.array_api import array_namespace


@dataclass(frozen=True)
class SplitPanels:
    """For each kink, the panel that contains it, and the part of its integrals that belongs to this kink."""

    start: Array  # shape (..., kinks)
    width: float
    moments: Array  # shape (..., kinks, ORDER): in place of weight * f * sqrt(density) at the nodes
    squares: Array  # shape (..., kinks): of f^2

    def replace(self, nodes: np.ndarray, values: Array, squares: Array) -> tuple[Array, Array]:
        """Replace the values at the nodes of the panels with a kink, all ORDER of each in ascending order."""
        xp, middles = array_namespace(values), nodes.reshape(-1, ORDER).mean(axis=1)
        centre = like(np.repeat(middles, ORDER), values) - self.width / 2
        kinks = range(self.start.shape[-1])
        inside = [xp.abs(centre - self.start[..., i, None]) < self.width / 2 for i in kinks]
        for here in inside:
            values, squares = (xp.where(here, xp.zeros_like(x), x) for x in (values, squares))
        for i, here in zip(kinks, inside, strict=True):
            moments = xp.concat([self.moments[..., i, :]] * len(middles), axis=-1)
            values = xp.where(here, values + moments, values)
            squares = xp.where(here, squares + self.squares[..., i, None] / ORDER, squares)
        return values, squares


def split_panels(f: Integrand, reach: float, width: float) -> SplitPanels:
    """Integrate f on both sides of each kink, up to the next kinks or the ends of the panel.

    On a panel, Hermite functions are polynomials of degree below ORDER up to rounding. So the integrals of
    f sqrt(density) against Legendre polynomials determine its integral against every Hermite function.
    """
    xp, m, places = array_namespace(f.m, f.s), f.m, f.places(reach)
    start = xp.floor(places / width) * width
    end = start + width
    before = xp.concat([start[..., :1], places[..., :-1]], axis=-1)
    after = xp.concat([places[..., 1:], end[..., -1:]], axis=-1)
    low = xp.stack([xp.maximum(start, before), places], axis=-1)
    high = xp.stack([places, xp.where(after < end, places, end)], axis=-1)
    length = (high - low)[..., None]
    t = low[..., None] + length * like((XI + 1) / 2, m)  # shape (..., kinks, 2, ORDER)
    flat = xp.reshape(t, (*m.shape, -1))
    u = xp.reshape(f(flat) + 0 * flat, t.shape) * density_root(t, xp)
    weight = length * like(OMEGA / 2, m)
    local = (t - start[..., None, None]) * (2 / width) - 1
    moments = xp.stack([xp.sum(u * weight * p, axis=(-2, -1)) for p in _legendre(local)], axis=-1)
    return SplitPanels(
        start, width, moments @ like(_from_legendre(), m), xp.sum(u**2 * weight, axis=(-2, -1))
    )


@lru_cache(maxsize=1)
def _from_legendre() -> np.ndarray:
    """The matrix from integrals against Legendre polynomials P_l to equivalent weights at the nodes."""
    rows = np.arange(ORDER)
    return (2 * rows[:, None] + 1) / 2 * legvander(XI, ORDER - 1).T * OMEGA


def _legendre(z: Array) -> Iterator[Array]:
    """P_0(z), P_1(z), ... by (l + 1) P_{l+1} = (2 l + 1) z P_l - l P_{l-1} (DLMF 18.9)."""
    before, now = 0 * z, 0 * z + 1
    for degree in range(ORDER):
        yield now
        before, now = now, ((2 * degree + 1) * z * now - degree * before) / (degree + 1)
