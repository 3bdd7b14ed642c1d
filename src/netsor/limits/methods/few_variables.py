"""Integrals over a few dependent variables, one entry of a block at a time.

Each entry has a mean and a covariance of its own. The variables of a product of atoms are the distinct forms
of its left atoms and of its right atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from netsor.lang.expr import Expr, refs
from netsor.limits.methods.component import Component
from netsor.limits.rules.atoms import HOLE, Atom, replace_exprs
from netsor.limits.rules.forms import Forms
from netsor.limits.rules.pairs import PerPair
from netsor.limits.rules.recorder import Asking, Recorder
from netsor.limits.rules.setting import Setting

Integral = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
Variable = tuple[int, Expr]  # the side (0 or 1) and the form


def is_plain(forms: Forms, atom: Atom) -> bool:
    """Return whether an atom is a function of its forms alone that acts entry by entry."""
    body = replace_exprs(atom.expr, dict.fromkeys(atom.forms, HOLE))
    return set(refs(body)) == {HOLE.name} and not forms.mixes(atom.expr, atom.forms)


def entries(x: Setting, c: Component) -> int:
    """Return the number of entries of the block of this product over all inputs."""
    inputs, index = [], []
    for side in (c.left, c.right):
        inputs.append(max((x.inputs_of(atom.expr) for atom in side), default=1))
        index.append(max((prod(x.forms.index(atom.expr)) for atom in side), default=1))
    return (max(inputs) if c.pair.same else prod(inputs)) * (max(index) if c.pair.tied else prod(index))


def over_entries(
    r: Recorder, c: Component, variables: Sequence[Variable], method: str, integral: Integral
) -> Asking:
    """Record `integral(mean, cov) -> (value, error)` at the means and covariances of the variables.

    The integral receives mean `(entries..., d)` and cov `(entries..., d, d)` for d variables.
    """
    blocks: list[PerPair] = []
    places: list[tuple[int, ...]] = []
    for i, (side, form) in enumerate(variables):
        blocks.append((yield from c.mean(side, form)))
        places.append((i,))
        for j in range(i + 1):
            covariance = yield from c.cov(variables[i], variables[j])
            if covariance is not None:
                blocks.append(covariance)
                places.append((i, j))
    ranks = max(b.left for b in blocks), max(b.right for b in blocks)
    arrays = tuple(b.ranked(*ranks) for b in blocks)
    shape, d = np.broadcast_shapes(*(a.shape for a in arrays)), len(variables)

    def total(*values: Any) -> tuple[np.ndarray, np.ndarray]:
        # Covariances that are zero by structure have no block: their entries stay 0.
        entries = np.broadcast_shapes(*(np.shape(value) for value in values))
        mean, cov = np.zeros((*entries, d)), np.zeros((*entries, d, d))
        for place, value in zip(places, values, strict=True):
            (mean if len(place) == 1 else cov)[(..., *place)] = np.asarray(value)
            if len(place) == 2:
                cov[(..., *place[::-1])] = np.asarray(value)
        return integral(mean, cov)

    return PerPair(r.inexact(c.what, method, total, arrays, shape), c.pair, *ranks)
