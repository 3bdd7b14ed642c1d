"""Running a Python network on traced values: the first half of the way from a function to a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any

import numpy as np

from netsor import arguments
from netsor.arguments import a_type
from netsor.build.nodes import (
    Average,
    Embedded,
    Expression,
    Flat,
    Known,
    Leaf,
    Node,
    Product,
    Readout,
    Width,
    fail,
)
from netsor.build.parameters import Matrix, Vector
from netsor.build.probes import UserFunction
from netsor.build.states import state_of
from netsor.errors import DataError
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, refs, rename
from netsor.lang.ops import Op
from netsor.lang.types import Index

__all__ = ["Requirement", "Trace", "Use", "current_trace", "data_expr", "numbers", "tracing"]

_CURRENT: ContextVar[Trace | None] = ContextVar("netsor_trace", default=None)


def tracing() -> bool:
    """Whether a network is being traced."""
    return _CURRENT.get() is not None


def current_trace(what: str) -> Trace:
    """The trace under way; networks are only ever run by netsor itself."""
    trace = _CURRENT.get()
    if trace is None:
        raise fail(
            f"{what} is used outside a network",
            "Matrices, vectors and the functions of netsor act inside a function decorated with @ns.network; "
            "read it with ns.program(net, x) or ns.simulate(net, [x], width=1000).",
        )
    return trace


@dataclass
class Use:
    """How a Matrix is used in this trace: its dimensions, and the shape of the block it flattens."""

    rows: Width
    cols: Width | int
    flat: Index = ()


@dataclass(frozen=True)
class Requirement:
    """What a layer asks of data: `check` raises a NetsorError where the values are not of its kind."""

    data: Expr
    check: Callable[[np.ndarray], None]
    constants: Mapping[str, np.ndarray]

    def apply(self, arrays: Mapping[str, Any]) -> None:
        known = {**self.constants, **arrays}
        blocks = {name: Block(np.asarray(known[name]), np.ndim(known[name])) for name in refs(self.data)}
        self.check(np.asarray(evaluate(self.data, blocks).array))


@dataclass
class Trace:
    """All nodes in order of creation, the data, and the dimensions of each Matrix."""

    nodes: list[Node] = field(default_factory=list)
    data: dict[str, np.ndarray] = field(default_factory=dict)
    uses: dict[Matrix, Use] = field(default_factory=dict)
    leaves: dict[Any, Leaf] = field(default_factory=dict)
    widths: dict[str, Width] = field(default_factory=dict)
    functions: dict[Callable, str] = field(default_factory=dict)
    users: dict[Any, UserFunction] = field(default_factory=dict)  # by their states
    constants: dict[tuple[Index, bytes], str] = field(default_factory=dict)
    concrete: bool = False  # whether the network looked at the values of its data
    requirements: list[Requirement] = field(default_factory=list)
    spots: bool = True  # whether nodes remember the lines that made them
    reading: int = 0  # how many inputs the network was read on
    counts: Counter[Any] = field(default_factory=Counter)

    @property
    def vectors(self) -> dict[Vector, None]:
        """The Vectors that are used as such."""
        return {leaf.vector: None for leaf in self.leaves.values()}

    @property
    def biases(self) -> dict[Vector, None]:
        """The Vectors that are added to outputs."""
        readouts = (node for node in self.nodes if isinstance(node, Readout))
        return {v: None for node in readouts for v, _, _ in node.terms if isinstance(v, Vector)}

    def add(self, node: Node) -> None:
        self.nodes.append(node)

    def copy(self) -> Trace:
        """What there is so far, to go back to with `rewind`."""
        return replace(self, **{f.name: copy(getattr(self, f.name)) for f in fields(self)})

    def rewind(self, before: Trace) -> None:
        """Forget what was added since a copy was made."""
        for f in fields(self):
            setattr(self, f.name, copy(getattr(before, f.name)))

    def signature(self, first: int = 0) -> list[tuple[Any, ...]]:
        """What each node from number `first` on computes, without the names that the trace gave.

        Two readings of one network on one input have equal signatures.
        """
        constants = {
            name: f"{array.shape} {array.tobytes().hex()}"
            for name, array in self.data.items()
            if name.startswith("k")
        }
        numbers: dict[Node, Any] = {leaf: leaf.vector for leaf in self.leaves.values()}
        out: list[tuple[Any, ...]] = []
        for node in self.nodes[first:]:
            if not isinstance(node, Leaf):
                numbers[node] = len(out)
                out.append(_signature(node, numbers, constants))
        return out

    @contextmanager
    def active(self) -> Iterator[None]:
        token = _CURRENT.set(self)
        self.reading += 1
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
                        "a value from another run of a network is used",
                        "Traced values live while their network is read once: compute them anew, do not "
                        "store them. What networks share are Matrix and Vector objects.",
                    )
                return x
            case Vector():
                return self.leaf(x)
            case Matrix():
                return x.__netsor_apply__()
            case Flat():
                return x.__netsor_apply__()
            case bool() | int() | float() | np.number() if not np.iscomplexobj(x) and _is_finite(x):
                return float(x)
        return self.constant(x)

    def count(self, what: Any) -> int:
        """How often this was asked before, in this reading of the network."""
        self.counts[self.reading, what] += 1
        return self.counts[self.reading, what] - 1

    def leaf(self, vector: Vector) -> Leaf:
        key = (vector, self.reading) if vector.each else vector
        if key not in self.leaves:
            self.leaves[key] = Leaf(self, "G", vector.index, self.width(vector.width), vector)
        return self.leaves[key]

    def width(self, name: str | None) -> Width:
        return Width() if name is None else self.widths.setdefault(name, Width(name))

    def constant(self, array: Any) -> Known:
        """An array of numbers, kept with the program's data; equal arrays are kept once."""
        values = numbers(array, "a constant here")
        name = self.constants.setdefault((values.shape, values.tobytes()), f"k{len(self.constants) + 1}")
        self.data.setdefault(name, values)
        return Known(self, "K", values.shape, None, Ref(name))

    def input(self, x: Any, name: str) -> Any:
        """Data of the network, traced; a tuple of arrays stays a tuple."""
        if isinstance(x, tuple):
            return tuple(self.input(part, f"{name}_{i}") for i, part in enumerate(x))
        self.data[name] = numbers(x, "the input")
        return Known(self, "K", self.data[name].shape, None, Ref(name))

    def user_function(
        self, fn: Callable[..., Any], derivatives: tuple[Callable[..., Any], ...], takes: tuple[int, int, int]
    ) -> UserFunction:
        """A function of the user's, which may be written anew wherever it is applied."""
        key = state_of(fn, *derivatives), len(derivatives), takes
        if key not in self.users:
            along = (0, 0, 2) if takes[2] else takes
            self.users[key] = UserFunction(fn, tuple(UserFunction(d, (), along) for d in derivatives), takes)
        return self.users[key]

    def function_name(self, fn: Callable, label: str, reserved: set[str]) -> str:
        """A name for a user's function that nothing else in the program has."""
        if fn not in self.functions:
            name, k = label, 1
            while name in reserved or name in self.functions.values():
                k += 1
                name = f"{label}_{k}"
            self.functions[fn] = name
        return self.functions[fn]

    def require(self, node: Node, check: Callable[[np.ndarray], None]) -> None:
        """Check the values of data, of this input and of all others that share its statements."""
        expr = data_expr(node)
        made = Requirement(expr, check, {name: self.data[name] for name in refs(expr)})
        made.apply({})
        self.requirements.append(made)

    def concretise(self, node: Node) -> np.ndarray:
        self.concrete = True
        return self.values_of(node)

    def values_of(self, node: Node) -> np.ndarray:
        """The numbers of data, for the input that is read."""
        values = {name: Block(array, array.ndim) for name, array in self.data.items()}
        return np.asarray(evaluate(data_expr(node), values).array)

    # Matrix products

    def product(self, matrix: Matrix, operand: Any, aligned: int) -> Node:
        """`W @ operand`: an embedding of data, a hidden layer, or an output."""
        flat = operand.dims if isinstance(operand, Flat) else 0
        x = self.lift(operand.node if isinstance(operand, Flat) else operand)
        self.refuse_operand(matrix, x)
        assert isinstance(x, Node)
        if x.kind == "K":
            return self.embed(matrix, x.reshape(*x.index[: len(x.index) - flat], -1) if flat else x, aligned)
        if 0 < flat < len(x.index):  # the axes that run together come first
            first = len(x.index) - flat
            x = x.transpose(*range(first, len(x.index)), *range(first))
        use = self.use(matrix, lambda: Width(), x.index[:flat])
        if isinstance(use.cols, int) or not isinstance(x.width, Width):
            raise self.two_uses(matrix)
        use.cols.meet(x.width, "@")
        aligned = flat or aligned
        index = use.flat + matrix.index
        self.check_aligned(aligned, index, x.index)
        if isinstance(matrix.rows, int):
            own = matrix.index + ((matrix.rows,) if matrix.rows > 1 else ())
            rest = (use.flat + own)[aligned:]
            return Readout(self, "C", rest + x.index[aligned:], None, ((matrix, x, aligned),), rest)
        out = Product(self, "G", index + x.index[aligned:], use.rows, matrix, x, aligned)
        return out.sum(tuple(range(aligned))) if flat and aligned else out

    def called(self, matrix: Matrix) -> str:
        return f"the Matrix `{matrix.name}`" if matrix.name else "a Matrix"

    def refuse_operand(self, matrix: Matrix, x: Node | float) -> None:
        if not isinstance(x, Node):
            raise fail(
                f"{self.called(matrix)} is applied to the number {x:g}",
                "Rule MatMul: `W @ h` takes data or a vector; only 0 is allowed, for the zero vector.",
            )
        if isinstance(x, Readout):
            raise fail(
                f"{self.called(matrix)} is applied to an output",
                "Rule Output: v @ h is the end of the program, and its readout v is used nowhere else. "
                "For a hidden layer use a Matrix with rows=None.",
            )
        if x.kind == "C":
            raise fail(
                f"{self.called(matrix)} is applied to a C-var",
                "Rule MatMul: matrices act on vectors, and C-vars are scalars. To scale a vector by one, "
                "write `c * h`.",
            )

    def use(self, matrix: Matrix, cols: Callable[[], Width | int], flat: Index = ()) -> Use:
        if matrix not in self.uses:
            rows = self.width(matrix.rows if isinstance(matrix.rows, str) else None)
            found = self.width(matrix.cols) if matrix.cols is not None else cols()
            self.uses[matrix] = Use(rows, found, flat)
        if self.uses[matrix].flat != flat:
            raise fail(
                f"{self.called(matrix)} is applied to flattened blocks of shapes {self.uses[matrix].flat} "
                f"and {flat}",
                "Its fan-in counts the members of the block. Use two matrices, or inputs of one shape.",
            )
        return self.uses[matrix]

    def embed(self, matrix: Matrix, x: Node, aligned: int) -> Node:
        if not x.index:
            raise fail(
                f"{self.called(matrix)} is applied to data without axes, a single number",
                "Rule Embed: data are arrays whose last axis is the input dimension. A set of inputs has one "
                "more axis in front: [x] for one input x.",
                DataError,
            )
        if isinstance(matrix.rows, int):
            raise fail(
                "a readout is applied to data",
                "Rule Output: a readout v (rows=k) ends the program and acts on a vector of infinite width. "
                "Embed the data first: `U @ x` with `U = ns.Matrix(var)`.",
            )
        use = self.use(matrix, lambda: x.index[-1])
        if not isinstance(use.cols, int):
            raise self.two_uses(matrix)
        if use.cols != x.index[-1]:
            raise fail(
                f"{self.called(matrix)} acts on data of dimension {use.cols}, but meets data of dimension "
                f"{x.index[-1]}",
                "Rule Embed: one matrix has one number of columns, the length of the last axis of its data. "
                "Check the shapes of the inputs.",
                DataError,
            )
        self.check_aligned(aligned, matrix.index, x.index[:-1])
        index = matrix.index + x.index[aligned:-1]
        return Embedded(self, "G", index, use.rows, matrix, data_expr(x), aligned)

    def check_aligned(self, aligned: int, index: Index, other: Index) -> None:
        """Axes that run together are axes of both, with one length."""
        if type(aligned) is not int or aligned < 0:
            raise fail(f"aligned={aligned!r}", "Give the number of first index axes that run together, >= 0.")
        if index[:aligned] != other[:aligned] or aligned > min(len(index), len(other)):
            raise fail(
                f"aligned={aligned}, but the index shapes {index} and {other} differ",
                "Rule MatMul, aligned: matrix i meets vector i, so both have these axes, with one length.",
            )

    def two_uses(self, matrix: Matrix) -> Exception:
        return fail(
            f"{self.called(matrix)} is applied to data and to a vector of infinite width",
            "Rule MatMul: a matrix has one number of columns, which would be finite and infinite at once. "
            "Use two matrices.",
        )


