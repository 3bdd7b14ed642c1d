"""Which expectations a computation has, by which method, and their largest errors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any


@dataclass(frozen=True)
class Expectation:
    """Expectations of one kind: their method, the number of blocks, and the largest error so far."""

    what: str
    method: str
    count: int = 0
    error: float = 0.0
    otherwise: str = ""  # what the method falls back to for values on which it fails


@dataclass
class Notes:
    """What a recording notes: expectations while recording, errors while running."""

    kinds: dict[tuple[str, str], Expectation] = field(default_factory=dict)
    errors: dict[tuple[str, str], float] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)
    inexact: bool = False  # whether some numbers have errors beyond rounding
    diagonal: bool = False  # whether to compute an input with itself separately, more exactly than a pair
    steep: bool = False  # whether functions are so steep that covariances of nearly equal inputs lack digits
    _lock: Any = field(default_factory=Lock, repr=False)

    def add(self, what: str, method: str, otherwise: str = "") -> None:
        """Note that a block of expectations is recorded."""
        before = self.kinds.get((what, method), Expectation(what, method, otherwise=otherwise))
        self.kinds[what, method] = replace(before, count=before.count + 1)

    def remark(self, text: str) -> None:
        """Note something that a reader of the plan should know."""
        self.remarks[text] = None

    def report(self, what: str, method: str, error: float) -> None:
        """Note an error that a run has found; threads may call this at the same time."""
        with self._lock:
            self.errors[what, method] = max(error, self.errors.get((what, method), 0.0))

    @property
    def largest_error(self) -> float:
        return max(self.errors.values(), default=0.0)

    def expectations(self) -> tuple[Expectation, ...]:
        return tuple(replace(kind, error=self.errors.get(key, 0.0)) for key, kind in self.kinds.items())
