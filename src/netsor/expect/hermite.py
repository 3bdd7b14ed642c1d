"""E[f(x) g(y)] for jointly Gaussian x, y and any one-variable f, g, by Hermite series.

With f(m + sqrt(q) t) = sum_k a_k h_k(t) in orthonormal Hermite polynomials and b_k likewise for g,
E[f(x) g(y)] = sum_k a_k b_k rho^k (Mehler's formula; Daniely, Frostig and Singer 2016, arXiv:1602.05897).
The coefficients are one quadrature per input; a pair costs one polynomial in rho. Parseval's equality gives
the norm of what a series leaves out, and so a bound of the error.

A function with kinks or jumps has a slowly converging series, which matters near |rho| = 1. There the part
sum_{i,p} jump_ip (x - kink_i)_+^p / p!, p <= 3, is taken in closed form (see `Jumps`): it carries the slow
part of the series, and the rest converges fast. Piecewise cubics come out to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, reduce
from itertools import pairwise
from math import factorial, prod
from operator import mul
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_jax_array
from numpy.polynomial import chebyshev

from netsor.expect.compiled_sum import horner
from netsor.expect.line_quadrature import (
    FIRST_LEVEL,
    REACHES,
    TRACED_LEVEL,
    any_above,
    call,
    choose_reach,
    eps_of,
    find_kinks,
    hermite_functions,
    kink_places,
    last_level,
    least_level,
    like,
    mean,
    norm,
    trapezoid,
    two_levels,
)
from netsor.lang.libraries import is_traced

__all__ = ["Jumps", "Series", "concat", "find_kinks", "mean", "pair_sum", "series", "series_like"]

Array = Any
Function = Callable[[Array], Array]

SHORTER = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)
TERMS, TERMS_OF_MANY = (32, 512, 2048, 4096), (32, 64, 128, 256, 512)
SURE_TERMS, TRACED_TERMS = 512, 256
COEFFICIENTS = 2**23  # 64 MB: with more coefficients than that, series are kept short
JUMP_ORDERS, MOST_JUMPS = 4, 8  # jumps of f and of three derivatives, at so many kinks
LARGEST_JUMP = 256.0  # relative to sqrt(E[f^2])
FIT_POINTS, FIT_WIDTH = 9, 0.25
PAIR_BLOCK = 2**15
MANY, FEW = 256, 9  # of many inputs, so many tell which rule and length suit all of them


def _index(x: Any, index: tuple) -> Any:
    """x[index] on the leading axes, for arrays and for the classes below; None stays None."""
    if x is None or isinstance(x, tuple):
        return x
    return x[index] if isinstance(x, Jumps | Series) else x[(*index, ...)]


@dataclass(frozen=True)
class Jumps:
    """The singular part of t -> f(m + s t): sum_{i,p} sizes_ip (t - places_i)_+^p / p!."""

    places: Array  # shape (..., kinks)
    sizes: Array  # shape (..., kinks, JUMP_ORDERS): jump of the p-th derivative, times s^p
    coefs: Array  # shape (..., K): its Hermite coefficients
    tail: Array  # shape (...,): what the series leaves out of f minus the singular part, in norm
    scale: Array  # shape (...,): size of the terms, for rounding
    orders: tuple[int, ...]  # the p that occur

    def __getitem__(self, index: tuple) -> Jumps:
        return Jumps(*(_index(getattr(self, field.name), index) for field in fields(self)))


@dataclass(frozen=True)
class Series:
    """The Hermite series of t -> f(m + sqrt(q) t) at each input, and what is known of its errors.

    `found[:, None]` indexes the leading axes of all fields at once (no `...` in the index).
    """

    coefs: Array  # shape (..., K): a_0 ... a_{K-1}
    tail: Array  # shape (...,): bound of the norm of what the series leaves out, from Parseval
    error: Array  # shape (...,): bound of the quadrature error of the coefficients, in the 2-norm
    square: Array  # shape (...,): E[f^2]
    mark: Array  # shape (...,): a number made of all coefficients, to tell whether two series are the same
    jumps: Jumps | None = None
    rests: tuple[tuple[int, Any], ...] = ()  # the relative tails of shorter series, largest over all inputs
    rule: tuple[int, int] = (0, 0)  # level and reach of the quadrature

    def __getitem__(self, index: Any) -> Series:
        index = index if isinstance(index, tuple) else (index,)
        return Series(*(_index(getattr(self, field.name), index) for field in fields(self)))

    @property
    def rest(self) -> float:
        """The largest part of E[f^2] over all inputs that a sum of two such series may leave out."""
        return _rest(*(dict(self.rests or _rests(self))[self.coefs.shape[-1]],) * 2)


def concat(parts: Sequence[Series], axis: int) -> Series:
    """The series of one function at the inputs of all parts; shorter ones end in zeros. NumPy only."""
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
    made = Series(**joined(parts, "coefs", "tail", "error", "square", "mark"), jumps=both)
    lengths = {tuple(k for k, _ in part.rests) for part in parts}
    if len(lengths) > 1 or lengths == {()}:
        return made
    return replace(made, rests=tuple(map(_larger, *(part.rests for part in parts))))


def _larger(*rests: tuple[int, Any]) -> tuple[int, Any]:
    """The largest relative tails of shorter series, of the series and of what is beside jumps."""
    whole, rest = zip(*(tails for _, tails in rests), strict=True)
    return rests[0][0], (max(whole), None if None in rest else max(rest))


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
) -> Series:
    """The Hermite series of f at inputs of mean m and variance q, arrays of shape (...,).

    `fn` is elementwise and is called on arrays of shape (..., nodes); `kinks` are the places where f or one
    of its first derivatives jumps; `alone` says that f is the same function for all inputs. With `terms=None`
    the series is as long as `tol` asks, relative to sqrt(E[f^2]), up to 512 terms, and up to 4096 for few
    inputs (`inputs` says how many there will be, if not those of m). Inside jax.jit, where nothing can adapt,
    the rule is fixed and there are 256 terms: see errors.
    """
    xp = array_namespace(m, q)
    m, q = xp.broadcast_arrays(m, q)
    s = xp.sqrt(xp.where(q > 0, q, xp.ones_like(q)))
    if is_traced(m, q):
        found = _at_level(fn, m, s, terms or TRACED_TERMS, TRACED_LEVEL, REACHES[1], sorted(set(kinks)))[0]
    else:
        rungs = _rungs(inputs or prod(m.shape), kinks) if terms is None else (terms,)
        found = _adaptive(fn, m, s, rungs, max(tol, 32 * eps_of(m)), sorted(set(kinks)), alone)
    found = _with_constants(fn, m, q, found)
    return found if is_traced(m, q) or not found.tail.size else replace(found, rests=_rests(found))


def series_like(model: Series, fn: Function, m: Array, q: Array) -> Series:
    """The series of a smooth f by the rule of an earlier one, with the largest of its relative bounds.

    For means and variances that are not larger: f(m + sqrt(q) t) is then analytic in a wider strip, where
    both the rule and the series converge faster (Trefethen and Weideman 2014; Boyd 1984).
    """
    xp, (level, reach) = array_namespace(m, q), model.rule
    m, q = xp.broadcast_arrays(m, q)
    s = xp.sqrt(xp.where(q > 0, q, xp.ones_like(q)))
    sums = trapezoid(fn, m, s, model.coefs.shape[-1], reach, 2.0**-level)
    size = xp.sqrt(sums.square)
    norms = xp.sqrt(xp.where(model.square > 0, model.square, xp.ones_like(model.square)))
    tail, error = (xp.max(x / norms) * size for x in (model.tail, model.error))
    found = Series(sums.coefs, tail, error, sums.square, sums.square, rule=model.rule)
    return replace(_with_constants(fn, m, q, found), rests=model.rests)


def _rests(found: Series) -> tuple[tuple[int, Any], ...]:
    """What the series and its shorter versions leave out: their lengths and largest relative tails."""
    most = found.coefs.shape[-1]
    counts = (*(k for k in SHORTER if k < most), most)
    if found.jumps is not None:
        return tuple((k, _relative(_cut(found, k))) for k in counts)
    xp = array_namespace(found.coefs)
    pieces = [found.coefs[..., a:b] for a, b in pairwise(counts)]
    tails = [found.tail**2]
    for piece in reversed(pieces):  # the longest first
        tails.append(tails[-1] + xp.sum(piece**2, axis=-1))
    size = xp.sqrt(xp.where(found.square > 0, found.square, xp.ones_like(found.square)))
    rests = [(float(xp.max(xp.sqrt(tail) / size)), None) for tail in reversed(tails)]
    return tuple(zip(counts, rests, strict=True))


def _adaptive(
    fn: Function, m: Array, s: Array, rungs: tuple[int, ...], tol: float, kinks: Sequence[float], alone: bool
) -> Series:
    """Widen the range, refine the step and lengthen the series until each error is below its tolerance."""
    reach, level = choose_reach(fn, m, s), FIRST_LEVEL
    first, *others = rungs
    few = _few(m, s) if alone and others else None
    if few is not None:  # they tell where to begin
        model = _adaptive(fn, *few, rungs, tol, kinks, False)
        first, level = model.coefs.shape[-1], model.rule[0]
        others = [count for count in others if count > first]
    found, level = _refined(fn, m, s, first, level, reach, kinks, tol)
    while others and not _is_long_enough(found, tol):
        few = None
        found, level = _refined(fn, m, s, others.pop(0), level, reach, kinks, tol)
    found = replace(found, rule=(level, reach))
    return found if len(rungs) == 1 or few is not None else _shortest(found, tol)


def _few(m: Array, s: Array) -> tuple[Array, Array] | None:
    """Of many inputs some, with the smallest and largest means and deviations."""
    if not isinstance(m, np.ndarray) or m.size < MANY:
        return None
    mean, deviation = m.reshape(-1), s.reshape(-1)
    places = np.linspace(0, m.size - 1, FEW).astype(int)
    chosen = np.unique(np.concatenate([np.argsort(x)[places] for x in (mean, deviation)]))
    return mean[chosen], deviation[chosen]


def _refined(
    fn: Function, m: Array, s: Array, terms: int, level: int, reach: int, kinks: Sequence[float], tol: float
) -> tuple[Series, int]:
    """The series by the first rule, from `level` on, that differs little from the coarser one."""
    xp, level = array_namespace(m, s), max(level, least_level(terms))
    found, change = _at_level(fn, m, s, terms, level, reach, kinks)
    while level < last_level(kinks) and any_above(change, tol * xp.sqrt(found.square)):
        level += 1
        found, change = _at_level(fn, m, s, terms, level, reach, kinks)
    return _with_jumps(fn, m, s, found, level, reach, kinks), level


def _rungs(inputs: int, kinks: Sequence[float]) -> tuple[int, ...]:
    """The numbers of terms to try, up to 512 and beyond only for few inputs."""
    most = COEFFICIENTS // max(1, inputs)
    if most < SURE_TERMS:
        return TERMS_OF_MANY
    return tuple(terms for terms in (TERMS[:3] if kinks else TERMS) if terms <= most)


def _is_long_enough(found: Series, tol: float) -> bool:
    """Whether the tail is below the tolerance; for long series and many inputs, in pairs of its own only."""
    if found.coefs.shape[-1] < SURE_TERMS and prod(found.tail.shape) * SURE_TERMS <= COEFFICIENTS:
        return not any_above(found.tail**2, tol**2 * found.square)
    return not any_above(_rest(_tails(found), _tails(found)), tol * found.square)


def _shortest(found: Series, tol: float) -> Series:
    """The series with as few terms as the tolerance allows."""
    cuts = (_cut(found, terms) for terms in SHORTER if terms < found.coefs.shape[-1])
    return next((cut for cut in cuts if _is_long_enough(cut, tol)), found)


def _at_level(
    fn: Function, m: Array, s: Array, terms: int, level: int, reach: int, kinks: Sequence[float]
) -> tuple[Series, Array]:
    """The series by one rule, and its distance to the coarser rule, which with rounding bounds the error."""
    xp = array_namespace(m, s)
    fine, coarse = two_levels(fn, m, s, terms, level, reach, kinks)
    change = norm(fine.coefs - coarse.coefs)
    doubt = xp.abs(fine.square - coarse.square) + 8 * eps_of(m) * fine.square
    rounding = eps_of(m) * (8 * xp.sqrt(fine.square) + xp.sqrt(fine.slope))
    tail, error = _tail(fine.square, fine.coefs, doubt, rounding), change + xp.sqrt(fine.edge) + rounding
    return Series(fine.coefs, tail, error, fine.square, fine.square), change


def _tail(square: Array, coefs: Array, doubt: Array, rounding: Array) -> Array:
    """The norm of what the series leaves out, sqrt(E[f^2] - sum_k a_k^2) by Parseval's equality.

    The difference is known to `doubt` only. Where it is lost in that, the tail is at most 1e-7 or so, and a
    series that has come so far down goes on falling: four times its last quarter bounds the tail.
    """
    xp = array_namespace(square, coefs)
    left, last = square - xp.sum(coefs**2, axis=-1), coefs[..., -(-coefs.shape[-1] * 3 // 4) :]
    parseval = xp.sqrt(xp.where(left > 0, left, xp.zeros_like(left)) + doubt)
    falling = xp.minimum(parseval, 4 * norm(last) + rounding)
    return xp.where(left > doubt, parseval, falling) if coefs.shape[-1] >= TERMS[0] else parseval


def _with_constants(fn: Function, m: Array, q: Array, found: Series) -> Series:
    """Where q = 0 the series is the constant f(m); `mark` is the sum of cos(k) a_k."""
    xp, terms = array_namespace(m, q), found.coefs.shape[-1]
    value, zero = call(fn, m[..., None]), xp.zeros_like(m)
    coefs = xp.where(q[..., None] > 0, found.coefs, value * like(np.eye(1, terms)[0], m))
    tail, error = (xp.where(q > 0, x, zero) for x in (found.tail, found.error))
    square, mark = (
        xp.where(q > 0, found.square, value[..., 0] ** 2),
        coefs @ like(np.cos(np.arange(terms)), m),
    )
    jumps = found.jumps and _without_constants(found.jumps, q)
    return Series(coefs, tail, error, square, mark, jumps, rule=found.rule)


def _without_constants(jumps: Jumps, q: Array) -> Jumps:
    xp = array_namespace(q)
    sizes = xp.where(q[..., None, None] > 0, jumps.sizes, xp.zeros_like(jumps.sizes))
    coefs = xp.where(q[..., None] > 0, jumps.coefs, xp.zeros_like(jumps.coefs))
    return replace(jumps, sizes=sizes, coefs=coefs, tail=xp.where(q > 0, jumps.tail, xp.zeros_like(q)))


# The singular part of one function.


def _with_jumps(
    fn: Function, m: Array, s: Array, found: Series, level: int, reach: int, kinks: Sequence[float]
) -> Series:
    """Add the singular part, if it has not too many kinks; the rest of f is measured by the same rule."""
    if not 0 < len(kinks) <= MOST_JUMPS:
        return found
    xp = array_namespace(m, s)
    places = kink_places(m, s, kinks, reach)
    jumps, scale = _useful(_derivative_jumps(fn, m, kinks), s, places, found.square, reach)
    sizes = jumps * s[..., None, None] ** like(range(JUMP_ORDERS), m)
    orders = tuple(p for p in range(JUMP_ORDERS) if bool(xp.any(sizes[..., p] != 0)))
    coefs = _singular_coefs(places, sizes, found.coefs.shape[-1])
    rest = two_levels(_without(fn, jumps, orders, kinks), m, s, 1, level, reach, kinks)[0].square
    rounding = 2 * found.error + 8 * eps_of(m) * scale
    tail = _tail(rest, found.coefs - coefs, 8 * eps_of(m) * rest + rounding * xp.sqrt(rest), rounding)
    return replace(found, jumps=Jumps(places, sizes, coefs, tail, scale, orders))


def _useful(jumps: Array, s: Array, places: Array, square: Array, reach: int) -> tuple[Array, Array]:
    """The jumps within reach whose powers do not grow too large beside f, and the size of these powers.

    Where t is of order 1, the power size_ip (t - place_i)_+^p / p! is about size_ip (1 + max(-place_i, 0))^p
    / p!. In its norm there is the factor exp(-place_i^2 / 4) of the tail of the density, for place_i > 0.
    """
    xp, powers = array_namespace(jumps, s), np.arange(JUMP_ORDERS)
    far = s[..., None, None] * (1 + xp.maximum(-places, xp.zeros_like(places))[..., None])
    scale = xp.abs(jumps) * far ** like(powers, s) / like([factorial(p) for p in powers], s)
    share = xp.exp(-(xp.maximum(places, xp.zeros_like(places)) ** 2) / 4)[..., None]
    used = (xp.abs(places)[..., None] < reach) & (
        share * scale < LARGEST_JUMP * xp.sqrt(square)[..., None, None]
    )
    jumps, scale = (xp.where(used, x, xp.zeros_like(x)) for x in (jumps, scale))
    return jumps, xp.sum(scale, axis=(-2, -1))


def _without(fn: Function, jumps: Array, orders: tuple[int, ...], kinks: Sequence[float]) -> Function:
    """f minus its singular part sum_{i,p} jump_ip (x - kink_i)_+^p / p!."""

    def smooth(x: Array) -> Array:
        xp = array_namespace(x)
        value = fn(x)
        for i, kink in enumerate(kinks):
            right, power = xp.astype(x > kink, x.dtype), xp.maximum(x - kink, xp.zeros_like(x))
            for p in orders:
                value = value - jumps[..., i, p][..., None] * _power(right, power, p) / factorial(p)
        return value

    return smooth


def _power(step: Array, x: Array, p: int) -> Array:
    return step if p == 0 else reduce(mul, [x] * p)


def _derivative_jumps(fn: Function, m: Array, kinks: Sequence[float]) -> Array:
    """The jumps of f and its derivatives at each kink, shape (..., kinks, JUMP_ORDERS), from one-sided fits.

    They need not be exact: an error only slows the series of the rest. What may be rounding counts as zero.
    """
    xp = array_namespace(m)
    gaps = np.diff([-np.inf, *kinks, np.inf])
    rows = []
    for kink, left, right in zip(kinks, gaps, gaps[1:], strict=False):
        width = min(FIT_WIDTH, left / 2, right / 2)
        points, fit = _one_sided_fit(width)
        f = call(fn, like(kink + points, m) + 0 * m[..., None])
        noise = 64 * eps_of(m) * xp.max(xp.abs(f), axis=-1)[..., None]
        jump = f @ like(fit.T, m)
        rows.append(xp.where(xp.abs(jump) > noise * like(np.abs(fit).sum(axis=1), m), jump, 0 * jump))
    return xp.stack(rows, axis=-2)


@lru_cache(maxsize=64)
def _one_sided_fit(width: float) -> tuple[np.ndarray, np.ndarray]:
    """Points on both sides of 0, and the matrix from values there to the jumps of the derivatives at 0."""
    nodes = chebyshev.chebpts1(FIT_POINTS)
    values = np.linalg.inv(chebyshev.chebvander(nodes, FIT_POINTS - 1))
    orders = np.arange(JUMP_ORDERS)[:, None]
    right = np.stack([chebyshev.chebval(-1.0, chebyshev.chebder(values, p)) for p in range(JUMP_ORDERS)])
    right, signs = right * (2 / width) ** orders, (-1.0) ** orders
    points = width * (nodes + 1) / 2
    return np.concatenate([points, -points]), np.concatenate([right, -signs * right], axis=1)


def _singular_coefs(places: Array, size: Array, terms: int) -> Array:
    """The Hermite coefficients of the singular part.

    E[(t - c)_+^p / p! h_k] is E[(t - c)_+^(p-k) / (p-k)!] / sqrt(k!) for k <= p, and beyond that
    density(c) h_{k-p-1}(c) / sqrt(k (k-1) ... (k-p)): k derivatives move from h_k to the other factor.
    """
    xp = array_namespace(places, size)
    smooth = list(hermite_functions(places, _density(places), terms))
    means = _one_sided_moments(places, xp.ones_like(places), JUMP_ORDERS)
    columns = []
    for k in range(terms):
        column = 0 * places
        for p in range(JUMP_ORDERS):
            top = smooth[k - p - 1] if k > p else means[p - k]
            column = column + size[..., p] * top / _falling(k, p + 1) ** 0.5
        columns.append(xp.sum(column, axis=-1))
    return xp.stack(columns, axis=-1)


def _falling(k: int, count: int) -> int:
    """k (k - 1) ..., `count` factors but none below 1."""
    return prod(range(max(1, k - count + 1), k + 1))


def _density(t: Array) -> Array:
    return (2 * np.pi) ** -0.5 * array_namespace(t).exp(-(t**2) / 2)


def _one_sided_moments(c: Array, v: Array, count: int) -> list[Array]:
    """e_n = E[(v z - c)_+^n / n!] for standard normal z: (n + 1) e_{n+1} = v^2 e_{n-1} - c e_n."""
    from scipy.special import ndtr

    xp = array_namespace(c, v)
    ratio = xp.clip(c / xp.maximum(v, like(1e-30, v)), -1e10, 1e10)
    before, now = _density(ratio) / xp.where(v > 0, v, xp.ones_like(v)), _numpy(ndtr, -ratio)
    found = []
    for n in range(count):
        found.append(now)
        before, now = now, (v**2 * before - c * now) / (n + 1)
    return found


def _numpy(function: Callable, *arrays: Array) -> Array:
    """A function of SciPy on arrays of any library."""
    return like(function(*(np.asarray(x) for x in arrays)), arrays[0])


# Pairs.


def pair_sum(a: Series, b: Series, rho: Array, errors: bool = True) -> tuple[Array, Array]:
    """E[f(x) g(y)] for the series a of f and b of g and the correlation rho, and a bound of its error.

    The leading axes of a, b and rho broadcast. The sum_k a_k b_k rho^k is by Horner's rule. The error has
    |rho|^K tail_a tail_b for the rest of the sum and error_a |b| + |a| error_b for the coefficients (both
    Cauchy-Schwarz). At rho = 1 a series with itself gives E[f^2], which has no such rest. Without `errors`
    the bound is 0.
    """
    xp = array_namespace(a.coefs, b.coefs, rho)
    rho = xp.clip(rho, -1.0, 1.0)
    fixed = is_traced(a.coefs, b.coefs, rho) or 0 in (*a.tail.shape, *b.tail.shape, *rho.shape)
    blocks = [_whole(a, b, rho)] if fixed else _blocks(a, b, rho)
    parts = [_pair_block(*block, errors) for block in blocks]
    values, bounds = zip(*parts, strict=True)
    return _join(values), _join(bounds) if errors else 0.0


def _join(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else array_namespace(*parts).concat(list(parts), axis=0)


def _blocks(a: Series, b: Series, rho: Array) -> Iterator[tuple[Series, Series, Array, Array | None]]:
    """Cut the first axis so that a block of pairs stays in the cache; each block takes the terms it needs.

    The last part says which pairs are `_identical`, or None if no correlation is 1.
    """
    xp = array_namespace(rho)
    shape = np.broadcast_shapes(a.tail.shape, b.tail.shape, rho.shape)
    rows = shape[0] if shape else 1
    step, lengths = max(1, PAIR_BLOCK * rows // max(1, prod(shape))), _lengths(a, b)
    for at in range(0, rows, step):
        left, right, r = (_rows(x, shape, at, step) for x in (a, b, rho))
        top, same = float(xp.max(xp.abs(r))), None
        if top == 1:
            same = _identical(left, right, r)
            top = float(xp.max(xp.where(same, 0.0, xp.abs(r))))
        terms = _enough(lengths, top, eps_of(rho))
        yield _cut(left, terms), _cut(right, terms), r, same


def _whole(a: Series, b: Series, rho: Array) -> tuple[Series, Series, Array, Array]:
    most = min(a.coefs.shape[-1], b.coefs.shape[-1])
    return _cut(a, most), _cut(b, most), rho, _identical(a, b, rho)


def _rows(x: Any, shape: tuple[int, ...], at: int, step: int) -> Any:
    """Rows at ... at + step - 1 of what broadcasts to `shape` on its leading axes."""
    own = x.tail.shape if isinstance(x, Series) else x.shape
    whole = len(own) < len(shape) or not shape or own[0] == 1
    return x if whole else _index(x, (slice(at, min(at + step, own[0])),))


def _lengths(a: Series, b: Series) -> list[tuple[int, float]]:
    """Numbers of terms, and the relative size of the rest of the sum at |rho| = 1."""
    most = min(a.coefs.shape[-1], b.coefs.shape[-1])
    left, right = (dict(x.rests or _rests(x)) for x in (_cut(a, most), _cut(b, most)))
    return [(k, _rest(left[k], right[k])) for k in sorted(left.keys() & right.keys())]


def _enough(lengths: list[tuple[int, float]], top: float, eps: float) -> int:
    """The fewest terms whose rest is of the order of rounding for |rho| <= top, else all."""
    return next((k for k, rest in lengths if rest * top**k <= 16 * eps), lengths[-1][0])


def _cut(a: Series, terms: int) -> Series:
    """The series with `terms` terms; the others go to the tails."""
    if terms >= a.coefs.shape[-1]:
        return a
    a = replace(a, rests=())
    if a.jumps is None:
        return replace(a, coefs=a.coefs[..., :terms], tail=_longer_tail(a.tail, a.coefs[..., terms:]))
    rest = _longer_tail(a.jumps.tail, a.coefs[..., terms:] - a.jumps.coefs[..., terms:])
    jumps = replace(a.jumps, coefs=a.jumps.coefs[..., :terms], tail=rest)
    return replace(_cut(replace(a, jumps=None), terms), jumps=jumps)


def _longer_tail(tail: Array, omitted: Array) -> Array:
    xp = array_namespace(tail)
    return xp.sqrt(tail**2 + xp.sum(omitted**2, axis=-1))


def _tails(a: Series) -> tuple[Array, Array | None]:
    """The norms of what the series leaves out of f, and out of f minus its singular part."""
    return a.tail, None if a.jumps is None else a.jumps.tail


def _relative(a: Series) -> tuple[float, float | None]:
    """The largest tails over all inputs, relative to sqrt(E[f^2])."""
    xp = array_namespace(a.tail)
    size = xp.sqrt(xp.where(a.square > 0, a.square, xp.ones_like(a.square)))
    whole, rest = _tails(a)
    return float(xp.max(whole / size)), None if rest is None else float(xp.max(rest / size))


def _rest(a: tuple[Any, Any], b: tuple[Any, Any]) -> Any:
    """A bound of |sum_{k >= K} a_k b_k|, or without the product c d of singular parts a = c + r, b = d + p.

    a b - c d = a p + r b - r p, and each sum is at most the product of the norms.
    """
    (tail_a, rest_a), (tail_b, rest_b) = a, b
    if rest_a is None or rest_b is None:
        return tail_a * tail_b
    return tail_a * rest_b + rest_a * tail_b + rest_a * rest_b


def _identical(a: Series, b: Series, rho: Array) -> Array:
    """Where rho = 1 and both series are the same to the last bit: f(x) g(y) is then f(x)^2."""
    return (rho == 1) & (a.mark == b.mark) & (a.square == b.square)


def _pair_block(a: Series, b: Series, rho: Array, same: Array | None, errors: bool) -> tuple[Array, Array]:
    xp = array_namespace(rho)
    value = _horner(a, b, rho)
    jumps = None if a.jumps is None or b.jumps is None else (a.jumps, b.jumps)
    if jumps:
        value = value + _singular_pair(*jumps, rho)
    if same is not None:
        value = xp.where(same, a.square, value)
    if not errors:
        return value, 0.0
    error = xp.abs(rho) ** a.coefs.shape[-1] * _rest(_tails(a), _tails(b))
    if jumps:
        error = error + 16 * eps_of(rho) * jumps[0].scale * jumps[1].scale
    if same is not None:
        error = xp.where(same, 0.0, error)
    return value, error + a.error * xp.sqrt(b.square) + xp.sqrt(a.square) * b.error


def _horner(a: Series, b: Series, rho: Array) -> Array:
    """sum_k a_k b_k rho^k; the singular parts, if both series have them, are left out."""
    jumps = None if a.jumps is None or b.jumps is None else (a.jumps, b.jumps)
    compiled = horner(a.coefs, b.coefs, rho) if isinstance(rho, np.ndarray) and not jumps else None
    if compiled is not None:
        return compiled
    factors = [(_terms_first(a.coefs), _terms_first(b.coefs), 1)]
    if jumps:
        factors.append((*(_terms_first(x.coefs) for x in jumps), -1))
    elif is_jax_array(rho):
        return _scanned(*factors[0][:2], rho)
    value = 0 * rho
    for k in reversed(range(a.coefs.shape[-1])):
        value = value * rho
        for x, y, sign in factors:
            value = value + sign * x[k, ...] * y[k, ...]
    return value


def _scanned(a: Array, b: Array, rho: Array) -> Array:
    """Horner's rule as one step of jax.lax.scan, which compiles fast."""
    from jax.lax import scan  # type: ignore[import-not-found]

    first = 0 * (rho + a[0, ...] + b[0, ...])
    return scan(lambda value, ab: (value * rho + ab[0] * ab[1], None), first, (a, b), reverse=True)[0]


