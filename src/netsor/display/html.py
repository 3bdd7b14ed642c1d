"""Panels, tables and folded parts as HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

# Colours of the kinds of variables; "K" are data, "O" outputs.
KINDS = {"A": "#c2570c", "G": "#2a78d0", "H": "#178a4f", "C": "#9a5bd0", "K": "#7a7f8c", "O": "#c5438a"}
TIES = ("#c2570c", "#178a4f", "#9a5bd0", "#2a78d0", "#c5438a", "#8a7a00", "#0f8a96", "#b5593d")

STYLE = "".join(
    (
        *(f".netsor .k{kind}{{color:{colour}}}\n" for kind, colour in KINDS.items()),
        files("netsor.display").joinpath("style.css").read_text(encoding="utf-8"),
    )
)


def panel(title: str, *parts: str) -> str:
    """A titled part of a page with its style sheet."""
    head = f'<div class="title">{escape(title)}</div>' if title else ""
    return f'<div class="netsor"><style>{STYLE}</style>{head}{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. The cells of its rows are HTML; the head is text and may be empty."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    top = f"<thead><tr>{top}</tr></thead>" if top else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{top}<tbody>{body}</tbody></table>"


def fold(summary: str, body: str) -> str:
    """A part that opens on a click."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def svg_text(x: float, y: float, text: str, anchor: str = "start", looks: str = 'font-size="10"') -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {looks}>{escape(text)}</text>'


def error_bar(error: float) -> str:
    """Draw an error as a bar on a logarithmic scale from 1e-17 to 1, with its number."""
    if not error > 0:
        return '<span class="soft">rounding</span>'
    fraction = min(max((math.log10(error) + 17) / 17, 0.02), 1.0)
    colour = KINDS["H"] if error < 1e-8 else KINDS["A"] if error > 1e-3 else KINDS["G"]
    bar = f'<rect width="{90 * fraction:.1f}" height="9" y="1" rx="2" fill="{colour}"/>'
    track = '<rect width="90" height="9" y="1" rx="2" fill="#80868f40"/>'
    return f'<svg width="92" height="11" role="img">{track}{bar}</svg> {error:.1e}'
