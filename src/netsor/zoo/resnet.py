"""Residual network (the paper's paragraph "Skip Connection")."""

from __future__ import annotations

from functools import partial

from netsor.build import Matrix, Network, relu
from netsor.build.layers.recurrent import check_functions
from netsor.zoo.per_layer import Var, biases, check_input, matrices


def resnet(
    depth: int = 1,
    phi=relu,
    var_w: Var = 1.0,
    var_b: Var = 1.0,
    var_v: float = 1.0,
    var_u: float = 1.0,
) -> Network:
    """x_0 = U x, x_l = x_{l-1} + phi(W_l x_{l-1} + b_l), output v.x_depth.  (m,) -> 1 scalar.

    Parameters
    ----------
    depth, phi, var_w, var_b, var_v
        As for `mlp`, where a layer is a residual block.
    var_u
        m Var(U_ij) of the embedding.

    Returns
    -------
    Network
    """
    check_functions(phi=phi)
    W, b = matrices(var_w, depth), biases(var_b, depth)
    U, v = Matrix(var_u, name="U"), Matrix(var_v, rows=1, name="v")
    return Network(partial(_resnet, U, W, b, v, phi), "resnet")


def _resnet(U, W, b, v, phi, x):
    check_input(x, "m")
    x = U @ x
    for W_l, b_l in zip(W, b, strict=True):
        x = x + phi(W_l @ x + b_l)
    return v @ x
