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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from netsor.expect.hermite.jumps import (
    JUMP_ORDERS,
    MOST_JUMPS,
    Jumps,
    at_index,
    derivative_jumps,
    singular_coefs,
    useful_jumps,
    without_jumps,
)
from netsor.expect.quadrature.cells import Cells, cells, scale_for
from netsor.expect.quadrature.line import (
    FIRST_LEVEL,
    REACHES,
    TRACED_LEVEL,
    Sums,
    any_above,
    choose_reach,
    last_level,
    least_level,
    trapezoid,
    two_levels,
)
from netsor.expect.quadrature.nodes import Array, Function, call, eps_of, like, norm
from netsor.expect.quadrature.splits import kink_places
from netsor.lang.libraries import array_namespace, is_traced

__all__ = ["Series", "concat", "series", "series_like", "singular_part", "within_reach"]

SHORTER = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)
TERMS, TERMS_OF_MANY = (32, 512, 2048, 4096), (32, 64, 128, 256, 512)
SURE_TERMS, TRACED_TERMS = 512, 256
MOST_SPLITS = 96  # kinks; with more of them, the trapezoid rule is no worse for its cost
MOST_ENTRIES = 2**26  # of a table of Hermite functions at all nodes: about a second
COEFFICIENTS = 2**23  # 64 MB: with more coefficients than that, series are kept short
SLOW = 5e-2  # a series that leaves out so much of f after 512 terms is made no longer
ROUNDING = 32  # of E[f^2] - sum_k a_k^2, which is noise of 2 units, and of 10 at the worst of 2,000 inputs
MANY, FEW = 256, 9  # of many inputs, so many tell which rule and length suit all of them


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
        return Series(*(at_index(getattr(self, field.name), index) for field in fields(self)))

    @property
    def rest(self) -> float:
        """The largest part of E[f^2] over all inputs that a sum of two such series may leave out."""
        return rest_of_pair(*(dict(self.rests or rests_of(self))[self.coefs.shape[-1]],) * 2)


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
    trusted: bool = False,
    finest: float = 0.0,
) -> Series:
    """The Hermite series of f at inputs of mean m and variance q, arrays of shape (...,).

    `fn` is elementwise and is called on arrays of shape (..., nodes); `kinks` are the places where f or one
    of its first derivatives jumps; `alone` says that f is the same function for all inputs. With `terms=None`
    the series is as long as `tol` asks, relative to sqrt(E[f^2]), up to 512 terms, and up to 4096 for few
    inputs (`inputs` says how many there will be, if not those of m). Inside jax.jit, where nothing can adapt,
    the rule is fixed and there are 256 terms: see errors.

    A wave or a spike that falls between the nodes is not seen, and Parseval's equality certifies a series
    only if E[f^2] is right. So a function of which nothing is known is taken apart into cells where it is a
    polynomial, and looked at down to a scale of 2e-5 standard deviations (see `cells`). Functions whose
    finest structure is known to be of order 1 may be `trusted`: they take equal steps, and cells only if
    the variance is so large that these do not settle. Nothing of f but jumps and kinks is narrower than
    `finest`: it need not be looked at more closely.
    """
    xp = array_namespace(m, q)
    m, q = xp.broadcast_arrays(m, q)
    s = xp.sqrt(xp.where(q > 0, q, xp.ones_like(q)))
    if is_traced(m, q):
        target = Target(fn, tuple(sorted(set(kinks))))
        found = _at_level(target, m, s, terms or TRACED_TERMS, TRACED_LEVEL, REACHES[1])[0]
    else:
        kinks = within_reach(kinks, m, s)
        target = Target(fn, tuple(sorted(set(kinks))), max(tol, 32 * eps_of(m)), alone, finest)
        rungs = _rungs(inputs or prod(m.shape), kinks) if terms is None else (terms,)
        if trusted or not m.size:
            found = _adaptive(target, m, s, rungs)
        else:
            found = _in_library(_by_cells(target, np.asarray(m), np.asarray(s), rungs), m)
    found = _with_constants(fn, m, q, found)
    return found if is_traced(m, q) or not found.tail.size else replace(found, rests=rests_of(found))


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


def rests_of(found: Series) -> tuple[tuple[int, Any], ...]:
    """What the series and its shorter versions leave out: their lengths and largest relative tails."""
    most = found.coefs.shape[-1]
    counts = (*(k for k in SHORTER if k < most), most)
    if found.jumps is not None:
        return tuple((k, _relative(cut(found, k))) for k in counts)
    xp = array_namespace(found.coefs)
    pieces = [found.coefs[..., a:b] for a, b in pairwise(counts)]
    tails = [found.tail**2]
    for piece in reversed(pieces):  # the longest first
        tails.append(tails[-1] + xp.sum(piece**2, axis=-1))
    size = xp.sqrt(xp.where(found.square > 0, found.square, xp.ones_like(found.square)))
    rests = [(float(xp.max(xp.sqrt(tail) / size)), None) for tail in reversed(tails)]
    return tuple(zip(counts, rests, strict=True))


