"""Batchnorm network (Program "Batchnorm (with Fully Connected Layers) over Multiple Batches")."""

from __future__ import annotations

from netsor.build import Matrix, Network, batchnorm, network, relu
from netsor.zoo.per_layer import Var, check_functions, check_input, matrices

__all__ = ["batchnorm_mlp"]


def batchnorm_mlp(depth: int = 1, phi=relu, var_w: Var = 1.0, var_v: float = 1.0) -> Network:
    """(B, m), a whole batch -> B scalars: x_l = phi(batchnorm(W_l x_{l-1})) over the batch, out v.x_depth."""
    check_functions(phi=phi)
    W = matrices(var_w, depth)
    v = Matrix(var_v, rows=1, name="v")

    @network
    def batchnorm_mlp(batch):
        check_input(batch, "B", "m")
        x = batch
        for W_l in W:
            x = phi(batchnorm(W_l @ x, axis=0))
        return v @ x

    return batchnorm_mlp
