"""Functions that networks are written with: index operations, moments, the user's own nonlinearities."""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from netsor.arguments import a_type
from netsor.build.nodes import (
    Average,
    Expression,
    Flat,
    Node,
    Outputs,
    Readout,
    apply,
    fail,
    index_axes,
    outputs,
)
from netsor.build.probes import probe, probe_derivatives, probe_direction, probe_mixing
from netsor.build.trace import current_trace, numbers
from netsor.errors import DataError, FunctionError
from netsor.lang import index_maps as maps
from netsor.lang.functions import MIXINGS, mul, named
from netsor.lang.ops import Function, Mixing

__all__ = [
    "as_node",
    "check_mask",
    "concat",
    "contract",
    "dot",
    "flatten",
    "max",
    "mean",
    "min",
    "nonlin",
    "pad",
    "reshape",
    "softmax",
    "stack",
    "sum",
]


# Index axes


def as_node(x: Any) -> Node:
    """A value as a node, for functions that act on index axes."""
    if isinstance(x, Readout | Outputs):
        raise fail(
            "an output is used further",
            "Rule Output: v @ h is the end of the program; only linear combinations can be made of outputs. "
            "Apply the function to h; several outputs are returned as a tuple, or as ns.stack([...]).",
        )
    lifted = current_trace("a function of netsor").lift(x)
    if not isinstance(lifted, Node):
        raise fail(
            f"the number {lifted:g} stands where a vector or a block is needed",
            "Functions on index axes and averages over the width act on traced values `h`.",
        )
    return lifted


def stack(items: Sequence[Any], axis: int = 0) -> Any:
    """Several vectors as one block, along a new index axis.

    A stack of outputs is what the network returns for each of them.
    """
    members = _items(items, "stack")
    if any(isinstance(item, Readout) for item in members):
        return outputs(members, axis)
    return apply(maps.stack, *map(as_node, members), axis=_axis(axis))


def concat(items: Sequence[Any], axis: int | str = 0, shares: Sequence[float] | None = None) -> Any:
    """Blocks joined along an index axis that they have, or along the channels: `axis="width"`.

    Channels are the width, not an index axis. Joined, they are multiplied by matrices and read by readouts,
    whose fan-in counts all of them: `W @ concat([a, b], axis="width")` is `W1 @ a + W2 @ b` with the variance
    divided between the two, in equal parts or by their `shares` of the channels.

    >>> import netsor as ns
    >>> U, V, v = ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ ns.concat([U @ x, 2 * (V @ x)], axis="width"))
    >>> ns.kernel(net)([[1.0, 1.0]])  # (1 + 4) / 2
    array([[2.5]])
    """
    nodes = [as_node(item) for item in _items(items, "concat")]
    if axis == "width":
        return _joined(nodes, shares)
    if any(node.kind in ("G", "H") for node in nodes) and _axis(axis) < 0:
        rank = len(nodes[0].index)
        raise fail(
            f"vectors are joined along axis={axis}",
            "The last axis of (height, width, channels) is the width, which goes to infinity: channels are "
            'joined with axis="width". Index axes are counted from the front; here there '
            f"{'is' if rank == 1 else 'are'} {rank}.",
        )
    return apply(maps.concat, *nodes, axis=_axis(axis))


def _joined(nodes: list[Node], shares: Sequence[float] | None) -> Flat:
    """Blocks as features of one layer; a part of all channels counts by its share."""
    if any(node.kind not in ("G", "H") for node in nodes):
        raise fail("the channels of data are joined with a width", "Multiply data by a Matrix first.")
    if shares is not None:
        parts = np.asarray(shares, float)
        if parts.shape != (len(nodes),) or not (parts > 0).all() or not np.isfinite(parts).all():
            raise fail(f"shares={shares!r:.60}", "Give a positive number for each of the joined blocks.")
        scales = np.sqrt(parts / parts.mean())
        nodes = [apply(mul, float(scale), node) for scale, node in zip(scales, nodes, strict=True)]
    return Flat(apply(maps.stack, *nodes, axis=-1), 1)


def pad(x: Any, widths: Any) -> Node:
    """Zeros around the last index axes: `widths` has a pair (before, after) for each of them.

    The channels of data, their last axis, are not among them.
    """
    node = as_node(x)
    pairs, space = _pairs(widths), node.space
    first = len(node.index) - node.channels - len(pairs)
    if first < 0:
        raise fail(
            f"{len(pairs)} axes of a block of index shape {node.index} are padded",
            "Give a pair (before, after) for each of the last index axes: ns.pad(h, ((1, 1), (1, 1))).",
        )
    for axis, (before, after) in enumerate(pairs, first):
        if before or after:
            zero = apply(mul, 0.0, node[(*(slice(None),) * axis, slice(0, 1))])
            node = apply(maps.concat, *[zero] * before, node, *[zero] * after, axis=axis)
    node.space = space
    return node


