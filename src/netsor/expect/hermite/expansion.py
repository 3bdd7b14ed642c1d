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
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from netsor.expect.hermite.singularities import (
    JUMP_ORDERS,
    Arrays,
    Jumps,
    derivative_jumps,
    singular_coefs,
    useful_jumps,
    without_jumps,
)
from netsor.expect.quadrature.adaptive_cells import Cells, cells, scale_for
from netsor.expect.quadrature.hermite_functions import Array, Function, call, eps_of, like, norm
from netsor.expect.quadrature.kink_panels import kink_places
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
        return rest_of_pair(*(_relative(self),) * 2)


def concat(parts: Sequence[Series], axis: int) -> Series:
    """Concatenate the series of one function at several inputs; pad shorter ones with zeros. NumPy only."""
    if len(parts) == 1:
        return parts[0]
    terms = max(part.coefs.shape[-1] for part in parts)

    def joined(objects: Sequence[Any], *names: str) -> dict[str, Any]:
        return {name: np.concatenate([values(x, name) for x in objects], axis=axis) for name in names}

    def values(x: Any, name: str) -> Any:
        array = getattr(x, name)
        missing = [(0, 0)] * (array.ndim - 1) + [(0, terms - array.shape[-1])]
        return np.pad(array, missing) if name == "coefs" else array

    jumps = [part.jumps for part in parts if part.jumps is not None]
    both = None
    if len(jumps) == len(parts):
        orders = tuple(sorted({p for jump in jumps for p in jump.orders}))
        both = Jumps(**joined(jumps, "places", "sizes", "coefs", "tail", "scale"), orders=orders)
    joint = Series(**joined(parts, "coefs", "tail", "error", "square", "mark"), jumps=both)
    return replace(joint, rests=rests_of(joint) if joint.tail.size else ())


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
        target = Target(fn, tuple(sorted(set(kinks))))
        expansion = _at_level(target, m, s, terms or 256, 5, REACHES[1])[0]
    else:
        kinks = within_reach(kinks, m, s)
        target = Target(fn, tuple(sorted(set(kinks))), max(tol, 32 * eps_of(m)), alone, finest)
        rungs = _rungs(inputs or prod(m.shape), kinks) if terms is None else (terms,)
        if trusted or not m.size:
            expansion = _adaptive(target, m, s, rungs)
        else:
            expansion = _by_cells(target, np.asarray(m), np.asarray(s), rungs).map(lambda x: like(x, m))
    expansion = _with_constants(fn, m, q, expansion)
    return (
        expansion
        if is_traced(m, q) or not expansion.tail.size
        else replace(expansion, rests=rests_of(expansion))
    )


def series_like(model: Series, fn: Function, m: Array, q: Array) -> Series:
    """Return the series of a smooth f by the rule of an earlier series, with its largest relative bounds.

    Means and variances must not be larger than those of the model. f(m + sqrt(q) t) is then analytic in a
    wider strip, where both the rule and the series converge faster (Trefethen and Weideman 2014; Boyd 1984).
    """
    xp, (level, reach) = array_namespace(m, q), model.rule
    m, q = xp.broadcast_arrays(m, q)
    s = xp.sqrt(xp.where(q > 0, q, xp.ones_like(q)))
    sums = trapezoid(fn, m, s, model.coefs.shape[-1], reach, 2.0**-level)
    size = xp.sqrt(sums.square)
    norms = xp.sqrt(xp.where(model.square > 0, model.square, xp.ones_like(model.square)))
    tail, error = (xp.max(x / norms) * size for x in (model.tail, model.error))
    expansion = Series(sums.coefs, tail, error, sums.square, sums.square, rule=model.rule)
    return replace(_with_constants(fn, m, q, expansion), rests=model.rests)


def rests_of(expansion: Series) -> tuple[tuple[int, Any], ...]:
    """Return the lengths of the series and its shorter versions, each with its largest relative tails."""
    most = expansion.coefs.shape[-1]
    counts = (*(k for k in SHORTER if k < most), most)
    if expansion.jumps is not None:
        return tuple((k, _relative(truncated(expansion, k))) for k in counts)
    xp = array_namespace(expansion.coefs)
    pieces = [expansion.coefs[..., a:b] for a, b in pairwise(counts)]
    tails = [expansion.tail**2]
    for piece in reversed(pieces):  # the longest first
        tails.append(tails[-1] + xp.sum(piece**2, axis=-1))
    size = xp.sqrt(xp.where(expansion.square > 0, expansion.square, xp.ones_like(expansion.square)))
    rests = [(float(xp.max(xp.sqrt(tail) / size)), None) for tail in reversed(tails)]
    return tuple(zip(counts, rests, strict=True))


