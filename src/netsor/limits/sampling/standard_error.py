"""The average of independent repeats with its standard error, and an error for what no sample point has seen.

The spread of repeats says nothing about rare events and heavy tails. An event that no point meets gives 0
with error 0. For a function that grows like an exponential, the few largest values determine the mean, and
the next ones would change it by as much. So `HeavyPoints` keeps for every vector h the weight of its heaviest
point: the largest term of the sum of h^2, relative to that sum (of |h| if only the mean of h matters). If h
has the same value at all points, it is evaluated again at points that reach further.

The entries of an index are added up first, as kernels do. Of thousands of entries one always has a heavy
point, which says nothing about their sum.
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

Key = tuple[Hashable, Hashable]  # a group of vectors, and one vector of it


class Averages:
    """Mean and squared deviations of repeats, updated without cancellation (Welford 1962)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0  # an array after the first repeat
        self.squares: Any = 0.0

    def add(self, repeats: np.ndarray) -> None:
        """Add the values of further repeats, `(repeats, ...)`."""
        for value in repeats:
            self.count += 1
            change = value - self.mean
            self.mean = self.mean + change / self.count
            change *= value - self.mean
            self.squares += change

    @property
    def error(self) -> np.ndarray:
        """Standard error of the mean, with Student's factor for few repeats.

        Twice this error covers as much probability as two standard deviations of a normal law.
        """
        from scipy.special import ndtr, stdtrit  # slow to load, and only sampled limits need it

        factor = float(stdtrit(self.count - 1, ndtr(2.0))) / 2.0
        return factor * np.sqrt(self.squares / (self.count * (self.count - 1)))


def reaching(samples: np.ndarray) -> np.ndarray:
    """Move samples `(..., points)` of Gaussian variables further from their mean.

    Points at 3.7 standard deviations, the largest of a few thousand, move to 6. An event beyond 6 has
    probability 1e-9, which no kernel notices.
    """
    middle = samples.mean(axis=-1, keepdims=True)
    return middle + 1.6 * (samples - middle)


def unseen_error(weight: float) -> float:
    """Return an error, relative to the scale, for what no point has seen; `weight` is of the heaviest point.

    For exp(s x), step(x - s) and their products the kernel is off by between half and all of the heaviest
    point, whatever s: hence 0.7. Large weights vary much between seeds, and the smallest of them understate
    the error several times, so the factor grows with the weight.
    """
    return weight * (0.7 + 10.0 * weight)


@dataclass
class _Sums:
    """For each input, the largest term and the sum of terms (h^2 or |h|), and which entries are constant."""

    largest: Any = 0.0
    total: Any = 0.0
    constant: Any = True
    first: Any = None
    unseen: Any = False  # constant at the points, but not at points that reach further
    count: int = 0


@dataclass
class HeavyPoints:
    """The weights of the heaviest points over all repeats of a call; threads add to it."""

    sums: dict[Key, _Sums] = field(default_factory=dict)
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
        """Add values `(repeats, inputs, index..., points)` of a product of expressions.

        further   evaluates the product at points that reach further
        squared   whether second moments matter; else only means do
        """
        low, top = _range(values)
        entries = values.reshape(*values.shape[:2], -1, values.shape[-1])
        terms = np.einsum("rien,rien->rin", entries, entries) if squared else np.abs(entries).sum(axis=2)
        constant = _close(low, top)
        unseen = np.zeros_like(constant)
        if constant.any():
            furthest = _range(further())
            unseen = constant & ~(_close(furthest[0], low) & _close(furthest[1], top))
        with self._lock:
            sums = self.sums.setdefault(key, _Sums())
            self.exprs[key] = exprs
            sums.first = top if sums.first is None else sums.first
            sums.largest = np.maximum(sums.largest, terms.max(axis=(0, -1)))
            sums.total = sums.total + terms.sum(axis=(0, -1))
            sums.constant = sums.constant & constant & _close(top, sums.first)
            sums.unseen = sums.unseen | unseen
            sums.count += values.shape[0] * values.shape[-1]

    def weight(self) -> float:
        """Return the largest weight of a point in a moment of a sum of vectors, or 0 if all tails are light.

        A kernel adds up the vectors of one group (the first entry of a key), so a weight is relative to the
        largest of these. A weight that is too large for any error estimate is an error.
        """
        # `usual` is the ratio of the largest term to the mean for light tails. Above the weight
        # `most` no error
        # estimate holds.
        usual, most = 30.0, 0.25
        means = self._group_means()
        worst, which = 0.0, None
        for key, sums in self.sums.items():
            # Vectors of a group count together only if they have equally many inputs; else compare with the
            # largest.
            mean = means[key[0]] if means[key[0]].shape == sums.total.shape else means[key[0]].max()
            constant = np.reshape(sums.constant, (len(sums.total), -1)).all(axis=1)
            # A constant has no heavy points, however large its terms are.
            terms = np.where(constant, 0.0, sums.largest) / np.where(mean > 0, mean, 1.0)
            heaviest = float(np.max(terms, initial=0.0))
            # An event that no point has met has an unknown size, so it counts as all of the moment.
            weight = 1.0 if np.any(sums.constant & sums.unseen) else heaviest / sums.count
            if weight > worst and (weight == 1.0 or heaviest > usual):
                worst, which = weight, key
        if which is not None and worst > most:
            name = " * ".join(shown_short(e, 1000) for e in self.exprs[which])
            raise LimitError(
                f"too few sample points carry the moments of `{name}`: a rare event, or a heavy tail",
                remedy="Take more with points=..., make the event more frequent, or the function grow more "
                "slowly.",
            )
        return worst

    def _group_means(self) -> dict[Hashable, np.ndarray]:
        """For each group, the largest mean term of its vectors: by input if the vectors have equally many."""
        means: dict[Hashable, np.ndarray] = {}
        for (group, _), sums in self.sums.items():
            mean, largest = sums.total / sums.count, means.get(group, np.zeros(1))
            alike = mean.shape == largest.shape or 1 in (mean.size, largest.size)
            means[group] = np.maximum(mean, largest if alike else largest.max())
        return means


def _range(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest value of each entry; values are `(repeats, entries..., points)`."""
    return values.min(axis=-1).min(axis=0), values.max(axis=-1).max(axis=0)


def _close(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return whether numbers are equal up to rounding."""
    return np.abs(a - b) <= 1e-12 * np.abs(a)
