"""The errors of exact methods are part of those of a sampled kernel."""

import numpy as np
import pytest

import netsor as ns

W, U, V = (ns.Matrix(1.0) for _ in range(3))
v, w = ns.Matrix(1.0, rows=1), ns.Matrix(1.0, rows=1)
INPUTS = np.array([[1.0, 0.0, 0.2], [1.0, 0.01, 0.2], [1.0, 0.1, 0.0]])


def waves(x: np.ndarray) -> np.ndarray:
    """Many jumps: a series leaves much out where inputs are alike."""
    return np.sign(np.sin(20 * x))


@ns.network
def rough(x):
    return v @ ns.nonlin(waves, W @ x)


@ns.network
def rough_and_sampled(x):
    return v @ ns.nonlin(waves, W @ x) + w @ ns.max(U @ ns.stack([x, x[::-1], 2 * x - 1]), axis=0)


def test_a_sampled_kernel_has_the_errors_of_its_series() -> None:
    """Two independent outputs: their errors add up."""
    exact, both = (ns.kernel(net).evaluate(INPUTS) for net in (rough, rough_and_sampled))
    assert exact.plan.exact
    assert not both.plan.exact
    assert exact.error.max() > 0.1, "the series is good enough: this shows nothing"
    assert (both.error >= 0.99 * exact.error).all()
    assert (both.error <= exact.error + 1e-3).all()
    assert any("errors of E[waves waves] are above" in remark for remark in both.plan.remarks)
    assert {e.what: e.error for e in both.plan.expectations}["E[waves waves]"] > 0.05


def pooled(x):
    return w @ ns.tanh(W @ ns.max(U @ ns.tanh(V @ x), axis=0))


@pytest.mark.parametrize("net", [ns.zoo.gru(), ns.zoo.lstm(), ns.network(pooled)])
def test_errors_of_series_do_not_turn_the_points(net: ns.Network) -> None:
    """Inputs with equal correlations: samples move as little as the covariances that they have."""
    x = np.eye(12).reshape(3, 4, 12)
    found = [ns.kernel(net, points=2**8, seed=seed).evaluate(x) for seed in range(6)]
    spread = np.std([one.value for one in found], axis=0, ddof=1)
    assert np.mean([one.error for one in found]) <= 3 * spread.mean()
