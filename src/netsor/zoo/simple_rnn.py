"""Simple recurrent network (Program "Simple RNN Computation on Two Input Sequences")."""

from __future__ import annotations

from netsor.build import Matrix, Network, RNNCell, erf, network, stack
from netsor.zoo.per_layer import check_input

__all__ = ["simple_rnn"]


def simple_rnn(
    phi=erf, var_w: float = 1.0, var_u: float = 1.0, var_b: float = 1.0, var_v: float = 1.0
) -> Network:
    """(T, m) -> T scalars: s_t = phi(W s_{t-1} + U x_t + b) with s_0 = 0, out v.s_t."""
    cell = RNNCell(phi, var_w, var_u, var_b)
    v = Matrix(var_v, rows=1, name="v")

    @network
    def simple_rnn(tokens):
        check_input(tokens, "T", "m")
        state, states = 0, []
        for token in tokens:
            state = cell(state, token)
            states.append(state)
        return v @ stack(states)

    return simple_rnn
