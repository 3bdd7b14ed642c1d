"""Second moments of all vectors of a schedule, with independent repeats of the sample points.

Everything small (covariances, expectations of exact atoms, second moments) is computed for all repeats at
once, some rows at a time; the work on sample points is divided by repeats or, where there is memory for a
single one, by points. All of it is done by threads, and no number depends on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from netsor.expect.hermite import series as hermite
from netsor.expect.hermite.pairs import pair_sum
from netsor.expect.points.axes import Axes
from netsor.expect.points.landmarks import LandmarkLoadings
from netsor.expect.points.loadings import Loadings
from netsor.expect.points.normal import NormalPoints
from netsor.lang.analysis import has_user_function
from netsor.lang.expr import Expr
from netsor.limits.methods.closed import closed_mean
from netsor.limits.methods.component import callable_of, kinks_of
from netsor.limits.methods.series import correlation, settled
from netsor.limits.nudges import NUDGE, STILL, Nudge, nudged
from netsor.limits.recursion.forms import Atom
from netsor.limits.recursion.recorder import Recorder
from netsor.limits.sampling.carried import Carried
from netsor.limits.sampling.numbers import Numbers
from netsor.limits.sampling.schedule import ExactAtom, Form, Peer, Schedule, State, Step, Table
from netsor.limits.sampling.shares import Share
from netsor.limits.sampling.values import held_choices
from netsor.limits.sampling.workspace import Rooms, Workspace
from netsor.limits.tape.tape import Span
from netsor.threads import in_parts

__all__ = ["Moments"]

TERMS = (64, 128, 256, 512, 1024, 2048)
SMALL = 1e-11  # what a series may leave out, of E[f^2]: sampling errors are far larger
ENTRIES = 2**18  # of a table that a thread computes at a time
HEADROOM = 1.5  # how much larger than the first ones the variances may be that a model series is for


class Moments:
    """E[h h'] for the vectors of a schedule: `block(h, h', ...)`.

    trails   for each family, how its variables were drawn, if there were no axes
    """

    def __init__(
        self,
        r: Recorder,
        schedule: Schedule,
        numbers: Numbers,
        points: list[NormalPoints],
        axes: Axes | None,
        workspace: Workspace,
        threads: Executor,
        advance: Callable[..., None],
        models: dict[Expr, Any],
        carried: Carried | None,
        shared: dict[str, Any],
        nudge: Nudge = STILL,
    ) -> None:
        self.nudge, self.threads = nudge, threads
        landmarks = shared.get("landmarks")
        self.r, self.schedule, self.numbers = r, schedule, numbers
        self.learning = axes is None or landmarks is not None  # with landmarks no small run comes first
        self.models = models
        repeats = len(points)
        sizes = [0 if f.drawn else f.size for f in schedule.families]
        rooms = shared.setdefault("rooms", Rooms())
        self.sigma = [rooms.zeros(("sigma", k), (repeats, n, n)) for k, n in enumerate(sizes)]
        self.new: dict[Expr, np.ndarray] = {}  # the covariances of forms to draw with those so far
        atoms, cores = [f.atoms for f in schedule.families], [g.size for g in schedule.groups]
        self.pairs = [rooms.zeros(("pairs", k), (repeats, n, n)) for k, n in enumerate(atoms)]
        for table in self.pairs:
            table[:, 0, 0] = 1.0
        self.cores = [rooms.zeros(("cores", k), (repeats, n, n)) for k, n in enumerate(cores)]
        self.series: dict[Any, list[hermite.Series]] = {}
        cuts = np.linspace(0, repeats, min(workspace.workers, repeats) + 1, dtype=int)
        families = dict(enumerate(f.size for f in schedule.families))
        within = threads if repeats == 1 else None  # else each thread has repeats of its own
        loadings: list[Any] = [
            Loadings(axes, 0, axes is None, held_choices(shared, own), families, within)
            if landmarks is None
            else LandmarkLoadings(landmarks, len(schedule.families))
            for own in points
        ]
        shares = [
            Share(
                schedule,
                numbers,
                slice(a, b),
                points[a:b],
                loadings[a:b],
                workspace,
                carried,
                rooms.inner(a),
            )
            for a, b in pairwise(cuts)
        ]
        for steps in schedule.stages:
            self.advance(steps, shares)
            advance(work=sum(map(schedule.work_of, steps)))
        for own, made in zip(points, loadings, strict=True):
            own.taken = made.taken
        if landmarks is not None:
            dropped = np.max([one.dropped for one in loadings], axis=0)
            shared["dropped"] = np.maximum(shared.get("dropped", 0.0), dropped)
        self.trails, self.sigma, self.series, self.new = loadings[0].trails, [], {}, {}

    def advance(self, steps: list[Step], shares: list[Share]) -> None:
        """Steps that need nothing of each other; the sums over points come in the order of the points."""
        self.new.clear()
        for step in steps:
            for form in step.forms:
                self.cover(form)
            for atom in step.atoms:
                self.meet(atom)
        cores = [step.core for step in steps if step.core is not None]
        if not cores:  # all forms that are drawn come with a core
            return
        in_parts(self.threads, len(shares), 1, lambda k: shares[k.start].extend(steps, self.new, self.pairs))
        jobs = [(share, self.threads.submit(share.sums, k)) for share in shares for k in share.parts]
        totals = [np.zeros((len(self.cores[0]), c.rows.stop - c.rows.start, c.rows.stop)) for c in cores]
        while jobs:
            share, job = jobs.pop(0)
            for total, found in zip(totals, job.result(), strict=True):
                total[share.span] += found
        for core, total in zip(cores, totals, strict=True):
            total /= shares[0].count
            _symmetrise(total, core.rows)
            self.enter(self.cores[core.group], core.rows, slice(core.rows.stop), total)

    def cover(self, form: Form) -> None:
        """The covariances of a form with all those of its family so far."""
        sigma, family = self.sigma[form.family], self.schedule.families[form.family]
        block = np.repeat(self.numbers.static[form.family].rows(form.rows)[None], len(sigma), 0)

        def add(some: slice) -> None:
            for link in form.links:
                value = self.cores[link.group][:, link.own[some, None], link.other]
                for f in link.factors:
                    value *= self.pairs[f.family][:, f.own[some, None], f.other]
                own, other = self.numbers.scales[id(link)]
                value *= own[some, None]
                value *= other
                block[:, some, link.columns] += value

        self.by_rows(block, add)
        _symmetrise(block, form.rows)
        if family.drawn:
            self.new[form.expr] = block
        else:
            self.enter(sigma, form.rows, slice(form.rows.stop), block)

    # Exact atoms

    def meet(self, atom: ExactAtom) -> None:
        """E of a new atom times all those of its family so far."""
        sigma, table = self.sigma[atom.family], self.pairs[atom.family]
        for peer in atom.peers:
            if peer.rule is None:  # what is kept of series is made by one thread
                for kind in (atom.own, peer):
                    self.series_of(kind)
            repeats, columns = len(sigma), len(np.arange(sigma.shape[1])[peer.forms])
            values = np.empty((repeats, atom.forms.stop - atom.forms.start, columns))
            self.by_rows(values, partial(self.meet_peer, atom, peer, values))
            self.enter(table, atom.rows, peer.rows, values)
        if self.schedule.families[atom.family].means:
            table[:, 0, atom.rows] = table[:, atom.rows, 0] = self.mean(atom)

    def meet_peer(self, atom: ExactAtom, peer: Peer, values: np.ndarray, some: slice) -> None:
        """Some rows of E of a new atom times atoms of one kind."""
        mean, variance = self.numbers.means[atom.family], self.variance(atom.family)
        m, q = mean[None, atom.forms, None][:, some], variance[:, atom.forms, None][:, some]
        its_m, its_q = mean[None, None, peer.forms], variance[:, None, peer.forms]
        cov = self.sigma[atom.family][:, atom.forms][:, some, peer.forms]
        if peer.parallel is not None:
            cov = peer.parallel(cov, q, its_q)
            cov = cov * (1.0 - self.nudge[NUDGE] * self.r.rounding * np.finfo(cov.dtype).eps)
        if peer.rule:
            values[:, some] = peer.rule(m, its_m, q, its_q, cov)
            return
        left, right = self.own_series(atom)[:, some, None], self.series_of(peer)[:, None]
        value, error = pair_sum(left, right, correlation(cov, q * its_q), errors=self.nudge != STILL)
        if self.nudge != STILL:
            self.r.notes.report(peer.what(atom), "Hermite series", float(np.max(error)))
            value = nudged(value, error, **self.nudge)
        values[:, some] = value

    def enter(self, table: np.ndarray, rows: slice, others: Table, block: np.ndarray) -> None:
        """Write new rows (repeats, rows, others), and the columns that mirror them."""
        table[:, rows, others] = block
        mirrored = block.swapaxes(1, 2)
        places = np.arange(table.shape[1])[others]

        def write(some: slice) -> None:
            table[:, places[some], rows] = mirrored[:, some]

        self.by_rows(mirrored, write)

    def by_rows(self, table: np.ndarray, work: Callable[[slice], None]) -> None:
        """Work on all rows of a table (repeats, rows, columns), some at a time."""
        repeats, rows, columns = table.shape

        def quietly(some: slice) -> None:  # each thread has warnings of its own
            with np.errstate(all="ignore"):
                work(some)

        in_parts(self.threads, rows, max(1, ENTRIES // max(1, repeats * columns)), quietly)

    def variance(self, family: int) -> np.ndarray:
        return np.maximum(np.einsum("kii->ki", self.sigma[family]), 0.0)

    def mean(self, atom: ExactAtom) -> np.ndarray:
        rule = closed_mean(atom.atom.body)
        if rule:
            mean = self.numbers.means[atom.family][None, atom.forms]
            return rule(mean, self.variance(atom.family)[:, atom.forms])
        series = self.own_series(atom)
        return nudged(series.coefs[..., 0], series.error, **self.nudge)

    # Hermite series

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
            mean = np.broadcast_to(self.numbers.means[family][new], variance.shape)
            parts[:] = [hermite.concat([*parts, self.expand(peer.atom, mean, variance)], axis=1)]
        return parts[0]

    def expand(self, atom: Atom, mean: np.ndarray, variance: np.ndarray) -> hermite.Series:
        """A series as long as needed here; one repeat does not change those of others."""
        fn, kinks = callable_of(atom, {}, 0), kinks_of(self.r, atom)
        if not kinks:
            model = self.model(atom, mean, variance)
            if model is not None:
                return hermite.series_like(model, fn, mean, variance)
        trusted = self.is_trusted(atom, mean, variance)
        made = [
            _long_enough(fn, m[None], q[None], kinks, trusted) for m, q in zip(mean, variance, strict=True)
        ]
        return hermite.concat([settled(atom, one) for one in made], axis=0)

    def model(self, atom: Atom, mean: np.ndarray, variance: np.ndarray) -> hermite.Series | None:
        """A series at means and variances that are not smaller, whose rule serves many times.

        The small run that comes first finds it, with some headroom.
        """
        largest = float(np.abs(mean).max()), float(variance.max())
        found, known = self.models.get(atom.body, (None, (-1.0, -1.0)))
        if found is not None and largest[0] <= known[0] and largest[1] <= known[1]:
            return found
        if not self.learning:
            return None
        m, q = (HEADROOM * max(a, b, 0.0) for a, b in zip(largest, known, strict=True))
        law = np.array([-m, 0.0, m]), np.full(3, q)
        if not self.is_trusted(atom, *law):
            return None
        found = _long_enough(callable_of(atom, {}, 0), *law, (), True)
        self.models[atom.body] = settled(atom, found), (m, q)
        return found

    def is_trusted(self, atom: Atom, mean: np.ndarray, variance: np.ndarray) -> bool:
        """Whether equal steps see all of f: for a user's function, they must agree with a search, once."""
        known, body = self.r.forms.trusted, atom.body
        if body not in known:
            fn, law = (
                callable_of(atom, {}, 0),
                (mean.reshape(-1)[:1], variance.reshape(-1).max(keepdims=True)),
            )
            steps, searched = (
                hermite.series(fn, *law, TERMS[0], SMALL, kinks_of(self.r, atom), trusted=trusted).square
                for trusted in (True, not has_user_function(body))
            )
            known[body] = bool(abs(steps - searched) <= SMALL * searched)
        return known[body]

    # The second moments

    def block(
        self, left: State, right: State, same: bool, rows: Span | None, cols: Span | None
    ) -> np.ndarray:
        """E[e f] of two vectors: (repeats, inputs), or (repeats, left inputs, right inputs) of a tile."""

        def ours(table: np.ndarray) -> np.ndarray:
            part = table if rows is None or len(table) == 1 else table[slice(*rows)]
            return part if same else part[:, None]

        def theirs(table: np.ndarray) -> np.ndarray:
            return table if cols is None or len(table) == 1 else table[slice(*cols)]

        shape = np.broadcast_shapes(ours(np.empty(left.inputs)).shape, theirs(np.empty(right.inputs)).shape)
        total = np.zeros((len(self.cores[0]), *shape))
        for odd, one in left.pieces.items():
            if odd not in right.pieces:
                continue
            two = right.pieces[odd]
            value = self.cores[one.group][:, ours(one.core), theirs(two.core)]
            for family, own in one.factors.items():
                value *= self.pairs[family][:, ours(own), theirs(two.factors[family])]
            total += value
        return total


def _symmetrise(block: np.ndarray, rows: slice) -> None:
    """The new rows among (repeats, rows, all so far), in place."""
    own = block[:, :, rows]
    block[:, :, rows] = (own + own.swapaxes(1, 2)) / 2


def _long_enough(
    fn: Any, mean: np.ndarray, variance: np.ndarray, kinks: tuple[float, ...], trusted: bool
) -> hermite.Series:
    """The shortest series that leaves out little, or a long one."""
    made = [hermite.series(fn, mean, variance, TERMS[0], SMALL, kinks, trusted=trusted)]
    for terms in TERMS[1:]:
        if made[0].rest <= SMALL:
            break
        made[0] = hermite.series(fn, mean, variance, terms, SMALL, kinks, trusted=trusted)
    return made[0]
