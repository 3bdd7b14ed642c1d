"""Long short-term memory (the paper: "similar to the GRU and omitted")."""

from __future__ import annotations

from functools import partial

from netsor.build import LSTMCell, Matrix, Network, sigmoid, stack, tanh
from netsor.build.layers.recurrent import PerGate
from netsor.zoo.per_layer import check_input


def lstm(
    phi=tanh,
    gate=sigmoid,
    var_w: PerGate = 1.0,
    var_u: PerGate = 1.0,
    var_b: PerGate = 1.0,
    var_v: float = 1.0,
    mean_b: PerGate = 0.0,
) -> Network:
    """c_t = f_t c_{t-1} + i_t g_t, h_t = o_t phi(c_t), out v.h_t.  (T, m) -> T scalars.

    The initial states are 0.

    Parameters
    ----------
    phi, gate
        The nonlinearities of g_t and c_t, and of the gates i_t, f_t and o_t.
    var_w, var_u, var_b, mean_b
        Variances of W, U and b, and means of b: one number, or one per gate in the order i, f, g, o.
    var_v
        n Var(v_i) of the readout.

    Returns
    -------
    Network
    """
    cell = LSTMCell(phi, gate, var_w, var_u, var_b, mean_b)
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_lstm, cell, v), "lstm")


def _lstm(cell, v, tokens):
    check_input(tokens, "T", "m")
    state, states = (0, 0), []
    for token in tokens:
        state = cell(state, token)
        states.append(state[0])
    return v @ stack(states)
