"""Array helpers of the closed forms: an exact determinant, and divisions and roots that are safe at zero."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_jax_array

__all__ = ["Array", "as_floats", "determinant", "nowhere", "ratio", "root"]

Array = Any


def as_floats(*values: Any) -> list[Array]:
    """The values as floating arrays of one type."""
    arrays = [v for v in values if hasattr(v, "dtype")] or [np.asarray(0.0)]
    xp = array_namespace(*arrays)
    floats = [a for a in arrays if xp.isdtype(a.dtype, "real floating")]
    dtype = xp.result_type(*floats) if floats else xp.asarray(0.0).dtype
    return [xp.astype(v, dtype) if hasattr(v, "dtype") else xp.asarray(v, dtype=dtype) for v in values]


def nowhere(condition: Array) -> bool:
    """Whether the condition is known to hold nowhere (under JAX, where it may be traced, it is not known)."""
    return not is_jax_array(condition) and not bool(array_namespace(condition).any(condition))


def root(x: Array) -> Array:
    """sqrt(x) for x > 0, else 0, with a derivative that is finite at 0."""
    xp = array_namespace(x)
    return xp.where(x > 0, xp.sqrt(xp.where(x > 0, x, 1.0)), 0.0)


def ratio(x: Array, y: Array) -> Array:
    """x / y, and 0 where y = 0."""
    xp = array_namespace(x, y)
    return xp.where(y == 0, 0.0, x / xp.where(y == 0, 1.0, y))


def _split(x: Array) -> tuple[Array, Array]:
    """x = high + low, each with half the digits (Veltkamp's splitting)."""
    bits = array_namespace(x).finfo(x.dtype).bits
    scaled = x * (134217729.0 if bits == 64 else 4097.0)
    high = scaled - (scaled - x)
    return high, x - high


def _product(x: Array, y: Array) -> tuple[Array, Array]:
    """x y = product + error, exactly (Dekker 1971, "A floating-point technique")."""
    (a, b), (c, d), product = _split(x), _split(y), x * y
    return product, ((a * c - product) + a * d + b * c) + b * d


def determinant(q1: Array, q2: Array, c: Array) -> Array:
    """q1 q2 - c^2 without cancellation; 0 where rounding has made it negative."""
    xp = array_namespace(q1, q2, c)
    (p, p_error), (s, s_error) = _product(q1, q2), _product(c, c)
    det = (p - s) + (p_error - s_error)
    return xp.where(det > 0, det, 0.0)
