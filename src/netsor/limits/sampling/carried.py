"""Sampled vectors whose moments few sample points carry: rare events, and tails that are heavy.

The spread of repeats says nothing of what none of them has seen. An event that no point meets gives 0 with
error 0; of a function that grows like an exponential the few largest values decide, and the next ones would
change the mean by as much. So the share of the heaviest point in the sum of h^2 is kept for every vector h,
or of |h| where its mean is all that is asked for, and one that is constant at all points is looked at again
at points that reach further.

The members of an index are added up, as kernels add them up: of thousands of members one always has a heavy
point, which says nothing of their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.lang.expr import Expr
from netsor.lang.show import shown_short

__all__ = ["HEAVY", "Carried", "reaching", "unseen"]

FURTHER = 1.6  # points of 3.7 standard deviations reach 6: events beyond have a probability of 1e-9
HEAVY, MOST = 0.02, 0.25  # shares of the heaviest point: that are worth a remark; that are refused
USUAL = 30.0  # the heaviest h^2 beside its mean, of functions with light tails
ROUNDING = 1e-12  # relative: values that differ by less are one constant
WORTH, GROWTH = 0.7, 10.0  # what is not seen, in heaviest points: of small shares, and with the share

Key = tuple[Hashable, Hashable]  # a group of vectors, and one of them


def reaching(samples: np.ndarray) -> np.ndarray:
    """Samples (..., points) of Gaussian variables further from their mean."""
    middle = samples.mean(axis=-1, keepdims=True)
    return middle + FURTHER * (samples - middle)


def unseen(share: float) -> float:
    """An error for what no point has seen, relative to the scale, by the share of the heaviest point.

    Kernels of exp(s x), step(x - s) and their products are off by half of the heaviest point to all of it,
    at any s. But large shares differ much between seeds, and the least of them are off by several.
    """
    return share * (WORTH + GROWTH * share)


def _range(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest of (repeats, entries..., points) for each entry."""
    return values.min(axis=-1).min(axis=0), values.max(axis=-1).max(axis=0)


def _close(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether numbers are equal up to rounding."""
    return np.abs(a - b) <= ROUNDING * np.abs(a)


@dataclass
class _Sums:
    """Of h at all points so far: h^2, or |h|, for each input, and whether it is constant for each entry."""

    largest: Any = 0.0
    weights: Any = 0.0
    constant: Any = True
    first: Any = None
    unseen: Any = False
    count: int = 0


@dataclass
class Carried:
    """The shares of the heaviest points, over all repeats of a call."""

    found: dict[Key, _Sums] = field(default_factory=dict)
    exprs: dict[Key, Sequence[Expr]] = field(default_factory=dict)
    _lock: Any = field(default_factory=Lock, repr=False)

    def add(
        self,
        key: Key,
        exprs: Sequence[Expr],
        values: np.ndarray,
        further: Callable[[], np.ndarray],
        squared: bool = True,
    ) -> None:
        """Values (repeats, inputs, index..., points) of a product, and those at points that reach further.

        squared  whether second moments are asked for, or means alone
        """
        low, top = _range(values)
        members = values.reshape(*values.shape[:2], -1, values.shape[-1])
        weights = np.einsum("rien,rien->rin", members, members) if squared else np.abs(members).sum(axis=2)
        same = _close(low, top)
        beyond = np.zeros_like(same)
        if same.any():
            furthest = _range(further())
            beyond = same & ~(_close(furthest[0], low) & _close(furthest[1], top))
        with self._lock:
            sums = self.found.setdefault(key, _Sums())
            self.exprs[key] = exprs
            sums.first = top if sums.first is None else sums.first
            sums.largest = np.maximum(sums.largest, weights.max(axis=(0, -1)))
            sums.weights = sums.weights + weights.sum(axis=(0, -1))
            sums.constant = sums.constant & same & _close(top, sums.first)
            sums.unseen = sums.unseen | beyond
            sums.count += values.shape[0] * values.shape[-1]

    def share(self) -> float:
        """The largest share of a point in a moment of a sum of vectors, if that counts; refused if too large.

        Vectors of one group (the first of a key) are added up, so the share is of the largest of them.
        """
        means: dict[Hashable, Any] = {}
        for (group, _), sums in self.found.items():
            own, others = sums.weights / sums.count, means.get(group, np.zeros(1))
            alike = own.shape == others.shape or 1 in (own.size, others.size)
            means[group] = np.maximum(own, others if alike else others.max())
        worst, which = 0.0, None
        for key, sums in self.found.items():
            mean = means[key[0]] if means[key[0]].shape == sums.weights.shape else means[key[0]].max()
            constant = np.reshape(sums.constant, (len(sums.weights), -1)).all(axis=1)
            heavy = np.where(constant, 0.0, sums.largest) / np.where(mean > 0, mean, 1.0)
            heaviest = float(np.max(heavy, initial=0.0))
            share = 1.0 if np.any(sums.constant & sums.unseen) else heaviest / sums.count
            if share > worst and (share == 1.0 or heaviest > USUAL):
                worst, which = share, key
        if which is not None and worst > MOST:
            name = " * ".join(shown_short(e, 1000) for e in self.exprs[which])
            raise LimitError(
                f"too few sample points carry the moments of `{name}`: a rare event, or a heavy tail",
                remedy="Take more with points=..., make the event more frequent, or the function grow more "
                "slowly.",
            )
        return worst
