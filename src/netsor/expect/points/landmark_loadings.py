"""Joint Gaussian variables of many inputs, a few at a time, so that each input is drawn alike in every call.

The variables of input i are z_i = S_i u + M_i v + N_i w_i, with

    S_i   loadings of data and random vectors, which all inputs share: exact, with common noise u
    M_i   the remaining covariance with the landmarks, the first inputs of every call, which are drawn
          jointly: exact for the landmarks' variables so far, with the landmarks' noise v
    N_i   the remaining covariance of an input with itself: exact, with noise w_i of its own

This leaves out only a part R_ij of the covariance: between two inputs that are no landmarks, and between
these and later variables of landmarks. The values of an input depend on the input, the landmarks and the seed
alone. So second moments of any two inputs are entries of one positive matrix. `dropped` measures what is left
out, and is part of the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from netsor.errors import DataError
from netsor.expect.points.loadings import Dimensions, Loadings
from netsor.expect.points.pivoted_cholesky import forward_substitute


@dataclass(frozen=True)
class Landmarks:
    """Which inputs of a call are landmarks, the first `count`, and the numbers that identify all others."""

    count: int
    numbers: np.ndarray


@dataclass
class _FamilyState:
    """The variables of a family so far. Lists of arrays have one array per step, with a row per other input.

    columns     which variables of the family belong to landmarks
    landmark_places    positions of the landmarks' dimensions among those of the family
    cross_rows  (others, rank at that step): M before the rotation of the landmarks' noise
    crosses     (others, dimensions at that step): M
    own_rows    (others, step + 1): N
    own_places  (others,): positions of the dimensions of the inputs' own noise
    starts      the first variable of the step
    deviations  (others,): standard deviations of the variables
    """

    columns: list[int] = field(default_factory=list)
    landmark_places: list[int] = field(default_factory=list)
    cross_rows: list[np.ndarray] = field(default_factory=list)
    crosses: list[np.ndarray] = field(default_factory=list)
    own_rows: list[np.ndarray] = field(default_factory=list)
    own_places: list[np.ndarray] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    deviations: list[np.ndarray] = field(default_factory=list)


class LandmarkLoadings:
    """The rows of [S M N] of one repeat.

    features   by family, S of its variables: (variables, width)
    dropped    (inputs, inputs): the sum over steps of the largest |R_ij| of a step, in units of the standard
               deviations of both variables
    """

    trails = None

    def __init__(self, landmarks: Landmarks, features: Sequence[np.ndarray]) -> None:
        self.landmarks, self.features = landmarks, features
        self.joint = Loadings()
        self.states: dict[int, _FamilyState] = {}
        self.dimensions: Dimensions = {}
        self.used = 0
        inputs = landmarks.count + len(landmarks.numbers)
        self.dropped = np.zeros((inputs, inputs))

    def extend(self, family: int, cov_with_old: np.ndarray, cov_new: np.ndarray) -> np.ndarray:
        """Return rows (new, dimensions of the family so far), from covariances (new, old) and (new, new)."""
        m, inputs, size = self.landmarks.count, len(cov_new), cov_with_old.shape[1]
        features = self.features[family][size : size + inputs]
        if family not in self.states:
            self.states[family] = _FamilyState()
            self._append(family, np.arange(self.used, self.used + features.shape[1]))
            self.used += features.shape[1]
        state = self.states[family]
        old = cov_with_old - features @ self.features[family][:size].T
        new = cov_new - features @ features.T
        self.joint.used = self.used
        before = len(self.joint.dimensions.get(family, ()))
        rows = self.joint.extend(family, old[:m, state.columns], new[:m, :m])
        self.used = self.joint.used
        state.landmark_places += list(self._append(family, self.joint.dimensions[family][before:]))
        state.columns += range(size, size + m)
        cross_rows = self._cross_rows(family, state, old, new)
        own_rows = self._own_rows(state, cross_rows, old, new)
        state.own_places.append(self._append(family, self._own_dimensions(family, len(state.starts))))
        state.cross_rows.append(cross_rows)
        state.own_rows.append(own_rows)
        crosses = self.joint.rotate(family, cross_rows, 0)
        deviations = np.sqrt(np.maximum(np.diagonal(cov_new), 0.0))
        self._count_dropped(state, np.concatenate([rows, crosses]), old, new, deviations)
        state.starts.append(size)
        state.crosses.append(crosses)
        state.deviations.append(deviations[m:])
        loadings = np.zeros((inputs, len(self.dimensions[family])))
        loadings[:, : features.shape[1]] = features
        loadings[:m, state.landmark_places] = rows
        loadings[m:, state.landmark_places] = crosses
        for k, places in enumerate(state.own_places):
            loadings[np.arange(m, inputs), places] = own_rows[:, k]
        return loadings

    def _append(self, family: int, dimensions: np.ndarray) -> np.ndarray:
        """Add dimensions of the points to those of a family; return their positions among these."""
        dimensions_so_far = self.dimensions.get(family, np.zeros(0, int))
        self.dimensions[family] = np.append(dimensions_so_far, dimensions)
        return np.arange(len(dimensions_so_far), len(dimensions_so_far) + len(dimensions))

    def _own_dimensions(self, family: int, step: int) -> np.ndarray:
        """Return the dimensions of the noise w_i of this step, which depend on the number of the input alone.

        They lie far beyond all other dimensions, so that calls with other inputs use the same ones.
        """
        first, steps = 2**24, 2**12
        if step >= steps:
            raise DataError(f"an input has more than {steps} sampled variables of one family")
        return first + (self.landmarks.numbers * len(self.features) + family) * steps + step

    def _cross_rows(self, family: int, state: _FamilyState, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return M of the other inputs before the rotation, (others, rank), within their variances."""
        m, factor = self.landmarks.count, self.joint.factors[family]
        columns = np.array(state.columns, int)[factor.pivots]
        rows = np.array(np.concatenate([old[m:], new[m:]], axis=1)[:, columns])
        forward_substitute(factor.lower, rows)
        longest = np.sqrt(np.maximum(np.diagonal(new)[m:], 0.0))
        length = np.linalg.norm(rows, axis=1)
        shrink = np.divide(longest, length, out=np.ones_like(length), where=length > longest)
        return rows * shrink[:, None]

    def _own_rows(
        self, state: _FamilyState, cross_rows: np.ndarray, old: np.ndarray, new: np.ndarray
    ) -> np.ndarray:
        """Return N of the other inputs, (others, steps + 1): each continues its own Cholesky factor."""
        m, steps = self.landmarks.count, len(state.starts)
        inputs = np.arange(len(cross_rows))
        variance = np.diagonal(new)[m:]
        rows = np.zeros((len(cross_rows), steps + 1))
        left = np.maximum(variance - np.sum(cross_rows**2, axis=1), 0.0)
        for s in range(steps):
            past_cross, past_own = state.cross_rows[s], state.own_rows[s]
            cov = old[m + inputs, state.starts[s] + m + inputs]
            cov = (
                cov
                - np.sum(cross_rows[:, : past_cross.shape[1]] * past_cross, axis=1)
                - np.sum(rows[:, :s] * past_own[:, :s], axis=1)
            )
            pivot = past_own[:, s]
            is_pivot = pivot > 1e-7 * np.sqrt(np.maximum(variance, 0))
            value = np.divide(cov, pivot, out=np.zeros_like(cov), where=is_pivot)
            rows[:, s] = np.clip(value, -np.sqrt(left), np.sqrt(left))
            left = np.maximum(left - rows[:, s] ** 2, 0.0)
        rows[:, steps] = np.sqrt(left)
        return rows

    def _count_dropped(
        self, state: _FamilyState, rows: np.ndarray, old: np.ndarray, new: np.ndarray, deviations: np.ndarray
    ) -> None:
        """Add the covariance that this step leaves out; `rows` (inputs, dimensions) is M of all inputs."""
        m, n = self.landmarks.count, len(rows)
        largest = np.zeros((n, n - m))
        largest[m:] = _in_units(new[m:, m:] - rows[m:] @ rows[m:].T, deviations[m:], deviations[m:])
        for start, past, past_deviations in zip(state.starts, state.crosses, state.deviations, strict=True):
            left_out = old[:, start + m : start + n] - rows[:, : past.shape[1]] @ past.T
            largest = np.maximum(largest, _in_units(left_out, deviations, past_deviations))
        largest[m:][np.diag_indices(n - m)] = 0.0
        step = np.zeros((n, n))
        step[:, m:] = largest
        self.dropped += np.maximum(step, step.T)


def _in_units(covariance: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return |covariance| in units of the deviations of both sides, and 0 where one of these is 0."""
    units = left[:, None] * right
    return np.divide(np.abs(covariance), units, out=np.zeros_like(covariance), where=units > 0)
