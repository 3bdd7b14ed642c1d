"""E[f(x) g(y)] of Gaussian x and y of two variables each, by rules in the plane.

If all four variables are functions of two independent ones, as for an input with itself, a rule in the plane
of these two gives the expectation. Otherwise f is a series of products h_k h_l in independent coordinates
with coefficients a_kl, one integral in the plane each. If the coordinates of x and y have the correlations s
and t with each other and no others,

    E[f g] = sum a_kl b_kl s^k t^l                                           (Mehler)

So the singular vectors of the correlations rotate the coordinates first. A rotation maps the coefficients of
each degree n = k + l to themselves, as exp(angle G) with a tridiagonal G. The degrees above n contribute at
most s^(n + 1) times the product of their norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log, sqrt

import numpy as np

from netsor.errors import DataError
from netsor.expect.quadrature.hermite_functions import Function, call, hermite_functions
from netsor.expect.quadrature.kink_lines import Lines, find_lines
from netsor.expect.quadrature.plane_rules import Frame, Rule, frame_of, plane_rule

Array = np.ndarray
EPS = float(np.finfo(float).eps)
DEGREE = 144  # the highest degree of a series: rotations take (DEGREE + 1)^3 / 3 numbers
REACH = 11.5  # half the width of the square: the square root of the density is 1e-14 at its edge
STEPS = 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.125, 0.09, 0.0625  # step sizes of finer and finer rules
MOST_POINTS = 2**18  # largest number of points of a rule
BLOCK = 2**15  # points that are evaluated at a time
X, Y = slice(0, 2), slice(2, 4)  # the variables of f and of g


class PlanarFunction:
    """A function of z (2, entries, points), and the lines of its kinks; `None` lets a search find them."""

    def __init__(self, fn: Function, lines: Lines | None) -> None:
        self.fn, self.is_known = fn, lines is not None
        self.lines, self.searched = Lines.none() if lines is None else lines, (np.inf, 0.0)

    def search(self, mean: Array, cov: Array) -> None:
        """Search for kinks near the inputs of least and largest variance, unless that was done before."""
        spread = np.sqrt(np.maximum(np.diagonal(cov, axis1=-2, axis2=-1), 0.0))
        size = np.linalg.norm(spread, axis=-1)
        for i in () if self.is_known else sorted({int(np.argmin(size)), int(np.argmax(size))}):
            low, high = self.searched
            if size[i] and not low / 1.5 <= size[i] <= high * 1.5:
                self.lines = find_lines(self.fn, mean[i], spread[i], self.lines)
                self.searched = min(low, size[i]), max(high, size[i])


def planar_expectation(
    f: PlanarFunction, g: PlanarFunction, mean: Array, cov: Array, tol: float = 1e-9
) -> tuple[Array, Array, Array]:
    """E[f(x) g(y)], a bound of its error, and sqrt(E[f^2] E[g^2]), all of shape (entries,).

    `mean` (entries, 4) and `cov` (entries, 4, 4) are the law of (x, y). Rules are refined until their error
    is below `tol` times the size, the last result. The error is infinite if no rule applies.

    >>> larger = PlanarFunction(lambda z: np.maximum(z[0], z[1]), None)
    >>> one = PlanarFunction(lambda z: np.ones(z.shape[1:]), Lines.none())
    >>> value, error, _ = planar_expectation(larger, one, np.zeros((1, 4)), np.diag([1.0, 1, 0, 0])[None])
    >>> bool(abs(value[0] - np.pi**-0.5) <= error[0] <= 1e-8)
    True
    """
    if not (np.isfinite(mean).all() and np.isfinite(cov).all()):
        raise DataError(
            "a mean or a covariance to integrate over is not finite",
            remedy="An earlier layer overflowed or divided by zero: scale its weights.",
        )
    f.search(mean[:, X], cov[:, X, X])
    g.search(mean[:, Y], cov[:, Y, Y])
    factor, _, values = _factor(cov)
    if (values < -1e-8).any():
        raise DataError(
            f"a covariance is not positive semidefinite: eigenvalue {values.min():.2g} of its correlations",
            remedy="Negative eigenvalues are let pass up to 1e-8 only, as rounding.",
        )
    results = np.zeros((3, len(mean)))
    # If x and y span at most two dimensions together, f g is itself a function in a plane.
    flat = np.count_nonzero(factor.any(axis=1), axis=1) <= 2
    for which, method in ((flat, _direct), (~flat, _by_series)):
        if which.any():
            results[:, which] = method(f, g, mean[which], cov[which], tol)
    return results[0], results[1], results[2]


def _factor(cov: Array, shift: float = 0.0) -> tuple[Array, Array, Array]:
    """Return F with F F^T = cov, its left inverse, and the eigenvalues of the correlations, largest first.

    The eigenvectors are those of the correlations, so that variances of all sizes keep their digits.
    Eigenvalues that are zero up to rounding count as zero; `shift` is added to the others.
    """
    std = np.sqrt(np.maximum(np.diagonal(cov, axis1=1, axis2=2), 0.0))
    scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
    values, vectors = np.linalg.eigh(cov * scale[:, :, None] * scale[:, None, :])
    values, vectors = values[:, ::-1], vectors[:, :, ::-1]
    root = np.sqrt(np.where(values > 16 * EPS, values + shift, 0.0))
    under = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
    inverse = under[:, :, None] * np.swapaxes(vectors, 1, 2) * scale[:, None, :]
    return std[:, :, None] * vectors * root[:, None, :], inverse, values


def _frames(lines: Lines, mean: Array, factor: Array, reach: float) -> tuple[Frame, Frame]:
    """Return the frame of the lines, and the frame of lines moved by their slack, to show its effect."""
    slack = lines.slack + 4 * EPS * (np.abs(lines.normals) @ np.abs(mean) + np.abs(lines.offsets))
    normals, offsets = lines.normals @ factor, lines.offsets - lines.normals @ mean
    one, two = (frame_of(normals, offsets + side * slack, reach) for side in (0, 1))
    return one, two


# Rules for f g, where x and y are functions of two independent variables.


@dataclass(frozen=True)
class _PlanarProduct:
    """f(x) g(y) where (x, y) = mean + factor e."""

    f: PlanarFunction
    g: PlanarFunction
    mean: Array  # shape (entries, 4)
    cov: Array  # shape (entries, 4, 4)

    @cached_property
    def factor(self) -> Array:
        return _factor(self.cov)[0][:, :, :2]

    @property
    def lines(self) -> Lines:
        """The lines of f and g, as lines in all four variables."""
        f, g = self.f.lines, self.g.lines
        normals = np.concatenate([np.pad(f.normals, ((0, 0), (0, 2))), np.pad(g.normals, ((0, 0), (2, 0)))])
        offsets, slack = np.concatenate([f.offsets, g.offsets]), np.concatenate([f.slack, g.slack])
        return Lines(normals, offsets, slack, f.incomplete or g.incomplete)

    def at(self, z: Array) -> tuple[Array, Array]:
        """Return f and g at z (4, entries, points), each (entries, points)."""
        f, g = call(self.f.fn, z[:2]), call(self.g.fn, z[2:])
        return np.broadcast_to(f, z.shape[1:]), np.broadcast_to(g, z.shape[1:])

    def places(self, entries: Array, factor: Array, e: Array) -> Array:
        return np.moveaxis(self.mean[entries, :, None] + factor[entries] @ e, 1, 0)

    def sums(self, entries: Array, rule: Rule) -> Array:
        """Return E[f g] and sqrt(E[f^2] E[g^2]), shape (2, entries)."""
        (e, w), total = rule, np.zeros((3, len(entries)))
        width = max(1, BLOCK // len(entries))
        with np.errstate(all="ignore"):
            for start in range(0, w.size, width):
                piece = slice(start, start + width)
                f, g = self.at(self.places(entries, self.factor, e[:, piece]))
                total += f * g @ w[piece], f * f @ w[piece], g * g @ w[piece]
            return np.stack([total[0], np.sqrt(total[1] * total[2])])

    def survey(self, entries: Array, rule: Rule, reach: float) -> Array:
        """Return E|f g| in the square, its part outside, and the rounding error of E[f g]: (3, entries).

        The decay in the last two shells of the square extrapolates to the outside. Rounding is that of z, of
        the sum and of the covariance. The effect of rounding z is that of a larger relative perturbation,
        scaled down.
        """
        (e, w), results, rng = rule, np.zeros((3, len(entries))), np.random.default_rng(0)
        shell = np.ceil(reach - np.abs(e).max(axis=0))  # the outermost shell is 1
        weights = np.stack([w, w * (shell == 2), w * (shell == 1)], axis=1)
        perturbation, width = 2.0**-28, max(1, BLOCK // w.size)
        shifted = _factor(self.cov, 4 * EPS)[0][:, :, :2]
        with np.errstate(all="ignore"):
            for start in range(0, len(entries), width):
                piece = entries[start : start + width]
                z, larger = (self.places(piece, factor, e) for factor in (self.factor, shifted))
                moved = z * (1 + perturbation * rng.choice([-1.0, 1.0], z.shape))
                fg, of_larger, of_moved = (np.multiply(*self.at(x)) for x in (z, larger, moved))
                size, before, last = (np.abs(fg) @ weights).T
                tail = 10 * last * np.minimum(last / np.maximum(before, 1e-3 * last + 1e-300), 1e3)
                rounding = EPS * (16 * np.abs(fg) + 3 / perturbation * np.abs(of_moved - fg)) @ w
                rounding += np.abs((of_larger - fg) @ w)
                results[:, start : start + width] = size, tail, rounding
        return results


def _direct(f: PlanarFunction, g: PlanarFunction, mean: Array, cov: Array, tol: float) -> Array:
    """E[f g], its error and sqrt(E[f^2] E[g^2]), shape (3, entries).

    The square grows until its edge contributes nothing. Entries without lines nearby share a rule.
    """
    product, results = _PlanarProduct(f, g, mean, cov), np.zeros((3, len(mean)))
    lines, left, reach = product.lines, np.arange(len(mean)), sqrt(2 * log(1 / tol)) + 1.5
    most = int(np.clip(2**25 // len(mean), 2**13, MOST_POINTS))  # limits the time for all entries
    farthest = 33.0  # the density underflows at 38
    while len(left):
        coarse = plane_rule(Frame.plain(), 0.4, 0, reach, MOST_POINTS)
        assert coarse is not None
        size, tail, rounding = product.survey(left, coarse, reach)
        far = ((tail > tol / 8 * size) | (size == 0)) & np.isfinite(size) & (reach < farthest)
        now, floor, left = left[~far], (tail + rounding)[~far], left[far]
        frames = [_frames(lines, mean[i], product.factor[i], reach) for i in now]
        plain = np.array([one.is_plain and two.is_plain for one, two in frames], bool)
        groups = [(plain, (Frame.plain(), Frame.plain()))] if plain.any() else []
        groups += [(np.array([i]), frames[i]) for i in np.flatnonzero(~plain)]
        for group, pair in groups:
            results[:, now[group]] = _refined(product, now[group], pair, floor[group], reach, tol, most)
        reach = min(1.4 * reach, farthest)
    return results


def _remaining(differences: Array, rough: bool) -> Array:
    """Return the error of the finest rule, from the last three differences and their rate.

    Differences that fall by a factor q, the worse of the last two, leave q / (1 - q) times the last one; one
    far below what q predicts counts as luck. If they fall slowly, the larger of the last two counts; if f has
    kinks on unknown lines, the largest of all three.
    """
    if np.isinf(differences[0]).all():
        return differences[0]
    first, second, third = np.maximum(differences, 1e-300)
    with np.errstate(invalid="ignore"):
        ratio = np.maximum(second / first, third / second)
        q = np.clip(ratio, 0.1, 0.4)
        fast = 2 * np.maximum(third, 0.1 * q * second) * q / (1 - q)
        slow = 5 * np.maximum(np.maximum(second, third), first if rough else 0.0)
    return np.where(rough | ~(ratio <= 0.4), slow, fast)


def _refined(
    product: _PlanarProduct,
    entries: Array,
    frames: tuple[Frame, Frame],
    floor: Array,
    reach: float,
    tol: float,
    most: int,
) -> Array:
    """Return the results of finer and finer rules, until the tolerance or the finest rule is reached."""
    rough = product.lines.incomplete or not all(frame.complete for frame in frames)
    value, size = np.zeros((2, len(entries)))
    error, differences = np.full(len(entries), np.inf), np.full((3, len(entries)), np.inf)
    left = np.arange(len(entries))
    for level, step in enumerate(STEPS):
        frame = frames[level % 2]
        rule = plane_rule(frame, step, level, reach, most) if len(left) else None
        if rule is None:
            break
        before = value[left]
        value[left], size[left] = product.sums(entries[left], (frame.axes @ rule[0], rule[1]))
        finite = np.isfinite(value[left])
        with np.errstate(invalid="ignore"):
            now = np.abs(value[left] - before) if level else np.full(len(left), np.inf)
        differences[:, left] = *differences[1:, left], now
        unsettled = _remaining(differences[:, left], rough)
        error[left] = np.where(finite, unsettled + floor[left], np.inf)
        left = left[finite & ~(unsettled <= np.maximum(tol / 4 * size[left], floor[left]))]
    return np.stack([value, error, size])


# Hermite series.


@dataclass(frozen=True)
class _PlanarSeries:
    """Coefficients of f at the inputs of some entries, in coordinates inverse (x - mean), up to DEGREE."""

    coefs: Array  # shape (entries, DEGREE + 1, DEGREE + 1)
    error: Array  # shape (entries,): of the coefficients, in norm
    remainder: Array  # shape (entries,): a bound of the norm of the degrees above
    inverse: Array  # shape (entries, 2, 2)
    least: Array  # shape (entries,): the least eigenvalue of the correlations of x that is not 0

    @classmethod
    def of(cls, function: PlanarFunction, mean: Array, cov: Array, tol: float) -> _PlanarSeries:
        distinct, which = np.unique(np.column_stack([mean, cov.reshape(-1, 4)]), axis=0, return_inverse=True)
        series = [_coefs(function, len(function.lines), tol, *row) for row in distinct.tolist()]
        return cls(*(np.stack(column)[which.ravel()] for column in zip(*series, strict=True)))

    @property
    def norm(self) -> Array:
        return np.linalg.norm(self.coefs, axis=(1, 2))

    @property
    def by_degree(self) -> Array:
        """The norms of the coefficients of each degree, (entries, DEGREE + 1)."""
        k = np.arange(DEGREE + 1)
        return np.stack(
            [np.linalg.norm(self.coefs[:, k[: n + 1], n - k[: n + 1]], axis=1) for n in k], axis=1
        )

    def turned(self, n: int, angle: Array) -> Array:
        """Return the coefficients (entries, n + 1) of degree n after a rotation by an angle (entries,)."""
        k = np.arange(n + 1)
        values, vectors = _generator(n)
        spectrum = (self.coefs[:, k, n - k] * 1j**k) @ vectors * np.exp(1j * angle[:, None] * values)
        return (spectrum @ vectors.T / 1j**k).real


def _by_series(f: PlanarFunction, g: PlanarFunction, mean: Array, cov: Array, tol: float) -> Array:
    """Return E[f g], its error and sqrt(E[f^2] E[g^2]), shape (3, entries)."""
    a, b = (_PlanarSeries.of(h, mean[:, at], cov[:, at, at], tol) for h, at in ((f, X), (g, Y)))
    # A rotation by U and V makes the correlations diagonal; reflections change the sign of one of them.
    U, s, V = np.linalg.svd(a.inverse @ cov[:, X, Y] @ np.swapaxes(b.inverse, 1, 2))
    s, turns = np.minimum(s, 1.0), (U, np.swapaxes(V, 1, 2))
    angles = [np.arctan2(Q[:, 1, 0], Q[:, 0, 0]) for Q in turns]
    signed = s[:, 1] * np.prod([np.sign(np.linalg.det(Q)) for Q in turns], axis=0)
    size = np.hypot(a.norm, a.remainder) * np.hypot(b.norm, b.remainder)
    value, norms, degrees = np.zeros(len(s)), a.by_degree * b.by_degree, np.arange(DEGREE + 1)
    bounds = norms * s[:, :1] ** degrees
    beyond = bounds[:, ::-1].cumsum(axis=1)[:, ::-1]  # bound of the contribution of a degree and all above
    for n in map(int, np.flatnonzero(np.any(beyond > EPS * size[:, None], axis=0))):
        k, x, y = np.arange(n + 1), a.turned(n, angles[0]), b.turned(n, angles[1])
        value += np.sum(x * y * s[:, :1] ** k * signed[:, None] ** (n - k), axis=1)
    least = np.minimum(a.least, b.least)
    with np.errstate(all="ignore"):
        error = a.error * (b.norm + b.error) + b.error * a.norm
        error += s[:, 0] ** (DEGREE + 1) * a.remainder * b.remainder
        error += 64 * EPS * (size + norms @ degrees / least)
    is_bounded = np.isfinite(error)
    # A smaller eigenvalue leaves the inverse without correct digits.
    error = np.where(is_bounded & (least > 1e-9), error, np.inf)
    return np.stack([value, error, np.where(is_bounded, size, 0.0)])


@lru_cache(maxsize=128)
def _coefs(
    function: PlanarFunction,
    _lines: int,  # the number of known lines, a part of the key of the cache
    tol: float,
    *law: float,
) -> tuple[Array, float, float, Array, float]:
    """Return the fields of `_PlanarSeries` at one input: its mean and covariance are six numbers."""
    mean = np.array(law[:2])
    factor, inverse, values = (x[0] for x in _factor(np.reshape(law[2:], (1, 2, 2))))
    least = float(np.where(factor.any(axis=0), values, 1.0).min())
    frames = _frames(function.lines, mean, factor, REACH)
    axes, turned = frames[0].axes, frames[0].axes.T @ inverse
    complete = frames[0].complete and not function.lines.incomplete and np.array_equal(axes, frames[1].axes)
    coefs, square, error, remainder = np.zeros((DEGREE + 1, DEGREE + 1)), 0.0, np.inf, np.inf
    for level, step in enumerate(STEPS[4:] if complete else ()):
        rule = plane_rule(frames[level % 2], step, level, REACH, MOST_POINTS)
        if rule is None:
            break
        before, last = coefs, square
        coefs, square, edge = _coef_sums(function.fn, mean, factor @ axes, rule)
        if not np.isfinite(square):
            return before, np.inf, np.inf, turned, least
        error = 4 * float(np.linalg.norm(coefs - before)) + edge**0.5 if level else np.inf
        remainder = max(square - float(np.sum(coefs**2)), 0.0) + 4 * abs(square - last) + 64 * EPS * square
        if error <= tol / 4 * square**0.5:
            break
    k = np.arange(DEGREE + 1)
    slope = float(np.sum((k[:, None] + k) * coefs**2)) ** 0.5
    moved = EPS * float(np.linalg.norm(inverse @ mean)) * slope  # effect of rounding x
    return coefs, error + 4 * moved, remainder**0.5, turned, least


def _coef_sums(fn: Function, mean: Array, factor: Array, rule: Rule) -> tuple[Array, float, float]:
    """Return the coefficients from a rule, E[f^2], and the part of E[f^2] at the edge.

    Sum along the lines of the rule first, then over the lines: Hermite functions factor.
    """
    (u, v), w = rule
    z = mean[:, None] + factor @ rule[0]
    f = np.broadcast_to(call(fn, z[:, None]), (1, w.size))[0]
    with np.errstate(all="ignore"):
        values = w * f
        square, edge = float(values @ f), float(values @ (f * (np.abs(rule[0]).max(axis=0) > REACH - 1)))
    if not np.isfinite(square):
        return np.zeros((DEGREE + 1, DEGREE + 1)), square, edge
    starts = np.flatnonzero(np.diff(u, prepend=np.nan) != 0)
    along = np.stack([np.add.reduceat(h, starts) for h in hermite_functions(v, values, DEGREE + 1)])
    across = np.stack(list(hermite_functions(u[starts], np.ones(len(starts)), DEGREE + 1)))
    coefs, k = across @ along.T, np.arange(DEGREE + 1)
    return np.where(k[:, None] + k <= DEGREE, coefs, 0.0), square, edge


@lru_cache(maxsize=DEGREE + 1)
def _generator(n: int) -> tuple[Array, Array]:
    """Eigenvalues and -vectors of the generator of rotations of degree n, in the basis i^k h_k h_(n - k)."""
    k = np.arange(n)
    beside = np.sqrt((k + 1.0) * (n - k))
    values, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return np.round(values), vectors
