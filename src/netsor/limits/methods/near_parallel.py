"""Covariances of variables that are the same, or multiples of each other, up to rounding.

By Price's theorem the second moment of f(x) and g(y) changes with their covariance like E[f'(x) g'(y)], which
is no trouble for functions that grow like their argument. But where f is bounded and steep, as sign is, and
tanh and erf are at large variances, rounding in the last place near correlation 1 becomes an error of up to
1e-8, and in the next layer of 1e-4; a series that converges slowly is at its worst there. So variables whose
correlation is 1 or -1 up to a few units in the last place count as parallel. What that may cost is in the
error (`closed.aligned_pair`); equal and nearly equal inputs are computed in another way (`limits.near`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from netsor.expect.closed.arrays import as_floats
from netsor.lang.analysis import about
from netsor.lang.expr import Expr
from netsor.lang.facts import Growth
from netsor.limits.recursion.forms import HOLE
from netsor.limits.tape.traced import array_namespace

__all__ = ["NearParallel"]

Array = Any
UNITS = 16.0  # of 1 - correlation^2, in units of the last place


@dataclass(frozen=True)
class NearParallel:
    """The covariance of two variables; at correlations of almost 1 or -1 the one of these, and so many units
    of the last place `beyond`.

    A covariance a little beyond its range has a determinant that is not positive, which counts as 0.
    """

    beyond: float = 0.0
    elementary = True  # made of operations that can be recorded

    @classmethod
    def of(cls, *bodies: Expr, closed: bool) -> NearParallel | None:
        """What two functions need; None for those that are continuous and grow like a power."""
        found = [about(body, HOLE.name) for body in bodies]
        if all(f.jumps == () and f.growth in (Growth.LINEAR, Growth.POLYNOMIAL) for f in found):
            return None
        return cls(2.0 if closed and all(f.jumps for f in found) else 0.0)

    def holds(self, cov: Array, q1: Array, q2: Array) -> Array:
        """Whether they count as parallel."""
        xp, product = array_namespace(cov, q1, q2), q1 * q2
        info = xp.finfo(cov.dtype)
        eps = float(info.eps)
        near = xp.abs(product - cov * cov) <= UNITS * eps * product
        return near & (product > float(info.smallest_normal) / eps)

    def __call__(self, cov: Array, q1: Array, q2: Array) -> Array:
        cov, q1, q2 = as_floats(cov, q1, q2)
        xp, near = array_namespace(cov, q1, q2), self.holds(cov, q1, q2)
        most = xp.sqrt(xp.where(near, q1 * q2, 1.0)) * (1.0 + self.beyond * float(xp.finfo(cov.dtype).eps))
        return xp.where(near, xp.where(cov < 0, -most, most), cov)
