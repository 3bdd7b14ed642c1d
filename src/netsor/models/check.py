"""The check of an import: with the model's weights, the program must reproduce the model's output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.build.joint_program import Joint, joint
from netsor.errors import BuildError, SimulationError
from netsor.lang.program import Input, Output, Program
from netsor.lang.types import A, G
from netsor.models.network import ModelNetwork
from netsor.models.operations.codes import cosines
from netsor.models.operations.parameters import stored_numbers
from netsor.models.reader import Use
from netsor.simulation.forward import Values, forward, plan


@dataclass(frozen=True)
class Check:
    """The largest difference between the program and the model, relative to the largest output.

    tolerance  the largest difference that rounding in the model's precision explains
    """

    difference: float
    tolerance: float
    outputs: np.ndarray

    def __str__(self) -> str:
        return (
            f"the import is exact: relative difference {self.difference:.1e} (tolerance {self.tolerance:.0e})"
        )


def check_import(net: ModelNetwork, x: Any, tolerance: float | None = None) -> Check:
    """Run the program of an imported network with the model's own weights, at the model's own width.

    The outputs must be equal up to rounding, relative to the largest: to 1e-12 if the model computes in
    float64 throughout, else to 1e-5. If float32 fails by cancellation, the model is run in float64. Otherwise
    an error is raised. Networks run this check on the first input of each shape, unless check=False.
    """
    if not isinstance(net, ModelNetwork):
        raise BuildError(
            f"`{getattr(net, 'name', net)}` is not imported from a model",
            remedy="check_import compares a network from ns.from_torch, ns.from_jax and the like with its "
            "model.",
        )
    checks, net.checks = net.checks, False
    try:
        read = joint(net, [x])
    finally:
        net.checks = checks
    limit = (1e-5 if net.single else 1e-12) if tolerance is None else tolerance
    difference, mine = compare(net, read, x)
    if not difference <= limit and net.single and not any(m.numbers is not None for m in net.masks):
        difference, mine = _in_double(net, read, x) or (difference, mine)
    if not difference <= limit:
        raise _different(net, difference, limit)
    return Check(difference, limit, mine)


def _in_double(net: ModelNetwork, read: Joint, x: Any) -> tuple[float, np.ndarray] | None:
    """Compare in float64; return None if the model cannot run in float64."""
    try:
        return compare(net, read, x, double=True)
    except SimulationError:
        return None


def _different(net: ModelNetwork, difference: float, limit: float) -> SimulationError:
    if math.isnan(difference):
        return SimulationError(
            f"the model `{net.name}` returns numbers that are not finite",
            remedy="It overflows, divides by 0, or reads memory that it never wrote (torch.empty). "
            "check=False turns this check off.",
        )
    return SimulationError(
        f"the program of `{net.name}` with the model's own weights differs from the model by "
        f"{difference:.1e}",
        remedy=f"The largest relative difference may be {limit:.0e}. Please report the model: some operation "
        "is not read as it should be. check=False turns this check off.",
    )


def compare(net: ModelNetwork, read: Joint, x: Any, double: bool = False) -> tuple[float, np.ndarray]:
    """Return the largest difference between a program and its model, and the program's outputs.

    The difference is relative to the largest output.
    An output that is small by cancellation has the rounding errors of its terms, so it counts as large as the
    root of the sum of its squared terms.
    """
    theirs = model_outputs(net, x, double)
    mine, squares = run_with(read.program, own_weights(net, read) | own_masks(net, read))
    if mine.shape != theirs.shape:
        return math.inf, mine
    size = max(float(np.abs(theirs).max()), math.sqrt(squares.max())) or 1.0
    return float(np.abs(mine - theirs).max()) / size, mine


def model_outputs(net: ModelNetwork, x: Any, double: bool = False) -> np.ndarray:
    """Run the model, and return its results in netsor's order: rows of a readout first.

    Parameters that the user fixed to a number have that number. Constants that the program leaves out of the
    outputs are subtracted: they are the results with all readouts 0.
    """
    given = {row.name: row.law.mean for row in net.rows if row.law.is_constant and row.law.source == "given"}
    outputs = _run_model(net, x, given, double)
    if not net.offset:
        return outputs
    ends = [u.parameter.name for u in net.registry.uses.values() if u.role in ("readout", "output bias")]
    drawn = net.front.drawn
    offset = _run_model(net, x, given | dict.fromkeys(ends, 0.0), double)
    net.front.drawn = drawn
    return outputs - offset


def _run_model(net: ModelNetwork, x: Any, fills: dict[str, float], double: bool) -> np.ndarray:
    inputs = [np.asarray(part) for part in (x if isinstance(x, tuple) else (x,))]
    try:
        results = net.front.run(inputs, fills, double)
    except Exception as error:  # a user's model may raise anything
        raise SimulationError(
            f"the model `{net.name}` cannot be run on the input: {error}",
            remedy="Call it on an input of this shape yourself. check=False turns this check off.",
        ) from error
    chosen = results if net.output is None else [results[net.output]]
    ordered = [a.transpose(order) for a, order in zip(chosen, net.output_orders(), strict=True)]
    return np.concatenate([np.ravel(a).astype(float) for a in ordered])


# The model's own weights as those of a program


def own_weights(net: ModelNetwork, read: Joint) -> dict[str, np.ndarray]:
    """Return the model's numbers for each matrix and vector of a program."""
    arrays, registry = net.front.numbers(), net.registry
    uses = {
        parameter: registry.uses[parameter.name] for parameter in registry.by_piece.values() if parameter.name
    }
    waves = {vector: size for size, vector in registry.waves.items()}
    weights: dict[str, np.ndarray] = {}
    for name, parameter in read.parameters.items():
        if parameter in uses:
            weights[name] = _numbers(uses[parameter], arrays[uses[parameter].parameter.name])
        elif parameter in waves:
            weights[name] = cosines(waves[parameter])
    sizes = _widths(read.program, weights)
    for s in read.program.inputs:
        if isinstance(s.type, G) and read.parameters.get(s.name) in registry.ones:
            weights[s.name] = np.ones(sizes.get(s.type.width, 1))
    return {
        name: _spread(s, w, sizes)
        for s in read.program.inputs
        if (w := weights.get(name := s.name)) is not None
    }


