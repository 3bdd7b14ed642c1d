"""Graph convolutional network (the paper's paragraph "(Graph) Convolution")."""

from __future__ import annotations

from netsor.build import GraphConv, Matrix, Network, network, relu
from netsor.build.nodes import fail
from netsor.errors import DataError
from netsor.zoo.per_layer import Var, check_functions, check_input, choice, per_layer

__all__ = ["graph_conv"]


def graph_conv(
    depth: int = 1, phi=relu, readout: str = "node", var_w: Var = 1.0, var_b: Var = 1.0, var_v: float = 1.0
) -> Network:
    """(features (V, m), adjacency (V, V)) -> V scalars ("node") or one ("mean").

    x_l = phi(A (W_l x_{l-1}) + b_l) with the adjacency as given; `ns.normalized_adjacency` makes the
    usual one from a graph.
    """
    check_functions(phi=phi)
    choice(readout, ("node", "mean"), "readout")
    variances = zip(per_layer(var_w, depth, "var_w"), per_layer(var_b, depth, "var_b"), strict=True)
    layers = [GraphConv(w, b, name=str(layer)) for layer, (w, b) in enumerate(variances, 1)]
    v = Matrix(var_v, rows=1, name="v")

    @network
    def graph_conv(graph):
        if not isinstance(graph, tuple) or len(graph) != 2:
            raise fail("the input is not a graph", "Give a tuple (features, adjacency).", DataError)
        x, adjacency = graph
        check_input(x, "V", "m")
        check_input(adjacency, "V", "V")
        for layer in layers:
            x = phi(layer(x, adjacency))
        return v @ (x if readout == "node" else x.mean(axis=0))

    return graph_conv
