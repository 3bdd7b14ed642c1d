"""A GRU tuned by differences of its sampled kernel, beside a search without derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns


@pytest.mark.slow
def test_differences_take_a_tenth_of_the_steps() -> None:
    """60 short sequences, ten variances and the noise: an optimum as good, in far fewer kernels."""
    cell, v = ns.GRUCell(ns.erf, ns.erf_gate), ns.Matrix(rows=1, name="v")

    @ns.network
    def reader(tokens):
        state = 0
        for token in tokens:
            state = cell(state, token)
        return v @ state

    rng = np.random.default_rng(0)
    sequences = [rng.standard_normal((n, 2)) for n in rng.integers(2, 4, 60)]
    K = ns.kernel(reader, points=256, repeats=4)
    true = {"U_z": 4.0, "U_h": 3.0, "b_z": 0.3, "b_h": 0.2, "v": 2.0}
    y = ns.gp.sample(K, sequences, seed=1, params=true)[0] + 0.1 * rng.standard_normal(60)
    options = {"noise": 0.05, "bounds": (1e-3, 1e3), "progress": False}
    slopes, plain = (ns.gp.tune(K, sequences, y, method=m, **options) for m in ("auto", "nelder-mead"))
    assert slopes.method == "differences"
    assert slopes.value > plain.value - 0.5  # both end in a flat valley
    assert slopes.evaluations < plain.evaluations / 4  # ten more kernels for each gradient among them
    assert slopes.evaluations / 11 < plain.evaluations / 10
