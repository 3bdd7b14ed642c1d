"""Array helpers of the closed forms: an exact determinant, and divisions and roots that are safe at zero."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import is_jax_array

from netsor.lang.array_api import array_namespace

Array = Any


def as_floats(*values: Any) -> list[Array]:
    """Return the values as floating-point arrays of one type."""
    arrays = [v for v in values if hasattr(v, "dtype")] or [np.asarray(0.0)]
    xp = array_namespace(*arrays)
    floats = [a for a in arrays if xp.isdtype(a.dtype, "real floating")]
    dtype = xp.result_type(*floats) if floats else xp.asarray(0.0).dtype
    return [_of_type(xp, v, dtype) for v in values]


def _of_type(xp: Any, value: Any, dtype: Any) -> Array:
    if not hasattr(value, "dtype"):
        return xp.asarray(value, dtype=dtype)
    return value if value.dtype == dtype else xp.astype(value, dtype)


def nowhere(condition: Array) -> bool:
    """Return whether the condition is certainly true nowhere; JAX arrays, maybe traced, are uncertain."""
    return not is_jax_array(condition) and not bool(array_namespace(condition).any(condition))


def root(x: Array) -> Array:
    """Return sqrt(x) for x > 0, else 0, with a derivative that is finite at 0."""
    xp = array_namespace(x)
    return xp.where(x > 0, xp.sqrt(xp.where(x > 0, x, 1.0)), 0.0)


def are_alike(x: complex, y: complex) -> bool:
    """Return whether two numbers are equal up to rounding."""
    return abs(x - y) <= 1e-14 * abs(y)


def ratio(x: Array, y: Array) -> Array:
    """x / y, and 0 where y = 0."""
    xp = array_namespace(x, y)
    return xp.where(y == 0, 0.0, x / xp.where(y == 0, 1.0, y))


def number_of(x: Array) -> Any:
    """Return the number that a recorded array is known to be, or else the array itself."""
    value = x.tape.constants.get(x.step) if hasattr(x, "tape") else None
    return float(value.item()) if value is not None and value.size == 1 else x


def _split(x: Array) -> tuple[Array, Array]:
    """x = high + low, each with half the digits (Veltkamp's splitting)."""
    bits = array_namespace(x).finfo(x.dtype).bits
    scaled = x * (134217729.0 if bits == 64 else 4097.0)
    high = scaled - (scaled - x)
    return high, x - high


def product_error(x: Array, y: Array, product: Array) -> Array:
    """x y - product, exactly, for the rounded product (Dekker 1971, "A floating-point technique").

    It is recorded as one step, for which compiled loops have an instruction.
    """
    tape = next((a.tape for a in (x, y, product) if hasattr(a, "tape")), None)
    if tape:
        return tape.elementwise(product_error, x, y, product)
    (a, b), (c, d) = _split(x), _split(y)
    return ((a * c - product) + a * d + b * c) + b * d


def determinant(q1: Array, q2: Array, c: Array) -> Array:
    """q1 q2 - c^2 without cancellation; 0 if rounding makes it negative."""
    xp = array_namespace(q1, q2, c)
    p, s = q1 * q2, c * c
    det = (p - s) + (product_error(q1, q2, p) - product_error(c, c, s))
    return xp.where(det > 0, det, 0.0)
