"""Residual network (the paper's paragraph "Skip Connection")."""

from __future__ import annotations

from netsor.build import Matrix, Network, network, relu
from netsor.zoo.per_layer import Var, biases, check_functions, check_input, matrices

__all__ = ["resnet"]


def resnet(
    depth: int = 1,
    phi=relu,
    var_w: Var = 1.0,
    var_b: Var = 1.0,
    var_v: float = 1.0,
    var_u: float = 1.0,
) -> Network:
    """(m,) -> one scalar: x_0 = U x, then `depth` blocks x_l = x_{l-1} + phi(W_l x_{l-1} + b_l).

    The output is v.x_depth.
    """
    check_functions(phi=phi)
    W, b = matrices(var_w, depth), biases(var_b, depth)
    U, v = Matrix(var_u, name="U"), Matrix(var_v, rows=1, name="v")

    @network
    def resnet(x):
        check_input(x, "m")
        x = U @ x
        for W_l, b_l in zip(W, b, strict=True):
            x = x + phi(W_l @ x + b_l)
        return v @ x

    return resnet
