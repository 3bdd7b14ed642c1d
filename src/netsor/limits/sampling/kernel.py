"""A kernel some of whose families are sampled, with standard errors and those of its exact parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from netsor.expect.points.landmarks import Landmarks
from netsor.limits.finite import in_range
from netsor.limits.nudges import Nudge, changes, farthest
from netsor.limits.plan import Plan, Sampling, require_patience
from netsor.limits.result import Result, Scale, plan_of
from netsor.limits.sampling.averages import Averages
from netsor.limits.sampling.carried import HEAVY, unseen
from netsor.limits.sampling.repeats import Repeats

__all__ = ["SampledKernel"]

Values = Mapping[str, Any]


class SampledKernel:
    """The mean over repeats.

    families, reasons   what is sampled, and why
    """

    def __init__(self, repeats: Repeats, families: frozenset[str], reasons: tuple[str, ...]) -> None:
        self.repeats, self.families, self.reasons = repeats, families, reasons
        self.options, self.symmetric = repeats.options, repeats.rows.symmetric
        self.statements = len(repeats.program.statements)

    def plan(self, points: int, count: int) -> Plan:
        """What so many repeats with so many points take."""
        repeats, rows = self.repeats, self.repeats.rows
        made = plan_of(repeats.recording(points), self.statements, (rows.left_size, rows.right_size))
        families, variables = tuple(sorted(self.families)), repeats.variables(points)
        sampling = Sampling(families, self.reasons, points, count, variables, repeats.dimensions)
        compiled = made.compiled or repeats.compiled
        memory, seconds = made.bytes + repeats.bytes(points), repeats.seconds(points, count)
        return replace(made, sampling=sampling, compiled=compiled, bytes=memory, seconds=seconds)

    def result(self, given: Values, errors: bool, held: dict[str, Any] | None = None) -> Result:
        """The kernel; as many points and repeats as a tolerance takes.

        held   what the first of several runs has chosen, for the others
        """
        options, shared = self.options, {} if held is None else held
        shared.pop("carried", None)
        points, numbers, average = options.first_points, range(options.repeats), Averages()
        exact: Any = 0.0 if not errors and options.tol is None else None
        require_patience(self.plan(points, len(numbers)), options.confirm)
        while True:
            for some in self.repeats.kernels(given, points, numbers, shared):
                average.add(in_range(some))
                exact = self.exact_error(given, shared, some[0]) if exact is None else exact
            value, share = average.mean, shared["carried"].share()
            scale, error = Scale.of(value, self.symmetric), average.error
            if share:
                error = np.maximum(error, unseen(share) * scale.products())
            error = error + exact
            bound = scale.rounding(self.statements, options.dtype, error)
            more = options.further(points, average.count, bound.relative(scale.left, scale.right))
            if more is None:
                shared.pop("rooms", None)
                return Result.of(
                    value, bound, self._explained(self.plan(points, average.count), share, exact)
                )
            if more[0] == points:
                numbers = range(average.count, more[1])
            else:
                points, numbers, average = more[0], range(more[1]), Averages()
                shared.pop("carried")

    def _explained(self, plan: Plan, share: float, exact: Any) -> Plan:
        """With what a run has found out."""
        if np.any(exact):
            notes = self._moving.recording(self.options.first_points).notes
            plan = replace(plan, expectations=notes.expectations(), remarks=tuple(notes.remarks))
        if share > HEAVY:
            remark = f"one sample point carries {share:.0%} of a second moment: errors are larger"
            plan = replace(plan, remarks=(*plan.remarks, remark))
        return plan

    # What is not sampled

    def exact_error(self, given: Values, shared: Mapping[str, Any], still: np.ndarray) -> Any:
        """What the errors of exact methods come to: how far the first repeat moves with them."""
        points = self.options.first_points
        plain = self.repeats.recording(points).recorder
        if not plain.notes.inexact and not plain.forms.may_cancel:
            return 0.0
        own = {name: kept for name, kept in shared.items() if name != "carried"}
        notes = self._moving.recording(points).notes
        notes.errors.clear()

        def change(nudge: Nudge) -> np.ndarray:
            (moved,) = self._moving.kernels({**given, **nudge}, points, range(1), own)
            return moved[0] - still

        counts = partial(Scale.of(still, self.symmetric).counts, self.statements, self.options.dtype)
        found = farthest(changes(change, notes, counts))
        return 0.0 if found is None else found

    @cached_property
    def _moving(self) -> Repeats:
        return self.repeats.movable()

    # Landmarks

    @property
    def has_landmarks(self) -> bool:
        """Whether its inputs can be drawn with landmarks: all that is sampled is in tables, of one shape."""
        if len(self.repeats.rows.groups) > 1 or self.repeats.tables is None:
            return False
        recorder = self.repeats.recording(self.options.first_points).recorder
        return not any(recorder.samples.drawn.values())

    def part(self, given: Values, landmarks: Landmarks) -> Result:
        """The kernel of landmarks and others, each of which is drawn as with any others."""
        shared: dict[str, Any] = {"landmarks": landmarks}
        average, points = Averages(), self.options.first_points
        exact: Any = None
        for some in self.repeats.kernels(given, points, range(self.options.repeats), shared):
            average.add(in_range(some))
            exact = self.exact_error(given, shared, some[0]) if exact is None else exact
        value, error = average.mean, average.error
        scale, outputs = (
            Scale.of(value, self.symmetric),
            len(value) // (landmarks.count + len(landmarks.numbers)),
        )
        # By Price's theorem a covariance that landmarks leave out changes E[f g] by at most as much times the
        # slopes of f and g, which are at most 1 for gates and states: all of it counts.
        dropped = np.kron(shared["dropped"], np.ones((outputs, outputs)))
        error = np.maximum(error, unseen(shared["carried"].share()) * scale.products())
        error += dropped * scale.products() + exact
        bound = scale.rounding(self.statements, self.options.dtype, error)
        return Result(value, bound, self.plan(points, average.count))
