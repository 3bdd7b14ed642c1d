"""The page of a report."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import numpy as np

import netsor
from netsor.build.drawing import parameter_rows, source_of
from netsor.build.network import Network
from netsor.display.html import STYLE
from netsor.errors import NetsorError
from netsor.lang.drawing import drawing_of, text_html
from netsor.limits import Result
from netsor.reports.charts import along_chart, convergence_chart, matrix_chart, spectrum_chart
from netsor.reports.findings import Findings, find

__all__ = ["render", "report"]

LIBRARIES = ("numpy", "scipy", "numba", "jax")


def report(net: Network, x: Any, labels: Sequence[str] = (), *, command: str = "", **options: Any) -> str:
    """One page of HTML about a network on a set of inputs, which needs nothing but a browser.

    labels   a name for each row of the kernel
    command  what made it, for the reader
    options  of `netsor.reports.find`: widths, samples, seed, progress

    >>> import numpy as np, netsor as ns
    >>> page = ns.report(ns.zoo.mlp(2), np.eye(3), widths=(8, 16), samples=4)
    >>> page.startswith("<!doctype html>")
    True
    """
    return render(find(net, x, labels, **options), command)


def render(found: Findings, command: str = "") -> str:
    """The page of what was found."""
    charts, kernels = _charts(found)
    template, bundle = _parts()
    return template.render(
        found=found,
        title=f"Network {found.net.name}",
        style=STYLE,
        source=source_of(found.net),
        parameters=parameter_rows(found.net),
        program=text_html(found.program),
        drawing=drawing_of(found.program),
        plan=found.nngp.plan._repr_html_(),
        kernels=kernels,
        charts=_in_script(charts),
        names=list(charts),
        bundle=bundle,
        facts=_facts(found),
        versions=_versions(),
        command=command,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _in_script(value: Any) -> str:
    """JSON that can stand in a script element: no text in it ends the element, or opens a comment there."""
    text = json.dumps(value)
    for sign in "<>&":  # https://html.spec.whatwg.org/#restrictions-for-contents-of-script-elements
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _parts() -> tuple[Any, str]:
    """The template, and Vega-Lite with all that it needs as one script."""
    try:
        import jinja2
        import vl_convert
    except ImportError:
        raise NetsorError(
            "a report needs Jinja2 and Vega-Lite", remedy="Install them with: pip install 'netsor[report]'"
        ) from None
    text = files("netsor.reports").joinpath("page.html").read_text(encoding="utf-8")
    made = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    library: Any = vl_convert  # its stub asks for an argument that has a default
    return made, library.javascript_bundle().replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _charts(found: Findings) -> tuple[dict[str, Any], list[tuple[str, str, Result]]]:
    """The charts by name, and which kernels there are."""
    named = [("nngp", "NNGP kernel: the covariance of the outputs", found.nngp)]
    if found.ntk is not None:
        named.append(("ntk", "Tangent kernel (NTK): the kernel of training", found.ntk))
    charts = {name: matrix_chart(one.value, one.error, found.labels) for name, _, one in named}
    charts["spectrum"] = spectrum_chart({title.partition(":")[0]: one.value for _, title, one in named})
    if found.along:
        charts["along"] = along_chart(found.along)
    if found.verification is not None:
        charts["convergence"] = convergence_chart(found.verification)
    return charts, named


def _facts(found: Findings) -> list[tuple[str, str]]:
    K = found.nngp
    shapes = sorted({str(np.shape(array)) for array in found.program.data.values()})
    return [
        ("inputs", f"{found.inputs}; data of the first: {', '.join(shapes)}"),
        ("rows of the kernel", str(len(K.value))),
        ("statements of the program", _statements(found)),
        ("computed", "exactly" if K.plan.exact else "sampled in part"),
        ("largest error of an entry", f"{K.bound.largest:.1e} (largest entry {np.abs(K.value).max():.4g})"),
    ]


def _statements(found: Findings) -> str:
    """How long the program is that is shown, and the one that all inputs share, which the plan is of."""
    shown, whole = len(found.program.statements), found.nngp.plan.statements
    alone = f"{shown} on the first input"
    return alone if shown == whole else f"{alone}, {whole} on all of them together, which is what is planned"


def _versions() -> list[tuple[str, str]]:
    found = [
        ("netsor", netsor.__version__),
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
    ]
    for name in LIBRARIES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:  # an extra that is not installed
            continue
    return found
