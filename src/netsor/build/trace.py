"""Running a Python network on traced values: the first half of the way from a function to a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netsor.build.nodes import Embedded, Expression, Flat, Known, Leaf, Node, Product, Readout, Width, fail
from netsor.build.parameters import Matrix, Vector
from netsor.errors import DataError
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref
from netsor.lang.types import Index

__all__ = ["Trace", "Use", "current_trace", "data_expr", "numbers", "tracing"]

_CURRENT: ContextVar[Trace | None] = ContextVar("netsor_trace", default=None)


def tracing() -> bool:
    """Whether a network is being traced."""
    return _CURRENT.get() is not None


def current_trace(what: str) -> Trace:
    """The trace under way; networks are only ever run by netsor itself."""
    trace = _CURRENT.get()
    if trace is None:
        raise fail(
            f"`{what}` is used outside a network",
            "Matrices, vectors and netsor functions act inside a function decorated with @ns.network; "
            "read it with ns.program(net, x), ns.simulate(net, x, width=...).",
        )
    return trace


@dataclass
class Use:
    """How a Matrix is used in this trace: its dimensions, and the shape of the block it flattens."""

    rows: Width
    cols: Width | int
    flat: Index = ()


@dataclass
class Trace:
    """All nodes in order of creation, the data, and the dimensions of each Matrix."""

    nodes: list[Node] = field(default_factory=list)
    data: dict[str, np.ndarray] = field(default_factory=dict)
    uses: dict[Matrix, Use] = field(default_factory=dict)
    leaves: dict[Vector, Leaf] = field(default_factory=dict)
    widths: dict[str, Width] = field(default_factory=dict)
    functions: dict[Callable, str] = field(default_factory=dict)
    concrete: bool = False  # whether the network looked at the values of its data

    def add(self, node: Node) -> None:
        self.nodes.append(node)

    @contextmanager
    def active(self) -> Iterator[None]:
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    # What nodes are made from

    def lift(self, x: Any) -> Node | float:
        """Anything that may stand in an expression, as a node or a number."""
        match x:
            case Node():
                if x.trace is not self:
                    raise fail(
                        "a value of another network",
                        "Values live for one run: return them, do not store them.",
                    )
                return x
            case Vector():
                return self.leaf(x)
            case Matrix():
                raise fail("a Matrix stands alone", "Use it as `W @ h`.")
            case bool() | int() | float() | np.number():
                return float(x)
        return self.constant(x)

    def leaf(self, vector: Vector) -> Leaf:
        if vector not in self.leaves:
            self.leaves[vector] = Leaf(self, "G", vector.index, self.width(vector.width), vector)
        return self.leaves[vector]

    def width(self, name: str | None) -> Width:
        return Width() if name is None else self.widths.setdefault(name, Width(name))

    def constant(self, array: Any) -> Known:
        """An array of numbers, kept with the program's data; equal arrays are kept once."""
        values = numbers(array, "this operand")
        for name, known in self.data.items():
            if name.startswith("k") and np.array_equal(known, values):
                return Known(self, "K", values.shape, None, Ref(name))
        name = f"k{sum(n.startswith('k') for n in self.data) + 1}"
        self.data[name] = values
        return Known(self, "K", values.shape, None, Ref(name))

    def input(self, x: Any, name: str) -> Any:
        """Data of the network, traced; a tuple of arrays stays a tuple."""
        if isinstance(x, tuple):
            return tuple(self.input(part, f"{name}_{i}") for i, part in enumerate(x))
        self.data[name] = numbers(x, "the input")
        return Known(self, "K", self.data[name].shape, None, Ref(name))

    def function_name(self, fn: Callable, label: str, reserved: set[str]) -> str:
        """A name for a user's function that nothing else in the program has."""
        if fn not in self.functions:
            name, k = label, 1
            while name in reserved or name in self.functions.values():
                k += 1
                name = f"{label}_{k}"
            self.functions[fn] = name
        return self.functions[fn]

    def concretise(self, node: Node) -> np.ndarray:
        self.concrete = True
        values = {name: Block(array, array.ndim) for name, array in self.data.items()}
        return np.asarray(evaluate(data_expr(node), values).array)

    # Matrix products

    def product(self, matrix: Matrix, operand: Any, aligned: int) -> Node:
        """`W @ operand`: an embedding of data, a hidden layer, or an output."""
        flat = isinstance(operand, Flat)
        x = self.lift(operand.node if flat else operand)
        self.refuse_operand(x)
        assert isinstance(x, Node)
        if x.kind == "K":
            return self.embed(matrix, x.reshape(-1) if flat else x)
        use = self.use(matrix, lambda: Width(), x.index if flat else ())
        if isinstance(use.cols, int) or not isinstance(x.width, Width):
            raise self.two_uses()
        use.cols.meet(x.width, "@")
        if flat:
            aligned = len(x.index)
        index = use.flat + matrix.index
        if index[:aligned] != x.index[:aligned] or aligned > min(len(index), len(x.index)):
            raise fail(
                f"index axes {index[:aligned]} and {x.index[:aligned]} do not align",
                "The first `aligned` axes of the Matrix and of the operand run together.",
            )
        if isinstance(matrix.rows, int):
            own = matrix.index + ((matrix.rows,) if matrix.rows > 1 else ())
            rest = (use.flat + own)[aligned:]
            return Readout(self, "C", rest + x.index[aligned:], None, ((matrix, x, aligned),))
        out = Product(self, "G", index + x.index[aligned:], use.rows, matrix, x, aligned)
        return out.sum(tuple(range(aligned))) if flat and aligned else out

    def refuse_operand(self, x: Node | float) -> None:
        if not isinstance(x, Node):
            raise fail(
                "a Matrix times a number", "`W @ h` takes data or a vector (0 stands for the zero vector)."
            )
        if isinstance(x, Readout):
            raise fail(
                "a Matrix is applied to an output",
                "An output v @ h is the end of the program: its readout v is used nowhere else. "
                "For a hidden layer use a Matrix with rows=None.",
            )
        if x.kind == "C":
            raise fail("a Matrix is applied to a C-var", "C-vars are scalars; matrices act on vectors.")

    def use(self, matrix: Matrix, cols: Callable[[], Width | int], flat: Index = ()) -> Use:
        if matrix not in self.uses:
            rows = self.width(matrix.rows if isinstance(matrix.rows, str) else None)
            found = self.width(matrix.cols) if matrix.cols is not None else cols()
            self.uses[matrix] = Use(rows, found, flat)
        if self.uses[matrix].flat != flat:
            raise fail(
                f"one Matrix is applied to flattened blocks of shapes {self.uses[matrix].flat} and {flat}",
                "Its fan-in counts the members of the block. Use two matrices, or inputs of one shape.",
            )
        return self.uses[matrix]

    def embed(self, matrix: Matrix, x: Node) -> Node:
        if not x.index:
            raise fail(
                "a Matrix is applied to a single number",
                "Data are vectors: an array whose last axis is the input dimension.",
            )
        if isinstance(matrix.rows, int):
            raise fail(
                "a readout is applied to data",
                "A readout v (rows=k) ends the program; it acts on a vector of infinite width. "
                "Embed the data first: `U @ x` with `U = ns.Matrix(var)`.",
            )
        use = self.use(matrix, lambda: x.index[-1])
        if not isinstance(use.cols, int):
            raise self.two_uses()
        if use.cols != x.index[-1]:
            raise fail(
                f"a Matrix that acts on data of dimension {use.cols} meets data of dimension {x.index[-1]}",
                "One Matrix has one number of columns. Check the shape of the input.",
                DataError,
            )
        return Embedded(self, "G", matrix.index + x.index[:-1], use.rows, matrix, data_expr(x))

    def two_uses(self) -> Exception:
        return fail(
            "one Matrix is applied to data and to a vector of infinite width",
            "Its number of columns would be finite and infinite at once. Use two matrices.",
        )


def numbers(x: Any, what: str) -> np.ndarray:
    """Data as an array of finite numbers."""
    try:
        values = np.array(x, float)
    except (TypeError, ValueError):
        raise fail(
            f"{what} is not an array of numbers: {type(x).__name__}",
            "Give a NumPy array (or nested lists); several arrays of one input go in a tuple.",
            DataError,
        ) from None
    if not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))[0]
        raise fail(
            f"{what} has {'NaN' if np.isnan(values[tuple(bad)]) else 'infinity'} at {tuple(map(int, bad))}",
            "Kernels and simulations need finite numbers: clean or impute the data first.",
            DataError,
        )
    values.setflags(write=False)
    return values


def data_expr(node: Node | float) -> Expr:
    """The expression of a K-node in terms of named data."""
    match node:
        case float():
            return Const(node)
        case Known():
            return node.expr
        case Expression(op=op, args=args, attrs=attrs):
            return Apply(op, tuple(data_expr(a) for a in args), attrs)
    raise TypeError(f"{node} is not data")
