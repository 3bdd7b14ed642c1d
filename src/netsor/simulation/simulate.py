"""Random networks of finite width: samples of their outputs and of their empirical kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count, islice, product
from math import prod
from typing import Any

import numpy as np

from netsor import arguments
from netsor.build.joint_program import InputGroup, Joint, as_inputs, joint
from netsor.build.network import Network
from netsor.lang.input_laws import input_covariance
from netsor.lang.program import Input, Program, used_by
from netsor.progress import bar
from netsor.simulation.forward import Values, forward, plan
from netsor.simulation.weights import Weights, check_memory, draw, failure, refuse_memory, resolve_widths


def simulate(
    net: Network | Program,
    x: object = None,
    width: int | Mapping[str, int] = 1000,
    samples: int = 1,
    seed: int | np.random.SeedSequence | None = None,
    *,
    dtype: object = np.float64,
    progress: bool | None = None,
) -> np.ndarray:
    """Compute the outputs of random networks of finite width.

    Parameters
    ----------
    net
        A network, with a set of inputs x, or a Program, without.
    x
        The inputs: an array whose first axis runs over them, or a list.
    width
        One number for all widths, or a dictionary by name, e.g. {"n1": 512, "n2": 2048}.
    samples
        Number of networks; memory holds one at a time.
    seed
        Sample i depends only on the seed and on i.
    dtype
        `np.float32` halves memory and time.
    progress
        Whether to show a progress bar; by default after two seconds. In a log file, a line every ten seconds.

    Returns
    -------
    np.ndarray
        (samples, outputs); the columns are all output scalars of all inputs in order.

    Raises
    ------
    SimulationError
        If a result is not finite, or does not fit into memory.

    Examples
    --------
    >>> import netsor as ns
    >>> W, v = ns.Matrix(), ns.Matrix(rows=1)
    >>> net = ns.network(lambda x: v @ ns.relu(W @ x))
    >>> ns.simulate(net, [[1.0, 2.0], [3.0, 4.0]], width=100, samples=5, seed=0).shape
    (5, 2)
    """
    run = SimulationRun(net, x, width, dtype)
    return run.sample(samples, seed, progress, (run.rows,), run.outputs)


def empirical_kernel(
    net: Network | Program,
    x: object = None,
    width: int | Mapping[str, int] = 1000,
    samples: int = 1,
    seed: int | np.random.SeedSequence | None = None,
    *,
    dtype: object = np.float64,
    progress: bool | None = None,
) -> np.ndarray:
    """Compute empirical kernels of random networks of finite width.

    A kernel is the covariance of the outputs given all weights but the readout's: var_v * h.h' / n.

    Parameters
    ----------
    net, x, width, samples, seed, dtype, progress
        As for `simulate`.

    Returns
    -------
    np.ndarray
        (samples, outputs, outputs).
    """
    run = SimulationRun(net, x, width, dtype)
    return run.sample(samples, seed, progress, (run.rows, run.rows), run.kernel, run.readouts)


def seed_sequence(seed: object) -> np.random.SeedSequence:
    """Check a seed and return the root of all random numbers of a run."""
    if isinstance(seed, np.random.SeedSequence):
        return seed
    if seed is None or (isinstance(seed, int | np.integer) and not isinstance(seed, bool) and seed >= 0):
        return np.random.SeedSequence(seed)
    remedy = "A seed is an integer >= 0, a SeedSequence, or None for a new one each time."
    raise failure(f"seed={seed!r:.60}", remedy)


def _floating(dtype: Any) -> np.dtype:
    try:
        floating = np.dtype(dtype)
    except TypeError:
        floating = np.dtype(object)
    if dtype is None or floating not in (np.float32, np.float64):
        raise failure(f"dtype={dtype!r:.60}", "Simulations run in np.float32 or np.float64.")
    return floating


class SimulationRun:
    """A program on a set of inputs, prepared for evaluation with many draws of the weights."""

    def __init__(
        self, net: Network | Program, x: object, width: int | Mapping[str, int], dtype: object
    ) -> None:
        if isinstance(net, Program):
            net.check()
            net.refuse_changed()
            if x is not None:
                raise failure(
                    "a set of inputs is given with a Program, which has its own data",
                    "Call ns.simulate(program, width=1000), or give the network: "
                    "ns.simulate(net, [x], width=1000).",
                )
            group = InputGroup((0,), tuple(range(len(net.outputs))))
            self.joint = Joint(net, dict(net.data), (group,))
        else:
            self.joint = joint(net, as_inputs(x), finite=True)
        self.program = self.joint.program
        if not self.program.outputs:
            remedy = "A simulation computes outputs: add a line `Output v^T x / sqrt(n)`."
            raise failure("the program has no output", remedy)
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
        """For each Output statement, the rows of its scalars in the result, (members, index...)."""
        types, firsts = self.program.types, [s.terms[0] for s in self.program.outputs]
        # Axes of members of the readout, then of members of the operand.
        shapes = [types[t.readout].index[t.aligned :] + types[t.operand].index[t.aligned :] for t in firsts]
        groups = self.joint.groups
        blocks = {o: np.zeros((len(g.members), *shapes[o]), int) for g in groups for o in g.outputs}
        rows = count()
        # Rows are in the order of the inputs, which groups by shape do not keep.
        for _, k, outputs in sorted((i, k, g.outputs) for g in groups for k, i in enumerate(g.members)):
            for o in outputs:
                blocks[o][k] = np.reshape(list(islice(rows, prod(shapes[o]))), shapes[o])
        return [blocks[o] for o in range(len(shapes))]

    def sample(
        self,
        samples: int,
        seed: object,
        progress: bool | None,
        shape: tuple[int, ...],
        result: Callable[[Weights], np.ndarray],
        skip: frozenset[str] = frozenset(),
    ) -> np.ndarray:
        """Compute the result of each of the random networks, (samples, shape...); `skip` is not drawn."""
        remedy = "The number of networks is an integer >= 1."
        networks = arguments.whole("samples", samples, 1, remedy=remedy, error=failure)
        size = networks * prod(shape)
        remedy = "Ask for fewer samples or outputs."
        refuse_memory(size * self.dtype.itemsize, f"{size:,} results", remedy)
        out = np.empty((networks, *shape), self.dtype)
        seeds = seed_sequence(seed)
        with bar(progress, networks, f"simulating, width {max(self.widths.values())}") as advance:
            for i in range(networks):
                # The child with number i, without the state that `seeds.spawn` would change.
                child = np.random.SeedSequence(seeds.entropy, spawn_key=(*seeds.spawn_key, i))
                rng = np.random.default_rng(child)
                out[i] = result(draw(self.program, self.widths, rng, self.dtype, skip, self.noise))
                advance()
        if not np.isfinite(out).all():
            bad = np.argwhere(~np.isfinite(out))[0]
            raise failure(
                f"the simulation is not finite: sample {bad[0]}, output {bad[1]} is {out[tuple(bad)]}",
                "A normalisation divides by zero (layernorm of a zero input, batchnorm of a batch whose "
                "members are all equal), or a function overflows. Leave such inputs out, or normalise with "
                "an eps > 0.",
            )
        return out

    def _noise(self) -> dict[str, int]:
        """For each noise input, the number of members of the group that reads it."""
        members: dict[str, int] = {}
        for group in self.joint.groups if self.program.noise else ():
            read = {name for o in group.outputs for name in used_by(self.program.outputs[o])}
            for s in reversed(self.program.definitions.values()):
                read.update(used_by(s) if s.name in read else ())
            members |= dict.fromkeys(read & self.program.noise, len(group.members))
        return members

    @np.errstate(all="ignore")  # `sample` refuses NaN and infinity in the end
    def outputs(self, weights: Weights) -> np.ndarray:
        """sum over terms v.y / sqrt(n), plus the shift; (rows,)."""
        out = np.zeros(self.rows, self.dtype)
        values = forward(self.program, weights, self.data, self.steps)
        for (v, k), (rows, h) in self.features(values).items():
            out[rows] += h @ weights[v].reshape(-1, h.shape[1])[k] / np.sqrt(h.shape[1])
        for s, rows in zip(self.program.outputs, self.row_of, strict=True):
            out[rows] += s.shift
        return out

    @np.errstate(all="ignore")
    def kernel(self, weights: Weights) -> np.ndarray:
        """The covariance of the outputs given all weights but the readouts', (rows, rows)."""
        laws = {name: s for name in self.readouts if isinstance(s := self.program.definitions[name], Input)}
        return self.kernel_of(forward(self.program, weights, self.data, self.steps), laws)

    def kernel_of(self, values: Values, laws: Mapping[str, Input]) -> np.ndarray:
        """sum over pairs of readout members v, v' of Cov(v, v') h.h' / n; (rows, rows)."""
        features = self.features(values)
        pairs = product(self.readouts, repeat=2)
        covariances = {(v, w): input_covariance(self.program, laws[v], laws[w]) for v, w in pairs}
        out = np.zeros((self.rows, self.rows), self.dtype)
        for (v, k), (rows, h) in features.items():
            for (w, m), (cols, g) in features.items():
                cov = covariances[v, w]
                if cov is not None and cov[k, m] != 0:
                    out[np.ix_(rows, cols)] += cov[k, m] / h.shape[1] * (h @ g.T)
        return out

    def features(self, values: Values) -> dict[tuple[str, int], tuple[np.ndarray, np.ndarray]]:
        """For each member k of each readout v, the rows (r,) that it contributes to, and vectors (r, n)."""
        parts: dict[tuple[str, int], list[tuple[np.ndarray, np.ndarray]]] = {}
        for s, rows in zip(self.program.outputs, self.row_of, strict=True):
            for t in s.terms:
                index, y = self.program.types[t.readout].index, values[t.operand]
                shared, single, n = prod(index[: t.aligned]), prod(index[t.aligned :]), y.array.shape[-1]
                block = np.broadcast_to(y.array, (len(rows), *y.index, n)).reshape(len(rows), shared, -1, n)
                table = rows.reshape(len(rows), single, -1)
                for k, q in np.ndindex(shared, single):
                    part = table[:, q].ravel(), block[:, k].reshape(-1, n)
                    parts.setdefault((t.readout, k * single + q), []).append(part)
        return {key: _add_up(pieces) for key, pieces in parts.items()}


def _add_up(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The union of rows (r,), and the sums of their vectors (r, n): several terms may have equal rows."""
    if len(parts) == 1:
        return parts[0]
    union = np.unique(np.concatenate([rows for rows, _ in parts]))
    total = np.zeros((len(union), parts[0][1].shape[1]), parts[0][1].dtype)
    for rows, vectors in parts:
        total[np.searchsorted(union, rows)] += vectors
    return union, total
