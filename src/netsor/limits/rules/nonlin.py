"""Nonlin: first and second moments of arbitrary expressions of Gaussian vectors.

    second(e, f)  E[e f]
    first(e)      E[e] = E[e 1]

Linear operations apply to the result. Below them are products of atoms, which factor over independent
families. The ladder of methods computes each factor. See `decomposition`.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import prod
from operator import add, mul
from typing import Any

import numpy as np

from netsor.lang.blocks import Block
from netsor.lang.expr import Apply, Expr
from netsor.lang.ops import IndexMap
from netsor.lang.rewrite import ONE
from netsor.limits.rules.atoms import Product
from netsor.limits.rules.decomposition import (
    Independent,
    Linear,
    Multiple,
    Plain,
    Slope,
    decomposition,
    independent_atoms,
    split_sampled,
)
from netsor.limits.rules.lincomb import combined, cov, mapped, mean
from netsor.limits.rules.moment import OWN, constant
from netsor.limits.rules.pairs import Pair, PerInput, PerPair
from netsor.limits.rules.recorder import Asking, Recorder, zero
from netsor.limits.rules.rewriting import require_spanned


def second(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Return E[e f] as a block of the pair."""
    x, y = r.forms.resolved(e), r.forms.resolved(f)
    if x is not e or y is not f:
        return (yield second, x, y, pair)
    # E[e f] of (x, x') is E[f e] of (x', x).
    back = r.known(second, f, e, pair.flipped)
    if back is not None:
        return back.swapped
    # A schedule has computed the moments of its vectors already.
    if r.samples is not None and r.samples.tables is not None:
        block = r.samples.tables.block(e, f, pair)
        if block is not None:
            return block
    match decomposition(r.setting, e, f, pair):
        case Plain.ZERO:
            return zero(r, pair, r.rank(e), r.rank(f))
        case Plain.GAUSSIAN:
            return (yield from _of_forms(r, e, f, pair))
        case Plain.SEPARATE:
            return (yield from _separate(r, e, f, pair, first))
        case Multiple(number, x, y):
            block = yield second, x, y, pair
            return block if number == 1 else block * number
        case Independent(parts):
            return (yield from _product_of_parts(r, e, f, parts, pair))
        case Linear(side):
            # E is linear, so a linear operation can be applied to expectations.
            return (yield from _linear(r, side, e, f, pair))
        case Slope(x, y, slopes):
            block = yield second, x, y, pair
            for side, slope in enumerate(slopes):
                if slope is not None:
                    block = block * pair.side(side, (yield spanned, slope.batch, slope.axes))
            return block
        case Plain.SAMPLED:
            return (yield r.rules.sampled_mean, (r.forms.as_atom(e),), (r.forms.as_atom(f),), pair)
        case Plain.PRODUCTS:
            return (yield from _multiplied_out(r, e, f, pair))


def first(r: Recorder, e: Expr) -> Asking:
    """Return E[e] for every input."""
    x = r.forms.resolved(e)
    if x is not e:
        return (yield first, x)
    match decomposition(r.setting, e, ONE, OWN):
        case Plain.ZERO:
            return PerInput(r.zero, 0).widened(r.rank(e))
        case Plain.GAUSSIAN:
            return (yield constant if r.forms.is_constant(e) else mean, e)
        case Linear():
            return (yield from _first_of_linear(r, e))
        case Multiple(_, x, _):
            return (yield first, x)
        case Independent(parts):
            total = yield from _product_of_parts(r, e, ONE, parts, OWN)
        case Plain.SAMPLED:
            total = yield r.rules.sampled_mean, (r.forms.as_atom(e),), (), OWN
        case _:
            total = yield from _multiplied_out(r, e, ONE, OWN)
    return PerInput(total.ranked(r.rank(e), 0), r.rank(e))


