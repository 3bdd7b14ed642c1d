"""Convolutional network (Programs "2-Layer", "L-layer Convolutional Network with Global Average Pooling")."""

from __future__ import annotations

from functools import partial

from netsor.build import (
    Conv2d,
    Matrix,
    Network,
    flatten,
    global_mean_pool,
    max_pool,
    mean_pool,
    relu,
)
from netsor.build.layers.dense import choice
from netsor.build.layers.recurrent import check_functions
from netsor.zoo.per_layer import Var, check_input, per_layer


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
    """x_l = phi(W_l * x_{l-1} + b_l) with convolutions *, output v.readout(x_depth).  (H, W, c) -> 1 scalar.

    Parameters
    ----------
    depth
        Number of convolutional layers.
    kernel
        Height and width of the filters; one number for squares.
    phi
        The nonlinearity.
    padding
        "same", "valid" or a number of pixels.
    readout
        "gap": global average pooling. "flatten": a readout vector for each pixel.
    pool
        A 2 x 2 pooling between layers: "max", "mean" or None.
    var_w, var_b
        Variances of filters (times the fan-in) and biases: one number, or one per layer.
    var_v
        n Var(v_i) of the readout.
    stride, dilation
        Of all convolutions.

    Returns
    -------
    Network
    """
    check_functions(phi=phi)
    choice(readout, ("gap", "flatten"), "readout")
    choice(pool, ("max", "mean", None), "pool")
    variances = zip(per_layer(var_w, depth, "var_w"), per_layer(var_b, depth, "var_b"), strict=True)
    convolutions = [
        Conv2d(kernel, stride, dilation, padding, var_w=w, var_b=b, name=str(layer))
        for layer, (w, b) in enumerate(variances, 1)
    ]
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_cnn, convolutions, v, phi, readout, pool), "cnn")


def _cnn(convolutions, v, phi, readout, pool, image):
    check_input(image, "H", "W", "c")
    x = phi(convolutions[0](image))
    for convolution in convolutions[1:]:
        if pool is not None:
            x = max_pool(x) if pool == "max" else mean_pool(x)
        x = phi(convolution(x))
    return v @ (global_mean_pool(x) if readout == "gap" else flatten(x))
