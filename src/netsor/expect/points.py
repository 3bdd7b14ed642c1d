"""Sample points of Gaussian vectors: scrambled Sobol points, and factors of a covariance that grow.

A Gaussian vector z ~ N(0, C) is sampled as z = L e with C = L L^T and e standard normal. Here e comes
from scrambled Sobol points (Owen 1995; Joe and Kuo 2008 for the direction numbers), one dimension per
column of L, and L grows by rows as new variables appear, whose covariance with the old ones is known only
then. Covariances are semidefinite as a rule: repeated inputs, and more variables than dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import numpy as np

from netsor.errors import DataError
from netsor.expect.sobol import MOST_DIMENSIONS, as_uniform, points_at, scramble, scrambled, uniform_points

__all__ = [
    "GaussianSampler",
    "GrowingFactor",
    "NormalPoints",
    "grow_factor",
    "normal_points",
]

BLOCK_DIMENSIONS = 64
BLOCK_VALUES = 2**23
AT_ONCE = 2**14  # values in a piece of work
TIE = 1e-6  # relative differences of conditional variances that do not decide which variable comes first

Seed = int | Sequence[int]


def normal_points(dimensions: int, count: int, seed: Seed, *, sobol: bool = True) -> np.ndarray:
    """Standard normal points, shape (dimensions, count): ndtri of one scrambled Sobol sequence.

    Beyond the 21201 dimensions of the Sobol table, and with `sobol=False`, they are plain pseudo-random
    normals. A power of two is the best `count`.
    """
    rng = np.random.default_rng(seed)
    if not sobol or dimensions > MOST_DIMENSIONS:
        return rng.standard_normal((dimensions, count))
    if dimensions == 0:
        return np.empty((0, count))
    return _normals(uniform_points(dimensions, count, rng))


class NormalPoints:
    """Standard normal points whose dimensions are handed out on demand, each one once.

    The dimensions come in blocks. Within a block they are one scrambled Sobol sequence; every block has
    its own scramble, and from the second on its points are in a random order of its own, so that
    the blocks are independent (Latin supercube sampling, Owen 1998). The points depend on `count`,
    `seed`, `sobol` and `dimensions` only, not on how they are asked for. `dimensions` is how many are
    expected: where they are few, the first block has no more (0 if that is not known).
    """

    def __init__(self, count: int, seed: Seed, *, sobol: bool = True, dimensions: int = 0) -> None:
        self.count, self.seed, self.sobol = int(count), seed, sobol
        self.taken = 0
        self._size = int(np.clip(BLOCK_VALUES // max(self.count, 1), 1, BLOCK_DIMENSIONS))
        self._first = min(self._size, dimensions or self._size)
        self._number, self._block = -1, np.empty((0, self.count))
        self._scrambles: dict[int, Any] = {}

    def take(self, k: int) -> np.ndarray:
        """The next k dimensions, shape (k, count)."""
        points = np.empty((k, self.count))
        done = 0
        while done < k:
            number, start = divmod(self.taken + self._size - self._first, self._size)
            size, start = (self._size, start) if number else (self._first, self.taken)
            if number != self._number:
                self._number, self._block = number, self._draw(number, size)
            step = min(k - done, size - start)
            points[done : done + step] = self._map(self._block[start : start + step])
            done, self.taken = done + step, self.taken + step
        return points

    def at(self, dimensions: np.ndarray, places: slice, out: np.ndarray) -> None:
        """Any dimensions of some of the points, (dimensions, points): the same numbers as in `take`."""
        numbers, rows = np.divmod(dimensions + self._size - self._first, self._size)
        rows = np.where(numbers == 0, dimensions, rows)
        some = max(1, AT_ONCE // max(1, out.shape[1]))
        for number in np.unique(numbers).tolist():
            every = np.flatnonzero(numbers == number)
            for chosen in (every[k : k + some] for k in range(0, len(every), some)):
                out[chosen] = self._part(number, rows[chosen], places)

    def _part(self, number: int, rows: np.ndarray, places: slice) -> np.ndarray:
        size = self._size if number else self._first
        if not self.sobol:
            return self._draw(number, size)[rows, places]
        if number not in self._scrambles:
            rng = self._rng(number)
            made = scramble(size, self.count, rng)
            order = rng.permutation(self.count) if number else np.arange(self.count)
            self._scrambles[number] = *made, order.astype(np.uint32)
        directions, shifts, order = self._scrambles[number]
        return _normals(as_uniform(points_at(directions[rows], shifts[rows], order[places])))

    def _rng(self, number: int) -> np.random.Generator:
        words = [self.seed] if isinstance(self.seed, int | np.integer) else list(self.seed)
        return np.random.default_rng([*words, number])

    def _draw(self, number: int, size: int) -> np.ndarray:
        rng = self._rng(number)
        if not self.sobol:
            return rng.standard_normal((size, self.count))
        block = scrambled(size, self.count, rng)
        return block if number == 0 else block[:, rng.permutation(self.count)]

    def _map(self, block: np.ndarray) -> np.ndarray:
        """ndtri of the points: at most 6.3 in size, as they are at least 2^-31 from 0 and 1."""
        return _normals(as_uniform(block)) if self.sobol else block


def _normals(uniform: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri

    return ndtri(uniform, out=uniform)


@cache
def _lapack(name: str) -> Any:
    from scipy.linalg import get_lapack_funcs

    return get_lapack_funcs(name, dtype=np.float64)


def grow_factor(
    L: np.ndarray, cov_new_old: np.ndarray, cov_new: np.ndarray, tol: float = 1e-12
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [L21 L22] of a covariance factor for new variables, and the new pivots among them.

        [ C    K^T ]   [ L    0   ] [ L    0   ]^T
        [ K    S   ] = [ L21  L22 ] [ L21  L22 ]    so  L21 = K L^-T,  L22 L22^T = S - L21 L21^T.

    `L` (r x r, lower triangular, invertible) is the factor of r linearly independent old variables, the
    pivots; `cov_new_old` is K (new x r), `cov_new` is S. L22 is the pivoted Cholesky factor of the Schur
    complement, as wide as its rank: a new variable becomes a pivot while its conditional variance exceeds
    `tol` times its variance, and rows L22[pivots] are lower triangular. What is dropped changes no
    entry of the covariance by more than `tol` times the two standard deviations. Where rounding or noise
    in K asks for more variance than S has, the row of L21 is shortened: the variances of S are kept.
    """
    if not (np.isfinite(cov_new_old).all() and np.isfinite(cov_new).all()):
        raise DataError(
            "a covariance to sample from is not finite",
            remedy="An earlier layer overflowed or divided by zero: scale its weights.",
        )
    scale = np.sqrt(np.maximum(np.diagonal(cov_new), 0.0))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    rows = _lapack("trtrs")(L, (cov_new_old * inverse[:, None]).T, lower=1)[0].T if len(L) else cov_new_old
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows = rows / np.maximum(norms, 1.0)[:, None]
    schur = cov_new * inverse[:, None] * inverse - rows @ rows.T
    factor, pivots = _pivoted_cholesky(schur, tol)
    return rows * scale[:, None], factor * scale[:, None], pivots


