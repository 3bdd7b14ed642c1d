"""The Hermite series of one function at many inputs of equal mean, by interpolation in the variance.

A coefficient E[f(m + sqrt(q) t) h_k(t)] is an integral of f(m + x) against h_k(x / sqrt(q)) and the density
of variance q. Both are analytic in q, and the integral converges wherever Re(1 / q) > 0, so it is analytic
in log q in a strip of half-width pi / 2. Chebyshev polynomials through a few dozen variances then give the
coefficients at thousands (Trefethen, Approximation Theory and Approximation Practice, 2013, chapter 8).
Singular parts of functions with kinks have closed forms, at any variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebpts2, chebvander

from netsor.expect.hermite.expansion import Series, series, singular_part, within_reach
from netsor.expect.quadrature.hermite_functions import Function, Integrand, eps_of
from netsor.expect.quadrature.trapezoid import REACHES

MANY = 256  # inputs: with fewer, integrating each of them is fast enough


def series_of_many(
    fn: Function, m: Any, q: Any, kinks: Sequence[float] = (), trusted: bool = False, finest: float = 0.0
) -> Series:
    """Return the Hermite series of f at inputs of mean m and variance q, arrays of one shape.

    `fn` is the same for all inputs; `series` explains the others. If interpolation does not apply or does not
    converge, every input is integrated.
    """
    expansion, options = None, {"kinks": kinks, "alone": True, "trusted": trusted, "finest": finest}
    if isinstance(m, np.ndarray) and m.size >= MANY and m.min() == m.max() and (q > 0).all():
        expansion = _interpolated(fn, m, q, options)
    return series(fn, m, q, **options) if expansion is None else expansion


def _interpolated(fn: Function, m: np.ndarray, q: np.ndarray, options: dict[str, Any]) -> Series | None:
    """Return the series from 9, 17, 33 or 65 variances, as few as suffice; None if 65 are too few."""
    logs = np.log(q.reshape(-1))
    middle, half = (logs.max() + logs.min()) / 2, max((logs.max() - logs.min()) / 2, eps_of(q))
    for count in (9, 17, 33, 65):
        nodes = chebpts2(count)
        variances, mean = np.exp(middle + half * nodes).astype(q.dtype), np.full(count, m.flat[0], m.dtype)
        model = series(fn, mean, variances, inputs=q.size, **options)
        values = np.column_stack([model.square, model.coefs]).astype(float, copy=False)
        table = np.linalg.solve(chebvander(nodes, count - 1), values)
        norms, tol = np.sqrt(model.square), max(1e-13, 32 * eps_of(q))
        # The last quarter of the Chebyshev coefficients bounds the error of leaving out the others.
        last = np.abs(table[-count // 4 :])
        error = 2 * np.linalg.norm(last[:, 1:], axis=1).sum() + 4 * eps_of(q) * norms.max()
        settled = 2 * last[:, 0].sum() <= tol * model.square.max()
        if settled and 0 < error <= tol * norms.min():
            expansion = _at((logs - middle) / half, table, model, error, q)
            return expansion if model.jumps is None else _with_jumps(fn, m, q, options, expansion, model)
    return None


def _at(z: np.ndarray, table: np.ndarray, model: Series, error: float, q: np.ndarray) -> Series:
    """Return the series at the places z in [-1, 1], with the largest relative bounds of the model."""
    values = (chebvander(z, len(table) - 1) @ table).astype(q.dtype, copy=False)
    square, coefs = values[:, 0].reshape(q.shape), values[:, 1:].reshape(*q.shape, -1)
    tail, doubt = (np.max(x / np.sqrt(model.square)) * np.sqrt(square) for x in (model.tail, model.error))
    mark = coefs @ np.cos(np.arange(coefs.shape[-1])).astype(q.dtype)
    return replace(model, coefs=coefs, tail=tail, error=doubt + error, square=square, mark=mark)


def _with_jumps(
    fn: Function, m: np.ndarray, q: np.ndarray, options: dict[str, Any], expansion: Series, model: Series
) -> Series:
    """Add the singular part at each input, with the largest relative bounds of the remainder."""
    assert model.jumps is not None
    s = np.sqrt(q)
    part, _ = singular_part(Integrand(fn, m, s, within_reach(options["kinks"], m, s)), expansion, REACHES[-1])
    tail = np.max(model.jumps.tail / np.sqrt(model.square)) * np.sqrt(expansion.square)
    return replace(expansion, jumps=replace(part, tail=tail))
