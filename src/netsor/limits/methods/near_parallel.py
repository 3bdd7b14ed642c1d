"""Covariances of variables that are equal, or multiples of each other, up to rounding.

By Price's theorem dE[f(x) g(y)] / d cov = E[f'(x) g'(y)]. This derivative is harmless for functions that grow
like their argument. A bounded steep function (sign; tanh and erf at large variances) has a large derivative
near correlation 1: there one rounding error grows to 1e-8, and in the next layer to 1e-4. Hermite series also
converge most slowly there. So correlations within a few units in the last place of 1 or -1 count as exactly 1
or -1. `closed.aligned_pair` adds the possible error of this choice to the error bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from netsor.expect.closed.arrays import as_floats
from netsor.lang.analysis import about
from netsor.lang.expr import Expr
from netsor.lang.facts import Growth
from netsor.limits.rules.atoms import HOLE
from netsor.limits.tape.traced import array_namespace

Array = Any


@dataclass(frozen=True)
class NearParallel:
    """Round correlations of almost 1 or -1 to exactly 1 or -1, and return the covariance.

    The rounded covariance exceeds its range by `beyond` units in the last place. A closed form then sees a
    determinant below 0, which it treats as 0, so rounding cannot leave a small positive one.
    """

    beyond: float = 0.0
    elementary = True  # made of operations that can be recorded

    @classmethod
    def of(cls, *bodies: Expr, closed: bool) -> NearParallel | None:
        """Return what a pair of functions needs; None if both are continuous and grow like a power."""
        facts = [about(body, HOLE.name) for body in bodies]
        if all(f.jumps == () and f.growth in (Growth.LINEAR, Growth.POLYNOMIAL) for f in facts):
            return None
        return cls(2.0 if closed and all(f.jumps for f in facts) else 0.0)

    def holds(self, cov: Array, q1: Array, q2: Array) -> Array:
        """Return whether two variables count as parallel."""
        xp, product = array_namespace(cov, q1, q2), q1 * q2
        info = xp.finfo(cov.dtype)
        eps = float(info.eps)
        # 1 - rho^2 is about 2 (1 - rho), and products round too: 16 eps are a few units in the last place.
        near = xp.abs(product - cov * cov) <= 16.0 * eps * product
        # Below this bound the product has lost digits itself, and the comparison says nothing.
        return near & (product > float(info.smallest_normal) / eps)

    def __call__(self, cov: Array, q1: Array, q2: Array) -> Array:
        cov, q1, q2 = as_floats(cov, q1, q2)
        xp, near = array_namespace(cov, q1, q2), self.holds(cov, q1, q2)
        most = xp.sqrt(xp.where(near, q1 * q2, 1.0)) * (1.0 + self.beyond * float(xp.finfo(cov.dtype).eps))
        return xp.where(near, xp.where(cov < 0, -most, most), cov)
