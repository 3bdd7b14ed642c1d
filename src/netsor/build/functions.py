"""Functions that networks are written with: index operations, moments, the user's own nonlinearities."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from netsor.build.nodes import Average, Expression, Flat, Node, Readout, apply, fail
from netsor.build.trace import current_trace
from netsor.errors import FunctionError
from netsor.lang import index_maps as maps
from netsor.lang.functions import MIXINGS, named
from netsor.lang.ops import Function, Mixing

__all__ = [
    "concat",
    "contract",
    "dot",
    "flatten",
    "max",
    "mean",
    "min",
    "nonlin",
    "reshape",
    "softmax",
    "stack",
    "sum",
]


# Index axes


def _node(x: Any) -> Node:
    """A value as a node, for functions that act on index axes."""
    if isinstance(x, Readout):
        raise fail(
            "an output is used further",
            "Rule Output: v @ h is the end of the program, and outputs can only be added to outputs. Apply "
            "the function to h; several outputs are returned as a tuple, or as v @ ns.stack([h1, h2]).",
        )
    lifted = current_trace("a function of netsor").lift(x)
    if not isinstance(lifted, Node):
        raise fail(
            f"the number {lifted:g} stands where a vector or a block is needed",
            "Functions on index axes and averages over the width act on traced values `h`.",
        )
    return lifted


def stack(items: Sequence[Any], axis: int = 0) -> Node:
    """Several vectors as one block, along a new index axis.

    A stack of outputs is what the network returns for each of them.
    """
    if len(items) == 0:
        raise fail("an empty stack", "A block has at least one member: give at least one vector.")
    return apply(maps.stack, *map(_node, items), axis=axis)


def concat(items: Sequence[Any], axis: int = 0) -> Node:
    """Blocks joined along an index axis that they have."""
    if len(items) == 0:
        raise fail("nothing is joined", "A block has at least one member: give at least one block.")
    return apply(maps.concat, *map(_node, items), axis=axis)


def reshape(x: Any, shape: tuple[int, ...]) -> Node:
    """The same vectors under another index shape."""
    return _node(x).reshape(shape)


def sum(x: Any, axis: int | tuple[int, ...] | None = None) -> Node:
    """Sum over index axes."""
    return _node(x).sum(axis)


def max(x: Any, axis: int | tuple[int, ...] | None = None) -> Node:
    """Maximum over index axes, coordinate by coordinate."""
    return apply(MIXINGS["max"], _node(x), axis=_every(axis, _node(x)))


def min(x: Any, axis: int | tuple[int, ...] | None = None) -> Node:
    """Minimum over index axes, coordinate by coordinate."""
    return apply(MIXINGS["min"], _node(x), axis=_every(axis, _node(x)))


def _every(axis: Any, x: Node) -> Any:
    if axis is None:
        return tuple(range(len(x.index)))
    return tuple(axis) if isinstance(axis, list | tuple) else (int(axis),)


def contract(matrix: Any, x: Any) -> Node:
    """`sum_j matrix[i, j] x[j]` over the last index axis, for a matrix of numbers or of C-vars."""
    if isinstance(matrix, Node) and matrix.kind in ("G", "H"):
        raise fail(
            "the matrix of a contraction holds vectors",
            "ns.contract(a, h) sums members of a block with weights: numbers or C-vars. The product of two "
            "vectors is `h * k`, its average over the width `ns.dot(h, k)`.",
        )
    return apply(maps.contract, matrix, _node(x))


def flatten(x: Any) -> Flat:
    """All members of a block as features of one layer: `W @ flatten(h)` has one matrix per member,
    and its fan-in counts them."""
    return Flat(_node(x))


# Scalars


def mean(x: Any, axis: int | tuple[int, ...] | None = None) -> Node:
    """`mean(h)`: the average over the width, a Moment (C-var). `mean(h, axis=...)`: over index axes."""
    node = _node(x)
    if axis is not None:
        return node.mean(axis)
    if node.kind not in ("G", "H"):
        raise fail(
            f"the average over the width of {'data' if node.kind == 'K' else 'a C-var'}",
            "Rule Moment: ns.mean(h) averages a vector over its width, and this has none. Over index axes "
            "write ns.mean(x, axis=0).",
        )
    return Average(node.trace, "C", node.index, None, node)


def dot(x: Any, y: Any) -> Node:
    """The average of x*y over the width, a Moment: `dot(q[:, None], k[None, :])` are attention logits."""
    return mean(_node(x) * _node(y))


def softmax(x: Any, axis: int = -1, mask: Any = None) -> Node:
    """Softmax of C-vars along an index axis; members where `mask` is 0 get weight 0."""
    node = _node(x)
    if node.kind not in ("C", "K"):
        raise fail(
            "softmax of vectors",
            "ns.softmax makes attention weights, which are functions of C-vars: take `ns.dot(q, k)` first. A "
            "softmax over members of a block, coordinate by coordinate, is `ns.nonlin(fn, h, axes=...)`; one "
            "over the width is not coordinatewise.",
        )
    extra = () if mask is None else (np.asarray(mask, float),)
    return apply(MIXINGS["softmax"], node, *extra, axis=axis)


# The user's own functions


def nonlin(
    fn: Callable[..., Any],
    *args: Any,
    params: Sequence[Any] = (),
    axes: int | tuple[int, ...] | None = None,
    name: str | None = None,
) -> Node:
    """A coordinatewise function of your own: `fn(*arrays, *params)` on arrays of equal shape.

    args    vectors of one width (or C-vars)
    params  C-vars or numbers that the function depends on (Nonlin+)
    axes    index axes that the function mixes: it then takes one array whose first axis runs over the
            members, and returns an array with the same first axis or without it
    name    what the function is called in the program's text

    >>> import numpy as np, netsor as ns
    >>> U, v = ns.Matrix(), ns.Matrix(rows=1)
    >>> def swish(x, beta):
    ...     return x / (1 + np.exp(-beta * x))
    >>> @ns.network
    ... def net(x):
    ...     h = U @ x
    ...     return v @ ns.nonlin(swish, h, params=[ns.dot(h, h)])
    >>> print(ns.program(net, [1.0, 2.0]).show().splitlines()[-2])
    a1 := swish(Ux; c1) :: H(n)
    """
    nodes = [_node(a) for a in args]
    trace = nodes[0].trace if nodes else current_trace("nonlin")
    if not callable(fn) or not nodes:
        what = "no vector" if callable(fn) else f"{fn!r}, which is no function"
        raise fail(f"ns.nonlin is given {what}", "It is called as ns.nonlin(fn, h).", FunctionError)
    given = name or _label(fn)
    label = trace.function_name(fn, given if _NAME.fullmatch(given) else "fn", set(named()))
    if axes is not None:
        if len(nodes) != 1 or params:
            raise fail(
                "a function that mixes index axes takes one block and no parameters",
                "Join the blocks first, with ns.stack or ns.concat.",
                FunctionError,
            )
        op: Function | Mixing = Mixing(label, fn, _probe_mixing(fn, given), user=True)
        return apply(op, nodes[0], axis=_every(axes, nodes[0]))
    _probe(fn, given, len(nodes), len(params))
    op = Function(label, fn, len(nodes) + len(params), len(params), user=True)
    out = apply(op, *nodes, *params)
    assert isinstance(out, Expression)
    return out


_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def _label(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", "fn")
    return name if name.isidentifier() and not keyword.iskeyword(name) else "fn"


_REMEDY = (
    "Rule Nonlin: a function acts on each coordinate by itself, fn(x)[i] depends on x[i] alone, and the "
    "shape stays. An average over the width is a Moment, `ns.mean(h)`, passed as `params=`."
)
_MIXING = (
    "Rule Nonlin: with axes= a function takes one array whose first axis runs over the members, and returns "
    "one with the same first axis or without it; it acts on each coordinate (the other axis) by itself."
)


@lru_cache(maxsize=1024)
def _probe(fn: Callable[..., Any], label: str, vectors: int, params: int) -> None:
    """Call the function on random numbers: it must act coordinatewise and keep the shape."""
    rng = np.random.default_rng(0)
    xs, cs = list(rng.standard_normal((vectors, 6))), list(rng.random(params) + 0.5)
    whole = _call(fn, label, *xs, *cs)
    if whole.shape != (6,):
        raise fail(f"`{label}` turns shape (6,) into {whole.shape}", _REMEDY, FunctionError)
    order = rng.permutation(6)[:4]
    part = _call(fn, label, *(x[order] for x in xs), *cs)
    if part.shape != (4,) or not np.allclose(part, whole[order], rtol=1e-9, atol=1e-12, equal_nan=True):
        raise fail(f"`{label}` does not act coordinatewise", _REMEDY, FunctionError)


@lru_cache(maxsize=1024)
def _probe_mixing(fn: Callable[..., Any], label: str) -> bool:
    """The same for a function of the members of a block; tells whether it removes their axis."""
    x = np.random.default_rng(0).standard_normal((3, 6))
    whole = _call(fn, label, x)
    if whole.shape not in ((3, 6), (6,)):
        raise fail(f"`{label}` turns shape (3, 6) into {whole.shape}", _MIXING, FunctionError)
    part = _call(fn, label, x[:, [4, 1]])
    same = part.shape == whole[..., [4, 1]].shape
    if not same or not np.allclose(part, whole[..., [4, 1]], rtol=1e-9, atol=1e-12, equal_nan=True):
        raise fail(f"`{label}` does not act coordinatewise", _MIXING, FunctionError)
    return whole.ndim == 1


def _call(fn: Callable[..., Any], label: str, *args: Any) -> np.ndarray:
    try:
        with np.errstate(all="ignore"):
            out = fn(*args)
            array = np.asarray(out)
    except Exception as error:
        count = "one argument" if len(args) == 1 else f"{len(args)} arguments"
        raise fail(
            f"`{label}` fails on arrays: {type(error).__name__}: {error}",
            f"It is called with {count}: arrays for the vectors, then a number for each parameter. {_REMEDY}",
            FunctionError,
        ) from error
    if array.dtype.kind not in "biuf":
        kind = f"an array of {array.dtype}" if isinstance(out, np.ndarray) else f"a {type(out).__name__}"
        raise fail(f"`{label}` returns {kind}, not real numbers", _REMEDY, FunctionError)
    return array
