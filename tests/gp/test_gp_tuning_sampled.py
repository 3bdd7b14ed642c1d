"""A GRU tuned by differences of its sampled kernel, beside a search without derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns
from netsor.gp.objective import Objective


@pytest.mark.slow
def test_differences_take_a_tenth_of_the_kernels() -> None:
    """60 short sequences, ten variances and the noise: the same optimum, in a tenth of the kernels.

    Both results are compared with the points of the search: with others the likelihood of one place differs
    by 0.1 or so. With less noise than that of these targets it would differ by more than optima do.
    """
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
    y = ns.gp.sample(K, sequences, seed=1, params=true)[0] + 0.3 * rng.standard_normal(60)
    options = {"noise": 0.05, "bounds": (1e-3, 1e3), "progress": False}
    slopes, plain = (ns.gp.tune(K, sequences, y, method=m, **options) for m in ("auto", "nelder-mead"))
    assert slopes.method == "differences"
    names = [*K.params, "noise"]
    likelihood = Objective(K, sequences, y[:, None], {**K.params, "noise": 0.05}, [(n,) for n in names])
    places = (np.log([*(found.params[n] for n in K.params), found.noise]) for found in (slopes, plain))
    ours, theirs = (-likelihood.value(theta) for theta in places)
    assert ours > theirs - 0.02
    assert slopes.evaluations < plain.evaluations / 10  # those for slopes among them
