"""Heat maps with values under the pointer, and curves on logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from netsor.display.html import TIES

__all__ = ["Curve", "curves", "heat_map", "ticks"]

MOST_CELLS = 48  # along an axis; larger matrices are shown as means of blocks
SIDE = 300  # of a heat map, in pixels
MOST_TICKS = 7  # numbers on an axis
# viridis (Smith & van der Walt 2015) at twelve places
VIRIDIS = [
    "440154",
    "482173",
    "433e85",
    "38598c",
    "2d708e",
    "25858e",
    "1e9b8a",
    "2ab07f",
    "52c569",
    "86d549",
    "c2df23",
    "fde725",
]


def colour(share: float) -> str:
    """viridis at a number from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    mixed = [
        round((1 - place + low) * int(VIRIDIS[low][k : k + 2], 16) + (place - low) * int(after, 16))
        for k, after in ((k, VIRIDIS[low + 1][k : k + 2]) for k in (0, 2, 4))
    ]
    return "#" + "".join(f"{value:02x}" for value in mixed)


def heat_map(matrix: np.ndarray, title: str, labels: Sequence[str] = (), *, logarithmic: bool = False) -> str:
    """A matrix as coloured cells; the pointer shows rows, column and value."""
    blocks = _Blocks(np.asarray(matrix, float), labels)
    shown = np.log10(np.maximum(blocks.means, 1e-300)) if logarithmic else blocks.means
    low, high = float(shown.min()), float(shown.max())
    rows, columns = shown.shape
    size = max(4.0, min(26.0, SIDE / max(rows, columns)))
    cells = [
        f'<rect x="{j * size:.1f}" y="{i * size:.1f}" width="{size + 0.3:.1f}" height="{size + 0.3:.1f}" '
        f'fill="{colour((shown[i, j] - low) / (high - low) if high > low else 0.5)}">'
        f"<title>{escape(blocks.hint(i, j))}</title></rect>"
        for i in range(rows)
        for j in range(columns)
    ]
    width, height = columns * size, rows * size
    ends = [f"{10**v:.1e}" if logarithmic else f"{v:.4g}" for v in (low, high)]
    scale = _scale(width + 14, height, ends)
    note = (
        f'<text x="0" y="{height + 16:.0f}" font-size="11">{escape(blocks.note)}</text>'
        if blocks.note
        else ""
    )
    return (
        f'<svg role="img" aria-label="{escape(title)}" width="{width + 90:.0f}" '
        f'viewBox="0 -18 {width + 90:.0f} {height + 40:.0f}"><text x="0" y="-6" font-size="12" '
        f'font-weight="600">{escape(title)}</text>{"".join(cells)}{scale}{note}</svg>'
    )


