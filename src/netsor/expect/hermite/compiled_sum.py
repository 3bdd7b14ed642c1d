"""sum_k a_k b_k c^k for all pairs as a loop compiled by Numba (the extra `fast`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from netsor.machine_code import compiled

LEAST_ELEMENTS = 2**13  # smaller blocks do not repay compiling, so NumPy computes them
TERMS = 8  # terms per pass over a row of pairs; zeros fill up to a multiple of it


def horner(a: np.ndarray, b: np.ndarray, rho: np.ndarray) -> np.ndarray | None:
    """Return the sum for coefficients (..., 1, terms) and (1, ..., terms) of the two sides, or None.

    None means that nothing is to be gained, or that the arrays are not an outer product of left and right.
    """
    if rho.size < LEAST_ELEMENTS or rho.dtype not in (np.float64, np.float32) or find_spec("numba") is None:
        return None
    if not any(_is_split_at(a.shape[:-1], b.shape[:-1], rho.shape, d) for d in range(rho.ndim + 1)):
        return None
    left, right = (x.reshape(-1, x.shape[-1]) for x in (a, b))
    step, start = (2, 1) if _vanish(left, right, 0) else (2, 0) if _vanish(left, right, 1) else (1, 0)
    kept = (z[:, start::step] for z in (left, right))
    x, y = (np.pad(z, ((0, 0), (0, -z.shape[1] % TERMS))) for z in kept)
    table = np.ascontiguousarray(rho).reshape(len(left), len(right))
    out = np.empty_like(table)
    _loop()(x, np.ascontiguousarray(y.T), table, step, start, out)
    return out.reshape(rho.shape)


def _is_split_at(rows: tuple[int, ...], cols: tuple[int, ...], full: tuple[int, ...], d: int) -> bool:
    """Return whether the axes before d belong to the left side, and all others to the right side."""
    rows, cols = ((*(1,) * (len(full) - len(shape)), *shape) for shape in (rows, cols))
    return rows == (*full[:d], *(1,) * (len(full) - d)) and cols == (*(1,) * d, *full[d:])


def _vanish(left: np.ndarray, right: np.ndarray, parity: int) -> bool:
    """Return whether all terms of one parity are zero, as for odd and even functions."""
    return not (left[:, parity::2].any() and right[:, parity::2].any())


@cache
def _loop() -> Callable[..., Any]:
    """Horner's rule with TERMS terms per pass over a row of pairs, a loop that compilers vectorise."""

    def loop(left, right, rho, step, start, out):
        rows, terms = left.shape
        cols = rho.shape[1]
        power, total = np.empty(cols, rho.dtype), np.empty(cols, rho.dtype)
        for i in range(rows):
            for j in range(cols):
                c = rho[i, j]
                power[j] = c * c if step == 2 else c
                total[j] = 0.0
            for k in range(terms - TERMS, -1, -TERMS):
                for j in range(cols):
                    t = total[j]
                    for n in range(TERMS - 1, -1, -1):
                        t = t * power[j] + left[i, k + n] * right[k + n, j]
                    total[j] = t
            for j in range(cols):
                out[i, j] = total[j] * (rho[i, j] if start == 1 else 1.0)

    return compiled(loop, error_model="numpy", nogil=True, fastmath={"contract"})
