"""Nodes of the graph that tracing records: blocks of data (K), vectors (G or H) or scalars (C)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from netsor.arguments import is_integer
from netsor.build.indexing import index_items, listed_members, resolve_shape
from netsor.build.source_lines import Spot, fail, here
from netsor.errors import BuildError, NetsorError, Place
from netsor.lang import index_maps as maps
from netsor.lang.expr import Apply, Attr, Const, Expr
from netsor.lang.functions import abs_, add, div, mul, sub
from netsor.lang.ops import Function, IndexMap, Op
from netsor.lang.symbols import Operators
from netsor.lang.types import MOST_MEMBERS, TOO_LARGE, Index

if TYPE_CHECKING:
    from netsor.build.trace import Trace


class Width:
    """A dimension that goes to infinity; dimensions that must agree are merged (union-find)."""

    def __init__(self, name: str | None = None) -> None:
        self.parent: Width | None = None
        self.name = name

    def root(self) -> Width:
        """The representative of all dimensions merged with this one."""
        node = self
        while node.parent is not None:
            node.parent = node.parent.parent or node.parent  # path halving
            node = node.parent
        return node

    def meet(self, other: Width, what: str) -> None:
        """Merge two dimensions; two different names are an error in the operation `what`."""
        a, b = self.root(), other.root()
        if a is b:
            return
        if a.name and b.name and a.name != b.name:
            raise fail(
                f"`{what}`: vectors of different widths meet, {a.name} and {b.name}",
                "Sums, nonlinearities and moments combine vectors of one width. A Matrix changes the "
                f'width: `ns.Matrix(var, rows="{a.name}")`.',
            )
        b.parent = a
        a.name = a.name or b.name


class NoAttributeError(BuildError, AttributeError):
    """An attribute of arrays that traced values lack. An AttributeError, so that `hasattr` works."""


@dataclass(eq=False, repr=False, slots=True)
class Node(Operators):
    """A traced value. Operators act coordinatewise; brackets and `reshape` act on index axes."""

    is_output: ClassVar[bool] = False
    trace: Trace
    kind: str
    index: Index
    width: Width | None

    space: int | None = field(init=False)  # number of trailing index axes that a convolution slid over
    spot: Spot | None = field(init=False)

    def __post_init__(self) -> None:
        self.space = None
        self.spot = here() if self.trace.spots else None
        self.trace.nodes.append(self)

    def __netsor_apply__(self, op: Op, args: tuple[Any, ...], attrs: dict[str, Attr]) -> Node:
        return apply(op, *args, **attrs)

    def __repr__(self) -> str:
        """Kind, width and index shape: `G(n)[6]`."""
        width = "" if self.width is None else f"({self.width.root().name or 'n'})"
        index = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        kind = "output" if self.is_output else "data" if self.kind == "K" else self.kind
        return f"{kind}{width}{index}"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise fail(
            f"a traced value has no attribute `{name}`",
            "It has `shape`, `ndim`, `reshape`, `transpose`, `sum`, `mean`, operators and brackets; the "
            "functions of netsor act on it, and the numbers of data are `np.asarray(x)`.",
            NoAttributeError,
        )

    @property
    def place(self) -> Place | None:
        """The user's line that made it."""
        return self.spot.place() if self.spot else None

    @property
    def shape(self) -> Index:
        """The index shape: (7,) for a block of seven vectors, () for one."""
        return self.index

    @property
    def ndim(self) -> int:
        """The number of index axes."""
        return len(self.index)

    @property
    def channels(self) -> int:
        """Number of channel axes: 1 for data, 0 for a block, whose channels are its infinite width."""
        return int(self.kind == "K" and len(self.index) > 0)

    @property
    def positions(self) -> Index:
        """The index shape without the channels of data."""
        return self.index[: len(self.index) - self.channels]

    def __len__(self) -> int:
        if not self.index:
            raise fail(
                "a single vector has no length",
                "Its width is infinite; only index axes can be counted or iterated over, and it has none.",
            )
        return self.index[0]

    def __iter__(self) -> Iterator[Node]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: object) -> Any:
        """Select members by integers, slices, None, and at most one list of integers or booleans."""
        items = list(key) if isinstance(key, tuple) else [key]
        lists = [i for i, item in enumerate(items) if isinstance(item, list | np.ndarray) and np.ndim(item)]
        if not lists:
            return apply(maps.at, self, index=index_items(items, len(self.index)))
        where = lists[0]
        slices = all(isinstance(item, slice) for item in items[:where])
        if len(lists) > 1 or not slices or any(item is Ellipsis for item in items):
            raise fail(
                "an index has several lists, or a list together with integers or `...`",
                "One list of integers takes members along its axis: `h[[0, 2]]`, `h[:, [0, 0, 1]]`. Take one "
                "axis after the other: `h[[0, 2]][:, [1, 1]]`.",
            )
        if where >= len(self.index):
            raise fail(
                f"the index names {where + 1} axes of a block that has {len(self.index)}",
                f"Index axes are counted from 0, and `h.shape` has their lengths; here it is {self.index}.",
            )
        taken = apply(maps.take, self, axis=where, indices=listed_members(items[where], self.index[where]))
        items[where] = slice(None)
        return taken if all(item == slice(None) for item in items) else taken[tuple(items)]

    def reshape(self, *shape: object) -> Node:
        """The same vectors under another index shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return apply(maps.reshape, self, shape=resolve_shape(tuple(sizes), self.index))

    def transpose(self, *axes: int) -> Node:
        """Permute the index axes; without arguments, reverse them."""
        given = axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes
        rank = len(self.index)
        order = self.axes(tuple(given), "transpose") if given else range(rank)[::-1]
        return apply(maps.transpose, self, axes=tuple(a % rank for a in order))

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Node:
        """Sum over index axes (all by default)."""
        return self.over(maps.sum_, axis)

    def mean(self, axis: int | tuple[int, ...] | None = None) -> Node:
        """Mean over index axes (all by default); for the average over the width see `ns.mean`."""
        return self.over(maps.mean, axis)

    def over(self, op: Op, axis: Any, name: str | None = None) -> Node:
        """Apply an operation over index axes, all by default; errors call it `name`."""
        return apply(op, self, axis=self.axes(axis, name or op.name))

    def axes(self, axis: Any, name: str) -> tuple[int, ...]:
        """Check the index axes on which a function acts: the given ones, or all."""
        rank = len(self.index)
        if axis is None and not rank and self.width:
            raise fail(
                f"ns.{name} of a single vector",
                "It acts on index axes, and this vector has only its width, which is infinite. The average "
                "over the width is ns.mean(h); several vectors are one block, ns.stack([h1, h2]).",
            )
        axes = range(rank) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
        if not all(map(is_integer, axes)):
            raise fail(f"axis={axis!r}", "Index axes are integers, counted from 0: axis=0, or axis=(0, 1).")
        inside = [a % rank for a in axes if -rank <= a < rank]
        if len(set(inside)) < len(inside):
            raise fail(f"axis={axis!r} names an axis twice", "Each index axis is named once: axis=(0, 1).")
        return tuple(map(int, axes))

    def operate(self, op: Op, *operands: Any) -> Any:
        """Apply an arithmetic operation; simplify 0 + x, 0 * x and 0 / x, so 0 can be an initial state."""
        from netsor.build.parameters import Matrix

        if any(isinstance(x, Matrix) for x in operands):
            return NotImplemented  # the operators of Matrix say what is wrong
        zeros = [isinstance(x, int | float) and x == 0 for x in operands]
        if (op is mul and any(zeros)) or (op is div and zeros[0]):
            return 0
        if op in (add, sub) and any(zeros):
            x, y = operands
            return x if zeros[1] else y if op is add else -y
        return apply(op, *operands)

    def __abs__(self):
        return apply(abs_, self)

    def __setitem__(self, key, value):
        raise fail(
            "a traced value is assigned to",
            "A program is straight-line: every variable is assigned once. Build a new block with ns.stack "
            "or ns.concat.",
        )

    def __matmul__(self, other):
        raise fail(
            "`@` needs a Matrix on its left",
            "Write `W @ h` for a matrix product, `ns.dot(h, k)` for the average of h*k over the width, "
            "`ns.contract(a, h)` for a sum over an index axis.",
        )

    def __bool__(self) -> bool:
        raise self._unknown("has no truth value")

    def __float__(self) -> float:
        raise self._unknown("is not a number")

    __int__ = __index__ = __complex__ = __float__

    def __lt__(self, other):
        raise self._unknown("cannot be compared")

    __le__ = __gt__ = __ge__ = __lt__

    def __eq__(self, other):
        if other is None or self is other:
            return self is other
        raise self._unknown("cannot be compared")

    def __hash__(self) -> int:
        """Hash by identity, and refuse data outside netsor: user code would expect a lookup by value."""
        if self.kind == "K" and not sys._getframe(1).f_globals.get("__name__", "").startswith("netsor."):
            raise self._unknown("cannot be looked up in a set or a dictionary")
        return object.__hash__(self)

    def __mod__(self, other):
        raise fail(
            "a function that netsor does not have (`%`, `//`, or a bitwise operator) meets a traced value",
            "Write it as a function of your own: ns.nonlin(lambda x: np.mod(x, 2.0), h).",
        )

    __rmod__ = __floordiv__ = __rfloordiv__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __mod__
    __rxor__ = __lshift__ = __rshift__ = __divmod__ = __rdivmod__ = __mod__

    def __invert__(self):
        return self % 2

    __round__ = __trunc__ = __floor__ = __ceil__ = lambda self, *_: self % 2

    def _unknown(self, what: str) -> NetsorError:
        if self.kind == "K":
            return fail(
                f"a traced input {what}",
                "A program is straight-line. Branch on the shape `x.shape`, or on the numbers "
                "`np.asarray(x)`; each input then gets statements of its own.",
            )
        return fail(
            f"a traced value {what}",
            "A program is straight-line. Branch on the shape of the input, or use ns.maximum, ns.step.",
        )

    def __array__(self, dtype=None, copy=None):
        """Return the numbers of a K-node; from then on the program depends on them."""
        if self.kind != "K":
            raise _numpy_refused("np.asarray")
        self.trace.concrete = True  # other inputs of this shape then need their own reading
        return np.asarray(self.trace.values_of(self), dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """Handle `array * node` and the like; other ufuncs accept data only."""
        if method == "__call__" and ufunc in UFUNCS and not kwargs:
            return apply(UFUNCS[ufunc], *inputs)
        return getattr(ufunc, method)(*_as_numbers(inputs, ufunc), **kwargs)

    def __array_function__(self, func, types, args, kwargs):
        """Handle `np.mean(x)` and the like, for data only."""
        return func(*_as_numbers(args, func), **{k: _as_numbers(v, func) for k, v in kwargs.items()})


UFUNCS = {np.add: add, np.subtract: sub, np.multiply: mul, np.true_divide: div}


def _as_numbers(x: Any, func: Any) -> Any:
    """Replace traced data by numbers in the arguments of a NumPy function."""
    if isinstance(x, list | tuple):
        return type(x)(_as_numbers(part, func) for part in x)
    if not isinstance(x, Node):
        return x
    if x.kind != "K":
        raise _numpy_refused(f"np.{func.__name__}")
    return np.asarray(x)


def _numpy_refused(name: str) -> NetsorError:
    return fail(
        f"`{name}` cannot act on a traced value",
        "It stands for a vector of infinite width, which has no numbers yet. Use the functions of netsor "
        "(ns.exp, ns.tanh, ns.mean, ...), or ns.nonlin(fn, h) for a function of your own.",
    )


Operand = Node | float


@dataclass(eq=False, repr=False, slots=True)
class Leaf(Node):
    """The input G-var of a Vector."""

    vector: Any


@dataclass(eq=False, repr=False, slots=True)
class MatrixProduct(Node):
    """W h for a matrix W and a vector or data h; the first `aligned` index axes of both are shared."""

    matrix: Any
    operand: Node
    aligned: int


@dataclass(eq=False, repr=False, slots=True)
class Data(Node):
    """Inputs or constants, and functions of them: an expression of named arrays."""

    expr: Expr


@dataclass(eq=False, repr=False, slots=True)
class Expression(Node):
    """`op(args, **attrs)` for nodes and numbers."""

    op: Op
    args: tuple[Operand, ...]
    attrs: tuple[tuple[str, Attr], ...]


@dataclass(eq=False, repr=False, slots=True)
class Average(Node):
    """The average of a vector over its width: the paper's Moment, a C-var."""

    operand: Node


