"""Pivoted Cholesky factors of a covariance matrix that grows by rows.

z ~ N(0, C) is sampled as z = L u, where C = L L^T and u are standard normal points. L grows by rows as new
variables appear. Covariances are usually semidefinite: inputs repeat, or variables exceed dimensions.
"""

from __future__ import annotations

from concurrent.futures import Executor
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np

from netsor.errors import DataError
from netsor.threads import in_parts

TIE = 1e-6  # relative: smaller differences of variances are chance, and must not decide an order
RIGHT = 64  # right-hand sides per job of a thread
TOLERANCE = 1e-12  # relative: a variable of smaller conditional variance is no pivot


class Pivoting(NamedTuple):
    """The choices of an extension that are discontinuous: pivots among the new variables, and axes."""

    pivots: np.ndarray
    axes: np.ndarray


@cache
def _lapack(name: str) -> Any:
    from scipy.linalg import get_lapack_funcs

    return get_lapack_funcs(name, dtype=np.float64)


def forward_substitute(L: np.ndarray, rows: np.ndarray) -> None:
    """Replace rows by X with X L^T = rows, for a lower triangular L, which may be part of a larger array."""
    size = 128  # work in blocks: most of the work is then products of matrices, and L is not copied
    for start in range(0, len(L), size):
        block = slice(start, start + size)
        if start:
            rows[:, block] -= rows[:, :start] @ L[block, :start].T
        rows[:, block] = _lapack("trtrs")(L[block, block], rows[:, block].T, lower=1)[0].T


