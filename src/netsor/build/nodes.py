"""What a network computes with while it is traced: nodes of a graph that becomes a program.

A `Node` behaves like an array of vectors (G or H) or of scalars (C): operators act coordinatewise,
brackets and `reshape` act on index axes.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from netsor.build.source import Spot, here
from netsor.errors import BuildError, NetsorError
from netsor.lang import index_maps as maps
from netsor.lang.expr import Attr, Slice
from netsor.lang.functions import abs_, add, div, mul, neg, pow_, sub
from netsor.lang.ops import Function, IndexMap, Op
from netsor.lang.types import MOST_MEMBERS, TOO_LARGE, Index

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
    "Outputs",
    "Product",
    "Readout",
    "Width",
    "apply",
    "fail",
    "index_axes",
    "index_items",
    "outputs",
]


class Width:
    """A dimension that goes to infinity; dimensions that meet become one (union-find)."""

    def __init__(self, name: str | None = None) -> None:
        self.parent: Width | None = None
        self.name = name

    def root(self) -> Width:
        root = self
        while root.parent is not None:
            root = root.parent
        node = self
        while node.parent is not None:  # next time the way is short
            node.parent, node = root, node.parent
        return root

    def meet(self, other: Width, what: str) -> None:
        """Make two dimensions one; named ones must agree."""
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


def fail(what: str, remedy: str, kind: type[NetsorError] = BuildError) -> NetsorError:
    """An error that points at the user's line."""
    spot = here()
    return kind(what, place=spot.place() if spot else None, remedy=remedy)


class NoAttributeError(BuildError, AttributeError):
    """A traced value does not have all that an array has."""


