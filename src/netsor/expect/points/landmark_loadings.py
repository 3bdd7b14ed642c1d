"""Joint Gaussian variables of many inputs, a few at a time, so that each input is drawn alike in every call.

The variables of input i are z_i = [S_i M_i] v + N_i w_i, with

    S_i   loadings of data and random vectors, which all inputs share: exact
    M_i   the remaining covariance with the landmarks, the first inputs of every call, which are drawn
          jointly: exact for the landmarks' variables so far
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
    """The variables of a family so far: lists have one array per step, with a row per input or other input.

    places      positions of the dimensions of v among those of the family
    own_places  (others,): positions of the dimensions of w_i
    joint       (inputs, dimensions of v at that step): [S M]
    own         (others, step + 1): N
    deviations  (inputs,): standard deviations of the variables
    """

    places: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    own_places: list[np.ndarray] = field(default_factory=list)
    joint: list[np.ndarray] = field(default_factory=list)
    own: list[np.ndarray] = field(default_factory=list)
    deviations: list[np.ndarray] = field(default_factory=list)


class LandmarkLoadings:
    """The rows of [S M N] of one repeat; every step of a family has one variable of each input.

    features   by family, S of its variables: (variables, width)
    dropped    (inputs, inputs): the sum over steps of the largest |R_ij| of a step, in units of the standard
               deviations of both variables
    """

    def __init__(self, landmarks: Landmarks, features: Sequence[np.ndarray]) -> None:
        self.landmarks, self.features = landmarks, features
        inputs = landmarks.count + len(landmarks.numbers)
        of_landmarks = (F[np.arange(len(F)) % inputs < landmarks.count] for F in features)
        self.joint = Loadings(dict(enumerate(of_landmarks)))
        self.states = [_FamilyState() for _ in features]
        self.dimensions: Dimensions = {family: np.zeros(0, int) for family in range(len(features))}
        self.dropped = np.zeros((inputs, inputs))

    @property
    def used(self) -> int:
        return self.joint.used

    def extend(self, family: int, cov_with_old: np.ndarray, cov_new: np.ndarray) -> np.ndarray:
        """Return rows (new, dimensions of the family so far), from covariances (new, old) and (new, new)."""
        m, inputs, state = self.landmarks.count, len(cov_new), self.states[family]
        joint = self._joint_rows(family, cov_with_old, cov_new)
        own = self._own_rows(family, joint[m:], cov_with_old, cov_new)
        state.places = np.append(
            state.places, self._append(family, self.joint.dimensions[family][len(state.places) :])
        )
        state.own_places.append(self._append(family, self._own_dimensions(family, len(state.own))))
        state.joint.append(joint)
        state.own.append(own)
        state.deviations.append(np.sqrt(np.maximum(np.diagonal(cov_new), 0.0)))
        self._count_dropped(state, np.concatenate([cov_with_old, cov_new], axis=1))
        loadings = np.zeros((inputs, len(self.dimensions[family])))
        loadings[:, state.places] = joint
        for k, places in enumerate(state.own_places):
            loadings[np.arange(m, inputs), places] = own[:, k]
        return loadings

    def _append(self, family: int, dimensions: np.ndarray) -> np.ndarray:
        """Add dimensions of the points to those of a family; return their positions among these."""
        first = len(self.dimensions[family])
        self.dimensions[family] = np.append(self.dimensions[family], dimensions)
        return np.arange(first, first + len(dimensions))

    def _own_dimensions(self, family: int, step: int) -> np.ndarray:
        """Return the dimensions of the noise w_i of this step, which depend on the number of the input alone.

        They lie far beyond all other dimensions, so that calls with other inputs use the same ones.
        """
        first, steps = 2**24, 2**12
        if step >= steps:
            raise DataError(f"an input has more than {steps} sampled variables of one family")
        return first + (self.landmarks.numbers * len(self.features) + family) * steps + step

    def _joint_rows(self, family: int, cov_with_old: np.ndarray, cov_new: np.ndarray) -> np.ndarray:
        """Return [S M] of all inputs, (inputs, dimensions of v), within their variances."""
        m, (inputs, old) = self.landmarks.count, cov_with_old.shape
        is_landmark = np.arange(old) % inputs < m
        rows = self.joint.extend(family, cov_with_old[:m, is_landmark], cov_new[:m, :m])
        S, factor = self.features[family][old + m : old + inputs], self.joint.factors[family]
        cross = np.concatenate([S, cov_with_old[m:, is_landmark], cov_new[m:, :m]], axis=1)
        others = np.array(cross[:, factor.pivots])
        forward_substitute(factor.lower, others)
        M = others[:, S.shape[1] :]
        longest = np.sqrt(np.maximum(np.diagonal(cov_new)[m:] - np.sum(S**2, axis=1), 0.0))
        length = np.linalg.norm(M, axis=1)
        M *= np.divide(longest, length, out=np.ones_like(length), where=length > longest)[:, None]
        return np.concatenate([rows, self.joint.rotate(family, others)])

    def _own_rows(
        self, family: int, joint: np.ndarray, cov_with_old: np.ndarray, cov_new: np.ndarray
    ) -> np.ndarray:
        """Return N of the other inputs, (others, steps + 1): each continues its own Cholesky factor."""
        m, state = self.landmarks.count, self.states[family]
        inputs, steps = len(cov_new), len(state.own)
        variance = np.diagonal(cov_new)[m:]
        rows = np.zeros((len(joint), steps + 1))
        left = np.maximum(variance - np.sum(joint**2, axis=1), 0.0)
        for s, (past, own) in enumerate(zip(state.joint, state.own, strict=True)):
            cov = np.diagonal(cov_with_old[m:, s * inputs + m : (s + 1) * inputs])
            cov = cov - np.einsum("ij,ij->i", joint[:, : past.shape[1]], past[m:])
            cov = cov - np.einsum("ij,ij->i", rows[:, :s], own[:, :s])
            pivot = own[:, s]
            is_pivot = pivot > 1e-7 * np.sqrt(np.maximum(variance, 0))
            value = np.divide(cov, pivot, out=np.zeros_like(cov), where=is_pivot)
            rows[:, s] = np.clip(value, -np.sqrt(left), np.sqrt(left))
            left = np.maximum(left - rows[:, s] ** 2, 0.0)
        rows[:, steps] = np.sqrt(left)
        return rows

    def _count_dropped(self, state: _FamilyState, covariance: np.ndarray) -> None:
        """Add what the last step leaves out of its covariance (inputs, variables so far)."""
        step, inputs = np.zeros_like(self.dropped), len(covariance)
        for s, past in enumerate(state.joint):
            left_out = covariance[:, s * inputs : (s + 1) * inputs]
            left_out = np.abs(left_out - state.joint[-1][:, : past.shape[1]] @ past.T)
            units = state.deviations[-1][:, None] * state.deviations[s]
            step = np.maximum(step, np.divide(left_out, units, out=np.zeros_like(units), where=units > 0))
        np.fill_diagonal(step, 0.0)  # N holds the covariance of an input with itself
        self.dropped += np.maximum(step, step.T)
