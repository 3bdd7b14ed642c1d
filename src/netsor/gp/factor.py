"""Cholesky factors of kernel matrices, and the policy for noise and jitter.

The diagonal of a kernel matrix of n rows is raised by max(noise, jitter), where

    jitter = 2 sqrt(n) rms(error) + 10 eps trace(K).

The first term is the spectral norm of a symmetric n x n matrix of independent errors of the size that the
kernel reports: rounding errors, or sampling errors if the kernel is sampled. The second term bounds the
rounding of the Cholesky factorisation itself. A noise above the jitter gives the textbook posterior. For
kernels with exact methods the jitter is about 1e-12 of the variances. If the matrix is not positive definite
even then, that is an error.

A warning tells the user if the jitter replaces the noise: if it is more than 10 times the noise, or more than
one percent of the mean variance. A noise below 1e-5 of the mean variance counts as 1e-5 of it, so that a
jitter for rounding in double precision never warns if the noise is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_solve, solve_triangular
from scipy.linalg.lapack import dpotrf  # type: ignore[attr-defined]

from netsor.arguments import shown
from netsor.errors import DataError, NetsorError, warn
from netsor.progress import bar

EPS = float(np.finfo(np.float64).eps)
ROUNDING = 1e-7  # by rounding a posterior variance may be negative by this fraction of the prior variance


class InferenceError(NetsorError):
    """A Gaussian process cannot be conditioned: its kernel matrix is not positive definite, or not usable."""


def needed_jitter(diagonal: np.ndarray, error: float) -> float:
    """2 sqrt(n) error + 10 eps trace(K), given the diagonal (n,) and the root mean square of the errors."""
    return float(2 * np.sqrt(len(diagonal)) * error + 10 * EPS * np.sum(diagonal, dtype=np.float64))


def warn_of_jitter(
    jitter: float, noise: np.ndarray | float, diagonal: np.ndarray, smaller: str = "a tolerance, tol=..."
) -> None:
    """Warn if the jitter, not the noise, smooths predictions; `smaller` is a remedy besides more points."""
    least, variance = float(np.min(noise)), float(np.mean(diagonal))
    replaced = jitter > least and jitter > 1e-2 * variance
    if replaced or jitter > 10 * max(least, 1e-5 * variance):
        warn(
            f"the diagonal of the kernel matrix is raised by {jitter:.3g}, not by the noise of {least:.3g}; "
            f"the mean variance is {variance:.3g}",
            "The errors that the kernel reports ask for that much, and predictions are as smooth as with "
            f"such a noise. Use more points, ns.kernel(net, points=2**14), {smaller}, or double precision; "
            f"or give noise={jitter:.2g} or more, if that is what you mean.",
        )


def check_noise(noise: ArrayLike, rows: int | None = None) -> np.ndarray:
    """Convert the noise to an array: one variance, or (rows,)."""
    try:
        value = np.asarray(noise, np.float64)
        if not (np.isfinite(value).all() and (value >= 0).all()):
            problem = "the noise is negative, NaN or infinite"
        elif value.ndim and (rows is None or value.shape != (rows,)):
            problem = f"the noise has shape {value.shape}" + (f" for {rows} rows" if rows else "")
        else:
            return value
    except (TypeError, ValueError, OverflowError):
        problem = f"noise={shown(noise)}"
    raise DataError(problem, remedy="The noise is a variance >= 0, or an array of them with one per target.")


def cholesky(
    matrix: np.ndarray, nugget: np.ndarray | float, *, overwrite: bool = False, progress: bool | None = None
) -> np.ndarray:
    """The lower Cholesky factor of K + diag(nugget), for K (n, n) and a nugget of one number or (n,).

    overwrite  reuse the memory of K, if it is contiguous and in double precision
    """
    raised = (np.asarray if overwrite else np.array)(matrix, np.float64, order="C")
    if not all(np.isfinite(row).all() for row in raised):  # by rows, to save memory
        raise InferenceError(
            "the kernel matrix has a NaN or an infinity", remedy="Are the variances or the inputs too large?"
        )
    diagonal = np.diagonal(raised).copy()
    raised[np.diag_indices_from(raised)] += nugget
    rows, rate = len(raised), 3e10  # operations per second of an ordinary machine, for the progress bar
    with bar(progress, 0, f"factorising {rows} rows", lambda: rows**3 / 3 / rate):
        positive = _factorise(raised)
    if not positive:  # restore K from its upper half, for the message
        above = np.triu(raised, 1)
        raise _not_positive(above + above.T + np.diag(diagonal), nugget)
    # Row by row: numpy.tril would copy a matrix that may fill the memory.
    for k, row in enumerate(raised):
        row[k + 1 :] = 0.0
    return raised


def _factorise(matrix: np.ndarray, most: int = 2**14) -> bool:
    """Factorise a symmetric matrix (n, n) in place, below its diagonal; return False if it is not positive.

    More than `most` rows are factorised by blocks of columns, from left to right: OpenBLAS aborts the process
    for more than 2**14 rows on several threads, because offsets of 2**31 bytes overflow 32 bits.
    """
    rows, size = len(matrix), most // 4
    if rows <= most:
        # The transpose has LAPACK's order, so nothing is copied.
        return dpotrf(matrix.T, overwrite_a=True, clean=False)[1] == 0
    for a in range(0, rows, size):
        here = slice(a, min(a + size, rows))
        head = matrix[here, here] - matrix[here, :a] @ matrix[here, :a].T
        if dpotrf(head.T, overwrite_a=True, clean=False)[1]:
            return False
        np.copyto(matrix[here, here], head, where=np.tri(len(head), dtype=bool))
        for b in range(a + size, rows, size):
            below = matrix[b : b + size, here]
            below -= matrix[b : b + size, :a] @ matrix[here, :a].T
            below[...] = solve_triangular(head, below.T, lower=True, check_finite=False).T
    return True


def _not_positive(matrix: np.ndarray, nugget: np.ndarray | float) -> InferenceError:
    """The error about a matrix that is not positive definite, with the noise that would help."""
    lowest = float(np.linalg.eigvalsh(matrix)[0])
    scale = float(np.abs(matrix).max(initial=0.0))
    if scale == 0.0:
        return InferenceError(
            "the kernel is zero on these inputs",
            remedy="Every output of the network has variance 0. Give a noise > 0, or larger variances.",
        )
    return InferenceError(
        f"the kernel matrix ({len(matrix)} rows, entries up to {scale:.3g}) is not positive definite: its "
        f"smallest eigenvalue is {lowest:.2g} and the diagonal was raised by {np.min(nugget):.2g}",
        remedy=f"Give a noise above {max(2 * abs(lowest), 10 * EPS * scale):.1g}, or leave out repeated "
        "inputs; where the kernel is sampled, use more points: ns.kernel(net, points=2**14).",
    )


def solve(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(L L^T)^-1 b for L (n, n) and b (n, k)."""
    return cho_solve((lower.T, False), right, check_finite=False)  # the transpose has LAPACK's order: no copy


