"""E[x1 ... xn] = sum over pairings of the products of cov(xi, xj): Isserlis' theorem (1918).

Variables with a mean may also stay unpaired; each of these contributes its mean as a factor.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from netsor.limits.methods.component import Component, Method
from netsor.limits.rules.pairs import PerPair
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
        means: list[Any] = []
        for side, form in sides:
            centred = r.forms.is_centred(form)
            means.append(None if centred else (yield from c.mean(side, form)))
        covs: dict[tuple[int, int], Any] = {}
        for i, j in combinations(range(len(sides)), 2):
            covs[i, j] = yield from c.cov(sides[i], sides[j])

        def moment(variables: tuple[int, ...]) -> Any:
            """Return E of the product of these variables; None is 0. Pair the first one with each other."""
            if not variables:
                return 1.0
            i, later = variables[0], variables[1:]
            total = _times(means[i], moment(later)) if means[i] is not None else None
            for j in later:
                if covs[i, j] is not None:
                    paired = _times(covs[i, j], moment(tuple(k for k in later if k != j)))
                    total = paired if total is None else total if paired is None else total + paired
            return total

        block = moment(tuple(range(len(sides))))
        return zero(r, c.pair, 0, 0) if block is None else block


def _times(block: PerPair, factor: Any) -> Any:
    if factor is None:
        return None
    return block if isinstance(factor, float) else block * factor
