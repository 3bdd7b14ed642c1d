"""Gated networks on the paper's two sentences: default error, tolerance, and calibration over seeds.

Errors are relative to the kernel: in Frobenius norm for accuracy, entry by entry for calibration. The truth
is a run with other random points and 2^16 of them, whose own error must be much smaller.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import netsor as ns
from limit_cases import scale_of
from netsor import zoo
from netsor.data import sentences
from netsor.limits import Result

pytestmark = pytest.mark.slow
SENTENCES = [s.vectors for s in sentences()]
SEEDS = range(20)
NETWORKS = {
    "erf GRU": (zoo.gru(), 3e-4),
    "erf GRU, gates of their own": (zoo.gru(var_w=[1.5, 1.0, 2.0], mean_b=[0.5, 0.0, -0.5]), 3e-4),
    "tanh GRU": (zoo.gru(ns.tanh, ns.sigmoid), 1e-3),
    "LSTM": (zoo.lstm(), 1e-3),
}
each = pytest.mark.parametrize("name", NETWORKS)


@cache
def truth(name: str) -> Result:
    return ns.kernel(NETWORKS[name][0], points=2**16, seed=10**6).evaluate(SENTENCES)


@cache
def runs(name: str) -> tuple[Result, ...]:
    """At default settings, with a seed each."""
    return tuple(ns.kernel(NETWORKS[name][0], seed=seed).evaluate(SENTENCES) for seed in SEEDS)


@each
def test_default_error(name: str) -> None:
    """The true error of most seeds is below the goal, and so is the reported one."""
    goal, exact = NETWORKS[name][1], truth(name)
    size = np.linalg.norm(exact.value)
    assert np.linalg.norm(exact.error) <= 0.3 * goal * size, "the comparison says little"
    true = [np.linalg.norm(run.value - exact.value) / size for run in runs(name)]
    reported = [np.linalg.norm(run.error) / size for run in runs(name)]
    assert np.median(true) <= goal, f"{np.median(true):.2g}"
    assert np.median(reported) <= goal, f"{np.median(reported):.2g}"


@each
def test_calibration(name: str) -> None:
    """Over twenty seeds the true error is the reported one up to a factor of three, in every entry.

    Deviations share the error of the truth, which enters the allowance.
    """
    exact = truth(name)
    deviation = np.sqrt(np.mean([(run.value - exact.value) ** 2 for run in runs(name)], axis=0))
    reported = np.sqrt(np.mean([run.error**2 for run in runs(name)], axis=0))
    assert np.all(exact.error <= reported), "the comparison says little"
    assert np.all(deviation <= 3 * np.hypot(reported, exact.error))
    assert np.all(deviation >= reported / 3 - 3 * exact.error)
    whole = np.linalg.norm(deviation) / np.linalg.norm(reported)
    assert 1 / 3 <= whole <= 3, f"{whole:.2g}"


@each
def test_no_bias(name: str) -> None:
    """The mean over seeds is right to the error of a mean: errors are not the same in every run."""
    exact = truth(name)
    values = np.array([run.value for run in runs(name)])
    error = np.hypot(values.std(0, ddof=1) / np.sqrt(len(values)), exact.error)
    assert np.all(np.abs(values.mean(0) - exact.value) <= 6 * error)


def test_tolerance_of_the_gru() -> None:
    found = ns.kernel(zoo.gru(), tol=1e-5).evaluate(SENTENCES)
    assert np.all(found.error <= 1e-5 * scale_of(found.value))
    exact = truth("erf GRU")
    allowed = 6 * np.hypot(found.error, exact.error)
    assert np.all(np.abs(found.value - exact.value) <= allowed)


@pytest.mark.parametrize("name", ["erf GRU", "erf GRU, gates of their own", "tanh GRU"])
def test_true_error_at_a_tolerance(name: str) -> None:
    """In nine of ten runs even the largest true error of an entry is below the tolerance."""
    exact, true = truth(name), []
    for seed in SEEDS:
        found = ns.kernel(NETWORKS[name][0], tol=1e-4, seed=seed).evaluate(SENTENCES)
        assert np.all(2 * found.error <= 1e-4 * scale_of(found.value))
        true.append(np.max(np.abs(found.value - exact.value) / scale_of(exact.value)))
    assert np.quantile(true, 0.9) <= 1e-4, f"{np.quantile(true, 0.9):.2g}"


@each
def test_against_sampling_everything(name: str) -> None:
    """All families sampled instead of few: another estimate of the same kernel."""
    every = ns.kernel(NETWORKS[name][0], method="sample", points=2**13, seed=5).evaluate(SENTENCES)
    exact = truth(name)
    pooled = np.maximum(every.error, np.sqrt(np.mean(every.error**2)))
    assert np.all(np.abs(every.value - exact.value) <= 8 * np.hypot(pooled, exact.error))
    assert np.linalg.norm(every.error) <= 1e-2 * np.linalg.norm(exact.value)
