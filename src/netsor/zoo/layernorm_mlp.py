"""Layernorm network (Program "Layernorm Network")."""

from __future__ import annotations

from netsor.build import Matrix, Network, layernorm, network, relu
from netsor.zoo.per_layer import Var, biases, check_functions, check_input, choice, matrices

__all__ = ["layernorm_mlp"]


def layernorm_mlp(
    depth: int = 1,
    phi=relu,
    order: str = "norm-phi",
    var_w: Var = 1.0,
    var_b: Var = 1.0,
    var_v: float = 1.0,
) -> Network:
    """(m,) -> one scalar.

    Each layer is phi(layernorm(W x + b)) ("norm-phi") or layernorm(phi(W x + b)) ("phi-norm").
    """
    check_functions(phi=phi)
    choice(order, ("norm-phi", "phi-norm"), "order")
    W, b = matrices(var_w, depth), biases(var_b, depth)
    v = Matrix(var_v, rows=1, name="v")

    @network
    def layernorm_mlp(x):
        check_input(x, "m")
        for W_l, b_l in zip(W, b, strict=True):
            h = W_l @ x + b_l
            x = phi(layernorm(h)) if order == "norm-phi" else layernorm(phi(h))
        return v @ x

    return layernorm_mlp