def _signature(node: Node, numbers: dict[Node, Any], constants: dict[str, str]) -> tuple[Any, ...]:
    match node:
        case Known(expr=expr):
            return "data", rename(expr, constants)
        case Embedded(matrix=matrix, data=data, aligned=aligned):
            return matrix, rename(data, constants), aligned
        case Product(matrix=matrix, operand=x, aligned=aligned):
            return matrix, numbers[x], aligned
        case Expression(op=op, args=args, attrs=attrs):
            parts = (numbers[a] if isinstance(a, Node) else repr(a) for a in args)
            return _operation(op), repr(attrs), *parts
        case Readout(terms=terms, shift=shift):
            return "output", repr(shift), *((v, numbers[x], k) for v, x, k in terms)
        case Average(operand=x):
            return "average", numbers[x]
    raise TypeError(f"{node} has no signature")


def _operation(op: Op) -> Any:
    """An operation; a user's function may be made anew whenever the network is read."""
    fn = getattr(op, "fn", None)
    return (type(op), fn.likeness) if isinstance(fn, UserFunction) else op


def numbers(x: Any, what: str) -> np.ndarray:
    """Data as an array of finite numbers."""
    try:
        values = _real_array(x, what)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        kind = f"an array of {x.dtype}" if isinstance(x, np.ndarray) else f"{a_type(x)}"
        raise fail(
            f"{what} is not an array of real numbers, but {kind}",
            "Give a NumPy array, or nested lists whose rows have one length; several arrays of one input go "
            "in a tuple.",
            DataError,
        ) from None
    if values.size == 0:
        raise fail(f"{what} has shape {values.shape}, so it is empty", "Give at least one number.", DataError)
    if not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))[0]
        where = f" at {tuple(map(int, bad))}" if values.ndim else ""
        raise fail(
            f"{what} has {'NaN' if np.isnan(values[tuple(bad)]) else 'infinity'}{where}",
            "Kernels and simulations need finite numbers: clean or impute the data first.",
            DataError,
        )
    values.setflags(write=False)
    return values


