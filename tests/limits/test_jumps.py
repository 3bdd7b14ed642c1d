"""Recurrent networks with jumps on a sentence and the same sentence with one token more.

The outputs at the tokens that both have are the same random variables: their correlation is 1, and so is that
of the outputs of one input given twice, whose rows are equal. A method that forgets that two arguments are
parallel shows here first, as a jump makes an error of sqrt(1 - c) of a correlation c.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit, ndtr

import netsor as ns
from limit_cases import SEQUENCES
from netsor import zoo

SENTENCE = SEQUENCES[0]
LONGER = np.concatenate([SENTENCE, SEQUENCES[1][:1]])
T = len(SENTENCE)


def user_step(h: Any) -> Any:
    return ns.nonlin(lambda x: np.where(x > 0.0, 1.0, -0.5), h)


NETWORKS = {
    "sign gru": zoo.gru(ns.sign),
    "step gru": zoo.gru(ns.step),
    "user gru": zoo.gru(user_step),
    "sign lstm": zoo.lstm(ns.sign),
    "user lstm": zoo.lstm(user_step),
    "sign rnn": zoo.simple_rnn(ns.sign),
    "user rnn": zoo.simple_rnn(user_step),
}


@pytest.mark.parametrize("method", ["auto", "sample"])
@pytest.mark.parametrize("net", NETWORKS.values(), ids=NETWORKS)
def test_an_output_has_correlation_1_with_itself(net: ns.Network, method: str) -> None:
    K = ns.kernel(net, method=method)([SENTENCE, LONGER])
    deviations = np.sqrt(np.diagonal(K))
    correlation = (K / np.outer(deviations, deviations))[np.arange(T), T + np.arange(T)]
    np.testing.assert_allclose(correlation, 1.0, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["auto", "sample"])
@pytest.mark.parametrize("net", NETWORKS.values(), ids=NETWORKS)
def test_equal_inputs_have_equal_rows(net: ns.Network, method: str) -> None:
    K = ns.kernel(net, method=method)([SENTENCE, LONGER, SENTENCE])
    scale = np.sqrt(np.outer(np.diagonal(K), np.diagonal(K)))
    gap = np.abs(K[:T] - K[-T:]) / scale[:T]
    assert gap.max() <= 1e-12


ANGLES = [0.0, 1e-12, 1e-9, 1e-8, 1e-7, 1e-5, 1e-2]
LAYERS = {  # phi, and its second moment from that of the step
    "step": (ns.step, lambda step: step),
    "sign": (ns.sign, lambda step: 4 * step - 1),
    "user": (user_step, lambda step: 2.25 * step - 0.5),
}


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("name", LAYERS)
def test_nearly_parallel_inputs_are_within_the_reported_error(name: str, angle: float) -> None:
    """E[step(g) step(g')] = 1/2 - angle / (2 pi); a correlation in double precision knows it to 1e-8."""
    phi, of_step = LAYERS[name]
    x = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    found = ns.kernel(zoo.mlp(1, phi, var_b=0.0)).evaluate(x)
    want = of_step(0.5 - np.arctan2(x[1, 1], x[1, 0]) / (2 * np.pi))
    assert abs(found.value[0, 1] - want) <= found.error[0, 1] + 1e-15


def test_the_square_of_a_function_with_a_jump_beside_a_mean() -> None:
    """f = s sigmoid(s / 4) of the sign s of g + c: E[f^2] from the probability that g is above -c."""
    c, var = 0.31415, np.array([0.5, 1.25])
    text = f"""
    Input g :: G(n)[2] ~ N(-1, [[0.5, 0.5], [0.5, 1.25]])
    y := sign(g + {c})*sigmoid(0.25*sign(g + {c}))
    Input v :: G(n)[2] ~ N(0, 1)
    Output sum(v^T y, axes=1) / sqrt(n)
    """
    found = ns.limit(ns.parse(text)).kernel()
    above = ndtr((c - 1) / np.sqrt(var))
    wanted = above * expit(0.25) ** 2 + (1 - above) * expit(-0.25) ** 2
    assert np.abs(found.value - wanted.sum()).max() <= found.error.max() < 1e-11
