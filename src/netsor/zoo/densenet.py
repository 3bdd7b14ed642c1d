"""Densely connected network: every layer reads all layers before it."""

from __future__ import annotations

from functools import partial

from netsor.build import Matrix, Network, relu
from netsor.build.layers.recurrent import check_functions
from netsor.zoo.per_layer import Var, biases, check_input, per_layer


def densenet(depth: int = 2, phi=relu, var_w: Var = 1.0, var_b: Var = 1.0, var_v: float = 1.0) -> Network:
    """x_1 = phi(W_1 x + b_1), x_l = phi(W_l [x_1, ..., x_{l-1}] + b_l), output v.x_depth.  (m,) -> 1 scalar.

    W_l is a block row of l - 1 matrices. Its fan-in is the total width of the layers that it reads.

    Parameters
    ----------
    depth, phi, var_w, var_b, var_v
        As for `mlp`.

    Returns
    -------
    Network
    """
    check_functions(phi=phi)
    variances, b = per_layer(var_w, depth, "var_w"), biases(var_b, depth)
    first = Matrix(variances[0], name="W1")
    # Layer l + 1 has fan-in l n, so the entries of each n x n block have variance var / (l n).
    W = [
        [Matrix(var / layer, name=f"W{layer + 1}_{k}") for k in range(1, layer + 1)]
        for layer, var in enumerate(variances[1:], 1)
    ]
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_densenet, first, W, b, v, phi), "densenet")


def _densenet(first, W, b, v, phi, x):
    check_input(x, "m")
    layers = [phi(first @ x + b[0])]
    for row, b_l in zip(W, b[1:], strict=True):
        layers.append(phi(sum(W_lk @ x_k for W_lk, x_k in zip(row, layers, strict=True)) + b_l))
    return v @ layers[-1]
