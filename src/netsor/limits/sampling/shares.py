"""The work on the sample points of some repeats, some points at a time."""

from __future__ import annotations

import numpy as np

from netsor.expect.points.normal import NormalPoints
from netsor.lang.expr import Expr
from netsor.limits.sampling.draws import Draws, Mixtures
from netsor.limits.sampling.loadings import Loadings
from netsor.limits.sampling.numbers import Numbers
from netsor.limits.sampling.schedule import Schedule, Step
from netsor.limits.sampling.workspace import Workspace

__all__ = ["Share"]


class Share:
    """Some repeats, with their points in parts.

    The values at the first parts stay in memory, and at some of these the noise that they were made of; at
    others it is made again for the next variables. Those at the parts that do not stay are computed again,
    from the first stage on, whenever new moments are needed: what stays are the loadings of the variables.
    """

    def __init__(
        self,
        schedule: Schedule,
        numbers: Numbers,
        span: slice,
        points: list[NormalPoints],
        loadings: list[Loadings],
        workspace: Workspace,
    ) -> None:
        self.schedule, self.numbers, self.span = schedule, numbers, span
        self.points, self.loadings = points, loadings
        self.workspace, self.count = workspace, points[0].count
        self.parts = range(-(-self.count // workspace.points))
        self.kept: dict[int, Draws] = {}
        self.stages: list[list[Step]] = []
        self.mixtures: Mixtures = {}

    def extend(self, steps: list[Step], covariances: dict[Expr, np.ndarray]) -> None:
        """The loadings of the variables that are new at some steps of one depth."""
        if len(self.parts) <= self.workspace.kept:
            self.stages.clear()
            self.mixtures.clear()  # they have served
        for form in (form for step in steps for form in step.forms if form.expr in covariances):
            own = covariances[form.expr][self.span]
            self.mixtures[form.expr] = [x.extend(form, c) for x, c in zip(self.loadings, own, strict=True)]
        self.stages.append(steps)

    def sums(self, part: int, pairs: list[np.ndarray]) -> list[np.ndarray]:
        """For each core of the last stage, sums over part of the points of its products with those so far."""
        draws, stages = self.kept.get(part), self.stages[-1:]
        if draws is None:
            draws, stages = self.start(part), self.stages
        tables, found = [table[self.span] for table in pairs], []
        for steps in stages:
            draws.advance(steps, self.mixtures, part not in self.kept or part < self.workspace.noisy)
            cores = [step.core for step in steps if step.core]
            if steps is not stages[-1]:  # recursions go on from earlier sums
                cores = [core for core in cores if self.schedule.groups[core.group].recursion]
            found = [draws.moments(core, tables) for core in cores]
        return found

    def start(self, part: int) -> Draws:
        first = part * self.workspace.points
        places = slice(first, min(first + self.workspace.points, self.count))
        draws = Draws(self.schedule, self.numbers, self.points, self.loadings, places, self.workspace.table)
        if part < self.workspace.kept:
            self.kept[part] = draws
        return draws
