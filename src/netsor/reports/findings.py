"""What a report says about a network: kernels, correlations along the network, convergence, times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from netsor.build.network import Network, program
from netsor.build.tangent_network import tangent
from netsor.errors import NetsorError
from netsor.gp.targets import output_sizes
from netsor.lang.program import LinComb, Program
from netsor.limits import Result, kernel, limit
from netsor.verify import Verification, verify

MOST_PLACES = 24  # points of a correlation curve; more cannot be told apart in the chart


@dataclass(frozen=True)
class Correlations:
    """The correlations of two inputs at each output or at each layer, which is the `place`."""

    place: str
    inputs: tuple[int, int]
    names: tuple[str, ...]
    values: tuple[float, ...]


@dataclass
class Findings:
    """All numbers of a report; `missing` has the reason for each part that does not exist."""

    net: Network
    program: Program
    inputs: int
    nngp: Result
    labels: Sequence[str]
    ntk: Result | None = None
    correlations: list[Correlations] = field(default_factory=list)
    verification: Verification | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def find(
    net: Network,
    x: Sequence[ArrayLike],
    labels: Sequence[str] = (),
    *,
    widths: Sequence[int] = (32, 64, 128, 256),
    samples: int = 20,
    seed: int = 0,
    progress: bool | None = None,
) -> Findings:
    """Compute the numbers of a report, or a reason for each part that the network does not have.

    The `labels` name the rows of the kernel. There are `samples` finite networks of each width.
    """
    inputs, start = list(x), time.perf_counter()
    nngp = kernel(net, seed=seed, progress=progress).evaluate(inputs)
    seconds = {"kernel (NNGP)": time.perf_counter() - start}
    findings = Findings(net, program(net, inputs[0]), len(inputs), nngp, labels, seconds=seconds)
    with _part(findings, "tangent kernel (NTK)"):
        findings.ntk = kernel(tangent(net), seed=seed, progress=progress).evaluate(inputs)
    with _part(findings, "correlation along the network"):
        findings.correlations = _correlations(net, inputs[:3], nngp, seed)
    with _part(findings, "finite networks"):
        findings.verification = verify(net, inputs[:3], widths, samples, seed, progress=progress)
    return findings


@contextmanager
def _part(findings: Findings, what: str) -> Iterator[None]:
    """Note the seconds of a part, or the reason why the network does not have it, which the page shows."""
    start = time.perf_counter()
    try:
        yield
        findings.seconds[what] = time.perf_counter() - start
    except NetsorError as error:
        findings.missing[what] = str(error)


def _correlations(net: Network, inputs: list[Any], nngp: Result, seed: int) -> list[Correlations]:
    """Correlations of the first input with the next ones: at each of their outputs, or layer by layer."""
    sizes = output_sizes(net, inputs)
    if min(sizes) > 1:
        return _over_outputs(nngp.value, sizes)
    return _over_layers(net, inputs, seed) if nngp.plan.exact else []


def _over_outputs(K: np.ndarray, sizes: Sequence[int]) -> list[Correlations]:
    """Read from the kernel: output t of the first input and output t of another."""
    starts = np.cumsum([0, *sizes])
    correlations = []
    for j, size in enumerate(sizes[1:], 1):
        rows = np.arange(min(sizes[0], size))[:MOST_PLACES]
        columns = starts[j] + rows
        values = _correlation(K[rows, columns], K[rows, rows], K[columns, columns])
        names = tuple(f"output {t + 1}" for t in rows)
        correlations.append(Correlations("output", (0, j), names, tuple(values.tolist())))
    return correlations


def _over_layers(net: Network, inputs: list[Any], seed: int) -> list[Correlations]:
    """At the linear combinations of the program, which are the preactivations of its layers."""
    joint = program(net, *inputs)
    names = [s.name for s in joint.of(LinComb)]
    count = len(names) // len(inputs)
    if not count or len(names) % len(inputs):
        return []
    places = sorted({round(k) for k in np.linspace(0, count - 1, min(count, MOST_PLACES))})
    rows = [[names[j * count + k] for k in places] for j in range(len(inputs))]
    if any(joint.types[a] != joint.types[b] for row in rows for a, b in zip(rows[0], row, strict=True)):
        return []  # inputs of other shapes: their layers do not correspond
    L = limit(net, *inputs, seed=seed)
    variances = [[_diagonal(L.sigma(name)) for name in row] for row in rows]
    correlations = []
    for j in range(1, len(inputs)):
        cross = [_diagonal(L.sigma(a, b)) for a, b in zip(rows[0], rows[j], strict=True)]
        blocks = zip(cross, variances[0], variances[j], strict=True)
        values = tuple(float(np.mean(_correlation(*block))) for block in blocks)
        correlations.append(Correlations("layer", (0, j), tuple(rows[0]), values))
    return correlations


def _correlation(cross: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Correlations from covariances and variances; 0 where a variance is 0."""
    scale = np.sqrt(first * second)
    return np.divide(cross, scale, out=np.zeros_like(scale), where=scale > 0)


def _diagonal(sigma: ArrayLike) -> np.ndarray:
    """The covariances of the corresponding members of two blocks."""
    table = np.asarray(sigma, float)
    size = round(np.sqrt(table.size))
    return np.diagonal(table.reshape(size, size))
