"""Whether a limit exists: its numbers, and the squares of its numbers, are finite."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from netsor.errors import LimitError


@cache
def sound_range(dtype: str) -> tuple[float, float]:
    """Return the least and the largest variance whose products neither under- nor overflow."""
    limits = np.finfo("float32" if dtype == "bfloat16" else dtype)
    margin = 1e5  # no formula multiplies a product of two variances by a larger factor
    return float(limits.smallest_normal) ** 0.5 * margin, float(limits.max) ** 0.5 / margin


def finite(value: Any) -> Any:
    """Return the value, or raise LimitError if it contains NaN or infinity: then there is no limit."""
    # A finite sum proves that all terms are finite, in half the time. It may overflow, so check entries then.
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = _row_blocks(np.asarray(value))
        is_finite = all(np.isfinite(rows.sum()) or np.isfinite(rows).all() for rows in blocks)
    if not is_finite:
        raise LimitError(
            "this program has no limit on these inputs: an expectation is not finite",
            remedy="Either what is divided by is 0 (layernorm or batchnorm of equal values, a mask with no "
            "1), or a nonlinearity has a pole, grows too fast, or is not defined where its argument goes.",
        )
    return value


def in_range(kernel: np.ndarray) -> np.ndarray:
    """Return the kernel, or raise LimitError if its numbers are too large or too small to be squared."""
    peak = max((float(np.abs(rows).max(initial=0.0)) for rows in _row_blocks(kernel)), default=0.0)
    limits = np.finfo(kernel.dtype)
    least, most = float(limits.smallest_normal) ** 0.5, float(limits.max) ** 0.5
    if peak and not least <= peak <= most:
        raise LimitError(
            f"the largest covariance of the outputs is {peak:.1e}, which is out of range",
            remedy=f"It is 0 or between {least:.0e} and {most:.0e} in {kernel.dtype.name}: scale the inputs "
            "or the variance of the readout.",
        )
    return kernel


def _row_blocks(value: np.ndarray) -> Iterator[np.ndarray]:
    """Yield some rows at a time: a large kernel leaves no memory for a copy."""
    rows, count = value.reshape(-1, value.shape[-1] if value.ndim else 1), 256
    return (rows[start : start + count] for start in range(0, len(rows), count))
