"""Functions for networks: index operations, moments, and users' nonlinearities."""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from netsor.arguments import a_type, is_integer
from netsor.build.graph_nodes import Average, Flat, Node, apply
from netsor.build.readouts import Outputs, Readout
from netsor.build.source_lines import fail
from netsor.build.trace import current_trace, numbers
from netsor.build.user_functions import probe
from netsor.errors import DataError, FunctionError
from netsor.lang import index_maps as maps
from netsor.lang.functions import MIXINGS, mul
from netsor.lang.ops import Function, Mixing

__all__ = ["concat", "contract", "dot", "flatten", "mean", "nonlin", "pad", "reshape", "softmax", "stack"]

# Index axes


def as_node(x: object) -> Node:
    """Convert a value to a node, for functions that act on index axes."""
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
    """Join vectors or blocks along a new index axis.

    Parameters
    ----------
    items
        Values of one index shape, or outputs: a network may return a stack of outputs.
    axis
        The position of the new axis.

    Returns
    -------
    Node or Outputs
        A block with the new index axis, or the outputs in order.
    """
    members = _items(items, "stack")
    if any(isinstance(item, Readout) for item in members):
        if not all(isinstance(item, Readout) for item in members):
            raise fail(
                "outputs are stacked with vectors", "Stack outputs with outputs, vectors with vectors."
            )
        if axis != 0:
            raise fail(
                f"outputs are stacked along axis={axis!r}",
                "Outputs are returned one after the other, axis=0.",
            )
        return Outputs(members)
    return apply(maps.stack, *map(as_node, members), axis=_axis(axis))


def concat(items: Sequence[Any], axis: int | str = 0, shares: Sequence[float] | None = None) -> Any:
    """Join blocks along an existing index axis, or along the channels.

    The channels are the width. Only matrices and readouts read joined channels, and their fan-in counts all
    of them: `W @ concat([a, b], axis="width")` is `W1 @ a + W2 @ b`, which share the variance.

    Parameters
    ----------
    items
        Blocks whose index shapes are equal except along `axis`.
    axis
        An index axis, or "width" for the channels.
    shares
        For the channels: relative numbers of channels of the blocks, by default equal.

    Returns
    -------
    Node or Flat
        The block; for joined channels, a value that only a Matrix reads.

    Examples
    --------
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
    """Join blocks as features of one layer; a share p scales a block by sqrt(p / mean p)."""
    if any(node.kind not in ("G", "H") for node in nodes):
        raise fail("the channels of data are joined with a width", "Multiply data by a Matrix first.")
    if shares is not None:
        parts = np.asarray(shares, float)
        if parts.shape != (len(nodes),) or not (parts > 0).all() or not np.isfinite(parts).all():
            raise fail(f"shares={shares!r:.60}", "Give a positive number for each of the joined blocks.")
        scales = np.sqrt(parts / parts.mean())
        nodes = [apply(mul, float(scale), node) for scale, node in zip(scales, nodes, strict=True)]
    return Flat(apply(maps.stack, *nodes, axis=-1), 1)


def pad(x: object, widths: Any) -> Node:
    """Add zeros around the last index axes; for data, the axes before the channels.

    Parameters
    ----------
    x
        Data, or a block.
    widths
        A pair (before, after) for each of these axes.

    Returns
    -------
    Node
        The larger block.
    """
    node = as_node(x)
    try:
        pairs = [(operator.index(before), operator.index(after)) for before, after in widths]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or any(before < 0 or after < 0 for before, after in pairs):
        raise fail(
            f"widths={widths!r}",
            "Give a pair of integers >= 0 (before, after) for each of the last index axes: ((1, 1), (1, 1)).",
        )
    space, first = node.space, len(node.positions) - len(pairs)
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


def _items(items: object, name: str) -> list[Any]:
    """Return the members of a non-empty list."""
    members = list(items) if isinstance(items, list | tuple | Node | np.ndarray | Iterator) else []
    if not members:
        what = "nothing" if isinstance(items, list | tuple | Iterator) else f"{a_type(items)}"
        raise fail(
            f"ns.{name} of {what}",
            f"A block has at least one member: give a list of vectors or blocks, ns.{name}([h1, h2]).",
        )
    return members


def _axis(axis: object) -> int:
    """Check that an axis is an integer."""
    if is_integer(axis):
        return int(axis)
    raise fail(f"axis={axis!r}", "An index axis is an integer, counted from 0.")


def reshape(x: object, shape: tuple[int, ...]) -> Node:
    """Give the same vectors another index shape.

    Parameters
    ----------
    x
        Data, or a block.
    shape
        The new index shape, with at most one -1, which is inferred.
    """
    return as_node(x).reshape(shape)


def sum(x: object, axis: int | tuple[int, ...] | None = None) -> Node:
    """Sum over index axes.

    Parameters
    ----------
    x
        Data, or a block.
    axis
        One or several index axes; None for all.
    """
    return as_node(x).sum(axis)


def max(x: object, axis: int | tuple[int, ...] | None = None) -> Node:
    """Take the maximum over index axes, coordinate by coordinate; arguments as for `sum`."""
    return as_node(x).over(MIXINGS["max"], axis)


def min(x: object, axis: int | tuple[int, ...] | None = None) -> Node:
    """Take the minimum over index axes, coordinate by coordinate; arguments as for `sum`."""
    return as_node(x).over(MIXINGS["min"], axis)


def contract(matrix: object, x: object) -> Node:
    """Compute `sum_j matrix[i, j] x[j]` over the last index axis.

    Parameters
    ----------
    matrix
        Numbers or C-vars (..., i, j), such as attention weights.
    x
        A block of index shape (..., j).

    Returns
    -------
    Node
        A block of index shape (..., i).
    """
    if isinstance(matrix, Node) and matrix.kind in ("G", "H"):
        raise fail(
            "the matrix of a contraction holds vectors",
            "ns.contract(a, h) sums members of a block with weights: numbers or C-vars. The product of two "
            "vectors is `h * k`, its average over the width `ns.dot(h, k)`.",
        )
    return apply(maps.contract, matrix, as_node(x))


def flatten(x: object, dims: int | None = None) -> Flat:
    """Read the members of a block as features of one layer.

    `W @ flatten(h)` has one matrix per member, and its fan-in counts them.

    Parameters
    ----------
    x
        Data, or a block.
    dims
        Number of last index axes that are features, by default all; the others are batch axes.

    Returns
    -------
    Flat
        A value that only a Matrix reads.
    """
    node = as_node(x)
    rank = len(node.positions)
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


def mean(x: object, axis: int | tuple[int, ...] | None = None) -> Node:
    """Average over the width (a Moment), or over index axes.

    Parameters
    ----------
    x
        A vector or a block.
    axis
        Index axes over which to average, instead of the width.

    Returns
    -------
    Node
        A C-var: the average of each vector over its width. With `axis`, a block.
    """
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


def dot(x: object, y: object) -> Node:
    """Average x*y over the width (a Moment), as in the attention logits `dot(q[:, None], k[None, :])`.

    Parameters
    ----------
    x, y
        Vectors or blocks of one width, with index shapes that broadcast.

    Returns
    -------
    Node
        C-vars of the common index shape.
    """
    return mean(as_node(x) * as_node(y))


def softmax(x: object, axis: int = -1, mask: object = None) -> Node:
    """Apply softmax to C-vars along an index axis.

    Parameters
    ----------
    x
        C-vars, such as the logits of attention.
    axis
        The index axis of the members.
    mask
        Zeros and ones, an array or data, with at least one 1 along the axis. Members with 0 get weight 0.

    Returns
    -------
    Node
        Weights of the same index shape, with sums 1 along the axis.
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