def _real_array(x: Any, what: str) -> np.ndarray:
    """A new array of float64; TypeError for what is not made of real numbers, or has entries masked out."""
    array = arguments.array(what, x) if hasattr(x, "requires_grad") else np.asarray(x)
    if array.dtype.kind == "O":
        real = all(isinstance(v, Real | np.bool_) for v in array.ravel())
    else:
        real = array.dtype.kind in "biuf"
    if x is None or not real or isinstance(x, Matrix | Vector) or _is_masked(x):
        raise TypeError
    return np.array(array, float)


def _is_finite(x: Any) -> bool:
    try:
        return bool(np.isfinite(float(x)))
    except OverflowError:
        return False


def _is_masked(x: Any) -> bool:
    """Whether some entry of an array, or of an array in a list, is masked out."""
    if isinstance(x, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(x).any())
    return isinstance(x, list | tuple) and any(_is_masked(part) for part in x)


def data_expr(node: Node | float) -> Expr:
    """The expression of a K-node in terms of named data."""
    found: dict[Node, Expr] = {}

    def known(x: Node | float) -> Expr | None:
        return found.get(x) if isinstance(x, Node) else Const(x)

    path: list[Node | float] = [node]
    while path:
        last = path[-1]
        if isinstance(last, Known):
            found[last] = last.expr
        elif isinstance(last, Expression):
            parts = [known(a) for a in last.args]
            if None in parts:
                path += [a for a, part in zip(last.args, parts, strict=True) if part is None]
                continue
            found[last] = Apply(last.op, tuple(part for part in parts if part is not None), last.attrs)
        path.pop()
    expr = known(node)
    if expr is None:
        raise TypeError(f"{node} is not data")
    return expr
