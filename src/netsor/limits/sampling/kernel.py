"""A kernel with sampled families: standard errors of the samples, and errors of the exact parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from netsor.expect.points.landmark_loadings import Landmarks
from netsor.limits.bounds import Bound
from netsor.limits.error_probes import Probe, error_of, probes
from netsor.limits.finite import in_range
from netsor.limits.plan import Plan, Sampling, require_patience
from netsor.limits.result import Result, Scale, plan_of
from netsor.limits.sampling.drawing import SharedState
from netsor.limits.sampling.repeats import Repeats
from netsor.limits.sampling.standard_error import Averages, HeavyPoints, unseen_error

Values = Mapping[str, Any]


class SampledKernel:
    """The mean over repeats, with its error.

    families, reasons   which families are sampled, and why
    """

    def __init__(self, repeats: Repeats, families: frozenset[str], reasons: tuple[str, ...]) -> None:
        self.repeats, self.families, self.reasons = repeats, families, reasons
        self.options, self.symmetric = repeats.options, repeats.rows.symmetric
        self.statements = len(repeats.program.statements)

    def plan(self, points: int, count: int) -> Plan:
        """Return the plan of `count` repeats with this number of points each."""
        repeats, rows = self.repeats, self.repeats.rows
        plan = plan_of(repeats.recording(points), self.statements, (rows.left_size, rows.right_size))
        families, variables = tuple(sorted(self.families)), repeats.variables(points)
        sampling = Sampling(families, self.reasons, points, count, variables, repeats.dimensions)
        compiled = plan.compiled or repeats.compiled
        memory, seconds = plan.bytes + repeats.bytes(points), repeats.seconds(points, count)
        return replace(plan, sampling=sampling, compiled=compiled, bytes=memory, seconds=seconds)

    def result(self, given: Values, errors: bool, shared: SharedState | None = None) -> Result:
        """Return the kernel; add points and repeats until the tolerance is reached.

        shared   choices of the first of several calls, which the others reuse
        """
        options, shared = self.options, shared or SharedState()
        shared.heavy = HeavyPoints()
        points, numbers, average = options.first_points, range(options.repeats), Averages()
        exact = None if errors or options.tol is not None else 0.0
        require_patience(self.plan(points, len(numbers)), options.confirm)
        while True:
            exact = self._add(average, given, points, numbers, shared, exact)
            scale, bound, weight = self._bound(average, shared, exact)
            more = options.further(points, average.count, bound.relative(scale.left, scale.right))
            if more is None:
                shared.arrays.clear()
                plan = self._explained(self.plan(points, average.count), weight, exact)
                return Result.of(average.mean, bound, plan)
            if more[0] == points:
                numbers = range(average.count, more[1])
            else:
                # More points start again, since points of different counts do not combine.
                points, numbers, average = more[0], range(more[1]), Averages()
                shared.heavy = HeavyPoints()

    def part(self, given: Values, landmarks: Landmarks) -> Result:
        """Return a kernel block of landmarks and other inputs, which are drawn as in any other block."""
        shared, average, points = SharedState(landmarks=landmarks), Averages(), self.options.first_points
        exact = self._add(average, given, points, range(self.options.repeats), shared, None)
        _, bound, _ = self._bound(average, shared, exact)
        return Result(average.mean, bound, self.plan(points, average.count))

    def _add(
        self,
        average: Averages,
        given: Values,
        points: int,
        numbers: range,
        shared: SharedState,
        exact: np.ndarray | float | None,
    ) -> np.ndarray | float:
        """Add repeats to an average; return the error of exact methods, from the first repeat if None."""
        for kernels in self.repeats.runs(given, points, numbers, shared):
            average.add(in_range(kernels))
            exact = self._exact_error(given, shared, kernels[0]) if exact is None else exact
        assert exact is not None
        return exact

    def _bound(
        self, average: Averages, shared: SharedState, exact: np.ndarray | float
    ) -> tuple[Scale, Bound, float]:
        """Return the scale of the entries, the bound of all errors, and the weight of the heaviest point."""
        weight, scale, error = shared.heavy.weight(), Scale.of(average.mean, self.symmetric), average.error
        # A point that dominates makes the spread of the repeats too small, so take the larger error.
        if weight:
            error = np.maximum(error, unseen_error(weight) * scale.products())
        error = error + exact
        if shared.landmarks is not None:
            # By Price's theorem, E[f g] changes with the covariance by the product of the slopes of f and g.
            # Slopes are at most 1 for gates and states, so the dropped covariance itself is a bound.
            outputs = len(average.mean) // len(shared.dropped)
            error += np.kron(shared.dropped, np.ones((outputs, outputs))) * scale.products()
        return scale, scale.rounding(self.statements, self.options.dtype, error), weight

    def _explained(self, plan: Plan, weight: float, exact: np.ndarray | float) -> Plan:
        """Return the plan with the notes of a run."""
        if np.any(exact):
            notes = self.repeats.recording(self.options.first_points).notes
            plan = replace(plan, expectations=notes.expectations(), remarks=tuple(notes.remarks))
        if weight > 0.02:
            remark = f"one sample point carries {weight:.0%} of a second moment: errors are larger"
            plan = replace(plan, remarks=(*plan.remarks, remark))
        return plan

    def _exact_error(self, given: Values, shared: SharedState, still: np.ndarray) -> np.ndarray | float:
        """Return the error of exact methods: how much perturbing them moves the first repeat.

        still   the kernel of the first repeat without perturbation, (rows, columns)
        """
        points = self.options.first_points
        recorder = self.repeats.recording(points).recorder
        notes, cancels = recorder.notes, recorder.forms.may_cancel
        if not notes.inexact and not cancels:
            return 0.0
        # Perturb with heavy points of their own, so that those of the kernel are not counted twice.
        apart = replace(shared, heavy=HeavyPoints())
        notes.errors.clear()

        def change(probe: Probe) -> np.ndarray:
            return self.repeats.probed(given, points, apart, probe) - still

        counts = partial(Scale.of(still, self.symmetric).counts, self.statements, self.options.dtype)
        error = error_of(probes(change, notes, cancels, counts))
        return 0.0 if error is None else error

    @property
    def has_landmarks(self) -> bool:
        """Whether inputs can be drawn given landmarks: one shape, and everything sampled is in tables."""
        if len(self.repeats.rows.groups) > 1 or self.repeats.tables is None:
            return False
        recorder = self.repeats.recording(self.options.first_points).recorder
        return not any(recorder.samples.drawn.values())