def _pivoted_cholesky(matrix: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """F (n x rank) and pivots with F F^T = matrix up to `tol`, F[pivots] lower triangular (LAPACK pstrf).

    Equal pivots are taken in order, whatever their last digits are: later rows are made slightly smaller.
    """
    if not len(matrix) or np.max(np.diagonal(matrix)) <= tol:
        return np.zeros((len(matrix), 0)), np.zeros(0, int)
    if len(matrix) == 1:
        return np.sqrt(matrix), np.zeros(1, int)
    sizes = 1 - TIE * np.arange(len(matrix)) / len(matrix)
    packed, order, rank, _ = _lapack("pstrf")(matrix * sizes[:, None] * sizes, lower=1, tol=tol)
    order = order - 1
    factor = np.empty((len(matrix), rank))
    factor[order] = np.tril(packed)[:, :rank]
    return factor / sizes[:, None], order[:rank]


class GrowingFactor:
    """The factor L of a covariance C = L L^T that is extended, variable by variable or block by block.

    Only the rows of L at the pivots (a maximal set of independent variables) are kept: all the others are
    fixed combinations of those. `most` is how many variables there will be, if that is known.
    """

    def __init__(self, tol: float = 1e-12, most: int | None = None) -> None:
        self.tol, self.most, self.size, self.rank = tol, most, 0, 0
        self._pivots = np.zeros(0, int)
        self._rows = np.zeros((0, 0))

    def extend(self, cov_with_old: np.ndarray, cov_new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of L for new variables, from their covariances (new, old) and (new, new), and axes.

        The columns of `cov_with_old` are all the variables so far, in the order of extension. The rows are
        as long as the rank is now. The orthogonal `axes` turn the columns that are new, L22, into those
        of the principal axes of the conditional covariance, by falling variance: L22 @ axes.
        """
        cov_new = np.asarray(cov_new, float)
        cross = np.asarray(cov_with_old, float)
        if cross.shape != (len(cov_new), self.size) or cov_new.shape != (len(cov_new),) * 2:
            raise DataError(
                f"covariances of shapes {cross.shape} and {cov_new.shape} extend {self.size} variables",
                remedy="They are (new, old) and (new, new), old counting all variables so far.",
            )
        old = self.rank
        L21, L22, pivots = grow_factor(self._rows[:old, :old], cross[:, self._pivots], cov_new, self.tol)
        rows = np.concatenate([L21, L22], axis=1)
        self.size, self.rank = self.size + len(cov_new), old + len(pivots)
        if len(pivots):
            if self.rank > len(self._rows):
                room = min(2 * self.rank, self.most or 2 * self.rank)
                larger = np.zeros((room, room))
                larger[:old, :old] = self._rows[:old, :old]
                self._rows = larger
            self._rows[old : self.rank, : self.rank] = rows[pivots]
            self._pivots = np.concatenate([self._pivots, self.size - len(cov_new) + pivots])
        return rows, _principal_axes(L22)


class GaussianSampler:
    """Samples of a Gaussian vector N(0, C) that is extended, variable by variable or block by block.

    z = L e. Noise dimensions come from `points`, which several independent vectors may share. Within one
    extension they go along the principal axes of the conditional covariance, so that the first Sobol
    dimensions carry the most variance.

    >>> sampler = GaussianSampler(NormalPoints(1024, seed=0))
    >>> x = sampler.extend(np.zeros((1, 0)), np.eye(1))
    >>> y = sampler.extend(np.array([[2.0]]), np.array([[4.0]]))
    >>> bool(np.allclose(y, 2 * x)), sampler.rank
    (True, 1)
    """

    def __init__(self, points: NormalPoints, tol: float = 1e-12) -> None:
        self.points, self.factor = points, GrowingFactor(tol)
        self._noise = np.zeros((0, points.count))

    @property
    def rank(self) -> int:
        """The number of noise dimensions in use."""
        return self.factor.rank

    def extend(self, cov_with_old: np.ndarray, cov_new: np.ndarray) -> np.ndarray:
        """Samples (new, count) of new variables, from their covariances (new, old) and (new, new).

        The means are zero: add them outside.
        """
        old = self.rank
        rows, axes = self.factor.extend(cov_with_old, cov_new)
        if self.rank > len(self._noise):
            larger = np.empty((2 * self.rank, self.points.count))
            larger[:old] = self._noise[:old]
            self._noise = larger
        self._noise[old : self.rank] = axes @ self.points.take(self.rank - old)
        return rows @ self._noise[: self.rank]


def _principal_axes(factor: np.ndarray) -> np.ndarray:
    """The orthogonal V, by falling variance, for which factor V is the principal-axes factor."""
    if factor.shape[1] < 2:
        return np.eye(factor.shape[1])
    return cast(np.ndarray, np.linalg.eigh(factor.T @ factor)[1])[:, ::-1]
