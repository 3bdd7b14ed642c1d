"""Simple recurrent network (Program "Simple RNN Computation on Two Input Sequences")."""

from __future__ import annotations

from functools import partial

from netsor.build import Matrix, Network, RNNCell, erf, stack
from netsor.zoo.per_layer import check_input


def simple_rnn(
    phi=erf, var_w: float = 1.0, var_u: float = 1.0, var_b: float = 1.0, var_v: float = 1.0
) -> Network:
    """s_t = phi(W s_{t-1} + U x_t + b) with s_0 = 0, output v.s_t.  (T, m) -> T scalars.

    Parameters
    ----------
    phi
        The nonlinearity.
    var_w, var_u
        n Var(W_ij) of the recurrent matrix, m Var(U_ij) of the input matrix.
    var_b
        Variance of the bias.
    var_v
        n Var(v_i) of the readout.

    Returns
    -------
    Network
    """
    cell = RNNCell(phi, var_w, var_u, var_b)
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_simple_rnn, cell, v), "simple_rnn")


def _simple_rnn(cell, v, tokens):
    check_input(tokens, "T", "m")
    state, states = 0, []
    for token in tokens:
        state = cell(state, token)
        states.append(state)
    return v @ stack(states)