def _pairs(widths: Any) -> list[tuple[int, int]]:
    """(before, after) for each axis: integers >= 0."""
    try:
        pairs = [(operator.index(before), operator.index(after)) for before, after in widths]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or any(before < 0 or after < 0 for before, after in pairs):
        raise fail(
            f"widths={widths!r}",
            "Give a pair of integers >= 0 (before, after) for each of the last index axes: ((1, 1), (1, 1)).",
        )
    return pairs


def _items(items: Any, name: str) -> list[Any]:
    """The members of a list, of which there is at least one."""
    members = list(items) if isinstance(items, list | tuple | Node | np.ndarray | Iterator) else []
    if not members:
        what = "nothing" if isinstance(items, list | tuple | Iterator) else f"{a_type(items)}"
        raise fail(
            f"ns.{name} of {what}",
            f"A block has at least one member: give a list of vectors or blocks, ns.{name}([h1, h2]).",
        )
    return members


def _axis(axis: Any) -> int:
    """One index axis."""
    if isinstance(axis, int | np.integer) and not isinstance(axis, bool):
        return int(axis)
    raise fail(f"axis={axis!r}", "An index axis is an integer, counted from 0.")


def reshape(x: Any, shape: tuple[int, ...]) -> Node:
    """The same vectors under another index shape."""
    return as_node(x).reshape(shape)


def sum(x: Any, axis: int | tuple[int, ...] | None = None) -> Node:
    """Sum over index axes."""
    return as_node(x).sum(axis)


def max(x: Any, axis: int | tuple[int, ...] | None = None) -> Node:
    """Maximum over index axes, coordinate by coordinate."""
    node = as_node(x)
    return apply(MIXINGS["max"], node, axis=index_axes(axis, node, "max"))


def min(x: Any, axis: int | tuple[int, ...] | None = None) -> Node:
    """Minimum over index axes, coordinate by coordinate."""
    node = as_node(x)
    return apply(MIXINGS["min"], node, axis=index_axes(axis, node, "min"))


def contract(matrix: Any, x: Any) -> Node:
    """`sum_j matrix[i, j] x[j]` over the last index axis, for a matrix of numbers or of C-vars."""
    if isinstance(matrix, Node) and matrix.kind in ("G", "H"):
        raise fail(
            "the matrix of a contraction holds vectors",
            "ns.contract(a, h) sums members of a block with weights: numbers or C-vars. The product of two "
            "vectors is `h * k`, its average over the width `ns.dot(h, k)`.",
        )
    return apply(maps.contract, matrix, as_node(x))


def flatten(x: Any, dims: int | None = None) -> Flat:
    """All members of a block as features of one layer: `W @ flatten(h)` has one matrix per member,
    and its fan-in counts them. With `dims`, those along the last `dims` index axes; others run along."""
    node = as_node(x)
    rank = len(node.index) - node.channels
    if dims is None and node.space is not None and rank > node.space:
        raise fail(
            f"a block of index shape {node.index} is flattened, of which {node.space} axes are space",
            f"Say how many of the last axes are features: ns.flatten(h, dims={node.space}) for each member "
            f"of a batch by itself, dims={rank} for all together.",
        )
    if dims is not None and not (type(dims) is int and 0 < dims <= rank):
        raise fail(f"dims={dims!r}", f"Give the number of last index axes that are features, 1 to {rank}.")
    return Flat(node, (rank if dims is None else dims) + node.channels)


# Scalars


def mean(x: Any, axis: int | tuple[int, ...] | None = None) -> Node:
    """`mean(h)`: the average over the width, a Moment (C-var). `mean(h, axis=...)`: over index axes."""
    node = as_node(x)
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
    return mean(as_node(x) * as_node(y))


def softmax(x: Any, axis: int = -1, mask: Any = None) -> Node:
    """Softmax of C-vars along an index axis; members where `mask` is 0 get weight 0.

    `mask` holds zeros and ones, at least one of them along the axis; data may be one, too.
    """
    node = as_node(x)
    if node.kind not in ("C", "K"):
        raise fail(
            "softmax of vectors",
            "ns.softmax makes attention weights, which are functions of C-vars: take `ns.dot(q, k)` first. A "
            "softmax over members of a block, coordinate by coordinate, is `ns.nonlin(fn, h, axes=...)`; one "
            "over the width is not coordinatewise.",
        )
    extra = () if mask is None else (check_mask(mask, node, _axis(axis)),)
    return apply(MIXINGS["softmax"], node, *extra, axis=_axis(axis))


