"""Preconditioned conjugate gradients: solves with a stored matrix by products with it.

Let D = diag(nugget), and let B B^T be the Nystrom approximation of D^-1/2 K D^-1/2 from random columns. The
scaled matrix A and its preconditioner P are

    A = D^-1/2 K D^-1/2 + 1,
    P = U diag(l) U^T + 1,    P^p = 1 + U diag((1 + l)^p - 1) U^T,

where U and l are the left singular vectors and the squared singular values of B. Each step of conjugate
gradients takes one pass over the tiles, for all right-hand sides at once (Hestenes and Stiefel 1952;
Frangella, Tropp and Udell 2023).

    log det(K + D) = log det D + log det P + tr log(P^-1/2 A P^-1/2).

The trace is estimated by Gaussian quadrature from Lanczos runs of random vectors (Ubaru, Chen and Saad 2017).
With a good P it is small, and so is its error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy.linalg import eigh, eigh_tridiagonal, solve_triangular

from netsor.gp.factor import EPS, InferenceError, cholesky
from netsor.gp.stores.engines import Engine, completed, connected
from netsor.gp.stores.store import Store

MOST = 1000  # steps of conjugate gradients


@dataclass(frozen=True)
class Estimate:
    """A number and its error."""

    value: float
    error: float


class Gradients:
    """K + diag(nugget) as an operator, with its preconditioner.

    nugget  a number or (rows,)
    memory  bytes for the preconditioner and the vectors
    rank    number of columns of the Nystrom approximation; by default 1000, if memory allows
    engine  a Dask client or the address of a scheduler, for products with K
    """

    name = "pcg"

    def __init__(
        self,
        store: Store,
        nugget: np.ndarray,
        memory: int,
        rank: int | None = None,
        seed: int = 0,
        engine: Engine = None,
    ) -> None:
        rows = store.shape[0]
        self.store, self.root = store, np.sqrt(np.broadcast_to(nugget, (rows,)))[:, None]
        if not (self.root > 0).all():
            raise InferenceError(
                "conjugate gradients need a noise > 0", remedy='Give one, or solver="cholesky".'
            )
        self.rank = min(rows, rank or 1000, max(1, memory // (3 * 8 * rows)))
        self.seed, self.engine, self.steps = seed, engine, min(40, rows)  # of a Lanczos run
        chosen = np.sort(np.random.default_rng(seed).permutation(rows)[: self.rank])
        half = store.columns(chosen)
        corner = half[chosen]
        # K_rc (L L^T)^-1 K_cr with L L^T = K_cc. A nugget of the size of rounding makes K_cc positive
        # definite; for K = 0 it may be any positive number.
        lower = cholesky(corner, 4 * EPS * float(np.trace(corner)) or 1.0)
        half = solve_triangular(lower, half.T, lower=True, overwrite_b=True, check_finite=False).T
        half /= self.root
        values, turn = eigh(half.T @ half, overwrite_a=True, check_finite=False)
        kept = values > len(values) * EPS * values[-1]  # drop rounding, as U is divided by the square roots
        self.values = values[kept]
        self.vectors = half @ (turn[:, kept] / np.sqrt(self.values))

    def times(self, v: np.ndarray) -> np.ndarray:
        """A v, for vectors (rows, k)."""
        scaled = v / self.root
        if self.engine is None:
            return self.store.times(scaled) / self.root + v
        product, matrix, axis = np.empty_like(v), self.store.without_kernel(), self.store.grid.rows
        with connected(self.engine) as client:  # one task per row of tiles
            right = client.scatter(scaled, broadcast=True)
            for i, part in completed(client, matrix.row_times, ((i, right) for i in range(axis.count))):
                product[axis.span(i)] = part
        return product / self.root + v

    def power(self, v: np.ndarray, p: float) -> np.ndarray:
        """P^p v, for vectors (rows, k)."""
        weight = (1 + self.values) ** p - 1
        return v + self.vectors @ (weight[:, None] * (self.vectors.T @ v))

    def solve(
        self, right: np.ndarray, tol: float, step: Callable[[], None] = lambda: None
    ) -> tuple[np.ndarray, float]:
        """x = (K + diag(nugget))^-1 b for b (rows, k), and the largest |b - (K + diag(nugget)) x| / |b|."""
        size = np.linalg.norm(right, axis=0)
        b = right / self.root
        x, r = np.zeros_like(b), b.copy()
        z = self.power(r, -1.0)
        p, rho = z.copy(), np.sum(r * z, axis=0)
        # The textbook recursion for A x = b with preconditioner P: residuals r, directions p, z = P^-1 r.
        # The stopping rule undoes the scaling by D^1/2, so that `tol` refers to the original system.
        for _ in range(MOST):
            if np.all(np.linalg.norm(self.root * r, axis=0) <= tol * size):
                break
            q = self.times(p)  # the pass over all tiles, which takes nearly all of the time
            step()
            weight = _ratio(rho, np.sum(p * q, axis=0))
            x += weight * p
            r -= weight * q
            z = self.power(r, -1.0)
            rho, before = np.sum(r * z, axis=0), rho
            p = z + _ratio(rho, before) * p
        # The recursive residual drifts by rounding, so convergence is judged by the true one.
        reached = relative_residual(self.root * self.times(x), right)
        if reached > 2 * tol:
            raise InferenceError(
                f"conjugate gradients stop at a relative residual of {reached:.1e} after {MOST} steps",
                remedy=f'Give a larger rank= (now {self.rank}), noise= or tol=, or solver="cholesky".',
            )
        return x / self.root, reached

    def log_determinant(self, probes: int = 16, step: Callable[[], None] = lambda: None) -> Estimate:
        """Estimate log det(K + diag(nugget)) from `probes` random vectors.

        The error is two standard errors of the probes plus the change in the last steps.
        """
        rows = len(self.root)
        # Hutchinson's estimator: tr f = E[v^T f v] for random signs v.
        start = np.random.default_rng(self.seed + 1).choice([-1.0, 1.0], (rows, probes))
        alphas, betas = self._lanczos(start / np.sqrt(rows), step)
        # The difference to five steps less estimates the error of the quadrature.
        full, short = (
            np.array([rows * _quadrature(alphas[:k, c], betas[: k - 1, c]) for c in range(probes)])
            for k in (self.steps, max(1, self.steps - 5))
        )
        spread = float(full.std(ddof=1)) / sqrt(probes)
        preconditioner = float(np.log1p(self.values).sum() + 2 * np.log(self.root).sum())
        error = 2 * spread + float(np.abs(full.mean() - short.mean()))
        return Estimate(preconditioner + float(full.mean()), error)

    def _lanczos(self, start: np.ndarray, step: Callable[[], None]) -> tuple[np.ndarray, np.ndarray]:
        """Tridiagonal matrices of P^-1/2 A P^-1/2 for the unit vectors in the columns of `start` (rows, k).

        Returns the diagonals (steps, k) and the off-diagonals (steps - 1, k).
        """
        basis, steps = [start], self.steps
        alphas, betas = np.zeros((steps, start.shape[1])), np.zeros((steps - 1, start.shape[1]))
        for k in range(steps):
            w = self.power(self.times(self.power(basis[-1], -0.5)), -0.5)
            step()
            alphas[k] = np.sum(basis[-1] * w, axis=0)
            # Full reorthogonalization, twice: without it rounding makes spurious copies of eigenvalues.
            for _ in range(2):
                for v in basis:
                    w -= np.sum(v * w, axis=0) * v
            if k + 1 < steps:
                betas[k] = np.linalg.norm(w, axis=0)
                basis.append(_ratio(w, betas[k]))
        return alphas, betas


def _quadrature(alpha: np.ndarray, beta: np.ndarray) -> float:
    """e_1^T log(T) e_1 for a tridiagonal T; a zero off the diagonal ends the block that contains e_1."""
    ends = np.flatnonzero(beta <= EPS * np.abs(alpha[:-1]))
    last = int(ends[0]) + 1 if len(ends) else len(alpha)
    nodes, vectors = eigh_tridiagonal(alpha[:last], beta[: last - 1])
    return float(np.sum(vectors[0] ** 2 * np.log(np.maximum(nodes, EPS))))


def relative_residual(product: np.ndarray, right: np.ndarray) -> float:
    """max |b - A x| / |b| over the columns of A x (`product`) and b (`right`)."""
    left = np.linalg.norm(right - product, axis=0)
    return float(np.max(_ratio(left, np.linalg.norm(right, axis=0)), initial=0.0))


def _ratio(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x / y, and 0 where y = 0: converged columns stay unchanged."""
    return np.divide(x, y, out=np.zeros(np.broadcast_shapes(x.shape, y.shape)), where=y > 0)
