"""The page of a report: charts, facts and the template."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import netsor
from netsor.build.network import Network
from netsor.build.network_html import parameter_rows, source_of
from netsor.display.charts import Curve, curves, heat_map
from netsor.display.html import STYLE
from netsor.errors import NetsorError
from netsor.lang.program_html import drawing_of, text_html
from netsor.limits import Result
from netsor.plots.maps import eigenvalue_fractions
from netsor.reports.findings import Correlations, Findings, find


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
        raise NetsorError(
            "a report needs Jinja2", remedy="Install it with: pip install 'netsor[report]'"
        ) from None
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
