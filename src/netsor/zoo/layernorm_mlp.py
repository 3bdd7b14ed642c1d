"""Layernorm network (Program "Layernorm Network")."""

from __future__ import annotations

from functools import partial

from netsor.build import Matrix, Network, layernorm, relu
from netsor.build.layers.dense import choice
from netsor.build.layers.recurrent import check_functions
from netsor.zoo.per_layer import Var, biases, check_input, matrices


def layernorm_mlp(
    depth: int = 1,
    phi=relu,
    order: str = "norm-phi",
    var_w: Var = 1.0,
    var_b: Var = 1.0,
    var_v: float = 1.0,
) -> Network:
    """x_l = phi(layernorm(W_l x_{l-1} + b_l)), output v.x_depth.  (m,) -> 1 scalar.

    Parameters
    ----------
    depth, phi, var_w, var_b, var_v
        As for `mlp`.
    order
        "norm-phi": phi(layernorm(h)). "phi-norm": layernorm(phi(h)).

    Returns
    -------
    Network
    """
    check_functions(phi=phi)
    choice(order, ("norm-phi", "phi-norm"), "order")
    W, b = matrices(var_w, depth), biases(var_b, depth)
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_layernorm_mlp, W, b, v, phi, order), "layernorm_mlp")


def _layernorm_mlp(W, b, v, phi, order, x):
    check_input(x, "m")
    for W_l, b_l in zip(W, b, strict=True):
        h = W_l @ x + b_l
        x = phi(layernorm(h)) if order == "norm-phi" else layernorm(phi(h))
    return v @ x
