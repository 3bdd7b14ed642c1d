"""Covariances of sums with what is no sum, in any order."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns


def test_a_member_of_a_sum_and_a_sum_of_fewer_parts() -> None:
    """Cov(h[0], k), where h has more parts than k but is read at a place: k is taken apart all the same."""
    program = ns.parse("""
    Data x = [1]
    Input A :: A(n, 1)[2] ~ N(0, 1/1)
    Input B :: A(n, 1)[2] ~ N(0, 2/1)
    Input C :: A(n, 1) ~ N(0, 3/1)
    Input a :: G(n)[2] ~ MatMul(A, x)
    Input b :: G(n)[2] ~ MatMul(B, x)
    Input c :: G(n) ~ MatMul(C, x)
    h := a + b + c
    k := c + a[1]
    m := h[0] - 2*k
    l := h[0]
    """)
    L = ns.limit(program)
    assert L.sigma("l", "k") == pytest.approx(3.0)
    assert L.sigma("k", "l") == pytest.approx(3.0)
    assert L.sigma("m", "k") == pytest.approx(3.0 - 2 * 4.0)
    assert L.sigma("m") == pytest.approx(6.0 - 4 * 3.0 + 4 * 4.0)
    np.testing.assert_allclose(L.sigma("h", "k"), [3.0, 4.0])


def test_gates_in_one_matrix() -> None:
    """A recurrent network whose gates are the members of one matrix is that of two matrices."""
    program = ns.parse("""
    Data x = [[1, 0.5], [-0.3, 2]]
    Input U :: A(n, 2)[2] ~ N(0, 1/2)
    Input g1 :: G(n)[2] ~ MatMul(U, x[0])
    Input g2 :: G(n)[2] ~ MatMul(U, x[1])
    Input b :: G(n)[2] ~ N(0, 0.5)
    Input W :: A(n, n)[2] ~ N(0, 1/n)
    Input v :: G(n) ~ N(0, 1)
    h1 := g1 + b
    a1 := sigmoid(h1[0])*tanh(h1[1])
    w := MatMul(W, a1)
    h2 := w + b + g2
    a2 := tanh(sigmoid(h2[0])*a1 + tanh(h2[1]))
    Output v^T a2 / sqrt(n)
    """)
    found = ns.limit(program).kernel()
    sampled = ns.limit(program, method="sample", seed=1).kernel()
    assert np.all(np.abs(found.value - sampled.value) <= 5 * np.hypot(found.error, sampled.error))
