"""What a network computes with while it is traced: nodes of a graph that becomes a program.

A `Node` behaves like an array of vectors (G or H) or of scalars (C): operators act coordinatewise,
brackets and `reshape` act on index axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.build.source import Spot, here
from netsor.errors import BuildError, NetsorError
from netsor.lang import index_maps as maps
from netsor.lang.expr import Attr, Slice
from netsor.lang.functions import add, div, mul, neg, pow_, sub
from netsor.lang.ops import Op
from netsor.lang.types import Index

if TYPE_CHECKING:
    from netsor.build.trace import Trace

__all__ = [
    "Average",
    "Embedded",
    "Expression",
    "Flat",
    "Known",
    "Leaf",
    "Node",
    "Operand",
    "Product",
    "Readout",
    "Width",
    "apply",
    "fail",
    "index_items",
]


class Width:
    """A dimension that goes to infinity; dimensions that meet become one (union-find)."""

    def __init__(self, name: str | None = None) -> None:
        self.parent: Width | None = None
        self.name = name

    def root(self) -> Width:
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def meet(self, other: Width, what: str) -> None:
        """Make two dimensions one; named ones must agree."""
        a, b = self.root(), other.root()
        if a is b:
            return
        if a.name and b.name and a.name != b.name:
            raise fail(
                f"{what}: vectors of different widths meet, {a.name} and {b.name}",
                "Sums, nonlinearities and moments combine vectors of one width. A Matrix changes the "
                f'width: `ns.Matrix(var, rows="{a.name}")`.',
            )
        b.parent = a
        a.name = a.name or b.name


def fail(what: str, remedy: str, kind: type[NetsorError] = BuildError) -> NetsorError:
    """An error that points at the user's line."""
    spot = here()
    return kind(what, place=spot.place() if spot else None, remedy=remedy)


