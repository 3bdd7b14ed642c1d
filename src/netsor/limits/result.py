"""A kernel matrix with an error for each entry, and how it was computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.limits.bounds import Bound
from netsor.limits.on_numpy.recording import Recording
from netsor.limits.plan import Plan, largest_entry

__all__ = ["Result", "Scale", "plan_of"]

UNITS = 8  # of the last place for each statement: an allowance for rounding


@dataclass(frozen=True, repr=False)
class Result:
    """A kernel matrix, an error estimate for each entry (`error`), and how it was computed."""

    value: np.ndarray
    bound: Bound
    plan: Plan

    @classmethod
    def of(cls, value: np.ndarray, bound: Bound, plan: Plan) -> Result:
        """With the largest error and entry in its plan."""
        return cls(value, bound, replace(plan, largest_error=bound.largest, scale=largest_entry(value)))

    @cached_property
    def error(self) -> np.ndarray:
        """(rows, columns): written out when it is first asked for, as it is as large as the kernel."""
        return self.bound.full()

    def moved(self, other: np.ndarray, symmetric: bool, tol: float | None = None) -> Result:
        """With a further error: the largest change to another value, in units of the scale of the entries."""
        scale, change = Scale.of(self.value, symmetric), np.abs(other - self.value)
        largest = Bound(0 * scale.left, 0 * scale.right, change).relative(scale.left, scale.right)
        more = np.maximum(largest * scale.products(), change)  # where the scale is 0, too
        bound = replace(self.bound, more=more if self.bound.more is None else more + self.bound.more)
        scale.require(
            bound,
            tol,
            "Differences in place of derivatives have an error of {:.2g} here. Give derivatives "
            "(ns.nonlin(..., derivative=...)), or use a larger tol.",
        )
        return Result.of(self.value, bound, self.plan)

    def explain(self) -> str:
        """Which expectation was computed by which method, with which error."""
        return str(self.plan)

    def __repr__(self) -> str:
        rows, columns = self.value.shape
        return f"<kernel of {rows} x {columns}, largest error {self.bound.largest:.1e}>"

    def _repr_html_(self) -> str:
        from netsor.display import fold, heat_map, panel

        maps = heat_map(self.value, "kernel") + heat_map(self.error, "error", logarithmic=True)
        return panel(
            repr(self)[1:-1], f'<div class="row">{maps}</div>', fold("plan", self.plan._repr_html_())
        )


@dataclass(frozen=True)
class Scale:
    """Numbers of the rows and of the columns whose products are the scale of the entries."""

    left: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, value: np.ndarray, symmetric: bool) -> Scale:
        """Standard deviations where they are on the diagonal, else the root of the largest entry."""
        if symmetric:
            deviations = np.sqrt(np.clip(np.diagonal(value), 0, None))
            return cls(deviations, deviations)
        size = np.sqrt(largest_entry(value))
        return cls(np.full(value.shape[0], size), np.full(value.shape[1], size))

    def products(self) -> np.ndarray:
        """(rows, columns)."""
        return self.left[:, None] * self.right

    def require(self, bound: Bound, tol: float | None, remedy: str) -> None:
        """Refuse an error beyond a tolerance; the remedy has a place for it."""
        if tol is not None and (reached := bound.relative(self.left, self.right)) > tol:
            raise LimitError(f"the tolerance {tol:g} is not reached", remedy=remedy.format(reached))

    def counts(self, statements: int, dtype: Any, error: Any) -> bool:
        """Whether an error of entries, or of anything that counts like the largest, is above rounding.

        One of entries of scale 0 counts in any case: a change by 0 may be chance.
        """
        allowed = _rounding(statements, dtype)
        if isinstance(error, float):
            return error > allowed * self.left.max(initial=0.0) * self.right.max(initial=0.0)
        rows = zip(error, self.left, strict=True)
        return not all(bool(np.all(np.abs(row) < allowed * own * self.right)) for row, own in rows)

    def rounding(self, statements: int, dtype: Any, more: np.ndarray | None = None) -> Bound:
        """An allowance for floating-point rounding, and further errors."""
        return Bound(_rounding(statements, dtype) * self.left, self.right, more)


RATE = 3e9  # multiply-adds of an exact kernel in a second, about


def _rounding(statements: int, dtype: Any) -> float:
    return UNITS * float(np.finfo(dtype).eps) * statements


def plan_of(recording: Recording, statements: int, shape: tuple[int, ...]) -> Plan:
    """What a recording takes."""
    notes = recording.notes
    return Plan(
        notes.expectations(),
        statements,
        (shape[0], shape[1]),
        sum(len(tiles.places) for tiles in recording.tiles),
        recording.work,
        recording.bytes,
        recording.compiled,
        None,
        tuple(notes.remarks),
        seconds=recording.work / RATE,
    )
