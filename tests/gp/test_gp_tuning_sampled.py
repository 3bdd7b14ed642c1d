"""A GRU tuned by differences of its sampled kernel, beside a search without derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns
from netsor.gp.objective import Objective


@pytest.mark.slow
def test_differences_take_a_tenth_of_the_kernels() -> None:
    """Four sets of 60 short sequences, ten variances and the noise: beside the search without derivatives.

    The likelihood has several optima. Of four, three are reached or bettered, and one is missed by less than
    0.2, which is what the likelihood of one place differs by with other sample points.
    """
    gains = []
    for seed in range(4):
        gain, ours, theirs = tuned(seed)
        assert ours < theirs / 10  # kernels, those for slopes among them
        gains.append(gain)
    assert min(gains) > -0.2
    assert sum(gain > -0.02 for gain in gains) >= 3


def tuned(seed: int) -> tuple[float, int, int]:
    """By how much the log likelihood is larger than that of Nelder and Mead, and the kernels of both."""
    cell, v = ns.GRUCell(ns.erf, ns.erf_gate), ns.Matrix(rows=1, name="v")

    @ns.network
    def reader(tokens):
        state = 0
        for token in tokens:
            state = cell(state, token)
        return v @ state

    rng = np.random.default_rng(seed)
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
    return ours - theirs, slopes.evaluations, plain.evaluations
