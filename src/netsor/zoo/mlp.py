"""Multilayer perceptron (Programs "MLP Computation on Network Input x" and "on a Set of Inputs")."""

from __future__ import annotations

from functools import partial

from netsor.build import Matrix, Network, relu
from netsor.build.layers.recurrent import check_functions
from netsor.zoo.per_layer import Var, biases, check_input, matrices


def mlp(depth: int = 1, phi=relu, var_w: Var = 1.0, var_b: Var = 1.0, var_v: float = 1.0) -> Network:
    """h_l = W_l x_{l-1} + b_l, x_l = phi(h_l), output v.x_depth.  (m,) -> 1 scalar.

    Parameters
    ----------
    depth
        Number of hidden layers.
    phi
        The nonlinearity.
    var_w, var_b
        Variances of weights (times the fan-in) and biases: one number, or one per layer.
    var_v
        n Var(v_i) of the readout.

    Returns
    -------
    Network
    """
    check_functions(phi=phi)
    W, b = matrices(var_w, depth), biases(var_b, depth)
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_mlp, W, b, v, phi), "mlp")


def _mlp(W, b, v, phi, x):
    check_input(x, "m")
    for W_l, b_l in zip(W, b, strict=True):
        x = phi(W_l @ x + b_l)
    return v @ x
