"""A GRU tuned by differences of its sampled kernel, beside a search without derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns
from netsor.gp.objective import Objective


@pytest.mark.slow
def test_a_tenth_of_the_kernels_of_nelder_and_mead() -> None:
    """Four sets of 60 short sequences, ten variances and the noise: beside the search without derivatives.

    A sampled likelihood depends on what sampling chooses by the numbers. With that chosen at what `tune`
    finds, all four are as likely as what the other search finds. With that chosen at the start, which is the
    function that both maximise, three are: on the set of seed 1 the other one ends 0.2 higher, at variances
    that with sixteen times the points are 0.9 less likely than ours.
    """
    found = [tuned(seed) for seed in range(4)]
    assert all(ours < theirs / 10 for *_, ours, theirs in found)  # kernels, those for slopes among them
    assert all(here > -0.02 for here, *_ in found)
    assert sum(start > -0.02 for _, start, *_ in found) >= 3


def tuned(seed: int) -> tuple[float, float, int, int]:
    """By how much the log likelihood is above that of Nelder and Mead, with what sampling chooses chosen here
    and at the start, and the kernels of both."""
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
    values = {**K.params, "noise": options["noise"]}
    places = [np.log([*(found.params[n] for n in K.params), found.noise]) for found in (slopes, plain)]
    gains = []
    for first in (places[0], np.log(list(values.values()))):
        likelihood = Objective(K, sequences, y[:, None], values, [(name,) for name in values])
        likelihood.value(first)
        ours, theirs = (-likelihood.value(theta) for theta in places)
        gains.append(ours - theirs)
    return gains[0], gains[1], slopes.evaluations, plain.evaluations
