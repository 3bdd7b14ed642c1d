"""Transformer (Program "Transformer")."""

from __future__ import annotations

from functools import partial

from netsor.build import Attention, Matrix, Network, layernorm, relu
from netsor.build.layers.dense import choice
from netsor.build.layers.recurrent import Activation, check_functions
from netsor.zoo.per_layer import Var, biases, check_input, matrices, per_layer


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
    phi: Activation = relu,
) -> Network:
    """Alternate self-attention and a two-layer perceptron, with layernorm.  (T, m) -> T scalars.

    Each layer computes, from k = U x,

        h_i = layernorm(k_i + attention_i(k)),
        x_i = layernorm(W2 phi(W1 h_i + b1) + b2 + skip_i).

    Parameters
    ----------
    depth, phi, var_v
        As for `mlp`, where a layer is as above.
    heads, causal, tied
        As for `ns.Attention`.
    skip
        "paper": skip_i = W1 h_i. "identity": skip_i = h_i.
    var_u, var_w, var_b
        Variances of the attention's matrices, of W1 and W2, and of b1 and b2: one number, or one per layer.
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
    return Network(partial(_transformer, attend, W1, W2, b1, b2, v, phi, skip), "transformer")


def _transformer(attend, W1, W2, b1, b2, v, phi, skip, tokens):
    check_input(tokens, "T", "m")
    x = tokens
    for attend_l, W1_l, W2_l, b1_l, b2_l in zip(attend, W1, W2, b1, b2, strict=True):
        h = layernorm(attend_l(x))  # the layer's own skip connection adds k
        y = W1_l @ h
        x = layernorm(W2_l @ phi(y + b1_l) + b2_l + (y if skip == "paper" else h))
    return v @ x