@dataclass(frozen=True)
class Target:
    """A function to expand, and how well; see `series`."""

    fn: Function
    kinks: tuple[float, ...]
    tol: float = 0.0
    alone: bool = False
    finest: float = 0.0


def within_reach(kinks: Sequence[float], m: Array, s: Array) -> tuple[float, ...]:
    """The kinks that matter to some input, or none at all if they are too many to split panels at."""
    if not kinks or not m.size:
        return ()
    xp = array_namespace(m, s)
    low, high = float(xp.min(m - REACHES[-1] * s)), float(xp.max(m + REACHES[-1] * s))
    near = tuple(k for k in kinks if low <= k <= high)
    return near if len(near) <= MOST_SPLITS else ()


def _adaptive(target: Target, m: Array, s: Array, rungs: tuple[int, ...]) -> Series:
    """Refine the step and lengthen the series until each error is below its tolerance, else by cells."""
    reach, level = choose_reach(target.fn, m, s), FIRST_LEVEL
    first, *others = rungs
    few = _few(m, s) if target.alone and others else None
    if few is not None:  # they tell where to begin
        model = _adaptive(replace(target, alone=False), *few, rungs)
        first, level = model.coefs.shape[-1], model.rule[0]
        others = [count for count in others if count > first]
    found, level, settled = _refined(target, m, s, first, level, reach)
    while settled and others and not _is_long_enough(found, target.tol):
        few = None
        found, level, settled = _refined(target, m, s, others.pop(0), level, reach)
    if not settled:
        return _by_cells(target, m, s, rungs)
    found = replace(found, rule=(level, reach))
    return found if len(rungs) == 1 or few is not None else _shortest(found, target.tol)


def _few(m: Array, s: Array) -> tuple[Array, Array] | None:
    """Of many inputs some, with the smallest and largest means and deviations."""
    if not isinstance(m, np.ndarray) or m.size < MANY:
        return None
    mean, deviation = m.reshape(-1), s.reshape(-1)
    places = np.linspace(0, m.size - 1, FEW).astype(int)
    chosen = np.unique(np.concatenate([np.argsort(x)[places] for x in (mean, deviation)]))
    return mean[chosen], deviation[chosen]


def _refined(
    target: Target, m: Array, s: Array, terms: int, level: int, reach: int
) -> tuple[Series, int, bool]:
    """The series by the first rule from `level` on that differs little from the coarser one, if one does."""
    xp, level = array_namespace(m, s), max(level, least_level(terms))
    last = max(last_level(target.kinks), level)
    while True:
        found, change = _at_level(target, m, s, terms, level, reach)
        rough = any_above(change, target.tol * xp.sqrt(found.square))
        if not rough or level == last:
            break
        level += 1

    def square(fn: Function) -> Array:
        return two_levels(fn, m, s, 1, level, reach, target.kinks)[0].square

    return _with_jumps(target, m, s, found, reach, square), level, not rough


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
    return not any_above(rest_of_pair(tails(found), tails(found)), tol * found.square)


def _shortest(found: Series, tol: float) -> Series:
    """The series with as few terms as the tolerance allows."""
    cuts = (cut(found, terms) for terms in SHORTER if terms < found.coefs.shape[-1])
    return next((cut for cut in cuts if _is_long_enough(cut, tol)), found)


def _at_level(target: Target, m: Array, s: Array, terms: int, level: int, reach: int) -> tuple[Series, Array]:
    """The series by one rule, and its distance to the coarser rule, which with rounding bounds the error."""
    fine, coarse = two_levels(target.fn, m, s, terms, level, reach, target.kinks)
    change, moved = norm(fine.coefs - coarse.coefs), array_namespace(m, s).abs(fine.square - coarse.square)
    return _from_sums(fine, change, moved), change


def _from_sums(sums: Sums, miss: Array, moved: Array) -> Series:
    """The series whose coefficients may be off by `miss`, and E[f^2] by `moved`.

    An error e of f is one of 2 |f| e in E[f^2], so what that has moved counts in the error, too.
    """
    xp, eps, size = array_namespace(sums.square), eps_of(sums.square), sums.square**0.5
    rounding = eps * (8 * size + xp.sqrt(sums.slope))
    tail = _tail(sums.square, sums.coefs, moved + ROUNDING * eps * sums.square, rounding)
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


def _with_jumps(
    target: Target, m: Array, s: Array, found: Series, reach: int, square: Callable[[Function], Array]
) -> Series:
    """Add the singular part, if it has not too many kinks; `square` gives E of the square of the rest."""
    fn, kinks = target.fn, target.kinks
    if not 0 < len(kinks) <= MOST_JUMPS:
        return found
    part, jumps = singular_part(fn, kinks, m, s, found, reach)
    rest = square(without_jumps(fn, jumps, part.orders, kinks))
    rounding = 2 * found.error + 8 * eps_of(m) * part.scale
    doubt = 8 * eps_of(m) * rest + rounding * rest**0.5
    return replace(found, jumps=replace(part, tail=_tail(rest, found.coefs - part.coefs, doubt, rounding)))


