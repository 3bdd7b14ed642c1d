"""Sampled derivatives of batchnorm: whether the batches of the inputs span enough dimensions."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from netsor.lang.expr import Expr
from netsor.limits.rules.lincomb import cov
from netsor.limits.rules.pairs import Pair, PerInput
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.rules.rewriting import require_spanned


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
