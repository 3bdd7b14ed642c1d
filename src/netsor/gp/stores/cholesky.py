"""The Cholesky factor of a stored matrix, in the store, block by block.

    A = K + diag(nugget),    L_jj L_jj^T = A_jj - sum_m L_jm L_jm^T,
    L_ij = (A_ij - sum_m L_im L_jm^T) L_jj^-T,    m < j < i.

The algorithm is left-looking: it completes one column of blocks after the other. So it writes each block
once, and an interrupted run resumes at the first missing block. Memory holds three blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from itertools import groupby
from operator import itemgetter

import numpy as np
from scipy.linalg import solve_triangular

from netsor.errors import DataError
from netsor.gp.factor import cholesky
from netsor.gp.stores.conjugate_gradients import Estimate, relative_residual
from netsor.gp.stores.engines import Engine, completed, connected
from netsor.gp.stores.grid import Tile
from netsor.gp.stores.lock import writing
from netsor.gp.stores.store import Store
from netsor.progress import bar


class StoredFactor:
    """The lower Cholesky factor of K + diag(nugget), stored as another array of K's store.

    nugget  a number or (rows,)
    memory  bytes for blocks: four of them must fit
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

    def missing(self) -> list[Tile]:
        """List the missing blocks, column by column."""
        blocks = [(i, j) for j in range(self.steps) for i in range(j, self.steps)]
        return [block for block in blocks if self.store.written(self.array, *block) is None]

    def complete(self, progress: bool | None = None, engine: Engine = None) -> None:
        """Compute the missing blocks, under the exclusive lock of the store.

        On a cluster (`engine`) the blocks of a column below the diagonal are computed in parallel.
        """
        missing = self.missing()
        if not missing:
            return
        with (
            writing(self.store.path, shared=False),
            bar(progress, len(missing), "factoring") as advance,
            nullcontext() if engine is None else connected(engine) as client,
        ):
            for _, column in groupby(missing, key=itemgetter(1)):
                blocks = list(column)
                # The blocks below the diagonal need the diagonal block, so that is computed here and first.
                local = [(i, j) for i, j in blocks if client is None or i == j]
                for block in local:
                    self._compute(*block)
                    advance()
                if len(local) < len(blocks):
                    remote = StoredFactor(self.store.without_kernel(), self.nugget, self.memory)
                    for _ in completed(client, remote._compute, (b for b in blocks if b not in local)):
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
            total += 2 * float(np.log(np.diagonal(self.block(i, i))).sum())
            step()
        return Estimate(total, 0.0)
