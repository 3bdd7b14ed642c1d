"""Tables of the second moments of all vectors of a schedule, as one step of a recording.

The step fills tables of covariances, of expectations of exact atoms, and of second moments, stage by stage,
for all repeats at once. The work at sample points is divided by repeats or, if memory holds only one repeat,
by points. Threads share all of it, and no number depends on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from netsor.expect.hermite import expansion as hermite
from netsor.expect.hermite.mehler import pair_sum
from netsor.expect.points.landmark_loadings import LandmarkLoadings
from netsor.expect.points.loadings import Loadings
from netsor.expect.points.principal_axes import PrincipalAxes
from netsor.lang.analysis import has_user_function
from netsor.lang.expr import Expr
from netsor.limits.error_probes import Probe
from netsor.limits.methods.closed import closed_mean
from netsor.limits.methods.component import callable_of, kinks_of
from netsor.limits.methods.series import correlation, settled
from netsor.limits.rules.atoms import Atom
from netsor.limits.rules.pairs import Pair, PerPair
from netsor.limits.rules.recorder import Recorder
from netsor.limits.rules.setting import Setting
from netsor.limits.sampling.chunks import FLOAT, Needs, PointChunk, Workspace, recursion_weights
from netsor.limits.sampling.drawing import Drawing, block_of_pair, drawing_leaf
from netsor.limits.sampling.schedule import Schedule, schedule_of
from netsor.limits.sampling.variables import (
    AtomKind,
    ExactAtom,
    Form,
    Kind,
    Numbers,
    Table,
    VectorStep,
    numbers_of,
)
from netsor.limits.sampling.vectors import NeededVector, Piece
from netsor.threads import in_parts, one_blas_thread

ENTRIES = 2**18  # entries of a table that a thread computes at a time: they stay in the cache
TRUNCATION = 1e-11  # share of E[f^2] that a series may leave out: sampling errors are far larger


# Tables as a step of a recording


def tables_of(x: Setting, result: int, memory: int | None, points: int) -> Tables | None:
    """Return the tables of the vectors that outputs need, or None if no vector has a sampled part.

    result   bytes of the results of each repeat
    points   largest number of points of a repeat
    """
    # The states of recursions take much memory, but save most of the time.
    state_bytes = 2**31 if memory is None else memory // 2
    schedule = schedule_of(x, state_bytes // (FLOAT * points))
    return schedule and Tables(schedule, Needs.of(schedule, result), memory)


@dataclass(frozen=True)
class Tables:
    """A schedule, and the memory that its tables and values may take."""

    schedule: Schedule
    needs: Needs
    memory: int | None

    @property
    def rows(self) -> int:
        """Number of Gaussian variables that are sampled."""
        return sum(family.size for family in self.schedule.families if family.drawn)

    @property
    def compiled(self) -> bool:
        return any(group.recursion for group in self.schedule.groups)

    def workspace(self, points: int) -> Workspace:
        return Workspace.within(self.memory, points, self.needs)

    def bytes(self, points: int, repeats: int) -> int:
        """Return the bytes of workspace."""
        return self.needs.fixed + repeats * self.needs.whole(points, self.workspace(points).table)

    def recorded(self, r: Recorder) -> Callable[[Expr, Expr, Pair], PerPair]:
        """Record the step that computes the tables; return a function that records E[e f] of a pair."""
        for step in self.schedule.steps:
            for atom in step.atoms:
                for kind in atom.kinds:
                    r.notes.add(kind.product_name(atom), "closed form" if kind.rule else "Hermite series")
                    r.notes.inexact |= kind.is_inexact

        def run(probe: Probe | None, drawing: Drawing, numbers: Numbers) -> Moments:
            shared = drawing.shared
            if shared.axes is None and shared.landmarks is None:
                shared.axes = self._pilot(r, drawing, numbers)
            # With landmarks there are no axes: they would depend on the other inputs of the call.
            axes = shared.axes if shared.landmarks is None else None
            drawing.begin(axes.dimensions if axes else 0)
            workspace = self.workspace(drawing.count)
            return Moments(r, self.schedule, numbers, drawing, axes, workspace, probe)

        arrays = (drawing_leaf(r), numbers_of(r, self.schedule.families, self.schedule.groups))
        step = r.tape.call(partial(run, None), arrays, (), np.float64, bound=run)
        r.tape.costs[step.step] = r.samples.repeats * r.samples.points * self.schedule.work
        vectors = self.schedule.vectors

        def block(e: Expr, f: Expr, pair: Pair) -> PerPair:
            left, right = vectors[e], vectors[f]

            def moments(rows: slice, cols: slice, moments: Moments) -> np.ndarray:
                return moments.block(left, right, pair.same, rows, cols)

            sizes = left.inputs, right.inputs
            array = block_of_pair(pair, ("moments", e, f), moments, (step,), r.samples.repeats, sizes)
            return PerPair(array, pair, 0, 0)

        return block

    def _pilot(self, r: Recorder, drawing: Drawing, numbers: Numbers) -> PrincipalAxes:
        """Return the principal axes of the sampled variables, from a small run.

        The pilot run has points that no repeat uses. Its result determines all other samples, so it must not
        depend on memory or threads: it always adds up the same chunks.
        """
        points, repeat = min(drawing.count, 2**9), 2**31  # no repeat of a call has this number
        pilot = Drawing(drawing.seed, points, range(repeat, repeat + 1), drawing.shared, is_pilot=True)
        workspace = Workspace.of_pilot(points, self.needs)
        trails = Moments(r, self.schedule, numbers, pilot, None, workspace).loadings[0].trails
        assert trails is not None
        return PrincipalAxes.of(trails)


@contextmanager
def _threads(workers: int) -> Iterator[Executor]:
    """Start threads with one BLAS thread each; an interrupt cancels the jobs that have not begun."""
    pool = ThreadPoolExecutor(workers)
    try:
        with one_blas_thread() if workers > 1 else nullcontext():
            yield pool
    finally:
        pool.shutdown(cancel_futures=True)


# Filling the tables


class Moments:
    """E[h h'] for the vectors of a schedule: `block(h, h', ...)`.

    axes          the principal axes from the pilot run; None in that run, and with landmarks
    covariances   by family that is not drawn, of its variables: (repeats, variables, variables)
    products      by family, E of products of two exact atoms: (repeats, atoms, atoms)
    cores         by group, the second moments of its cores: (repeats, cores, cores)
    loadings      by repeat, of the sampled variables
    """

    def __init__(
        self,
        r: Recorder,
        schedule: Schedule,
        numbers: Numbers,
        drawing: Drawing,
        axes: PrincipalAxes | None,
        workspace: Workspace,
        probe: Probe | None = None,
    ) -> None:
        self.r, self.schedule, self.numbers, self.drawing = r, schedule, numbers, drawing
        self.may_learn = axes is None  # without a pilot run before, this run finds the series that serve many
        self.probe = probe
        repeats, zeros = len(drawing.points), drawing.shared.zeros

        def square_tables(name: str, sizes: list[int]) -> list[np.ndarray]:
            return [zeros((name, k), (repeats, n, n)) for k, n in enumerate(sizes)]

        families = schedule.families
        self.covariances = square_tables("covariances", [0 if f.drawn else f.size for f in families])
        self.products = square_tables("products", [f.atoms for f in families])
        for table in self.products:
            # Row 0 stands for the number 1: products with it are expectations of single atoms.
            table[:, 0, 0] = 1.0
        self.cores = square_tables("cores", [g.size for g in schedule.groups])
        self.series: dict[Kind, hermite.Series] = {}
        with _threads(workspace.threads) as self.threads:
            self.loadings = self._loadings(axes)
            chunks = self._chunks(workspace)
            for steps in schedule.stages:
                self._advance(steps, chunks)
                drawing.advance(work=sum(map(schedule.work_of, steps)))
        for points, loadings in zip(drawing.points, self.loadings, strict=True):
            points.used = loadings.used
            if isinstance(loadings, LandmarkLoadings):
                drawing.shared.dropped = np.maximum(drawing.shared.dropped, loadings.dropped)
        # The tables of second moments stay, because blocks are read from them; everything else can go.
        self.covariances, self.series = [], {}

    def _loadings(self, axes: PrincipalAxes | None) -> Sequence[Loadings | LandmarkLoadings]:
        shared, points = self.drawing.shared, self.drawing.points
        if shared.landmarks is not None:
            return [LandmarkLoadings(shared.landmarks, self.numbers.features) for _ in points]
        sizes = {k: family.size for k, family in enumerate(self.schedule.families)}
        # Several repeats run on threads of their own; a single one divides its linear algebra instead.
        threads = self.threads if len(points) == 1 else None
        return [Loadings(axes, 0, axes is None, shared.fixed_choices(p), sizes, threads) for p in points]

    def _chunks(self, workspace: Workspace) -> list[PointChunk]:
        """Return equal ranges of repeats for the threads; with one repeat, chunks of its points."""
        repeats, count, size = len(self.drawing.points), self.drawing.count, workspace.points
        bounds = np.linspace(0, repeats, min(workspace.threads, repeats) + 1, dtype=int)
        dimensions = [loadings.dimensions for loadings in self.loadings]
        values = (self.schedule, self.numbers, self.products, self.drawing, dimensions, workspace.table)
        return [
            PointChunk(*values, slice(a, b), slice(k, min(k + size, count)))
            for a, b in pairwise(bounds)
            for k in range(0, count, size)
        ]

    def _advance(self, steps: list[VectorStep], chunks: list[PointChunk]) -> None:
        """Carry out the steps of one depth.

        Sums are added in the order of the points, so that they do not depend on the order of the threads.
        """
        drawn: dict[Expr, np.ndarray] = {}  # by new form, its covariances with all so far
        for step in steps:
            for form in step.forms:
                self._fill_covariances(form, drawn)
            for atom in step.atoms:
                self._fill_products(atom)
        cores = [step.core for step in steps if step.core is not None]
        if not cores:  # without a core there are no forms to draw
            return
        repeats = len(self.loadings)
        rows: list[dict[Expr, np.ndarray]] = [{} for _ in self.loadings]

        def extend(part: slice) -> None:
            for k in range(repeats)[part]:
                for form in (form for step in steps for form in step.forms if form.expr in drawn):
                    old, new = np.split(drawn[form.expr][k], [form.rows.start], axis=1)
                    rows[k][form.expr] = self.loadings[k].extend(form.family, old, new)

        in_parts(self.threads, repeats, 1, extend)
        groups, constants = self.schedule.groups, self.numbers.constants
        weights = [
            recursion_weights(core, groups[core.group], self.products, constants[core.group], self.threads)
            for core in cores
        ]
        jobs = [(c, self.threads.submit(c.sums, steps, rows, weights)) for c in chunks]
        totals = [np.zeros((repeats, core.inputs, core.rows.stop)) for core in cores]
        while jobs:
            chunk, job = jobs.pop(0)  # drop the job, so that its sums are freed
            for total, sums in zip(totals, job.result(), strict=True):
                total[chunk.repeats] += sums
        for core, total in zip(cores, totals, strict=True):
            total /= self.drawing.count
            _symmetrise(total, core.rows)
            self._enter(self.cores[core.group], core.rows, slice(core.rows.stop), total)

    def _fill_covariances(self, form: Form, drawn: dict[Expr, np.ndarray]) -> None:
        """Compute Cov(form, form') for all forms of the family so far: var_W E[h h'] plus data and biases."""
        table, family = self.covariances[form.family], self.schedule.families[form.family]
        features = self.numbers.features[form.family]
        # The covariance from the inputs is the same for all repeats.
        from_inputs = features[form.rows] @ features[: form.rows.stop].T
        block = np.repeat(from_inputs[None], len(table), 0)

        def add(rows: slice) -> None:
            for link in form.links:
                coefs, variance = self.numbers.coefs[link.terms]
                other_coefs, _ = self.numbers.coefs[link.others]
                earlier, new = slice(link.stop), np.r_[link.rows][rows]
                value = self._second_moment(link.terms.piece.at((new, None)), link.others.piece.at(earlier))
                value *= (variance * coefs)[new, None]
                value *= other_coefs[earlier]
                block[:, rows, link.others.forms[earlier]] += value

        self._by_rows(block, add)
        _symmetrise(block, form.rows)
        if family.drawn:
            drawn[form.expr] = block
        else:
            self._enter(table, form.rows, slice(form.rows.stop), block)

    def _second_moment(self, left: Piece, right: Piece) -> np.ndarray:
        # Factors of different families are independent of the cores and of each other: the moments multiply.
        value = self.cores[left.group][:, left.core, right.core]
        for family, atoms in left.factors.items():
            value *= self.products[family][:, atoms, right.factors[family]]
        return value

    # Exact atoms

    def _fill_products(self, atom: ExactAtom) -> None:
        """Compute E of a new atom times each atom of its family so far."""
        covariances, table = self.covariances[atom.family], self.products[atom.family]
        for kind in atom.kinds:
            if kind.rule is None:  # series are shared: make them before threads start
                self._series_of(atom.kind)
                self._series_of(kind)
            repeats, columns = len(covariances), len(np.arange(covariances.shape[1])[kind.forms])
            values = np.empty((repeats, atom.forms.stop - atom.forms.start, columns))
            self._by_rows(values, partial(self._products_with, atom, kind, values))
            self._enter(table, atom.rows, kind.rows, values)
        if self.schedule.families[atom.family].means:
            table[:, 0, atom.rows] = table[:, atom.rows, 0] = self._mean(atom)

    def _products_with(self, atom: ExactAtom, kind: AtomKind, values: np.ndarray, rows: slice) -> None:
        """Compute rows of E of a new atom times atoms of one kind, into `values` (repeats, rows, columns)."""
        mean, variance = self.numbers.means[atom.family], self._variance(atom.family)
        m, q = mean[None, atom.forms, None][:, rows], variance[:, atom.forms, None][:, rows]
        kind_m, kind_q = mean[None, None, kind.forms], variance[:, None, kind.forms]
        cov = self.covariances[atom.family][:, atom.forms][:, rows, kind.forms]
        if kind.parallel is not None:
            cov = kind.parallel(cov, q, kind_q)
            scale = 0.0 if self.probe is None else self.probe.scale
            cov = cov * (1.0 - scale * self.r.rounding * np.finfo(cov.dtype).eps)
        if kind.rule:
            values[:, rows] = kind.rule(m, kind_m, q, kind_q, cov)
            return
        left, right = self._own_series(atom)[:, rows, None], self._series_of(kind)[:, None]
        value, error = pair_sum(left, right, correlation(cov, q * kind_q), errors=self.probe is not None)
        if self.probe is not None:
            self.r.notes.report(kind.product_name(atom), "Hermite series", float(np.max(error)))
            value = self.probe.perturbed(value, error)
        values[:, rows] = value

    def _enter(self, table: np.ndarray, rows: slice, columns: Table, block: np.ndarray) -> None:
        """Write new rows (repeats, rows, columns), and mirror them: tables are symmetric."""
        table[:, rows, columns] = block
        mirrored = block.swapaxes(1, 2)
        places = np.arange(table.shape[1])[columns]

        def write(part: slice) -> None:
            table[:, places[part], rows] = mirrored[:, part]

        self._by_rows(mirrored, write)

    def _by_rows(self, table: np.ndarray, work: Callable[[slice], None]) -> None:
        """Work on all rows of a table (repeats, rows, columns), some rows at a time."""
        repeats, rows, columns = table.shape

        def quietly(part: slice) -> None:  # NumPy's error state belongs to a thread
            with np.errstate(all="ignore"):
                work(part)

        in_parts(self.threads, rows, max(1, ENTRIES // max(1, repeats * columns)), quietly)

    def _variance(self, family: int) -> np.ndarray:
        return np.maximum(np.einsum("kii->ki", self.covariances[family]), 0.0)

    def _mean(self, atom: ExactAtom) -> np.ndarray:
        rule = closed_mean(atom.atom.body)
        if rule:
            mean = self.numbers.means[atom.family][None, atom.forms]
            return rule(mean, self._variance(atom.family)[:, atom.forms])
        series = self._own_series(atom)
        value = series.coefs[..., 0]
        return value if self.probe is None else self.probe.perturbed(value, series.error)

    # Hermite series

    def _own_series(self, atom: ExactAtom) -> hermite.Series:
        return self._series_of(atom.kind)[:, atom.rows.start - atom.rows.stop :]

    def _series_of(self, kind: AtomKind) -> hermite.Series:
        """Return the series of all atoms of a kind; compute only those that are missing."""
        family, series = kind.key[0], self.series.get(kind.key)
        forms = np.arange(self.schedule.families[family].size)[kind.forms]
        new = forms[series.tail.shape[1] if series else 0 :]
        if len(new):
            variance = self._variance(family)[:, new]
            mean = np.broadcast_to(self.numbers.means[family][new], variance.shape)
            added = self._expand(kind.atom, mean, variance)
            series = hermite.concat([series, added] if series else [added], axis=1)
            self.series[kind.key] = series
        assert series is not None
        return series

    def _expand(self, atom: Atom, mean: np.ndarray, variance: np.ndarray) -> hermite.Series:
        """Return a series that is just long enough, repeat by repeat: no repeat changes another."""
        fn, kinks = callable_of(atom, {}, 0), kinks_of(self.r, atom)
        # A model serves smooth functions only: kinks lie elsewhere at every mean and variance.
        model = None if kinks else self._model(atom, mean, variance)
        if model is not None:
            return hermite.series_like(model, fn, mean, variance)
        trusted = self._is_trusted(atom, mean, variance)
        repeats = [
            _long_enough(fn, m[None], q[None], kinks, trusted) for m, q in zip(mean, variance, strict=True)
        ]
        return hermite.concat([settled(atom, series) for series in repeats], axis=0)

    def _model(self, atom: Atom, mean: np.ndarray, variance: np.ndarray) -> hermite.Series | None:
        """Return a series at larger means and variances, whose quadrature rule serves many variables.

        The pilot run finds it, at means and variances half as large again: later ones may be larger.
        """
        models = self.drawing.shared.models
        largest = float(np.abs(mean).max()), float(variance.max())
        model, bounds = models.get(atom.body, (None, (-1.0, -1.0)))
        if model is not None and largest[0] <= bounds[0] and largest[1] <= bounds[1]:
            return model
        if not self.may_learn:
            return None
        m, q = (1.5 * max(a, b, 0.0) for a, b in zip(largest, bounds, strict=True))
        law = np.array([-m, 0.0, m]), np.full(3, q)
        if not self._is_trusted(atom, *law):
            return None
        model = _long_enough(callable_of(atom, {}, 0), *law, (), True)
        models[atom.body] = settled(atom, model), (m, q)
        return model

    def _is_trusted(self, atom: Atom, mean: np.ndarray, variance: np.ndarray) -> bool:
        """Return whether equal steps see all of f; a user's function must agree with a search, once."""
        trusted, body = self.r.forms.trusted, atom.body
        if body not in trusted:
            fn, kinks = callable_of(atom, {}, 0), kinks_of(self.r, atom)
            law = mean.reshape(-1)[:1], variance.reshape(-1).max(keepdims=True)
            steps, searched = (
                hermite.series(fn, *law, 64, TRUNCATION, kinks, trusted=equal).square
                for equal in (True, not has_user_function(body))
            )
            trusted[body] = bool(abs(steps - searched) <= TRUNCATION * searched)
        return trusted[body]

    # The second moments

    def block(
        self, left: NeededVector, right: NeededVector, same: bool, rows: slice, cols: slice
    ) -> np.ndarray:
        """Return E[e f]: (repeats, inputs) if `same`, else (repeats, left inputs, right inputs)."""
        of_left = rows if same else (rows, None)
        inputs = np.empty(left.inputs)[of_left].shape, np.empty(right.inputs)[cols].shape
        total = np.zeros((len(self.cores[0]), *np.broadcast_shapes(*inputs)))
        for odd, piece in left.pieces.items():
            if odd in right.pieces:
                total += self._second_moment(piece.at(of_left), right.pieces[odd].at(cols))
        return total


def _symmetrise(block: np.ndarray, rows: slice) -> None:
    """Make the new rows of (repeats, rows, all so far) exactly symmetric among themselves, in place."""
    square = block[:, :, rows]
    block[:, :, rows] = (square + square.swapaxes(1, 2)) / 2


def _long_enough(
    fn: Callable[[np.ndarray], np.ndarray],
    mean: np.ndarray,
    variance: np.ndarray,
    kinks: tuple[float, ...],
    trusted: bool,
) -> hermite.Series:
    """Return the shortest series that leaves out less than TRUNCATION, or the longest one."""
    series = hermite.series(fn, mean, variance, 64, TRUNCATION, kinks, trusted=trusted)
    for terms in (128, 256, 512, 1024, 2048):
        if series.rest <= TRUNCATION:
            break
        series = hermite.series(fn, mean, variance, terms, TRUNCATION, kinks, trusted=trusted)
    return series