def _of_forms(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Cov(e, f) + E[e] E[f]; means that are known to be 0 are left out."""
    covariance = yield cov, e, f, pair
    # A Gaussian vector has E[e f] = Cov + E[e] E[f]; with one mean 0 the product of means drops out.
    if covariance is not None and (r.forms.is_centred(e) or r.forms.is_centred(f)):
        return covariance
    means = yield from _separate(r, e, f, pair, mean)
    return means if covariance is None else (covariance + means).widened(r.rank(e), r.rank(f))


def _separate(r: Recorder, e: Expr, f: Expr, pair: Pair, moment: Any) -> Asking:
    """E[e] E[f]."""
    left: PerInput = yield moment, e
    right: PerInput = yield moment, f
    return (pair.left(left) * pair.right(right)).widened(r.rank(e), r.rank(f))


def _product_of_parts(
    r: Recorder, e: Expr, f: Expr, parts: tuple[tuple[Expr, Expr], ...], pair: Pair
) -> Asking:
    """Return E[e f] = E[a a'] E[b b'] ... for e = a b ... and f = a' b' ..., independent parts."""
    moments = []
    for x, y in parts:
        moments.append((yield second, x, y, pair))
    return reduce(mul, moments).widened(r.rank(e), r.rank(f))


def _linear(r: Recorder, side: int, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Return E[e f] where e (side 0) or f (side 1) is a linear operation on vectors that are not affine."""
    head = (e, f)[side]
    assert isinstance(head, Apply)
    if not isinstance(head.op, IndexMap):
        return (yield from combined(r, side, e, f, pair, second))
    if side == 0:
        return (yield from mapped(r, head, f, pair, second))
    # An index map acts on the left index; swap the sides to apply it to the right one.
    turned = yield second, f, e, pair.flipped
    return turned.swapped


def _first_of_linear(r: Recorder, e: Expr) -> Asking:
    """Apply a linear operation to expectations; constants keep their values."""
    assert isinstance(e, Apply)
    args = []
    for a in e.args:
        value = yield first, a
        args.append(Block(value.array, value.rank))
    image = e.op.run(*args, **e.options)
    return PerInput(image.array, image.rank)


def _multiplied_out(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Return E[e f] of two sums of products of atoms, product by product."""
    values = []
    # Each pair of products factors by itself: E[p q] is a product over independent families.
    for p in r.forms.products(e):
        for q in (Product(),) if f is ONE else r.forms.products(f):
            values.append((yield from _product(r, p, q, pair)))
    return reduce(add, values).widened(r.rank(e), r.rank(f))


def _product(r: Recorder, p: Product, q: Product, pair: Pair) -> Asking:
    """Return E of a product of constants and atoms on each side."""
    factors: list[PerPair] = []
    for side, constants in enumerate((p.constants, q.constants)):
        for c in constants:
            factors.append(pair.side(side, (yield constant, c)))
    (ours, left), (theirs, right) = split_sampled(r.setting, p.atoms), split_sampled(r.setting, q.atoms)
    # The average takes all sampled atoms at once: these may depend on each other.
    if ours or theirs:
        factors.append((yield r.rules.sampled_mean, ours, theirs, pair))
    for ours, theirs in independent_atoms(r.setting, left, right, pair):
        if ours and theirs:
            factors.append((yield r.rules.expectation, ours, theirs, pair))
        else:  # atoms of one side only have an expectation per input, not per pair
            alone: PerPair = yield r.rules.expectation, ours or theirs, (), OWN
            value = PerInput(alone.array, max(alone.left, alone.right))
            factors.append(pair.side(0 if ours else 1, value))
    return reduce(mul, factors) if factors else PerPair(pair.shared(r.xp.ones((1,) * pair.batch)), pair, 0, 0)


def spanned(r: Recorder, batch: Expr, axes: tuple[int, ...]) -> Asking:
    """Return 1 for every input if its batches span enough dimensions; else the run raises LimitError."""
    index = r.index(batch)
    block = yield cov, batch, batch, Pair(True)
    full = block.spread(index, index)
    free = [range(n) if a not in axes else (slice(None),) for a, n in enumerate(index)]

    def check(array: Any) -> Any:
        lead = array.shape[: array.ndim - 2 * len(index)]
        for place in product(*free):
            members = array[(..., *place, *place)].reshape(*lead, prod(index[a] for a in axes), -1)
            # Batchnorm sees the members only up to their mean, so centre rows and columns.
            members = members - members.mean(-1, keepdims=True)
            members = members - members.mean(-2, keepdims=True)
            values = np.linalg.eigvalsh(members)
            # An eigenvalue below 1e-12 of the largest is 0 up to rounding.
            require_spanned(int(np.sum(values > 1e-12 * values[..., -1:], axis=-1).min()))
        return np.ones((1, 1))

    return PerInput(r.tape.call(check, (full,), (1, 1)), 0)