@dataclass(frozen=True)
class Target:
    """A function to expand, and the required accuracy; see `series`."""

    fn: Function
    kinks: tuple[float, ...]
    tol: float = 0.0
    alone: bool = False
    finest: float = 0.0


def within_reach(kinks: Sequence[float], m: Array, s: Array) -> tuple[float, ...]:
    """Return the kinks that matter to some input, or none if there are too many to split panels at."""
    if not kinks or not m.size:
        return ()
    xp = array_namespace(m, s)
    low, high = float(xp.min(m - REACHES[-1] * s)), float(xp.max(m + REACHES[-1] * s))
    near = tuple(k for k in kinks if low <= k <= high)
    most = 96  # beyond, the trapezoid rule is as accurate for its cost
    return near if len(near) <= most else ()


def _adaptive(target: Target, m: Array, s: Array, rungs: tuple[int, ...]) -> Series:
    """Refine the step and lengthen the series until both errors are below tolerance; otherwise use cells."""
    reach, level = choose_reach(target.fn, m, s), FIRST_LEVEL
    first, *longer = rungs
    expansion, level, settled = _refined(target, m, s, first, level, reach)
    while settled and longer and not _is_long_enough(expansion, target.tol):
        expansion, level, settled = _refined(target, m, s, longer.pop(0), level, reach)
    if not settled:
        return _by_cells(target, m, s, rungs)
    expansion = replace(expansion, rule=(level, reach))
    return expansion if len(rungs) == 1 else _shortest(expansion, target.tol)


def _refined(
    target: Target, m: Array, s: Array, terms: int, level: int, reach: int
) -> tuple[Series, int, bool]:
    """Return the series by the first rule from `level` on that agrees with the coarser one, if any does."""
    xp, level = array_namespace(m, s), max(level, least_level(terms))
    last = max(6 if target.kinks else 7, level)
    while True:
        expansion, change = _at_level(target, m, s, terms, level, reach)
        rough = any_above(change, target.tol * xp.sqrt(expansion.square))
        if not rough or level == last:
            break
        level += 1

    def square(fn: Function) -> Array:
        return two_levels(fn, m, s, 1, level, reach, target.kinks)[0].square

    return _with_jumps(target, m, s, expansion, reach, square), level, not rough


