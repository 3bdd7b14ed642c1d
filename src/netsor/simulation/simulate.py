"""Many random networks at finite width: their outputs, and their kernels given the body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from netsor.build.network import Group, Joint, Network, as_inputs, joint
from netsor.build.nodes import fail
from netsor.errors import SimulationError
from netsor.lang.program import Input, Output, Program, used_by
from netsor.lang.sampling import input_covariance
from netsor.lang.types import G
from netsor.progress import bar
from netsor.simulation.forward import Values, check_finite, forward, plan
from netsor.simulation.weights import Weights, check_memory, draw, refuse_memory, resolve_widths

__all__ = ["Run", "count", "empirical_kernel", "results", "seed_sequence", "simulate"]


def simulate(
    net: Network | Program,
    x: Any = None,
    width: int | Mapping[str, int] = 1000,
    samples: int = 1,
    seed: int | np.random.SeedSequence | None = None,
    *,
    dtype: Any = np.float64,
    progress: bool | None = None,
) -> np.ndarray:
    """Outputs of random networks of finite width: array (samples, outputs).

    net       a network with a set of inputs `x` (array or list), or a Program by itself
    width     one number for all widths, or a dictionary by name, e.g. {"n1": 512, "n2": 2048}
    seed      sample i depends on the seed and on i alone
    dtype     float32 halves memory and time
    progress  a bar, in a log a line every ten seconds; by default for runs longer than two seconds

    The columns are all output scalars of all inputs in order. One network is held at a time.

    >>> import netsor as ns
    >>> W, v = ns.Matrix(), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ ns.relu(W @ x))
    >>> ns.simulate(net, [[1.0, 2.0], [3.0, 4.0]], width=100, samples=5, seed=0).shape
    (5, 2)
    """
    run = Run(net, x, width, dtype)
    out = results((count(samples), run.rows), run.dtype)
    for i, rng in run.samples(len(out), seed, progress):
        weights = run.draw(rng)
        out[i] = run.outputs(weights)
    check_finite(out, run.program)
    return out


def empirical_kernel(
    net: Network | Program,
    x: Any = None,
    width: int | Mapping[str, int] = 1000,
    samples: int = 1,
    seed: int | np.random.SeedSequence | None = None,
    *,
    dtype: Any = np.float64,
    progress: bool | None = None,
) -> np.ndarray:
    """Kernels of random networks of finite width: array (samples, outputs, outputs).

    Each is the covariance of the outputs given the body: the readout is averaged out exactly, so an
    entry is var_v * h.h' / n. Arguments as for `simulate`.
    """
    run = Run(net, x, width, dtype)
    out = results((count(samples), run.rows, run.rows), run.dtype)
    for i, rng in run.samples(len(out), seed, progress):
        weights = run.draw(rng, skip=run.readouts)
        out[i] = run.kernel(weights)
    check_finite(out, run.program)
    return out


def seed_sequence(seed: Any) -> np.random.SeedSequence:
    """The beginning of all random numbers of a run."""
    if isinstance(seed, np.random.SeedSequence):
        return seed
    if seed is None or (isinstance(seed, int | np.integer) and not isinstance(seed, bool) and seed >= 0):
        return np.random.SeedSequence(seed)
    remedy = "A seed is an integer >= 0, a SeedSequence, or None for a new one each time."
    raise fail(f"seed={seed!r:.60}", remedy, SimulationError)


def count(samples: int) -> int:
    """The number of networks, or an error."""
    if not isinstance(samples, int | np.integer) or isinstance(samples, bool) or not 1 <= samples < 2**62:
        raise fail(f"samples={samples!r:.60}", "The number of networks is an integer >= 1.", SimulationError)
    return int(samples)


def results(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array for the results, if it fits into memory."""
    refuse_memory(
        prod(shape) * dtype.itemsize, f"{prod(shape):,} results", "Ask for fewer samples or outputs."
    )
    return np.empty(shape, dtype)


def _floating(dtype: Any) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if dtype is None or found not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise fail(f"dtype={dtype!r:.60}", "Simulations run in np.float32 or np.float64.", SimulationError)
    return found


