"""The Cholesky factor of a stored matrix, in the store, block by block.

    A = K + diag(nugget),    L_jj L_jj^T = A_jj - sum_m L_jm L_jm^T,
    L_ij = (A_ij - sum_m L_im L_jm^T) L_jj^-T,    m < j < i.

The algorithm is left-looking: it completes one column of blocks after the other. So it writes each block
once, and an interrupted run resumes at the first missing block. Memory holds three blocks, and as many blocks
of row j as fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import solve_triangular

from netsor.errors import DataError
from netsor.gp.factor import cholesky
from netsor.gp.stores.conjugate_gradients import Estimate, relative_residual
from netsor.gp.stores.engines import Engine, completed, connected
from netsor.gp.stores.lock import writing
from netsor.gp.stores.store import Store
from netsor.progress import bar

if TYPE_CHECKING:
    from distributed import Client


class StoredFactor:
    """The lower Cholesky factor of K + diag(nugget), stored as another array of K's store.

    nugget  a number or (rows,)
    memory  bytes for blocks
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
        self.kept = memory // block - 3  # number of blocks of row j that stay in memory
        # The array's name contains a hash of the nugget, so factors of several noises can coexist.
        self.array = f"cholesky_{store.name}_" + hashlib.sha256(self.nugget.tobytes()).hexdigest()[:16]
        store.require_factor(self.array)

    def span(self, i: int) -> slice:
        return slice(*self.axis.span(i))

    def block(self, i: int, j: int) -> np.ndarray:
        """Read block L_ij, i >= j."""
        return self.store.stored(self.array, i, j)

    def missing(self) -> list[tuple[int, int]]:
        """List the missing blocks, column by column."""
        blocks = [(i, j) for j in range(self.steps) for i in range(j, self.steps)]
        return [block for block in blocks if self.store.written(self.array, *block) is None]

    def complete(self, progress: bool | None = None, engine: Engine = None) -> None:
        """Compute the missing blocks, under the exclusive lock of the store.

        On a cluster (`engine`) the blocks of a column below the diagonal are computed in parallel.
        """
        if not self.missing():
            return
        with (
            writing(self.store.path, shared=False),
            bar(progress, len(self.missing()), "factoring") as advance,
        ):
            if engine is None:
                self._compute_all(advance)
            else:
                with connected(engine) as client:
                    self._compute_on(client, advance)

    def _compute_all(self, advance: Callable[[], None]) -> None:
        row: dict[int, np.ndarray] = {}  # m -> L_jm for the current column j
        now = -1
        for i, j in self.missing():
            if j != now:
                now, row = j, {m: self.block(j, m) for m in range(min(j, self.kept))}
            self._compute(i, j, row)
            advance()

    def _compute_on(self, client: Client, advance: Callable[[], None]) -> None:
        for _, column in groupby(self.missing(), key=lambda block: block[1]):
            blocks = list(column)
            if blocks[0][0] == blocks[0][1]:  # the others need the diagonal block
                self._compute(*blocks.pop(0), {})
                advance()
            remote = StoredFactor(self.store.without_kernel(), self.nugget, self.memory)
            for _ in completed(client, remote._compute, ((i, j, {}) for i, j in blocks)):
                advance()

    def _compute(self, i: int, j: int, row: dict[int, np.ndarray]) -> None:
        """Compute L_ij; `row` holds some of the blocks L_jm."""
        left = np.array(self.store.tile(i, j), np.float64)
        for m in range(j):
            across = row[m] if m in row else self.block(j, m)
            left -= (across if i == j else self.block(i, m)) @ across.T
        if i == j:
            block = cholesky(left, self.nugget[self.span(j)], overwrite=True)
        else:
            block = solve_triangular(self.block(j, j), left.T, lower=True, check_finite=False).T
        self.store.put(self.array, i, j, block)

    def forward(self, right: np.ndarray) -> np.ndarray:
        """L^-1 b for b (rows, k), by forward substitution."""
        z = np.array(right, np.float64)
        for i in range(self.steps):
            rows = self.span(i)
            for m in range(i):
                z[rows] -= self.block(i, m) @ z[self.span(m)]
            z[rows] = solve_triangular(self.block(i, i), z[rows], lower=True, check_finite=False)
        return z

    def solve(self, right: np.ndarray) -> tuple[np.ndarray, float]:
        """x = (K + diag(nugget))^-1 b = L^-T L^-1 b for b (rows, k), and the largest relative residual."""
        z = self.forward(right)  # then back substitution, from the last block row up
        for i in reversed(range(self.steps)):
            rows = self.span(i)
            for m in range(i + 1, self.steps):
                z[rows] -= self.block(m, i).T @ z[self.span(m)]
            z[rows] = solve_triangular(self.block(i, i), z[rows], lower=True, trans=1, check_finite=False)
        return z, relative_residual(self.store.times(z) + self.nugget[:, None] * z, right)

    def log_determinant(self, step: Callable[[], None]) -> Estimate:
        """log det(K + diag(nugget)) = 2 sum_i log L_ii, without error."""
        total = 0.0
        for i in range(self.steps):
            total += 2 * float(np.log(np.diagonal(self.block(i, i))).sum())
            step()
        return Estimate(total, 0.0)
