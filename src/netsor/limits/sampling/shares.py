"""The work on the sample points of some repeats, some points at a time."""

from __future__ import annotations

import numpy as np

from netsor.expect.points.landmarks import LandmarkLoadings
from netsor.expect.points.loadings import Loadings
from netsor.expect.points.normal import NormalPoints
from netsor.lang.expr import Expr
from netsor.limits.sampling.carried import Carried
from netsor.limits.sampling.draws import Draws, Mixtures
from netsor.limits.sampling.numbers import Numbers, Static
from netsor.limits.sampling.schedule import Form, Schedule, Step
from netsor.limits.sampling.workspace import Workspace

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
    ) -> None:
        self.span, self.loadings, self.count, self.numbers = span, loadings, points[0].count, numbers
        self.parts = []
        for k in range(0, self.count, workspace.points):
            places = slice(k, min(k + workspace.points, self.count))
            self.parts.append(Draws(schedule, numbers, points, loadings, places, workspace.table, carried))
        self.mixtures: Mixtures = {}
        self.steps: list[Step] = []

    def extend(self, steps: list[Step], covariances: dict[Expr, np.ndarray]) -> None:
        """The loadings of the variables that are new at some steps of one depth."""
        self.steps, self.mixtures = steps, {}
        for form in (form for step in steps for form in step.forms if form.expr in covariances):
            own, rows = covariances[form.expr][self.span], form.rows
            static = self.numbers.static[form.family]
            self.mixtures[form.expr] = [
                loadings.extend(form.family, cov[:, : rows.start], cov[:, rows])
                if not isinstance(loadings, LandmarkLoadings)
                else _drawn(loadings, form, static, cov)
                for loadings, cov in zip(self.loadings, own, strict=True)
            ]

    def sums(self, part: Draws, pairs: list[np.ndarray]) -> list[np.ndarray]:
        """For each new core, sums over a part of the points of its products with those so far."""
        part.advance(self.steps, self.mixtures)
        tables = [table[self.span] for table in pairs]
        return [part.moments(step.core, tables) for step in self.steps if step.core]


def _drawn(loadings: LandmarkLoadings, form: Form, static: Static, cov: np.ndarray) -> np.ndarray:
    """The loadings of a form, of which the static part is common to all inputs."""
    rest, rows = cov - static.rows(form.rows), form.rows
    variances = np.diagonal(cov[:, rows])
    return loadings.draw(form.family, static.features(rows), rest[:, : rows.start], rest[:, rows], variances)
