"""HTML of a network for notebooks: parameters, code, and the graph of its program."""

from __future__ import annotations

import inspect
import textwrap
from functools import partial
from html import escape

from netsor.build.network import Network, program
from netsor.build.parameters import Matrix
from netsor.display import fold, panel, table
from netsor.lang.program_html import drawing_of


def network_html(net: Network) -> str:
    """Return the HTML of a network."""
    rows = [(f"<code>{escape(name)}</code>", *facts) for name, *facts in parameter_rows(net)]
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
    rows = []
    for p, name in net.parameters().items():
        var = f"{p.var:g}" if isinstance(p.var, float) else "a covariance matrix"
        block = f", a block of {' x '.join(map(str, p.index))}" if p.index else ""
        if isinstance(p, Matrix):
            width = "width" if p.rows is None else p.rows
            rows.append((name, "matrix", var, f"{width} x fan-in{block}"))
        else:
            rows.append((name, "vector", var, f"width{block}"))
    return rows


def source_of(net: Network) -> str:
    """Return the source code of a network's function, or "" if it is not available."""
    fn = net.fn.func if isinstance(net.fn, partial) else net.fn
    try:
        return textwrap.dedent(inspect.getsource(fn))
    except (OSError, TypeError):  # an interactive session, or a callable without source
        return ""
