"""Attention: logits are Moments q.k/n, their softmax are C-vars, and the values are summed with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsor.build.functions import as_node, contract, dot, softmax
from netsor.build.layers.dense import flag, label, number, scaled
from netsor.build.nodes import Node, fail
from netsor.build.parameters import Matrix
from netsor.build.trace import numbers

__all__ = ["Attention", "attention"]


def attention(
    q: Node, k: Node, v: Node, *, causal: bool = False, mask: Any = None, scale: str | float = "1/n"
) -> Node:
    """`sum_j softmax_j(q_i . k_j / n) v_j` over the last index axis; further axes (heads) run along.

    causal  position i sees positions j <= i only
    mask    array (queries, keys) of zeros and ones: which pairs count
    scale   "1/n", or a number that multiplies q.k/n
    """
    q, k, v = as_node(q), as_node(k), as_node(v)
    if isinstance(scale, str) and scale != "1/n":
        raise fail(
            f"attention logits are scaled by {scale!r}",
            "Rule Moment: q.k/n converges to a number, a C-var. q.k/sqrt(n) diverges if keys and queries are "
            'correlated (tied), and stays random if they are not. Use scale="1/n", or a number: scale=2.0 '
            "stands for 2/n.",
        )
    if not q.index or not k.index:
        raise fail(
            "attention over a single vector",
            "Attention runs over the positions of a sequence: data of shape (length, channels), or a block "
            "with at least one index axis.",
        )
    logits = dot(q[..., :, None], k[..., None, :])
    if not isinstance(scale, str):
        logits = number(scale, "scale") * logits if scale != 0 else logits - logits
    if flag(causal, "causal"):
        triangle = np.tri(q.index[-1], k.index[-1])
        if mask is not None and not isinstance(mask, Node):
            mask = numbers(mask, "the mask")
        mask = triangle if mask is None else mask * triangle
    return contract(softmax(logits, mask=mask), v)


class Attention:
    """Attention over a sequence (T, m) of data or a block of index shape (T,), with `heads` heads.

    tied    keys, queries and values are one projection, as in the paper
    heads   several heads have projections of their own and are joined by output matrices whose
            fan-in counts the heads
    The skip connection of the paper, value + attention, is `skip=True`.
    """

    def __init__(
        self,
        heads: int = 1,
        *,
        causal: bool = False,
        tied: bool = False,
        skip: bool = False,
        var_u: float = 1.0,
        var_o: float = 1.0,
        scale: str | float = "1/n",
        name: str = "",
    ) -> None:
        if type(heads) is not int or not 1 <= heads <= 10_000:
            raise fail(f"heads={heads!r:.60}", "The number of heads is an integer from 1 to 10,000.")
        self.heads, self.scale = heads, scale
        self.causal, self.skip, tied = flag(causal, "causal"), flag(skip, "skip"), flag(tied, "tied")
        index = (heads,) if heads > 1 else ()
        labels = ("U",) if tied else ("Uq", "Uk", "Uv")
        made = [Matrix(var_u, index=index, name=label(part, name)) for part in labels]
        self.Q, self.K, self.V = made * 3 if tied else made
        var_o = scaled(var_o, heads, "var_o")
        self.O = Matrix(var_o, index=index, name=label("O", name)) if heads > 1 else None

    def __call__(self, x: Any, mask: Any = None) -> Node:
        v = self.V @ x
        q, k = (v, v) if self.Q is self.V else (self.Q @ x, self.K @ x)
        out = attention(q, k, v, causal=self.causal, mask=mask, scale=self.scale)
        if self.skip:
            out = v + out
        return out if self.O is None else self.O.times(out, aligned=1).sum(axis=0)
