"""Tracing: run a Python network on symbolic values and record a graph of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from numbers import Real
from typing import Any

import numpy as np

from netsor import arguments
from netsor.arguments import a_type
from netsor.build.dependencies import state_of
from netsor.build.graph_nodes import Data, Flat, Leaf, MatrixProduct, Node, Width
from netsor.build.parameters import Matrix, Vector
from netsor.build.readouts import Readout
from netsor.build.source_lines import fail
from netsor.build.user_functions import UserFunction
from netsor.errors import DataError
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, refs
from netsor.lang.functions import named
from netsor.lang.ops import Op
from netsor.lang.types import Index

_CURRENT: ContextVar[Trace | None] = ContextVar("netsor_trace", default=None)


def tracing() -> bool:
    """Whether a network is being traced."""
    return _CURRENT.get() is not None


def current_trace(what: str) -> Trace:
    """Return the active trace; raise an error outside a network."""
    trace = _CURRENT.get()
    if trace is None:
        raise fail(
            f"{what} is used outside a network",
            "Matrices, vectors and the functions of netsor act inside a function decorated with @ns.network; "
            "read it with ns.program(net, x) or ns.simulate(net, [x], width=1000).",
        )
    return trace


@dataclass
class MatrixUse:
    """The dimensions of a Matrix in this trace, and the index shape of the blocks that it reads flattened."""

    rows: Width
    cols: Width | int
    flat: Index = ()


# A condition that a layer imposes on data: it raises a NetsorError for arrays, by name, that violate it.
Requirement = Callable[[Mapping[str, Any]], None]


@dataclass
class Trace:
    """The record of a trace: nodes in order of creation, data, and the dimensions of each Matrix."""

    nodes: list[Node] = field(default_factory=list)
    data: dict[str, np.ndarray] = field(default_factory=dict)
    uses: dict[Matrix, MatrixUse] = field(default_factory=dict)
    leaves: dict[Any, Leaf] = field(default_factory=dict)
    widths: dict[str, Width] = field(default_factory=dict)
    functions: dict[Callable, str] = field(default_factory=dict)
    users: dict[Any, UserFunction] = field(default_factory=dict)  # state of a function -> its one object
    constants: dict[tuple[Index, bytes], str] = field(default_factory=dict)  # content -> name in `data`
    concrete: bool = False  # whether the network read the values of its data, so shapes do not decide alone
    requirements: list[Requirement] = field(default_factory=list)
    spots: bool = True  # whether nodes remember their source lines, for error messages
    reading: int = 0  # number of inputs on which the network has been read
    counts: Counter[Any] = field(default_factory=Counter)

    @property
    def parameters(self) -> dict[Matrix | Vector, None]:
        """All matrices and vectors in use, in order, those in biases of outputs last (a dict is ordered)."""
        read = (v for node in self.nodes if isinstance(node, Readout) for v, _, _ in node.terms)
        return dict.fromkeys((*self.uses, *(leaf.vector for leaf in self.leaves.values()), *read))

    def copy(self) -> Trace:
        """Take a snapshot for `rewind`."""
        return Trace(**{name: copy(value) for name, value in vars(self).items()})

    def rewind(self, before: Trace) -> None:
        """Return to a snapshot."""
        vars(self).update(vars(before.copy()))

    def signature(self, first: int = 0) -> list[tuple[Any, ...]]:
        """Describe, without names, what each node from number `first` on computes: equal in every reading."""
        # A Leaf appears at the first use of its Vector in any reading, so it must not count.
        numbers: dict[Any, Any] = {leaf: leaf.vector for leaf in self.leaves.values()}
        constants = ((name, array) for name, array in self.data.items() if name.startswith("k"))
        numbers |= {Ref(name): (array.shape, array.tobytes()) for name, array in constants}
        out: list[tuple[Any, ...]] = []
        for node in self.nodes[first:]:
            if not isinstance(node, Leaf):
                values = (getattr(node, name) for name in type(node).__slots__)
                out.append((type(node), *(_described(value, numbers) for value in values)))
                numbers[node] = len(out)
                if isinstance(node, Data):
                    numbers.setdefault(node.expr, len(out))
        return out

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current trace, for one reading of a network."""
        token = _CURRENT.set(self)
        self.reading += 1  # each reading draws its own noise, see `leaf`
        try:
            yield
        finally:
            _CURRENT.reset(token)

    # Operands, data and functions

    def lift(self, x: object) -> Node | float:
        """Convert an operand of an expression to a node or a number."""
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
            case Matrix() | Flat():
                return x.__netsor_apply__()
            case bool() | int() | float() | np.number() if not np.iscomplexobj(x) and _is_finite(x):
                return float(x)
        return self.constant(x)

    def count(self, what: object) -> int:
        """Count the earlier calls with the same argument in this reading of the network."""
        self.counts[self.reading, what] += 1
        return self.counts[self.reading, what] - 1

    def leaf(self, vector: Vector) -> Leaf:
        """Return the node of a Vector: one for all readings, or one per reading for noise (`each`)."""
        key = (vector, self.reading) if vector.each else vector
        if key not in self.leaves:
            self.leaves[key] = Leaf(self, "G", vector.index, self.width(vector.width), vector)
        return self.leaves[key]

    def width(self, name: str | None) -> Width:
        """Return the dimension of this name, or a new anonymous one."""
        return Width() if name is None else self.widths.setdefault(name, Width(name))

    def constant(self, array: object) -> Data:
        """Store an array with the data of the program; equal arrays share a name."""
        values = numbers(array, "a constant here")
        name = self.constants.setdefault((values.shape, values.tobytes()), f"k{len(self.constants) + 1}")
        self.data.setdefault(name, values)
        return Data(self, "K", values.shape, None, Ref(name))

    def input(self, x: object, name: str) -> Any:
        """Trace an input of the network; a tuple of arrays becomes a tuple of nodes."""
        if isinstance(x, tuple):
            return tuple(self.input(part, f"{name}_{i}") for i, part in enumerate(x))
        self.data[name] = numbers(x, "the input")
        return Data(self, "K", self.data[name].shape, None, Ref(name))

    def user_function(
        self,
        fn: Callable[..., Any],
        derivatives: tuple[Callable[..., Any], ...],
        takes: tuple[int, int, int],
        label: str,
    ) -> tuple[UserFunction, str]:
        """Return one object and name for all equal functions: a lambda is anew at every reading."""
        key = state_of(fn, *derivatives), len(derivatives), takes
        if key not in self.users:
            along = (0, 0, 2) if takes[2] else takes
            self.users[key] = UserFunction(fn, tuple(UserFunction(d, (), along) for d in derivatives), takes)
        function = self.users[key]
        if function not in self.functions:
            self.functions[function] = unused_name(label, {*named(), *self.functions.values()})
        return function, self.functions[function]

    def require(self, node: Node, check: Callable[[np.ndarray], None]) -> None:
        """Check data now, and record the check for the other inputs that will share these statements."""
        assert isinstance(node, Data)
        constants = {name: self.data[name] for name in refs(node.expr)}

        def requirement(arrays: Mapping[str, Any]) -> None:
            check(_values(node.expr, {**constants, **arrays}))

        requirement({})  # the constants hold the values of the input that is read
        self.requirements.append(requirement)

    def values_of(self, node: Node) -> np.ndarray:
        """Compute the values of a K-node for the current input."""
        assert isinstance(node, Data)
        return _values(node.expr, self.data)

    # Matrix products

    def product(self, matrix: Matrix, operand: object, aligned: int) -> Node:
        """Build `W @ operand`: an embedding of data, a hidden layer, or an output."""
        flat = operand.dims if isinstance(operand, Flat) else 0
        x = self.lift(operand.node if isinstance(operand, Flat) else operand)
        self.refuse_operand(matrix, x)
        assert isinstance(x, Node)
        if isinstance(x, Data):
            return self.embed(matrix, x.reshape(*x.index[: len(x.index) - flat], -1) if flat else x, aligned)
        # A flattened block means sum_i W_i x_i: the axes i are aligned, and MatMul aligns the first ones.
        if 0 < flat < len(x.index):
            first = len(x.index) - flat
            x = x.transpose(*range(first, len(x.index)), *range(first))
        assert x.width is not None
        use = self.use(matrix, x.width, x.index[:flat])
        aligned = flat or aligned
        index = use.flat + matrix.index
        self.check_aligned(aligned, index, x.index)
        if isinstance(matrix.rows, int):
            outputs = index + ((matrix.rows,) if matrix.rows > 1 else ())
            free = outputs[aligned:]
            return Readout(self, "C", free + x.index[aligned:], None, ((matrix, x, aligned),), free)
        out = MatrixProduct(self, "G", index + x.index[aligned:], use.rows, matrix, x, aligned)
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

    def use(self, matrix: Matrix, cols: Width | int, flat: Index = ()) -> MatrixUse:
        """Return the dimensions of a matrix on vectors of dimension `cols`; its first use fixes them."""
        if matrix not in self.uses:
            rows = self.width(matrix.rows if isinstance(matrix.rows, str) else None)
            columns = cols if matrix.cols is None else self.width(matrix.cols)
            self.uses[matrix] = MatrixUse(rows, columns, flat)
        use = self.uses[matrix]
        if use.flat != flat:
            raise fail(
                f"{self.called(matrix)} is applied to flattened blocks of shapes {use.flat} and {flat}",
                "Its fan-in counts the members of the block. Use two matrices, or inputs of one shape.",
            )
        if isinstance(use.cols, Width) and isinstance(cols, Width):
            use.cols.meet(cols, "@")
        elif isinstance(use.cols, Width) or isinstance(cols, Width):
            raise fail(
                f"{self.called(matrix)} is applied to data and to a vector of infinite width",
                "Rule MatMul: a matrix has one number of columns, which would be finite and infinite at "
                "once. Use two matrices.",
            )
        elif use.cols != cols:
            raise fail(
                f"{self.called(matrix)} acts on data of dimension {use.cols}, but meets data of dimension "
                f"{cols}",
                "Rule Embed: one matrix has one number of columns, the length of the last axis of its data. "
                "Check the shapes of the inputs.",
                DataError,
            )
        return use

    def embed(self, matrix: Matrix, x: Node, aligned: int) -> Node:
        """Build U x for data x (..., m), an input G-var in the paper's terms."""
        assert isinstance(x, Data)
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
        use = self.use(matrix, x.index[-1])
        self.check_aligned(aligned, matrix.index, x.index[:-1])
        index = matrix.index + x.index[aligned:-1]
        return MatrixProduct(self, "G", index, use.rows, matrix, x, aligned)

    def check_aligned(self, aligned: int, index: Index, other: Index) -> None:
        """Check that the first `aligned` axes of two index shapes exist and have equal lengths."""
        if type(aligned) is not int or aligned < 0:
            raise fail(f"aligned={aligned!r}", "Give the number of first index axes that run together, >= 0.")
        if index[:aligned] != other[:aligned] or aligned > min(len(index), len(other)):
            raise fail(
                f"aligned={aligned}, but the index shapes {index} and {other} differ",
                "Rule MatMul, aligned: matrix i meets vector i, so both have these axes, with one length.",
            )


