"""Whether a limit exists: its numbers are finite, and of a size that can be squared."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from netsor.errors import LimitError

__all__ = ["finite", "in_range", "sound_range"]

MARGIN = 1e5  # the largest factor by which a formula multiplies a product of two variances
ROWS = 256  # rows checked at a time, because a large kernel fills the memory already


@cache
def sound_range(dtype: str) -> tuple[float, float]:
    """The least and the largest variance whose products with others are numbers of this type."""
    limits = np.finfo("float32" if dtype == "bfloat16" else dtype)
    return float(limits.smallest_normal) ** 0.5 * MARGIN, float(limits.max) ** 0.5 / MARGIN


def finite(value: Any) -> Any:
    """The value, unless it has a NaN or an infinity: then there is no limit."""
    # If the sum of numbers is finite, they all are, which takes half the time.
    with np.errstate(over="ignore", invalid="ignore"):
        parts = (
            bool(np.isfinite(part.sum()) or np.isfinite(part).all()) for part in _parts(np.asarray(value))
        )
        is_finite = all(parts)
    if not is_finite:
        raise LimitError(
            "this program has no limit on these inputs: an expectation is not finite",
            remedy="Either what is divided by is 0 (layernorm or batchnorm of equal values, a mask with no "
            "1), or a nonlinearity has a pole, grows too fast, or is not defined where its argument goes.",
        )
    return value


def in_range(kernel: np.ndarray) -> np.ndarray:
    """The kernel, unless its numbers are too large or too small to be squared, as its errors are."""
    peak = max((float(np.abs(part).max(initial=0.0)) for part in _parts(kernel)), default=0.0)
    limits = np.finfo(kernel.dtype)
    least, most = float(limits.smallest_normal) ** 0.5, float(limits.max) ** 0.5
    if peak and not least <= peak <= most:
        raise LimitError(
            f"the largest covariance of the outputs is {peak:.1e}, which is out of range",
            remedy=f"It is 0 or between {least:.0e} and {most:.0e} in {kernel.dtype.name}: scale the inputs "
            "or the variance of the readout.",
        )
    return kernel


def _parts(value: np.ndarray) -> Any:
    rows = value.reshape(-1, value.shape[-1] if value.ndim else 1)
    return (rows[a : a + ROWS] for a in range(0, len(rows), ROWS))