def check_mask(mask: object, node: Node, axis: int = -1) -> Any:
    """Check a mask of zeros and ones: it must broadcast to a node and have a 1 along the axis everywhere."""
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
    *args: object,
    params: Sequence[Any] = (),
    axes: int | tuple[int, ...] | None = None,
    name: str | None = None,
    derivative: object = None,
) -> Node:
    """Apply a user's coordinatewise function `fn(*arrays, *params)`, which takes arrays of equal shape.

    Parameters
    ----------
    fn
        A function of NumPy arrays.
    *args
        Vectors of one width, or C-vars.
    params
        C-vars or numbers on which the function depends (Nonlin+).
    axes
        Index axes that the function mixes: it then maps an array (members, ...) to (members, ...) or (...).
    name
        The name of the function in the text of the program.
    derivative
        For tangent kernels, in place of JAX or finite differences: a function of the same arguments, or a
        tuple with one per vector; with `axes`, a function of (members, directions).

    Raises
    ------
    FunctionError
        If the function does not act coordinatewise, fails, or does not return real numbers.

    Examples
    --------
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
    _check_nonlin(fn, nodes, params, axes, name)
    derivatives: Any = tuple(derivative) if isinstance(derivative, tuple | list) else (derivative,)
    if derivative is None:
        derivatives = ()
    elif len(derivatives) != len(nodes) or not all(map(callable, derivatives)):
        raise fail(
            f"derivative={derivative!r:.60}",
            f"Give a function, or a tuple of functions, one for each of the {len(nodes)} vectors.",
            FunctionError,
        )
    takes = (len(nodes), len(params), 0) if axes is None else (0, 0, 1)
    text = name or getattr(fn, "__name__", "fn")
    if name is None and (not isinstance(text, str) or not text.isidentifier() or keyword.iskeyword(text)):
        text = "fn"
    label = text if _NAME.fullmatch(text) else "fn"
    function, label = nodes[0].trace.user_function(fn, derivatives, takes, label)
    removes_axis = probe(function, text)
    if axes is not None:
        mixing = Mixing(label, function, removes_axis, user=True)
        return nodes[0].over(mixing, axes, "nonlin")
    op = Function(label, function, len(nodes) + len(params), len(params), user=True)
    return apply(op, *nodes, *params)


def _check_nonlin(fn: object, nodes: list[Node], params: object, axes: object, name: object) -> None:
    """Check the arguments of `nonlin`."""
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
    if axes is not None and (len(nodes) != 1 or params):
        raise fail(
            "a function that mixes index axes takes one block and no parameters",
            "Join the blocks first, with ns.stack or ns.concat.",
            FunctionError,
        )


_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
