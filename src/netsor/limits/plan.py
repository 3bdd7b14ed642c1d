"""How a limit was computed, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.lang.program import Program
from netsor.limits.methods.expectation import Record

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """The expectations of a limit, each with its method and its largest error."""

    expectations: tuple[tuple[str, str, int, float], ...]  # what, method, how often, error
    statements: int
    largest_error: float
    scale: float
    compiled: bool = False
    sampled: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    dimensions: int = 0
    points: int = 0
    repeats: int = 0

    @classmethod
    def of(cls, record: Record, program: Program, error: Any, value: Any) -> Plan:
        rows = tuple((what, how, int(n), err) for (what, how), (n, err) in record.entries.items())
        size = len(program.statements)
        largest, scale = float(np.max(error, initial=0)), float(np.abs(value).max(initial=0))
        return cls(rows, size, largest, scale, record.compiled)

    @property
    def exact(self) -> bool:
        """Whether nothing was sampled."""
        return not self.sampled

    def __str__(self) -> str:
        lines = [f"A program of {self.statements} statements."]
        for what, how, count, error in self.expectations:
            tail = f", error at most {error:.1e}" if error else ""
            lines.append(f"  {what}: {how}, {count} block{'s' if count > 1 else ''}{tail}")
        if self.sampled:
            lines.append(
                f"  sampled: the families of {', '.join(self.sampled)} in {self.dimensions} dimensions, "
                f"{self.repeats} x {self.points} scrambled Sobol points"
            )
            lines += [f"    because {reason}" for reason in self.reasons]
        if self.compiled:
            lines.append("  elementwise steps ran as loops compiled by Numba")
        lines.append(f"Largest error of an entry: {self.largest_error:.1e} (largest entry {self.scale:.3g}).")
        return "\n".join(lines)
