"""Huge and tiny inputs: right, or refused; and variances that are not finite."""

from __future__ import annotations

from decimal import Decimal, localcontext
from operator import mul
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.errors import LimitError

X = np.random.default_rng(0).standard_normal((3, 4))


@pytest.mark.parametrize("scale", [1e60, 1e-60])
def test_homogeneous_functions_do_not_see_the_scale(scale: float) -> None:
    for phi, power in ((ns.relu, 2), (ns.sign, 0)):
        K = ns.kernel(ns.zoo.mlp(depth=2, phi=phi, var_b=0.0))
        assert np.allclose(K(X * scale), K(X) * scale**power, rtol=1e-13, atol=0)


def test_steep_functions_tend_to_sign() -> None:
    step = ns.kernel(ns.zoo.mlp(depth=1, phi=ns.sign, var_b=0.0))(X)
    for phi in (ns.erf, ns.tanh):
        found = ns.kernel(ns.zoo.mlp(depth=1, phi=phi, var_b=0.0)).evaluate(X * 1e60)
        assert np.all(np.abs(found.value - step) <= found.error + 1e-14)


@pytest.mark.parametrize("phi", [ns.relu, ns.erf, ns.sign, ns.tanh, ns.gelu])
@pytest.mark.parametrize("scale", [1e-160, 1e-100, 1e100, 1e150])
def test_squares_that_are_no_numbers_are_refused(phi: Any, scale: float) -> None:
    K = ns.kernel(ns.zoo.mlp(depth=2, phi=phi))
    with pytest.raises(LimitError, match="too large or too small"):
        K(X * scale)
    mixed = np.concatenate([X, X * scale])
    with pytest.raises(LimitError, match="too large or too small"):
        K(mixed)


def test_zero_inputs_are_not_tiny() -> None:
    assert np.array_equal(ns.kernel(ns.zoo.mlp(depth=2, var_b=0.0))(np.zeros((2, 3))), np.zeros((2, 2)))


def test_variances_that_overflow_are_refused() -> None:
    K = ns.kernel(ns.zoo.mlp(depth=3, phi=ns.relu, var_w=1e60))
    with pytest.raises(LimitError, match="variance of"):
        K(X)


W, U, v = ns.Matrix(1.0), ns.Matrix(1.0), ns.Matrix(1.0, rows=1)


@ns.network
def pole(x):
    return v @ ns.tanh(W @ (1 / (U @ x)))


@ns.network
def logarithm(x):
    return v @ ns.sigmoid(W @ ns.log(U @ x))


@pytest.mark.parametrize("net", [pole, logarithm])
def test_a_variance_that_is_not_finite_is_refused(net: ns.Network) -> None:
    with pytest.raises(LimitError, match="not finite"):
        ns.kernel(net)(X)


@pytest.mark.parametrize("net", [pole, logarithm])
def test_under_jax_it_is_nan(net: ns.Network) -> None:
    jax = pytest.importorskip("jax")
    assert np.isnan(np.asarray(jax.jit(ns.kernel(net))(X.astype(np.float32)))).all()


@pytest.mark.parametrize("depth", [1, 2])
def test_exponents_round_before_they_grow(depth: int) -> None:
    """K' = exp(q/2 + q'/2 + c) in 50 digits: values up to 1e150, whose exponents have rounding errors."""
    x, (var_w, var_b) = 1.9 * X, (0.8, 0.3)
    found = ns.kernel(ns.zoo.mlp(depth, ns.exp, var_w=var_w, var_b=var_b)).evaluate(x)
    n = range(len(x))
    with localcontext(prec=50):
        rows = [[Decimal(float(v)) for v in row] for row in x]
        w, b = Decimal(var_w), Decimal(var_b)
        wanted = [[sum(map(mul, r, s), Decimal(0)) / len(r) for s in rows] for r in rows]
        for _ in range(depth):
            cov = [[w * c + b for c in row] for row in wanted]
            wanted = [[((cov[i][i] + cov[j][j]) / 2 + cov[i][j]).exp() for j in n] for i in n]
        off = [[float(abs(Decimal(float(found.value[i, j])) - wanted[i][j])) for j in n] for i in n]
    assert (np.array(off) <= found.error).all()
    assert (np.diagonal(found.error) <= 1e-8 * np.diagonal(found.value)).all()