class Run:
    """A program on a set of inputs, ready to be evaluated for many draws of the weights."""

    def __init__(self, net: Network | Program, x: Any, width: int | Mapping[str, int], dtype: Any) -> None:
        if isinstance(net, Program):
            net.check()
            net.refuse_changed()
            if x is not None:
                raise fail(
                    "a set of inputs is given with a Program, which has its own data",
                    "Call ns.simulate(program, width=1000), or give the network: "
                    "ns.simulate(net, [x], width=1000).",
                    SimulationError,
                )
            group = Group((0,), tuple(range(len(net.outputs))))
            self.joint = Joint(net, dict(net.data), (group,))
        else:
            self.joint = joint(net, as_inputs(x), finite=True)
        self.program = self.joint.program
        if not self.program.outputs:
            raise fail(
                "the program has no output",
                "A simulation computes outputs: add a line `Output v^T x / sqrt(n)`.",
                SimulationError,
            )
        self.dtype = _floating(dtype)
        self.widths = resolve_widths(self.program, width)
        self.readouts = frozenset(t.readout for s in self.program.outputs for t in s.terms)
        self.steps = plan(self.program)
        self.data = {name: np.asarray(array, self.dtype) for name, array in self.joint.data.items()}
        self.row_of, self.noise = self._rows(), self._noise()
        self.rows = sum(array.size for array in self.row_of)
        members = max(len(group.members) for group in self.joint.groups)
        check_memory(self.program, self.widths, members, self.dtype.itemsize)

    def _rows(self) -> list[np.ndarray]:
        """For each Output statement the row of each of its scalars: array (members, index...)."""
        shapes = [_output_index(self.program, s) for s in self.program.outputs]
        blocks: list[np.ndarray] = [np.zeros(0, int)] * len(shapes)
        per_input: dict[int, list[tuple[int, int]]] = {}
        for group in self.joint.groups:
            for k, member in enumerate(group.members):
                per_input[member] = [(o, k) for o in group.outputs]
            for o in group.outputs:
                blocks[o] = np.zeros((len(group.members), *shapes[o]), int)
        row = 0
        for member in sorted(per_input):
            for o, k in per_input[member]:
                size = prod(shapes[o])
                blocks[o][k] = np.arange(row, row + size).reshape(shapes[o])
                row += size
        return blocks

    def samples(
        self, number: int, seed: Any, progress: bool | None
    ) -> Iterator[tuple[int, np.random.Generator]]:
        """One generator per sample; a bar shows how far we are."""
        seeds = seed_sequence(seed)
        with bar(progress, number, f"simulating, width {max(self.widths.values())}") as advance:
            for i in range(number):
                child = np.random.SeedSequence(seeds.entropy, spawn_key=(*seeds.spawn_key, i))
                yield i, np.random.default_rng(child)
                advance()

    def draw(self, rng: np.random.Generator, skip: frozenset[str] = frozenset()) -> Weights:
        """The weights of one network, and noise for each input."""
        return draw(self.program, self.widths, rng, self.dtype, skip, self.noise)

    def _noise(self) -> dict[str, int]:
        """The inputs that are drawn anew for each member of a group, and their number."""
        found: dict[str, int] = {}
        for group in self.joint.groups if self.program.noise else ():
            stack, seen = [name for o in group.outputs for name in used_by(self.program.outputs[o])], set()
            while stack:
                name = stack.pop()
                if name not in seen and name in self.program.definitions:
                    seen.add(name)
                    stack += used_by(self.program.definitions[name])
            found |= dict.fromkeys(seen & self.program.noise, len(group.members))
        return found

    @np.errstate(all="ignore")  # what is not finite is refused in the end
    def values(self, weights: Weights) -> Values:
        return forward(self.program, weights, self.data, self.steps)

    @np.errstate(all="ignore")
    def outputs(self, weights: Weights) -> np.ndarray:
        values = self.values(weights)
        out = np.zeros(self.rows, self.data_dtype(weights))
        for s, rows in zip(self.program.outputs, self.row_of, strict=True):
            for t in s.terms:
                v, y = weights[t.readout], values[t.operand]
                scalars = _readout(v, y.array, y.rank, t.aligned) / np.sqrt(y.array.shape[-1])
                out[rows] += scalars
            out[rows] += s.shift
        return out

    @staticmethod
    def data_dtype(weights: Weights) -> Any:
        return next(iter(weights.values())).dtype

    @np.errstate(all="ignore")
    def kernel(self, weights: Weights) -> np.ndarray:
        """sum over pairs of readout members of Cov(v, v') h.h' / n."""
        values = self.values(weights)
        features = self.features(values)
        out = np.zeros((self.rows, self.rows), self.data_dtype(weights))
        for (v, k), (rows, h) in features.items():
            for (w, m), (cols, g) in features.items():
                cov = self.readout_covariance(v, w)
                if cov is not None and cov[k, m] != 0:
                    out[np.ix_(rows, cols)] += cov[k, m] / h.shape[1] * (h @ g.T)
        return out

    def readout_covariance(self, v: str, w: str) -> np.ndarray | None:
        s, t = self.program.definitions[v], self.program.definitions[w]
        assert isinstance(s, Input)
        assert isinstance(t, Input)
        return input_covariance(self.program, s, t)

    def features(self, values: Values) -> dict[tuple[str, int], tuple[np.ndarray, np.ndarray]]:
        """For every member of every readout the rows that it reads and what it reads there."""
        found: dict[tuple[str, int], tuple[list, list]] = {}
        for s, rows in zip(self.program.outputs, self.row_of, strict=True):
            for t in s.terms:
                for k, which, vectors in _members(self.program, t, rows, values[t.operand]):
                    lists = found.setdefault((t.readout, k), ([], []))
                    lists[0].append(which)
                    lists[1].append(vectors)
        return {key: _add_up(np.concatenate(r), np.concatenate(h)) for key, (r, h) in found.items()}


