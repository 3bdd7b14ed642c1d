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
    names: Sequence[str]
    values: Sequence[float]


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
    x: np.ndarray | Sequence[ArrayLike],
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
        findings.correlations = list(_correlations(net, inputs[:3], nngp, seed))
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


def _correlations(net: Network, inputs: list[Any], nngp: Result, seed: int) -> Iterator[Correlations]:
    """Correlations of the first input with the next ones: at each of their outputs, or layer by layer."""
    sizes = output_sizes(net, inputs)
    if min(sizes) == 1:
        if nngp.plan.exact:
            yield from _over_layers(net, inputs, seed)
        return
    K, starts = nngp.value, np.cumsum([0, *sizes])
    for j, size in enumerate(sizes[1:], 1):
        rows = np.arange(min(sizes[0], size, MOST_PLACES))
        columns = starts[j] + rows
        values = _correlation(K[rows, columns], K[rows, rows], K[columns, columns])
        yield Correlations("output", (0, j), [f"output {t + 1}" for t in rows], values.tolist())


def _over_layers(net: Network, inputs: list[Any], seed: int) -> Iterator[Correlations]:
    """At the linear combinations of the program, which are the preactivations of its layers."""
    joint = program(net, *inputs)
    names = [s.name for s in joint.of(LinComb)]
    count, remainder = divmod(len(names), len(inputs))
    if not count or remainder:
        return
    places = sorted({round(k) for k in np.linspace(0, count - 1, min(count, MOST_PLACES))})
    first, *further = ([names[j * count + k] for k in places] for j in range(len(inputs)))
    if any(joint.types[a] != joint.types[b] for row in further for a, b in zip(first, row, strict=True)):
        return  # inputs of other shapes: their layers do not correspond
    L = limit(net, *inputs, seed=seed)

    def sigma(a: str, b: str) -> np.ndarray:
        """The covariances of the corresponding members of two blocks."""
        table = np.asarray(L.sigma(a, b), float)
        size = round(np.sqrt(table.size))
        return np.diagonal(table.reshape(size, size))

    for j, row in enumerate(further, 1):
        pairs = zip(first, row, strict=True)
        blocks = [_correlation(sigma(a, b), sigma(a, a), sigma(b, b)) for a, b in pairs]
        yield Correlations("layer", (0, j), first, [float(np.mean(block)) for block in blocks])


def _correlation(cross: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Correlations from covariances and variances; 0 where a variance is 0."""
    scale = np.sqrt(first * second)
    return np.divide(cross, scale, out=np.zeros_like(scale), where=scale > 0)
