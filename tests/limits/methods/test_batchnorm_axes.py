"""Batchnorm over several index axes is batchnorm over one axis with all members."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns

X = np.random.default_rng(1).normal(size=(2, 3, 2, 2, 5))


def kernel(norm, read, x):
    W, b, v = ns.Matrix(1.5), ns.Vector(0.1), ns.Matrix(1.0, rows=1)

    @ns.network
    def net(x):
        return v @ read(ns.relu(norm(W @ x + b)))

    return ns.kernel(net).evaluate(x)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (-1, -2, -3)])
def test_it_is_the_same_as_along_one_axis(axes):
    flat = X.reshape(2, 12, 5)
    many = kernel(lambda h: ns.batchnorm(h, axis=axes), lambda h: ns.mean(h, axis=(0, 1, 2)) + h[1, 0, 1], X)
    one = kernel(lambda h: ns.batchnorm(h, axis=0), lambda h: ns.mean(h, axis=0) + h[5], flat)
    assert many.plan.exact
    np.testing.assert_allclose(many.value, one.value, rtol=1e-12)
