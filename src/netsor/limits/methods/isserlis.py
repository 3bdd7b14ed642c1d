"""Isserlis' theorem: E of a product of Gaussian variables."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from netsor.limits.methods.component import Component
from netsor.limits.recursion.pairs import PerPair
from netsor.limits.recursion.recorder import Asking, Recorder

__all__ = ["Isserlis"]

MOST = 6  # variables: so many can be paired up in 15 ways


class Isserlis:
    """The sum over all ways to pair variables up; those that stay alone count by their means."""

    name = "Isserlis"
    cost = 16

    def applies(self, r: Recorder, c: Component) -> bool:
        return c.is_unary and 2 < len(c.atoms) <= MOST and all(a.is_identity for a in c.atoms)

    def value(self, r: Recorder, c: Component) -> Asking:
        sides = [(0, a.forms[0]) for a in c.left] + [(1, a.forms[0]) for a in c.right]
        means: list[Any] = []
        for side, form in sides:
            centred = r.forms.is_centred(form)
            means.append(None if centred else (yield from c.mean(side, form)))
        covs: dict[tuple[int, int], Any] = {}
        for i, j in combinations(range(len(sides)), 2):
            covs[i, j] = yield from c.cov(sides[i], sides[j])

        def moment(rest: tuple[int, ...]) -> Any:
            """E of the product of some of the variables; None is 0."""
            if not rest:
                return 1.0
            i, others = rest[0], rest[1:]
            total = _times(means[i], moment(others)) if means[i] is not None else None
            for j in others:
                if covs[i, j] is not None:
                    part = _times(covs[i, j], moment(tuple(k for k in others if k != j)))
                    total = part if total is None else total if part is None else total + part
            return total

        found = moment(tuple(range(len(sides))))
        if found is None:
            zero = r.xp.zeros((1,) * c.pair.batch)
            return PerPair(c.pair.shared(zero), c.pair, 0, 0)
        return found


def _times(block: PerPair, factor: Any) -> Any:
    if factor is None:
        return None
    return block if isinstance(factor, float) else block * factor
