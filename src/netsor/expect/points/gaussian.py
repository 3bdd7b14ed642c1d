"""Gaussian vectors whose covariance grows: factors by rows, and samples of them.

A Gaussian vector z ~ N(0, C) is sampled as z = L e with C = L L^T and e standard normal points, one dimension
per column of L. L grows by rows as new variables appear, whose covariance with the old ones is known only
then. Covariances are semidefinite as a rule: repeated inputs, and more variables than dimensions.
"""

from __future__ import annotations

from concurrent.futures import Executor
from functools import cache
from typing import Any, cast

import numpy as np

from netsor.errors import DataError
from netsor.threads import in_parts

__all__ = ["Chosen", "GrowingFactor", "forward", "grow_factor"]

TIE = 1e-6  # relative differences of conditional variances that do not decide which variable comes first
BLOCK = 128  # rows of a triangular matrix that are solved at once
RIGHT = 64  # right-hand sides that a thread takes

Chosen = tuple[np.ndarray, np.ndarray]  # pivots, and principal axes


@cache
def _lapack(name: str) -> Any:
    from scipy.linalg import get_lapack_funcs

    return get_lapack_funcs(name, dtype=np.float64)


def grow_factor(
    L: np.ndarray,
    cov_new_old: np.ndarray,
    cov_new: np.ndarray,
    tol: float = 1e-12,
    held: np.ndarray | None = None,
    threads: Executor | None = None,
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
    `held` are the pivots of a covariance like this one: as long as they will do, they are taken again, and
    the factor is a smooth function of the covariance.
    """
    if not (np.isfinite(cov_new_old).all() and np.isfinite(cov_new).all()):
        raise DataError(
            "a covariance to sample from is not finite",
            remedy="An earlier layer overflowed or divided by zero: scale its weights.",
        )
    scale = np.sqrt(np.maximum(np.diagonal(cov_new), 0.0))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    rows = cov_new_old * inverse[:, None]
    in_parts(threads, len(rows), RIGHT, lambda some: forward(L, rows[some]))
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows /= np.maximum(norms, 1.0)[:, None]
    schur = cov_new * inverse[:, None] * inverse - rows @ rows.T
    kept = None if held is None else _with_pivots(schur, held, tol)
    factor, pivots = _pivoted_cholesky(schur, tol) if kept is None else (kept, held)
    assert pivots is not None
    return rows * scale[:, None], factor * scale[:, None], pivots


def forward(L: np.ndarray, rows: np.ndarray) -> None:
    """Replace rows by X with X L^T = rows, for a lower triangular L, which may be part of a larger array.

    Block by block, so that nearly all of it is products of matrices, and L is not copied.
    """
    for start in range(0, len(L), BLOCK):
        own = slice(start, start + BLOCK)
        if start:
            rows[:, own] -= rows[:, :start] @ L[own, :start].T
        rows[:, own] = _lapack("trtrs")(L[own, own], rows[:, own].T, lower=1)[0].T


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


def _with_pivots(matrix: np.ndarray, pivots: np.ndarray, tol: float) -> np.ndarray | None:
    """F with F F^T = matrix and F[pivots] lower triangular, or None if these are not its pivots."""
    lower, failed = _lapack("potrf")(matrix[np.ix_(pivots, pivots)], lower=1, clean=1)
    if failed or np.any(np.diagonal(lower) ** 2 <= tol):
        return None
    factor = _lapack("trtrs")(lower, matrix[pivots], lower=1)[0].T if len(pivots) else matrix[:, :0]
    rest = np.diagonal(matrix) - np.einsum("ij,ij->i", factor, factor)
    return factor if np.all(rest <= tol) else None


class GrowingFactor:
    """The factor L of a covariance C = L L^T that is extended, variable by variable or block by block.

    Only the rows of L at the pivots (a maximal set of independent variables) are kept: all the others are
    fixed combinations of those. `most` is how many variables there will be, if that is known; work is
    divided among `threads`. `chosen` are the pivots and axes of the last extension.
    """

    def __init__(self, tol: float = 1e-12, most: int | None = None, threads: Executor | None = None) -> None:
        self.tol, self.most, self.threads, self.size, self.rank = tol, most, threads, 0, 0
        self._pivots = np.zeros(0, int)
        self._rows = np.zeros((0, 0))
        self.chosen: Chosen | None = None

    def extend(
        self, cov_with_old: np.ndarray, cov_new: np.ndarray, held: Chosen | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows of L for new variables, from their covariances (new, old) and (new, new), and axes.

        The columns of `cov_with_old` are all the variables so far, in the order of extension. The rows are
        as long as the rank is now. The orthogonal `axes` turn the columns that are new, L22, into those
        of the principal axes of the conditional covariance, by falling variance: L22 @ axes. `held` is what
        was chosen for covariances like these.
        """
        cov_new = np.asarray(cov_new, float)
        cross = np.asarray(cov_with_old, float)
        if cross.shape != (len(cov_new), self.size) or cov_new.shape != (len(cov_new),) * 2:
            raise DataError(
                f"covariances of shapes {cross.shape} and {cov_new.shape} extend {self.size} variables",
                remedy="They are (new, old) and (new, new), old counting all variables so far.",
            )
        old = self.rank
        own = self._rows[:old, :old], np.take(cross, self._pivots, axis=1), cov_new
        L21, L22, pivots = grow_factor(*own, self.tol, held and held[0], self.threads)
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
        again = held is not None and len(held[1]) == len(pivots)
        self.chosen = pivots, held[1] if held is not None and again else _principal_axes(L22)
        return rows, self.chosen[1]


def _principal_axes(factor: np.ndarray) -> np.ndarray:
    """The orthogonal V, by falling variance, for which factor V is the principal-axes factor, about.

    They do not turn with the last digits of the factor: for axes of equal variance, later columns are made
    slightly smaller, and each axis has the sign of its product with some fixed vector.
    """
    size = factor.shape[1]
    if size < 2:
        return np.eye(size)
    order = np.arange(size)
    own = factor * (1 - TIE * order / size)
    axes = cast(np.ndarray, np.linalg.eigh(own.T @ own)[1])[:, ::-1]
    return axes * np.where((1 + order) ** -0.3 @ axes < 0, -1.0, 1.0)
