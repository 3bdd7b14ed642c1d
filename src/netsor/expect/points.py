"""Sample points of Gaussian vectors: scrambled Sobol points, and factors of a covariance that grow.

A Gaussian vector z ~ N(0, C) is sampled as z = L e with C = L L^T and e standard normal. Here e comes
from scrambled Sobol points (Owen 1995; Joe and Kuo 2008 for the direction numbers), one dimension per
column of L, and L grows by rows as new variables appear, whose covariance with the old ones is known only
then. Covariances are semidefinite as a rule: repeated inputs, and more variables than dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from netsor.errors import DataError

__all__ = ["GaussianSampler", "NormalPoints", "grow_factor", "normal_points", "uniform_points"]

SOBOL_DIMENSIONS = 21201
BLOCK_DIMENSIONS = 64
BLOCK_VALUES = 2**23
BITS = 30

Seed = int | Sequence[int]


def normal_points(dimensions: int, count: int, seed: Seed, *, sobol: bool = True) -> np.ndarray:
    """Standard normal points, shape (dimensions, count): ndtri of one scrambled Sobol sequence.

    Beyond the 21201 dimensions of the Sobol table, and with `sobol=False`, they are plain pseudo-random
    normals. A power of two is the best `count`.
    """
    rng = np.random.default_rng(seed)
    if not sobol or dimensions > SOBOL_DIMENSIONS:
        return rng.standard_normal((dimensions, count))
    if dimensions == 0:
        return np.empty((0, count))
    return _normals(uniform_points(dimensions, count, rng))


class NormalPoints:
    """Standard normal points whose dimensions are handed out on demand, each one once.

    The dimensions come in blocks. Within a block they are one scrambled Sobol sequence; every block has
    its own scramble, and from the second on its points are in a random order of its own, so that
    the blocks are independent (Latin supercube sampling, Owen 1998). The points depend on `count`,
    `seed` and `sobol` only, not on how they are asked for.
    """

    def __init__(self, count: int, seed: Seed, *, sobol: bool = True) -> None:
        self.count, self.seed, self.sobol = int(count), seed, sobol
        self.taken = 0
        self._size = int(np.clip(BLOCK_VALUES // max(self.count, 1), 1, BLOCK_DIMENSIONS))
        self._number, self._block = -1, np.empty((self.count, 0))

    def take(self, k: int) -> np.ndarray:
        """The next k dimensions, shape (k, count)."""
        points = np.empty((k, self.count))
        done = 0
        while done < k:
            number, start = divmod(self.taken, self._size)
            if number != self._number:
                self._number, self._block = number, self._draw(number)
            step = min(k - done, self._size - start)
            points[done : done + step] = self._map(self._block[:, start : start + step])
            done, self.taken = done + step, self.taken + step
        return points

    def _draw(self, number: int) -> np.ndarray:
        words = [self.seed] if isinstance(self.seed, int | np.integer) else list(self.seed)
        rng = np.random.default_rng([*words, number])
        if not self.sobol:
            return rng.standard_normal((self.count, self._size))
        block = uniform_points(self._size, self.count, rng)
        return block if number == 0 else block[rng.permutation(self.count)]

    def _map(self, block: np.ndarray) -> np.ndarray:
        return _normals(block) if self.sobol else block.T


def uniform_points(dimensions: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Scrambled Sobol points strictly within (0, 1), shape (count, dimensions): the middles of 2^30 cells."""
    from scipy.stats.qmc import Sobol

    exponent = max(count - 1, 0).bit_length()
    engine = Sobol(dimensions, scramble=True, bits=BITS, seed=rng)  # pyright: ignore[reportCallIssue]
    points = engine.random(2**exponent)[:count]  # `seed` is `rng` from SciPy 1.15 on, and both are taken
    points += 0.5 ** (BITS + 1)
    return points


