"""How a limit is computed: the options of `ns.kernel` and `ns.limit`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import ceil, sqrt
from typing import Any

import numpy as np

from netsor import arguments
from netsor.errors import LimitError

DEFAULT_POINTS = 2**12  # sample points of a repeat without a tolerance
MOST_GROWTH = 4  # largest factor for the points of a second try


@dataclass(frozen=True)
class Options:
    """How a limit is computed: the options of `ns.kernel`, which explains them."""

    method: str = "auto"
    tol: float | None = None
    seed: int = 0
    dtype: Any = np.float64
    points: int | None = None
    repeats: int = 16
    max_points: int = 2**18
    progress: bool | None = None
    memory: int | None = None
    confirm: bool = False

    @classmethod
    def of(cls, **options: Any) -> Options:
        """Make options by name; an unknown name raises LimitError, which suggests a similar one."""
        names = [f.name for f in fields(cls)]
        for name in (name for name in options if name not in names):
            close = get_close_matches(name, names, n=1, cutoff=0.5)
            meant = f"Did you mean `{close[0]}`? " if close else ""
            raise LimitError(f"there is no option `{name}`", remedy=f"{meant}Options: {', '.join(names)}.")
        return cls(**options)

    def __post_init__(self) -> None:
        arguments.choice("method", self.method, ("auto", "exact", "sample"), error=LimitError)
        object.__setattr__(self, "seed", arguments.seed(self.seed, error=LimitError))
        for name, least in {"repeats": 2, "max_points": 1, "points": 1}.items():
            if name != "points" or self.points is not None:
                number = arguments.whole(name, getattr(self, name), least, error=LimitError)
                object.__setattr__(self, name, number)
        if self.points is not None:
            if self.points & (self.points - 1):
                below = 2 ** (self.points.bit_length() - 1)
                raise LimitError(
                    f"points={self.points} is not a power of two",
                    remedy=f"Sobol points are even in powers of two: take {below} or {2 * below}.",
                )
            if self.points > self.max_points:
                raise LimitError(
                    f"points={self.points} is more than max_points={self.max_points}",
                    remedy="Give max_points that is at least as large.",
                )
        if self.memory is not None:
            remedy = "Give a number of bytes, as in memory=2**30."
            arguments.number("memory", self.memory, above=0, remedy=remedy, error=LimitError)
        if self.tol is not None:
            arguments.number("tol", self.tol, above=0, error=LimitError)
        arguments.flag("progress", self.progress, or_none=True, error=LimitError)
        arguments.flag("confirm", self.confirm, error=LimitError)
        real = [np.dtype(np.float64), np.dtype(np.float32)]
        plain = isinstance(self.dtype, type | np.dtype) or self.dtype in [d.name for d in real]
        if not plain or np.dtype(self.dtype) not in real:
            raise LimitError(
                f"dtype={self.dtype!r}",
                remedy="The numbers of a kernel are real: dtype=np.float64 or np.float32.",
            )
        for name in ("points", "repeats", "max_points") if self.method == "exact" else ():
            if getattr(self, name) != getattr(Options, name):
                raise LimitError(
                    f'method="exact" and {name}={getattr(self, name)} contradict each other',
                    remedy="An exact limit has no sample points. Leave out one of them, or use "
                    'method="sample".',
                )

    @property
    def first_points(self) -> int:
        """Number of sample points to begin with."""
        return self.points or min(self.max_points, 2**10 if self.tol else DEFAULT_POINTS)

    @property
    def most_points(self) -> int:
        """Number of sample points that is likely to be enough; the error decides."""
        return self.points or min(self.max_points, MOST_GROWTH * self.first_points)

    def further(self, points: int, repeats: int, reached: float) -> tuple[int, int] | None:
        """Return how many points and repeats to take next, or None if the error is small enough.

        The error falls like points^-0.8 (scrambled Sobol points) and repeats^-1/2. Further repeats join those
        so far, so they are cheaper if little is missing. More points start again.
        """
        if self.tol is None:
            # Take more points once if the error is above 5e-4 of the scale.
            good, is_second = 5e-4, self.points is not None or points > DEFAULT_POINTS
            if is_second or reached <= good or 2 * points > self.max_points:
                return None
            growth = 2 if reached <= 2 * good else MOST_GROWTH
            return min(growth * points, self.max_points), self.repeats
        if 2 * reached <= self.tol:  # a tolerance covers two standard errors
            return None
        missing = 2 * reached / (0.8 * self.tol)  # aim below the tolerance: an error is an estimate
        needed, fresh = ceil(repeats * missing**2), self.repeats
        overhead = 2**11  # cost of a repeat besides its points, as a number of points
        costs: dict[tuple[int, int], float] = {}
        if needed <= 4 * fresh:  # more repeats than that gain too slowly
            costs[points, needed] = (points + overhead) * (needed - repeats)
        alone = missing * sqrt(repeats / fresh)  # the factor for a new start with `fresh` repeats
        factor, risk = 2, 1.25  # more points must save a fifth: the rate of points is less certain
        while points * factor <= self.max_points:
            total = fresh * max(1.0, alone / factor**0.8) ** 2
            costs[points * factor, fresh] = risk * (points * factor + overhead) * total
            factor *= 2
        if not costs:
            raise LimitError(
                f"the tolerance {self.tol:g} is not reached",
                remedy=f"With {points} points the standard error is {reached:.2g}, and twice that counts. "
                "Allow more with max_points=..., or a larger tol.",
            )
        return min(costs, key=lambda key: costs[key])
