"""Fully connected networks: plain, with skip connections, densely connected, and with normalization."""

from __future__ import annotations

from functools import partial

from netsor.build import Matrix, Network, batchnorm, layernorm, relu
from netsor.build.layers.dense import choice
from netsor.build.layers.recurrent import Activation, check_functions
from netsor.zoo.per_layer import Var, biases, check_input, matrices, per_layer


def mlp(
    depth: int = 1, phi: Activation = relu, var_w: Var = 1.0, var_b: Var = 1.0, var_v: float = 1.0
) -> Network:
    """h_l = W_l x_{l-1} + b_l, x_l = phi(h_l), output v.x_depth.  (m,) -> 1 scalar.

    The paper's Programs "MLP Computation on Network Input x" and "on a Set of Inputs".

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
    """
    check_functions(phi=phi)
    W, b = matrices(var_w, depth), biases(var_b, depth)
    return Network(partial(_mlp, W, b, Matrix(var_v, rows=1, name="v"), phi), "mlp")


def _mlp(W, b, v, phi, x):
    check_input(x, "m")
    for W_l, b_l in zip(W, b, strict=True):
        x = phi(W_l @ x + b_l)
    return v @ x


def resnet(
    depth: int = 1,
    phi: Activation = relu,
    var_w: Var = 1.0,
    var_b: Var = 1.0,
    var_v: float = 1.0,
    var_u: float = 1.0,
) -> Network:
    """x_0 = U x, x_l = x_{l-1} + phi(W_l x_{l-1} + b_l), output v.x_depth.  (m,) -> 1 scalar.

    The paper's paragraph "Skip Connection".

    Parameters
    ----------
    depth, phi, var_w, var_b, var_v
        As for `mlp`, where a layer is a residual block.
    var_u
        m Var(U_ij) of the embedding.
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


def densenet(
    depth: int = 2, phi: Activation = relu, var_w: Var = 1.0, var_b: Var = 1.0, var_v: float = 1.0
) -> Network:
    """x_1 = phi(W_1 x + b_1), x_l = phi(W_l [x_1, ..., x_{l-1}] + b_l), output v.x_depth.  (m,) -> 1 scalar.

    W_l is a block row of l - 1 matrices. Its fan-in is the total width of the layers that it reads.

    Parameters
    ----------
    depth, phi, var_w, var_b, var_v
        As for `mlp`.
    """
    check_functions(phi=phi)
    variances, b = per_layer(var_w, depth, "var_w"), biases(var_b, depth)
    # Layer l + 1 has fan-in l n, so the entries of each n x n block have variance var / (l n).
    W = [
        [Matrix(var / layer, name=f"W{layer + 1}_{k}") for k in range(1, layer + 1)]
        for layer, var in enumerate(variances[1:], 1)
    ]
    first, v = Matrix(variances[0], name="W1"), Matrix(var_v, rows=1, name="v")
    return Network(partial(_densenet, first, W, b, v, phi), "densenet")


def _densenet(first, W, b, v, phi, x):
    check_input(x, "m")
    layers = [phi(first @ x + b[0])]
    for row, b_l in zip(W, b[1:], strict=True):
        layers.append(phi(sum(W_lk @ x_k for W_lk, x_k in zip(row, layers, strict=True)) + b_l))
    return v @ layers[-1]


def batchnorm_mlp(depth: int = 1, phi: Activation = relu, var_w: Var = 1.0, var_v: float = 1.0) -> Network:
    """x_l = phi(batchnorm(W_l x_{l-1})), output v.x_depth.  A batch (B, m) -> B scalars.

    The paper's Program "Batchnorm (with Fully Connected Layers) over Multiple Batches". Batchnorm couples
    the rows, so one input of this network is a whole batch.

    Parameters
    ----------
    depth, phi, var_w, var_v
        As for `mlp`.
    """
    check_functions(phi=phi)
    W, v = matrices(var_w, depth), Matrix(var_v, rows=1, name="v")
    return Network(partial(_batchnorm_mlp, W, v, phi), "batchnorm_mlp")


def _batchnorm_mlp(W, v, phi, x):
    check_input(x, "B", "m")
    for W_l in W:  # no biases: batchnorm would subtract them
        x = phi(batchnorm(W_l @ x, axis=0))
    return v @ x


def layernorm_mlp(
    depth: int = 1,
    phi: Activation = relu,
    order: str = "norm-phi",
    var_w: Var = 1.0,
    var_b: Var = 1.0,
    var_v: float = 1.0,
) -> Network:
    """x_l = phi(layernorm(W_l x_{l-1} + b_l)), output v.x_depth.  (m,) -> 1 scalar.

    The paper's Program "Layernorm Network".

    Parameters
    ----------
    depth, phi, var_w, var_b, var_v
        As for `mlp`.
    order
        "norm-phi": phi(layernorm(h)). "phi-norm": layernorm(phi(h)).
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
