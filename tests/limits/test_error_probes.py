"""Probes: what a plain run ignores and a probe perturbs, and the errors that known bounds must give."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns
from netsor.limits.error_probes import MethodError, Probe, Rounding, error_of, probes
from netsor.limits.notes import Notes
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.tape.tape import Tape

VALUES = np.random.default_rng(0).standard_normal(100_000)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_noise_has_mean_0_and_variance_a_half(dtype: type) -> None:
    noise = Probe(1.0, 10_000).noise(VALUES.astype(dtype))
    assert isinstance(noise, np.ndarray)
    # Standard errors of the mean and of the variance of uniform numbers of variance 1/2.
    assert abs(noise.mean()) < 5 * np.sqrt(0.5 / VALUES.size)
    assert abs(noise.var() - 0.5) < 5 * np.sqrt((1.8 - 1) * 0.25 / VALUES.size)


def test_noise_depends_on_the_digits_alone() -> None:
    probe, neighbours = Probe(1.0, 10_000), np.nextafter(VALUES, np.inf)
    np.testing.assert_array_equal(probe.noise(VALUES), probe.noise(VALUES.copy()))
    np.testing.assert_array_equal(probe.noise(VALUES), probe.noise(-VALUES))
    np.testing.assert_array_equal(probe.noise(VALUES), -Probe(-1.0, 10_000).noise(VALUES))
    assert np.all(probe.noise(neighbours) != probe.noise(VALUES)), "neighbours move alike"
    other_seed = Probe(1.0, 13_000).noise(VALUES)
    assert abs(np.corrcoef(probe.noise(VALUES), other_seed)[0, 1]) < 5 / np.sqrt(VALUES.size)


def test_opposite_values_are_perturbed_oppositely_and_zero_not_by_chance() -> None:
    errors = np.full_like(VALUES, 1e-3)
    for probe in (Probe(1.0, 10_000), Probe(-1.0, 13_000)):
        moved = probe.perturbed(VALUES, errors) - VALUES
        np.testing.assert_allclose(moved, -(probe.perturbed(-VALUES, errors) + VALUES), atol=1e-15)
        assert np.abs(moved).max() <= 1e-3 * (1 + 1e-12)
        assert probe.perturbed(np.zeros(1), errors[:1]) == 0.0


def bounded_sum(seen: list[float]) -> tuple[Prepared, int]:
    """x + (y + bound), where y is a step with an error of 1e-3, and the rounding of the sum is bounded."""
    tape = Tape()
    x, y = (tape.input(name, (4,), np.float64) for name in "xy")
    method = MethodError(lambda a: (a, np.full_like(a, 1e-3)), seen.append)
    total = tape.bounded(x + tape.call(lambda a: a, (y,), (4,), bound=method), Rounding(8.0))
    return Prepared(tape, [total]), total.step


def test_a_plain_run_ignores_bounds_and_a_probe_does_not() -> None:
    seen: list[float] = []
    prepared, step = bounded_sum(seen)
    given = {"x": np.arange(4.0), "y": np.arange(4.0) + 1}
    plain = dict(prepared.run(given))[step]
    np.testing.assert_array_equal(plain, 2 * np.arange(4.0) + 1)
    assert not seen, "a plain run has computed an error"
    assert len(prepared.order) < len(prepared.probing.order), "a plain run has steps for bounds"
    upwards = dict(prepared.probing.run(given, None, Probe(1.0)))[step]
    np.testing.assert_allclose(upwards, plain + 1e-3, rtol=1e-15)
    assert seen == [1e-3]


@pytest.mark.parametrize("cancels", [False, True])
def test_the_error_of_a_sum_of_bounds(cancels: bool) -> None:
    """A sum of n values with errors e is off by at most n e; of differences, nothing may cancel."""
    values, signs = VALUES[:400].reshape(20, 20), np.where(np.arange(20) % 2, 1.0, -1.0)
    bound, notes = 1e-6, Notes(inexact=True)
    weights = signs if cancels else np.ones(20)

    def change(probe: Probe) -> np.ndarray:
        notes.report("E", "method", bound)
        return (probe.perturbed(values, np.full_like(values, bound)) - values) @ weights

    error = error_of(probes(change, notes, cancels, lambda entry: True))
    assert error is not None
    if cancels:  # errors of any sign and size within the bound, which share nothing with the probes
        truth = np.abs(np.random.default_rng(1).uniform(-bound, bound, (200, 20, 20)) @ weights)
        assert np.mean(truth <= error) > 0.95
        assert np.sqrt(np.mean(error**2)) < 10 * np.sqrt(np.mean(truth**2))
    else:  # all may have one sign, so that the bound is reached
        assert np.all(error >= 20 * bound * (1 - 1e-9))
        assert np.all(error <= 3 * 20 * bound)


def test_the_value_with_errors_is_the_kernel_and_nothing_is_recorded_again() -> None:
    x = VALUES[:60].reshape(12, 5)
    for phi in (ns.relu, ns.erf, ns.tanh, ns.sign):
        K = ns.kernel(ns.zoo.mlp(2, phi))
        kernel = K(x)
        (computation,) = K._computations.values()
        recording = computation._recording
        np.testing.assert_array_equal(K.evaluate(x).value, kernel)
        assert computation._recording is recording
        assert computation._probed is None