def _terms_first(coefs: Array) -> Array:
    """A copy with the last axis first, so that each term is contiguous in memory."""
    xp = array_namespace(coefs)
    moved = xp.moveaxis(coefs, -1, 0)
    return xp.reshape(xp.reshape(moved, (-1,)), moved.shape)


# Pairs of singular parts.


def _singular_pair(a: Jumps, b: Jumps, rho: Array) -> Array:
    """The expectation of the product of two singular parts."""
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
    table = {(0, 0): _orthant(c, d, rho)}
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


def _orthant(c: Array, d: Array, rho: Array) -> Array:
    """P(t > c, u > d) for standard normal t, u of correlation rho, by Owen's T function (Owen 1956)."""
    from scipy.special import ndtr

    h, k, r = (np.asarray(x, dtype=float) for x in (-c, -d, rho))
    h, k = (np.where(x == 0, 1e-200, x) for x in (h, k))
    half = np.where(np.sign(h) * np.sign(k) < 0, 0.5, 0.0)
    return like((ndtr(h) + ndtr(k)) / 2 - _owen(h, k, r) - _owen(k, h, r) - half, rho)


def _owen(h: np.ndarray, k: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """Owen's T(h, (k - rho h) / (h sqrt(1 - rho^2))); the quotient may be infinite."""
    from scipy.special import owens_t

    root = np.sqrt((1 - rho) * (1 + rho))
    top = _minus(k, h, rho)
    with np.errstate(all="ignore"):
        return owens_t(h, np.where(top == 0, 0.0, top / h / root))
