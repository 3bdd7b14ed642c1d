"""Batchnorm followed by a homogeneous activation, and the derivative of both, by integrals without samples.

Batchnorm divides by the norm of the centred batch. The norm is written as an integral of exponentials, under
which a Gaussian batch stays Gaussian; a homogeneous phi then has the moments of relu and the identity. So
each entry is an integral over one variable per batch (`netsor.expect.batchnorm`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from netsor.expect.batchnorm.second_moments import second_moments
from netsor.expect.batchnorm.tangents import slope_moments
from netsor.lang.analysis import about
from netsor.lang.expr import Apply, Expr, refs
from netsor.lang.functions import MIXINGS, d_batchnorm
from netsor.lang.ops import Function, axes_of
from netsor.limits.methods.component import Component, Method
from netsor.limits.rules.atoms import HOLE, Atom, replace_exprs
from netsor.limits.rules.forms import Forms
from netsor.limits.rules.lincomb import cov
from netsor.limits.rules.pairs import Pair, PerInput, PerPair
from netsor.limits.rules.recorder import Asking, Recorder, zero
from netsor.limits.rules.setting import Setting

Array = Any
Slopes = tuple[float, float]
Integral = Callable[..., tuple[Array, Array]]
SELF = Pair(True)


class _Batchnorm(Method):
    """Integrals of the covariances within the left batch, within the right batch, and between them."""

    name = "1-D and 2-D integrals"
    # The norm of a batch depends on the covariances of all its members.
    all_members = True

    @abstractmethod
    def integral(self, forms: Forms, c: Component) -> tuple[Integral, list[tuple[Expr, Expr]]] | None:
        """Return the integral, and the left and right forms that it takes covariances of, batches first."""

    def applies(self, x: Setting, c: Component) -> bool:
        return not x.traced and self.integral(x.forms, c) is not None

    def value(self, r: Recorder, c: Component) -> Asking:
        chosen = self.integral(r.forms, c)
        assert chosen is not None
        integral, crosses = chosen
        e, f = crosses[0]
        pair, sides = c.pair.free, (r.index(e), r.index(f))
        # The integrals need full matrices, also where only entries with equal indices are asked for.
        n, m = map(len, sides)
        arrays = []
        for x, side, place in zip((e, f), sides, (pair.left, pair.right), strict=True):
            within = yield cov, x, x, SELF
            arrays.append(place(PerInput(within.spread(side, side), 2 * len(side))).array)
        for x, y in crosses:
            block = yield cov, x, y, pair
            arrays.append((zero(r, pair, n, m) if block is None else block).spread(*sides))
        ranks = (2 * n, 2 * m, *(n + m for _ in crosses))
        lead = np.broadcast_shapes(*(x.shape[: x.ndim - rank] for x, rank in zip(arrays, ranks, strict=True)))
        counts, shape = (prod(sides[0]), prod(sides[1])), (*lead, *sides[0], *sides[1])

        def flat(*blocks: Array) -> tuple[Array, Array]:
            """Call `integral` on matrices (..., members, members): all index axes of a batch as one axis."""
            places = ((0, 0), (1, 1), *((0, 1) for _ in crosses))
            matrices = (
                np.asarray(x).reshape(*x.shape[: x.ndim - rank], counts[i], counts[j])
                for x, rank, (i, j) in zip(blocks, ranks, places, strict=True)
            )
            value, error = integral(*matrices)
            return value.reshape(-1, *shape[1:]), error.reshape(-1, *shape[1:])

        value = PerPair(r.inexact(c.what, self.name, flat, tuple(arrays), shape), pair, n, m)
        # A tied block is the diagonal of the full one, which the integral gives at once.
        return value.diagonal if c.pair.tied else value


class BatchnormIntegral(_Batchnorm):
    """E[phi(bn(z))_i phi(bn(z'))_j]: a 1-D integral within one batch, a 2-D integral between two batches."""

    cost = 2**12

    def integral(self, forms: Forms, c: Component) -> tuple[Integral, list[tuple[Expr, Expr]]] | None:
        slopes = [_slopes_of(forms, atom) for atom in c.atoms]
        # Both sides must have the same phi, because the integral takes one pair of slopes.
        if len(slopes) != 2 or slopes[0] is None or slopes[0] != slopes[1]:
            return None
        (e,), (f,) = (atom.forms for atom in c.atoms)
        return partial(second_moments, slopes=slopes[0]), [(e, f)]


class BatchnormSlopes(_Batchnorm):
    """E[phi'(bn(z))_i d_bn(z, t)_i phi'(bn(z'))_j d_bn(z', t')_j] for directions t independent of z."""

    cost = 2**14

    def integral(self, forms: Forms, c: Component) -> tuple[Integral, list[tuple[Expr, Expr]]] | None:
        one, two = (_moved(forms, atoms) for atoms in (c.left, c.right))
        if one is None or two is None:
            return None
        (e, t, slopes), (f, u, other_slopes) = one, two
        batches, directions = (forms.families_in(x) | forms.families_in(y) for x, y in ((e, f), (t, u)))
        # The integrals take the law of the batches and the covariance of the directions apart. That is only
        # correct if no family occurs in both.
        if batches & directions:
            return None
        return partial(slope_moments, slopes=(slopes, other_slopes)), [(e, f), (t, u)]


def _slopes_of(forms: Forms, atom: Atom) -> Slopes | None:
    """Return the slopes of phi left and right of 0 if the atom is phi(batchnorm(form)) over all axes."""
    inner, slopes = atom.body, (1.0, 1.0)
    match inner:
        case Apply(Function() as op, (argument,), _, None) if of_phi := op.about(inner.options).slopes:
            inner, slopes = argument, of_phi
    match inner:
        case Apply(op, (form,), _, None) if op is MIXINGS["batchnorm"] and _is_whole(forms, inner, form):
            return slopes
    return None


def _is_whole(forms: Forms, e: Apply, form: Expr) -> bool:
    """Return whether `e` is batchnorm of a form over all of its index axes.

    All members must have the same mean, because batchnorm then subtracts it and only covariances matter. The
    integrals have no term for `eps`.
    """
    if not forms.is_affine(form) or "eps" in e.options:
        return False
    axes = axes_of(e.options["axis"], forms.rank(form))
    return len(set(axes)) == forms.rank(form) and forms.has_uniform_mean(form)


def _moved(forms: Forms, atoms: tuple[Atom, ...]) -> tuple[Expr, Expr, Slopes] | None:
    """Return z, t and the values of phi' left and right of 0 if the product is phi'(bn(z)) d_bn(z, t)."""
    moved = [atom.body for atom in atoms if isinstance(atom.body, Apply) and atom.body.op is d_batchnorm]
    if len(moved) != 1:
        return None
    (e,) = moved
    (form, direction), slopes = e.args, (1.0, 1.0)
    if not (_is_whole(forms, e, form) and forms.is_affine(direction) and forms.is_centred(direction)):
        return None
    inner = Apply(MIXINGS["batchnorm"], (form,), e.attrs)
    for atom in atoms:
        if atom.body is not e:
            step = about(replace_exprs(atom.body, {inner: HOLE}), HOLE.name).pieces
            # phi' of a homogeneous phi is constant on both sides of 0.
            if step is None or step.degree or step.kinks not in ((), (0.0,)):
                return None
            if set(refs(atom.body)) - set(refs(form)):
                return None
            slopes = (slopes[0] * step(1.0), slopes[1] * step(-1.0))
    return form, direction, slopes
