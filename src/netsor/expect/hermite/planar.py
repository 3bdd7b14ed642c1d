"""E[f(x) g(y)] of Gaussian x and y of two variables each, by Hermite series in the plane.

In independent coordinates f is a sum of products h_k h_l with coefficients a_kl, which a rule in the plane
gives, cut at the kinks of f. Where the coordinates of x and y are correlated by s and t, and by nothing else,
E[f g] = sum a_kl b_kl s^k t^l; so they are turned by the singular vectors of their correlations. A rotation
acts on the coefficients of each degree n = k + l alone, as exp(angle G) with a G that is tridiagonal. So one
integral in the plane for each input is in place of one in four dimensions for each pair, and what the degrees
above n leave out is at most s^(n + 1) times the norms of what they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from netsor.expect.quadrature.frames import MOST_PLANES, Rule, cut_rule, frame_of
from netsor.expect.quadrature.nodes import call, hermite_functions
from netsor.expect.quadrature.planes import Planes, find_planes

__all__ = ["PlanarFunction", "planar_expectation"]

Array = np.ndarray
Function = Callable[[Array], Array]

EPS = float(np.finfo(float).eps)
DEGREE = 144  # the last one: (degree + 1)^3 / 3 numbers are kept for rotations
REACH = 11.5  # sqrt(density) is 1e-14 there
STEPS = 0.35, 0.25, 0.18, 0.125, 0.09, 0.0625
MOST_POINTS = 2**18
SINGULAR, FLAT = 16 * EPS, 1e-9  # eigenvalues of correlations that are 0, and that are too small to divide by
SAFETY, ROUNDING = 4.0, 64 * EPS
DENSE, NEAR = 4, 1.5  # sizes of tables over those of rules, and of inputs whose kinks are alike
BLOCK, KEPT = 2**13, 128  # points at a time, and series that are kept


class PlanarFunction:
    """A function of z (2, inputs, points), and the lines with its kinks, which are searched if not known."""

    def __init__(self, fn: Function, planes: Planes | None) -> None:
        self.fn, self.known = fn, planes is not None
        self.planes, self.searched = Planes.none(2) if planes is None else planes, (np.inf, 0.0)

    def look(self, mean: Array, cov: Array) -> None:
        """Search near the inputs of the least and of the largest variance, unless they are as before."""
        spread = np.sqrt(np.maximum(np.diagonal(cov, axis1=-2, axis2=-1), 0.0))
        size = np.linalg.norm(spread, axis=-1)
        for i in () if self.known else sorted({int(np.argmin(size)), int(np.argmax(size))}):
            low, high = self.searched
            if not low / NEAR <= size[i] <= high * NEAR:
                self.planes = find_planes(self.fn, mean[i], spread[i], self.planes, MOST_PLANES[1])
                self.searched = min(low, size[i]), max(high, size[i])


@dataclass(frozen=True)
class Inputs:
    """The different x of all entries: mean + factor e with independent coordinates e = inverse (x - mean)."""

    mean: Array  # shape (inputs, 2)
    factor: Array  # shape (inputs, 2, 2)
    inverse: Array  # shape (inputs, 2, 2)
    least: Array  # shape (inputs,): the least eigenvalue of the correlations that is not 0
    which: Array  # shape (entries,): the input of each

    @classmethod
    def of(cls, mean: Array, cov: Array) -> Inputs:
        found, which = np.unique(np.column_stack([mean, cov.reshape(-1, 4)]), axis=0, return_inverse=True)
        C = found[:, 2:].reshape(-1, 2, 2)
        std = np.sqrt(np.maximum(np.diagonal(C, axis1=1, axis2=2), 0.0))
        scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
        values, vectors = np.linalg.eigh(C * scale[:, :, None] * scale[:, None, :])
        kept = values > SINGULAR
        root = np.sqrt(np.where(kept, values, 0.0))
        under = np.divide(1.0, root, out=np.zeros_like(root), where=kept)
        inverse = under[:, :, None] * np.swapaxes(vectors, 1, 2) * scale[:, None, :]
        least = np.where(kept, values, 1.0).min(axis=1)
        return cls(found[:, :2], std[:, :, None] * vectors * root[:, None, :], inverse, least, which.ravel())


@dataclass(frozen=True)
class Series:
    """Coefficients of f at the inputs of some entries, in the coordinates axes.T e, up to a degree."""

    coefs: Array  # shape (entries, DEGREE + 1, DEGREE + 1)
    error: Array  # shape (entries,): in norm
    rest: Array  # shape (entries,): the norm of what is above the degree, or more
    axes: Array  # shape (entries, 2, 2)

    @classmethod
    def of(cls, function: PlanarFunction, inputs: Inputs, tol: float) -> Series:
        function.look(inputs.mean, inputs.factor @ np.swapaxes(inputs.factor, 1, 2))
        rows = zip(inputs.mean, inputs.factor, inputs.inverse, strict=True)
        made = [_coefs(function, len(function.planes), tol, *(x.tobytes() for x in row)) for row in rows]
        return cls(*(np.stack(parts)[inputs.which] for parts in zip(*made, strict=True)))

    @property
    def norm(self) -> Array:
        return np.linalg.norm(self.coefs, axis=(1, 2))

    @property
    def by_degree(self) -> Array:
        """The norms of the coefficients of each degree, shape (entries, DEGREE + 1)."""
        k = np.arange(DEGREE + 1)
        return np.stack(
            [np.linalg.norm(self.coefs[:, k[: n + 1], n - k[: n + 1]], axis=1) for n in k], axis=1
        )

    def turned(self, n: int, angle: Array) -> Array:
        """The coefficients of degree n in coordinates that are turned by an angle (entries,)."""
        k = np.arange(n + 1)
        values, vectors = _generator(n)
        spectrum = (self.coefs[:, k, n - k] * 1j**k) @ vectors * np.exp(1j * angle[:, None] * values)
        return (spectrum @ vectors.T / 1j**k).real


def planar_expectation(
    f: PlanarFunction, g: PlanarFunction, mean: Array, cov: Array, tol: float = 1e-9
) -> tuple[Array, Array, Array]:
    """E[f(x) g(y)], a bound of its error, and sqrt(E[f^2] E[g^2]), all of shape (entries,).

    `mean` (entries, 4) and `cov` (entries, 4, 4) are those of x and y. Rules are refined until they are off
    by `tol` times the last one of the results; the error is infinite where there is no rule.
    """
    x, y = Inputs.of(mean[:, :2], cov[:, :2, :2]), Inputs.of(mean[:, 2:], cov[:, 2:, 2:])
    left, right = Series.of(f, x, tol), Series.of(g, y, tol)
    across = x.inverse[x.which] @ cov[:, :2, 2:] @ np.swapaxes(y.inverse[y.which], 1, 2)
    least = np.minimum(x.least[x.which], y.least[y.which])
    value, error, size = _paired(left, right, np.swapaxes(left.axes, 1, 2) @ across @ right.axes, least)
    return value, np.where(least > FLAT, error, np.inf), size


@lru_cache(maxsize=KEPT)
def _coefs(
    function: PlanarFunction, lines: int, tol: float, *row: bytes
) -> tuple[Array, float, float, Array]:
    """Coefficients at one input, their error, the norm of the rest, and axes: finer rules until they settle.

    In every other rule the planes are off by their slack, so that it shows.
    """
    mean, factor, inverse = (
        np.frombuffer(x).reshape(s) for x, s in zip(row, (2, (2, 2), (2, 2)), strict=True)
    )
    planes, n = function.planes, function.planes.normals
    slack = planes.slack + 4 * EPS * (np.abs(n) @ np.abs(mean) + np.abs(planes.offsets))
    sides = [frame_of(n @ factor, planes.offsets - n @ mean + side * slack, REACH) for side in (0, 1)]
    axes, frames = sides[0].axes, [replace(frame, axes=np.eye(2)) for frame in sides]
    whole = sides[0].whole and not planes.curved and np.array_equal(axes, sides[1].axes)
    coefs, square, error, rest = np.zeros((DEGREE + 1, DEGREE + 1)), 0.0, np.inf, np.inf
    for level, step in enumerate(STEPS if whole else ()):
        rule = cut_rule(frames[level % 2], step, level, REACH, MOST_POINTS, ball=False)
        if rule is None:
            break
        before, last = coefs, square
        coefs, square, edge = _sums(function.fn, mean, factor @ axes, rule)
        if not np.isfinite(square):
            return before, np.inf, np.inf, axes
        error = SAFETY * float(np.linalg.norm(coefs - before)) + edge**0.5 if level else np.inf
        rest = max(square - float(np.sum(coefs**2)), 0.0) + SAFETY * abs(square - last) + ROUNDING * square
        if error <= tol / 4 * square**0.5:
            break
    k = np.arange(DEGREE + 1)
    slope = float(np.sum((k[:, None] + k) * coefs**2)) ** 0.5
    moved = EPS * float(np.linalg.norm(inverse @ mean)) * slope  # by the rounding of x
    return coefs, error + 4 * moved, rest**0.5, axes


def _sums(fn: Function, mean: Array, factor: Array, rule: Rule) -> tuple[Array, float, float]:
    """The coefficients that a rule gives, E[f^2], and how much of that lies at the edge.

    First the sums along the lines of the rule, then those over the lines.
    """
    (x, line), (y, node) = (np.unique(t, return_inverse=True) for t in rule[0])
    terms, square, edge = [], 0.0, 0.0
    for at in range(0, rule[1].size, BLOCK):
        e, w = rule[0][:, at : at + BLOCK], rule[1][at : at + BLOCK]
        f = np.broadcast_to(call(fn, (mean[:, None] + factor @ e)[:, None]), (1, w.size))[0]
        with np.errstate(all="ignore"):
            terms.append(w * f)
            square += float(terms[-1] @ f)
            edge += float(terms[-1] @ (f * (np.abs(e).max(axis=0) > REACH - 1)))
    values = np.concatenate(terms)
    if not np.isfinite(square):
        return np.zeros((DEGREE + 1, DEGREE + 1)), square, edge
    if len(x) * len(y) <= DENSE * len(values):
        table = np.zeros((len(x), len(y)))
        table[line, node] = values
        along = table @ _hermite(y, np.ones_like(y)).T
    else:
        order = np.argsort(line, kind="stable")
        starts = np.flatnonzero(np.diff(line[order], prepend=-1))
        along = np.add.reduceat(_hermite(rule[0][1, order], values[order]), starts, axis=1).T
    coefs, k = _hermite(x, np.ones_like(x)) @ along, np.arange(DEGREE + 1)
    return np.where(k[:, None] + k <= DEGREE, coefs, 0.0), square, edge


def _hermite(t: Array, first: Array) -> Array:
    return np.stack(list(hermite_functions(t, first, DEGREE + 1)))


def _paired(f: Series, g: Series, across: Array, least: Array) -> tuple[Array, Array, Array]:
    """E[f g], its error, and sqrt(E[f^2] E[g^2])."""
    U, s, V = np.linalg.svd(across)
    s, turns = np.minimum(s, 1.0), (U, np.swapaxes(V, 1, 2))
    angles = [np.arctan2(Q[:, 1, 0], Q[:, 0, 0]) for Q in turns]
    signed = s[:, 1] * np.prod([np.sign(np.linalg.det(Q)) for Q in turns], axis=0)
    size = np.hypot(f.norm, f.rest) * np.hypot(g.norm, g.rest)
    value, norms, degrees = np.zeros(len(s)), f.by_degree * g.by_degree, np.arange(DEGREE + 1)
    most = (norms * s[:, :1] ** degrees)[:, ::-1].cumsum(axis=1)[
        :, ::-1
    ]  # of what a degree and those above give
    for n in map(int, np.flatnonzero(np.any(most > EPS * size[:, None], axis=0))):
        k, a, b = np.arange(n + 1), f.turned(n, angles[0]), g.turned(n, angles[1])
        value += np.sum(a * b * s[:, :1] ** k * signed[:, None] ** (n - k), axis=1)
    slope = norms @ degrees
    with np.errstate(all="ignore"):
        error = f.error * (g.norm + g.error) + g.error * f.norm + s[:, 0] ** (DEGREE + 1) * f.rest * g.rest
        error += ROUNDING * (size + slope / least)
    known = np.isfinite(error)
    return value, np.where(known, error, np.inf), np.where(known, size, 0.0)


@lru_cache(maxsize=DEGREE + 1)
def _generator(n: int) -> tuple[Array, Array]:
    """Eigenvalues and -vectors of the generator of rotations of degree n, in the basis i^k h_k h_(n - k)."""
    k = np.arange(n)
    beside = np.sqrt((k + 1.0) * (n - k))
    values, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return np.round(values), vectors
