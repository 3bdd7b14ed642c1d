"""How a limit is computed: the options of `ns.kernel` and `ns.limit`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import ceil, sqrt
from typing import Any

import numpy as np

from netsor import arguments
from netsor.errors import LimitError

__all__ = ["SIGMAS", "Options"]

START, FIRST, GOOD = 2**12, 2**10, 5e-4  # points without a tolerance, and first ones with one
MORE = 4  # how many times the points a second try has at most
RATE = 0.8  # errors of scrambled Sobol points fall about like points^-0.8 here
SIGMAS = 2.0  # standard errors that a tolerance covers
AIM, MOST_REPEATS = 0.8, 4  # what part of a tolerance to aim at, and how many times the repeats to take
REPEAT = 2**11  # what a repeat costs beside its points, in points
RISK = 1.25  # what more points must save beside more repeats, as only the rate of these is sure
METHODS = ("auto", "exact", "sample")


@dataclass(frozen=True)
class Options:
    """How a limit is computed.

    method   "exact" raises where there is no exact method, "sample" samples every family
    tol      sampling grows until twice the error is below tol * sqrt(K_ii K_jj), or raises LimitError
    seed     of the sample points
    dtype    of the kernel: float64 or float32
    points   sample points per repeat (a power of two) to begin with; without a tolerance 4096, and up to
             four times as many for a second try if the error is above 5e-4 of the scale
    repeats  independent randomisations, whose spread is the error; a tolerance may take up to four times
             as many
    max_points  sample points per repeat that a tolerance may take
    progress  a bar, in a log a line every ten seconds; by default for runs longer than two seconds
    confirm  begin a run that takes more than an hour by its plan; without it, such a run is refused
    memory   bytes of workspace beyond inputs and kernel; by default 256 MB, or what one pair of inputs
             needs, or one repeat of what is sampled
    """

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
        """The options by their names; a name that is not one is an error that says which was meant."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                close = get_close_matches(name, known, n=1, cutoff=0.5)
                meant = f"Did you mean `{close[0]}`? " if close else ""
                raise LimitError(
                    f"there is no option `{name}`", remedy=f"{meant}Options: {', '.join(known)}."
                )
        return cls(**options)

    def __post_init__(self) -> None:
        arguments.choice("method", self.method, METHODS, error=LimitError)
        object.__setattr__(self, "seed", arguments.seed(self.seed, error=LimitError))
        self._require_whole("repeats", 2)
        self._require_whole("max_points", 1)
        if self.points is not None:
            self._require_whole("points", 1)
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
        self._require_real_type()
        for name in ("points", "repeats", "max_points") if self.method == "exact" else ():
            if getattr(self, name) != getattr(Options, name):
                raise LimitError(
                    f'method="exact" and {name}={getattr(self, name)} contradict each other',
                    remedy="An exact limit has no sample points. Leave out one of them, or use "
                    'method="sample".',
                )

    def _require_whole(self, name: str, least: int) -> None:
        found = arguments.whole(name, getattr(self, name), least, error=LimitError)
        object.__setattr__(self, name, found)

    def _require_real_type(self) -> None:
        real = [np.dtype(np.float64), np.dtype(np.float32)]
        plain = isinstance(self.dtype, type | np.dtype) or self.dtype in [d.name for d in real]
        if not plain or np.dtype(self.dtype) not in real:
            raise LimitError(
                f"dtype={self.dtype!r}",
                remedy="The numbers of a kernel are real: dtype=np.float64 or np.float32.",
            )

    @property
    def first_points(self) -> int:
        """Sample points to begin with."""
        return self.points or min(self.max_points, FIRST if self.tol else START)

    @property
    def most_points(self) -> int:
        """Sample points that are likely to be enough: errors decide."""
        return self.points or min(self.max_points, MORE * self.first_points)

    def further(self, points: int, repeats: int, reached: float) -> tuple[int, int] | None:
        """How many points and repeats to take next, or None if the error is good enough.

        The error falls like points^-RATE and like repeats^-1/2. Further repeats join those there are, so
        they are cheaper where little is missing; more points start again.
        """
        if self.tol is None:
            if self.points is not None or reached <= GOOD or points > START or 2 * points > self.max_points:
                return None
            return min((2 if reached <= 2 * GOOD else MORE) * points, self.max_points), self.repeats
        if SIGMAS * reached <= self.tol:
            return None
        missing = SIGMAS * reached / (AIM * self.tol)
        wanted, fresh = ceil(repeats * missing**2), self.repeats
        costs: dict[tuple[int, int], float] = {}
        if wanted <= MOST_REPEATS * fresh:
            costs[points, wanted] = (points + REPEAT) * (wanted - repeats)
        alone = missing * sqrt(repeats / fresh)  # with as many repeats as a new start has
        factor = 2
        while points * factor <= self.max_points:
            total = fresh * max(1.0, alone / factor**RATE) ** 2
            costs[points * factor, fresh] = RISK * (points * factor + REPEAT) * total
            factor *= 2
        if not costs:
            raise LimitError(
                f"the tolerance {self.tol:g} is not reached",
                remedy=f"With {points} points the standard error is {reached:.2g}, and twice that counts. "
                "Allow more with max_points=..., or a larger tol.",
            )
        return min(costs, key=lambda key: costs[key])
