"""Hermite series of functions of one form each: E[f] and E[f g] at any means, with certified tails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.gaps import near_moments
from netsor.expect.hermite import series as hermite
from netsor.expect.hermite.many import series_of_many
from netsor.expect.hermite.pairs import pair_sum
from netsor.expect.quadrature.cells import scale_for
from netsor.lang.analysis import about, has_user_function
from netsor.lang.derivatives import STEP, Slope, by_differences
from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees
from netsor.lang.libraries import is_traced
from netsor.lang.ops import Function
from netsor.limits.methods.closed import aligned_pair
from netsor.limits.methods.component import Component, callable_of, kinks_of, name_of, statistics
from netsor.limits.methods.near_parallel import NearParallel
from netsor.limits.recursion.forms import HOLE, Atom, replace_exprs
from netsor.limits.recursion.pairs import Pair, PerPair
from netsor.limits.recursion.recorder import Asking, Recorder
from netsor.limits.recursion.values import values_of
from netsor.limits.tape.tape import Span
from netsor.limits.tape.traced import Traced, array_namespace

__all__ = ["HermiteSeries", "correlation", "settled"]

Array = Any
POOR = 1e-12  # of sqrt(E[f^2] E[g^2]): what series may leave out before pairs are refined
MOST_REFINED = 256  # pairs of a tile: each takes about 10 ms at a deviation of 100
UNSETTLED = 1e-6  # of E[f'^2]: what the step of differences may change without further questions
FALLS = 2.0  # how many times less it changes with half of the step: then what is left is not more than that
LARGE, SMALL = 1e-4, 1e-10  # an error that the plan explains is above both, the second relative to E[f^2]


class HermiteSeries:
    """One quadrature for each input, and a polynomial in the correlation for each pair."""

    name = "Hermite series"
    cost = 64

    def applies(self, r: Recorder, c: Component) -> bool:
        return c.is_unary and len(c.atoms) <= 2

    def value(self, r: Recorder, c: Component) -> Asking:
        if len(c.atoms) == 1:
            return (yield from self._mean(r, c))
        a, b = c.atoms
        parallel = NearParallel.of(a.body, b.body, closed=False)
        found = yield from aligned_pair(r, c, parallel)
        if found is None:
            return None
        m1, m2, q1, q2, cov = found
        cov = cov if parallel is None else cov.tape.rule(parallel, cov, q1, q2)
        ranks, sides = (r.rank(a.expr), r.rank(b.expr)), []
        for side, atom in enumerate(c.atoms):
            sides.append(_Lifted(c.pair, ranks, side).series((yield series, atom)))
        shape = np.broadcast_shapes(cov.shape, q1.shape, q2.shape, *(x.shape for x in sides))
        errors, notes = r.nudge is not None, r.notes

        refine = _Refined.of(a, b)

        def total(left: hermite.Series, right: hermite.Series, *law: Array) -> Any:
            rho = correlation(law[4], law[2] * law[3])
            found = pair_sum(left, right, rho, errors=errors)
            value, error = found if refine is None else refine(found, (left, right), law[:4], rho)
            if errors and (why := _why_large(c, left, right, error)):
                notes.remark(why)
            return value, error

        kind = "pair of series" if refine is None else ("pair of series", a.body, b.body)
        array = r.inexact(c.what, self.name, total, (*sides, m1, m2, q1, q2, cov), shape, kind=kind)
        return PerPair(array, c.pair, *ranks)

    def _mean(self, r: Recorder, c: Component) -> Asking:
        found, rank = (yield series, c.atoms[0]), r.rank(c.atoms[0].expr)

        def first(series: hermite.Series) -> tuple[Array, Array]:
            return series.coefs[..., 0], series.error

        array = r.inexact(c.what, self.name, first, (found,), found.shape, kind="first of series")
        return PerPair(array, c.pair, rank, 0)


@dataclass(frozen=True)
class _Refined:
    """The expectation of smooth f(x) g(y) by quadrature, for the few pairs whose series are too short.

    That is so near correlation 1 and -1 where f varies within a small part of a standard deviation.
    """

    functions: tuple[Any, Any]

    @classmethod
    def of(cls, *atoms: Atom) -> _Refined | None:
        """For functions of the language without parameters."""
        bodies = [atom.body for atom in atoms]
        if all(refs(b) == [HOLE.name] and about(b, HOLE.name).is_smooth for b in bodies):
            return cls((callable_of(atoms[0], {}, 0), callable_of(atoms[1], {}, 0)))
        return None

    def __call__(
        self,
        found: tuple[Array, Array],
        sides: tuple[hermite.Series, ...],
        law: tuple[Array, ...],
        rho: Array,
    ) -> tuple[Array, Array]:
        """Values and errors, from those of the series, for means and variances and correlations."""
        (value, error), (left, right) = found, sides
        if not isinstance(value, np.ndarray):
            return value, error
        bound = max(POOR, 64 * float(np.finfo(rho.dtype).eps))
        if min(left.rest, right.rest) <= bound:
            return value, error
        size = np.sqrt(left.square * right.square)
        short = np.abs(rho) ** min(x.coefs.shape[-1] for x in (left, right)) * left.tail * right.tail
        same = (rho == 1) & (left.mark == right.mark) & (left.square == right.square)
        poor = np.broadcast_to((short > bound * size) & ~same, value.shape)
        if not 0 < np.count_nonzero(poor) <= MOST_REFINED:
            return value, error
        m1, m2, q1, q2, r = (np.broadcast_to(a, value.shape)[poor] for a in (*law, rho))
        better = near_moments(*self.functions, m1, m2, np.sqrt(q1), np.sqrt(q2), 1 - r)
        value, error = value.copy(), np.broadcast_to(error, value.shape).copy()
        value[poor], error[poor] = better.product, better.product_error
        return value, error


def _why_large(c: Component, left: hermite.Series, right: hermite.Series, error: Array) -> str:
    """The reason of errors that are not small; empty if they are, or known only in a compiled program."""
    if is_traced(error) or not error.size:
        return ""
    most = float(np.max(np.asarray(error)))
    size = float(np.max(np.asarray(left.square))) ** 0.5 * float(np.max(np.asarray(right.square))) ** 0.5
    if most <= max(LARGE, SMALL * size):
        return ""
    coefs = float(np.max(np.asarray(left.error * right.square**0.5 + left.square**0.5 * right.error)))
    head = f"errors of {c.what} are above {LARGE:.0e}, because"
    if coefs > most / 2:
        return f"{head} {' and '.join({name_of(a) for a in c.atoms})} is too rough to be integrated better"
    terms = min(left.coefs.shape[-1], right.coefs.shape[-1])
    return f"{head} what {terms} terms of a series leave out counts at correlations near 1 or -1"


def correlation(cov: Array, qq: Array) -> Array:
    """cov / sqrt(q q'), and 0 where a variance is 0."""
    xp = array_namespace(cov)
    safe = xp.where(qq == 0, xp.ones_like(qq), qq)
    return xp.where(qq == 0, xp.zeros_like(cov), cov / xp.sqrt(safe))


def series(r: Recorder, atom: Atom) -> Asking:
    """The step that computes the Hermite series of an atom at all inputs."""
    mean, var = yield from statistics(r, atom)
    names, rank, kinks = [n for n in refs(atom.body) if n != HOLE.name], r.rank(atom.expr), kinks_of(r, atom)
    trusted, finest = not has_user_function(atom.body), _finest(atom)
    blocks = yield from values_of(r, names)
    constants = list(blocks.values())
    arrays = (mean.array, var.array, *(b.array for b in constants))
    shape = np.broadcast_shapes(mean.array.shape, var.array.shape)
    if names:  # constants of any shape may be inside, so the shape is that of the whole
        shape = (*np.broadcast_shapes(*(a.shape[:2] for a in arrays)), *r.index(atom.expr))

    def make(mean: Array, var: Array, *arrays: Array) -> hermite.Series:
        known = {n: replace(b, array=a) for n, b, a in zip(names, constants, arrays, strict=True)}
        xp = array_namespace(mean, var)
        both = xp.broadcast_to(mean, shape), xp.broadcast_to(var, shape)
        fn = callable_of(atom, known, rank)
        expand = hermite.series if names else series_of_many
        found = settled(atom, expand(fn, *both, kinks=kinks, trusted=trusted, finest=finest))
        if finest and not names:
            _check_differences(atom, found, *both, kinks)
        return found

    if not trusted and not finest:
        r.notes.remark(
            f"`{name_of(atom)}` is looked at down to {scale_for(prod(shape)):.0e} standard deviations of its "
            "argument; what is narrower may be overlooked"
        )
    r.tape.opaque = True
    body = replace_exprs(atom.body, {Ref(n): Ref(f"@{k}") for k, n in enumerate(names)})
    kind = ("series", body, tuple((b.rank, b.vector) for b in constants), shape, kinks)
    return r.tape.call(make, arrays, shape, var.array.dtype, kind)


def _finest(atom: Atom) -> float:
    """What is not narrower, but for jumps, if the user's functions in an atom are differences; else 0.

    The function that differences are of may stand beside them: what is narrower in it they have lost.
    """
    users = [e for e in subtrees(atom.body) if isinstance(e, Apply) and getattr(e.op, "user", False)]
    ops = [e.op for e in users if isinstance(e.op, Function) and e.args == (HOLE,)]
    differences = [op.fn for op in ops if isinstance(op.fn, Slope) and by_differences(op)]
    known = {*differences, *(slope.fn for slope in differences)}
    return STEP if differences and len(ops) == len(users) and all(op.fn in known for op in ops) else 0.0


def _check_differences(
    atom: Atom, found: hermite.Series, mean: np.ndarray, var: np.ndarray, kinks: tuple[float, ...]
) -> None:
    """Refuse a derivative that has no limit as the step of its differences goes to 0, as that of sqrt|x|.

    With half of the step the change of E[f'^2] must be half or less, so that all further changes together are
    not more than the last one, which counts as error. Seen at the largest variance.
    """
    most = np.argmax(var)
    law = mean.reshape(-1)[most : most + 1], var.reshape(-1)[most : most + 1]

    def square(times: int) -> float:
        fn = callable_of(_coarser(atom, times), {}, 0)
        return float(hermite.series(fn, *law, kinks=kinks, finest=STEP).square[0])

    fine, coarse = float(found.square.reshape(-1)[most]), square(1)
    change = abs(coarse - fine)
    if change > UNSETTLED * fine and abs(square(2) - coarse) < FALLS * change:
        raise LimitError(
            f"the differences that stand for the derivative in `{name_of(atom)}` do not settle",
            remedy="Its square has no expectation, or it is singular, or varies over lengths below 0.01. "
            "Give the derivative: ns.nonlin(fn, h, derivative=...).",
        )


def _coarser(atom: Atom, times: int) -> Atom:
    """The same with the step of its differences doubled so many times."""
    wider: dict[Expr, Expr] = {}
    for e in subtrees(atom.body):
        if isinstance(e, Apply) and isinstance(e.op, Function) and isinstance(e.op.fn, Slope):
            wider[e] = Apply(replace(e.op, fn=replace(e.op.fn, coarser=times)), e.args, e.attrs)
    return Atom(replace_exprs(atom.body, wider), atom.forms, atom.unary)


def settled(atom: Atom, series: hermite.Series) -> hermite.Series:
    """The series, if the integral of f^2 is the same at two resolutions; else f has a pole or grows too fast.

    Where values are traced, such a series is NaN.
    """
    size = series.square**0.5  # the tail is above it only if the last refinement changed E[f^2]
    good = (series.error <= 0.05 * size) & (series.tail <= 1.05 * size)
    xp = array_namespace(good)
    if is_traced(good):
        return replace(series, coefs=xp.where(good[..., None], series.coefs, float("nan")))
    if not bool(xp.all(good)):
        raise LimitError(
            f"the expectation of `{name_of(atom)}` squared is not finite, or too singular or too rough",
            remedy="A nonlinearity (for tangent kernels, its derivative) has no pole, and grows more slowly "
            "than exp(x^2 / (4 variance)). One with thousands of waves or jumps can be sampled: "
            'method="sample".',
        )
    return series


class _Lifted:
    """The series of the left (0) or right (1) side of a pair, with the batch and index axes of a block."""

    def __init__(self, pair: Pair, ranks: tuple[int, int], side: int) -> None:
        self.pair, self.ranks, self.side = pair, ranks, side
        self.span = (pair.rows, pair.cols)[side]

    def series(self, found: Traced) -> Traced:
        shape, what = self._shape(found.shape), (self.side, self.ranks, self.pair.tied)
        tape, span = self.pair.tape, self.span
        if tape is None or span is None:
            kind = ("lifted series", *what, self.pair.same)
            return found.tape.call(lambda s: self._lifted(s, None), (found,), shape, found.dtype, kind)
        read = tape.reader(found)

        def tile(given: Any, spans: Mapping[Span, Span]) -> hermite.Series:
            return self._lifted(read(given), spans[span])

        kind = ("series", span, *what)
        return tape.leaf((*kind, found.step), shape, tape.dtype, tile, kind, (found,))

    def _shape(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tails of such a series, for a tile of the pair."""
        shape = list(np.broadcast_to(np.int8(0), own)[self._index(own[1], None)].shape)
        if self.span is not None and shape[1 + self.side] > 1:
            shape[1 + self.side] = self.span[1] - self.span[0]
        return tuple(shape)

    def _lifted(self, series: hermite.Series, span: Span | None) -> hermite.Series:
        return series[self._index(series.tail.shape[1], span)]

    def _index(self, count: int, span: Span | None) -> tuple[Any, ...]:
        inputs = slice(None) if span is None or count == 1 else slice(*span)
        left = self.side == 0
        batch: list[Any] = [inputs] if self.pair.same else [inputs, None] if left else [None, inputs]
        own, other = self.ranks[self.side], self.ranks[1 - self.side]
        index: list[Any] = [slice(None)] * own
        if self.pair.tied:
            index = [None] * (max(self.ranks) - own) + index
        else:
            index = index + [None] * other if left else [None] * other + index
        return (slice(None), *batch, *index)
