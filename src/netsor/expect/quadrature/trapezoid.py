"""Integrals of a function of one Gaussian variable, and of its products with Hermite polynomials.

Smooth functions take the trapezoid rule with step 2^-level, which converges exponentially for functions that
are analytic in a strip (Trefethen and Weideman, The exponentially convergent trapezoidal rule, SIAM Review
2014). Functions with kinks or jumps take Gauss-Legendre panels. The nodes are the same for all inputs, so the
coefficients are matrix products; the weights of a panel that is split at a kink absorb the kink.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import ceil, log2, pi, prod
from operator import add
from typing import Self

import numpy as np
from numpy.polynomial.legendre import legvander

from netsor.expect.quadrature.hermite_functions import (
    OMEGA,
    ORDER,
    XI,
    Array,
    Arrays,
    Integrand,
    Panels,
    density_root,
    eps_of,
    hermite_table,
    like,
)
from netsor.lang.array_api import array_namespace

REACHES = (14, 20, 32)  # ranges |t| <= reach: bounded functions and polynomials, exp(x), steep exponentials
FIRST_LEVEL = 3


@dataclass(frozen=True)
class Sums(Arrays):
    """The sums of one rule for f at each input; t is standard normal and x = m + s t."""

    coefs: Array  # E[f(x) h_k(t)], k < terms
    square: Array  # E[f(x)^2]
    edge: Array  # the contribution to E[f(x)^2] of the last unit of the range on either side
    slope: Array  # E[(x f'(x))^2], approximately: the amplification of rounding of x

    def __add__(self, other: Self) -> Self:
        return self.map(add, other)


def two_levels(f: Integrand, terms: int, level: int, reach: int) -> tuple[Sums, Sums]:
    """Return the sums at a level and by a coarser rule; their distance bounds the error of the finer one."""
    if f.kinks:
        return _panel_rule(f, terms, level, reach), _panel_rule(f, terms, level - 1, reach)
    step = 2.0 ** (1 - level)
    coarse = trapezoid(f, terms, reach, step)
    both = coarse + trapezoid(f, terms, reach, step, step / 2)
    return both.map(lambda sums: sums / 2), coarse


def trapezoid(f: Integrand, terms: int, reach: int, step: float, shift: float = 0.0) -> Sums:
    """Return the sums over the nodes shift + step * j in [-reach, reach]."""
    return _sums(f, terms, reach, Panels(shift - step / 2, step, round(reach / step) + (shift == 0.0), 1))


def _panel_rule(f: Integrand, terms: int, level: int, reach: int) -> Sums:
    """Return the sums over panels of width 2^(2 - level); split a panel that contains a kink of an input."""
    width = 2.0 ** (2 - level)
    panels = Panels(0.0, width, round(reach / width))
    return _sums(f, terms, reach, panels, split_panels(f, reach, width))


def _sums(f: Integrand, terms: int, reach: int, whole: Panels, split: SplitPanels | None = None) -> Sums:
    """Return the sums over panels and their mirror images, in blocks below 1 MB with tables below 8 MB."""
    width, order = whole.width, whole.order
    size = max(min(2**17 // (order * max(prod(f.m.shape), 1)), 2**20 // (order * terms)), 8 // order, 1)
    blocks = (
        Panels(whole.start + width * at, width, min(size, whole.count - at), order)
        for at in range(0, whole.count, size)
    )
    return reduce(Sums.__add__, (_block(f, terms, reach, block, split) for block in blocks))


@np.errstate(all="ignore")  # values that are not finite are refused later
def _block(f: Integrand, terms: int, reach: int, block: Panels, split: SplitPanels | None) -> Sums:
    m, s = f.m, f.s
    xp, count = array_namespace(m, s), block.nodes.size
    t, weights = (np.concatenate([sign * x[::-1], x]) for sign, x in ((-1, block.nodes), (1, block.weights)))
    root, weight = like(density_root(t), m), like(weights, m)
    x = m[..., None] + s[..., None] * like(t, m)
    y = f.fn(x)
    values, squares = y * root * weight, (y * root) ** 2 * weight
    if split:
        values, squares = split.replace(t, values, squares)
    edge = squares * like(np.abs(t) >= reach - 1, m)
    dx = x[..., 1:] - x[..., :-1]
    steepness = (y[..., 1:] - y[..., :-1]) / xp.where(dx == 0, xp.ones_like(dx), dx)
    slope = (x[..., 1:] * steepness * root[1:]) ** 2 * weight[1:]
    left, right = xp.flip(values[..., :count], axis=-1), values[..., count:]
    # The nodes are symmetric, so only the even Hermite functions see the even part of f.
    even_terms = terms + terms % 2
    table = like(hermite_table(block, even_terms), m)
    halves = xp.stack([(right + left) @ table[:, ::2], (right - left) @ table[:, 1::2]], axis=-1)
    coefs = xp.reshape(halves, (*halves.shape[:-2], even_terms))[..., :terms]
    return Sums(coefs, *(xp.sum(part, axis=-1) for part in (squares, edge, slope)))


# Panels with kinks


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


# Choices that depend on values


def any_above(size: Array, bound: Array) -> bool:
    """Return whether a size is above its bound somewhere; NaN counts as below, so that refinement ends."""
    return bool(array_namespace(size).any(size > bound))


def choose_reach(f: Integrand) -> int:
    """Return the first range [-reach, reach] outside which E[f^2] is negligible for all inputs."""
    xp = array_namespace(f.m, f.s)
    best, eps = REACHES[0], eps_of(f.m)
    for reach in REACHES:
        sums = trapezoid(f, 1, reach, 2.0**-FIRST_LEVEL)
        if not bool(xp.all(xp.isfinite(sums.square))):
            break
        best = reach
        if not any_above(xp.sqrt(sums.edge), eps * xp.sqrt(sums.square)):
            break
    return best


def least_level(terms: int) -> int:
    """Return the level whose coarser neighbour resolves Hermite functions, of frequency up to sqrt(terms)."""
    return max(FIRST_LEVEL, ceil(1 + log2((terms**0.5 + 13) / (2 * pi))))
