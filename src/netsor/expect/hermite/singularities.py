"""The singular part of a function with kinks or jumps, and expectations of products of two such parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import factorial, prod

import numpy as np
from numpy.polynomial import chebyshev

from netsor.expect.closed.bivariate_normal import orthant
from netsor.expect.closed.special_functions import tail
from netsor.expect.quadrature.hermite_functions import (
    Array,
    Arrays,
    Integrand,
    call,
    eps_of,
    hermite_functions,
    like,
)
from netsor.lang.array_api import array_namespace

JUMP_ORDERS = 4  # jumps of f and of three derivatives


@dataclass(frozen=True)
class Jumps(Arrays):
    """The singular part of t -> f(m + s t): sum_{i,p} sizes_ip (t - places_i)_+^p / p!."""

    places: Array  # shape (..., kinks)
    sizes: Array  # shape (..., kinks, JUMP_ORDERS): jump of the p-th derivative, times s^p
    coefs: Array  # shape (..., K): its Hermite coefficients
    tail: Array  # shape (...,): norm of what the series leaves out of f minus the singular part
    scale: Array  # shape (...,): size of the terms, which bounds their rounding
    orders: tuple[int, ...]  # the p that occur


def useful_jumps(jumps: Array, s: Array, places: Array, square: Array, reach: int) -> tuple[Array, Array]:
    """Return the jumps within reach whose powers are not much larger than f, and the size of these powers.

    For t of order 1, the power size_ip (t - place_i)_+^p / p! is about size_ip (1 + max(-place_i, 0))^p / p!.
    For place_i > 0, its norm has the factor exp(-place_i^2 / 4) from the tail of the density.
    """
    xp, powers = array_namespace(jumps, s), np.arange(JUMP_ORDERS)
    far = s[..., None, None] * (1 + xp.maximum(-places, xp.zeros_like(places))[..., None])
    scale = xp.abs(jumps) * far ** like(powers, s) / like([factorial(p) for p in powers], s)
    decay = xp.exp(-(xp.maximum(places, xp.zeros_like(places)) ** 2) / 4)[..., None]
    used = (xp.abs(places)[..., None] < reach) & (decay * scale < 256 * xp.sqrt(square)[..., None, None])
    jumps, scale = (xp.where(used, x, xp.zeros_like(x)) for x in (jumps, scale))
    return jumps, xp.sum(scale, axis=(-2, -1))


def without_jumps(f: Integrand, jumps: Array, orders: tuple[int, ...]) -> Integrand:
    """Return f minus its singular part sum_{i,p} jump_ip (x - kink_i)_+^p / p!."""

    def smooth(x: Array) -> Array:
        xp = array_namespace(x)
        value = f.fn(x)
        for i, kink in enumerate(f.kinks):
            right, gap = xp.astype(x > kink, x.dtype), x - kink
            for p in orders:
                power = prod([gap] * p, start=right)  # by multiplication, which is faster
                value = value - jumps[..., i, p][..., None] * power / factorial(p)
        return value

    return replace(f, fn=smooth)


def derivative_jumps(f: Integrand) -> Array:
    """Return the jumps of f and its derivatives at each kink, (..., kinks, JUMP_ORDERS), from one-sided fits.

    They need not be exact: an error only slows down the series of the remainder. Jumps within rounding are 0.
    """
    xp, m = array_namespace(f.m), f.m
    gaps = np.diff([-np.inf, *f.kinks, np.inf])
    rows = []
    for kink, left, right in zip(f.kinks, gaps, gaps[1:], strict=False):
        width = min(0.25, left / 2, right / 2)
        points, fit = _one_sided_fit(width)
        y = call(f.fn, like(kink + points, m) + 0 * m[..., None])
        noise = 64 * eps_of(m) * xp.max(xp.abs(y), axis=-1)[..., None]
        jump = y @ like(fit.T, m)
        rows.append(xp.where(xp.abs(jump) > noise * like(np.abs(fit).sum(axis=1), m), jump, 0 * jump))
    return xp.stack(rows, axis=-2)


@lru_cache(maxsize=64)
def _one_sided_fit(width: float) -> tuple[np.ndarray, np.ndarray]:
    """Return points on both sides of 0, and the matrix from values there to derivative jumps at 0."""
    nodes = chebyshev.chebpts1(9)
    values = np.linalg.inv(chebyshev.chebvander(nodes, 8))
    orders = np.arange(JUMP_ORDERS)[:, None]
    right = np.stack([chebyshev.chebval(-1.0, chebyshev.chebder(values, p)) for p in range(JUMP_ORDERS)])
    right, signs = right * (2 / width) ** orders, (-1.0) ** orders
    points = width * (nodes + 1) / 2
    return np.concatenate([points, -points]), np.concatenate([right, -signs * right], axis=1)


def singular_coefs(places: Array, size: Array, terms: int) -> Array:
    """The Hermite coefficients of the singular part.

    E[(t - c)_+^p / p! h_k] is E[(t - c)_+^(p-k) / (p-k)!] / sqrt(k!) for k <= p, and beyond that
    density(c) h_{k-p-1}(c) / sqrt(k (k-1) ... (k-p)): k derivatives move from h_k to the other factor.
    """
    xp = array_namespace(places, size)
    smooth = xp.stack(list(hermite_functions(places, _density(places), terms)))
    means = xp.stack(_one_sided_moments(places, xp.ones_like(places), JUMP_ORDERS))
    total = 0 * smooth
    for p in range(JUMP_ORDERS):
        tops = xp.concat([xp.flip(means[: p + 1, ...], axis=0), smooth], axis=0)[:terms, ...]
        roots = xp.reshape(like(_falling(terms, p + 1), size), (-1, *(1,) * places.ndim))
        total = total + size[..., p] * tops / roots
    return xp.moveaxis(xp.sum(total, axis=-1), 0, -1)


@lru_cache(maxsize=64)
def _falling(terms: int, count: int) -> np.ndarray:
    """Return the roots of k (k - 1) ..., with `count` factors but none below 1, for all k < terms."""
    return np.array([prod(range(max(1, k - count + 1), k + 1)) ** 0.5 for k in range(terms)])


def _density(t: Array) -> Array:
    return (2 * np.pi) ** -0.5 * array_namespace(t).exp(-(t**2) / 2)


def _one_sided_moments(c: Array, v: Array, count: int) -> list[Array]:
    """e_n = E[(v z - c)_+^n / n!] for standard normal z: (n + 1) e_{n+1} = v^2 e_{n-1} - c e_n."""
    xp = array_namespace(c, v)
    ratio = xp.clip(c / xp.maximum(v, like(1e-30, v)), -1e10, 1e10)
    before, now = _density(ratio) / xp.where(v > 0, v, xp.ones_like(v)), tail(0 * ratio, ratio)
    moments = []
    for n in range(count):
        moments.append(now)
        before, now = now, (v**2 * before - c * now) / (n + 1)
    return moments


# Pairs of singular parts


def singular_pair(a: Jumps, b: Jumps, rho: Array) -> Array:
    """Return E of the product of two singular parts, for the correlation rho."""
    total = 0 * rho
    for i in range(a.places.shape[-1]):
        for j in range(b.places.shape[-1]):
            c, d = a.places[..., i], b.places[..., j]
            table = _power_table(c, d, rho, max(a.orders, default=0), max(b.orders, default=0))
            for p in a.orders:
                for r in b.orders:
                    total = total + a.sizes[..., i, p] * b.sizes[..., j, r] * table[p, r]
    return total


def _power_table(c: Array, d: Array, rho: Array, top_p: int, top_r: int) -> dict[tuple[int, int], Array]:
    """S_pr = E[(t - c)_+^p / p! (u - d)_+^r / r!] for standard normal t, u of correlation rho.

    Gaussian integration by parts: (p + 1) S_{p+1,r} = S_{p-1,r} + rho S_{p,r-1} - c S_{p,r}, where
    p = -1 stands for the delta function at c, so that S_{-1,r} is a one-sided moment of u given t = c.
    """
    root = ((1 - rho) * (1 + rho)) ** 0.5
    table = {(0, 0): orthant(c, d, rho, root, 0 * rho)}
    for r, moment in enumerate(_one_sided_moments(_minus(d, c, rho), root, top_r + 1)):
        table[-1, r] = _density(c) * moment
    for p, moment in enumerate(_one_sided_moments(_minus(c, d, rho), root, top_p + 1)):
        table[p, -1] = _density(d) * moment
    for r in range(top_r):
        table[0, r + 1] = (table[0, r - 1] + rho * table[-1, r] - d * table[0, r]) / (r + 1)
    for p in range(top_p):
        for r in range(top_r + 1):
            table[p + 1, r] = (table[p - 1, r] + rho * table[p, r - 1] - c * table[p, r]) / (p + 1)
    return table


def _minus(d: Array, c: Array, rho: Array) -> Array:
    """d - rho c without cancellation near |rho| = 1."""
    xp = array_namespace(rho)
    return xp.where(rho > 0, (d - c) + c * (1 - rho), (d + c) - c * (1 + rho))
