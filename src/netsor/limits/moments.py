"""Second moments of all vectors of a schedule, with independent repeats of the sample points.

Everything small (covariances, expectations of exact atoms, second moments) is computed for all repeats at
once; the work on sample points is divided among threads, by repeats. No number depends on how many there are.
"""

from __future__ import annotations

from concurrent.futures import Executor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.expect import hermite
from netsor.expect.closed_forms import find_mean
from netsor.expect.hermite_pairs import pair_sum
from netsor.expect.points import NormalPoints
from netsor.lang.expr import Expr
from netsor.limits.axes import Axes
from netsor.limits.draws import Draws
from netsor.limits.expectation import known_function
from netsor.limits.forms import Atom
from netsor.limits.pairs import Pair
from netsor.limits.schedule import ExactAtom, Form, Peer, Schedule, State, Step

if TYPE_CHECKING:
    from netsor.limits.engine import Engine

__all__ = ["Moments"]

TERMS = (64, 128, 256, 512, 1024, 2048)
SMALL = 1e-11  # what a series may leave out, of E[f^2]: sampling errors are far larger
HEADROOM = 1.5  # how much larger than the first ones the variances may be that a model series is for


class Moments:
    """E[h h'] for the vectors of a schedule: `block(h, h', pair)`."""

    def __init__(
        self,
        schedule: Schedule,
        engine: Engine,
        points: list[NormalPoints],
        axes: Axes | None,
        threads: Executor,
        parts: int,
    ) -> None:
        self.schedule, self.engine = schedule, engine
        repeats = len(points)
        self.sigma = [np.zeros((repeats, f.size, f.size)) for f in schedule.families]
        self.pairs = [np.zeros((repeats, f.atoms, f.atoms)) for f in schedule.families]
        for table in self.pairs:
            table[:, 0, 0] = 1.0
        self.cores = [np.zeros((repeats, g.size, g.size)) for g in schedule.groups]
        self.series: dict[Any, list[hermite.Series]] = {}
        cuts = np.linspace(0, repeats, min(parts, repeats) + 1, dtype=int)
        self.spans = [slice(a, b) for a, b in pairwise(cuts)]
        jobs = [threads.submit(Draws, schedule, points[span], axes) for span in self.spans]
        self.draws = [job.result() for job in jobs]
        for step in schedule.steps:
            self.advance(step, threads)
        self.axes = axes or Axes.of(self.draws[0].trails)
        self.draws = []

    def advance(self, step: Step, threads: Executor) -> None:
        for form in step.forms:
            self.cover(form)
        for atom in step.atoms:
            self.meet(atom)
        if step.core is None:  # all forms that are drawn come with a core
            return
        jobs = []
        for draws, span in zip(self.draws, self.spans, strict=True):
            tables = [s[span] for s in self.sigma], [p[span] for p in self.pairs]
            jobs.append(threads.submit(draws.advance, step, step.core, *tables))
        found = np.concatenate([job.result() for job in jobs])
        _enter(self.cores[step.core.group], step.core.rows, found)

    def cover(self, form: Form) -> None:
        """The covariances of a form with all those of its family so far."""
        sigma, rows = self.sigma[form.family], form.rows
        block = np.repeat(self.schedule.families[form.family].static[None, rows, : rows.stop], len(sigma), 0)
        for link in form.links:
            value = self.cores[link.group][:, link.own[:, None], link.other]
            for f in link.factors:
                value = value * self.pairs[f.family][:, f.own[:, None], f.other]
            block[:, :, link.columns] += link.scale * value
        _enter(sigma, rows, block)

    # Exact atoms

    def meet(self, atom: ExactAtom) -> None:
        """E of a new atom times all those of its family so far."""
        sigma, table = self.sigma[atom.family], self.pairs[atom.family]
        mean = self.schedule.families[atom.family].mean
        variance = self.variance(atom.family)
        m, q = mean[None, atom.forms, None], variance[:, atom.forms, None]
        for peer in atom.peers:
            cov, its_q = sigma[:, atom.forms, peer.forms], variance[:, None, peer.forms]
            if peer.rule:
                self.note(f"E[{self.name(atom.atom)} {self.name(peer.atom)}]", "closed form")
                value = peer.rule(m, mean[None, None, peer.forms], q, its_q, cov)
            else:
                value = self.summed(atom, peer, _correlation(cov, q * its_q))
            table[:, atom.rows, peer.rows] = value
            table[:, peer.rows, atom.rows] = value.swapaxes(1, 2)
        if self.schedule.families[atom.family].means:
            table[:, 0, atom.rows] = table[:, atom.rows, 0] = self.mean(atom)

    def variance(self, family: int) -> np.ndarray:
        return np.maximum(np.einsum("kii->ki", self.sigma[family]), 0.0)

    def name(self, atom: Atom) -> str:
        return self.engine.expectations.name(atom)

    def note(self, what: str, method: str, error: float = 0.0) -> None:
        self.engine.expectations.record.note(what, method, error)

    def mean(self, atom: ExactAtom) -> np.ndarray:
        known = known_function(atom.atom)
        rule = find_mean(*known) if known else None
        if rule:
            mean = self.schedule.families[atom.family].mean[None, atom.forms]
            return rule(mean, self.variance(atom.family)[:, atom.forms])
        own = self.own_series(atom)
        self.note(f"E[{self.name(atom.atom)}]", "quadrature", float(own.error.max(initial=0.0)))
        return own.coefs[..., 0]

    # Hermite series

    def summed(self, atom: ExactAtom, peer: Peer, rho: np.ndarray) -> np.ndarray:
        left, right = self.own_series(atom)[:, :, None], self.series_of(peer)[:, None]
        value, error = pair_sum(left, right, rho)
        what = f"E[{self.name(atom.atom)} {self.name(peer.atom)}]"
        self.note(what, f"Hermite series, {left.coefs.shape[-1]} terms", float(error.max(initial=0.0)))
        return value

    def own_series(self, atom: ExactAtom) -> hermite.Series:
        return self.series_of(atom.own)[:, atom.rows.start - atom.rows.stop :]

    def series_of(self, peer: Peer) -> hermite.Series:
        """The series of all atoms of a kind; only those of new ones are computed."""
        family = peer.kind[0]
        parts = self.series.setdefault(peer.kind, [])
        forms = np.arange(self.schedule.families[family].size)[peer.forms]
        new = forms[sum(part.tail.shape[1] for part in parts) :]
        if len(new):
            variance = self.variance(family)[:, new]
            mean = np.broadcast_to(self.schedule.families[family].mean[new], variance.shape)
            parts[:] = [hermite.concat([*parts, self.expand(peer.atom, mean, variance)], axis=1)]
        return parts[0]

    def expand(self, atom: Atom, mean: np.ndarray, variance: np.ndarray) -> hermite.Series:
        """A series as long as needed here."""
        fn, kinks = self.engine.expectations.callable(atom), self.engine.expectations.kinks(atom)
        if not kinks:
            return hermite.series_like(self.model(atom, mean, variance), fn, mean, variance)
        made = _long_enough(fn, mean, variance, kinks)
        self.engine.expectations.require_settled(atom, made)
        return made

    def model(self, atom: Atom, mean: np.ndarray, variance: np.ndarray) -> hermite.Series:
        """A series at means and variances that are not smaller, whose rule serves many times."""
        largest = float(np.abs(mean).max()), float(variance.max())
        found, known = self.schedule.models.get(atom.body, (None, (-1.0, -1.0)))
        if found is None or largest[0] > known[0] or largest[1] > known[1]:
            m, q = (HEADROOM * max(a, b, 0.0) for a, b in zip(largest, known, strict=True))
            found = _long_enough(
                self.engine.expectations.callable(atom), np.array([-m, 0.0, m]), np.full(3, q), ()
            )
            self.engine.expectations.require_settled(atom, found)
            self.schedule.models[atom.body] = found, (m, q)
        return found

    # The second moments

    def block(self, e: Expr, f: Expr, pair: Pair) -> np.ndarray | None:
        """E[e f] with the batch axes of a pair, or None if the schedule does not have it."""
        left, right = (self.schedule.states.get(x) for x in (e, f))
        if left is None or right is None or left.cluster != right.cluster:
            return None
        own, other = (_Rows(state, pair, side) for side, state in enumerate((left, right)))
        value = self.cores[left.group][:, own(left.core), other(right.core)]
        for family, rows in left.factors.items():
            value = value * self.pairs[family][:, own(rows), other(right.factors[family])]
        return value


