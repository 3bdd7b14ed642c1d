"""Gated recurrent unit (Programs "GRU" and "GRU, Multiple Input Sequences")."""

from __future__ import annotations

from functools import partial

from netsor.build import GRUCell, Matrix, Network, Vector, erf, erf_gate, stack
from netsor.build.layers.dense import scaled
from netsor.build.layers.recurrent import PerGate
from netsor.zoo.per_layer import check_input


def gru(
    phi=erf,
    gate=erf_gate,
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
    phi, gate
        The nonlinearities of the candidate state and of the gates.
    var_w, var_u, var_b, mean_b
        Variances of W, U and b, and means of b: one number, or one per gate in the order z, r, h.
    var_v
        n Var(v_i) of the readout.
    var_h0
        Variance of the random initial state; with 0 the initial state is 0.

    Returns
    -------
    Network
    """
    cell = GRUCell(phi, gate, var_w, var_u, var_b, mean_b)
    # A Vector of variance 0 would be a valid program, too, but with a needless input.
    h0 = Vector(var_h0, name="h0") if scaled(var_h0, 1, "var_h0") else 0
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_gru, cell, h0, v), "gru")


def _gru(cell, h0, v, tokens):
    check_input(tokens, "T", "m")
    state, states = h0, []
    for token in tokens:
        state = cell(state, token)
        states.append(state)
    return v @ stack(states)
