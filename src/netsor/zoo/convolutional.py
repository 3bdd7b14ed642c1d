"""Convolutional networks, of images and of graphs."""

from __future__ import annotations

from functools import partial

import netsor.build as ns
from netsor.build import Matrix, Network, relu
from netsor.build.layers.dense import choice
from netsor.build.layers.recurrent import Activation, check_functions
from netsor.build.source_lines import fail
from netsor.errors import DataError
from netsor.zoo.per_layer import Var, check_input, per_layer


def cnn(
    depth: int = 2,
    kernel: int | tuple[int, int] = 3,
    phi: Activation = relu,
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

    The paper's Programs "2-Layer" and "L-layer Convolutional Network with Global Average Pooling".

    Parameters
    ----------
    depth, phi, var_w, var_b, var_v
        As for `mlp`, with filters for weights.
    kernel, padding, stride, dilation
        As for `ns.Conv2d`, for all convolutions.
    readout
        "gap": global average pooling. "flatten": a readout vector for each pixel.
    pool
        A 2 x 2 pooling between layers: "max", "mean" or None.
    """
    check_functions(phi=phi)
    choice(readout, ("gap", "flatten"), "readout")
    choice(pool, ("max", "mean", None), "pool")
    variances = zip(per_layer(var_w, depth, "var_w"), per_layer(var_b, depth, "var_b"), strict=True)
    convolutions = [
        ns.Conv2d(kernel, stride, dilation, padding, var_w=w, var_b=b, name=str(layer))
        for layer, (w, b) in enumerate(variances, 1)
    ]
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_cnn, convolutions, v, phi, readout, pool), "cnn")


def _cnn(convolutions, v, phi, readout, pool, image):
    check_input(image, "H", "W", "c")
    x = phi(convolutions[0](image))
    for convolution in convolutions[1:]:
        if pool is not None:
            x = ns.max_pool(x) if pool == "max" else ns.mean_pool(x)
        x = phi(convolution(x))
    return v @ (ns.global_mean_pool(x) if readout == "gap" else ns.flatten(x))


def graph_conv(
    depth: int = 1,
    phi: Activation = relu,
    readout: str = "node",
    var_w: Var = 1.0,
    var_b: Var = 1.0,
    var_v: float = 1.0,
) -> Network:
    """x_l = phi(A (W_l x_{l-1}) + b_l).  (features (V, m), adjacency A (V, V)) -> V scalars or one.

    The network uses A as it is. `ns.normalized_adjacency` computes the usual normalization.

    Parameters
    ----------
    depth, phi, var_w, var_b, var_v
        As for `mlp`.
    readout
        "node": one output per node. "mean": one output, of the mean over all nodes.
    """
    check_functions(phi=phi)
    choice(readout, ("node", "mean"), "readout")
    variances = zip(per_layer(var_w, depth, "var_w"), per_layer(var_b, depth, "var_b"), strict=True)
    layers = [ns.GraphConv(w, b, name=str(layer)) for layer, (w, b) in enumerate(variances, 1)]
    v = Matrix(var_v, rows=1, name="v")
    return Network(partial(_graph_conv, layers, v, phi, readout), "graph_conv")


def _graph_conv(layers, v, phi, readout, graph):
    if not isinstance(graph, tuple) or len(graph) != 2:
        raise fail("the input is not a graph", "Give a tuple (features, adjacency).", DataError)
    x, adjacency = graph
    check_input(x, "V", "m")
    check_input(adjacency, "V", "V")
    for layer in layers:
        x = phi(layer(x, adjacency))
    return v @ (x if readout == "node" else x.mean(axis=0))
