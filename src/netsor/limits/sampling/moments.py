"""Second moments of all vectors of a schedule, with independent repeats of the sample points.

Tables of covariances, expectations of exact atoms and second moments are computed for all repeats at once,
some rows at a time. The work at sample points is divided by repeats or, if memory holds only one repeat, by
points. Threads share all of it, and no number depends on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
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
from netsor.limits.rules.recorder import Recorder
from netsor.limits.sampling.chunks import RepeatChunk, Workspace
from netsor.limits.sampling.drawing import Drawing
from netsor.limits.sampling.numbers import Numbers
from netsor.limits.sampling.records import (
    AtomKind,
    ExactAtom,
    Form,
    Piece,
    Schedule,
    Table,
    VectorPieces,
    VectorStep,
)
from netsor.limits.tape.tape import Span
from netsor.threads import in_parts

ENTRIES = 2**18  # entries of a table that a thread computes at a time: they stay in the cache
TRUNCATION = 1e-11  # share of E[f^2] that a series may leave out: sampling errors are far larger


class Moments:
    """E[h h'] for the vectors of a schedule: `block(h, h', ...)`.

    axes          the principal axes from the pilot run; None in that run, and with landmarks
    covariances   by family that is not drawn, of its variables: (repeats, variables, variables)
    products      by family, E of products of two exact atoms: (repeats, atoms, atoms)
    cores         by group, the second moments of its cores: (repeats, cores, cores)
    trails        by family, how its variables were drawn; a pilot run only
    """

    def __init__(
        self,
        r: Recorder,
        schedule: Schedule,
        numbers: Numbers,
        drawing: Drawing,
        axes: PrincipalAxes | None,
        workspace: Workspace,
        threads: Executor,
        probe: Probe | None = None,
    ) -> None:
        self.r, self.schedule, self.numbers, self.drawing = r, schedule, numbers, drawing
        self.may_learn = axes is None  # without a pilot run before, this run finds the series that serve many
        self.threads, self.probe = threads, probe
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
        self.series: dict[tuple[int, Expr, bool], hermite.Series] = {}
        self.drawn: dict[Expr, np.ndarray] = {}  # by new form, its covariances with all so far
        loadings = self._loadings(axes)
        # Equal ranges of repeats for the threads; with one repeat, its chunks of points are the jobs.
        bounds = np.linspace(0, repeats, min(workspace.threads, repeats) + 1, dtype=int)
        self.chunks = [
            RepeatChunk(schedule, numbers, drawing, slice(a, b), loadings, workspace)
            for a, b in pairwise(bounds)
        ]
        for steps in schedule.stages:
            self._advance(steps)
            drawing.advance(work=sum(map(schedule.work_of, steps)))
        for points, used in zip(drawing.points, loadings, strict=True):
            points.used = used.used
        self.trails = loadings[0].trails
        for kept in loadings:
            if isinstance(kept, LandmarkLoadings):
                drawing.shared.dropped = np.maximum(drawing.shared.dropped, kept.dropped)
        # The tables stay, because blocks are read from them; everything else can go.
        self.covariances, self.series, self.drawn, self.chunks = [], {}, {}, []

    def _loadings(self, axes: PrincipalAxes | None) -> list[Loadings] | list[LandmarkLoadings]:
        shared, families = self.drawing.shared, self.schedule.families
        if shared.landmarks is not None:
            return [LandmarkLoadings(shared.landmarks, self.numbers.features) for _ in self.drawing.points]
        sizes = dict(enumerate(f.size for f in families))
        # Several repeats run on threads of their own; a single one divides its linear algebra instead.
        threads = self.threads if len(self.drawing.points) == 1 else None
        return [
            Loadings(axes, 0, axes is None, shared.fixed_choices(points), sizes, threads)
            for points in self.drawing.points
        ]

    def _advance(self, steps: list[VectorStep]) -> None:
        """Carry out the steps of one depth.

        Sums are added in the order of the points, so that they do not depend on the order of the threads.
        """
        self.drawn.clear()
        for step in steps:
            for form in step.forms:
                self._fill_covariances(form)
            for atom in step.atoms:
                self._fill_products(atom)
        cores = [step.core for step in steps if step.core is not None]
        if not cores:  # without a core there are no forms to draw
            return

        def prepare(chunks: slice) -> None:
            self.chunks[chunks.start].prepare(steps, self.drawn, self.products)

        in_parts(self.threads, len(self.chunks), 1, prepare)
        jobs = [(c, self.threads.submit(points.sums, c)) for c in self.chunks for points in c.point_chunks]
        totals = [np.zeros((len(self.cores[0]), core.inputs, core.rows.stop)) for core in cores]
        while jobs:
            chunk, job = jobs.pop(0)  # drop the job, so that its sums are freed
            for total, sums in zip(totals, job.result(), strict=True):
                total[chunk.repeats] += sums
        for core, total in zip(cores, totals, strict=True):
            total /= self.drawing.count
            _symmetrise(total, core.rows)
            self._enter(self.cores[core.group], core.rows, slice(core.rows.stop), total)

    def _fill_covariances(self, form: Form) -> None:
        """Compute Cov(form, form') for all forms of the family so far: var_W E[h h'] plus data and biases."""
        table, family = self.covariances[form.family], self.schedule.families[form.family]
        features = self.numbers.features[form.family]
        # The covariance from the inputs is the same for all repeats.
        from_inputs = features[form.rows] @ features[: form.rows.stop].T
        block = np.repeat(from_inputs[None], len(table), 0)

        def add(rows: slice) -> None:
            for link in form.links:
                coefs, other_coefs = self.numbers.scales[id(link)]
                value = self._second_moment(link.left, link.right, lambda x: x[rows, None], lambda x: x)
                value *= coefs[rows, None]
                value *= other_coefs
                block[:, rows, link.columns] += value

        self._by_rows(block, add)
        _symmetrise(block, form.rows)
        if family.drawn:
            self.drawn[form.expr] = block
        else:
            self._enter(table, form.rows, slice(form.rows.stop), block)

    def _second_moment(
        self,
        left: Piece,
        right: Piece,
        of_left: Callable[[np.ndarray], np.ndarray],
        of_right: Callable[[np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """Return E of the product of two pieces; `of_left` and `of_right` select their inputs."""
        # Factors of different families are independent of the cores and of each other: the moments multiply.
        value = self.cores[left.group][:, of_left(left.core), of_right(right.core)]
        for family, atoms in left.factors.items():
            value *= self.products[family][:, of_left(atoms), of_right(right.factors[family])]
        return value

    # Exact atoms

    def _fill_products(self, atom: ExactAtom) -> None:
        """Compute E of a new atom times each atom of its family so far."""
        covariances, table = self.covariances[atom.family], self.products[atom.family]
        for kind in atom.kinds:
            if kind.rule is None:  # series are shared: make them before threads start
                for expanded in (atom.kind, kind):
                    self._series_of(expanded)
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
        is_probed = self.probe is not None
        value, error = pair_sum(left, right, correlation(cov, q * kind_q), errors=is_probed)
        if is_probed:
            self.r.notes.report(kind.product_name(atom), "Hermite series", float(np.max(error)))
        values[:, rows] = self._perturbed(value, error)

    def _perturbed(self, value: np.ndarray, error: np.ndarray) -> np.ndarray:
        return value if self.probe is None else self.probe.perturbed(value, error)

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
        return self._perturbed(series.coefs[..., 0], series.error)

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
        if not kinks:
            model = self._model(atom, mean, variance)
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
        self,
        left: VectorPieces,
        right: VectorPieces,
        same: bool,
        rows: Span | None = None,
        cols: Span | None = None,
    ) -> np.ndarray:
        """Return E[e f]: (repeats, inputs) if `same`, else (repeats, left inputs, right inputs)."""

        def of_left(table: np.ndarray) -> np.ndarray:
            tile = table if rows is None or len(table) == 1 else table[slice(*rows)]
            return tile if same else tile[:, None]

        def of_right(table: np.ndarray) -> np.ndarray:
            return table if cols is None or len(table) == 1 else table[slice(*cols)]

        inputs = of_left(np.empty(left.inputs)), of_right(np.empty(right.inputs))
        total = np.zeros((len(self.cores[0]), *np.broadcast_shapes(*(x.shape for x in inputs))))
        for odd, piece in left.pieces.items():
            if odd in right.pieces:
                total += self._second_moment(piece, right.pieces[odd], of_left, of_right)
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
