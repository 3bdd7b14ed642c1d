"""Transformer (Program "Transformer")."""

from __future__ import annotations

from netsor.build import Attention, Matrix, Network, layernorm, network, relu
from netsor.zoo.per_layer import Var, biases, check_functions, check_input, choice, matrices, per_layer

__all__ = ["transformer"]


def transformer(
    depth: int = 1,
    heads: int = 1,
    causal: bool = True,
    tied: bool = True,
    skip: str = "paper",
    var_u: Var = 1.0,
    var_w: Var = 1.0,
    var_b: Var = 1.0,
    var_v: float = 1.0,
    phi=relu,
) -> Network:
    """(T, m) -> T scalars. Each layer, with k = U x (one projection for keys, queries and values if tied):

    h_i = layernorm(k_i + attention_i(k)),
    x_i = layernorm(W2 phi(W1 h_i + b1) + b2 + skip), skip = W1 h_i ("paper") or h_i ("identity").
    """
    check_functions(phi=phi)
    choice(skip, ("paper", "identity"), "skip")
    attend = [
        Attention(heads, causal=causal, tied=tied, skip=True, var_u=u, var_o=u, name=str(layer))
        for layer, u in enumerate(per_layer(var_u, depth, "var_u"), 1)
    ]
    W1, W2 = matrices(var_w, depth, "W1_"), matrices(var_w, depth, "W2_")
    b1, b2 = biases(var_b, depth, "b1_"), biases(var_b, depth, "b2_")
    v = Matrix(var_v, rows=1, name="v")

    @network
    def transformer(tokens):
        check_input(tokens, "T", "m")
        x = tokens
        for layer in range(depth):
            h = layernorm(attend[layer](x))
            y = W1[layer] @ h
            base = y if skip == "paper" else h
            x = layernorm(W2[layer] @ phi(y + b1[layer]) + b2[layer] + base)
        return v @ x

    return transformer
