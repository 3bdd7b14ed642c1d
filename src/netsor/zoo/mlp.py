"""Multilayer perceptron (Programs "MLP Computation on Network Input x" and "on a Set of Inputs")."""

from __future__ import annotations

from netsor.build import Matrix, Network, network, relu
from netsor.zoo.per_layer import Var, biases, check_functions, check_input, matrices

__all__ = ["mlp"]


def mlp(depth: int = 1, phi=relu, var_w: Var = 1.0, var_b: Var = 1.0, var_v: float = 1.0) -> Network:
    """(m,) -> one scalar: h1 = W1 x + b1, x_l = phi(h_l), h_{l+1} = W_{l+1} x_l + b_{l+1}, out v.x_depth."""
    check_functions(phi=phi)
    W, b = matrices(var_w, depth), biases(var_b, depth)
    v = Matrix(var_v, rows=1, name="v")

    @network
    def mlp(x):
        check_input(x, "m")
        for W_l, b_l in zip(W, b, strict=True):
            x = phi(W_l @ x + b_l)
        return v @ x

    return mlp
