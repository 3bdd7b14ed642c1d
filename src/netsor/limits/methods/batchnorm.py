"""Batchnorm followed by a homogeneous activation: the paper's integrals in place of sampling."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from netsor.expect.batchnorm.integrals import second_moments
from netsor.lang.expr import Apply, Expr
from netsor.lang.functions import MIXINGS
from netsor.lang.ops import Function, axes_of
from netsor.limits.methods.component import Component
from netsor.limits.recursion.covariances import cov
from netsor.limits.recursion.forms import Atom
from netsor.limits.recursion.pairs import Pair, PerInput, PerPair
from netsor.limits.recursion.recorder import Asking, Recorder

__all__ = ["BatchnormIntegral"]

Array = Any
Slopes = tuple[float, float]
SELF = Pair(True)


class BatchnormIntegral:
    """E[phi(bn(z))_i phi(bn(z'))_j]: a 1-D integral within a batch, a 2-D integral across batches."""

    name = "1-D and 2-D integrals"
    cost = 2**12

    def applies(self, r: Recorder, c: Component) -> bool:
        if r.traced or len(c.atoms) != 2:
            return False
        one, two = (_slopes_of(r, atom) for atom in c.atoms)
        return one is not None and one == two

    def value(self, r: Recorder, c: Component) -> Asking:
        slopes, (e, f) = _slopes_of(r, c.atoms[0]), (atom.forms[0] for atom in c.atoms)
        assert slopes is not None
        pair, sides = c.pair.free, (r.index(e), r.index(f))
        n, m = map(len, sides)
        one, two = (yield cov, e, e, SELF), (yield cov, f, f, SELF)
        cross = yield cov, e, f, pair
        if cross is None:
            cross = PerPair(pair.shared(r.xp.zeros((1,) * (pair.batch + n + m))), pair, n, m)
        left, right = (
            PerInput(x.spread(side, side), 2 * len(side)) for x, side in zip((one, two), sides, strict=True)
        )
        arrays = (pair.left(left).array, pair.right(right).array, cross.spread(*sides))
        ranks = (2 * n, 2 * m, n + m)
        lead = np.broadcast_shapes(*(x.shape[: x.ndim - rank] for x, rank in zip(arrays, ranks, strict=True)))
        counts = prod(sides[0]), prod(sides[1])

        def integral(left: Array, right: Array, cross: Array) -> tuple[Array, Array]:
            """All members of a batch, whatever index they have, along one axis."""
            blocks = zip((left, right, cross), ranks, ((0, 0), (1, 1), (0, 1)), strict=True)
            flat = [
                np.asarray(x).reshape(*x.shape[: x.ndim - rank], counts[i], counts[j])
                for x, rank, (i, j) in blocks
            ]
            value, error, _ = second_moments(flat[0], flat[1], flat[2], slopes)
            return value.reshape(*lead, *sides[0], *sides[1]), error.reshape(*lead, *sides[0], *sides[1])

        array = r.inexact(c.what, self.name, integral, arrays, (*lead, *sides[0], *sides[1]))
        value = PerPair(array, pair, n, m)
        return value.diagonal if c.pair.tied else value


def _slopes_of(r: Recorder, atom: Atom) -> Slopes | None:
    """The slopes of phi on both sides of 0, if the atom is phi(batchnorm(form)) over all of its index axes.

    The mean of the form must be the same for all members: then it drops out.
    """
    inner, slopes = _activation(atom.body)
    match inner:
        case Apply(op, (form,), _, None) if op is MIXINGS["batchnorm"] and r.forms.is_affine(form):
            axes = axes_of(inner.options["axis"], r.rank(form))
            whole = len(set(axes)) == r.rank(form)
            if whole and "eps" not in inner.options and r.forms.has_uniform_mean(form):
                return slopes
    return None


def _activation(body: Expr) -> tuple[Expr, Slopes | None]:
    match body:
        case Apply(Function() as op, (inner,), _, None) if slopes := op.about(body.options).slopes:
            return inner, slopes
    return body, (1.0, 1.0)
