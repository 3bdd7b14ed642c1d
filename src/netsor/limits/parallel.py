"""Covariances of variables that are the same, or multiples of each other, up to rounding.

Near correlation 1 the second moment of two functions with jumps moves like the root of what is missing to 1:
a unit in the last place of a covariance becomes an error of 1e-8, and in the next layer of 1e-4. So variables
whose correlation is 1 or -1 up to a few units count as parallel, which equal inputs always are.
"""

from __future__ import annotations

from typing import Any

from netsor.limits.traced import array_namespace

__all__ = ["ROUNDING", "as_parallel"]

Array = Any
UNITS = 16.0  # of 1 - correlation^2, in units of the last place
ROUNDING = 4.0  # of a covariance, in the same units


def as_parallel(cov: Array, q1: Array, q2: Array, beyond: float) -> Array:
    """The covariance, at correlations of almost 1 or -1 the one of these, and so many units more.

    A covariance a little beyond its range has a determinant that is not positive, which counts as 0.
    """
    xp = array_namespace(cov, q1, q2)
    eps, tiny = (float(getattr(xp.finfo(cov.dtype), name)) for name in ("eps", "smallest_normal"))
    product = q1 * q2
    near = (xp.abs(product - cov * cov) <= UNITS * eps * product) & (product > tiny / eps)
    most = xp.sqrt(product) * (1.0 + beyond * eps)
    return xp.where(near, xp.where(cov < 0, -most, most), cov)
