"""Gated recurrent unit (Programs "GRU" and "GRU, Multiple Input Sequences")."""

from __future__ import annotations

from netsor.build import GRUCell, Matrix, Network, Vector, erf, erf_gate, network, stack
from netsor.build.layers.dense import scaled
from netsor.build.layers.recurrent import PerGate
from netsor.zoo.per_layer import check_input

__all__ = ["gru"]


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
    """(T, m) -> T scalars; per-gate values in the order z, r, h.

    h_t = (1 - z_t) h_{t-1} + z_t phi(W_h (r_t h_{t-1}) + U_h x_t + b_h), out v.h_t.
    The initial state is 0, or a random vector of variance `var_h0`.
    """
    cell = GRUCell(phi, gate, var_w, var_u, var_b, mean_b)
    h0 = Vector(var_h0, name="h0") if scaled(var_h0, 1, "var_h0") else 0
    v = Matrix(var_v, rows=1, name="v")

    @network
    def gru(tokens):
        check_input(tokens, "T", "m")
        state, states = h0, []
        for token in tokens:
            state = cell(state, token)
            states.append(state)
        return v @ stack(states)

    return gru