def _normals(uniform: np.ndarray) -> np.ndarray:
    """ndtri, transposed: at most 6.3 in size, as the points are at least 2^-31 from 0 and 1."""
    from scipy.special import ndtri

    return ndtri(uniform.T, order="C")


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
    from scipy.linalg import solve_triangular

    if not (np.isfinite(cov_new_old).all() and np.isfinite(cov_new).all()):
        raise DataError(
            "a covariance to sample from is not finite",
            remedy="An earlier layer overflowed or divided by zero: scale its weights.",
        )
    scale = np.sqrt(np.maximum(np.diagonal(cov_new), 0.0))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    rows = solve_triangular(L, (cov_new_old * inverse[:, None]).T, lower=True).T if len(L) else cov_new_old
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows = rows / np.maximum(norms, 1.0)[:, None]
    schur = cov_new * inverse[:, None] * inverse - rows @ rows.T
    factor, pivots = _pivoted_cholesky(schur, tol)
    return rows * scale[:, None], factor * scale[:, None], pivots


def _pivoted_cholesky(matrix: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """F (n x rank) and pivots with F F^T = matrix up to `tol`, F[pivots] lower triangular (LAPACK pstrf)."""
    from scipy.linalg import get_lapack_funcs

    if not len(matrix) or np.max(np.diagonal(matrix)) <= tol:
        return np.zeros((len(matrix), 0)), np.zeros(0, int)
    (pstrf,) = get_lapack_funcs(("pstrf",), (matrix,))
    packed, order, rank, _ = pstrf(matrix, lower=1, tol=tol)
    order = order - 1
    factor = np.empty((len(matrix), rank))
    factor[order] = np.tril(packed)[:, :rank]
    return factor, order[:rank]


class GaussianSampler:
    """Samples of a Gaussian vector N(0, C) that is extended, variable by variable or block by block.

    z = L e, where only the rows of L at the pivots (a maximal set of independent variables) are kept:
    all the others are fixed combinations of those. Noise dimensions come from `points`, which several
    independent vectors may share. Within one extension they go along the principal axes of the conditional
    covariance, so that the first Sobol dimensions carry the most variance.

    >>> sampler = GaussianSampler(NormalPoints(1024, seed=0))
    >>> x = sampler.extend(np.zeros((1, 0)), np.eye(1))
    >>> y = sampler.extend(np.array([[2.0]]), np.array([[4.0]]))
    >>> bool(np.allclose(y, 2 * x)), sampler.rank
    (True, 1)
    """

    def __init__(self, points: NormalPoints, tol: float = 1e-12) -> None:
        self.points, self.tol = points, tol
        self.size = 0
        self._pivots = np.zeros(0, int)
        self._L = np.zeros((0, 0))
        self._noise = np.zeros((0, points.count))

    @property
    def rank(self) -> int:
        """The number of noise dimensions in use."""
        return len(self._pivots)

    def extend(self, cov_with_old: np.ndarray, cov_new: np.ndarray) -> np.ndarray:
        """Samples (new, count) of new variables, from their covariances (new, old) and (new, new).

        The columns of `cov_with_old` are all the variables so far, in the order of extension. The means
        are zero: add them outside.
        """
        cov_new = np.asarray(cov_new, float)
        cross = np.asarray(cov_with_old, float)
        if cross.shape != (len(cov_new), self.size) or cov_new.shape != (len(cov_new),) * 2:
            raise DataError(
                f"covariances of shapes {cross.shape} and {cov_new.shape} extend {self.size} variables",
                remedy="They are (new, old) and (new, new), old counting all variables so far.",
            )
        L21, L22, pivots = grow_factor(self._L, cross[:, self._pivots], cov_new, self.tol)
        fresh = _principal_axes(L22) @ self.points.take(len(pivots))
        samples = L21 @ self._noise + L22 @ fresh
        self._L = np.block([[self._L, np.zeros((self.rank, len(pivots)))], [L21[pivots], L22[pivots]]])
        self._pivots = np.concatenate([self._pivots, self.size + pivots])
        self._noise = np.concatenate([self._noise, fresh])
        self.size += len(cov_new)
        return samples


def _principal_axes(factor: np.ndarray) -> np.ndarray:
    """The orthogonal V, by falling variance, for which factor V is the principal-axes factor."""
    return cast(np.ndarray, np.linalg.eigh(factor.T @ factor)[1])[:, ::-1]
