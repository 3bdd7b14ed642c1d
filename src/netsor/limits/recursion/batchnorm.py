"""Derivatives of batchnorm that are sampled: what they are in arithmetic, and whether they can be.

As large as 1/|x - mean|, the derivative has a second moment if the members of the batch span 3 dimensions or
more; the average of sampled products has one, and a standard error that says something, if they span 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from netsor.errors import LimitError
from netsor.lang.batchnorm import written_out
from netsor.lang.expr import Apply, Expr, subtrees
from netsor.lang.functions import d_batchnorm, mul
from netsor.lang.normal_form import NormalForm
from netsor.lang.ops import axes_of
from netsor.limits.recursion.covariances import cov
from netsor.limits.recursion.pairs import Pair, PerInput
from netsor.limits.recursion.recorder import Asking, Recorder

__all__ = ["SampledBatchnorm", "sampled_batchnorm", "spanned"]

SPANNED = 5  # dimensions
ROUNDING = 1e-12  # of eigenvalues, relative to the largest


@dataclass(frozen=True)
class SampledBatchnorm:
    """An expression in which a derivative of batchnorm over axes of a batch is written out."""

    expr: Expr
    batch: Expr
    axes: tuple[int, ...]


def sampled_batchnorm(r: Recorder, e: Expr) -> SampledBatchnorm | None:
    """A multiple of the derivative of batchnorm of a batch that is sampled; None for other expressions.

    Refused where it cannot be sampled, also inside of another function.
    """
    if r.samples is None or not r.forms.has_batchnorm_slopes:
        return None
    factors = r.forms.factors(e)
    for k, x in enumerate(factors):
        for node in subtrees(x):
            if _is_sampled(r, node):
                assert isinstance(node, Apply)
                batch, index = node.args[0], r.index(node.args[0])
                axes = axes_of(node.options["axis"], len(index))
                _require(prod(index[a] for a in axes) - 1)
                if node is x:
                    rest = [*factors[:k], *factors[k + 1 :]]
                    factor = reduce(lambda a, b: Apply(mul, (a, b)), rest) if rest else None
                    form = NormalForm(r.index, r.forms.is_constant, r.forms.unwound)
                    return SampledBatchnorm(written_out(form, node, factor), batch, axes)
    return None


def _is_sampled(r: Recorder, e: Expr) -> bool:
    """Whether it is a derivative of batchnorm of a batch that is sampled."""
    return (
        isinstance(e, Apply)
        and e.op is d_batchnorm
        and bool(r.forms.families_in(e.args[0]) & r.samples.families)
    )


def _require(dimensions: int) -> None:
    if dimensions < SPANNED:
        raise LimitError(
            f"the derivative of batchnorm of a batch that spans {dimensions} dimensions cannot be sampled",
            remedy="Its square has no expectation, or averages of it have an infinite variance. Take batches "
            "of 6 members or more with as many numbers each, an eps > 0, or relu, abs or identity after "
            "batchnorm, which have integrals.",
        )


def spanned(r: Recorder, batch: Expr, axes: tuple[int, ...]) -> Asking:
    """1 for every input, if its batches span enough dimensions; else refused."""
    index = r.index(batch)
    block = yield cov, batch, batch, Pair(True)
    full = block.spread(index, index)
    rest = [range(n) if a not in axes else (slice(None),) for a, n in enumerate(index)]

    def check(array: Any) -> Any:
        lead = array.shape[: array.ndim - 2 * len(index)]
        for own in product(*rest):
            members = array[(..., *own, *own)].reshape(*lead, prod(index[a] for a in axes), -1)
            members = members - members.mean(-1, keepdims=True)
            members = members - members.mean(-2, keepdims=True)
            values = np.linalg.eigvalsh(members)
            _require(int(np.sum(values > ROUNDING * values[..., -1:], axis=-1).min()))
        return np.ones((1, 1))

    return PerInput(r.tape.call(check, (full,), (1, 1)), 0)
