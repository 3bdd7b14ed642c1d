"""Batchnorm followed by a homogeneous activation, and its derivative: integrals in place of sampling."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from netsor.expect.batchnorm.integrals import second_moments
from netsor.expect.batchnorm.tangents import slope_moments
from netsor.lang.analysis import about
from netsor.lang.expr import Apply, Expr, refs
from netsor.lang.functions import MIXINGS, d_batchnorm
from netsor.lang.ops import Function, axes_of
from netsor.limits.methods.component import Component
from netsor.limits.recursion.covariances import cov
from netsor.limits.recursion.forms import HOLE, Atom, replace_exprs
from netsor.limits.recursion.pairs import Pair, PerInput, PerPair
from netsor.limits.recursion.recorder import Asking, Recorder

__all__ = ["BatchnormIntegral", "BatchnormSlopes"]

Array = Any
Slopes = tuple[float, float]
Integral = Callable[..., tuple[Array, Array]]
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

        def integral(left: Array, right: Array, cross: Array) -> tuple[Array, Array]:
            return second_moments(left, right, cross, slopes)[:2]

        return (yield from _integrated(r, c, self.name, integral, (e, e), (f, f), (e, f)))


class BatchnormSlopes:
    """E[phi'(bn(z))_i d_bn(z, t)_i phi'(bn(z'))_j d_bn(z', t')_j] for directions t independent of z."""

    name = "1-D and 2-D integrals"
    cost = 2**14

    def applies(self, r: Recorder, c: Component) -> bool:
        if r.traced or not c.left or not c.right:
            return False
        one, two = (_moved(r, atoms) for atoms in (c.left, c.right))
        if one is None or two is None:
            return False
        batches, directions = (
            r.forms.families_in(x) | r.forms.families_in(y) for x, y in ((one[0], two[0]), (one[1], two[1]))
        )
        return not batches & directions

    def value(self, r: Recorder, c: Component) -> Asking:
        one, two = (_moved(r, atoms) for atoms in (c.left, c.right))
        assert one is not None
        assert two is not None
        (e, t, slopes), (f, u, others) = one, two

        def integral(left: Array, right: Array, cross: Array, theta: Array) -> tuple[Array, Array]:
            return slope_moments(left, right, cross, theta, (slopes, others))

        return (yield from _integrated(r, c, self.name, integral, (e, e), (f, f), (e, f), (t, u)))


def _integrated(r: Recorder, c: Component, name: str, integral: Integral, *of: tuple[Expr, Expr]) -> Asking:
    """An integral of the covariances of pairs of forms: of the left batch, of the right, and between them."""
    (e, _), (f, _), *crosses = of
    pair, sides = c.pair.free, (r.index(e), r.index(f))
    n, m = map(len, sides)
    arrays = []
    for x, side, place in zip((e, f), sides, (pair.left, pair.right), strict=True):
        own = yield cov, x, x, SELF
        arrays.append(place(PerInput(own.spread(side, side), 2 * len(side))).array)
    for x, y in crosses:
        block = yield cov, x, y, pair
        if block is None:
            block = PerPair(pair.shared(r.xp.zeros((1,) * (pair.batch + n + m))), pair, n, m)
        arrays.append(block.spread(*sides))
    ranks = (2 * n, 2 * m, *(n + m for _ in crosses))
    lead = np.broadcast_shapes(*(x.shape[: x.ndim - rank] for x, rank in zip(arrays, ranks, strict=True)))
    counts, shape = (prod(sides[0]), prod(sides[1])), (*lead, *sides[0], *sides[1])

    def flat(*blocks: Array) -> tuple[Array, Array]:
        """All members of a batch, whatever index they have, along one axis."""
        places = ((0, 0), (1, 1), *((0, 1) for _ in crosses))
        made = (
            np.asarray(x).reshape(*x.shape[: x.ndim - rank], counts[i], counts[j])
            for x, rank, (i, j) in zip(blocks, ranks, places, strict=True)
        )
        value, error = integral(*made)
        return value.reshape(shape), error.reshape(shape)

    value = PerPair(r.inexact(c.what, name, flat, tuple(arrays), shape), pair, n, m)
    return value.diagonal if c.pair.tied else value


def _slopes_of(r: Recorder, atom: Atom) -> Slopes | None:
    """The slopes of phi on both sides of 0, if the atom is phi(batchnorm(form)) over all index axes."""
    inner, slopes = _activation(atom.body)
    match inner:
        case Apply(op, (form,), _, None) if op is MIXINGS["batchnorm"] and _is_whole(r, inner, form):
            return slopes
    return None


def _is_whole(r: Recorder, e: Apply, form: Expr) -> bool:
    """Whether it is batchnorm of a form over all of its index axes.

    The mean of the form must be the same for all members: then it drops out.
    """
    if not r.forms.is_affine(form) or "eps" in e.options:
        return False
    axes = axes_of(e.options["axis"], r.rank(form))
    return len(set(axes)) == r.rank(form) and r.forms.has_uniform_mean(form)


def _activation(body: Expr) -> tuple[Expr, Slopes | None]:
    match body:
        case Apply(Function() as op, (inner,), _, None) if slopes := op.about(body.options).slopes:
            return inner, slopes
    return body, (1.0, 1.0)


def _moved(r: Recorder, atoms: tuple[Atom, ...]) -> tuple[Expr, Expr, Slopes] | None:
    """The batch z, the direction t and the values of phi' if a product is phi'(bn(z)) d_bn(z, t)."""
    moved = [atom.body for atom in atoms if isinstance(atom.body, Apply) and atom.body.op is d_batchnorm]
    if len(moved) != 1:
        return None
    (e,) = moved
    (form, direction), slopes = e.args, (1.0, 1.0)
    if not (_is_whole(r, e, form) and r.forms.is_affine(direction) and r.forms.is_centred(direction)):
        return None
    inner = Apply(MIXINGS["batchnorm"], (form,), e.attrs)
    for atom in atoms:
        if atom.body is not e:
            own = about(replace_exprs(atom.body, {inner: HOLE}), HOLE.name).pieces
            if (
                own is None
                or set(refs(atom.body)) - set(refs(form))
                or own.degree
                or own.kinks not in ((), (0.0,))
            ):
                return None
            slopes = (slopes[0] * own(1.0), slopes[1] * own(-1.0))
    return form, direction, slopes
