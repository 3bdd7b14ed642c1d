"""Samples of Gaussian forms as steps of the tape, drawn jointly for all inputs, and averages over them.

    samples(form)               values of a form at the points: (repeats, inputs, index..., points)
    values(atoms)               the product of functions of forms at the points
    sampled_mean(left, right)   the average of such products of the left and of the right input

The repeats are independent randomisations; each has its own points and covariances. When a form is drawn, its
covariance with all forms drawn before is known, so the factor of the covariance matrix grows row by row. A
run computes some repeats with a `Drawing`; all runs of a call share a `SharedState`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.points.landmark_loadings import Landmarks
from netsor.expect.points.loadings import FixedChoices, Loadings, Noise
from netsor.expect.points.principal_axes import PrincipalAxes
from netsor.expect.points.sobol import NormalPoints
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Expr, Ref, refs
from netsor.lang.functions import mul
from netsor.lang.show import shown_short
from netsor.limits.rules.atoms import Atom, replace_exprs
from netsor.limits.rules.lincomb import cov, mean
from netsor.limits.rules.moment import values_of
from netsor.limits.rules.pairs import Pair, PerInput, PerPair, padded
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.tape.tape import Span
from netsor.limits.tape.traced import Traced

Atoms = tuple[Atom, ...]
Key = tuple[Hashable, Hashable]  # a group of vectors, and one vector of it
DRAWING = "drawing"  # the name of the `Drawing` among the values that a run is given


# Heavy points


def reaching(samples: np.ndarray) -> np.ndarray:
    """Move samples `(..., points)` of Gaussian variables further from their mean.

    Points at 3.7 standard deviations, the largest of a few thousand, move to 6. An event beyond 6 has
    probability 1e-9, which no kernel notices.
    """
    middle = samples.mean(axis=-1, keepdims=True)
    return middle + 1.6 * (samples - middle)


@dataclass
class _Sums:
    """For each input, the largest term and the sum of terms (h^2 or |h|), and the range of each entry."""

    exprs: Sequence[Expr]
    largest: Any = 0.0
    total: Any = 0.0
    low: Any = np.inf
    top: Any = -np.inf
    unseen: Any = False  # constant at some points, but not at points that reach further
    count: int = 0


@dataclass
class HeavyPoints:
    """The weights of the heaviest points over all repeats of a call; threads add to it.

    The spread of repeats says nothing about rare events and heavy tails. An event that no point meets gives 0
    with error 0. For a function that grows like an exponential, the few largest values determine the mean,
    and the next ones would change it by as much. So we keep for every vector h the weight of its heaviest
    point: the largest term of the sum of h^2, relative to that sum (of |h| if only the mean of h matters). If
    h has the same value at all points, it is evaluated again at points that reach further.

    The entries of an index are added up first, as kernels do. Of thousands of entries one always has a heavy
    point, which says nothing about their sum.
    """

    sums: dict[Key, _Sums] = field(default_factory=dict)
    _lock: Any = field(default_factory=Lock, repr=False)

    def add(
        self,
        key: Key,
        exprs: Sequence[Expr],
        values: np.ndarray,
        further: Callable[[], np.ndarray],
        squared: bool = True,
    ) -> None:
        """Add values `(repeats, inputs, index..., points)` of a product of expressions.

        further   evaluates the product at points that reach further
        squared   whether second moments matter; else only means do
        """
        low, top = _range(values)
        entries = values.reshape(*values.shape[:2], -1, values.shape[-1])
        terms = np.einsum("rien,rien->rin", entries, entries) if squared else np.abs(entries).sum(axis=2)
        constant = _close(low, top)
        unseen = np.zeros_like(constant)
        if constant.any():
            furthest = _range(further())
            unseen = constant & ~(_close(furthest[0], low) & _close(furthest[1], top))
        with self._lock:
            sums = self.sums.setdefault(key, _Sums(exprs))
            sums.largest = np.maximum(sums.largest, terms.max(axis=(0, -1)))
            sums.total = sums.total + terms.sum(axis=(0, -1))
            sums.low, sums.top = np.minimum(sums.low, low), np.maximum(sums.top, top)
            sums.unseen = sums.unseen | unseen
            sums.count += values.shape[0] * values.shape[-1]

    def weight(self) -> float:
        """Return the largest weight of a point in a moment of a sum of vectors, or 0 if all tails are light.

        A kernel adds up the vectors of one group (the first entry of a key), so a weight is relative to the
        largest of these. A weight that is too large for any error estimate is an error.
        """
        usual, most = 30.0, 0.25  # largest term over mean, for light tails; largest weight with an estimate
        means = self._group_means()
        worst, which = 0.0, None
        for key, sums in self.sums.items():
            # Vectors count together only if they have equally many inputs; else compare with the largest.
            mean = means[key[0]] if means[key[0]].shape == sums.total.shape else means[key[0]].max()
            constant = _close(sums.low, sums.top)
            # A constant has no heavy points, however large its terms are.
            is_constant = np.reshape(constant, (len(sums.total), -1)).all(axis=1)
            terms = np.where(is_constant, 0.0, sums.largest) / np.where(mean > 0, mean, 1.0)
            heaviest = float(np.max(terms, initial=0.0))
            # An event that no point has met has an unknown size, so it counts as all of the moment.
            weight = 1.0 if np.any(constant & sums.unseen) else heaviest / sums.count
            if weight > worst and (weight == 1.0 or heaviest > usual):
                worst, which = weight, key
        if which is not None and worst > most:
            name = " * ".join(shown_short(e, 1000) for e in self.sums[which].exprs)
            raise LimitError(
                f"too few sample points carry the moments of `{name}`: a rare event, or a heavy tail",
                remedy="Take more with points=..., make the event more frequent, or the function grow more "
                "slowly.",
            )
        return worst

    def _group_means(self) -> dict[Hashable, np.ndarray]:
        """For each group, the largest mean term of its vectors: by input if the vectors have equally many."""
        means: dict[Hashable, np.ndarray] = {}
        for (group, _), sums in self.sums.items():
            mean, largest = sums.total / sums.count, means.get(group, np.zeros(1))
            alike = mean.shape == largest.shape or 1 in (mean.size, largest.size)
            means[group] = np.maximum(mean, largest if alike else largest.max())
        return means


def _range(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest value of each entry; values are `(repeats, entries..., points)`."""
    return values.min(axis=-1).min(axis=0), values.max(axis=-1).max(axis=0)