def beyond_output(name: str) -> NetsorError:
    return fail(
        f"`{name}` is applied to an output",
        "Rule Output: v @ h is the end of the program, and its readout v is used nowhere else. Outputs have "
        "linear combinations only: sums, multiples, plus a constant or a bias `ns.Vector(var)`. Apply the "
        "function to h, or use an infinite Matrix (rows=None) for a hidden layer.",
    )


class Flat:
    """A block whose last `dims` axes i are features of one vector: W @ flatten(h) = sum_i W_i h_i."""

    __array_ufunc__ = None

    def __init__(self, node: Node, dims: int) -> None:
        self.node, self.dims = node, dims

    def __netsor_apply__(self, *_: object) -> Any:
        raise fail(
            "a flattened block stands without a Matrix",
            "`W @ ns.flatten(h)` reads all members of a block as one long vector; everything else acts on h.",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = __netsor_apply__


def apply(op: Op, *operands: object, **attrs: Attr) -> Any:
    """Build the node `op(operands, **attrs)`, and infer its kind, index shape and width."""
    from netsor.build.trace import current_trace

    trace = current_trace(f"`{spelled(op)}`")
    args = tuple(trace.lift(x) for x in operands)
    nodes = [a for a in args if isinstance(a, Node)]
    for node in nodes:
        if node.is_output:
            raise beyond_output(spelled(op))
    kinds = tuple(a.kind if isinstance(a, Node) else "K" for a in args)
    options = tuple(sorted(attrs.items()))
    try:
        index = op.shape(*(a.index if isinstance(a, Node) else () for a in args), **attrs)
        op.check_kinds(kinds)
    except ValueError as error:
        shapes = " and ".join(str(node.index) for node in nodes)
        rule = f"Index axes are counted from 0, and `h.shape` has their lengths; here it is {shapes}."
        raise fail(str(error), op.usage() if isinstance(op, Function) else rule) from None
    if prod(index) > MOST_MEMBERS:
        raise fail(f"a block of index shape {index}", TOO_LARGE)
    if set(kinds) == {"K"}:  # functions of data stay expressions, so they are evaluated for each input
        exprs = (a.expr if isinstance(a, Data) else Const(float(a)) for a in args)
        out: Node = Data(trace, "K", index, None, Apply(op, tuple(exprs), options))
    else:
        widths = [node.width for node in nodes if node.width]
        for width in widths[1:]:
            widths[0].meet(width, spelled(op))
        width = widths[0] if widths else None
        out = Expression(trace, op.kind(kinds), index, width, op, args, options)
    if not isinstance(op, IndexMap):  # coordinatewise functions keep spatial axes, index maps may move them
        out.space = next((n.space for n in nodes if n.space and n.index == index), None)
    return out


def spelled(op: Op) -> str:
    """The spelling of an operation in Python."""
    return {"at": "[...]", "pow": "**"}.get(op.name) or getattr(op, "infix", None) or op.name
