"""Rare events and heavy tails: refused, or within errors that say so. The truth is in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

import netsor as ns
from netsor.errors import LimitError

U, v = ns.Matrix(1.0), ns.Matrix(1.0, rows=1)
X = np.array([[1.0, 0.0], [0.6, 0.8]]) * np.sqrt(2)  # variances 1, covariance 0.6
SEEDS = range(8)


def sampled(phi, seed: int) -> ns.Result:
    @ns.network
    def net(x):
        return v @ phi(U @ x)

    return ns.kernel(net, method="sample", seed=seed, points=512).evaluate(X)


def off(phi, truth: float) -> list[float]:
    """The error of an entry in reported ones, for the seeds that are not refused."""
    found = []
    for seed in SEEDS:
        try:
            result = sampled(phi, seed)
        except LimitError as refused:
            if "too few sample points" not in str(refused):
                raise
        else:
            found.append(abs(result.value[0, 0] - truth) / result.error[0, 0])
    return found


@pytest.mark.parametrize("threshold", [2.0, 3.0, 3.3, 3.6, 4.1, 5.0])
def test_an_event_is_within_its_error_or_refused(threshold: float) -> None:
    assert max(off(lambda h: ns.step(h - threshold), float(norm.sf(threshold))), default=0.0) < 4


def test_an_event_that_no_point_meets_is_refused() -> None:
    with pytest.raises(LimitError, match="too few sample points"):
        sampled(lambda h: ns.step(h - 4.8), 0)


def test_what_is_beyond_all_doubt_is_a_constant() -> None:
    result = sampled(lambda h: ns.step(h + 40), 0)
    assert np.array_equal(result.value, np.ones((2, 2)))


@pytest.mark.parametrize("scale", [0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0])
def test_an_exponential_is_within_its_error_or_refused(scale: float) -> None:
    assert max(off(lambda h: ns.exp(scale * h), np.exp(2 * scale**2)), default=0.0) < 4


def test_a_plain_function_is_not_suspected() -> None:
    assert all(not sampled(phi, 0).plan.remarks for phi in (ns.relu, ns.tanh, ns.sign, lambda h: h * h))


def test_few_repeats_have_larger_errors() -> None:
    """Twice the error covers 95% of all runs, whether there are 3 repeats or 16 (Student's factor)."""

    @ns.network
    def net(x):
        return v @ ns.tanh(U @ x)

    truth = ns.kernel(net)(X)[0, 1]
    for repeats in (3, 16):
        inside = 0
        for seed in range(100):
            found = ns.kernel(net, method="sample", seed=seed, points=64, repeats=repeats).evaluate(X)
            inside += abs(found.value[0, 1] - truth) <= 2 * found.error[0, 1]
        assert inside >= 88  # 95.4 expected, 88 is 3.5 standard deviations below
