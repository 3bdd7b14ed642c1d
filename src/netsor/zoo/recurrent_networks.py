"""Recurrent networks (Programs "Simple RNN", "GRU"; the LSTM is "similar to the GRU and omitted")."""

from __future__ import annotations

from functools import partial

import netsor.build as ns
from netsor.build import Matrix, Network, Vector, erf, erf_gate, sigmoid, tanh
from netsor.build.layers.dense import scaled
from netsor.build.layers.recurrent import Activation, PerGate
from netsor.zoo.per_layer import check_input


def simple_rnn(
    phi: Activation = erf, var_w: float = 1.0, var_u: float = 1.0, var_b: float = 1.0, var_v: float = 1.0
) -> Network:
    """s_t = phi(W s_{t-1} + U x_t + b) with s_0 = 0, output v.s_t.  (T, m) -> T scalars.

    Parameters
    ----------
    phi, var_w, var_u, var_b, var_v
        As for `gru`, with one number each.
    """
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_over_tokens, ns.RNNCell(phi, var_w, var_u, var_b), 0, v), "simple_rnn")


def gru(
    phi: Activation = erf,
    gate: Activation = erf_gate,
    var_w: PerGate = 1.0,
    var_u: PerGate = 1.0,
    var_b: PerGate = 1.0,
    var_v: float = 1.0,
    mean_b: PerGate = 0.0,
    var_h0: float = 0.0,
) -> Network:
    """h_t = (1 - z_t) h_{t-1} + z_t phi(W_h (r_t h_{t-1}) + U_h x_t + b_h), out v.h_t.  (T, m) -> T scalars.

    The gates are z_t = gate(W_z h_{t-1} + U_z x_t + b_z), and r_t likewise.

    Parameters
    ----------
    phi, gate, var_w, var_u, var_b, mean_b
        As for `ns.GRUCell`, with the gates in the order z, r, h.
    var_v
        n Var(v_i) of the readout.
    var_h0
        Variance of the random initial state; with 0 the initial state is 0.
    """
    cell = ns.GRUCell(phi, gate, var_w, var_u, var_b, mean_b)
    # A Vector of variance 0 would be a valid program, too, but with a needless input.
    h0 = Vector(var_h0, name="h0") if scaled(var_h0, 1, "var_h0") else 0
    return Network(partial(_over_tokens, cell, h0, Matrix(var_v, rows=1, name="v")), "gru")


def lstm(
    phi: Activation = tanh,
    gate: Activation = sigmoid,
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
    phi, gate, var_w, var_u, var_b, var_v, mean_b
        As for `gru`, with phi for g_t and c_t, and the gates in the order i, f, g, o.
    """
    cell = ns.LSTMCell(phi, gate, var_w, var_u, var_b, mean_b)
    return Network(partial(_over_tokens, cell, (0, 0), Matrix(var_v, rows=1, name="v")), "lstm")


def _over_tokens(cell, state, v, tokens):
    check_input(tokens, "T", "m")
    hidden = []
    for token in tokens:
        state = cell(state, token)
        hidden.append(state[0] if isinstance(state, tuple) else state)  # an LSTM's state is a pair (h, c)
    return v @ ns.stack(hidden)