def _close(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return whether numbers are equal up to rounding."""
    return np.abs(a - b) <= 1e-12 * np.abs(a)


# Runs


@dataclass
class SharedState:
    """State that the runs of one call share, or of several calls that must make the same choices.

    fixed      pivots and axes of the first call, by seed and number of points; None if each call chooses
    landmarks  which inputs are landmarks, if the others are drawn given these
    dropped    for each pair of inputs, the covariance that landmarks leave out
    axes       the principal axes that the pilot run finds
    models     by function, a Hermite series for many variables, and the largest |mean| and variance of these
    arrays     large arrays that one run passes to the next
    heavy      the weights of the heaviest points
    """

    fixed: dict[tuple[Any, int], FixedChoices] | None = None
    landmarks: Landmarks | None = None
    dropped: Any = 0.0
    axes: PrincipalAxes | None = None
    models: dict[Expr, Any] = field(default_factory=dict)
    arrays: dict[Any, np.ndarray] = field(default_factory=dict)
    heavy: HeavyPoints = field(default_factory=HeavyPoints)

    def fixed_choices(self, points: NormalPoints) -> FixedChoices | None:
        """Return the pivots and axes of a repeat, if every call must make the same choices."""
        return None if self.fixed is None else self.fixed.setdefault((points.seed, points.count), {})

    def zeros(self, key: tuple[Any, ...], shape: tuple[int, ...]) -> np.ndarray:
        """Return an array of zeros, or the array of the run before: new memory takes time.

        Every run writes the same entries before it reads them, so the other entries stay zero.
        """
        if key not in self.arrays or self.arrays[key].shape != shape:
            self.arrays.pop(key, None)  # free the old array before the new one takes memory
            self.arrays[key] = np.zeros(shape)
        return self.arrays[key]


class Drawing:
    """The points of some repeats in a run, and the samples of each family as they grow.

    advance  called after each stage, with the work of that stage
    heavy    the weights of the heaviest points; None in a pilot run, which has too few points to judge
    """

    def __init__(
        self,
        seed: int,
        count: int,
        repeats: range,
        shared: SharedState,
        advance: Callable[..., None] = lambda work: None,
        is_pilot: bool = False,
    ) -> None:
        self.seed, self.count, self.repeats, self.shared, self.advance = seed, count, repeats, shared, advance
        self.heavy = None if is_pilot else shared.heavy
        self.loadings: list[Loadings] = []
        self.noise: Noise | None = None
        self.begin(0)

    def begin(self, dimensions: int) -> None:
        """Make points; `dimensions` is the expected number of them."""
        self.points = [NormalPoints(self.count, (self.seed, k), dimensions=dimensions) for k in self.repeats]

    @property
    def dimensions(self) -> int:
        return self.points[0].used

    def extend(self, family: str, cov_new: np.ndarray, cov_with_old: list[np.ndarray]) -> np.ndarray:
        """Return samples (repeats, rows, points) of new variables.

        cov_new       (repeats or 1, rows, rows)
        cov_with_old  for each form drawn before: (repeats or 1, rows, its rows)
        """
        if self.noise is None:
            self.loadings = [
                Loadings(used=points.used, fixed=self.shared.fixed_choices(points)) for points in self.points
            ]
            dimensions = [loadings.dimensions for loadings in self.loadings]
            self.noise = Noise(self.points, dimensions, slice(0, self.count))
        rows = []
        for k, loadings in enumerate(self.loadings):
            # A covariance that no sample has changed is the same for all repeats, and has one matrix.
            new, *old_blocks = (m[k if len(m) > 1 else 0] for m in (cov_new, *cov_with_old))
            old = np.concatenate([np.zeros((len(new), 0)), *old_blocks], axis=1)
            # The covariance is symmetric only up to rounding.
            rows.append(loadings.extend(family, old, (new + new.T) / 2))
            self.points[k].used = loadings.used
        return self.noise.variables(family, rows)


# Rules


@dataclass
class Samples:
    """Which families are sampled, with how many points and repeats, and what a recording has drawn.

    block    returns E[e f] of vectors whose second moments are in tables, for (e, f, pair)
    drawn    by family, its forms in the order of drawing
    squared  products whose second moments matter; of others, only means do
    last     the latest draw
    """

    families: frozenset[str]
    points: int
    repeats: int
    block: Callable[[Expr, Expr, Pair], PerPair] | None = None
    drawn: dict[str, list[Expr]] = field(default_factory=dict)
    squared: set[Atoms] = field(default_factory=set)
    last: Traced | None = None


def drawing_leaf(r: Recorder) -> Traced:
    """Return the leaf that gives steps the `Drawing` of a run."""
    return r.tape.input(DRAWING, (), np.float64)


def samples(r: Recorder, form: Expr) -> Asking:
    """Return the values of a form at the points; this may draw other forms of its family first."""
    plan: Samples = r.samples
    family = next(r.forms.families[n] for n in refs(form) if n in r.forms.families)
    drawn = plan.drawn.setdefault(family, [])
    cov_new = yield covariances, form, form
    cov_with_old: list[Traced] = []
    while len(cov_with_old) < len(drawn):
        cov_with_old.append((yield covariances, form, drawn[len(cov_with_old)]))
    drawn.append(form)
    index, inputs = r.index(form), r.inputs_of(form)

    # Each draw takes the one before as an argument, so that draws consume coordinates of the points in order.
    def draw(drawing: Drawing, before: Any, *covariances: Any) -> np.ndarray:
        return drawing.extend(family, *covariances)

    shape = (plan.repeats, inputs * prod(index), plan.points)
    plan.last = r.tape.call(draw, (drawing_leaf(r), plan.last, cov_new, cov_with_old), shape, np.float64)
    m: PerInput = yield mean, form
    noise = r.xp.reshape(plan.last, (plan.repeats, inputs, *index, plan.points))
    shift = padded(m.array, 2, m.rank, len(index))
    return noise + r.xp.reshape(shift, (*shift.shape, 1))


def covariances(r: Recorder, e: Expr, f: Expr) -> Asking:
    """Return the covariance of two forms over all inputs and indices: (repeats, rows, columns)."""
    left, right = r.index(e), r.index(f)
    sizes = (r.inputs_of(e), r.inputs_of(f))
    rows, cols = sizes[0] * prod(left), sizes[1] * prod(right)
    block: PerPair | None = yield cov, e, f, Pair(False)
    if block is None:
        return r.xp.zeros((1, rows, cols))
    array = block.ranked(len(left), len(right))
    full = r.xp.broadcast_to(array, (array.shape[0], *sizes, *left, *right))
    return r.xp.reshape(r.xp.moveaxis(full, 2, 2 + len(left)), (array.shape[0], rows, cols))


def values(r: Recorder, atoms: Atoms) -> Asking:
    """Return the product of atoms at the points: (repeats, inputs, index..., points)."""
    plan: Samples = r.samples
    exprs = [atom.expr for atom in atoms]
    forms = [*dict.fromkeys(form for atom in atoms for form in atom.forms)]
    drawn = [f"@{k}" for k in range(len(forms))]
    whole = reduce(lambda x, y: Apply(mul, (x, y)), exprs)
    body = replace_exprs(whole, dict(zip(forms, map(Ref, drawn), strict=True)))
    values_of_forms = yield [(samples, form) for form in forms]
    constants = yield from values_of(r, [n for n in refs(body) if n not in drawn])
    arrays = [*values_of_forms, *(block.array for block in constants.values())]
    ranks = [*map(r.rank, forms), *(block.rank for block in constants.values())]
    rank = max(map(r.rank, exprs))
    index = np.broadcast_shapes(*map(r.index, exprs))
    shape = (plan.repeats, max(map(r.inputs_of, exprs)), *index, plan.points)

    def product(given: Iterable[np.ndarray]) -> np.ndarray:
        named = zip([*drawn, *constants], given, ranks, strict=True)
        blocks = {name: Block(array, n, name in drawn) for name, array, n in named}
        with np.errstate(all="ignore"):
            value = evaluate(body, blocks).lift(rank, True)
        return np.broadcast_to(value, (value.shape[0], *shape[1:]))

    def run(drawing: Drawing, *given: np.ndarray) -> np.ndarray:
        def further() -> np.ndarray:
            return product([*map(reaching, given[: len(forms)]), *given[len(forms) :]])

        value = product(given)
        assert drawing.heavy is not None
        drawing.heavy.add((atoms, 0), exprs, value, further, atoms in plan.squared)
        return value

    step = r.tape.call(run, (drawing_leaf(r), *arrays), shape, np.float64)
    return PerInput(step, rank)


def sampled_mean(r: Recorder, left: Atoms, right: Atoms, pair: Pair) -> Asking:
    """Return the average over the points of the product of both sides, as a block of the pair."""
    if not (left and right):
        value: PerInput = yield values, left or right
        array = r.xp.sum(value.array, axis=-1) / float(r.samples.points)
        return pair.side(0 if left else 1, PerInput(array, value.rank))
    r.samples.squared.update((left, right))
    x: PerInput = yield values, left
    y: PerInput = yield values, right
    a, b, ranks = x.array, y.array, (x.rank, y.rank)
    index = a.shape[2:-1], b.shape[2:-1]
    index = np.broadcast_shapes(*index) if pair.tied else (*index[0], *index[1])

    def means(rows: slice, cols: slice, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _means(a[:, rows], b[:, cols], ranks, pair.same, pair.tied)

    shape, key = (a.shape[0], (a.shape[1], b.shape[1]), index), ("average", a.step, b.step)
    average = block_of_pair(pair, key, means, (a, b), *shape)
    average.tape.costs[average.step] = a.shape[-1]
    return PerPair(average, pair, *ranks)


def block_of_pair(
    pair: Pair,
    key: tuple[Hashable, ...],
    fn: Callable[..., np.ndarray],
    arrays: tuple[Traced, ...],
    repeats: int,
    inputs: tuple[int, int],
    index: tuple[int, ...] = (),
) -> Traced:
    """Record fn(left inputs, right inputs, *arrays), of slices: a block (repeats, inputs..., index...).

    A block of a tile reads the rows and columns of the tile only.
    """
    tape, spans = pair.tape, (pair.rows, pair.cols)
    counts = [
        n if span is None or n == 1 else span[1] - span[0] for n, span in zip(inputs, spans, strict=True)
    ]
    shape = (repeats, *([max(counts)] if pair.same else counts), *index)
    if tape is None or None in spans:
        every = slice(None)
        return arrays[0].tape.call(partial(fn, every, every), arrays, shape, np.float64)

    def of_tile(places: Mapping[Any, Span], *values: Any) -> np.ndarray:
        rows, cols = (
            slice(None) if n == 1 else slice(*places[span]) for n, span in zip(inputs, spans, strict=True)
        )
        return fn(rows, cols, *values)

    return tape.leaf((*key, pair), shape, np.float64, arrays, of_tile)


def _means(a: np.ndarray, b: np.ndarray, ranks: tuple[int, int], same: bool, tied: bool) -> np.ndarray:
    """Return averages over the last axis of a times b: (repeats, inputs..., left index..., right index...).

    a, b   (repeats, inputs, index..., points); if `tied`, the result has one index in place of two
    """
    n = a.shape[-1]
    if tied:
        rank = max(ranks)
        a, b = padded(a, 2, ranks[0], rank), padded(b, 2, ranks[1], rank)
        if same:
            return np.einsum("...n,...n->...", a, b) / n
        a, b = np.moveaxis(a, 1, -2), np.moveaxis(b, 1, -2)
        return np.moveaxis(a @ np.swapaxes(b, -1, -2), (-2, -1), (1, 2)) / n
    # Either the inputs of both sides are one axis, or they belong to the rows of the products.
    batch = a.shape[: 2 if same else 1]
    left, right = a.shape[len(batch) : -1], b.shape[len(batch) : -1]
    gram = a.reshape(*batch, -1, n) @ np.swapaxes(b.reshape(*b.shape[: len(batch)], -1, n), -1, -2) / n
    gram = gram.reshape(*gram.shape[: len(batch)], *left, *right)
    return gram if same else np.moveaxis(gram, a.ndim - 1, 2)
