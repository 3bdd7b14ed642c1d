"""Batchnorm network (Program "Batchnorm (with Fully Connected Layers) over Multiple Batches")."""

from __future__ import annotations

from functools import partial

from netsor.build import Matrix, Network, batchnorm, relu
from netsor.build.layers.recurrent import check_functions
from netsor.zoo.per_layer import Var, check_input, matrices


def batchnorm_mlp(depth: int = 1, phi=relu, var_w: Var = 1.0, var_v: float = 1.0) -> Network:
    """x_l = phi(batchnorm(W_l x_{l-1})), output v.x_depth.  A batch (B, m) -> B scalars.

    Batchnorm couples the rows, so one input of this network is a whole batch.

    Parameters
    ----------
    depth, phi, var_w, var_v
        As for `mlp`.

    Returns
    -------
    Network
    """
    check_functions(phi=phi)
    W = matrices(var_w, depth)
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_batchnorm_mlp, W, v, phi), "batchnorm_mlp")


def _batchnorm_mlp(W, v, phi, batch):
    check_input(batch, "B", "m")
    x = batch
    for W_l in W:  # no biases: batchnorm would subtract them
        x = phi(batchnorm(W_l @ x, axis=0))
    return v @ x