def _add_up(rows: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row once, with the sum of its vectors: one output may meet a readout in several terms."""
    once, where = np.unique(rows, return_inverse=True)
    if len(once) == len(rows):
        return rows, vectors
    total = np.zeros((len(once), vectors.shape[1]), vectors.dtype)
    np.add.at(total, where, vectors)
    return once, total


def _output_index(program: Program, s: Output) -> tuple[int, ...]:
    t = s.terms[0]
    v, y = program.types[t.readout], program.types[t.operand]
    return v.index[t.aligned :] + y.index[t.aligned :]


def _readout(v: np.ndarray, y: np.ndarray, rank: int, aligned: int) -> np.ndarray:
    """Scalars (batch..., own index of v, own index of y): products over the width and aligned axes."""
    n, own = v.shape[-1], v.shape[aligned:-1]
    batch, rest = y.shape[: y.ndim - 1 - rank], y.shape[y.ndim - 1 - rank + aligned : -1]
    shared = prod(v.shape[:aligned])
    left = v.reshape(shared, prod(own), n).transpose(1, 0, 2).reshape(prod(own), shared * n)
    right = y.reshape(*batch, shared, prod(rest), n)
    right = np.moveaxis(right, -3, -2).reshape(*batch, prod(rest), shared * n)
    return np.swapaxes(right @ left.T, -1, -2).reshape((*batch, *own, *rest))


def _members(program: Program, t, rows: np.ndarray, y) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For each member k of a readout: the rows it contributes to, and the vectors it multiplies there."""
    type_ = program.types[t.readout]
    assert isinstance(type_, G)
    shared, own = type_.index[: t.aligned], type_.index[t.aligned :]
    n = y.array.shape[-1]
    block = np.broadcast_to(y.array, (len(rows), *y.index, n)).reshape(len(rows), prod(shared), -1, n)
    table = rows.reshape(len(rows), prod(own), -1)
    for k in range(prod(shared)):
        for q in range(prod(own)):
            yield k * prod(own) + q, table[:, q].ravel(), block[:, k].reshape(-1, n)
