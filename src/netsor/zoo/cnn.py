"""Convolutional network (Programs "2-Layer", "L-layer Convolutional Network with Global Average Pooling")."""

from __future__ import annotations

from netsor.build import (
    Conv2d,
    Matrix,
    Network,
    flatten,
    global_mean_pool,
    max_pool,
    mean_pool,
    network,
    relu,
)
from netsor.zoo.per_layer import Var, check_functions, check_input, choice, per_layer

__all__ = ["cnn"]


def cnn(
    depth: int = 2,
    kernel: int | tuple[int, int] = 3,
    phi=relu,
    padding: str | int = "same",
    readout: str = "gap",
    pool: str | None = None,
    var_w: Var = 1.0,
    var_b: Var = 1.0,
    var_v: float = 1.0,
    *,
    stride: int | tuple[int, int] = 1,
    dilation: int | tuple[int, int] = 1,
) -> Network:
    """(H, W, c) -> one scalar: `depth` convolutions with phi, a 2 x 2 pool ("max" or "mean") between
    layers on request, then global average pooling ("gap") or a readout of all pixels ("flatten")."""
    check_functions(phi=phi)
    choice(readout, ("gap", "flatten"), "readout")
    choice(pool, ("max", "mean", None), "pool")
    variances = zip(per_layer(var_w, depth, "var_w"), per_layer(var_b, depth, "var_b"), strict=True)
    convolutions = [
        Conv2d(kernel, stride, dilation, padding, var_w=w, var_b=b, name=str(layer))
        for layer, (w, b) in enumerate(variances, 1)
    ]
    shrink = {"max": max_pool, "mean": mean_pool, None: lambda x: x}[pool]
    v = Matrix(var_v, rows=1, name="v")

    @network
    def cnn(image):
        check_input(image, "H", "W", "c")
        x = phi(convolutions[0](image))
        for convolution in convolutions[1:]:
            x = phi(convolution(shrink(x)))
        return v @ (global_mean_pool(x) if readout == "gap" else flatten(x))

    return cnn
