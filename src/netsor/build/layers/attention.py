"""Attention: logits are Moments q.k/n, their softmax are C-vars, and the values are summed with them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from netsor.build.array_functions import as_node, check_mask, contract, dot
from netsor.build.graph_nodes import Node, apply
from netsor.build.layers.dense import flag, label, number, scaled
from netsor.build.parameters import Matrix
from netsor.build.source_lines import fail
from netsor.build.trace import numbers
from netsor.lang.functions import MIXINGS, mul

Weights = str | Callable[[Any], Any]


def attention(
    q: Node,
    k: Node,
    v: Node,
    *,
    causal: bool = False,
    mask: object = None,
    scale: str | float = "1/n",
    weights: Weights = "softmax",
) -> Node:
    """Compute `sum_j softmax_j(q_i . k_j / n) v_j` over the last index axis.

    Leading axes, such as heads, are batch axes.

    Parameters
    ----------
    q, k, v
        Blocks of queries, keys and values: index shapes (..., queries), (..., keys), (..., keys).
    causal
        Whether position i sees positions j <= i only.
    mask
        Zeros and ones (queries, keys): which pairs count.
    scale
        "1/n", or a number that multiplies q.k/n.
    weights
        "softmax", "identity" (the logits themselves), or a function of the logits such as `ns.relu`.

    Returns
    -------
    Node
        A block of index shape (..., queries).
    """
    q, k, v = as_node(q), as_node(k), as_node(v)
    if isinstance(scale, str) and scale != "1/n":
        raise fail(
            f"attention logits are scaled by {scale!r}",
            "Rule Moment: q.k/n converges to a number, a C-var. q.k/sqrt(n) diverges if keys and queries are "
            'correlated (tied), and stays random if they are not. Use scale="1/n", or a number: scale=2.0 '
            "stands for 2/n. Infinitely many heads at 1/sqrt(n) are ns.Attention(heads=math.inf).",
        )
    if not q.index or not k.index:
        raise fail(
            "attention over a single vector",
            "Attention runs over the positions of a sequence: data of shape (length, channels), or a block "
            "with at least one index axis.",
        )
    logits: Any = dot(q[..., :, None], k[..., None, :])
    if not isinstance(scale, str):
        logits = number("scale", scale) * logits if scale != 0 else logits - logits
    return contract(_scores(_named(weights), logits, _seen(causal, mask, q, k)), v)


def _named(weights: object) -> Any:
    if callable(weights) or weights in ("softmax", "identity"):
        return weights
    raise fail(
        f"weights={weights!r:.60}", 'Choose "softmax", "identity", or a function of the logits: ns.relu.'
    )


def _seen(causal: bool, mask: object, q: Node, k: Node) -> Any:
    """The mask (queries, keys) of visible keys, or None for all."""
    if not flag("causal", causal):
        return mask
    triangle = np.tri(q.index[-1], k.index[-1])
    if mask is not None and not isinstance(mask, Node):
        mask = numbers(mask, "the mask")
    return triangle if mask is None else mask * triangle


def _scores(weights: Weights, logits: Node, mask: object) -> Any:
    """The weights (..., queries, keys) for logits; pairs outside of the mask have weight 0."""
    extra = () if mask is None else (check_mask(mask, logits),)
    if weights == "softmax":
        return apply(MIXINGS["softmax"], logits, *extra, axis=-1)
    scores = weights(logits) if callable(weights) else logits
    return scores * extra[0] if extra else scores


class Attention:
    """Attention over a sequence (T, m) of data, or a block of index shape (T,).

    Call it as `layer(x, mask, values)`. Queries and keys are projections of x, values of `values`, by default
    x. For example, `layer(h + code, values=h)` adds a positional code to queries and keys only.

    Parameters
    ----------
    heads
        The number of heads. Output matrices, whose fan-in counts the heads, combine several. math.inf: below.
    causal, scale, weights
        As for `attention`.
    tied
        True: keys, queries and values are one projection, as in the paper. "qk": keys and queries are.
    skip
        Whether to add the values: the skip connection of the paper.
    var_u, var_o
        Variances (times the fan-in) of the projections and of the output matrices.
    name
        A suffix of the matrices' names.

    Notes
    -----
    With infinitely many heads the logits are L = q.k/sqrt(n), which stay random (Hron et al. 2020): over the
    heads, L_ij is Gaussian with Cov(L_ij, L_i'j') = E[q_i q_i'] E[k_j k_j'], which is the law of the vector
    M @ (q_i * k_j). The kernel is var_o sum_jj' E[weight_ij weight_i'j'] E[v_j v_j'], exact for identity
    weights, and sampled for others.

    Examples
    --------
    >>> import math, numpy as np, netsor as ns
    >>> heads, v = ns.Attention(math.inf, weights="identity"), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ heads(x))
    >>> x = np.array([[1.0], [2.0]])  # E[x_i x_j] sum_jj' E[x_j x_j']^2 = x_i x_j (1 + 4 + 4 + 16)
    >>> ns.kernel(net)([x])
    array([[ 25.,  50.],
           [ 50., 100.]])
    """

    def __init__(
        self,
        heads: int | float = 1,
        *,
        causal: bool = False,
        tied: bool | str = False,
        skip: bool = False,
        var_u: float = 1.0,
        var_o: float = 1.0,
        scale: str | float = "1/n",
        weights: Weights = "softmax",
        name: str = "",
    ) -> None:
        if heads != inf and (type(heads) is not int or not 1 <= heads <= 10_000):
            raise fail(f"heads={heads!r:.60}", "The number of heads is from 1 to 10,000, or math.inf.")
        self.heads, self.scale, self.weights = heads, scale, _named(weights)
        self.causal, self.skip = flag("causal", causal), flag("skip", skip)
        tied = tied if isinstance(tied, str) and tied == "qk" else flag("tied", tied)
        if heads == inf and tied:
            raise fail(
                f"tied={tied!r} with infinitely many heads",
                "q.k/sqrt(n) diverges where keys and queries are correlated. Use tied=False.",
            )
        index = (int(heads),) if 1 < heads < inf else ()
        labels = {True: ("U",) * 3, False: ("Uq", "Uk", "Uv"), "qk": ("Uq", "Uq", "Uv")}[tied]
        matrices = {part: Matrix(var_u, index=index, name=label(part, name)) for part in labels}
        self.Q, self.K, self.V = (matrices[part] for part in labels)
        var_o = scaled(var_o, int(heads) if heads < inf else 1, "var_o")
        self.O = Matrix(var_o, index=index, name=label("O", name)) if heads > 1 else None
        self.M = Matrix(name=label("M", name), rate=0.0) if heads == inf else None

    def __call__(self, x: object, mask: object = None, values: object = None) -> Node:
        v = self.V @ (x if values is None else values)
        q = v if self.Q is self.V else self.Q @ x
        k = q if self.K is self.Q else self.K @ x
        if self.M is not None:
            out = self._many_heads(self.M, q, k, v, mask)
        else:
            out = attention(q, k, v, causal=self.causal, mask=mask, scale=self.scale, weights=self.weights)
        if self.skip:
            out = v + out
        if self.O is None:
            return out
        return self.O.times(out, aligned=1).sum(axis=0) if self.O.index else self.O @ out

    def _many_heads(self, M: Matrix, q: Node, k: Node, v: Node, mask: object) -> Node:
        """sum_j weight(L_ij) v_j, with L_ij = M (q_i k_j)."""
        mask = _seen(self.causal, mask, q, k)
        scale = 1.0 if isinstance(self.scale, str) else number("scale", self.scale)
        if self.weights == "identity":  # only E[L L'] counts, so q_i k_j may replace L_ij: q_i sum_j k_j v_j
            both: Any = k * v
            summed = both.sum(len(both.index) - 1)[..., None] if mask is None else contract(mask, both)
            return apply(mul, scale * q, summed)
        logits: Any = scale * (M @ (q[..., :, None] * k[..., None, :]))
        scores = _scores(self.weights, logits, mask)
        return (scores * v[..., None, :]).sum(len(scores.index) - 1)
