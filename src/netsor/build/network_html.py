"""HTML of a network for notebooks: parameters, code, and the graph of its program."""

from __future__ import annotations

import inspect
import textwrap
from functools import partial
from html import escape
from typing import Any

from netsor.build.network import Network, program
from netsor.build.parameters import Matrix
from netsor.display import fold, panel, table
from netsor.lang.program_html import drawing_of


def network_html(net: Network) -> str:
    """Return the HTML of a network."""
    rows = [
        (f"<code>{escape(name)}</code>", kind, var, shape) for name, kind, var, shape in parameter_rows(net)
    ]
    parts = [table(("parameter", "", "variance", "shape"), rows)] if rows else []
    source = source_of(net)
    if source:
        parts.append(fold("code", f"<pre>{escape(source)}</pre>"))
    svg = "" if net.example is None else drawing_of(program(net, net.example))
    if svg:
        parts.append(f'<div class="wide">{svg}</div>')
    elif net.example is None:
        parts.append('<div class="soft">Its graph is drawn here when it has been read for an input.</div>')
    return panel(f"Network {net.name}", *parts)


def parameter_rows(net: Network) -> list[tuple[str, str, str, str]]:
    """List name, kind, variance and shape of each parameter."""
    return [
        (name, "matrix" if isinstance(p, Matrix) else "vector", _variance(p.var), _shape(p))
        for p, name in net.parameters().items()
    ]


def _variance(var: object) -> str:
    return f"{var:g}" if isinstance(var, float) else "a covariance matrix"


def _shape(p: Any) -> str:
    block = f", a block of {' x '.join(map(str, p.index))}" if p.index else ""
    if not isinstance(p, Matrix):
        return f"width{block}"
    return f"{'width' if p.rows is None else p.rows} x fan-in{block}"


def source_of(net: Network) -> str:
    """Return the source code of a network's function, or "" if it is not available."""
    fn = net.fn.func if isinstance(net.fn, partial) else net.fn
    try:
        return textwrap.dedent(inspect.getsource(fn))
    except (OSError, TypeError):  # an interactive session, or a callable without source
        return ""
