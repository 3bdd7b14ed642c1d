"""Integrals of a function of one Gaussian variable, and of its products with Hermite polynomials.

Smooth functions take the trapezoid rule with step 2^-level, which converges exponentially for functions that
are analytic in a strip (Trefethen and Weideman, The exponentially convergent trapezoidal rule, SIAM Review
2014). Functions with kinks or jumps take Gauss-Legendre panels, split at the kinks. The nodes are the same
for all inputs, so the coefficients are matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import ceil, log2, pi, prod
from operator import add
from typing import Self

import numpy as np

from netsor.expect.quadrature.hermite_functions import (
    Array,
    Arrays,
    Integrand,
    Panels,
    density_root,
    eps_of,
    hermite_table,
    like,
)
from netsor.expect.quadrature.kink_panels import SplitPanels, split_panels
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
    slope = (_slope(x, y) * root[1:]) ** 2 * weight[1:]
    left, right = xp.flip(values[..., :count], axis=-1), values[..., count:]
    # The nodes are symmetric, so only the even Hermite functions see the even part of f.
    table = like(hermite_table(block, terms), m)
    even, odd = (right + left) @ table[:, ::2], (right - left) @ table[:, 1::2]
    return Sums(_interleave(even, odd), *(xp.sum(part, axis=-1) for part in (squares, edge, slope)))


def _interleave(even: Array, odd: Array) -> Array:
    """even_0, odd_0, even_1, ..."""
    xp = array_namespace(even, odd)
    count = odd.shape[-1]
    pairs = xp.reshape(xp.stack([even[..., :count], odd], axis=-1), (*odd.shape[:-1], 2 * count))
    return pairs if even.shape[-1] == count else xp.concat([pairs, even[..., count:]], axis=-1)


def _slope(x: Array, f: Array) -> Array:
    """Return x f'(x) from the differences of neighbouring nodes."""
    xp = array_namespace(x, f)
    dx = x[..., 1:] - x[..., :-1]
    return x[..., 1:] * (f[..., 1:] - f[..., :-1]) / xp.where(dx == 0, xp.ones_like(dx), dx)


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
