"""A report of a network: what is computed for it (`find`), and the page of HTML that tells it (`render`)."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import netsor
from netsor.build.network import Network, program
from netsor.build.network_html import parameter_rows, source_of
from netsor.build.tangent_network import tangent
from netsor.display.charts import Curve, curves, heat_map
from netsor.display.html import STYLE
from netsor.errors import NetsorError
from netsor.gp.targets import output_sizes
from netsor.lang.program import LinComb, Program
from netsor.lang.program_html import drawing_of, text_html
from netsor.limits import Result, kernel, limit
from netsor.plots.maps import eigenvalue_fractions
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
    """Compute the numbers of a report, or a reason for each part that the network does not have."""
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


def report(
    net: Network,
    x: np.ndarray | Sequence[ArrayLike],
    labels: Sequence[str] = (),
    *,
    command: str = "",
    **options: Any,
) -> str:
    """Make a page of HTML about a network on a set of inputs. It needs nothing but a browser.

    Parameters
    ----------
    net
        The network.
    x
        The inputs.
    labels
        A name for each row of the kernel.
    command
        The command that made the page, for the reader.
    **options
        Options of `netsor.reports.find`: widths, samples, seed, progress.

    Returns
    -------
    str
        The page.

    Raises
    ------
    NetsorError
        If Jinja2 is not installed, or if the network has no limit on these inputs.

    Examples
    --------
    >>> import numpy as np, netsor as ns
    >>> page = ns.report(ns.zoo.mlp(2), np.eye(3), widths=(8, 16), samples=4)
    >>> page.startswith("<!doctype html>")
    True
    """
    return render(find(net, x, labels, **options), command)


def render(findings: Findings, command: str = "") -> str:
    """Fill the page with findings."""
    try:
        from jinja2 import Environment
    except ImportError:
        remedy = "Install it with: pip install 'netsor[report]'"
        raise NetsorError("a report needs Jinja2", remedy=remedy) from None
    text = files("netsor.reports").joinpath("page.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    kernels = [("nngp", "NNGP kernel: the covariance of the outputs", findings.nngp)]
    if findings.ntk is not None:
        kernels.append(("ntk", "Tangent kernel (NTK): the kernel of training", findings.ntk))
    return template.render(
        found=findings,
        style=STYLE,
        source=source_of(findings.net),
        parameters=parameter_rows(findings.net),
        program=text_html(findings.program),
        drawing=drawing_of(findings.program),
        plan=findings.nngp.plan._repr_html_(),
        kernels=kernels,
        charts=_charts(findings, kernels),
        largest=np.abs(findings.nngp.value).max(),
        versions=_versions(),
        command=command,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _charts(findings: Findings, kernels: Sequence[tuple[str, str, Result]]) -> dict[str, str]:
    """Draw the charts, as SVG by the name of their place on the page."""
    charts = {name: heat_map(K.value, "", findings.labels, errors=K.error) for name, _, K in kernels}
    spectra = [_spectrum(title.partition(":")[0], K.value) for _, title, K in kernels]
    charts["spectrum"] = curves(spectra, "", "number of the eigenvalue", "fraction of the sum", wide=480)
    if findings.correlations:
        lines = [_correlation_curve(c) for c in findings.correlations]
        place = findings.correlations[0].place
        charts["along"] = curves(lines, "", place, "correlation", logarithmic=False, wide=480)
    if findings.verification is not None:
        charts["convergence"] = findings.verification.chart()
    return charts


def _spectrum(name: str, kernel: np.ndarray) -> Curve:
    fractions, total = eigenvalue_fractions(kernel).tolist(), np.trace(kernel)
    hints = [f"eigenvalue {k}: {f * total:.4g}, {f:.3g} of the sum" for k, f in enumerate(fractions, 1)]
    return Curve(name, range(1, len(hints) + 1), fractions, hints=hints if len(hints) <= 200 else ())


def _correlation_curve(c: Correlations) -> Curve:
    name = f"inputs {c.inputs[0]} and {c.inputs[1]}"
    hints = [f"{place}, {name}: {value:.6g}" for place, value in zip(c.names, c.values, strict=True)]
    return Curve(name, range(1, len(c.values) + 1), c.values, hints=hints)


def _versions() -> dict[str, str]:
    machine = f"{platform.system()} {platform.machine()}"
    versions = {"netsor": netsor.__version__, "Python": platform.python_version(), "machine": machine}
    for name in ("numpy", "scipy", "numba", "jax"):
        with suppress(PackageNotFoundError):  # an extra that is not installed
            versions[name] = version(name)
    return versions
