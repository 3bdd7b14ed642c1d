"""Hermite series of functions of one form each: E[f] and E[f g] at any means, with certified tails.

    f(m + sqrt(q) x) = sum_n a_n h_n(x),    E[f g] = sum_n a_n b_n rho^n    (Mehler 1866)

The h_n are orthonormal Hermite polynomials and rho is the correlation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.hermite import expansion as hermite
from netsor.expect.hermite.mehler import pair_sum
from netsor.expect.hermite.variance_interpolation import series_of_many
from netsor.expect.quadrature.adaptive_cells import scale_for
from netsor.lang.analysis import has_user_function
from netsor.lang.array_api import is_traced
from netsor.lang.expr import Apply, Expr, Ref, refs, subtrees
from netsor.lang.numerical_derivatives import STEP, PartialDerivative, by_differences
from netsor.lang.ops import Function
from netsor.limits.methods.closed import aligned_pair
from netsor.limits.methods.component import Component, Method, callable_of, kinks_of, name_of, statistics
from netsor.limits.methods.near_parallel import NearParallel
from netsor.limits.rules.atoms import HOLE, Atom, replace_exprs
from netsor.limits.rules.moment import values_of
from netsor.limits.rules.pairs import Pair, PerPair
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.rules.setting import Setting
from netsor.limits.tape.tape import Span
from netsor.limits.tape.traced import Traced, array_namespace

Array = Any


class HermiteSeries(Method):
    """One quadrature for each input, then a polynomial in the correlation for each pair."""

    name = "Hermite series"
    cost = 64

    def applies(self, x: Setting, c: Component) -> bool:
        return c.is_unary and len(c.atoms) <= 2

    def value(self, r: Recorder, c: Component) -> Asking:
        if len(c.atoms) == 1:
            return (yield from self._mean(r, c))
        a, b = c.atoms
        parallel = NearParallel.of(a.body, b.body, closed=False)
        laws = yield from aligned_pair(r, c, parallel)
        if laws is None:
            return None
        _, _, q1, q2, cov = laws
        cov = cov if parallel is None else cov.tape.rule(parallel, cov, q1, q2)
        ranks, expansions = (r.rank(a.expr), r.rank(b.expr)), (yield [(series, a), (series, b)])
        sides = [_on_side(c.pair, ranks, side, expansion) for side, expansion in enumerate(expansions)]
        shape = np.broadcast_shapes(cov.shape, q1.shape, q2.shape, *(x.shape for x in sides))
        notes = r.notes

        def total(left: hermite.Series, right: hermite.Series, q1: Array, q2: Array, cov: Array) -> Any:
            value, error = pair_sum(left, right, correlation(cov, q1 * q2), errors=True)
            if why := _why_large(c, left, right, error):
                notes.remark(why)
            return value, error

        args, kind = (*sides, q1, q2, cov), "pair of series"
        array = r.inexact(c.what, self.name, total, args, shape, kind, plain=_pair_values)
        return PerPair(array, c.pair, *ranks)

    def _mean(self, r: Recorder, c: Component) -> Asking:
        expansion, rank = (yield series, c.atoms[0]), r.rank(c.atoms[0].expr)

        def first(series: hermite.Series) -> tuple[Array, Array]:
            return series.coefs[..., 0], series.error

        array = r.inexact(c.what, self.name, first, (expansion,), expansion.shape, kind="first of series")
        return PerPair(array, c.pair, rank, 0)


def _pair_values(left: hermite.Series, right: hermite.Series, q1: Array, q2: Array, cov: Array) -> Array:
    """Return the sums of pairs of series, without their errors."""
    return pair_sum(left, right, correlation(cov, q1 * q2), errors=False)[0]


def _why_large(c: Component, left: hermite.Series, right: hermite.Series, error: Array) -> str:
    """Return the reason of large errors as text; empty if the errors are small."""
    if not error.size:
        return ""
    most = float(np.max(np.asarray(error)))
    size = float(np.max(np.asarray(left.square))) ** 0.5 * float(np.max(np.asarray(right.square))) ** 0.5
    large = 1e-4  # smaller errors need no explanation, nor do errors that are small relative to E[f^2]
    if most <= max(large, 1e-10 * size):
        return ""
    # An error of the coefficients comes from the quadrature; any other one from the length of the series.
    coefs = float(np.max(np.asarray(left.error * right.square**0.5 + left.square**0.5 * right.error)))
    head = f"errors of {c.what} are above {large:.0e}, because"
    if coefs > most / 2:
        return f"{head} {' and '.join({name_of(a) for a in c.atoms})} is too rough to be integrated better"
    terms = min(left.coefs.shape[-1], right.coefs.shape[-1])
    return f"{head} what {terms} terms of a series leave out counts at correlations near 1 or -1"


def correlation(cov: Array, qq: Array) -> Array:
    """Return cov / sqrt(q q'), and 0 where a variance is 0. Shapes: those of the block."""
    xp = array_namespace(cov)
    # The safe divisor also keeps NaN out of derivatives where values are traced.
    safe = xp.where(qq == 0, xp.ones_like(qq), qq)
    return xp.where(qq == 0, xp.zeros_like(cov), cov / xp.sqrt(safe))


def series(r: Recorder, atom: Atom) -> Asking:
    """Record the Hermite series of an atom at all inputs: one step of the tape."""
    mean, var = yield from statistics(r, atom)
    names, rank, kinks = [n for n in refs(atom.body) if n != HOLE.name], r.rank(atom.expr), kinks_of(r, atom)
    trusted, finest = not has_user_function(atom.body), _finest(atom)
    blocks = yield from values_of(r, names)
    constants = list(blocks.values())
    arrays = (mean.array, var.array, *(b.array for b in constants))
    shape = np.broadcast_shapes(mean.array.shape, var.array.shape)
    if names:  # constants may have index axes that the form does not have
        shape = (*np.broadcast_shapes(*(a.shape[:2] for a in arrays)), *r.index(atom.expr))

    def make(mean: Array, var: Array, *arrays: Array) -> hermite.Series:
        values = {n: replace(b, array=a) for n, b, a in zip(names, constants, arrays, strict=True)}
        xp = array_namespace(mean, var)
        repeats = max(a.shape[0] for a in (mean, var, *arrays))  # a probe runs one repeat of many
        law_shape = (repeats, *shape[1:])
        both = xp.broadcast_to(mean, law_shape), xp.broadcast_to(var, law_shape)
        fn = callable_of(atom, values, rank)
        expand = hermite.series if names else series_of_many
        expansion = settled(atom, expand(fn, *both, kinks=kinks, trusted=trusted, finest=finest))
        if finest and not names:
            _check_differences(atom, expansion, *both, kinks)
        return expansion

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
    """Return the step of differences if all user functions of an atom are derivatives by differences; else 0.

    Such a derivative has no features narrower than its step, except jumps. The function itself may occur next
    to its differences, which have lost its narrower features anyway.
    """
    users = [e for e in subtrees(atom.body) if isinstance(e, Apply) and getattr(e.op, "user", False)]
    ops = [e.op for e in users if isinstance(e.op, Function) and e.args == (HOLE,)]
    differences = [op.fn for op in ops if isinstance(op.fn, PartialDerivative) and by_differences(op)]
    allowed = {*differences, *(slope.fn for slope in differences)}
    return STEP if differences and len(ops) == len(users) and all(op.fn in allowed for op in ops) else 0.0


def _check_differences(
    atom: Atom, expansion: hermite.Series, mean: np.ndarray, var: np.ndarray, kinks: tuple[float, ...]
) -> None:
    """Refuse a derivative that has no limit as the step of its differences goes to 0, like that of sqrt|x|.

    Halving the step must at least halve the change of E[f'^2]. Then the geometric series of all further
    changes is at most the last change, which counts as the error. The check uses the largest variance.
    """
    most = np.argmax(var)
    law = mean.reshape(-1)[most : most + 1], var.reshape(-1)[most : most + 1]

    def square(times: int) -> float:
        fn = callable_of(_coarser(atom, times), {}, 0)
        return float(hermite.series(fn, *law, kinks=kinks, finest=STEP).square[0])

    fine, coarse = float(expansion.square.reshape(-1)[most]), square(1)
    change = abs(coarse - fine)
    if change > 1e-6 * fine and abs(square(2) - coarse) < 2 * change:
        raise LimitError(
            f"the differences that stand for the derivative in `{name_of(atom)}` do not settle",
            remedy="Its square has no expectation, or it is singular, or varies over lengths below 0.01. "
            "Give the derivative: ns.nonlin(fn, h, derivative=...).",
        )


def _coarser(atom: Atom, times: int) -> Atom:
    """Return the same atom with the step of its differences doubled `times` times."""
    wider: dict[Expr, Expr] = {}
    for e in subtrees(atom.body):
        if isinstance(e, Apply) and isinstance(e.op, Function) and isinstance(e.op.fn, PartialDerivative):
            wider[e] = Apply(replace(e.op, fn=replace(e.op.fn, coarser=times)), e.args, e.attrs)
    return Atom(replace_exprs(atom.body, wider), atom.forms, atom.unary)


def settled(atom: Atom, series: hermite.Series) -> hermite.Series:
    """Return the series if the integral of f^2 agrees at two resolutions; else refuse f.

    A pole, or growth that is too fast, changes the integral. If values are traced, return NaN in place of
    an error.
    """
    size = series.square**0.5  # the tail exceeds this only if the last refinement changed E[f^2]
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


def _on_side(pair: Pair, ranks: tuple[int, int], side: int, expansion: Traced) -> Traced:
    """Return the series of the left (0) or right (1) side of a pair, broadcast to the axes of its block."""
    batch: list[Any] = [slice(None)] * 2
    if not pair.same:
        batch.insert(2 - side, None)
    index, missing = [slice(None)] * ranks[side], [None] * ranks[1 - side]
    if pair.tied:
        missing = missing[ranks[side] :]
    axes = (*batch, *index, *missing) if side == 0 and not pair.tied else (*batch, *missing, *index)
    span, tape = (pair.rows, pair.cols)[side], pair.tape
    if tape is None or span is None:
        return expansion[axes]
    shape = list(np.broadcast_to(np.int8(0), expansion.shape)[axes].shape)
    if shape[1 + side] > 1:
        shape[1 + side] = span[1] - span[0]

    def tile(spans: Mapping[Span, Span], series: hermite.Series) -> hermite.Series:
        inputs = slice(None) if series.tail.shape[1] == 1 else slice(*spans[span])
        return series[:, inputs][axes]

    kind = ("series", span, side, ranks, pair.tied)
    return tape.leaf((*kind, expansion.step), tuple(shape), tape.dtype, (expansion,), tile, kind)