def own_masks(net: ModelNetwork, read: Joint) -> dict[str, np.ndarray]:
    """Return the dropout masks of the model's last run, as vectors g with step(g) = mask."""
    drawn = iter(net.front.drawn)
    names = {vector: name for name, vector in read.parameters.items()}
    masks = {}
    for one in net.masks:
        kept = next(drawn) if one.numbers is None else one.numbers
        factors = [f for axis in one.axes for f in axis]
        order = sorted(range(len(factors)), key=lambda k: factors[k].is_vector)
        masks[names[one.vector]] = 2.0 * kept.reshape([f.size[0] for f in factors]).transpose(order) - 1.0
    return masks


def _numbers(use: Use, array: np.ndarray) -> np.ndarray:
    """Arrange an array of the model in the order of the program: (index..., rows, columns)."""
    p = use.parameter
    a = stored_numbers(p, array) * p.scale.one
    factors = [(i, f) for i, axis in enumerate(p.axes) for f in axis]
    wide = [k for k, (_, f) in enumerate(factors) if f.width]
    summed = [k for k, (i, _) in enumerate(factors) if i in use.contracted]
    finite = [k for k in range(len(factors)) if k not in wide]
    if use.role == "vector":
        return a.transpose([*finite, *wide])
    if use.role == "output bias":
        return a.reshape(-1, 1) if a.size > 1 else a.reshape(1)
    index = [k for k in finite if k not in summed]
    across = [k for k in finite if k in summed]
    rows, columns = [k for k in wide if k not in summed], [k for k in wide if k in summed]
    if use.role == "embedding":
        b = a.transpose([*index, *rows, *across])
        return b.reshape(*b.shape[: len(index) + 1], -1)
    if use.role == "hidden":
        batch = [k for k in index if factors[k][0] < min(use.contracted)]
        free = [k for k in index if k not in batch]
        return a.transpose([*batch, *across, *free, *rows, *columns])
    n = a.shape[columns[0]]
    count = math.prod(a.shape[k] for k in index)
    b = a.transpose([*across, *index, *columns]) * math.sqrt(n)
    return b.reshape(*(a.shape[k] for k in across), *((count,) if count > 1 else ()), n)


def _widths(program: Program, weights: dict[str, np.ndarray]) -> dict[str, int]:
    """Find the size of each width from the arrays."""
    sizes: dict[str, int] = {}
    for s in program.inputs:
        w = weights.get(s.name)
        if w is None:
            continue
        if isinstance(s.type, A):
            dims = zip((s.type.rows, s.type.cols), w.shape[-2:], strict=True)
            sizes |= {d: n for d, n in dims if isinstance(d, str)}
        elif isinstance(s.type, G):
            sizes[s.type.width] = max(sizes.get(s.type.width, 1), w.shape[-1])
    return sizes


def _spread(s: Input, w: np.ndarray, sizes: dict[str, int]) -> np.ndarray:
    """The bias of an output reads a vector of ones: b = sum_i v_i / sqrt(n) with v_i = b / sqrt(n)."""
    if isinstance(s.type, G) and w.shape[-1] == 1 and sizes[s.type.width] > 1:
        n = sizes[s.type.width]
        return np.repeat(w, n, axis=-1) / math.sqrt(n)
    return w


# A program with given weights


def run_with(program: Program, weights: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return all outputs of a program in order, and for each the sum of its squared terms."""
    values = forward(program, weights, dict(program.data), plan(program))
    outputs = [_output(s, weights, values) for s in program.outputs]
    sums, squares = (np.concatenate([parts[k].ravel() for parts in outputs]) for k in (0, 1))
    return sums, squares


def _output(s: Output, weights: dict[str, np.ndarray], values: Values) -> tuple[np.ndarray, np.ndarray]:
    """The sum over terms of v^T y / sqrt(n), and the sum of their squares; aligned index axes are summed."""
    out: Any = 0.0
    squares: Any = 0.0
    for t in s.terms:
        v, y = weights[t.readout], np.asarray(values[t.operand].array)
        k, n = t.aligned, v.shape[-1]
        y = np.broadcast_to(y, (*y.shape[:-1], n))
        shared = list(range(k))
        axes = ([*shared, v.ndim - 1], [*shared, y.ndim - 1])
        out = out + np.tensordot(v, y, axes=axes) / math.sqrt(n)
        squares = squares + np.tensordot(v**2, y**2, axes=axes) / n
    return np.asarray(out), np.asarray(squares)
