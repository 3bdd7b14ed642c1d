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

    landmark_places  positions of the landmarks' dimensions among those of the family
    own_places  (others,): positions of the dimensions of the inputs' own noise
    cross_rows  (others, rank at that step): M before the rotation of the landmarks' noise
    crosses     (others, dimensions at that step): M
    own_rows    (others, step + 1): N
    deviations  (others,): standard deviations of the variables
    """

    landmark_places: list[int] = field(default_factory=list)
    own_places: list[np.ndarray] = field(default_factory=list)
    cross_rows: list[np.ndarray] = field(default_factory=list)
    crosses: list[np.ndarray] = field(default_factory=list)
    own_rows: list[np.ndarray] = field(default_factory=list)
    deviations: list[np.ndarray] = field(default_factory=list)


class LandmarkLoadings:
    """The rows of [S M N] of one repeat; each step of a family has one variable of every input.

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
        inputs = landmarks.count + len(landmarks.numbers)
        self.dropped = np.zeros((inputs, inputs))

    @property
    def used(self) -> int:
        return self.joint.used

    def extend(self, family: int, cov_with_old: np.ndarray, cov_new: np.ndarray) -> np.ndarray:
        """Return rows (new, dimensions of the family so far), from covariances (new, old) and (new, new)."""
        m, (inputs, size) = self.landmarks.count, cov_with_old.shape
        S = self.features[family][: size + inputs]
        if family not in self.states:
            self.states[family] = _FamilyState()
            self._append(family, self.used + np.arange(S.shape[1]))
            self.joint.used += S.shape[1]
        state = self.states[family]
        # The covariance that remains without S: (inputs, steps, inputs).
        left = np.concatenate([cov_with_old, cov_new], axis=1) - S[size:] @ S.T
        left = left.reshape(inputs, -1, inputs)
        rows = self.joint.extend(family, left[:m, :-1, :m].reshape(m, -1), left[:m, -1, :m])
        new = self.joint.dimensions[family][len(state.landmark_places) :]
        state.landmark_places += list(self._append(family, new))
        state.cross_rows.append(self._cross_rows(family, left[m:]))
        state.own_places.append(self._append(family, self._own_dimensions(family, len(state.own_rows))))
        state.own_rows.append(self._own_rows(state, left[m:, :, m:]))
        state.crosses.append(self.joint.rotate(family, state.cross_rows[-1], 0))
        deviations = np.sqrt(np.maximum(np.diagonal(cov_new), 0.0))
        state.deviations.append(deviations[m:])
        joint = np.concatenate([rows, state.crosses[-1]])
        self._count_dropped(state, joint, left[:, :, m:], deviations)
        loadings = np.zeros((inputs, len(self.dimensions[family])))
        loadings[:, : S.shape[1]] = S[size:]
        loadings[:, state.landmark_places] = joint
        for k, places in enumerate(state.own_places):
            loadings[np.arange(m, inputs), places] = state.own_rows[-1][:, k]
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

    def _cross_rows(self, family: int, left: np.ndarray) -> np.ndarray:
        """Return M of the other inputs before the rotation, (others, rank), within their variances."""
        m, factor = self.landmarks.count, self.joint.factors[family]
        rows = left[:, :, :m].reshape(len(left), left.shape[1] * m)[:, factor.pivots]
        forward_substitute(factor.lower, rows)
        longest = np.sqrt(np.maximum(np.diagonal(left[:, -1, m:]), 0.0))
        length = np.linalg.norm(rows, axis=1)
        shrink = np.divide(longest, length, out=np.ones_like(length), where=length > longest)
        return rows * shrink[:, None]

    def _own_rows(self, state: _FamilyState, left: np.ndarray) -> np.ndarray:
        """Return N of the other inputs, (others, steps): each continues its own Cholesky factor."""
        covariances = np.einsum("isi->si", left)  # of each input with itself
        cross_rows, variance = state.cross_rows[-1], covariances[-1]
        rows = np.zeros(left.shape[:2])
        unused = np.maximum(variance - np.sum(cross_rows**2, axis=1), 0.0)
        for s, (past_cross, past_own) in enumerate(zip(state.cross_rows, state.own_rows, strict=False)):
            cov = covariances[s] - np.sum(cross_rows[:, : past_cross.shape[1]] * past_cross, axis=1)
            cov = cov - np.sum(rows[:, :s] * past_own[:, :s], axis=1)
            pivot = past_own[:, s]
            is_pivot = pivot > 1e-7 * np.sqrt(np.maximum(variance, 0))
            value = np.divide(cov, pivot, out=np.zeros_like(cov), where=is_pivot)
            rows[:, s] = np.clip(value, -np.sqrt(unused), np.sqrt(unused))
            unused = np.maximum(unused - rows[:, s] ** 2, 0.0)
        rows[:, -1] = np.sqrt(unused)
        return rows

    def _count_dropped(
        self, state: _FamilyState, rows: np.ndarray, left: np.ndarray, deviations: np.ndarray
    ) -> None:
        """Add the covariance that this step leaves out; `rows` (inputs, dimensions) is M of all inputs."""
        m, largest = self.landmarks.count, np.zeros_like(self.dropped)
        for s, (past, past_deviations) in enumerate(zip(state.crosses, state.deviations, strict=True)):
            dropped = np.abs(left[:, s] - rows[:, : past.shape[1]] @ past.T)
            units = deviations[:, None] * past_deviations
            dropped = np.divide(dropped, units, out=np.zeros_like(units), where=units > 0)
            largest[:, m:] = np.maximum(largest[:, m:], dropped)
        np.fill_diagonal(largest, 0.0)  # N has the covariance of an input with itself
        self.dropped += np.maximum(largest, largest.T)
