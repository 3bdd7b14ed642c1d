"""Whether a limit exists: all its numbers are finite."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsor.errors import LimitError

__all__ = ["finite"]

ROWS = 256  # that are looked at at a time: a large kernel fills the memory already


def finite(value: Any) -> Any:
    """The value, unless it has a NaN or an infinity: then there is no limit."""
    if not _is_finite(np.asarray(value)):
        raise LimitError(
            "this program has no limit on these inputs: an expectation is not finite",
            remedy="Either what is divided by is 0 (layernorm or batchnorm of equal values, a mask with no "
            "1), or a nonlinearity has a pole, grows too fast, or is not defined where its argument goes.",
        )
    return value


def _is_finite(value: np.ndarray) -> bool:
    """Whether all entries are finite. If their sum is, they are, which takes half the time."""
    parts = value if value.ndim > 1 else value[None]
    with np.errstate(over="ignore", invalid="ignore"):
        some = (parts[a : a + ROWS] for a in range(0, len(parts), ROWS))
        return all(bool(np.isfinite(np.sum(part)) or np.isfinite(part).all()) for part in some)