def log_determinant(lower: Any, log: Callable[[Any], Any] = np.log) -> Any:
    """log det(L L^T)."""
    return 2 * log(lower.diagonal()).sum()


def likelihood(determinant: Any, alpha: Any, y: np.ndarray) -> Any:
    """log N(y; 0, C), summed over the columns of y (n, k), from log det C and alpha = C^-1 y."""
    rows, targets = y.shape
    return -0.5 * (y * alpha).sum() - targets / 2 * (determinant + rows * np.log(2 * np.pi))


def checked_variance(
    variance: np.ndarray,
    prior: np.ndarray,
    jitter: float,
    what: str = "a posterior variance",
    matrix: str = "kernel matrix",
) -> np.ndarray:
    """Clip variances (rows,) that are negative by rounding; raise an InferenceError for more than that."""
    if np.any(variance < -(ROUNDING * prior + jitter)):
        raise InferenceError(
            f"{what} is {variance.min():.2g}, further below 0 than rounding explains",
            remedy=f"The {matrix} is too near to singular. Give a larger noise.",
        )
    return np.clip(variance, 0.0, None)


def root(covariance: np.ndarray, jitter: float) -> np.ndarray:
    """R (n, n) with R R^T = covariance, which may be singular; more than rounding below 0 is an error."""
    allowed = len(covariance) * ROUNDING * float(np.abs(covariance).max(initial=0.0)) + jitter
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    if len(values) and values[0] < -allowed:
        raise InferenceError(
            f"the covariance is not positive: its smallest eigenvalue is {values[0]:.2g}, and rounding "
            f"explains {allowed:.1g}",
            remedy="Give a larger noise; where the kernel is sampled, use more points.",
        )
    return vectors * np.sqrt(np.clip(values, 0.0, None))
