"""What a report tells of a network: kernels, spectra, correlations along the network, convergence, times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netsor.build.network import Network, program
from netsor.build.tangent import tangent
from netsor.errors import NetsorError
from netsor.gp.targets import output_sizes
from netsor.lang.program import LinComb, Program
from netsor.limits import Result, kernel, limit
from netsor.verify import Verification, verify

__all__ = ["Along", "Findings", "find"]

MOST_PAIRS = 2  # of inputs whose correlation is followed through the network
MOST_PLACES = 24  # where it is looked at
MOST_VERIFIED = 3  # inputs that finite networks are run on


@dataclass(frozen=True)
class Along:
    """The correlation of two inputs at each of their outputs, or at each layer: what `place` says."""

    place: str
    inputs: tuple[int, int]
    names: tuple[str, ...]
    values: tuple[float, ...]


@dataclass
class Findings:
    """All numbers of a report; `missing` says what there is not, and why."""

    net: Network
    program: Program
    inputs: int
    nngp: Result
    labels: Sequence[str]
    ntk: Result | None = None
    along: list[Along] = field(default_factory=list)
    verification: Verification | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def find(
    net: Network,
    x: Any,
    labels: Sequence[str] = (),
    *,
    widths: Sequence[int] = (32, 64, 128, 256),
    samples: int = 20,
    seed: int = 0,
    progress: bool | None = None,
) -> Findings:
    """Compute what a report tells. What a network does not have is noted with the reason."""
    inputs = list(x)
    seconds: dict[str, float] = {}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = work()
        seconds[what] = time.perf_counter() - start
        return found

    made = timed("program", lambda: program(net, inputs[0]))
    nngp = timed("kernel (NNGP)", lambda: kernel(net, seed=seed, progress=progress).evaluate(inputs))
    found = Findings(net, made, len(inputs), nngp, labels, seconds=seconds)
    steps = {
        "tangent kernel (NTK)": (
            "ntk",
            lambda: kernel(tangent(net), seed=seed, progress=progress).evaluate(inputs),
        ),
        "correlation along the network": ("along", lambda: _along(net, inputs, nngp, seed)),
        "finite networks": (
            "verification",
            lambda: verify(net, inputs[:MOST_VERIFIED], widths, samples, seed, progress=progress),
        ),
    }
    for what, (name, work) in steps.items():
        try:
            setattr(found, name, timed(what, work))
        except NetsorError as error:  # the page says so in place of the picture
            found.missing[what] = str(error)
    return found


def _along(net: Network, inputs: list[Any], nngp: Result, seed: int) -> list[Along]:
    """Correlations of the first input with the next ones: at each of their outputs, or layer by layer."""
    sizes = output_sizes(net, inputs[: MOST_PAIRS + 1])
    if min(sizes) > 1:
        return _over_outputs(nngp.value, sizes)
    return _over_layers(net, inputs[: MOST_PAIRS + 1], seed) if nngp.plan.exact else []


def _over_outputs(K: np.ndarray, sizes: Sequence[int]) -> list[Along]:
    """From the kernel itself: output t of the first input and output t of another."""
    starts = np.cumsum([0, *sizes])
    found = []
    for j in range(1, len(sizes)):
        rows = np.arange(min(sizes[0], sizes[j]))[:MOST_PLACES]
        other = starts[j] + rows
        scale = np.sqrt(K[rows, rows] * K[other, other])
        values = np.where(scale > 0, K[rows, other] / np.where(scale > 0, scale, 1.0), 0.0)
        found.append(Along("output", (0, j), tuple(f"output {t + 1}" for t in rows), tuple(values.tolist())))
    return found


def _over_layers(net: Network, inputs: list[Any], seed: int) -> list[Along]:
    """At the linear combinations of the program, which are the preactivations of its layers."""
    made = program(net, *inputs)
    names = [s.name for s in made.of(LinComb)]
    count = len(names) // len(inputs)
    if not count or len(names) % len(inputs):
        return []
    places = sorted({round(k) for k in np.linspace(0, count - 1, min(count, MOST_PLACES))})
    rows = [[names[j * count + k] for k in places] for j in range(len(inputs))]
    if any(made.types[a] != made.types[b] for row in rows for a, b in zip(rows[0], row, strict=True)):
        return []  # inputs of other shapes: their layers do not correspond
    L = limit(net, *inputs, seed=seed)
    own = [[_diagonal(L.sigma(name)) for name in row] for row in rows]
    found = []
    for j in range(1, len(inputs)):
        values = []
        for k, (a, b) in enumerate(zip(rows[0], rows[j], strict=True)):
            scale = np.sqrt(own[0][k] * own[j][k])
            cross = _diagonal(L.sigma(a, b))
            values.append(float(np.mean(np.where(scale > 0, cross / np.where(scale > 0, scale, 1.0), 0.0))))
        found.append(Along("layer", (0, j), tuple(rows[0]), tuple(values)))
    return found


def _diagonal(sigma: Any) -> np.ndarray:
    """The entries of equal members of two blocks."""
    table = np.asarray(sigma, float)
    size = round(np.sqrt(table.size))
    return np.diagonal(table.reshape(size, size))
