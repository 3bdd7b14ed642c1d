"""Which expectations a computation has, by which method, and their largest errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any

__all__ = ["Expectation", "Notes"]


@dataclass(frozen=True)
class Expectation:
    """Expectations of one kind: what they are, their method, how many blocks, and the largest error so far.

    otherwise   what is done where the method fails on values
    """

    what: str
    method: str
    count: int
    error: float = 0.0
    otherwise: str = ""


@dataclass
class Notes:
    """What a recording notes: expectations as they are recorded, errors as they are computed.

    inexact   whether some numbers have errors beyond rounding
    diagonal  whether an input with itself is to be computed apart, as it is more exact than a pair
    cancels   whether errors are asked for, and sums may be so small that the rounding of their terms counts
    steep     whether some functions are so steep that covariances of nearly equal inputs have too few digits
    """

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    otherwise: dict[tuple[str, str], str] = field(default_factory=dict)
    errors: dict[tuple[str, str], float] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)
    inexact: bool = False
    diagonal: bool = False
    steep: bool = False
    cancels: bool = False
    _lock: Any = field(default_factory=Lock, repr=False)

    def add(self, what: str, method: str, otherwise: str = "") -> None:
        """A block of expectations is recorded."""
        key = what, method
        self.counts[key] = self.counts.get(key, 0) + 1
        if otherwise:
            self.otherwise[key] = otherwise

    def remark(self, text: str) -> None:
        """Something that a reader of the plan should know."""
        self.remarks[text] = None

    def report(self, what: str, method: str, error: float) -> None:
        """An error that a run has found; runs may be on several threads."""
        key = what, method
        with self._lock:
            self.errors[key] = max(error, self.errors.get(key, 0.0))

    @property
    def largest_error(self) -> float:
        return max(self.errors.values(), default=0.0)

    def expectations(self) -> tuple[Expectation, ...]:
        return tuple(
            Expectation(*key, count, self.errors.get(key, 0.0), self.otherwise.get(key, ""))
            for key, count in self.counts.items()
        )