def _described(value: Any, numbers: dict[Any, Any]) -> Any:
    """Describe a field of a node; `numbers` identifies the values and expressions of earlier nodes."""
    match value:
        case Node() | Ref() | Apply() if value in numbers:
            return numbers[value]
        case Apply():
            args = (_described(arg, numbers) for arg in value.args)
            return (_described(value.op, numbers), repr(value.attrs), *args)
        case Op(fn=UserFunction() as fn):  # it may be a new object at every reading
            return type(value), fn.likeness
        case tuple():
            return tuple(_described(part, numbers) for part in value)
        case Op() | Ref() | Const() | Matrix() | Vector():
            return value
    return repr(value)


def _values(expr: Expr, arrays: Mapping[str, Any]) -> np.ndarray:
    """Compute an expression of data."""
    blocks = {name: Block(np.asarray(arrays[name]), np.ndim(arrays[name])) for name in refs(expr)}
    return np.asarray(evaluate(expr, blocks).array)


def unused_name(base: str, taken: Collection[str]) -> str:
    """Return `base`, or the first of `base_2`, `base_3`, ... that is not taken."""
    candidates = (f"{base}_{k}" if k > 1 else base for k in count(1))
    return next(name for name in candidates if name not in taken)


def numbers(x: object, what: str) -> np.ndarray:
    """Convert data to a read-only float64 array of finite numbers."""
    try:
        array = arguments.array(what, x) if hasattr(x, "requires_grad") else np.asarray(x)
        objects = array.ravel() if array.dtype.kind == "O" else ()
        real = array.dtype.kind in "biufO" and all(isinstance(v, Real | np.bool_) for v in objects)
        if not real or _is_masked(x):
            raise TypeError
        values = np.array(array, float)
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


def _is_finite(x: Any) -> bool:
    try:
        return bool(np.isfinite(float(x)))
    except OverflowError:
        return False


def _is_masked(x: object) -> bool:
    """Whether an array, or an array in nested lists, has masked entries."""
    if isinstance(x, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(x).any())
    return isinstance(x, list | tuple) and any(_is_masked(part) for part in x)
