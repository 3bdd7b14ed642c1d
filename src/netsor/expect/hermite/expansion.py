"""E[f(x) g(y)] for jointly Gaussian x, y and any one-variable f, g, by Hermite series.

With f(m + sqrt(q) t) = sum_k a_k h_k(t) in orthonormal Hermite polynomials and b_k likewise for g,
E[f(x) g(y)] = sum_k a_k b_k rho^k (Mehler's formula; Daniely, Frostig and Singer 2016, arXiv:1602.05897).
Parseval's equality gives the norm of the terms that a series leaves out, and so a bound of the error.

The series of a function with kinks or jumps converges slowly, which matters near |rho| = 1. Its singular part
sum_{i,p} jump_ip (x - kink_i)_+^p / p!, p <= 3, has a closed form (`Jumps`), and the remainder converges
fast. Piecewise cubics are exact up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from netsor.expect.hermite.singularities import (
    JUMP_ORDERS,
    Jumps,
    derivative_jumps,
    singular_coefs,
    useful_jumps,
    without_jumps,
)
from netsor.expect.quadrature.adaptive_cells import Cells, cells, scale_for
from netsor.expect.quadrature.hermite_functions import Array, Arrays, Function, Integrand, call, eps_of, like
from netsor.expect.quadrature.trapezoid import (
    FIRST_LEVEL,
    REACHES,
    Sums,
    any_above,
    choose_reach,
    least_level,
    trapezoid,
    two_levels,
)
from netsor.lang.array_api import array_namespace, is_traced

SHORTER = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)
SURE_TERMS = 512  # length that a series for any number of inputs may reach; longer ones are for few inputs
COEFFICIENTS = 2**23  # 64 MB: keep series short if there would be more coefficients


@dataclass(frozen=True)
class Series(Arrays):
    """The Hermite series of t -> f(m + sqrt(q) t) at each input, with its errors."""

    coefs: Array  # shape (..., K): a_0 ... a_{K-1}
    tail: Array  # shape (...,): bound of the norm of the terms left out, from Parseval
    error: Array  # shape (...,): bound of the quadrature error of the coefficients, in the 2-norm
    square: Array  # shape (...,): E[f^2]
    mark: Array  # shape (...,): a combination of all coefficients, equal for equal series
    jumps: Jumps | None = None
    rests: tuple[tuple[int, Any], ...] = ()  # relative tails of shorter series, the largest over all inputs
    rule: tuple[int, int] = (0, 0)  # level and reach of the quadrature

    @property
    def rest(self) -> float:
        """The largest part of E[f^2] over all inputs that a sum of two such series may leave out."""
        return rest_of_pair(self.rests[-1][1], self.rests[-1][1])

    @property
    def tails(self) -> tuple[Array, Array | None]:
        """The norms of what the series leaves out of f, and of f minus its singular part."""
        return self.tail, None if self.jumps is None else self.jumps.tail

    @property
    def size(self) -> Array:
        """sqrt(E[f^2]), and 1 where that is 0."""
        xp = array_namespace(self.square)
        return xp.sqrt(xp.where(self.square > 0, self.square, xp.ones_like(self.square)))


def concat(parts: Sequence[Series], axis: int) -> Series:
    """Concatenate the series of one function at several inputs; pad shorter ones with zeros. NumPy only."""
    if len(parts) == 1:
        return parts[0]
    rank = parts[0].tail.ndim

    def joined(*arrays: np.ndarray) -> np.ndarray:
        most = max(x.shape[-1] for x in arrays)
        missing = [[(0, 0)] * (x.ndim - 1) + [(0, (most - x.shape[-1]) * (x.ndim > rank))] for x in arrays]
        return np.concatenate(list(map(np.pad, arrays, missing)), axis=axis)

    if any(part.jumps is None for part in parts):
        parts = [replace(part, jumps=None) for part in parts]
    joint = parts[0].map(joined, *parts[1:])
    if joint.jumps is not None:
        orders = sorted({p for part in parts if part.jumps for p in part.jumps.orders})
        joint = replace(joint, jumps=replace(joint.jumps, orders=tuple(orders)))
    return replace(joint, rests=rests_of(joint), rule=(0, 0))


# The series of one function.


def series(
    fn: Function,
    m: Array,
    q: Array,
    terms: int | None = None,
    tol: float = 1e-13,
    kinks: Sequence[float] = (),
    alone: bool = False,
    inputs: int | None = None,
    trusted: bool = False,
    finest: float = 0.0,
) -> Series:
    """Return the Hermite series of f at inputs of mean m and variance q, arrays of shape (...,).

    `fn` is called on arrays of shape (..., nodes). `kinks` are where f or one of its first derivatives jumps.
    `alone` says that f is the same function for all inputs. With `terms=None`, the series is as long as `tol`
    requires, relative to sqrt(E[f^2]): up to 512 terms, and up to 4096 for few inputs (`inputs` is their
    number, if it is not that of m). Inside jax.jit nothing can adapt, so the rule is fixed and there are 256
    terms; the errors show whether that suffices.

    No rule sees a wave or a spike between its nodes. So an unknown function is divided into cells where it is
    a polynomial, and searched down to a scale of 2e-5 standard deviations (`adaptive_cells`), or to `finest`,
    if nothing but kinks is narrower. A `trusted` function, whose finest structure is of order 1, takes equal
    steps, and cells only if these do not settle.
    """
    xp = array_namespace(m, q)
    m, q = xp.broadcast_arrays(m, q)
    s = xp.sqrt(xp.where(q > 0, q, xp.ones_like(q)))
    if is_traced(m, q):
        f = Target(fn, m, s, tuple(sorted(set(kinks))))
        return _with_constants(f, q, _at_level(f, terms or 256, 5, REACHES[1])[0])
    f = Target(fn, m, s, within_reach(kinks, m, s), max(tol, 32 * eps_of(m)), alone, finest)
    rungs = _rungs(inputs or prod(m.shape), f.kinks) if terms is None else (terms,)
    if trusted or not m.size:
        expansion = _adaptive(f, rungs)
    else:
        on_cells = replace(f, m=np.asarray(m), s=np.asarray(s))
        expansion = _by_cells(on_cells, rungs).map(lambda x: like(x, m))
    expansion = _with_constants(f, q, expansion)
    return replace(expansion, rests=rests_of(expansion))


def series_like(model: Series, fn: Function, m: Array, q: Array) -> Series:
    """Return the series of a smooth f by the rule of an earlier series, with its largest relative bounds.

    Means and variances must not be larger than those of the model. f(m + sqrt(q) t) is then analytic in a
    wider strip, where both the rule and the series converge faster (Trefethen and Weideman 2014; Boyd 1984).
    """
    xp, (level, reach) = array_namespace(m, q), model.rule
    m, q = xp.broadcast_arrays(m, q)
    f = Integrand(fn, m, xp.sqrt(xp.where(q > 0, q, xp.ones_like(q))))
    sums = trapezoid(f, model.coefs.shape[-1], reach, 2.0**-level)
    tail, error = (xp.max(x / model.size) * xp.sqrt(sums.square) for x in (model.tail, model.error))
    expansion = Series(sums.coefs, tail, error, sums.square, sums.square, rule=model.rule)
    return replace(_with_constants(f, q, expansion), rests=model.rests)


def rests_of(a: Series) -> tuple[tuple[int, Any], ...]:
    """Return the lengths of the series and its shorter versions, each with its largest relative tails."""
    if not a.tail.size:
        return ()
    xp, most, size = array_namespace(a.coefs), a.coefs.shape[-1], a.size
    counts = (*(k for k in SHORTER if k < most), most)

    def relative(tail: Array, coefs: Array) -> list[float]:
        squares = [tail**2]
        for start, end in reversed([*pairwise(counts)]):
            squares.append(squares[-1] + xp.sum(coefs[..., start:end] ** 2, axis=-1))
        return [float(xp.max(xp.sqrt(x) / size)) for x in reversed(squares)]

    whole, smooth = relative(a.tail, a.coefs), [None] * len(counts)
    if a.jumps is not None:
        smooth = relative(a.jumps.tail, a.coefs - a.jumps.coefs)
    return tuple(zip(counts, zip(whole, smooth, strict=True), strict=True))


@dataclass(frozen=True)
class Target(Integrand):
    """A function to expand, and the required accuracy; see `series`."""

    tol: float = 0.0
    alone: bool = False
    finest: float = 0.0


def within_reach(kinks: Sequence[float], m: Array, s: Array) -> tuple[float, ...]:
    """Return the kinks that matter to some input, or none if there are too many to split panels at."""
    if not kinks or not m.size:
        return ()
    xp = array_namespace(m, s)
    low, high = float(xp.min(m - REACHES[-1] * s)), float(xp.max(m + REACHES[-1] * s))
    near = tuple(sorted({k for k in kinks if low <= k <= high}))
    most = 96  # beyond, the trapezoid rule is as accurate for its cost
    return near if len(near) <= most else ()


def _adaptive(f: Target, rungs: tuple[int, ...]) -> Series:
    """Refine the step and lengthen the series until both errors are below tolerance; otherwise use cells."""
    reach, level, lengths = choose_reach(f), FIRST_LEVEL, list(rungs)
    while True:
        expansion, level, settled = _refined(f, lengths.pop(0), level, reach)
        if not settled:
            return _by_cells(f, rungs)
        if not lengths or _is_long_enough(expansion, f.tol):
            break
    expansion = replace(expansion, rule=(level, reach))
    return expansion if len(rungs) == 1 else _shortest(expansion, f.tol)


def _refined(f: Target, terms: int, level: int, reach: int) -> tuple[Series, int, bool]:
    """Return the series by the first rule from `level` on that agrees with the coarser one, if any does."""
    xp, level = array_namespace(f.m, f.s), max(level, least_level(terms))
    last = max(6 if f.kinks else 7, level)
    while True:
        expansion, change = _at_level(f, terms, level, reach)
        rough = any_above(change, f.tol * xp.sqrt(expansion.square))
        if not rough or level == last:
            break
        level += 1

    expansion = _with_jumps(f, expansion, reach, lambda smooth: two_levels(smooth, 1, level, reach)[0].square)
    return expansion, level, not rough


def _rungs(inputs: int, kinks: Sequence[float]) -> tuple[int, ...]:
    """Return the numbers of terms to try: up to 512, and beyond only for few inputs."""
    # With few inputs, a rule takes so little time that small steps do not pay.
    first = (32, 512) if inputs <= 256 else (32, 64, 128, 256, 512)
    most = max(SURE_TERMS, COEFFICIENTS // max(1, inputs))
    lengths = (*first, 2048) if kinks else (*first, 2048, 4096)
    return tuple(terms for terms in lengths if terms <= most)


def _is_long_enough(a: Series, tol: float) -> bool:
    """Return whether the tail is small enough; if terms or inputs are many, only in pairs with itself.

    A pair has the product of two tails, so a much larger tail is enough, except with a rougher function.
    """
    if a.coefs.shape[-1] < SURE_TERMS and prod(a.tail.shape) * SURE_TERMS <= COEFFICIENTS:
        return not any_above(a.tail**2, tol**2 * a.square)
    return not any_above(rest_of_pair(a.tails, a.tails), tol * a.square)


def _shortest(expansion: Series, tol: float) -> Series:
    """Return the series with as few terms as the tolerance allows."""
    tries = (truncated(expansion, terms) for terms in SHORTER if terms < expansion.coefs.shape[-1])
    return next((shorter for shorter in tries if _is_long_enough(shorter, tol)), expansion)


def _at_level(f: Integrand, terms: int, level: int, reach: int) -> tuple[Series, Array]:
    """Return the series by one rule, and its distance to the coarser rule, which bounds its error."""
    fine, coarse = two_levels(f, terms, level, reach)
    xp = array_namespace(f.m)
    change = xp.linalg.vector_norm(fine.coefs - coarse.coefs, axis=-1)
    moved = xp.abs(fine.square - coarse.square)
    return _from_sums(fine, change, moved), change


def _from_sums(sums: Sums, miss: Array, moved: Array) -> Series:
    """Return the series whose coefficients may be off by `miss`, and E[f^2] by `moved`.

    An error e of f changes E[f^2] by about 2 |f| e, so a change of E[f^2] counts as an error of f as well.
    """
    xp, eps, size = array_namespace(sums.square), eps_of(sums.square), sums.square**0.5
    rounding = eps * (8 * size + xp.sqrt(sums.slope))
    # The difference E[f^2] - sum_k a_k^2 has noise of 2 eps E[f^2], and of 10 at the worst of 2,000 inputs.
    tail = _tail(sums.square, sums.coefs, moved + 32 * eps * sums.square, rounding)
    error = xp.maximum(miss, moved / xp.where(size > 0, 2 * size, 1.0)) + xp.sqrt(sums.edge) + rounding
    return Series(sums.coefs, tail, error, sums.square, sums.square)


def _tail(square: Array, coefs: Array, doubt: Array, rounding: Array) -> Array:
    """The norm of what the series leaves out, sqrt(E[f^2] - sum_k a_k^2) by Parseval's equality.

    The difference is known to `doubt` only. Where it is lost in that, the tail is at most 1e-7 or so, and a
    series that has come so far down goes on falling: four times its last quarter bounds the tail.
    """
    xp = array_namespace(square, coefs)
    left, last = square - xp.sum(coefs**2, axis=-1), coefs[..., -(-coefs.shape[-1] * 3 // 4) :]
    parseval = xp.sqrt(xp.where(left > 0, left, xp.zeros_like(left)) + doubt)
    falling = xp.minimum(parseval, 4 * xp.linalg.vector_norm(last, axis=-1) + rounding)
    return xp.where(left > doubt, parseval, falling) if coefs.shape[-1] >= 32 else parseval


def _with_constants(f: Integrand, q: Array, expansion: Series) -> Series:
    """Replace the series by the constant f(m) where q = 0; `mark` is the sum of cos(k) a_k."""
    xp, terms = array_namespace(f.m, q), expansion.coefs.shape[-1]
    value = call(f.fn, f.m[..., None])
    constant = expansion.map(xp.zeros_like)
    constant = replace(constant, coefs=value * like(np.eye(1, terms)[0], f.m), square=value[..., 0] ** 2)

    def chosen(x: Array, instead: Array) -> Array:
        return xp.where(xp.reshape(q > 0, (*q.shape, *(1,) * (x.ndim - q.ndim))), x, instead)

    expansion = expansion.map(chosen, constant)
    return replace(expansion, mark=expansion.coefs @ like(np.cos(np.arange(terms)), f.m))


def _with_jumps(f: Target, expansion: Series, reach: int, square: Callable[[Integrand], Array]) -> Series:
    """Add the singular part unless it has too many kinks; `square` gives E of the remainder squared."""
    if not 0 < len(f.kinks) <= 8:  # singular parts take a product of all kinks for each pair
        return expansion
    part, jumps = singular_part(f, expansion, reach)
    smooth = square(without_jumps(f, jumps, part.orders))
    rounding = 2 * expansion.error + 8 * eps_of(f.m) * part.scale
    doubt = 8 * eps_of(f.m) * smooth + rounding * smooth**0.5
    tail = _tail(smooth, expansion.coefs - part.coefs, doubt, rounding)
    return replace(expansion, jumps=replace(part, tail=tail))


def singular_part(f: Integrand, expansion: Series, reach: int) -> tuple[Jumps, Array]:
    """Return the singular part of f at each input, with the tail of f itself, and the jumps in units of x."""
    xp, places = array_namespace(f.m, f.s), f.places(reach)
    jumps, scale = useful_jumps(derivative_jumps(f), f.s, places, expansion.square, reach)
    sizes = jumps * f.s[..., None, None] ** like(range(JUMP_ORDERS), f.m)
    orders = tuple(p for p in range(JUMP_ORDERS) if bool(xp.any(sizes[..., p] != 0)))
    coefs = singular_coefs(places, sizes, expansion.coefs.shape[-1])
    return Jumps(places, sizes, coefs, expansion.tail, scale, orders), jumps


# By cells


def _by_cells(f: Target, rungs: tuple[int, ...]) -> Series:
    """Return the series from cells on which f is a polynomial; each distinct input may have its own cells."""
    m, reach, back, laws = f.m, choose_reach(f), None, [f]
    if f.alone and prod(m.shape) > 1:
        both = np.stack([np.asarray(x, float).reshape(-1) for x in (m, f.s)])
        distinct, back = np.unique(both, axis=1, return_inverse=True)
        columns = like(distinct.T.reshape(-1, 2, *(1,) * m.ndim), m)
        laws = [replace(f, m=columns[k, 0, ...], s=columns[k, 1, ...]) for k in range(len(distinct.T))]
    scale = scale_for(len(laws) if f.alone else prod(m.shape))
    parts = [(law, cells(law, reach, max(scale, f.finest / float(np.max(law.s))))) for law in laws]
    nodes = sum(on.nodes.size for _, on in parts)
    lengths = [terms for terms in rungs if terms >= SURE_TERMS] or list(rungs)
    while True:
        terms = lengths.pop(0)
        expansion = concat([_on_cells(law, on, terms, reach) for law, on in parts], axis=0)
        slow = terms > SURE_TERMS and any_above(expansion.tail, 0.05 * expansion.square**0.5)
        far = 2 * terms * nodes > 2**26  # entries of the next table of Hermite functions: about a second
        if not lengths or slow or far or _is_long_enough(expansion, f.tol):
            break
    expansion = expansion if len(rungs) == 1 else _shortest(expansion, f.tol)
    return expansion if back is None else expansion[(back.reshape(m.shape), *(0,) * (m.ndim - 1))]


def _on_cells(f: Target, on: Cells, terms: int, reach: int) -> Series:
    """Return the series at inputs that share their cells."""

    def native(x: np.ndarray) -> Array:
        return like(x.reshape(f.m.shape + x.shape[1:]), f.m)

    sums, miss, moved = on.sums(terms, reach)
    expansion = _from_sums(sums.map(native), native(miss), native(moved))
    return _with_jumps(f, expansion, reach, lambda smooth: native(on.square(smooth)))


# Shorter series


def truncated(a: Series, terms: int, tails: bool = True) -> Series:
    """Return the series with `terms` terms; add the others to the tails, unless `tails` is False."""
    if terms >= a.coefs.shape[-1]:
        return a

    def longer(tail: Array, omitted: Array) -> Array:
        xp = array_namespace(tail)
        return xp.sqrt(tail**2 + xp.vecdot(omitted, omitted)) if tails else tail

    tail, omitted, jumps = a.tail, a.coefs[..., terms:], a.jumps
    if jumps is not None:
        smooth = longer(jumps.tail, omitted - jumps.coefs[..., terms:])
        jumps = replace(jumps, coefs=jumps.coefs[..., :terms], tail=smooth)
    return replace(a, coefs=a.coefs[..., :terms], tail=longer(tail, omitted), jumps=jumps, rests=())


def rest_of_pair(a: tuple[Any, Any], b: tuple[Any, Any]) -> Any:
    """Bound |sum_{k >= K} a_k b_k|, or that of a b - c d for singular parts: a = c + r, b = d + p.

    a b - c d = a p + r b - r p, and each sum is at most the product of the norms.
    """
    (tail_a, rest_a), (tail_b, rest_b) = a, b
    if rest_a is None or rest_b is None:
        return tail_a * tail_b
    return tail_a * rest_b + rest_a * tail_b + rest_a * rest_b