@dataclass(frozen=True)
class _Blocks:
    """A matrix cut into at most 48 x 48 blocks, of which means are shown."""

    matrix: np.ndarray
    labels: Sequence[str]

    @property
    def step(self) -> int:
        return -(-max(self.matrix.shape) // MOST_CELLS)

    @property
    def means(self) -> np.ndarray:
        if self.step == 1:
            return self.matrix
        rows, columns = (range(0, n, self.step) for n in self.matrix.shape)
        return np.array([[self.block(i, j).mean() for j in columns] for i in rows])

    def block(self, i: int, j: int) -> np.ndarray:
        return self.matrix[i : i + self.step, j : j + self.step]

    def hint(self, i: int, j: int) -> str:
        i, j = i * self.step, j * self.step
        if self.step == 1:
            return f"{self.label(i)}, {self.label(j)}: {self.matrix[i, j]:.6g}"
        block = self.block(i, j)
        rows, columns = (f"{k} to {k + n - 1}" for k, n in zip((i, j), block.shape, strict=True))
        return f"rows {rows}, columns {columns}: {block.min():.4g} to {block.max():.4g}"

    def label(self, k: int) -> str:
        return f"{self.labels[k]} ({k})" if k < len(self.labels) else str(k)

    @property
    def note(self) -> str:
        return f"a cell is the mean of {self.step} x {self.step} entries" if self.step > 1 else ""


def _scale(x: float, height: float, ends: Sequence[str]) -> str:
    """A bar of colours with the numbers at its ends."""
    steps = 24
    tall = height / steps
    bar = "".join(
        f'<rect x="{x:.0f}" y="{k * tall:.1f}" width="11" height="{tall + 0.4:.1f}" '
        f'fill="{colour(1 - k / (steps - 1))}"/>'
        for k in range(steps)
    )
    top = f'<text x="{x + 15:.0f}" y="9" font-size="11">{ends[1]}</text>'
    return f'{bar}{top}<text x="{x + 15:.0f}" y="{height:.0f}" font-size="11">{ends[0]}</text>'


@dataclass(frozen=True)
class Curve:
    """Points of a curve; with `spread`, factors by which its error bars reach up and down."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    dashed: bool = False

    @property
    def reach(self) -> Sequence[float]:
        """By which factor the bar of each point goes up and down."""
        return self.spread or [1.0] * len(self.y)


def curves(lines: Sequence[Curve], title: str, xlabel: str, ylabel: str) -> str:
    """Curves on two logarithmic axes; the pointer shows the points."""
    width, height, left, bottom = 360, 240, 58, 40
    xs = np.log10([x for c in lines for x in c.x])
    ys = np.log10([y * end for c in lines for y, s in zip(c.y, c.reach, strict=True) for end in (s, 1 / s)])
    (x0, x1), (y0, y1) = _reach(xs), _reach(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x0) / (x1 - x0)
        return left + across * (width - left - 10), 8 + (y1 - math.log10(y)) / (y1 - y0) * (
            height - bottom - 8
        )

    points = sorted({x for c in lines for x in c.x})
    marked = points if len(points) <= MOST_TICKS else ticks(x0, x1)
    parts = [_axis(place, marked, (x0, x1), (y0, y1), height - bottom)]
    for k, c in enumerate(lines):
        parts.append(_curve(c, TIES[(k + 3) % len(TIES)] if not c.dashed else "#80868f", place))
    legend = "".join(
        f'<text x="{width - 12}" y="{22 + 15 * k}" font-size="11" text-anchor="end" '
        f'style="fill:{TIES[(k + 3) % len(TIES)] if not c.dashed else "#80868f"}">{escape(c.name)}</text>'
        for k, c in enumerate(lines)
        if c.name
    )
    middle = (height - bottom) / 2
    centred = 'font-size="11" text-anchor="middle"'
    names = (
        f'<text x="{(left + width) / 2:.0f}" y="{height - 6}" {centred}>{escape(xlabel)}</text>'
        f'<text transform="translate(13 {middle:.0f}) rotate(-90)" {centred}>{escape(ylabel)}</text>'
    )
    return (
        f'<svg role="img" aria-label="{escape(title)}" width="{width}" viewBox="0 -18 {width} {height + 18}">'
        f'<text x="0" y="-6" font-size="12" font-weight="600">{escape(title)}</text>'
        f"{''.join(parts)}{legend}{names}</svg>"
    )


def _reach(values: np.ndarray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = max(0.06 * (high - low), 0.05)
    return low - margin, high + margin


def _axis(
    place, marked: Sequence[float], across: tuple[float, float], up: tuple[float, float], floor: float
) -> str:
    """Grid lines and numbers: at those that are marked, and at round ones up the side."""
    parts = []
    for tick in marked:
        x, _ = place(tick, 10 ** up[0])
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{floor:.0f}" stroke="#80868f40"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{floor + 14:.0f}" font-size="10" text-anchor="middle">{tick:g}</text>'
        )
    for tick in ticks(*up):
        x, y = place(10 ** across[0], tick)
        right, _ = place(10 ** across[1], tick)
        parts.append(f'<line x1="{x:.0f}" x2="{right:.0f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#80868f40"/>')
        parts.append(
            f'<text x="{x - 5:.0f}" y="{y + 3:.1f}" font-size="10" text-anchor="end">{tick:g}</text>'
        )
    return "".join(parts)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two powers of ten, at most about seven."""
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in steps]
        found = [t for t in found if low <= math.log10(t) <= high]
        if len(found) <= MOST_TICKS:
            return found
    return found[:: -(-len(found) // (MOST_TICKS - 1))]


def _curve(c: Curve, ink: str, place) -> str:
    points = [place(x, y) for x, y in zip(c.x, c.y, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if c.dashed else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="1.8"{dash}/>']
    if c.dashed or len(points) > 40:
        return parts[0]
    for k, (x, y) in enumerate(points):
        if c.spread is not None:
            top, low = place(c.x[k], c.y[k] * c.spread[k])[1], place(c.x[k], c.y[k] / c.spread[k])[1]
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{low:.1f}" stroke="{ink}"/>')
        hint = f"{c.x[k]:g}: {c.y[k]:.4g}"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{ink}"><title>{hint}</title></circle>')
    return "".join(parts)
