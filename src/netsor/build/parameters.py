"""The random parameters of a network: matrices and vectors. Sharing is object identity."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from netsor import arguments
from netsor.arguments import is_integer
from netsor.build.graph_nodes import Node
from netsor.build.readouts import Outputs, Readout
from netsor.build.source_lines import fail
from netsor.errors import DataError
from netsor.lang.learning_rates import check_rate
from netsor.lang.ops import Op
from netsor.lang.program import RESERVED
from netsor.lang.symbols import Operators
from netsor.lang.types import MOST_MEMBERS, TOO_LARGE


def _variance(var: Any, what: str) -> float:
    try:
        var = arguments.array(f"the variance of a {what}", var) if hasattr(var, "requires_grad") else var
        if isinstance(var, str | bytes | bool | np.bool_) or np.ndim(var) or np.ma.is_masked(var):
            raise TypeError
        value = float(var)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise fail(
            f"the variance of a {what} is {var!r:.60}", "Rule Input: a variance is a number >= 0.", DataError
        ) from None
    if not (np.isfinite(value) and value >= 0):
        raise fail(
            f"the variance of a {what} is {value:g}", "Rule Input: a variance is finite and >= 0.", DataError
        )
    return value


def _name(name: object, what: str) -> Any:
    """Check that a name is valid in the text of programs; None is allowed."""
    if name is None:
        return name
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name not in RESERVED:
        return name
    raise fail(
        f"{what}={name!r:.60}",
        "Names in a program have letters, digits and `_` only, as in `W1`, and are no words of the language: "
        f"{', '.join(sorted(RESERVED))}.",
    )


def _index(index: Any) -> tuple[int, ...]:
    """Check the index shape of a block: positive integers."""
    sizes = tuple(index) if isinstance(index, Iterable) and not isinstance(index, str | bytes) else (0,)
    if not all(is_integer(size, 1) for size in sizes):
        raise fail(f"index={index!r:.60}", "The shape of a block is a tuple of integers >= 1: index=(3, 3).")
    if prod(sizes) > MOST_MEMBERS:
        raise fail(f"index={index!r:.60}", TOO_LARGE)
    return tuple(map(int, sizes))


def _rows(rows: Any) -> int | str | None:
    if rows is None or isinstance(rows, str):
        return _name(rows, "rows")
    if is_integer(rows, 1):
        return int(rows)
    raise fail(
        f"a Matrix with rows={rows!r:.60}",
        "A readout has an integer number >= 1 of rows; a hidden layer has rows=None, or a string that names "
        "its width.",
        DataError,
    )


def _law(value: object) -> np.ndarray:
    """Convert a mean or covariance to a float64 array of finite numbers."""
    try:
        if np.asarray(value).dtype.kind not in "iuf" or np.ma.is_masked(value):
            raise TypeError
        array = np.array(value, float)
    except (TypeError, ValueError, OverflowError):
        raise fail(
            f"the law of a Vector is {value!r:.60}",
            "Rule Input: means and covariances are numbers or arrays, whose rows have one length.",
            DataError,
        ) from None
    if not np.isfinite(array).all():
        raise fail(
            "the law of a Vector has a NaN or an infinity",
            "Rule Input: means and covariances are finite numbers.",
            DataError,
        )
    return array


class Matrix(Operators):
    """An A-var: iid entries N(0, var / fan_in), used as `W @ h`.

    Sharing is object identity: a Matrix that is used twice is one matrix.

    Parameters
    ----------
    var
        The variance of an entry times the fan-in.
    rows
        None: an infinite width (a hidden layer, or an input matrix on data). A number: a readout with that
        number of outputs. A string: an infinite width of this name.
    cols
        The name of the width that it acts on; by default it is inferred.
    index
        The shape of a block of independent matrices, e.g. the positions (3, 3) of a convolution's kernel.
    name
        Its name in programs; by default that of the variable.
    rate
        The learning rate, for the tangent kernel; 0 is frozen.

    Examples
    --------
    >>> import netsor as ns
    >>> W, v = ns.Matrix(2.0), ns.Matrix(1.0, rows=1)
    """

    __array_ufunc__ = None

    def __init__(
        self,
        var: float = 1.0,
        rows: int | str | None = None,
        *,
        cols: str | None = None,
        index: tuple[int, ...] = (),
        name: str | None = None,
        rate: float = 1.0,
    ) -> None:
        self.var, self.rate = _variance(var, "Matrix"), check_rate(rate, "a Matrix")
        self.rows, self.cols = _rows(rows), _name(cols, "cols")
        self.index, self.name = _index(index), _name(name, "name")

    def __repr__(self) -> str:
        parts = [f"{self.var:g}", *([f"rows={self.rows!r}"] if self.rows is not None else [])]
        return f"Matrix({', '.join(parts)})"

    def __matmul__(self, operand: object) -> Any:
        return self.times(operand)

    def times(self, operand: object, *, aligned: int = 0) -> Any:
        """Compute `W @ operand`; over the first `aligned` index axes, matrix i multiplies vector i."""
        from netsor.build.trace import current_trace

        if isinstance(operand, int | float) and operand == 0:  # initial states are often the number 0
            return 0
        return current_trace("a Matrix").product(self, operand, aligned)

    def __rmatmul__(self, other: object) -> Any:
        raise fail(
            "a Matrix stands on the right of `@`",
            "Rule MatMul: write `W @ h`; vectors are columns, as in the paper.",
        )

    def __netsor_apply__(self, *_: object) -> Any:
        raise fail(
            "a Matrix stands without a vector",
            "Rule MatMul: a matrix acts on a vector, `W @ h`; functions act on vectors, `ns.relu(W @ h)`.",
        )

    def operate(self, op: Op, *operands: object) -> Any:
        raise fail(
            "a Matrix cannot be added or scaled",
            "Rule MatMul: a matrix acts on a vector, `W @ h`. Its scale is its variance, `ns.Matrix(var)`.",
        )

    @property
    def T(self) -> Any:
        raise fail(
            "a matrix and its transpose cannot be in one program",
            "Netsor has no transposes: W.T @ (W @ x) is not Gaussian in the limit. For an independent matrix "
            "of the same law make another `ns.Matrix(var)`.",
        )


class Vector(Operators):
    """An input G-var with coordinates N(mean, var): a bias, an initial state, or noise.

    Parameters
    ----------
    var
        A variance, or a covariance matrix for a block of correlated vectors.
    mean
        A number, or one for each member of the block.
    index
        The shape of a block of vectors, which are independent if `var` is a number.
    width
        The name of its width; by default it is inferred.
    name, rate
        As for `Matrix`.
    each
        Whether to draw it anew for each input, as noise, which is not trained.

    Examples
    --------
    >>> import netsor as ns
    >>> b = ns.Vector(1.0, mean=0.5)
    """

    __array_ufunc__ = None

    def __init__(
        self,
        var: object = 1.0,
        mean: object = 0.0,
        *,
        index: tuple[int, ...] | None = None,
        width: str | None = None,
        name: str | None = None,
        rate: float = 1.0,
        each: bool = False,
    ) -> None:
        self.each = bool(each)
        cov, self.mean, self.rate = _law(var), _law(mean), check_rate(rate, "a Vector")
        if cov.ndim and (cov.ndim != 2 or cov.shape[0] != cov.shape[1]):
            raise fail(
                f"a covariance of shape {cov.shape}",
                "Rule Input: a covariance matrix is square, with a row for each member of the block. "
                "Independent members with variances a and b have covariance [[a, 0], [0, b]].",
                DataError,
            )
        self.var: Any = cov if cov.ndim else _variance(var, "Vector")
        shape = cov.shape[:1] if cov.ndim else self.mean.shape
        self.index = shape if index is None else _index(index)
        self.width, self.name = _name(width, "width"), _name(name, "name")

    def __repr__(self) -> str:
        law = f"{self.var:g}" if isinstance(self.var, float) else f"{self.var.shape[0]} x {self.var.shape[1]}"
        return f"Vector({law})"

    def _node(self) -> Node:
        from netsor.build.trace import current_trace

        return current_trace("a Vector").leaf(self)

    def __netsor_apply__(self, op, args, attrs):
        return self._node().__netsor_apply__(op, args, attrs)

    def __getitem__(self, key):
        return self._node()[key]

    def operate(self, op: Op, *operands: object) -> Any:
        if any(isinstance(x, Readout | Outputs) for x in operands):
            return NotImplemented  # a bias of outputs, which their operators add
        return self._node().operate(op, *operands)