def _rungs(inputs: int, kinks: Sequence[float]) -> tuple[int, ...]:
    """Return the numbers of terms to try: up to 512, and beyond only for few inputs."""
    # With few inputs, a rule takes so little time that small steps do not pay.
    first = (32, 512) if inputs <= 256 else (32, 64, 128, 256, 512)
    most = max(SURE_TERMS, COEFFICIENTS // max(1, inputs))
    lengths = (*first, 2048) if kinks else (*first, 2048, 4096)
    return tuple(terms for terms in lengths if terms <= most)


def _is_long_enough(expansion: Series, tol: float) -> bool:
    """Return whether the tail is small enough; if terms or inputs are many, only in pairs with itself.

    A pair has the product of two tails, so a much larger tail is enough, except with a rougher function.
    """
    if expansion.coefs.shape[-1] < SURE_TERMS and prod(expansion.tail.shape) * SURE_TERMS <= COEFFICIENTS:
        return not any_above(expansion.tail**2, tol**2 * expansion.square)
    return not any_above(rest_of_pair(tails(expansion), tails(expansion)), tol * expansion.square)


def _shortest(expansion: Series, tol: float) -> Series:
    """Return the series with as few terms as the tolerance allows."""
    tries = (truncated(expansion, terms) for terms in SHORTER if terms < expansion.coefs.shape[-1])
    return next((shorter for shorter in tries if _is_long_enough(shorter, tol)), expansion)


def _at_level(target: Target, m: Array, s: Array, terms: int, level: int, reach: int) -> tuple[Series, Array]:
    """Return the series by one rule, and its distance to the coarser rule, which bounds its error."""
    fine, coarse = two_levels(target.fn, m, s, terms, level, reach, target.kinks)
    change, moved = norm(fine.coefs - coarse.coefs), array_namespace(m, s).abs(fine.square - coarse.square)
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
    falling = xp.minimum(parseval, 4 * norm(last) + rounding)
    return xp.where(left > doubt, parseval, falling) if coefs.shape[-1] >= 32 else parseval


def _with_constants(fn: Function, m: Array, q: Array, expansion: Series) -> Series:
    """Replace the series by the constant f(m) where q = 0; `mark` is the sum of cos(k) a_k."""
    xp, terms = array_namespace(m, q), expansion.coefs.shape[-1]
    value, zero = call(fn, m[..., None]), xp.zeros_like(m)
    coefs = xp.where(q[..., None] > 0, expansion.coefs, value * like(np.eye(1, terms)[0], m))
    tail, error = (xp.where(q > 0, x, zero) for x in (expansion.tail, expansion.error))
    square, mark = (
        xp.where(q > 0, expansion.square, value[..., 0] ** 2),
        coefs @ like(np.cos(np.arange(terms)), m),
    )
    jumps = expansion.jumps and expansion.jumps.map(
        lambda x: xp.where(xp.reshape(q > 0, (*q.shape, *(1,) * (x.ndim - q.ndim))), x, xp.zeros_like(x))
    )
    return Series(coefs, tail, error, square, mark, jumps, rule=expansion.rule)


def _with_jumps(
    target: Target, m: Array, s: Array, expansion: Series, reach: int, square: Callable[[Function], Array]
) -> Series:
    """Add the singular part unless it has too many kinks; `square` gives E of the remainder squared."""
    fn, kinks = target.fn, target.kinks
    if not 0 < len(kinks) <= 8:  # singular parts take a product of all kinks for each pair
        return expansion
    part, jumps = singular_part(fn, kinks, m, s, expansion, reach)
    smooth = square(without_jumps(fn, jumps, part.orders, kinks))
    rounding = 2 * expansion.error + 8 * eps_of(m) * part.scale
    doubt = 8 * eps_of(m) * smooth + rounding * smooth**0.5
    return replace(
        expansion, jumps=replace(part, tail=_tail(smooth, expansion.coefs - part.coefs, doubt, rounding))
    )


def singular_part(
    fn: Function, kinks: Sequence[float], m: Array, s: Array, expansion: Series, reach: int
) -> tuple[Jumps, Array]:
    """Return the singular part of f at each input, with the tail of f itself, and the jumps in units of x."""
    xp = array_namespace(m, s)
    places = kink_places(m, s, kinks, reach)
    jumps, scale = useful_jumps(derivative_jumps(fn, m, kinks), s, places, expansion.square, reach)
    sizes = jumps * s[..., None, None] ** like(range(JUMP_ORDERS), m)
    orders = tuple(p for p in range(JUMP_ORDERS) if bool(xp.any(sizes[..., p] != 0)))
    coefs = singular_coefs(places, sizes, expansion.coefs.shape[-1])
    return Jumps(places, sizes, coefs, expansion.tail, scale, orders), jumps


# By cells


def _by_cells(target: Target, m: Array, s: Array, rungs: tuple[int, ...]) -> Series:
    """Return the series from cells on which f is a polynomial; each distinct input may have its own cells."""
    reach, back = choose_reach(target.fn, m, s), None
    if target.alone and prod(m.shape) > 1:
        both = np.stack([np.asarray(x, float).reshape(-1) for x in (m, s)])
        (means, deviations), back = np.unique(both, axis=1, return_inverse=True)
        laws = [
            [like(x.reshape((1,) * m.ndim), m) for x in law] for law in zip(means, deviations, strict=True)
        ]
    else:
        laws = [[m, s]]
    scale = scale_for(prod(m.shape) if back is None else len(laws))
    parts = [OnCells.of(target, mean, deviation, reach, scale) for mean, deviation in laws]
    lengths = [terms for terms in rungs if terms >= SURE_TERMS] or list(rungs)
    nodes = sum(part.cells.nodes.size for part in parts)
    while True:
        terms = lengths.pop(0)
        expansion = concat([part.series(terms) for part in parts], axis=0)
        slow = terms > SURE_TERMS and any_above(expansion.tail, 0.05 * expansion.square**0.5)
        far = 2 * terms * nodes > 2**26  # entries of the next table of Hermite functions: about a second
        if not lengths or slow or far or _is_long_enough(expansion, target.tol):
            break
    expansion = expansion if len(rungs) == 1 else _shortest(expansion, target.tol)
    return expansion if back is None else expansion[(back.reshape(m.shape), *(0,) * (m.ndim - 1))]


@dataclass(frozen=True)
class OnCells:
    """A function at inputs that share their cells."""

    target: Target
    m: Array
    s: Array
    reach: int
    cells: Cells

    @classmethod
    def of(cls, target: Target, m: Array, s: Array, reach: int, scale: float) -> OnCells:
        mean, deviation = (np.asarray(x, float).reshape(-1, 1) for x in (m, s))
        scale = max(scale, target.finest / deviation.max())
        places = ((np.array(target.kinks) - mean) / deviation).reshape(-1)
        line = partial(_on_line, target.fn, m, s)
        return cls(
            target, m, s, reach, cells(line, (mean / deviation)[:, 0], reach, places, eps_of(m), scale)
        )

    def series(self, terms: int) -> Series:
        sums, miss, moved = self.cells.sums(terms, self.reach)
        sums = Sums(*(self._native(x) for x in vars(sums).values()))
        expansion = _from_sums(sums, self._native(miss), self._native(moved))
        return _with_jumps(self.target, self.m, self.s, expansion, self.reach, self._square)

    def _square(self, fn: Function) -> Array:
        values = _on_line(fn, self.m, self.s, self.cells.nodes.reshape(-1))
        return self._native(self.cells.square(values))

    def _native(self, x: np.ndarray) -> Array:
        return like(x.reshape(self.m.shape + x.shape[1:]), self.m)


def _on_line(fn: Function, m: Array, s: Array, t: np.ndarray) -> np.ndarray:
    """Return f(m + s t), shape (inputs, nodes)."""
    y = call(fn, m[..., None] + s[..., None] * like(t, m))
    return np.asarray(y, float).reshape(prod(m.shape), len(t))


# Shorter series


def truncated(a: Series, terms: int, tails: bool = True) -> Series:
    """Return the series with `terms` terms; add the others to the tails, unless `tails` is False."""
    if terms >= a.coefs.shape[-1]:
        return a
    tail, jumps = a.tail, a.jumps
    if tails:
        tail = _longer_tail(tail, a.coefs[..., terms:])
    if jumps is not None:
        smooth = jumps.tail
        if tails:
            smooth = _longer_tail(smooth, a.coefs[..., terms:] - jumps.coefs[..., terms:])
        jumps = replace(jumps, coefs=jumps.coefs[..., :terms], tail=smooth)
    return replace(a, coefs=a.coefs[..., :terms], tail=tail, jumps=jumps, rests=())


def _longer_tail(tail: Array, omitted: Array) -> Array:
    xp = array_namespace(tail)
    return xp.sqrt(tail**2 + xp.vecdot(omitted, omitted))


def tails(a: Series) -> tuple[Array, Array | None]:
    """Return the norms of what the series leaves out of f, and of f minus its singular part."""
    return a.tail, None if a.jumps is None else a.jumps.tail


def _relative(a: Series) -> tuple[float, float | None]:
    """Return the largest tails over all inputs, relative to sqrt(E[f^2])."""
    xp = array_namespace(a.tail)
    size = xp.sqrt(xp.where(a.square > 0, a.square, xp.ones_like(a.square)))
    whole, smooth = tails(a)
    return float(xp.max(whole / size)), None if smooth is None else float(xp.max(smooth / size))


def rest_of_pair(a: tuple[Any, Any], b: tuple[Any, Any]) -> Any:
    """Bound |sum_{k >= K} a_k b_k|, or that of a b - c d for singular parts: a = c + r, b = d + p.

    a b - c d = a p + r b - r p, and each sum is at most the product of the norms.
    """
    (tail_a, rest_a), (tail_b, rest_b) = a, b
    if rest_a is None or rest_b is None:
        return tail_a * tail_b
    return tail_a * rest_b + rest_a * tail_b + rest_a * rest_b
