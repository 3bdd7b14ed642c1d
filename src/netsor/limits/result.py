"""A kernel matrix with an error for each entry, and how it was computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.limits.on_numpy.recording import Recording
from netsor.limits.plan import Plan, largest_entry


@dataclass(frozen=True)
class Bound:
    """An error for each entry without a second matrix: rounding, `left_i right_j`, and `more_ij` if any."""

    left: np.ndarray  # (rows,)
    right: np.ndarray  # (columns,)
    more: np.ndarray | None = None  # (rows, columns)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the errors of the rows from start to stop."""
        rounding = self.left[start:stop, None] * self.right
        return rounding if self.more is None else rounding + self.more[start:stop]

    @property
    def largest(self) -> float:
        """The largest error of an entry."""
        if self.more is None:
            return float(self.left.max(initial=0.0)) * float(self.right.max(initial=0.0))
        return max((float(rows.max(initial=0.0)) for rows in self._row_blocks()), default=0.0)

    @property
    def rms(self) -> float:
        """The root mean square error."""
        if self.more is None:
            return sqrt(float(np.mean(self.left**2)) * float(np.mean(self.right**2)))
        return sqrt(sum(float(np.sum(rows**2)) for rows in self._row_blocks()) / self.more.size)

    def relative(self, scale_left: np.ndarray, scale_right: np.ndarray) -> float:
        """Return the largest error relative to the scale `left_i right_j`, or absolute where that is 0."""
        both = zip(self._row_blocks(), Bound(scale_left, scale_right)._row_blocks(), strict=True)
        errors = (np.max(rows / np.where(scale > 0, scale, 1.0), initial=0.0) for rows, scale in both)
        return float(max(errors, default=0.0))

    def _row_blocks(self) -> Iterator[np.ndarray]:
        size = 64  # a few megabytes for a kernel of 10,000 inputs
        return (self.rows(a, a + size) for a in range(0, len(self.left), size))


@dataclass(frozen=True, repr=False)
class Result:
    """A kernel matrix, an error estimate for each entry (`error`), and its plan."""

    value: np.ndarray
    bound: Bound
    plan: Plan

    @classmethod
    def of(cls, value: np.ndarray, bound: Bound, plan: Plan) -> Result:
        """Make a result whose plan has the largest error and the largest entry."""
        return cls(value, bound, replace(plan, largest_error=bound.largest, scale=largest_entry(value)))

    @cached_property
    def error(self) -> np.ndarray:
        """Errors of the entries, (rows, columns); computed at the first use, as they take much memory."""
        return self.bound.rows(0, len(self.bound.left))

    def moved(self, other: np.ndarray, symmetric: bool, tol: float | None = None) -> Result:
        """Return a result with a further error: its largest change to `other`, relative to the scale."""
        scale, change = Scale.of(self.value, symmetric), np.abs(other - self.value)
        largest = Bound(0 * scale.left, 0 * scale.right, change).relative(scale.left, scale.right)
        more = np.maximum(largest * scale.products(), change)  # entries of scale 0 keep their own change
        bound = replace(self.bound, more=more + (0.0 if self.bound.more is None else self.bound.more))
        remedy = (
            "Differences in place of derivatives have an error of {:.2g} here. Give derivatives "
            "(ns.nonlin(..., derivative=...)), or use a larger tol."
        )
        scale.require(bound, tol, remedy)
        return Result.of(self.value, bound, self.plan)

    def explain(self) -> str:
        """Return which method computed each expectation, and with which error."""
        return str(self.plan)

    def __repr__(self) -> str:
        rows, columns = self.value.shape
        return f"<kernel of {rows} x {columns}, largest error {self.bound.largest:.1e}>"

    def _repr_html_(self) -> str:
        from netsor.display import fold, heat_map, panel

        maps = heat_map(self.value, "kernel") + heat_map(self.error, "error", logarithmic=True)
        plan = fold("plan", self.plan._repr_html_())
        return panel(repr(self)[1:-1], f'<div class="row">{maps}</div>', plan)


@dataclass(frozen=True)
class Scale:
    """Two vectors whose outer product is the scale of the entries: (rows,) and (columns,)."""

    left: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, value: np.ndarray, symmetric: bool) -> Scale:
        """Return standard deviations if there is a diagonal, else the root of the largest entry."""
        if symmetric:
            deviations = np.sqrt(np.clip(np.diagonal(value), 0, None))
            return cls(deviations, deviations)
        size = np.sqrt(largest_entry(value))
        return cls(np.full(value.shape[0], size), np.full(value.shape[1], size))

    def products(self) -> np.ndarray:
        """Return the scale of each entry, (rows, columns)."""
        return self.left[:, None] * self.right

    def require(self, bound: Bound, tol: float | None, remedy: str) -> None:
        """Raise LimitError if the error exceeds the tolerance; `remedy` has a placeholder for the error."""
        if tol is not None and (reached := bound.relative(self.left, self.right)) > tol:
            raise LimitError(f"the tolerance {tol:g} is not reached", remedy=remedy.format(reached))

    def counts(self, statements: int, dtype: Any, error: Any) -> bool:
        """Return whether an error is above rounding: a number relative to the largest entry, or a matrix."""
        # An entry of scale 0 always counts: a change of 0 there may be chance.
        allowed = _rounding(statements, dtype)
        if isinstance(error, float):
            return error > allowed * self.left.max(initial=0.0) * self.right.max(initial=0.0)
        rows = zip(error, self.left, strict=True)
        return not all(bool(np.all(np.abs(row) < allowed * scale * self.right)) for row, scale in rows)

    def rounding(self, statements: int, dtype: Any, more: np.ndarray | None = None) -> Bound:
        """Return the allowance for floating-point rounding, plus further errors."""
        return Bound(_rounding(statements, dtype) * self.left, self.right, more)


def _rounding(statements: int, dtype: Any) -> float:
    """Return the allowance for rounding: eight units in the last place for each statement."""
    return 8 * float(np.finfo(dtype).eps) * statements


def plan_of(recording: Recording, statements: int, shape: tuple[int, ...]) -> Plan:
    """Return the plan of a recording."""
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
        seconds=recording.work / 3e9,  # multiply-adds per second of an exact kernel, approximately
    )
