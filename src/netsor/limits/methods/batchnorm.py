"""Batchnorm followed by a homogeneous activation: the paper's integrals in place of sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsor.expect.batchnorm.integrals import second_moments
from netsor.lang.expr import Apply, Expr
from netsor.lang.functions import MIXINGS
from netsor.lang.ops import Function
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
        pair, (n, m) = c.pair.free, (r.index(e)[0], r.index(f)[0])
        one, two = (yield cov, e, e, SELF), (yield cov, f, f, SELF)
        cross = yield cov, e, f, pair
        if cross is None:
            cross = PerPair(pair.shared(r.xp.zeros((1,) * (pair.batch + 2))), pair, 1, 1)
        arrays = (pair.left(_batch(one)).array, pair.right(_batch(two)).array, cross.spread((n,), (m,)))
        shape = (*np.broadcast_shapes(*(x.shape[:-2] for x in arrays)), n, m)

        def integral(left: Array, right: Array, cross: Array) -> tuple[Array, Array]:
            value, error, _ = second_moments(np.asarray(left), np.asarray(right), np.asarray(cross), slopes)
            return value, error

        array = r.inexact(c.what, self.name, integral, arrays, shape)
        value = PerPair(array, pair, 1, 1)
        return value.diagonal if c.pair.tied else value


def _batch(block: PerPair) -> PerInput:
    """The covariance of the members of a batch, as a quantity of its input."""
    return PerInput(block.array, 2)


def _slopes_of(r: Recorder, atom: Atom) -> Slopes | None:
    """The slopes of phi on both sides of 0, if the atom is phi(batchnorm(form)) over its only index axis.

    The mean of the form must be the same for all members: then it drops out.
    """
    inner, slopes = _activation(atom.body)
    match inner:
        case Apply(op, (form,), _, None) if op is MIXINGS["batchnorm"] and r.forms.is_affine(form):
            options = inner.options
            whole = len(r.index(form)) == 1 and options.get("axis") in (0, -1, (0,), (-1,))
            if whole and "eps" not in options and r.forms.has_uniform_mean(form):
                return slopes
    return None


def _activation(body: Expr) -> tuple[Expr, Slopes | None]:
    match body:
        case Apply(Function() as op, (inner,), _, None) if slopes := op.about(body.options).slopes:
            return inner, slopes
    return body, (1.0, 1.0)
