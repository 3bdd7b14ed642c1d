"""Graph convolutional network (the paper's paragraph "(Graph) Convolution")."""

from __future__ import annotations

from functools import partial

from netsor.build import GraphConv, Matrix, Network, relu
from netsor.build.layers.dense import choice
from netsor.build.layers.recurrent import check_functions
from netsor.build.source_lines import fail
from netsor.errors import DataError
from netsor.zoo.per_layer import Var, check_input, per_layer


def graph_conv(
    depth: int = 1, phi=relu, readout: str = "node", var_w: Var = 1.0, var_b: Var = 1.0, var_v: float = 1.0
) -> Network:
    """x_l = phi(A (W_l x_{l-1}) + b_l).  (features (V, m), adjacency A (V, V)) -> V scalars or one.

    The network uses A as it is. `ns.normalized_adjacency` computes the usual normalization.

    Parameters
    ----------
    depth, phi, var_w, var_b, var_v
        As for `mlp`.
    readout
        "node": one output per node. "mean": one output, of the mean over all nodes.

    Returns
    -------
    Network
    """
    check_functions(phi=phi)
    choice(readout, ("node", "mean"), "readout")
    variances = zip(per_layer(var_w, depth, "var_w"), per_layer(var_b, depth, "var_b"), strict=True)
    layers = [GraphConv(w, b, name=str(layer)) for layer, (w, b) in enumerate(variances, 1)]
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
