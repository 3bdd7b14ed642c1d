"""The Cholesky factor of a stored matrix, in the store, block by block.

    A = K + diag(nugget),    L_jj L_jj^T = A_jj - sum_m L_jm L_jm^T,
    L_ij = (A_ij - sum_m L_im L_jm^T) L_jj^-T,    m < j < i.

Columns of blocks come one after the other (left-looking), so a block is written once, and the blocks that are
there say where to go on. In memory are three blocks, and as much of row j as there is room for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from netsor.errors import DataError
from netsor.gp.factor import cholesky
from netsor.gp.stores.dask import completed, connected
from netsor.gp.stores.lock import writing
from netsor.gp.stores.store import Store
from netsor.progress import bar

__all__ = ["Factor"]


class Factor:
    """The lower factor of K + diag(nugget), beside K in its store.

    memory  bytes for blocks
    """

    name = "cholesky"

    def __init__(self, store: Store, nugget: np.ndarray, memory: int) -> None:
        self.store, self.axis, self.memory = store, store.grid.rows, memory
        self.nugget = np.broadcast_to(np.asarray(nugget, np.float64), (store.shape[0],))
        block = 8 * self.axis.chunk**2
        if memory < 4 * block:
            raise DataError(
                f"a block of {self.axis.chunk} rows takes {block / 2**20:.3g} MB, and four of them do not "
                f"fit into {memory / 2**20:.3g} MB",
                remedy="Allow more with memory=, or store the kernel with smaller tiles.",
            )
        self.kept = memory // block - 3  # blocks of a row
        self.array = f"cholesky_{store.name}_" + hashlib.sha256(self.nugget.tobytes()).hexdigest()[:16]
        store.require_array(
            self.array,
            shape=store.shape,
            chunks=(self.axis.chunk, self.axis.chunk),
            dtype=np.float64,
            fill_value=np.nan,
        )

    @property
    def count(self) -> int:
        return self.axis.count

    def span(self, i: int) -> slice:
        return slice(*self.axis.span(i))

    def block(self, i: int, j: int) -> np.ndarray:
        """Block (i, j), i >= j."""
        return self.store.stored(self.array, self.span(i), self.span(j), (i, j))

    def missing(self) -> list[tuple[int, int]]:
        """The blocks that are not there yet, column by column."""
        there = self.store.done(self.array)
        return [(i, j) for j in range(self.count) for i in range(j, self.count) if (i, j) not in there]

    def complete(self, progress: bool | None = None, engine: Any = None) -> None:
        """Make all blocks that are missing; nobody else writes the store meanwhile.

        On a cluster (`engine`) the blocks of a column below the diagonal are computed at the same time.
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
        row: dict[int, np.ndarray] = {}  # blocks of the row of the current column
        now = -1
        for i, j in self.missing():
            if j != now:
                now, row = j, {m: self.block(j, m) for m in range(min(j, self.kept))}
            self._compute(i, j, row)
            advance()

    def _compute_on(self, client: Any, advance: Callable[[], None]) -> None:
        for _, column in groupby(self.missing(), key=lambda block: block[1]):
            blocks = list(column)
            if blocks[0][0] == blocks[0][1]:
                self._compute(*blocks.pop(0), {})
                advance()
            held = self.store.without_kernel()
            for _ in completed(client, _remote, ((held, self.nugget, self.memory, *b) for b in blocks)):
                advance()

    def _compute(self, i: int, j: int, row: dict[int, np.ndarray]) -> None:
        left = np.array(self.store.tile(i, j), np.float64)
        for m in range(j):
            across = row[m] if m in row else self.block(j, m)
            left -= (across if i == j else self.block(i, m)) @ across.T
        if i == j:
            made = cholesky(left, self.nugget[self.span(j)], overwrite=True)
        else:
            made = solve_triangular(self.block(j, j), left.T, lower=True, check_finite=False).T
        self.store.put(self.array, self.span(i), self.span(j), made)

    def forward(self, right: np.ndarray) -> np.ndarray:
        """L^-1 b, for many columns."""
        z = np.array(right, np.float64)
        for i in range(self.count):
            own = self.span(i)
            for m in range(i):
                z[own] -= self.block(i, m) @ z[self.span(m)]
            z[own] = solve_triangular(self.block(i, i), z[own], lower=True, check_finite=False)
        return z

    def solve(self, right: np.ndarray) -> np.ndarray:
        """(K + diag(nugget))^-1 b, for many columns."""
        z = self.forward(right)
        for i in reversed(range(self.count)):
            own = self.span(i)
            for m in range(i + 1, self.count):
                z[own] -= self.block(m, i).T @ z[self.span(m)]
            z[own] = solve_triangular(self.block(i, i), z[own], lower=True, trans=1, check_finite=False)
        return z

    def log_determinant(self) -> float:
        """log det(K + diag(nugget))."""
        diagonals = (np.diagonal(self.block(i, i)) for i in range(self.count))
        return 2 * sum(float(np.log(d).sum()) for d in diagonals)


def _remote(store: Store, nugget: np.ndarray, memory: int, i: int, j: int) -> None:
    """A block in a worker of a cluster."""
    Factor(store, nugget, memory)._compute(i, j, {})
