"""Long short-term memory (the paper: "similar to the GRU and omitted")."""

from __future__ import annotations

from netsor.build import LSTMCell, Matrix, Network, network, sigmoid, stack, tanh
from netsor.build.layers.recurrent import PerGate
from netsor.zoo.per_layer import check_input

__all__ = ["lstm"]


def lstm(
    phi=tanh,
    gate=sigmoid,
    var_w: PerGate = 1.0,
    var_u: PerGate = 1.0,
    var_b: PerGate = 1.0,
    var_v: float = 1.0,
    mean_b: PerGate = 0.0,
) -> Network:
    """(T, m) -> T scalars; per-gate values in the order i, f, g, o.

    c_t = f_t c_{t-1} + i_t g_t, h_t = o_t phi(c_t), from zero states; out v.h_t.
    """
    cell = LSTMCell(phi, gate, var_w, var_u, var_b, mean_b)
    v = Matrix(var_v, rows=1, name="v")

    @network
    def lstm(tokens):
        check_input(tokens, "T", "m")
        state, states = (0, 0), []
        for token in tokens:
            state = cell(state, token)
            states.append(state[0])
        return v @ stack(states)

    return lstm
