"""E[f(z)] for a Gaussian vector z of a few variables and any f, by tensor rules in independent coordinates.

z = mean + F e, with e standard normal in as many dimensions as the covariance has rank. A smooth f takes the
trapezoid rule in every coordinate of e, inside a ball, which converges exponentially (Trefethen and Weideman,
SIAM Review 2014). Where f has kinks or jumps on planes, as products of relu, max and step have, the planes
are found, and the coordinates turned so that the innermost one crosses them all. Along it every line is cut
at the planes into pieces with Gauss-Legendre nodes. What is left is smooth but where two cuts meet: on planes
again, in one dimension less, and so on outwards. See `frames`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import log, sqrt

import numpy as np

from netsor.errors import DataError
from netsor.expect.quadrature.frames import MOST_PLANES, Rule, ball_rule, cut_rule, frame_of
from netsor.expect.quadrature.nodes import BLOCK, call
from netsor.expect.quadrature.planes import Planes, find_planes

__all__ = ["MOST_DIMENSIONS", "gaussian_expectation"]

Array = np.ndarray
Function = Callable[[Array], Array]

EPS = float(np.finfo(float).eps)
MOST_DIMENSIONS = 4
SINGULAR = 16 * EPS  # eigenvalues of a correlation matrix up to here are zero
FARTHEST = 36.0  # the density underflows at 38
FIRST_STEP = 1.4
SAFETY, LEAST_RATIO, FAST_RATIO, LUCK, ROUGH_SAFETY = 2.0, 0.1, 0.4, 0.25, 5.0
COARSE_STEPS = (0.1, 0.25, 0.6, 0.9)
EMPTY = np.zeros((0, 0)), np.zeros(0)
ROUNDS = 3
TINY = 1e-300


@dataclass(frozen=True)
class Estimate:
    """What is known of some entries: E[f], its error, and whether there is no more to do."""

    value: Array
    error: Array
    done: Array

    def put(self, at: Array, new: Estimate) -> None:
        """Take over what is better or not finite."""
        better = (new.error <= self.error[at]) | ~np.isfinite(new.value)
        for name in self.__dataclass_fields__:
            getattr(self, name)[at[better]] = getattr(new, name)[better]


@dataclass(frozen=True)
class Group:
    """Entries of the same rank and radius of the ball of e, with the errors that no refinement lowers."""

    at: Array
    rank: int
    reach: float
    floor: Array  # shape (entries,)

    def part(self, keep: Array) -> Group:
        return Group(self.at[keep], self.rank, self.reach, self.floor[keep])


def gaussian_expectation(
    fn: Function,
    mean: Array,
    cov: Array,
    *,
    tol: float = 1e-10,
    max_points: int = 2**21,
    planes: Planes | None = None,
) -> tuple[Array, Array]:
    """E[fn(z)] for z ~ N(mean, cov), and an estimate of its error that is meant to be an upper bound.

    `mean` has shape (..., d) and `cov` (..., d, d), of rank 4 at most; the results have shape (...). `fn` is
    elementwise: it takes z of shape (d, entries, points), so that z[0] is the first variable, and returns an
    array (entries, points). Rules are refined until the error is below `tol` E|fn(z)|, or until a rule would
    have more than `max_points` per entry; then the error is what was reached. `planes` are the kinks of `fn`
    if known, as from `find_planes`. Where `fn` is not finite at some node, neither is the value, and the
    error is infinite. Correlations are taken as singular where they are so up to 16 roundings. A variable
    of variance zero is a constant and costs nothing.

    >>> value, error = gaussian_expectation(lambda z: np.maximum(z[0], z[1]), np.zeros(2), np.eye(2))
    >>> bool(abs(value - np.pi**-0.5) <= error <= 1e-9)
    True
    """
    mean, cov = _checked(mean, cov)
    lead, d = mean.shape[:-1], mean.shape[-1]
    problem = _Problem(fn, mean.reshape(-1, d), *_factor(cov.reshape(-1, d, d)), min(max(tol, 64 * EPS), 0.1))
    found, groups = problem.constants(), problem.groups()
    known = _search(problem, found.done) if planes is None else planes
    for _ in range(ROUNDS):
        _improve(problem, groups, found, known, max_points)
        if found.done.all() or planes is not None:
            break
        more = problem.planes_near(int(np.argmax(np.where(found.done, -1.0, found.error))), known)
        if len(more) == len(known) and more.curved == known.curved:
            break
        known = more
    for group in groups:
        group = group.part(~found.done[group.at] & problem.near(group, known))
        found.put(group.at, problem.smooth(group, max_points, True))
    return found.value.reshape(lead), found.error.reshape(lead)


def _checked(mean: Array, cov: Array) -> tuple[Array, Array]:
    """The arguments as broadcast arrays of float64."""
    mean, cov = np.asarray(mean, float), np.asarray(cov, float)
    d = mean.shape[-1] if mean.ndim else 0
    if d == 0 or cov.shape[-2:] != (d, d):
        raise DataError(
            f"a mean of shape {mean.shape} and a covariance of shape {cov.shape} do not match",
            remedy="They are (..., d) and (..., d, d).",
        )
    if not (np.isfinite(mean).all() and np.isfinite(cov).all()):
        raise DataError(
            "a mean or a covariance to integrate over is not finite",
            remedy="An earlier layer overflowed or divided by zero: scale its weights.",
        )
    lead = np.broadcast_shapes(mean.shape[:-1], cov.shape[:-2])
    return np.broadcast_to(mean, (*lead, d)), np.broadcast_to(cov, (*lead, d, d))


def _factor(cov: Array) -> tuple[Array, Array, Array]:
    """F (B, d, d) with F F^T = cov and zero columns last, the rank, and F for slightly larger eigenvalues.

    The eigenvectors are those of the correlation matrix, so that variances of all sizes keep their digits.
    """
    std = np.sqrt(np.maximum(np.diagonal(cov, axis1=-2, axis2=-1), 0.0))
    inverse = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
    corr = cov * inverse[:, :, None] * inverse[:, None, :]
    values, vectors = np.linalg.eigh((corr + np.swapaxes(corr, -1, -2)) / 2)
    values, vectors = values[:, ::-1], vectors[:, :, ::-1]
    largest = np.max(std, axis=-1, keepdims=True, initial=0.0) ** 2
    constant = (np.abs(cov).max(axis=-1) > 1e-8 * largest) & (std == 0)
    if (values < -1e-8).any() or constant.any():
        raise DataError(
            f"a covariance is not positive semidefinite: eigenvalue {values.min():.2g} of its correlations",
            remedy="Negative eigenvalues are let pass up to 1e-8 only, as rounding.",
        )
    kept = values > SINGULAR
    if kept.sum(axis=-1).max(initial=0) > MOST_DIMENSIONS:
        raise DataError(
            f"a covariance of rank {kept.sum(axis=-1).max()} is too large for quadrature",
            remedy=f"Tensor rules go up to rank {MOST_DIMENSIONS}; sample instead.",
        )
    roots = [np.sqrt(np.where(kept, values + more, 0.0)) for more in (0.0, SINGULAR / 4)]
    factor, larger = (std[:, :, None] * vectors * root[:, None, :] for root in roots)
    return factor, larger, kept.sum(axis=-1)


@dataclass(frozen=True)
class _Problem:
    """A batch of expectations of one function."""

    fn: Function
    mean: Array  # shape (B, d)
    factor: Array  # shape (B, d, d)
    larger: Array  # shape (B, d, d)
    rank: Array  # shape (B,)
    tol: float

    def constants(self) -> Estimate:
        """The values of entries without variance; the others are open."""
        f = _values(self.fn, self.mean.T[:, :, None])[:, 0].copy()
        fixed = self.rank == 0
        return Estimate(f, np.where(fixed & np.isfinite(f), 4 * EPS * np.abs(f), np.inf), fixed)

    def groups(self) -> list[Group]:
        """The ball is the first one outside which E|f| is negligible, as its last two shells tell.

        Where f is zero at all nodes, what it is in a ball twice as large bounds what was not seen.
        """
        out = []
        for r in range(1, int(self.rank.max(initial=0)) + 1):
            at, reach = np.flatnonzero(self.rank == r), sqrt(2 * log(1 / self.tol)) + 1
            while len(at):
                x, w = ball_rule(r, COARSE_STEPS[r - 1], 0, reach) or EMPTY
                shells = [np.sum(x**2, axis=0) > (reach - k) ** 2 for k in (2, 1)]
                both, last = (self.sums(at, (x[:, shell], w[shell]))[1] for shell in shells)
                scale = self.sums(at, (x, w))[1]
                with np.errstate(all="ignore"):
                    tail = 3 * last * np.minimum(last / np.maximum(both - 2 * last, 1e-3 * last + TINY), 1e3)
                    far = (tail > self.tol / 8 * scale) & np.isfinite(scale) & (reach < FARTHEST)
                tail[scale == 0] = self.sums(at[scale == 0], (2 * x, np.full_like(w, 2**r * w.min())))[1]
                group = Group(at, r, reach, tail + self.rounding(at, (x, w))).part(~far)
                out += [group] if len(group.at) else []
                at, reach = at[far], min(1.15 * reach, FARTHEST)
        return out

    def rounding(self, at: Array, rule: Rule) -> Array:
        """What the rounding of z, of the sum and of the covariance does to the mean."""
        out, signs = np.zeros(len(at)), np.random.default_rng(0)
        for i, j in _blocks(len(at), len(rule[1]), self.mean.shape[1]):
            z, larger = (self.points(at[i], rule[0][:, j], F) for F in (self.factor, self.larger))
            moved = z * (1 + signs.choice([-1.0, 1.0], z.shape) * 2.0**-28)
            f, g, h = (_values(self.fn, x) for x in (z, larger, moved))
            with np.errstate(all="ignore"):
                rounded = EPS * (16 * np.abs(f) + 3 * 2.0**28 * np.abs(h - f))
                out[i] += np.abs((g - f) @ rule[1][j]) + rounded @ rule[1][j]
        return out

    def points(self, at: Array, nodes: Array, factor: Array) -> Array:
        """z (d, entries, points) at nodes e."""
        return np.moveaxis(self.mean[at, :, None] + factor[at, :, : len(nodes)] @ nodes, 1, 0)

    def sums(self, at: Array, rule: Rule) -> Array:
        """E[f] and E|f|, shape (2, entries)."""
        out = np.zeros((2, len(at)))
        for i, j in _blocks(len(at), len(rule[1]), self.mean.shape[1]):
            f = _values(self.fn, self.points(at[i], rule[0][:, j], self.factor))
            with np.errstate(all="ignore"):
                out[:, i] += f @ rule[1][j], np.abs(f) @ rule[1][j]
        return out

    def near(self, group: Group, planes: Planes) -> Array:
        """Which entries have a plane inside their ball."""
        n = planes.normals
        size = np.linalg.norm(n @ self.factor[group.at], axis=-1)
        return np.any(np.abs(planes.offsets - self.mean[group.at] @ n.T) < group.reach * size, axis=-1)

    def planes_near(self, entry: int, known: Planes) -> Planes:
        """The known planes, and those that are found where the entry is."""
        spread = np.linalg.norm(self.factor[entry], axis=1)
        return find_planes(self.fn, self.mean[entry], spread, known, MOST_PLANES[self.rank[entry] - 1])

    def smooth(self, group: Group, limit: int, rough: bool) -> Estimate:
        """Trapezoid rules, the same for all entries."""
        rule = lambda step, level: ball_rule(group.rank, step, level, group.reach, limit)  # noqa: E731
        return self.refine(group, rule, rough)

    def cut(self, one: Group, planes: Planes, limit: int) -> Estimate:
        """Rules cut at planes; in every other rule the planes are off by their slack, so that it shows."""
        n, mean = planes.normals, self.mean[one.at[0]]
        slack = planes.slack + 4 * EPS * (np.abs(n) @ np.abs(mean) + np.abs(planes.offsets))
        normals, offsets = n @ self.factor[one.at[0], :, : one.rank], planes.offsets - n @ mean
        sides = [frame_of(normals, offsets + side * slack, one.reach) for side in (0, 1)]
        rule = lambda step, level: cut_rule(sides[level % 2], step, level, one.reach, limit)  # noqa: E731
        return self.refine(one, rule, planes.curved or not sides[0].whole)

    def refine(self, group: Group, rule: Callable[[float, int], Rule | None], rough: bool) -> Estimate:
        """Finer and finer rules, until the tolerance is reached or there is no finer one."""
        value, error, scale = np.zeros(len(group.at)), np.full(len(group.at), np.inf), np.zeros(len(group.at))
        done, left = np.zeros(len(group.at), bool), np.arange(len(group.at))
        past, ratio = np.zeros((0, len(left))), 2 ** (-1 / min(max(group.rank, 2), 3))
        level = 0
        while len(left) and (now := rule(FIRST_STEP * ratio**level, level)):
            floor = group.floor[left]
            value[left], scale[left] = np.where(np.isfinite(floor), self.sums(group.at[left], now), np.nan)
            past, finite = np.concatenate([past, value[None, left]]), np.isfinite(value[left])
            change = _remaining(past, rough)
            error[left] = np.where(finite, change + floor, np.inf)
            enough = ~(rough | (scale[left] == 0)) | (now[1].size > 4 ** (group.rank + 4))
            small = change <= np.maximum(self.tol * scale[left], floor)
            done[left] = ~finite | (level > 2) & small & enough
            past, left, level = past[:, ~done[left]], left[~done[left]], level + 1
        return Estimate(value, error, done)


def _values(fn: Function, z: Array) -> Array:
    """fn(z) as floats, without warnings: it may overflow on its way to a finite value."""
    return np.broadcast_to(np.asarray(call(fn, z), float), z.shape[1:])


def _blocks(entries: int, points: int, d: int) -> list[tuple[slice, slice]]:
    """Parts of a batch whose arrays are not larger than BLOCK."""
    width = min(points, BLOCK // d)
    height = max(BLOCK // (d * max(width, 1)), 1)
    rows, columns = range(0, entries, height), range(0, points, max(width, 1))
    return [(slice(i, i + height), slice(j, j + width)) for i in rows for j in columns]


def _remaining(past: Array, rough: bool) -> Array:
    """The error of the last of ever finer rules, from their differences and how fast these fall.

    Differences that fall by a factor q leave q/(1 - q) times the last one. The factor is the worse of the
    last two, and a last difference that is far below what the factor says is taken for luck. Where f is
    rough, or the differences fall slowly, the larger one of the last two counts.
    """
    if len(past) < 4:
        return np.full(past.shape[1], np.inf)
    with np.errstate(invalid="ignore"):
        e0, e1, e2 = np.maximum(np.abs(np.diff(past[-4:], axis=0)), TINY)
    q = np.maximum(e1 / e0, e2 / e1)
    p = np.clip(q, LEAST_RATIO, FAST_RATIO)
    fast = SAFETY * np.maximum(e2, LUCK * p * e1) * p / (1 - p)
    return np.where((q > FAST_RATIO) | rough, ROUGH_SAFETY * np.maximum(e1, e2), fast)


def _search(problem: _Problem, done: Array) -> Planes:
    """The planes with kinks near the entries of the least and of the largest variance."""
    none = Planes.none(problem.mean.shape[1])
    size = np.where(done, np.nan, np.linalg.norm(problem.factor, axis=(1, 2)))
    refs = set() if done.all() else {int(np.nanargmax(size)), int(np.nanargmin(size))}
    return reduce(lambda known, entry: problem.planes_near(entry, known), sorted(refs), none)


def _improve(problem: _Problem, groups: list[Group], found: Estimate, planes: Planes, limit: int) -> None:
    """Estimate the open entries: with rules cut at the planes, or without where there are none near."""
    for group in groups:
        group = group.part(~found.done[group.at])
        near = problem.near(group, planes)
        flat = group.part(~near)
        found.put(flat.at, problem.smooth(flat, limit, planes.curved))
        for i in np.flatnonzero(near):
            one = group.part(np.array([i]))
            found.put(one.at, problem.cut(one, planes, limit))
