"""Samples of Gaussian forms, drawn jointly for all inputs, and averages of functions of them.

    samples(form)               values of a form at the points: (repeats, inputs, index..., points)
    values(atoms)               the product of some functions of forms at the points
    sampled_mean(left, right)   the average of such products of the left and of the right input

There are independent randomisations, the repeats, each with its own points and covariances. The covariance of
a form with those that were drawn before it is known when it is drawn, so their factor grows row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from operator import mul
from typing import Any

import numpy as np

from netsor.expect.points.loadings import Held, Loadings, Noise
from netsor.expect.points.normal import NormalPoints
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Expr, Ref, refs
from netsor.limits.nudges import STILL, Nudge
from netsor.limits.recursion.covariances import cov
from netsor.limits.recursion.forms import HOLE, Atom, replace_exprs
from netsor.limits.recursion.pairs import Pair, PerInput, PerPair, padded
from netsor.limits.recursion.recorder import Asking, Recorder
from netsor.limits.recursion.values import mean, values_of
from netsor.limits.sampling.carried import Carried, reaching
from netsor.limits.tape.tape import Span
from netsor.limits.tape.traced import Traced

__all__ = ["DRAWING", "HELD", "Drawing", "Samples", "drawing_leaf", "held_choices", "sampled_mean"]

Atoms = tuple[Atom, ...]
ALL = Pair(False)
HELD = "held"  # of what runs share: pivots and axes that later ones take again
DRAWING = "drawing"  # what a run is given to draw with


@dataclass
class Samples:
    """Which families are sampled, with how many points and repeats; what has been drawn while recording.

    tables   second moments of vectors that are computed together, if some are
    squared  products of which second moments are asked for; of others, means
    """

    families: frozenset[str]
    points: int
    repeats: int
    tables: Any = None
    drawn: dict[str, list[Expr]] = field(default_factory=dict)
    squared: set[Atoms] = field(default_factory=set)
    last: Traced | None = None


class Drawing:
    """The points of some repeats of a run, and the samples of each family as they grow.

    shared   what all repeats of a run have in common
    carried  by how few points
    advance  to be called after each stage, with its work
    nudge    how every inexact number is moved by its error bound
    """

    def __init__(
        self,
        seed: int,
        count: int,
        repeats: range,
        shared: dict[str, Any],
        advance: Callable[..., None],
        nudge: Nudge = STILL,
    ) -> None:
        self.seed, self.count, self.repeats, self.shared, self.advance = seed, count, repeats, shared, advance
        self.nudge = nudge
        self.carried: Carried = shared.setdefault("carried", Carried())
        self.noise: Noise | None = None
        self.begin(0)

    def begin(self, dimensions: int) -> None:
        """Points of which so many dimensions are expected."""
        self.points = [NormalPoints(self.count, (self.seed, k), dimensions=dimensions) for k in self.repeats]

    @property
    def dimensions(self) -> int:
        return self.points[0].taken

    def extend(self, family: str, own: np.ndarray, cross: list[np.ndarray]) -> np.ndarray:
        """Samples (repeats, rows, points) of new variables, from their covariances."""
        if self.noise is None:
            loadings = [
                Loadings(taken=points.taken, held=held_choices(self.shared, points)) for points in self.points
            ]
            self.noise = Noise(self.points, loadings, slice(0, self.count))
        rows = []
        for k, loadings in enumerate(self.noise.loadings):
            block = _repeat(own, k)
            joined = np.concatenate([np.zeros((len(block), 0)), *(_repeat(m, k) for m in cross)], axis=1)
            rows.append(loadings.extend(family, joined, (block + block.T) / 2))
            self.points[k].taken = loadings.taken
        return self.noise.mixed(family, rows)


def held_choices(shared: dict[str, Any], points: NormalPoints) -> Held | None:
    """The pivots and axes of a repeat that runs like this one have chosen, if they are to be held."""
    held = shared.get(HELD)
    return None if held is None else held.setdefault((points.seed, points.count), {})


def _repeat(matrices: np.ndarray, k: int) -> np.ndarray:
    return matrices[k if len(matrices) > 1 else 0]


def drawing_leaf(r: Recorder) -> Traced:
    """What a run is given to draw with."""
    return r.tape.leaf(DRAWING, (), np.float64, lambda given, _: given[DRAWING])


def samples(r: Recorder, form: Expr) -> Asking:
    """The values of a form at the points; drawing a form may draw others of its family first."""
    plan: Samples = r.samples
    family = next(r.forms.families[n] for n in refs(form) if n in r.forms.families)
    drawn = plan.drawn.setdefault(family, [])
    own = yield covariances, form, form
    cross: list[Traced] = []
    while len(cross) < len(drawn):
        cross.append((yield covariances, form, drawn[len(cross)]))
    drawn.append(form)
    index, inputs = r.index(form), r.inputs_of(form)

    def draw(drawing: Drawing, before: Any, own: np.ndarray, cross: list[np.ndarray]) -> np.ndarray:
        return drawing.extend(family, own, cross)

    shape = (plan.repeats, inputs * prod(index), plan.points)
    plan.last = r.tape.call(draw, (drawing_leaf(r), plan.last, own, cross), shape, np.float64)
    m: PerInput = yield mean, form
    noise = r.xp.reshape(plan.last, (plan.repeats, inputs, *index, plan.points))
    shift = padded(m.array, 2, m.rank, len(index))
    return noise + r.xp.reshape(shift, (*shift.shape, 1))


def covariances(r: Recorder, e: Expr, f: Expr) -> Asking:
    """The covariance matrix of two forms over all inputs and indices: (repeats, rows, columns)."""
    left, right = r.index(e), r.index(f)
    sizes = (r.inputs_of(e), r.inputs_of(f))
    rows, cols = sizes[0] * prod(left), sizes[1] * prod(right)
    block: PerPair | None = yield cov, e, f, ALL
    if block is None:
        return r.xp.zeros((1, rows, cols))
    array = block.ranked(len(left), len(right))
    full = r.xp.broadcast_to(array, (array.shape[0], *sizes, *left, *right))
    return r.xp.reshape(r.xp.moveaxis(full, 2, 2 + len(left)), (array.shape[0], rows, cols))


def values(r: Recorder, atoms: Atoms) -> Asking:
    """The product of atoms at the points: (repeats, inputs, index..., points), and its rank."""
    plan: Samples = r.samples
    bodies, arrays, blocks = [], {}, {}
    for atom in atoms:
        names: dict[Expr, Ref] = {form: Ref(f"@{len(arrays) + k}") for k, form in enumerate(atom.forms)}
        for form, ref in names.items():
            arrays[ref.name] = yield samples, form
            blocks[ref.name] = (r.rank(form), True)
        bodies.append(replace_exprs(atom.body, {HOLE: names[atom.forms[0]]} if atom.unary else {**names}))
        constants = yield from values_of(
            r, [n for n in refs(bodies[-1]) if n not in arrays and n not in blocks]
        )
        for name, block in constants.items():
            arrays[name], blocks[name] = block.array, (block.rank, False)
    rank = max(r.rank(atom.expr) for atom in atoms)
    index = np.broadcast_shapes(*(r.index(atom.expr) for atom in atoms))
    inputs = max(r.inputs_of(atom.expr) for atom in atoms)
    shape = (plan.repeats, inputs, *index, plan.points)

    def product(given: Iterable[np.ndarray]) -> np.ndarray:
        known = {n: Block(a, *blocks[n]) for n, a in zip(arrays, given, strict=True)}
        with np.errstate(all="ignore"):
            made = [evaluate(body, known).lift(rank, True) for body in bodies]
            return np.broadcast_to(reduce(mul, made), shape)

    def run(drawing: Drawing, *given: np.ndarray) -> np.ndarray:
        drawn = [blocks[name][1] for name in arrays]

        def further() -> np.ndarray:
            return product(reaching(a) if own else a for a, own in zip(given, drawn, strict=True))

        found = product(given)
        exprs = [atom.expr for atom in atoms]
        drawing.carried.add((atoms, 0), exprs, found, further, atoms in plan.squared)
        return found

    step = r.tape.call(run, (drawing_leaf(r), *arrays.values()), shape, np.float64)
    return PerInput(step, rank)


def sampled_mean(r: Recorder, left: Atoms, right: Atoms, pair: Pair) -> Asking:
    """The average over the points of the sampled atoms of both sides, for every pair of inputs."""
    if not (left and right):
        value: PerInput = yield values, left or right
        array = r.xp.sum(value.array, axis=-1) / float(r.samples.points)
        return pair.side(0 if left else 1, PerInput(array, value.rank))
    r.samples.squared.update((left, right))
    x: PerInput = yield values, left
    y: PerInput = yield values, right
    return PerPair(_average(x, y, pair), pair, x.rank, y.rank)


def _average(x: PerInput, y: PerInput, pair: Pair) -> Traced:
    a, b, ranks, same, tied = x.array, y.array, (x.rank, y.rank), pair.same, pair.tied
    shape = _shape(a.shape, b.shape, ranks, pair)
    if not pair.is_tile:
        made = a.tape.call(lambda a, b: _means(a, b, ranks, same, tied), (a, b), shape, np.float64)
        a.tape.costs[made.step] = a.shape[-1]
        return made
    tape, rows, cols = pair.tape, pair.rows, pair.cols
    assert tape is not None
    assert rows is not None
    assert cols is not None
    left, right = tape.reader(a), tape.reader(b)

    def read(given: Any, spans: Mapping[Span, Span]) -> np.ndarray:
        parts = _part(left(given), spans[rows]), _part(right(given), spans[cols])
        return _means(*parts, ranks, same, tied)

    made = tape.leaf(("average", a.step, b.step, pair), shape, np.float64, read)
    tape.costs[made.step] = a.shape[-1]
    return made


def _part(x: np.ndarray, span: Span) -> np.ndarray:
    return x if x.shape[1] == 1 else x[:, span[0] : span[1]]


def _shape(a: tuple[int, ...], b: tuple[int, ...], ranks: tuple[int, int], pair: Pair) -> tuple[int, ...]:
    left, right = a[2:-1], b[2:-1]
    index = np.broadcast_shapes(left, right) if pair.tied else (*left, *right)
    if pair.same:
        return (a[0], max(a[1], b[1]), *index)
    counts = (
        n if span is None or n == 1 else span[1] - span[0]
        for n, span in ((a[1], pair.rows), (b[1], pair.cols))
    )
    return (a[0], *counts, *index)


def _means(a: np.ndarray, b: np.ndarray, ranks: tuple[int, int], same: bool, tied: bool) -> np.ndarray:
    """Averages over the last axis of a times b: (repeats, inputs..., left index, right index), or tied."""
    n, repeats = a.shape[-1], a.shape[0]
    if tied:
        rank = max(ranks)
        a, b = padded(a, 2, ranks[0], rank), padded(b, 2, ranks[1], rank)
        if same:
            return np.einsum("...n,...n->...", a, b) / n
        a, b = np.moveaxis(a, 1, -2), np.moveaxis(b, 1, -2)
        return np.moveaxis(a @ np.swapaxes(b, -1, -2), (-2, -1), (1, 2)) / n
    if same:
        out = a.reshape(*a.shape[:2], -1, n) @ np.swapaxes(b.reshape(*b.shape[:2], -1, n), -1, -2) / n
        return out.reshape(*out.shape[:2], *a.shape[2:-1], *b.shape[2:-1])
    out = _gram(a.reshape(repeats, -1, n), b.reshape(repeats, -1, n)) / n
    return np.moveaxis(out.reshape(repeats, *a.shape[1:-1], *b.shape[1:-1]), a.ndim - 1, 2)


def _gram(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a[k] @ b[k].T for every repeat; single rows without BLAS, whose threads cost more than the work."""
    if a.shape[1] * b.shape[1] == 1:
        return np.einsum("kpn,kqn->kpq", a, b)
    return np.stack([x @ y.T for x, y in zip(a, b, strict=True)])
