"""E[x1 ... xn] = sum over pairings of the products of cov(xi, xj): Isserlis' theorem (1918).

Variables with a mean may also stay unpaired; each of these contributes its mean as a factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import combinations
from operator import add, mul
from typing import Any

from netsor.limits.methods.component import Component, Method
from netsor.limits.rules.recorder import Asking, Recorder, zero
from netsor.limits.rules.setting import Setting


class Isserlis(Method):
    """Sum over all pairings of up to six variables: 15 pairings."""

    name = "Isserlis"
    cost = 16

    def applies(self, x: Setting, c: Component) -> bool:
        return c.is_unary and 2 < len(c.atoms) <= 6 and all(a.is_identity for a in c.atoms)

    def value(self, r: Recorder, c: Component) -> Asking:
        sides = [(0, a.forms[0]) for a in c.left] + [(1, a.forms[0]) for a in c.right]
        # Blocks by the variables that they pair, or leave alone; None is 0.
        factors: dict[tuple[int, ...], Any] = {}
        for i, (side, form) in enumerate(sides):
            factors[i,] = None if r.forms.is_centred(form) else (yield from c.mean(side, form))
        for i, j in combinations(range(len(sides)), 2):
            factors[i, j] = yield from c.cov(sides[i], sides[j])

        def pairings(variables: list[int]) -> Iterator[list[tuple[int, ...]]]:
            """Yield all ways to pair variables, or to leave them alone."""
            if not variables:
                yield []
                return
            i, *later = variables
            yield from ([(i,), *groups] for groups in pairings(later))
            for j in later:
                yield from ([(i, j), *groups] for groups in pairings([k for k in later if k != j]))

        products = [[factors[group] for group in groups] for groups in pairings([*range(len(sides))])]
        parts = [reduce(mul, blocks) for blocks in products if not any(x is None for x in blocks)]
        return reduce(add, parts) if parts else zero(r, c.pair, 0, 0)
