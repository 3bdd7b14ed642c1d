"""Nonlin: first and second moments of arbitrary expressions of Gaussian vectors.

    second(e, f)  E[e f]
    first(e)      E[e] = E[e 1]

Linear operations apply to the result. Below them are products of atoms, which factor over independent
families (`decomposition`). The ladder of methods computes each factor.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import prod
from operator import add, mul
from typing import Any

import numpy as np

from netsor.lang.expr import Expr
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
from netsor.limits.rules.lincomb import cov, linear, mean
from netsor.limits.rules.moment import OWN, constant
from netsor.limits.rules.pairs import Pair, PerInput, PerPair
from netsor.limits.rules.recorder import Asking, Question, Recorder, zero
from netsor.limits.rules.rewriting import require_spanned


def second(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Return E[e f] as a block of the pair."""
    x, y = r.forms.resolved(e), r.forms.resolved(f)
    if x is not e or y is not f:
        return (yield second, x, y, pair)
    # A schedule has computed the moments of its vectors already.
    if r.setting.in_tables(e, f):
        return r.samples.block(e, f, pair)
    match decomposition(r.setting, e, f, pair):
        case Plain.ZERO:
            return zero(r, pair, r.rank(e), r.rank(f))
        case Plain.GAUSSIAN:
            return (yield from _of_forms(r, e, f, pair))
        case Plain.SEPARATE:
            left, right = yield [(first, e), (first, f)]
            return (pair.left(left) * pair.right(right)).widened(r.rank(e), r.rank(f))
        case Multiple(number, x, y):
            block = yield second, x, y, pair
            return block if number == 1 else block * number
        case Independent(parts):
            blocks = yield [(second, x, y, pair) for x, y in parts]
            return reduce(mul, blocks).widened(r.rank(e), r.rank(f))
        case Linear(side):
            # E is linear, so a linear operation can be applied to expectations.
            return (yield from linear(r, side, e, f, pair, second))
        case Slope(x, y, slopes):
            sides = [(side, slope) for side, slope in enumerate(slopes) if slope is not None]
            block, *checks = yield [(second, x, y, pair), *((spanned, s.batch, s.axes) for _, s in sides)]
            return reduce(mul, (pair.side(k, one) for (k, _), one in zip(sides, checks, strict=True)), block)
        case Plain.SAMPLED:
            left, right = (() if y is ONE else (r.forms.as_atom(y),) for y in (e, f))
            return (yield r.rules.sampled_mean, left, right, pair)
        case Plain.PRODUCTS:
            return (yield from _multiplied_out(r, e, f, pair))


def first(r: Recorder, e: Expr) -> Asking:
    """Return E[e] for every input: E[e 1]."""
    block = yield second, e, ONE, OWN
    return PerInput(block.ranked(r.rank(e), 0), r.rank(e))


def _of_forms(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Cov(e, f) + E[e] E[f]; the product of means is left out if one of them is known to be 0."""
    centred, forms = r.forms.is_centred(e) or r.forms.is_centred(f), [e] if f is ONE else [e, f]
    covariance, *means = yield [(cov, e, f, pair), *((mean, y) for y in ([] if centred else forms))]
    terms = [] if covariance is None else [covariance]
    if means:
        terms.append(reduce(mul, (pair.side(side, m) for side, m in enumerate(means))))
    return reduce(add, terms).widened(r.rank(e), r.rank(f)) if terms else zero(r, pair, r.rank(e), r.rank(f))


def _multiplied_out(r: Recorder, e: Expr, f: Expr, pair: Pair) -> Asking:
    """Return E[e f] of two sums of products of atoms, product by product."""
    right = (Product(),) if f is ONE else r.forms.products(f)
    # Each pair of products factors by itself: E[p q] is a product over independent families.
    products = [_factors(r, p, q, pair) for p in r.forms.products(e) for q in right]
    answers = iter((yield [question for factors in products for _, question in factors]))

    def block(side: int | None) -> PerPair:
        """Return the next answer, of one side or of both (None), as a block of the pair."""
        answer = next(answers)
        if side is None:
            return answer
        return pair.side(side, answer if isinstance(answer, PerInput) else answer.per_input)

    values = [reduce(mul, (block(side) for side, _ in factors)) for factors in products]
    return reduce(add, values).widened(r.rank(e), r.rank(f))


def _factors(r: Recorder, p: Product, q: Product, pair: Pair) -> list[tuple[int | None, Question]]:
    """Return the questions for E of a product of constants and atoms on each side.

    What one side has alone is a quantity of single inputs and comes with its side, anything else with None.
    """
    constants = enumerate((p.constants, q.constants))
    factors: list[tuple[int | None, Question]] = [(side, (constant, c)) for side, cs in constants for c in cs]
    (ours, left), (theirs, right) = split_sampled(r.setting, p.atoms), split_sampled(r.setting, q.atoms)
    # The average takes all sampled atoms at once: these may depend on each other.
    if ours or theirs:
        factors.append((None, (r.rules.sampled_mean, ours, theirs, pair)))
    for ours, theirs in independent_atoms(r.setting, left, right, pair):
        if ours and theirs:
            factors.append((None, (r.rules.expectation, ours, theirs, pair)))
        else:
            factors.append((0 if ours else 1, (r.rules.expectation, ours or theirs, (), OWN)))
    return factors


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