@dataclass(eq=False, repr=False, slots=True)
class Node:
    """A traced value: its kind (K, C, G or H), index shape and width."""

    trace: Trace
    kind: str
    index: Index
    width: Width | None

    space: int | None = field(init=False)  # how many of the last index axes a convolution slid over
    spot: Spot | None = field(init=False)

    def __post_init__(self) -> None:
        self.space = None
        self.spot = here() if self.trace.spots else None
        self.trace.add(self)

    def __netsor_apply__(self, op: Op, args: tuple[Any, ...], attrs: dict[str, Attr]) -> Node:
        return apply(op, *args, **attrs)

    def __repr__(self) -> str:
        """Kind, width and index shape: `G(n)[6]`."""
        width = "" if self.width is None else f"({self.width.root().name or 'n'})"
        index = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        kind = "output" if isinstance(self, Readout) else "data" if self.kind == "K" else self.kind
        return f"{kind}{width}{index}"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NoAttributeError(
            f"a traced value has no attribute `{name}`",
            place=getattr(here(), "place", lambda: None)(),
            remedy="It has `shape`, `ndim`, `reshape`, `transpose`, `sum`, `mean`, operators and brackets; "
            "the functions of netsor act on it, and the numbers of data are `np.asarray(x)`.",
        )

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
        """How many of the last axes are the channels: one of data, none of a block, whose width they are."""
        return int(self.kind == "K" and len(self.index) > 0)

    def __len__(self) -> int:
        if not self.index:
            raise fail(
                "a single vector has no length",
                "Its width is infinite; only index axes can be counted or iterated over, and it has none.",
            )
        return self.index[0]

    def __iter__(self) -> Iterator[Node]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """Members by integers, slices, None, and one list of integers or of truth values."""
        items = list(key) if isinstance(key, tuple) else [key]
        lists = [i for i, item in enumerate(items) if isinstance(item, list | np.ndarray) and np.ndim(item)]
        if not lists:
            return apply(maps.at, self, index=index_items(key, len(self.index)))
        where = lists[0]
        before = index_items(tuple(items[:where]), len(self.index), keep=True)
        if len(lists) > 1 or any(item is Ellipsis for item in items) or not _all_slices(items[:where]):
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
        taken = apply(maps.take, self, axis=where, indices=_members(items[where], self.index[where]))
        rest = [slice(None)] * (where + 1) + items[where + 1 :]
        kept = apply(maps.at, taken, index=before) if any(b != Slice() for b in before) else taken
        return kept[tuple(rest)] if items[where + 1 :] else kept

    def reshape(self, *shape: Any) -> Node:
        """The same vectors under another index shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return apply(maps.reshape, self, shape=_resolve(tuple(sizes), self.index))

    def transpose(self, *axes: int) -> Node:
        """Index axes in another order; without arguments, reversed."""
        given = axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes
        order = index_axes(tuple(given), self, "transpose") if given else tuple(range(len(self.index)))[::-1]
        return apply(maps.transpose, self, axes=tuple(a % len(self.index) for a in order))

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Node:
        """Sum over index axes (all by default)."""
        return apply(maps.sum_, self, axis=index_axes(axis, self, "sum"))

    def mean(self, axis: int | tuple[int, ...] | None = None) -> Node:
        """Mean over index axes (all by default); for the average over the width see `ns.mean`."""
        return apply(maps.mean, self, axis=index_axes(axis, self, "mean"))

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

    def __rpow__(self, other):
        return _arithmetic(pow_, other, self)

    def __neg__(self):
        return apply(neg, self)

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
        """By identity. In the user's hands data would be looked up by their values, which are not known."""
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
        """The numbers of a K-node (data); the program then depends on their values."""
        if self.kind != "K":
            raise _numpy_refused("np.asarray")
        return np.asarray(self.trace.concretise(self), dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """`array * node` and the like; any other NumPy function works on data only."""
        if method == "__call__" and ufunc in UFUNCS and not kwargs:
            return apply(UFUNCS[ufunc], *inputs)
        return getattr(ufunc, method)(*_as_numbers(inputs, ufunc), **kwargs)

    def __array_function__(self, func, types, args, kwargs):
        """`np.mean(x)` and the like: on the numbers of data only."""
        return func(*_as_numbers(args, func), **{k: _as_numbers(v, func) for k, v in kwargs.items()})


UFUNCS = {np.add: add, np.subtract: sub, np.multiply: mul, np.true_divide: div}


def _as_numbers(x: Any, func: Any) -> Any:
    """Arguments of a NumPy function, with numbers in the place of traced data."""
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
    """An input G-var given by a Vector."""

    vector: Any


@dataclass(eq=False, repr=False, slots=True)
class Embedded(Node):
    """A matrix times data."""

    matrix: Any
    data: Any  # an expression of data
    aligned: int = 0


@dataclass(eq=False, repr=False, slots=True)
class Product(Node):
    """A matrix times a vector."""

    matrix: Any
    operand: Node
    aligned: int


@dataclass(eq=False, repr=False, slots=True)
class Known(Node):
    """Data, or an array of numbers."""

    expr: Any


@dataclass(eq=False, repr=False, slots=True)
class Expression(Node):
    """An operation on nodes and numbers."""

    op: Op
    args: tuple[Operand, ...]
    attrs: tuple[tuple[str, Attr], ...]


@dataclass(eq=False, repr=False, slots=True)
class Average(Node):
    """A Moment: the average of a vector over its width."""

    operand: Node


@dataclass(eq=False, repr=False, slots=True)
class Readout(Node):
    """Output scalars: a sum of readouts and a constant. Only linear combinations can be made of them.

    terms  a readout (Matrix, or Vector for a bias), the vectors that it reads, and their aligned axes
    own    the index axes of the readout itself, which come first
    """

    terms: tuple[tuple[Any, Node, int], ...]
    own: Index = ()
    shift: float = 0.0

    def __add__(self, other):
        from netsor.build.parameters import Vector

        if isinstance(other, Vector):
            return self + self.bias(other)
        if isinstance(other, int | float | np.number) and not isinstance(other, bool):
            return self.made(self.terms, self.shift + float(other))
        if not isinstance(other, Readout):
            raise _beyond_output("+")
        if other.index != self.index:
            raise fail(
                f"outputs of index shapes {self.index} and {other.index} are added",
                "Outputs are added member by member, so their shapes are equal. Return them both instead.",
            )
        return self.made(self.terms + other.terms, self.shift + other.shift)

    __radd__ = __add__

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        from netsor.build.parameters import Vector

        return self + (self.bias(other) * -1.0 if isinstance(other, Vector) else -other)

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        """A multiple: what is read is multiplied, by a number, data or C-vars."""
        factor = self.trace.lift(other) if not isinstance(other, Readout | Outputs) else other
        scalar = not isinstance(factor, Node) or (factor.kind in ("K", "C") and not factor.index)
        if isinstance(factor, Readout | Outputs) or not scalar or (self.shift and isinstance(factor, Node)):
            raise _beyond_output("*")
        shift = self.shift * factor if isinstance(factor, float) else 0.0
        return self.made(tuple((v, apply(mul, factor, x), k) for v, x, k in self.terms), shift)

    __rmul__ = __mul__

    def __truediv__(self, other):
        if isinstance(other, int | float | np.number) and other == 0:
            raise fail("an output is divided by 0", "Divide by a number that is not 0.")
        inverse = apply(div, 1.0, other) if isinstance(other, Node) else 1.0 / float(other)
        return self * inverse

    def made(self, terms: tuple[tuple[Any, Node, int], ...], shift: float) -> Readout:
        if not np.isfinite(shift):
            raise fail(f"an output plus {shift:g}", "Add a finite number.")
        return Readout(self.trace, "C", self.index, None, terms, self.own, shift)

    def bias(self, vector: Any) -> Readout:
        """A bias N(mean, var) of the output layer: a readout of the vector of ones, exact at any width.

        One for all members, or one for each row of the readout.
        """
        if vector.index not in ((), self.own) or np.ndim(vector.mean):
            raise fail(
                f"an output of index shape {self.index} plus a Vector of index shape {vector.index}",
                "The bias of an output is one number, ns.Vector(var), or one for each row of the readout: "
                f"ns.Vector(var, index={self.own}).",
            )
        x = self.terms[0][1]
        one = x[(0,) * len(x.index)] if x.index else x
        one = apply(add, apply(mul, 0.0, one), 1.0)
        rest = self.index if vector.index == () else self.index[len(self.own) :]
        if rest:
            one = apply(add, one, self.trace.constant(np.zeros(rest)))
        return self.made(((vector, one, 0),), float(vector.mean))

    def __getitem__(self, key):
        raise _beyond_output("[...]")

    def reshape(self, *shape: Any):
        raise _beyond_output("reshape")

    def transpose(self, *axes: int):
        raise _beyond_output("transpose")

    def sum(self, axis: int | tuple[int, ...] | None = None):
        raise _beyond_output("sum")

    def mean(self, axis: int | tuple[int, ...] | None = None):
        raise _beyond_output("mean")


class Outputs(list):
    """Several outputs in order; sums and multiples act on each."""

    __array_ufunc__ = None

    def _each(self, act):
        return Outputs(act(out) for out in self)

    def __add__(self, other):
        if isinstance(other, Outputs):
            if len(other) != len(self):
                raise fail(f"{len(self)} outputs plus {len(other)}", "Outputs are added one by one.")
            return Outputs(a + b for a, b in zip(self, other, strict=True))
        return self._each(lambda out: out + other)

    __radd__ = __add__

    def __neg__(self):
        return self._each(lambda out: -out)

    def __sub__(self, other):
        if isinstance(other, Outputs):
            return self + -other
        return self._each(lambda out: out - other)

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        return self._each(lambda out: out * other)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self._each(lambda out: out / other)

    def __netsor_apply__(self, op: Op, *_: Any) -> Any:
        raise _beyond_output(_spelled(op))


def outputs(items: list[Any], axis: Any) -> Outputs:
    """A stack of outputs."""
    if not all(isinstance(item, Readout) for item in items):
        raise fail("outputs are stacked with vectors", "Stack outputs with outputs, vectors with vectors.")
    if axis != 0:
        raise fail(
            f"outputs are stacked along axis={axis!r}", "Outputs are returned one after the other, axis=0."
        )
    return Outputs(items)


def _beyond_output(name: str) -> NetsorError:
    return fail(
        f"`{name}` is applied to an output",
        "Rule Output: v @ h is the end of the program, and its readout v is used nowhere else. Outputs have "
        "linear combinations only: sums, multiples, plus a constant or a bias `ns.Vector(var)`. Apply the "
        "function to h, or use an infinite Matrix (rows=None) for a hidden layer.",
    )


class Flat:
    """A block whose last `dims` axes are features of one vector: `W @ flatten(h)` has a matrix for each."""

    __array_ufunc__ = None

    def __init__(self, node: Node, dims: int) -> None:
        self.node, self.dims = node, dims

    def __netsor_apply__(self, *_: Any) -> Any:
        raise fail(
            "a flattened block stands without a Matrix",
            "`W @ ns.flatten(h)` reads all members of a block as one long vector; everything else acts on h.",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = __netsor_apply__


def apply(op: Op, *operands: Any, **attrs: Attr) -> Any:
    """The node `op(operands, **attrs)`, with kind, shape and width worked out."""
    from netsor.build.trace import current_trace

    trace = current_trace(f"`{_spelled(op)}`")
    args = tuple(trace.lift(x) for x in operands)
    nodes = [a for a in args if isinstance(a, Node)]
    for node in nodes:
        if isinstance(node, Readout):
            raise _beyond_output(_spelled(op))
    kinds = tuple(a.kind if isinstance(a, Node) else "K" for a in args)
    try:
        index = op.shape(*(a.index if isinstance(a, Node) else () for a in args), **attrs)
        op.check_kinds(kinds)
    except ValueError as error:
        shapes = " and ".join(str(node.index) for node in nodes)
        rule = f"Index axes are counted from 0, and `h.shape` has their lengths; here it is {shapes}."
        raise fail(str(error), op.usage() if isinstance(op, Function) else rule) from None
    if prod(index) > MOST_MEMBERS:
        raise fail(f"a block of index shape {index}", TOO_LARGE)
    width = None
    for node in nodes:
        if node.width is not None:
            width = width or node.width
            width.meet(node.width, _spelled(op))
    out = Expression(trace, op.kind(kinds), index, width, op, args, tuple(sorted(attrs.items())))
    if not isinstance(op, IndexMap):
        out.space = next((n.space for n in nodes if n.space and n.index == index), None)
    return out


def _spelled(op: Op) -> str:
    """An operation as it stands in Python."""
    return {"at": "[...]", "pow": "**"}.get(op.name) or getattr(op, "infix", None) or op.name


def _is_zero(x: Any) -> bool:
    return isinstance(x, int | float) and x == 0


def _arithmetic(op: Op, x: Any, y: Any) -> Any:
    from netsor.build.parameters import Matrix

    if isinstance(x, Matrix) or isinstance(y, Matrix):
        raise fail(
            "a Matrix cannot be added or scaled",
            "Rule MatMul: a matrix acts on a vector, `W @ h`. Its scale is its variance, `ns.Matrix(var)`.",
        )
    return apply(op, x, y)


def index_axes(axis: Any, node: Node, name: str) -> tuple[int, ...]:
    """The index axes that a function acts on: those given, or all."""
    if axis is None and not node.index and node.kind in ("G", "H"):
        raise fail(
            f"ns.{name} of a single vector",
            "It acts on index axes, and this vector has only its width, which is infinite. The average over "
            "the width is ns.mean(h); several vectors are one block, ns.stack([h1, h2]).",
        )
    if axis is None:
        return tuple(range(len(node.index)))
    axes = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if any(not isinstance(a, int | np.integer) or isinstance(a, bool) for a in axes):
        raise fail(f"axis={axis!r}", "Index axes are integers, counted from 0: axis=0, or axis=(0, 1).")
    rank = len(node.index)
    inside = [int(a) % rank for a in axes if -rank <= a < rank]
    if len(set(inside)) < len(inside):
        raise fail(f"axis={axis!r} names an axis twice", "Each index axis is named once: axis=(0, 1).")
    return tuple(int(a) for a in axes)


def _resolve(shape: tuple[Any, ...], index: Index) -> tuple[int, ...]:
    """A new shape with one -1 filled in."""
    total = prod(index)
    whole = all(isinstance(s, int | np.integer) and not isinstance(s, bool) for s in shape)
    if not whole or any(s < -1 or s == 0 for s in shape) or sum(s == -1 for s in shape) > 1:
        raise fail(f"the shape {shape!r}", "A shape has integers >= 1, and at most one -1 for what is left.")
    known = prod(int(s) for s in shape if s != -1)
    sizes = tuple(total // known if s == -1 else int(s) for s in shape)
    if prod(sizes) != total:
        raise fail(
            f"index shape {index} becomes {shape}",
            f"The number of vectors stays: {index} has {total}.",
        )
    return sizes


def index_items(key: Any, rank: int, keep: bool = False) -> tuple[Attr, ...]:
    """The items of `x[key]`, up to the last one that says something (all of them with `keep`)."""
    items = list(key) if isinstance(key, tuple) else [key]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise fail("an index has `...` twice", "One `...` stands for all axes that the index does not name.")
    if dots:
        used = sum(i is not None for i in items) - 1
        items[dots[0] : dots[0] + 1] = [slice(None)] * (rank - used)
    made = [_item(i) for i in items]
    while len(made) > 1 and made[-1] == Slice() and not keep:
        made.pop()
    return tuple(made)


def _all_slices(items: list[Any]) -> bool:
    return all(isinstance(item, slice) for item in items)


def _members(key: Any, size: int) -> tuple[int, ...]:
    """The positions that a list of integers, or of one truth value for each member, names."""
    array = np.asarray(key)
    if array.dtype == bool:
        if array.shape != (size,):
            raise fail(
                f"a mask of shape {array.shape} for an axis of length {size}",
                "A list of truth values has one for each member of the axis.",
            )
        return tuple(int(i) for i in np.flatnonzero(array))
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise fail(
            f"an index of shape {array.shape} and type {array.dtype}",
            "A list in an index holds integers, or one truth value for each member of its axis.",
        )
    return tuple(int(i) for i in array)


def _item(item: Any) -> Attr:
    if item is None:
        return None
    if isinstance(item, slice):
        return _slice(item)
    try:
        if isinstance(item, bool | np.bool_):
            raise TypeError
        return int(item.__index__())
    except (AttributeError, TypeError):
        raise fail(
            f"{item!r} is not an index",
            "Index axes are taken by integers, slices, None, or one list of integers: `h[0]`, `h[1:]`, "
            "`h[[0, 2]]`.",
        ) from None


def _slice(item: slice) -> Slice:
    try:
        made = Slice(*(None if v is None else operator.index(v) for v in (item.start, item.stop, item.step)))
    except TypeError:
        made = Slice(step=0)
    if made.step == 0:
        raise fail(f"{item!r} is not an index", "A slice has integers, and a step that is not 0: `h[1:5:2]`.")
    return made
