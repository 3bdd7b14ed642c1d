"""Integrals over a few dependent variables, entry by entry: each entry has its own mean and covariance.

The variables of a product of atoms are the forms of its left atoms and those of its right atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from netsor.lang.expr import Expr, refs
from netsor.limits.methods.component import Component
from netsor.limits.recursion.forms import HOLE, Atom, replace_exprs
from netsor.limits.recursion.pairs import PerPair
from netsor.limits.recursion.recorder import Asking, Recorder

__all__ = ["Variable", "entries", "is_plain", "over_entries"]

Integral = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
Variable = tuple[int, Expr]  # the side of a form, and that


def is_plain(r: Recorder, atom: Atom) -> bool:
    """A function of its forms alone that acts entry by entry."""
    body = replace_exprs(atom.expr, dict.fromkeys(atom.forms, HOLE))
    return set(refs(body)) == {HOLE.name} and not r.forms.mixes(atom.expr, atom.forms)


def entries(r: Recorder, c: Component) -> int:
    """The number of entries of all blocks of such a product."""
    inputs, index = [], []
    for side in (c.left, c.right):
        inputs.append(max((r.inputs_of(atom.expr) for atom in side), default=1))
        index.append(max((prod(r.index(atom.expr)) for atom in side), default=1))
    return (max(inputs) if c.pair.same else prod(inputs)) * (max(index) if c.pair.tied else prod(index))


def over_entries(
    r: Recorder, c: Component, variables: Sequence[Variable], method: str, integral: Integral
) -> Asking:
    """An integral (value and error) at the means and covariances of the variables."""
    blocks: list[PerPair] = []
    places: list[tuple[int, ...]] = []
    for i, (side, form) in enumerate(variables):
        blocks.append((yield from c.mean(side, form)))
        places.append((i,))
        for j in range(i + 1):
            found = yield from c.cov(variables[i], variables[j])
            if found is not None:
                blocks.append(found)
                places.append((i, j))
    ranks = max(b.left for b in blocks), max(b.right for b in blocks)
    arrays = tuple(b.ranked(*ranks) for b in blocks)
    shape, d = np.broadcast_shapes(*(a.shape for a in arrays)), len(variables)

    def total(*values: Any) -> tuple[np.ndarray, np.ndarray]:
        mean, cov = np.zeros((*shape, d)), np.zeros((*shape, d, d))
        for place, value in zip(places, values, strict=True):
            (mean if len(place) == 1 else cov)[(..., *place)] = np.asarray(value)
            if len(place) == 2:
                cov[(..., *place[::-1])] = np.asarray(value)
        return integral(mean, cov)

    return PerPair(r.inexact(c.what, method, total, arrays, shape), c.pair, *ranks)
