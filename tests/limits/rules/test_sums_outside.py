"""A factor times a sum over an index is the sum of products, wherever it is written."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns

X = np.random.default_rng(5).normal(size=(3, 4, 5))


def kernel(fn):
    Q, K, V, v = ns.Matrix(1.3), ns.Matrix(0.7), ns.Matrix(1.0), ns.Matrix(1.0, rows=1)

    @ns.network
    def net(x):
        return v @ fn(Q @ x, K @ x, V @ x)

    return ns.kernel(net).evaluate(X)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (lambda q, k, v: q[0] * ns.sum(k * v, axis=0), lambda q, k, v: ns.sum(q[0][None] * k * v, axis=0)),
        (
            lambda q, k, v: ns.mean(q * ns.sum(k * v, axis=0), axis=0),
            lambda q, k, v: ns.mean(ns.sum(q[:, None] * k[None] * v[None], axis=1), axis=0),
        ),
        (
            lambda q, k, v: ns.mean(k * v, axis=0) * ns.relu(q[1]) + q[2],
            lambda q, k, v: ns.mean(k * v * ns.relu(q[1][None]), axis=0) + q[2],
        ),
        (
            lambda q, k, v: q[0] * (ns.sum(k * v, axis=0) * 2.0),
            lambda q, k, v: 2.0 * ns.sum(q[0] * k * v, axis=0),
        ),
    ],
    ids=["vector", "rows", "function", "nested"],
)
def test_both_ways_to_write_it_are_exact(short, long):
    one, two = kernel(short), kernel(long)
    assert one.plan.exact
    np.testing.assert_allclose(one.value, two.value, rtol=1e-12)


def test_it_is_what_isserlis_says():
    """E[q0 sum_t k_t v_t times the same of another input] = Q(0, 0) sum_tu K(t, u) V(t, u)."""
    gram = np.einsum("itd,jud->ijtu", X, X) / 5
    wanted = 1.3 * gram[:, :, 0, 0] * 0.7 * np.sum(gram**2, axis=(2, 3))
    found = kernel(lambda q, k, v: q[0] * ns.sum(k * v, axis=0))
    np.testing.assert_allclose(found.value, wanted, rtol=1e-12)
