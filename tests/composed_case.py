"""One network that has a bit of everything, for the tests that compare it with finite widths.

A convolution over tokens, a GRU along them, attention over its states, layernorm, a function of two
variables that the user wrote, and a mean over positions.
"""

from __future__ import annotations

import numpy as np

import netsor as ns
from limit_cases import SEQUENCES, Case

__all__ = ["EVERYTHING", "blend"]

convolution, cell, attend = ns.Conv1d(3, var_w=1.5, var_b=0.1), ns.GRUCell(), ns.Attention(causal=True)
W, v = ns.Matrix(1.3), ns.Matrix(rows=1)


def blend(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.tanh(x) * y + np.maximum(x, y)


@ns.network
def everything(tokens):
    h = ns.relu(convolution(tokens))
    state, states = 0, []
    for position in range(len(tokens)):
        state = cell(state, h[position])
        states.append(state)
    h = ns.stack(states)
    y = ns.layernorm(attend(h) + W @ h)
    return v @ ns.mean(ns.nonlin(blend, y, h), axis=0)


EVERYTHING = Case("everything", everything, [SEQUENCES[0], SEQUENCES[1], SEQUENCES[2][:2]])
