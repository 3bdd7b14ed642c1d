"""Draw graphs in layers, from left to right (Sugiyama, Tagawa & Toda 1981).

The steps are those of the paper: assign nodes to layers, order each layer, place the nodes, draw the lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from statistics import fmean
from typing import ClassVar

from netsor.display.html import KINDS, svg_text


@dataclass(frozen=True)
class Box:
    """A box with lines of text; the kind of variable gives its colour (`html.KINDS`)."""

    name: str  # what edges call it
    lines: tuple[str, ...]
    kind: str
    hint: str = ""  # what the pointer shows
    letter: ClassVar[float] = 6.6  # mean width of a letter of 12 pixels
    line: ClassVar[float] = 15.0
    pad: ClassVar[float] = 8.0

    @property
    def width(self) -> float:
        return max(len(line) for line in self.lines) * self.letter + 2 * self.pad

    @property
    def height(self) -> float:
        return len(self.lines) * self.line + self.pad


@dataclass(frozen=True)
class Edge:
    """A line from one box to another, with a label. Lines of tied weights have one colour."""

    source: str
    target: str
    label: str = ""
    colour: str = ""


@dataclass(eq=False)
class _Spot:
    """Where a node is, or where a long line crosses a layer; (x, y) is the middle of its left side."""

    width: float = 0.0
    height: float = 6.0
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    before: list[_Spot] = field(default_factory=list)  # the ends of its lines in the layers beside it
    after: list[_Spot] = field(default_factory=list)

    @property
    def room(self) -> float:
        """Its height and 14 pixels to the next box of the column."""
        return self.height + 14.0


def draw(nodes: Sequence[Box], edges: Sequence[Edge], title: str) -> str:
    """Draw a graph as SVG. The nodes must be sorted so that every edge leads forward."""
    spots = {n.name: _Spot(n.width, n.height) for n in nodes}
    _assign_layers(list(spots.values()), [(spots[e.source], spots[e.target]) for e in edges])
    columns: list[list[_Spot]] = [[] for _ in range(max(s.layer for s in spots.values()) + 1)]
    for spot in spots.values():
        columns[spot.layer].append(spot)
    paths = [_path(spots[e.source], spots[e.target], columns) for e in edges]
    _order(columns)
    _place(columns)
    everywhere = [spot for column in columns for spot in column]
    width = max(s.x + s.width for s in everywhere)
    low = min(s.y - s.height / 2 for s in everywhere)
    height = max(s.y + s.height / 2 for s in everywhere) - low
    lines = "".join(_line(e, path) for e, path in zip(edges, paths, strict=True))
    boxes = "".join(_box(n, spots[n.name]) for n in nodes)
    return (
        f'<svg role="img" aria-label="{escape(title)}" width="{width + 4:.0f}" height="{height + 16:.0f}" '
        f'viewBox="-2 {low - 12:.0f} {width + 4:.0f} {height + 16:.0f}">{lines}{boxes}</svg>'
    )


def _assign_layers(spots: list[_Spot], edges: Sequence[tuple[_Spot, _Spot]]) -> None:
    """The longest path to each node; a node without a path to it stands just before the first user."""
    for spot in spots:
        spot.layer = max((source.layer + 1 for source, target in edges if target is spot), default=0)
    # Weights and data have no predecessors. At the far left, their lines would cross the whole graph.
    for spot in reversed(spots):
        users = [target.layer for source, target in edges if source is spot]
        if users and all(target is not spot for _, target in edges):
            spot.layer = min(users) - 1


def _path(source: _Spot, target: _Spot, columns: Sequence[list[_Spot]]) -> list[_Spot]:
    """The spots that a line crosses, one in every layer, which become neighbours."""
    path = [source, *(_Spot(layer=layer) for layer in range(source.layer + 1, target.layer)), target]
    for crossing in path[1:-1]:
        columns[crossing.layer].append(crossing)
    for a, b in pairwise(path):
        a.after.append(b)
        b.before.append(a)
    return path


def _order(columns: list[list[_Spot]]) -> None:
    """Order each layer by the mean position of the neighbours, in sweeps forward and back.

    This is the barycentre heuristic; the exact order with the fewest crossings is NP-hard to find.
    """
    for column in columns:
        _number(column)
    for sweep in range(6):  # more sweeps change little
        for column in reversed(columns) if sweep % 2 else columns:
            column.sort(key=lambda s: fmean([t.y for t in (s.after if sweep % 2 else s.before)] or [s.y]))
            _number(column)


def _number(column: Sequence[_Spot]) -> None:
    for k, spot in enumerate(column):
        spot.y = k


def _place(columns: list[list[_Spot]]) -> None:
    """Place columns side by side and centred, then pull spots towards their neighbours."""
    left = 0.0
    for column in columns:
        wide = max(spot.width for spot in column)
        top = -sum(spot.room for spot in column) / 2
        for spot in column:
            spot.x = left + (wide - spot.width) / 2
            spot.y = top + spot.height / 2
            top += spot.room
        left += wide + 54.0  # pixels between columns: a label of a few letters fits
    for column in 3 * [*columns, *reversed(columns)]:
        for spot in column:
            spot.y = fmean([beside.y for beside in spot.before + spot.after] or [spot.y])
        _spread(column)


def _spread(column: Sequence[_Spot]) -> None:
    """Push overlapping spots apart, one up and one down by half, keeping their order."""
    for _ in range(3):
        for above, below in pairwise(column):
            overlap = above.y + (above.room + below.room) / 2 - below.y
            if overlap > 0:
                above.y -= overlap / 2
                below.y += overlap / 2
    for above, below in pairwise(column):
        below.y = max(below.y, above.y + (above.room + below.room) / 2)


def _line(edge: Edge, path: list[_Spot]) -> str:
    ink = edge.colour or "#80868f"
    points = [(path[0].x + path[0].width, path[0].y), *((s.x, s.y) for s in path[1:])]
    d = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        bend = (x1 - x0) / 2
        d += f" C{x0 + bend:.1f} {y0:.1f} {x1 - bend:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
    (x0, y0), (x1, y1) = points[-2], points[-1]  # the label stands where lines have parted
    looks = f'font-size="11" style="fill:{ink}"'
    label = svg_text((x0 + x1) / 2, (y0 + y1) / 2 - 4, edge.label, "middle", looks) if edge.label else ""
    end = f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="2.4" fill="{ink}"/>'
    return f'<path d="{d}" fill="none" stroke="{ink}" stroke-width="1.5"/>{end}{label}'


def _box(node: Box, spot: _Spot) -> str:
    ink = KINDS[node.kind]
    x, top = spot.x, spot.y - node.height / 2
    rounded = {"C": 12, "K": 0}.get(node.kind, 5)
    first = top + Box.pad / 2 + 0.75 * Box.line
    texts = ""
    for k, line in enumerate(node.lines):
        looks = f'font-size="12" font-weight="{400 if k else 600}"'
        texts += svg_text(x + node.width / 2, first + k * Box.line, line, "middle", looks)
    return (
        f'<g><title>{escape(node.hint)}</title><rect x="{x:.1f}" y="{top:.1f}" '
        f'width="{node.width:.1f}" height="{node.height:.1f}" rx="{rounded}" fill="{ink}" '
        f'fill-opacity=".13" stroke="{ink}"/>{texts}</g>'
    )