class _Rows:
    """The rows of one side of a pair, ready to broadcast against those of the other."""

    def __init__(self, state: State, pair: Pair, side: int) -> None:
        span = (pair.rows, pair.cols)[side]
        self.span = slice(None) if pair.same or span is None or len(state.core) == 1 else slice(*span)
        self.axis = (..., None) if side == 0 and not pair.same else (...,)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return rows[self.span][self.axis]


def _enter(table: np.ndarray, rows: slice, block: np.ndarray) -> None:
    """Write new rows (repeats, rows, all so far) and the columns that mirror them."""
    own = block[:, :, rows]
    block[:, :, rows] = (own + own.swapaxes(1, 2)) / 2
    table[:, rows, : rows.stop] = block
    table[:, : rows.stop, rows] = block.swapaxes(1, 2)


def _correlation(cov: np.ndarray, qq: np.ndarray) -> np.ndarray:
    """cov / sqrt(q q'), and 0 where a variance is 0."""
    return np.where(qq > 0, cov / np.sqrt(np.where(qq > 0, qq, 1.0)), 0.0)


def _long_enough(fn: Any, mean: np.ndarray, variance: np.ndarray, kinks: tuple[float, ...]) -> hermite.Series:
    """The shortest series that leaves out little, or a long one."""
    made = [hermite.series(fn, mean, variance, TERMS[0], SMALL, kinks)]
    for terms in TERMS[1:]:
        if made[0].rest <= SMALL:
            break
        made[0] = hermite.series(fn, mean, variance, terms, SMALL, kinks)
    return made[0]