def _pivoted_cholesky(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """F (n, rank) and pivots with F F^T = matrix up to TOLERANCE, F[pivots] lower triangular (LAPACK pstrf).

    Later rows are made slightly smaller, so that the last digits of equal pivots do not change their order.
    """
    if not len(matrix) or np.max(np.diagonal(matrix)) <= TOLERANCE:
        return np.zeros((len(matrix), 0)), np.zeros(0, int)
    # With one variable there is nothing to pivot, and the square root is the factor.
    if len(matrix) == 1:
        return np.sqrt(matrix), np.zeros(1, int)
    sizes = 1 - TIE * np.arange(len(matrix)) / len(matrix)
    packed, order, rank, _ = _lapack("pstrf")(matrix * sizes[:, None] * sizes, lower=1, tol=TOLERANCE)
    order = order - 1
    factor = np.empty((len(matrix), rank))
    factor[order] = np.tril(packed)[:, :rank]
    return factor / sizes[:, None], order[:rank]


def _with_pivots(matrix: np.ndarray, pivots: np.ndarray) -> np.ndarray | None:
    """Return F with F F^T = matrix and F[pivots] lower triangular, or None if these pivots do not suffice."""
    lower, failed = _lapack("potrf")(matrix[np.ix_(pivots, pivots)], lower=1, clean=1)
    if failed or np.any(np.diagonal(lower) ** 2 <= TOLERANCE):
        return None
    factor = _lapack("trtrs")(lower, matrix[pivots], lower=1)[0].T if len(pivots) else matrix[:, :0]
    conditional = np.diagonal(matrix) - np.einsum("ij,ij->i", factor, factor)
    return factor if np.all(conditional <= TOLERANCE) else None


class GrowingFactor:
    """The factor L of a covariance C = L L^T, extended by one or more variables at a time.

    Only the rows of L at the `pivots`, a maximal set of independent variables, are kept, as `lower`. All
    other rows are fixed combinations of these. `most` is the final number of variables, if known.
    """

    def __init__(self, most: int | None = None, threads: Executor | None = None) -> None:
        self.most, self.threads, self.size = most, threads, 0
        self.pivots = np.zeros(0, int)
        self._rows = np.zeros((0, 0))

    @property
    def rank(self) -> int:
        return len(self.pivots)

    @property
    def lower(self) -> np.ndarray:  # shape: (rank, rank)
        return self._rows[: self.rank, : self.rank]

    def extend(
        self, cov_with_old: np.ndarray, cov_new: np.ndarray, fixed: Pivoting | None = None
    ) -> tuple[np.ndarray, Pivoting]:
        """Return the rows [L21 L22] of new variables, from covariances (new, old) and (new, new).

            [ C    K^T ]   [ L    0   ] [ L    0   ]^T
            [ K    S   ] = [ L21  L22 ] [ L21  L22 ]    so  L21 = K L^-T,  L22 L22^T = S - L21 L21^T.

        K has a column for each pivot, and L22 is as wide as its rank. If rounding or noise in K requires more
        variance than S has, the row of L21 is shortened, so that the variances of S are kept. Also return the
        choices: the new pivots, and the `axes` that rotate L22 to the principal axes of the conditional
        covariance, by decreasing variance. `fixed` are those of a similar covariance: as long as they suffice
        they are used again, so that the factor is a smooth function of the covariance.
        """
        cov_new = np.asarray(cov_new, float)
        cross = np.asarray(cov_with_old, float)
        if cross.shape != (len(cov_new), self.size) or cov_new.shape != (len(cov_new),) * 2:
            raise DataError(
                f"covariances of shapes {cross.shape} and {cov_new.shape} extend {self.size} variables",
                remedy="They are (new, old) and (new, new), old counting all variables so far.",
            )
        K = np.take(cross, self.pivots, axis=1)
        if not (np.isfinite(K).all() and np.isfinite(cov_new).all()):
            raise DataError(
                "a covariance to sample from is not finite",
                remedy="An earlier layer overflowed or divided by zero: scale its weights.",
            )
        scale = np.sqrt(np.maximum(np.diagonal(cov_new), 0.0))
        inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
        L21, lower = K * inverse[:, None], self.lower
        in_parts(self.threads, len(L21), RIGHT, lambda part: forward_substitute(lower, L21[part]))
        L21 /= np.maximum(np.sqrt(np.einsum("ij,ij->i", L21, L21)), 1.0)[:, None]
        schur = cov_new * inverse[:, None] * inverse - L21 @ L21.T
        L22, pivots = None, fixed.pivots if fixed else None
        if pivots is not None:
            L22 = _with_pivots(schur, pivots)
        if L22 is None or pivots is None:
            L22, pivots = _pivoted_cholesky(schur)
        rows = np.concatenate([L21, L22], axis=1) * scale[:, None]
        self._append(rows[pivots], self.size + pivots)
        self.size += len(cov_new)
        L22 = rows[:, L21.shape[1] :]
        axes = fixed.axes if fixed and len(fixed.axes) == len(pivots) else _principal_axes(L22)
        return rows, Pivoting(pivots, axes)

    def _append(self, rows: np.ndarray, pivots: np.ndarray) -> None:
        """Add rows of new pivots; double the array when it is full, so that few copies are needed."""
        old, new = self.rank, self.rank + len(pivots)
        if new > len(self._rows):
            capacity = min(2 * new, self.most or 2 * new)
            larger = np.zeros((capacity, capacity))
            larger[:old, :old] = self.lower
            self._rows = larger
        self._rows[old:new, :new] = rows
        self.pivots = np.concatenate([self.pivots, pivots])


def _principal_axes(factor: np.ndarray) -> np.ndarray:
    """Return the orthogonal V for which factor V has the principal axes as columns, by decreasing variance.

    The last digits of the factor must not change V. So axes of equal variance are ordered by making later
    columns slightly smaller, and the sign of each axis is that of its product with a fixed vector.
    """
    size = factor.shape[1]
    if size < 2:
        return np.eye(size)
    order = np.arange(size)
    columns = factor * (1 - TIE * order / size)
    axes = cast(np.ndarray, np.linalg.eigh(columns.T @ columns)[1])[:, ::-1]
    return axes * np.where((1 + order) ** -0.3 @ axes < 0, -1.0, 1.0)