def check_mask(mask: Any, node: Node, axis: int = -1) -> Any:
    """An array of zeros and ones that leaves something along the axis."""
    if isinstance(mask, Node):
        if mask.kind != "K":
            raise fail("a mask that is computed", "A mask is data or an array of zeros and ones.")
        node.trace.require(mask, lambda values: _check_mask(values, node.index, axis))
        return mask
    values = numbers(mask, "the mask")
    _check_mask(values, node.index, axis)
    return values


def _check_mask(values: np.ndarray, index: tuple[int, ...], axis: int) -> None:
    if not np.isin(values, (0.0, 1.0)).all():
        raise fail(
            f"a mask with the entry {values[~np.isin(values, (0.0, 1.0))][0]:g}",
            "A mask holds zeros and ones (or False and True): which pairs count. Weights are added to the "
            "logits as their logarithms.",
            DataError,
        )
    try:
        whole = np.broadcast_to(values, index)
    except ValueError:
        raise fail(
            f"a mask of shape {values.shape} for logits of shape {index}",
            "A mask broadcasts against the logits: its last axes are (queries, keys).",
            DataError,
        ) from None
    if index and not (whole > 0).any(axis=axis).all():
        raise fail(
            "a mask leaves no member for some position",
            "Softmax needs at least one member that counts along its axis.",
            DataError,
        )


# The user's own functions


def nonlin(
    fn: Callable[..., Any],
    *args: Any,
    params: Sequence[Any] = (),
    axes: int | tuple[int, ...] | None = None,
    name: str | None = None,
    derivative: Any = None,
) -> Node:
    """A coordinatewise function of your own: `fn(*arrays, *params)` on arrays of equal shape.

    args    vectors of one width (or C-vars)
    params  C-vars or numbers that the function depends on (Nonlin+)
    axes    index axes that the function mixes: it then takes one array whose first axis runs over the
            members, and returns an array with the same first axis or without it
    name    what the function is called in the program's text
    derivative  for tangent kernels: a function of the same arguments, or a tuple with one for each vector;
            with axes, the derivative along a direction, a function of (members, directions). Without it
            JAX or differences find it

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
    nodes = [as_node(a) for a in args]
    trace = nodes[0].trace if nodes else current_trace("nonlin")
    if not callable(fn) or not nodes:
        what = "no vector" if callable(fn) else f"{fn!r}, which is no function"
        raise fail(f"ns.nonlin is given {what}", "It is called as ns.nonlin(fn, h).", FunctionError)
    if isinstance(params, str) or not isinstance(params, Sequence):
        raise fail(
            f"params={params!r}", "Give a list of C-vars or numbers: params=[ns.mean(h)].", FunctionError
        )
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise fail(f"name={name!r}", "A name has letters, digits and `_` only, as in `swish`.", FunctionError)
    if hasattr(fn, "__netsor_apply__"):
        raise fail(f"ns.nonlin is given {fn!r}", "It takes a function of arrays: ns.nonlin(np.tanh, h).")
    takes = (len(nodes), len(params), 0) if axes is None else (0, 0, 1)
    own, given = trace.user_function(fn, _derivatives(derivative, len(nodes)), takes), name or _label(fn)
    label = trace.function_name(own, given if _NAME.fullmatch(given) else "fn", set(named()))
    if axes is not None:
        if len(nodes) != 1 or params:
            raise fail(
                "a function that mixes index axes takes one block and no parameters",
                "Join the blocks first, with ns.stack or ns.concat.",
                FunctionError,
            )
        probe_direction(own, given)
        op: Function | Mixing = Mixing(label, own, probe_mixing(own, given), user=True)
        return apply(op, nodes[0], axis=index_axes(axes, nodes[0], "nonlin"))
    probe(own, given, len(nodes), len(params))
    probe_derivatives(own, given, len(nodes), len(params))
    op = Function(label, own, len(nodes) + len(params), len(params), user=True)
    out = apply(op, *nodes, *params)
    assert isinstance(out, Expression)
    return out


def _derivatives(given: Any, count: int) -> tuple[Callable[..., Any], ...]:
    """The derivatives of a user's function: none, or one for each of its vectors."""
    if given is None:
        return ()
    functions = given if isinstance(given, tuple | list) else (given,)
    if len(functions) != count or not all(map(callable, functions)):
        raise fail(
            f"derivative={given!r:.60}",
            f"Give a function, or a tuple of functions, one for each of the {count} vectors.",
            FunctionError,
        )
    return tuple(functions)


_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def _label(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", "fn")
    return name if isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) else "fn"
