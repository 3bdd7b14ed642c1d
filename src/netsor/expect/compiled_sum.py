"""sum_k a_k b_k c^k for all pairs as a loop compiled by Numba (the extra `fast`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

__all__ = ["horner"]

LEAST_ELEMENTS = 2**13  # smaller blocks are left to NumPy, which need not compile
LANES = 32  # pairs whose sums stay in registers together


def horner(a: Any, b: Any, rho: Any) -> np.ndarray | None:
    """The sum for coefficients (terms, ..., 1) and (terms, 1, ...) of the left and the right side, or None.

    None means that there is nothing to gain, or that the arrays are not left times right.
    """
    if rho.size < LEAST_ELEMENTS or rho.dtype != np.float64 or find_spec("numba") is None:
        return None
    lead = rho.ndim - sum(n > 1 for n in rho.shape)
    rows, cols = _sides(a.shape[1:], rho.shape), _sides(b.shape[1:], rho.shape)
    cut = next((d for d in range(rho.ndim + 1) if _is_cut(rows, cols, rho.shape, d)), None)
    if cut is None or lead == rho.ndim:
        return None
    left, right = (np.ascontiguousarray(x).reshape(len(x), -1) for x in (a, b))
    step, start = (2, 1) if _vanish(left, right, 0) else (2, 0) if _vanish(left, right, 1) else (1, 0)
    table = np.ascontiguousarray(rho).reshape(left.shape[1], right.shape[1])
    out = np.empty_like(table)
    _loop()(np.ascontiguousarray(left[start::step].T), right[start::step], table, step, start, out)
    return out.reshape(rho.shape)


def _sides(own: tuple[int, ...], full: tuple[int, ...]) -> tuple[bool, ...]:
    padded = (1,) * (len(full) - len(own)) + own
    return tuple(n > 1 for n in padded)


def _is_cut(rows: Any, cols: Any, full: tuple[int, ...], d: int) -> bool:
    """Whether the axes before d are those of the left side, and the others those of the right side."""
    long = [n > 1 for n in full]
    left, right = [*long[:d], *[False] * (len(full) - d)], [*[False] * d, *long[d:]]
    return list(rows) == left and list(cols) == right


def _vanish(left: np.ndarray, right: np.ndarray, parity: int) -> bool:
    """Whether all terms of one parity are zero, as for odd and even functions."""
    return not (left[parity::2].any() and right[parity::2].any())


@cache
def _loop() -> Callable[..., Any]:
    import numba  # type: ignore[import-not-found]

    @numba.njit(error_model="numpy", nogil=True)
    def loop(left, right, rho, step, start, out):
        rows, terms = left.shape
        cols = rho.shape[1]
        for i in range(rows):
            for at in range(0, cols, LANES):
                count = min(LANES, cols - at)
                power = np.ones(LANES)
                for j in range(count):
                    c = rho[i, at + j]
                    power[j] = c * c if step == 2 else c
                total = np.zeros(LANES)
                for k in range(terms - 1, -1, -1):
                    x = left[i, k]
                    for j in range(count):
                        total[j] = total[j] * power[j] + x * right[k, at + j]
                for j in range(count):
                    out[i, at + j] = total[j] * (rho[i, at + j] if start == 1 else 1.0)

    return loop