@dataclass(eq=False)
class Node:
    """A traced value: its kind (K, C, G or H), index shape and width."""

    trace: Trace
    kind: str
    index: Index
    width: Width | None

    def __post_init__(self) -> None:
        self.spot: Spot | None = here()
        self.trace.add(self)

    def __netsor_apply__(self, op: Op, args: tuple[Any, ...], attrs: dict[str, Attr]) -> Node:
        return apply(op, *args, **attrs)

    @property
    def shape(self) -> Index:
        """The index shape: (7,) for a block of seven vectors, () for one."""
        return self.index

    def __len__(self) -> int:
        if not self.index:
            raise fail(
                "a single vector has no length here", "Its width is infinite; only index axes can be counted."
            )
        return self.index[0]

    def __iter__(self) -> Iterator[Node]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Node:
        if isinstance(key, list | np.ndarray):
            return apply(maps.take, self, axis=0, indices=tuple(int(i) for i in key))
        return apply(maps.at, self, index=index_items(key, len(self.index)))

    def reshape(self, *shape: Any) -> Node:
        """The same vectors under another index shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        sizes = _resolve(tuple(int(s) for s in sizes), self.index)
        return apply(maps.reshape, self, shape=sizes)

    def transpose(self, *axes: int) -> Node:
        """Index axes in another order; without arguments, reversed."""
        return apply(maps.transpose, self, axes=axes or tuple(reversed(range(len(self.index)))))

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Node:
        """Sum over index axes (all by default)."""
        return apply(maps.sum_, self, axis=_all_axes(axis, self.index))

    def mean(self, axis: int | tuple[int, ...] | None = None) -> Node:
        """Mean over index axes (all by default); for the average over the width see `ns.mean`."""
        return apply(maps.mean, self, axis=_all_axes(axis, self.index))

    def __add__(self, other):
        return self if _is_zero(other) else _arithmetic(add, self, other)

    def __radd__(self, other):
        return self if _is_zero(other) else _arithmetic(add, other, self)

    def __sub__(self, other):
        return self if _is_zero(other) else _arithmetic(sub, self, other)

    def __rsub__(self, other):
        return -self if _is_zero(other) else _arithmetic(sub, other, self)

    def __mul__(self, other):
        return 0 if _is_zero(other) else _arithmetic(mul, self, other)

    def __rmul__(self, other):
        return 0 if _is_zero(other) else _arithmetic(mul, other, self)

    def __truediv__(self, other):
        return _arithmetic(div, self, other)

    def __rtruediv__(self, other):
        return 0 if _is_zero(other) else _arithmetic(div, other, self)

    def __pow__(self, other):
        return _arithmetic(pow_, self, other)

    def __neg__(self):
        return apply(neg, self)

    def __matmul__(self, other):
        raise fail(
            "`@` needs a Matrix on its left",
            "Write `W @ h` for a matrix product, `ns.dot(h, k)` for the average of h*k over the width, "
            "`ns.contract(a, h)` for a sum over an index axis.",
        )

    def __bool__(self) -> bool:
        raise fail(
            "a traced value has no truth value",
            "A program is straight-line. Branch on the shape of the input, or use ns.maximum, ns.step.",
        )

    def __array__(self, dtype=None, copy=None):
        """The numbers of a K-node (data); the program then depends on their values."""
        if self.kind != "K":
            raise _numpy_refused()
        return np.asarray(self.trace.concretise(self), dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """`array * node` and the like; any other NumPy function works on data only."""
        if method == "__call__" and ufunc in UFUNCS and not kwargs:
            return apply(UFUNCS[ufunc], *inputs)
        return getattr(ufunc, method)(*(np.asarray(x) for x in inputs), **kwargs)


UFUNCS = {np.add: add, np.subtract: sub, np.multiply: mul, np.true_divide: div}


def _numpy_refused() -> NetsorError:
    return fail(
        "NumPy cannot act on a traced value",
        "Use the functions of netsor (ns.tanh, ns.sum, ...) or ns.nonlin(fn, h) for a function of your own.",
    )


Operand = Node | float


@dataclass(eq=False)
class Leaf(Node):
    """An input G-var given by a Vector."""

    vector: Any


@dataclass(eq=False)
class Embedded(Node):
    """A matrix times data."""

    matrix: Any
    data: Any  # an expression of data


@dataclass(eq=False)
class Product(Node):
    """A matrix times a vector."""

    matrix: Any
    operand: Node
    aligned: int


@dataclass(eq=False)
class Known(Node):
    """Data, or an array of numbers."""

    expr: Any


@dataclass(eq=False)
class Expression(Node):
    """An operation on nodes and numbers."""

    op: Op
    args: tuple[Operand, ...]
    attrs: tuple[tuple[str, Attr], ...]


@dataclass(eq=False)
class Average(Node):
    """A Moment: the average of a vector over its width."""

    operand: Node


@dataclass(eq=False)
class Readout(Node):
    """An output scalar: a sum of readouts. Nothing but such a sum can be computed from it."""

    terms: tuple[tuple[Any, Node, int], ...]  # matrix, operand, aligned axes

    def __add__(self, other):
        if _is_zero(other):
            return self
        if not isinstance(other, Readout) or other.index != self.index:
            raise _beyond_output("add")
        return Readout(self.trace, "C", self.index, None, self.terms + other.terms)

    __radd__ = __add__


def _beyond_output(name: str) -> NetsorError:
    return fail(
        f"`{name}` is applied to an output",
        "An output v @ h is the end of the program: its readout v is used nowhere else, and outputs can "
        "only be added. Apply the function to h, or use an infinite Matrix (rows=None) for a hidden layer.",
    )


class Flat:
    """A block whose members are features of one long vector: `W @ flatten(h)` has a matrix for each."""

    def __init__(self, node: Node) -> None:
        self.node = node


def apply(op: Op, *operands: Any, **attrs: Attr) -> Any:
    """The node `op(operands, **attrs)`, with kind, shape and width worked out."""
    trace = _trace_of(op.name, operands)
    args = tuple(trace.lift(x) for x in operands)
    nodes = [a for a in args if isinstance(a, Node)]
    for node in nodes:
        if isinstance(node, Readout):
            raise _beyond_output(op.name)
    try:
        index = op.shape(*(a.index if isinstance(a, Node) else () for a in args), **attrs)
    except ValueError as error:
        raise fail(f"{op.name}: {error}", "Index shapes broadcast by NumPy's rule; see `h.shape`.") from None
    kind = op.kind(tuple(a.kind if isinstance(a, Node) else "K" for a in args))
    width = None
    for node in nodes:
        if node.width is not None:
            width = width or node.width
            width.meet(node.width, op.name)
    return Expression(trace, kind, index, width, op, args, tuple(sorted(attrs.items())))


def _trace_of(name: str, operands: tuple[Any, ...]) -> Trace:
    from netsor.build.trace import current_trace

    for x in operands:
        if isinstance(x, Node):
            return x.trace
    return current_trace(name)


def _is_zero(x: Any) -> bool:
    return isinstance(x, int | float) and x == 0


def _arithmetic(op: Op, x: Any, y: Any) -> Any:
    from netsor.build.parameters import Matrix

    if isinstance(x, Matrix) or isinstance(y, Matrix):
        raise fail(
            "a Matrix cannot be added or scaled", "Use it as `W @ h`; its variance is `ns.Matrix(var)`."
        )
    return apply(op, x, y)


def _all_axes(axis: int | tuple[int, ...] | None, index: Index) -> Attr:
    if axis is None:
        return tuple(range(len(index)))
    return tuple(axis) if isinstance(axis, tuple | list) else (int(axis),)


def _resolve(shape: tuple[int, ...], index: Index) -> tuple[int, ...]:
    """Fill in one -1 of a new shape."""
    total = int(np.prod(index))
    known = int(np.prod([s for s in shape if s != -1]))
    return tuple(total // known if s == -1 and known else s for s in shape)


def index_items(key: Any, rank: int) -> tuple[Attr, ...]:
    """The items of `x[key]`, up to the last one that says something."""
    items = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in items:
        k = items.index(Ellipsis)
        used = sum(i is not None for i in items) - 1
        items[k : k + 1] = [slice(None)] * (rank - used)
    made = [_item(i) for i in items]
    while len(made) > 1 and made[-1] == Slice():
        made.pop()
    return tuple(made)


def _item(item: Any) -> Attr:
    if item is None:
        return None
    if isinstance(item, slice):
        return Slice(*(None if v is None else int(v) for v in (item.start, item.stop, item.step)))
    try:
        return int(item.__index__())
    except AttributeError:
        raise fail(
            f"{item!r} is not an index", "Use integers, slices, None, or one list of integers."
        ) from None
