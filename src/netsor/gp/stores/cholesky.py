"""The Cholesky factor of a stored matrix, in the store, block by block.

    A = K + diag(nugget),    L_jj L_jj^T = A_jj - sum_m L_jm L_jm^T,
    L_ij = (A_ij - sum_m L_im L_jm^T) L_jj^-T,    m < j < i.

The algorithm is left-looking: it completes one column of blocks after the other. So it writes each block
once, and an interrupted run resumes at the first missing block. Memory holds three blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import groupby

import numpy as np
from scipy.linalg import solve_triangular

from netsor.errors import DataError
from netsor.gp.factor import cholesky, log_determinant
from netsor.gp.stores.conjugate_gradients import Estimate, relative_residual
from netsor.gp.stores.engines import Engine, completed, connected
from netsor.gp.stores.store import Store
from netsor.progress import bar


class StoredFactor:
    """The lower Cholesky factor of K + diag(nugget), stored as another array of K's store.

    `nugget` is a number or (rows,); `memory`, in bytes, must hold four blocks.
    """

    name = "cholesky"

    def __init__(self, store: Store, nugget: np.ndarray, memory: int) -> None:
        self.store, self.axis, self.memory = store, store.grid.rows, memory
        self.steps = self.axis.count  # rows of blocks
        self.nugget = np.broadcast_to(np.asarray(nugget, np.float64), (store.shape[0],))
        block = 8 * self.axis.chunk**2
        if memory < 4 * block:
            raise DataError(
                f"a block of {self.axis.chunk} rows takes {block / 2**20:.3g} MB, and four of them do not "
                f"fit into {memory / 2**20:.3g} MB",
                remedy="Allow more with memory=, or store the kernel with smaller tiles.",
            )
        # The array's name contains a hash of the nugget, so factors of several noises can coexist.
        self.array = f"cholesky_{store.name}_" + hashlib.sha256(self.nugget.tobytes()).hexdigest()[:16]
        store.require_factor(self.array)

    def block(self, i: int, j: int) -> np.ndarray:
        """Read block L_ij, i >= j."""
        return self.store.stored(self.array, i, j)

    def complete(self, progress: bool | None = None, engine: Engine = None) -> None:
        """Compute the missing blocks, those of a column in parallel on a cluster, and lock the store."""
        blocks = [(i, j) for j in range(self.steps) for i in range(j, self.steps)]  # column by column
        missing = [block for block in blocks if self.store.written(self.array, *block) is None]
        if not missing:
            return
        with (
            self.store.writing(),
            bar(progress, len(missing), "factoring") as advance,
            connected(engine) as client,
        ):
            store = self.store if client is None else self.store.without_kernel()
            factor = StoredFactor(store, self.nugget, self.memory)
            # The blocks below the diagonal need the diagonal block, so that is computed here and first.
            for (_, diagonal), blocks in groupby(missing, lambda block: (block[1], block[0] == block[1])):
                for _ in completed(None if diagonal else client, factor._compute, blocks):
                    advance()

    def _compute(self, i: int, j: int) -> None:
        """Compute L_ij."""
        left = np.array(self.store.tile(i, j), np.float64)
        for m in range(j):
            across = self.block(j, m)
            left -= (across if i == j else self.block(i, m)) @ across.T
        if i == j:
            block = cholesky(left, self.nugget[self.axis.span(j)], overwrite=True)
        else:
            block = solve_triangular(self.block(j, j), left.T, lower=True, check_finite=False).T
        self.store.put(self.array, i, j, block)

    def forward(self, right: np.ndarray) -> np.ndarray:
        """L^-1 b for b (rows, k), by forward substitution."""
        z = np.array(right, np.float64)
        for i in range(self.steps):
            rows = self.axis.span(i)
            for m in range(i):
                z[rows] -= self.block(i, m) @ z[self.axis.span(m)]
            z[rows] = solve_triangular(self.block(i, i), z[rows], lower=True, check_finite=False)
        return z

    def solve(self, right: np.ndarray) -> tuple[np.ndarray, float]:
        """x = (K + diag(nugget))^-1 b = L^-T L^-1 b for b (rows, k), and the largest relative residual."""
        z = self.forward(right)  # then back substitution, from the last block row up
        for i in reversed(range(self.steps)):
            rows = self.axis.span(i)
            for m in range(i + 1, self.steps):
                z[rows] -= self.block(m, i).T @ z[self.axis.span(m)]
            z[rows] = solve_triangular(self.block(i, i), z[rows], lower=True, trans=1, check_finite=False)
        return z, relative_residual(self.store.times(z) + self.nugget[:, None] * z, right)

    def log_determinant(self, step: Callable[[], None]) -> Estimate:
        """log det(K + diag(nugget)) = 2 sum_i log L_ii, without error."""
        total = 0.0
        for i in range(self.steps):
            total += float(log_determinant(self.block(i, i)))
            step()
        return Estimate(total, 0.0)
