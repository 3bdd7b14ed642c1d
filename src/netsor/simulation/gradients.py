"""The empirical NTK: products of gradients of a network's outputs with respect to its parameters.

Gradients are computed by reverse mode, statement by statement. With delta = df/dg for each g := W h, the
gradient in W is the sum of delta h^T over all uses of W, and W^T delta is added to df/dh. This module shares
no code with tangent programs, so that each can test the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from netsor.build.network import Network
from netsor.build.tangent_network import TangentNetwork
from netsor.build.tangent_network import tangent as tangent_of
from netsor.lang.blocks import Block, align
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Expr, Ref, refs, subtrees
from netsor.lang.functions import MIXINGS
from netsor.lang.index_maps import contract
from netsor.lang.input_laws import input_covariance
from netsor.lang.learning_rates import GivenRates, Rates
from netsor.lang.numerical_derivatives import directional, partial_of
from netsor.lang.ops import Function, Mixing, Op, axes_of
from netsor.lang.program import Embedding, Input, MatMul, MatrixLaw, Moment, Output
from netsor.lang.symbols import partial_derivatives
from netsor.lang.types import A
from netsor.simulation.forward import Values, forward
from netsor.simulation.simulate import SimulationRun
from netsor.simulation.weights import Weights, failure, matrix_shape, refuse_memory

Adjoints = dict[Any, np.ndarray]


def empirical_ntk(
    net: Network,
    x: object,
    width: int | Mapping[str, int] = 1000,
    samples: int = 1,
    seed: int | np.random.SeedSequence | None = None,
    *,
    rates: GivenRates = None,
    dtype: object = np.float64,
    progress: bool | None = None,
) -> np.ndarray:
    """Compute tangent kernels of random networks of finite width, exactly.

    Each is the sum over all parameters p of rate_p (df/dp)(df'/dp).

    Parameters
    ----------
    net, x, width, samples, seed, dtype, progress
        As for `ns.simulate`.
    rates
        As for `ns.tangent`; a tangent network is taken with its own rates.

    Returns
    -------
    np.ndarray
        Array (samples, outputs, outputs).

    Examples
    --------
    >>> import netsor as ns
    >>> ns.empirical_ntk(ns.zoo.mlp(2), [[1.0, 2.0], [3.0, 4.0]], width=100, samples=5, seed=0).shape
    (5, 2, 2)
    """
    wrapped = net if isinstance(net, TangentNetwork) else tangent_of(net, rates)
    run = SimulationRun(wrapped.net, x, width, dtype)
    directions, shape = wrapped.rates_of(run.joint.parameters), (run.rows, run.rows)
    return run.sample(samples, seed, progress, shape, lambda weights: _ntk(run, weights, directions))


@np.errstate(all="ignore")  # what is not finite is refused in the end
def _ntk(run: SimulationRun, weights: Weights, rates: Rates) -> np.ndarray:
    """The products of the gradients, parameter by parameter."""
    values = forward(run.program, weights, run.data, keep=True)
    gradients = [_Gradients(run, weights, values, o) for o in range(len(run.program.outputs))]
    laws = {
        s.name: Input(s.name, s.type, rates.law(s, {}, s.name in run.readouts))
        for s in run.program.inputs
        if not isinstance(s.law, Embedding) and s.name not in run.noise
    }
    total = run.kernel_of(values, laws)  # of the readouts
    for name, s in laws.items():
        if name in run.readouts:
            continue
        table = _rows(run, name, gradients)
        if isinstance(s.law, MatrixLaw):
            assert isinstance(s.type, A)
            total += s.law.var / matrix_shape(s.type, run.widths)[1] * (table @ table.T)
        else:
            cov = input_covariance(run.program, s, s)
            assert cov is not None
            table = table.reshape(run.rows, len(cov), -1)
            total += np.einsum("rin,ij,qjn->rq", table, cov, table, optimize=True)
    return total


def _rows(run: SimulationRun, name: str, gradients: list[_Gradients]) -> np.ndarray:
    """The gradient of each output scalar with respect to a parameter, (rows, size of the parameter)."""
    parts = {o: g.of[name] for o, g in enumerate(gradients) if name in g.of}  # (scalars, members, ...)
    size = max((prod(part.shape[2:]) for part in parts.values()), default=1)
    refuse_memory(run.rows * size * run.dtype.itemsize, f"gradients in `{name}`", "Choose a smaller width.")
    table = np.zeros((run.rows, size), run.dtype)
    for o, part in parts.items():
        rows = run.row_of[o].reshape(len(run.row_of[o]), -1).T
        table[rows.reshape(-1)] = part.reshape(rows.size, size)
    return table


class _Gradients:
    """The gradients of one Output statement: `of` maps each parameter to an array (scalars, members, ...).

    The adjoint df/dx of a variable x has axes (scalars, members, index..., width), the last for vectors only.
    """

    def __init__(self, run: SimulationRun, weights: Weights, values: Values, output: int) -> None:
        self.program, self.weights, self.values = run.program, weights, values
        self.of: Adjoints = {}
        self.adjoints: Adjoints = {}
        self.members = run.row_of[output].shape[0]
        self.scalars = prod(run.row_of[output].shape[1:])
        self.read(run.program.outputs[output])
        # All uses of a variable come after its definition, so in reverse order its adjoint is complete.
        for s in reversed(run.program.statements):
            if isinstance(s, Output) or s.name not in self.adjoints:
                continue
            adjoint = self.adjoints.pop(s.name)
            match s:
                case Input(law=Embedding(matrix, data, aligned)):
                    x = evaluate(data, values)
                    self.multiply(matrix, adjoint, Block(x.array, x.rank - 1, True), aligned)
                case Input():
                    self.of[s.name] = adjoint
                case MatMul(matrix=matrix, operand=operand, aligned=aligned):
                    self.multiply(matrix, adjoint, values[operand], aligned, operand)
                case Moment():
                    n = evaluate(s.expr, values).array.shape[-1]
                    self.expression(s.expr, np.repeat(adjoint[..., None] / n, n, axis=-1))
                case _:
                    self.expression(s.expr, adjoint)

    # Statements

    def read(self, s: Output) -> None:
        """df/dy = v / sqrt(n), for each scalar f = v.y / sqrt(n) of the output."""
        for t in s.terms:
            v, y = self.weights[t.readout], self.values[t.operand]
            n, shared, vectors = v.shape[-1], prod(v.shape[: t.aligned]), prod(y.index[t.aligned :])
            readout = v.reshape(shared, -1, n).swapaxes(0, 1) / np.sqrt(n)
            # Axes of the scalar (member of v, member of y), then those of the gradient.
            adjoint = np.zeros((len(readout), vectors, self.members, shared, vectors, n), v.dtype)
            for j in range(vectors):
                adjoint[:, j, :, :, j] = readout[:, None]
            self.add(t.operand, adjoint.reshape(self.scalars, self.members, *y.index, n))

    def add(self, name: str, adjoint: np.ndarray) -> None:
        """Add to the adjoint of a variable."""
        self.adjoints[name] = self.adjoints.get(name, 0) + adjoint

    def multiply(self, matrix: str, delta: np.ndarray, h: Block, aligned: int, operand: str = "") -> None:
        """Add df/dW = sum of delta h^T over the vectors h that W multiplies, and df/dh = sum of W^T delta."""
        # o: scalars, m: members, a: aligned axes, e: other axes of W, j: other axes of h, r: rows, c: columns
        weight, axes = self.weights[matrix], (self.scalars, self.members)
        w = weight.reshape(prod(weight.shape[:aligned]), -1, *weight.shape[-2:])
        array = np.broadcast_to(h.array, (self.members, *h.index, w.shape[3]))
        array = array.reshape(self.members, len(w), -1, w.shape[3])
        delta = delta.reshape(*axes, *w.shape[:2], array.shape[2], w.shape[2])
        outer = np.einsum("omaejr,majc->omaerc", delta, array, optimize=True).reshape(*axes, *weight.shape)
        self.of[matrix] = self.of.get(matrix, 0) + outer
        if operand:  # data take no gradient
            inner = np.einsum("omaejr,aerc->omajc", delta, w, optimize=True)
            self.add(operand, inner.reshape(*axes, *h.index, w.shape[3]))

    # Expressions

    def expression(self, expr: Expr, adjoint: np.ndarray) -> None:
        """Propagate the adjoint of an expression to its variables."""
        adjoints: Adjoints = {expr: adjoint}
        for node in reversed(list(subtrees(expr))):
            if node not in adjoints or isinstance(node, Const):
                continue
            node_adjoint = adjoints.pop(node)
            if isinstance(node, Ref):
                if node.name not in self.program.data:
                    self.add(node.name, node_adjoint)
                continue
            blocks = [evaluate(a, self.values) for a in node.args]
            for k, arg in enumerate(node.args):
                if not self.program.data.keys() >= set(refs(arg)):
                    part = self.argument(node_adjoint, node, blocks, k)
                    adjoints[arg] = adjoints.get(arg, 0) + part

    def argument(self, adjoint: np.ndarray, e: Apply, blocks: list[Block], k: int) -> np.ndarray:
        """Propagate the adjoint of an operation to its argument k."""
        if isinstance(e.op, Function):
            slope = (
                partial_derivatives(e.op, e.args, e.options)[k]
                if e.op.about(e.options).derivative is not None
                else Apply(partial_of(e.op, k), e.args, e.attrs)
            )
            _, rank, vector = align(blocks)
            return _summed(adjoint * evaluate(slope, self.values).lift(rank, vector), rank, vector, blocks[k])
        if e.op is contract:
            return _contracted(adjoint, blocks[0], blocks[1], k)
        if isinstance(e.op, Mixing):
            return self.mixed(adjoint, e, e.op, blocks[0])
        # Apply the transpose of a linear map on index axes.
        matrix, arg = _matrix(e.op, e.attrs, tuple(b.index for b in blocks), k), blocks[k]
        width = adjoint.shape[-1:] if arg.vector else ()
        flat = adjoint.reshape(self.scalars, self.members, matrix.shape[1], prod(width))
        return np.matmul(matrix, flat).reshape(self.scalars, self.members, *arg.index, *width)

    def mixed(self, adjoint: np.ndarray, e: Apply, op: Mixing, x: Block) -> np.ndarray:
        """Apply the transposed Jacobian of a function that mixes members.

        The Jacobians of softmax and batchnorm are symmetric, so the formulas are those of their tangents.
        """
        axes = tuple(x.axis(a) for a in axes_of(e.options["axis"], x.rank))
        if op.user:  # column by column: one direction per member
            slope, full = directional(op), np.zeros((self.scalars, self.members, *x.index, x.array.shape[-1]))
            for place in np.ndindex(*(x.array.shape[a] for a in axes)):
                key: list[Any] = [slice(None)] * x.array.ndim
                for a, i in zip(axes, place, strict=True):
                    key[a] = i
                one = np.zeros_like(x.array)
                one[tuple(key)] = 1.0
                part = adjoint * slope.run(x, Block(one, x.rank, x.vector), axis=e.options["axis"]).array
                full[(..., *key[-(x.rank + 1) :])] = part if op.reduces else part.sum(axis=axes)
            return full
        if op.name in ("max", "min"):
            sign = 1.0 if op.name == "max" else -1.0
            chosen = MIXINGS["argmax"].run(Block(sign * x.array, x.rank, x.vector), axis=e.options["axis"])
            return np.expand_dims(adjoint, tuple(sorted(axes))) * chosen.array
        if op.name == "argmax":
            return np.zeros_like(adjoint)
        y = evaluate(e, self.values).array
        along = np.sum(y * adjoint, axis=axes, keepdims=True)
        if op.name == "softmax":
            return y * (adjoint - along)
        size, eps = prod(x.array.shape[a] for a in axes), e.options.get("eps", 0.0)
        deviation = np.sqrt(x.array.var(axis=axes, keepdims=True) + eps)
        return (adjoint - adjoint.mean(axis=axes, keepdims=True) - y * along / size) / deviation


def _contracted(adjoint: np.ndarray, m: Block, x: Block, k: int) -> np.ndarray:
    """For y_i = sum_j M_ij x_j: df/dM = df/dy x^T (k = 0), and df/dx = M^T df/dy (k = 1)."""
    column = x if x.vector else Block(x.array[..., None], x.rank, True)
    a = adjoint if x.vector else adjoint[..., None]  # (scalars, members, index..., i, n)
    rank = max(m.rank - 1, x.rank)
    if k == 0:
        return _summed(a @ np.swapaxes(column.lift(rank, True), -1, -2), rank + 1, False, m)
    part = _summed(np.swapaxes(m.lift(rank + 1, False), -1, -2) @ a, rank, True, column)
    return part if x.vector else part[..., 0]


def _summed(array: np.ndarray, rank: int, vector: bool, arg: Block) -> np.ndarray:
    """Sum an adjoint with `rank` index axes over the axes along which `arg` was broadcast."""
    if vector and not arg.vector:
        array = array.sum(axis=-1)
    first = array.ndim - rank - arg.vector
    array = array.sum(axis=tuple(range(first, first + rank - arg.rank)))
    index = array.shape[first : first + arg.rank]
    narrow = tuple(first + k for k, (n, m) in enumerate(zip(index, arg.index, strict=True)) if n != m)
    return array.sum(axis=narrow, keepdims=True)


@lru_cache(maxsize=256)
def _matrix(op: Op, attrs: Any, shapes: tuple[tuple[int, ...], ...], k: int) -> np.ndarray:
    """The matrix (members of argument k, members of the result) of a linear map on index axes."""
    size = prod(shapes[k])
    if size > 2**14:  # the matrix would take 2 GB
        raise failure(
            f"the derivative of `{op.name}` of {size:,} members is too large for an empirical tangent kernel",
            "Its matrix has a row for each member. Take smaller inputs, or smaller kernels of convolutions.",
        )
    blocks = [Block(np.zeros((1, *shape)), len(shape)) for shape in shapes]
    # Map all unit vectors at once, as a batch.
    blocks[k] = Block(np.eye(size).reshape(size, *shapes[k]), len(shapes[k]))
    images = op.run(*blocks, **dict(attrs))
    return images.array.reshape(size, -1)
