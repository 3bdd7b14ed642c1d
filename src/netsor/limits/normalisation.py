"""Batchnorm followed by a homogeneous activation: the paper's integrals in place of sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.errors import LimitError
from netsor.expect.batchnorm.integrals import second_moments
from netsor.lang.expr import Apply, Expr
from netsor.lang.functions import MIXINGS
from netsor.lang.libraries import is_traced
from netsor.lang.ops import Function
from netsor.limits.forms import Atom
from netsor.limits.pairs import Pair, diagonal
from netsor.limits.traced import NeedsValuesError, tape_of

if TYPE_CHECKING:
    from netsor.limits.engine import Engine
    from netsor.limits.expectation import Expectations

__all__ = ["batchnorm_second", "slopes_of"]

Array = Any
Slopes = tuple[float, float]


def slopes_of(engine: Engine, atom: Atom) -> Slopes | None:
    """The slopes of phi on both sides of 0, if the atom is phi(batchnorm(form)) over its only index axis.

    The mean of the form must be the same for all members: then it drops out.
    """
    inner, slopes = _activation(atom.body)
    match inner:
        case Apply(op, (form,), _, None) if op is MIXINGS["batchnorm"] and engine.forms.is_affine(form):
            options = inner.options
            if (
                len(engine.index(form)) != 1
                or options.get("axis") not in (0, -1, (0,), (-1,))
                or "eps" in options
            ):
                return None
            return slopes if slopes and _is_equal(engine, form) else None
    return None


def _is_equal(engine: Engine, form: Expr) -> bool:
    """Whether all members have the same mean."""
    if engine.forms.is_centred(form):
        return True
    mean = engine.mean(form)
    tape = tape_of(mean)
    if tape and mean.step not in tape.constants:
        raise NeedsValuesError
    mean = tape.constants[mean.step] if tape else _numpy(mean)
    return bool(np.all(mean == mean[..., :1]))


def _numpy(array: Array) -> np.ndarray:
    if is_traced(array):
        raise LimitError(
            "a batchnorm cannot be traced by jax.jit or differentiated by jax.grad",
            remedy="Its integrals are NumPy's. Call the kernel outside jit and grad; use finite differences.",
        )
    return np.asarray(array)


def _activation(body: Expr) -> tuple[Expr, Slopes | None]:
    match body:
        case Apply(op, (inner,), _, None):
            slopes = op.about(body.options).slopes if isinstance(op, Function) else None
            if slopes:
                return inner, slopes
    return body, (1.0, 1.0)


def batchnorm_second(
    expectations: Expectations, a: Atom, b: Atom, slopes: Slopes, pair: Pair, tie: bool
) -> Array:
    """E[phi(bn(z))_i phi(bn(z'))_j]: a 1-D integral within a batch, a 2-D integral across batches."""
    engine, (e, f) = expectations.engine, (a.forms[0], b.forms[0])
    one, two = (engine.cov(x, x, Pair(True), False) for x in (e, f))
    record, nudge = expectations.record, expectations.nudge
    record.inexact = True

    def integral(left: Array, right: Array, cross: Array) -> Array:
        value, error, alone = second_moments(_numpy(left), _numpy(right), _numpy(cross), slopes)
        for where, what, how in ((alone, "within a batch", "1-D"), (~alone, "across batches", "2-D")):
            if where.any():
                record.note(f"batchnorm {what}", f"{how} integral", float(np.max(error[where])))
        return value + nudge * error

    if pair.same and e == f:
        assert one is not None
        arrays, shape = (one, one, one), one.shape
    else:
        cross = engine.cov(e, f, pair, False)
        if cross is None:
            cross = pair.lift(engine.xp.zeros((*(1,) * pair.batch, engine.index(e)[0], engine.index(f)[0])))
        arrays = (pair.left(one), pair.right(two), cross)
        sizes = np.broadcast_shapes(*(x.shape[:-2] for x in arrays))
        shape = (*sizes, engine.index(e)[0], engine.index(f)[0])
    tape = tape_of(*arrays)
    value = tape.call(integral, arrays, shape) if tape else engine.xp.asarray(integral(*arrays))
    return diagonal(value, pair.batch, 1, 1) if tie else value