def singular_part(
    fn: Function, kinks: Sequence[float], m: Array, s: Array, found: Series, reach: int
) -> tuple[Jumps, Array]:
    """The singular part of f at each input, with the tail still that of f, and the jumps in units of x."""
    xp = array_namespace(m, s)
    places = kink_places(m, s, kinks, reach)
    jumps, scale = useful_jumps(derivative_jumps(fn, m, kinks), s, places, found.square, reach)
    sizes = jumps * s[..., None, None] ** like(range(JUMP_ORDERS), m)
    orders = tuple(p for p in range(JUMP_ORDERS) if bool(xp.any(sizes[..., p] != 0)))
    coefs = singular_coefs(places, sizes, found.coefs.shape[-1])
    return Jumps(places, sizes, coefs, found.tail, scale, orders), jumps


# By cells.


def _in_library(found: Series, x: Array) -> Series:
    """A series of NumPy arrays as one of the library of x."""
    if isinstance(x, np.ndarray):
        return found

    def converted(thing: Any) -> Any:
        own = ((field.name, getattr(thing, field.name)) for field in fields(thing))
        return replace(thing, **{name: like(a, x) for name, a in own if isinstance(a, np.ndarray)})

    return replace(converted(found), jumps=found.jumps and converted(found.jumps))


def _by_cells(target: Target, m: Array, s: Array, rungs: tuple[int, ...]) -> Series:
    """The series from cells on which f is a polynomial; each input has its own, if f is the same for all."""
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
    lengths, nodes = list(rungs[-max(1, len(rungs) - 1) :]), sum(part.cells.nodes.size for part in parts)
    while True:
        terms = lengths.pop(0)
        found = concat([part.series(terms) for part in parts], axis=0)
        slow = terms > SURE_TERMS and any_above(found.tail, SLOW * found.square**0.5)
        far = 2 * terms * nodes > MOST_ENTRIES
        if not lengths or slow or far or _is_long_enough(found, target.tol):
            break
    found = found if len(rungs) == 1 else _shortest(found, target.tol)
    return found if back is None else found[(back.reshape(m.shape), *(0,) * (m.ndim - 1))]


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
        found = _from_sums(sums, self._native(miss), self._native(moved))
        return _with_jumps(self.target, self.m, self.s, found, self.reach, self._square)

    def _square(self, fn: Function) -> Array:
        values = _on_line(fn, self.m, self.s, self.cells.nodes.reshape(-1))
        return self._native(self.cells.square(values))

    def _native(self, x: np.ndarray) -> Array:
        return like(x.reshape(self.m.shape + x.shape[1:]), self.m)


def _on_line(fn: Function, m: Array, s: Array, t: np.ndarray) -> np.ndarray:
    """f(m + s t), shape (inputs, nodes)."""
    y = call(fn, m[..., None] + s[..., None] * like(t, m))
    return np.asarray(y, float).reshape(prod(m.shape), len(t))


# Shorter series.


def cut(a: Series, terms: int, tails: bool = True) -> Series:
    """The series with `terms` terms; the others go to the tails, unless nobody asks for these."""
    if terms >= a.coefs.shape[-1]:
        return a
    tail, jumps = a.tail, a.jumps
    if tails:
        tail = _longer_tail(tail, a.coefs[..., terms:])
    if jumps is not None:
        rest = jumps.tail
        if tails:
            rest = _longer_tail(rest, a.coefs[..., terms:] - jumps.coefs[..., terms:])
        jumps = replace(jumps, coefs=jumps.coefs[..., :terms], tail=rest)
    return replace(a, coefs=a.coefs[..., :terms], tail=tail, jumps=jumps, rests=())


def _longer_tail(tail: Array, omitted: Array) -> Array:
    xp = array_namespace(tail)
    return xp.sqrt(tail**2 + xp.vecdot(omitted, omitted))


def tails(a: Series) -> tuple[Array, Array | None]:
    """The norms of what the series leaves out of f, and out of f minus its singular part."""
    return a.tail, None if a.jumps is None else a.jumps.tail


def _relative(a: Series) -> tuple[float, float | None]:
    """The largest tails over all inputs, relative to sqrt(E[f^2])."""
    xp = array_namespace(a.tail)
    size = xp.sqrt(xp.where(a.square > 0, a.square, xp.ones_like(a.square)))
    whole, rest = tails(a)
    return float(xp.max(whole / size)), None if rest is None else float(xp.max(rest / size))


def rest_of_pair(a: tuple[Any, Any], b: tuple[Any, Any]) -> Any:
    """A bound of |sum_{k >= K} a_k b_k|, or without the product c d of singular parts a = c + r, b = d + p.

    a b - c d = a p + r b - r p, and each sum is at most the product of the norms.
    """
    (tail_a, rest_a), (tail_b, rest_b) = a, b
    if rest_a is None or rest_b is None:
        return tail_a * tail_b
    return tail_a * rest_b + rest_a * tail_b + rest_a * rest_b
