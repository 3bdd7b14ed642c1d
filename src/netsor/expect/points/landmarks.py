"""Joint Gaussian variables of many inputs, some at a time: the same for an input whoever comes with it.

The variables of input i are z_i = S_i u + M_i v + N_i w_i, with

    S_i   what they have from data and random vectors that all inputs share: exact, with noise u for all
    M_i   the rest of their covariance with the landmarks, the first inputs of every call, which are drawn
          jointly: exact for the landmarks' variables so far, with their noise v
    N_i   the rest of their own covariance: exact, with noise w_i of their own

so that only a rest R_ij of the covariance is left out, between inputs that are no landmarks, and of these
with later variables of landmarks. The values of an input depend on itself, the landmarks and the seed, so
second moments of any two of them are entries of one positive matrix. How much is left out is known
(`dropped`), and is part of the error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from netsor.errors import DataError
from netsor.expect.points.gaussian import forward
from netsor.expect.points.loadings import Family, Loadings

__all__ = ["LandmarkLoadings", "Landmarks"]

OWN = 2**24  # the dimensions of the points from here on belong to single inputs
STEPS = 2**12  # dimensions that an input may have for each family


@dataclass(frozen=True)
class Landmarks:
    """Which inputs of a call are landmarks, the first `count`, and the numbers of all others."""

    count: int
    numbers: np.ndarray


@dataclass
class _Drawn:
    """What is known of the variables of a family so far.

    columns   the rows of the family that are landmarks'
    inner     positions of the landmarks' dimensions among those of the family
    crosses   for each step, (others, rank then): M before the landmarks' axes
    turned    for each step, (others, dimensions then): M
    owns      for each step, (others, step + 1): N
    places    for each step, positions of the others' dimensions
    starts    for each step, the first row of the family
    """

    columns: list[int] = field(default_factory=list)
    inner: list[int] = field(default_factory=list)
    crosses: list[np.ndarray] = field(default_factory=list)
    turned: list[np.ndarray] = field(default_factory=list)
    owns: list[np.ndarray] = field(default_factory=list)
    places: list[np.ndarray] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


class LandmarkLoadings(Loadings):
    """The rows of [S M N] of one repeat.

    dropped   for each pair of inputs, the sum over steps of the largest |R_ij| of one, in units of the
              deviations of both variables
    """

    def __init__(self, landmarks: Landmarks, families: int) -> None:
        super().__init__()
        self.landmarks, self.families = landmarks, families
        self.joint = Loadings()
        self.known: dict[Family, _Drawn] = {}
        inputs = landmarks.count + len(landmarks.numbers)
        self.dropped = np.zeros((inputs, inputs))
        self.scales: dict[Family, list[np.ndarray]] = {}

    def draw(
        self, family: int, static: np.ndarray, old: np.ndarray, new: np.ndarray, variances: np.ndarray
    ) -> np.ndarray:
        """Rows (new, dimensions of the family so far).

        static     S (new, width)
        old, new   covariances without the static part, (new, old) and (new, new)
        variances  of the new variables, with it
        """
        m, first = self.landmarks.count, family not in self.known
        state = self.known.setdefault(family, _Drawn())
        if first:
            self._append(family, np.arange(self.taken, self.taken + static.shape[1]))
            self.taken += static.shape[1]
        self.joint.taken = self.taken
        before = len(self.joint.dimensions.get(family, ()))
        rows = self.joint.extend(family, old[:m, state.columns], new[:m, :m])
        self.taken = self.joint.taken
        fresh = self.joint.dimensions[family][before:]
        state.inner += list(self._append(family, fresh))
        state.columns += range(old.shape[1], old.shape[1] + m)
        cross = self._cross(family, state, old, new)
        own = self._own(state, cross, old, new)
        step = len(state.starts)
        if step >= STEPS:
            raise DataError(f"an input has more than {STEPS} sampled variables of one family")
        state.places.append(
            self._append(family, OWN + (self.landmarks.numbers * self.families + family) * STEPS + step)
        )
        state.starts.append(old.shape[1])
        state.crosses.append(cross)
        state.owns.append(own)
        turned = self.joint._turned(family, cross, 0)
        self._count(family, state, np.concatenate([rows, turned]), old, new, variances)
        state.turned.append(turned)
        made = np.zeros((len(new), len(self.dimensions[family])))
        made[:, : static.shape[1]] = static
        made[:m, state.inner] = rows
        made[m:, state.inner] = turned
        others = np.arange(m, len(new))
        for k, places in enumerate(state.places):
            made[others, places] = own[:, k]
        return made

    def _append(self, family: Family, dimensions: np.ndarray) -> np.ndarray:
        """Further dimensions of a family; their positions."""
        known = self.dimensions.get(family, np.zeros(0, int))
        self.dimensions[family] = np.append(known, dimensions)
        return np.arange(len(known), len(known) + len(dimensions))

    def _cross(self, family: Family, state: _Drawn, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """M of the others, before the axes of the landmarks; no longer than their variance allows."""
        m, factor = self.landmarks.count, self.joint.factors[family]
        columns = np.array(state.columns, int)[factor._pivots]
        cov = np.concatenate([old[m:], new[m:]], axis=1)[:, columns]
        found = np.array(cov)
        forward(factor._rows[: factor.rank, : factor.rank], found)
        room = np.sqrt(np.maximum(np.diagonal(new)[m:], 0.0))
        size = np.linalg.norm(found, axis=1)
        return found * np.divide(room, size, out=np.ones_like(size), where=size > room)[:, None]

    def _own(self, state: _Drawn, cross: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """N of the others: each continues the factor of its own variables."""
        m, steps = self.landmarks.count, len(state.starts)
        others = np.arange(len(cross))
        variance = np.diagonal(new)[m:]
        own = np.zeros((len(cross), steps + 1))
        left = np.maximum(variance - np.sum(cross**2, axis=1), 0.0)
        for s in range(steps):
            past, before = state.crosses[s], state.owns[s]
            rest = old[m + others, state.starts[s] + m + others]
            rest = (
                rest
                - np.sum(cross[:, : past.shape[1]] * past, axis=1)
                - np.sum(own[:, :s] * before[:, :s], axis=1)
            )
            pivot = before[:, s]
            value = np.divide(
                rest, pivot, out=np.zeros_like(rest), where=pivot > 1e-7 * np.sqrt(np.maximum(variance, 0))
            )
            own[:, s] = np.clip(value, -np.sqrt(left), np.sqrt(left))
            left = np.maximum(left - own[:, s] ** 2, 0.0)
        own[:, steps] = np.sqrt(left)
        return own

    def _count(
        self,
        family: Family,
        state: _Drawn,
        rows: np.ndarray,
        old: np.ndarray,
        new: np.ndarray,
        variances: np.ndarray,
    ) -> None:
        """Add what this step leaves out of covariances; `rows` are the M of all inputs."""
        m, n = self.landmarks.count, len(rows)
        deviations = np.sqrt(np.maximum(variances, 0.0))
        scales = self.scales.setdefault(family, [])
        largest = np.zeros((n, n - m))
        largest[m:] = _in_units(new[m:, m:] - rows[m:] @ rows[m:].T, deviations[m:], deviations[m:])
        for start, past, scale in zip(state.starts, state.turned, scales, strict=False):
            rest = old[:, start + m : start + n] - rows[:, : past.shape[1]] @ past.T
            largest = np.maximum(largest, _in_units(rest, deviations, scale))
        scales.append(deviations[m:])
        largest[m:][np.diag_indices(n - m)] = 0.0
        step = np.zeros((n, n))
        step[:, m:] = largest
        self.dropped += np.maximum(step, step.T)


def _in_units(rest: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    units = left[:, None] * right
    return np.divide(np.abs(rest), units, out=np.zeros_like(rest), where=units > 0)
