"""The work on the sample points of some repeats, some points at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsor.expect.points.landmarks import LandmarkLoadings
from netsor.expect.points.loadings import Loadings
from netsor.expect.points.normal import NormalPoints
from netsor.lang.expr import Expr
from netsor.limits.sampling.carried import Carried
from netsor.limits.sampling.draws import Draws, Mixtures, multiply
from netsor.limits.sampling.nested import NestedWeights, nested_weights
from netsor.limits.sampling.numbers import Numbers, Static
from netsor.limits.sampling.recursions import in_order
from netsor.limits.sampling.schedule import Core, Form, Schedule, Step
from netsor.limits.sampling.workspace import Rooms, Workspace

__all__ = ["Share"]


class Share:
    """Some repeats, with the values at their points in parts; all of them stay in memory."""

    def __init__(
        self,
        schedule: Schedule,
        numbers: Numbers,
        span: slice,
        points: list[NormalPoints],
        loadings: list[Loadings],
        workspace: Workspace,
        carried: Carried | None,
        rooms: Rooms,
    ) -> None:
        self.schedule, self.numbers = schedule, numbers
        self.span, self.loadings, self.count = span, loadings, points[0].count
        self.pairs: list[np.ndarray] = []
        self.weights: dict[tuple[int, int], Any] = {}  # by group and first row
        self.parts = []
        for k in range(0, self.count, workspace.points):
            places = slice(k, min(k + workspace.points, self.count))
            own = rooms.inner(k)
            self.parts.append(
                Draws(schedule, numbers, points, loadings, places, workspace.table, carried, own)
            )
        self.mixtures: Mixtures = {}
        self.steps: list[Step] = []

    def extend(self, steps: list[Step], covariances: dict[Expr, np.ndarray], pairs: list[np.ndarray]) -> None:
        """What all points have in common: the loadings of the variables that are new at some steps of one
        depth, and for recursions the weights of new parts."""
        self.steps, self.mixtures = steps, {}
        self.pairs = [table[self.span] for table in pairs]
        self.weights = {
            (core.group, core.rows.start): self.weights_of(core)
            for core in self.cores
            if self.schedule.groups[core.group].recursion
        }
        for form in (form for step in steps for form in step.forms if form.expr in covariances):
            own, rows = covariances[form.expr][self.span], form.rows
            static = self.numbers.static[form.family]
            self.mixtures[form.expr] = [
                loadings.extend(form.family, cov[:, : rows.start], cov[:, rows])
                if not isinstance(loadings, LandmarkLoadings)
                else _drawn(loadings, form, static, cov)
                for loadings, cov in zip(self.loadings, own, strict=True)
            ]

    def weights_of(self, core: Core) -> np.ndarray | NestedWeights:
        """What a recursion multiplies products of new parts and all so far with, these in its order."""
        group, constants = self.schedule.groups[core.group], self.numbers.constants[core.group]
        if group.inner:
            return nested_weights(group, core, (constants, self.numbers.inner[core.group]), self.pairs)
        order = in_order(group, core)
        made = np.ones((self.span.stop - self.span.start, core.parts.stop - core.parts.start, len(order)))
        multiply(made, group, constants, core.parts, order, self.pairs)
        return made

    @property
    def cores(self) -> list[Core]:
        """Those that are new."""
        return [step.core for step in self.steps if step.core]

    def sums(self, part: Draws) -> list[np.ndarray]:
        """For each new core, sums over a part of the points of its products with those so far."""
        part.advance(self.steps, self.mixtures)
        return [
            part.moments(core, self.pairs, self.weights.get((core.group, core.rows.start)))
            for core in self.cores
        ]


def _drawn(loadings: LandmarkLoadings, form: Form, static: Static, cov: np.ndarray) -> np.ndarray:
    """The loadings of a form, of which the static part is common to all inputs."""
    rest, rows = cov - static.rows(form.rows), form.rows
    variances = np.diagonal(cov[:, rows])
    return loadings.draw(form.family, static.features(rows), rest[:, : rows.start], rest[:, rows], variances)
