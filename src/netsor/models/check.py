"""The check that settles everything: the model's own weights in its program give the model's own output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsor.build.network import program
from netsor.errors import BuildError, SimulationError
from netsor.lang.program import Input, Output, Program
from netsor.lang.types import A, G
from netsor.models.network import ModelNetwork
from netsor.models.operations.codes import cosines
from netsor.models.operations.parameters import stored_numbers
from netsor.models.reader import Use
from netsor.simulation.forward import Values, forward, plan

__all__ = ["Check", "check_import"]


@dataclass(frozen=True)
class Check:
    """The largest difference between the program and the model, relative to the largest output.

    tolerance  what rounding in the model's own precision may do
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

    The outputs must be equal to rounding, relative to the largest: to 1e-12 if the model computes in float64
    throughout, else to 1e-5. An error is raised if they are not.
    """
    if not isinstance(net, ModelNetwork):
        raise BuildError(
            f"`{getattr(net, 'name', net)}` is not imported from a model",
            remedy="check_import compares a network from ns.from_torch, ns.from_jax and the like with its "
            "model.",
        )
    made = program(net, x)
    own = model_outputs(net, x)
    mine = run_with(made, own_weights(net, made) | own_masks(net))
    theirs = np.concatenate([np.ravel(a).astype(float) for a in own])
    size = float(np.abs(theirs).max()) or 1.0
    difference = float(np.abs(mine - theirs).max()) / size if mine.shape == theirs.shape else math.inf
    limit = (1e-5 if net.single else 1e-12) if tolerance is None else tolerance
    if not difference <= limit:
        raise SimulationError(
            f"the program with the model's own weights differs from the model by {difference:.1e}",
            remedy=f"The largest relative difference may be {limit:.0e}. Please report the model: some "
            "operation is not read as it should be.",
        )
    return Check(difference, limit, mine)


def model_outputs(net: ModelNetwork, x: Any) -> list[np.ndarray]:
    """The model's own results, in netsor's order: rows of a readout first."""
    inputs = [np.asarray(part) for part in (x if isinstance(x, tuple) else (x,))]
    results = net.front.run(inputs)
    chosen = results if net.output is None else [results[net.output]]
    return [a.transpose(order) for a, order in zip(chosen, net.output_orders(), strict=True)]


# The model's own weights as those of a program


def own_weights(net: ModelNetwork, made: Program) -> dict[str, np.ndarray]:
    """For every matrix and vector of a program the numbers that the model itself has."""
    arrays = net.front.numbers()
    weights: dict[str, np.ndarray] = {}
    for s in made.inputs:
        if s.name in net.registry.uses:
            use = net.registry.uses[s.name]
            weights[s.name] = _numbers(use, arrays[use.parameter.name])
    weights |= {v.name: cosines(n) for n, v in net.registry.waves.items() if v.name}
    sizes = _widths(made, weights)
    for s in made.inputs:
        if s.name not in weights and isinstance(s.type, G) and s.name.startswith("ones"):
            weights[s.name] = np.ones(sizes.get(s.type.width, 1))
    return {
        name: _spread(made, s, w, sizes)
        for s in made.inputs
        if (w := weights.get(name := s.name)) is not None
    }


def own_masks(net: ModelNetwork) -> dict[str, np.ndarray]:
    """The masks of the model's last run, as vectors whose sign is positive where a coordinate is kept."""
    drawn = iter(net.front.drawn)
    found = {}
    for one in net.masks:
        kept = next(drawn) if one.numbers is None else one.numbers
        factors = [f for axis in one.axes for f in axis]
        order = sorted(range(len(factors)), key=lambda k: factors[k].is_vector)
        assert one.vector.name is not None
        found[one.vector.name] = 2.0 * kept.reshape([f.size[0] for f in factors]).transpose(order) - 1.0
    return found


def _numbers(use: Use, array: np.ndarray) -> np.ndarray:
    """An array of the model in the order of the program: index axes, rows, columns."""
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
        rest = [k for k in index if k not in batch]
        return a.transpose([*batch, *across, *rest, *rows, *columns])
    n = a.shape[columns[0]]
    count = math.prod(a.shape[k] for k in index)
    b = a.transpose([*across, *index, *columns]) * math.sqrt(n)
    return b.reshape(*(a.shape[k] for k in across), *((count,) if count > 1 else ()), n)


def _widths(made: Program, weights: dict[str, np.ndarray]) -> dict[str, int]:
    """The number of coordinates of each width, from the arrays."""
    sizes: dict[str, int] = {}
    for s in made.inputs:
        w = weights.get(s.name)
        if w is None:
            continue
        if isinstance(s.type, A):
            dims = zip((s.type.rows, s.type.cols), w.shape[-2:], strict=True)
            sizes |= {d: n for d, n in dims if isinstance(d, str)}
        elif isinstance(s.type, G):
            sizes[s.type.width] = max(sizes.get(s.type.width, 1), w.shape[-1])
    return sizes


def _spread(made: Program, s: Input, w: np.ndarray, sizes: dict[str, int]) -> np.ndarray:
    """The bias of an output reads a vector of ones: b = sum_i v_i / sqrt(n) with v_i = b / sqrt(n)."""
    if isinstance(s.type, G) and w.shape[-1] == 1 and sizes[s.type.width] > 1:
        n = sizes[s.type.width]
        return np.repeat(w, n, axis=-1) / math.sqrt(n)
    return w


# A program with given weights


def run_with(made: Program, weights: dict[str, np.ndarray]) -> np.ndarray:
    """All outputs of a program in order."""
    values = forward(made, weights, dict(made.data), plan(made))
    return np.concatenate([_output(s, weights, values).ravel() for s in made.outputs])


def _output(s: Output, weights: dict[str, np.ndarray], values: Values) -> np.ndarray:
    """sum over terms of v^T y / sqrt(n); aligned index axes of both are summed over."""
    out: Any = 0.0
    for t in s.terms:
        v, y = weights[t.readout], np.asarray(values[t.operand].array)
        k, n = t.aligned, v.shape[-1]
        y = np.broadcast_to(y, (*y.shape[:-1], n))
        shared = list(range(k))
        scalars = np.tensordot(v, y, axes=([*shared, v.ndim - 1], [*shared, y.ndim - 1]))
        out = out + scalars / math.sqrt(n)
    return np.asarray(out)
