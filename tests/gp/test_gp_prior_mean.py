"""Outputs with a constant: the Gaussian process has a mean before any data."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns

W, b, v = ns.Matrix(1.0), ns.Vector(0.1), ns.Matrix(1.0, rows=1)


@ns.network
def plain(x):
    return v @ ns.relu(W @ x + b)


@ns.network
def shifted(x):
    return v @ ns.relu(W @ x + b) + 3.0


x = np.random.default_rng(0).standard_normal((6, 2))
y = np.sin(x[:, 0])
new = np.array([[0.3, -0.2], [1.0, 2.0]])


def test_the_kernel_is_a_covariance_and_the_mean_is_beside_it():
    assert np.array_equal(ns.kernel(shifted)(x), ns.kernel(plain)(x))
    assert np.array_equal(ns.kernel(shifted).mean(x), np.full(6, 3.0))
    assert not ns.kernel(plain).mean(x).any()


def test_a_shift_of_network_and_targets_shifts_the_predictions():
    without = ns.gp.fit(ns.kernel(plain), x, y, noise=0.01)
    with_it = ns.gp.fit(ns.kernel(shifted), x, y + 3.0, noise=0.01)
    assert with_it.predict(new).mean == pytest.approx(without.predict(new).mean + 3.0, rel=1e-12)
    assert with_it.mean(new) == pytest.approx(without.mean(new) + 3.0, rel=1e-12)
    assert with_it.predict(new).std == pytest.approx(without.predict(new).std, rel=1e-12)
    assert with_it.log_marginal_likelihood() == pytest.approx(without.log_marginal_likelihood(), rel=1e-12)
    own, other = (gp.leave_one_out().mean for gp in (with_it, without))
    assert own == pytest.approx(other + 3.0, rel=1e-12)


def test_functions_from_the_prior_have_its_mean():
    drawn = ns.gp.sample(ns.kernel(shifted), x, samples=4000, seed=0)
    error = np.sqrt(ns.kernel(shifted).diag(x) / 4000)
    assert np.all(np.abs(drawn.mean(0) - 3.0) < 4.5 * error)
