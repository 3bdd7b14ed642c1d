"""Heat maps and curves as SVG text. The pointer shows the numbers behind each mark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from netsor.display.html import TIES, svg_text

# viridis (Smith & van der Walt 2015) at twelve equally spaced values.
VIRIDIS = [
    *("440154", "482173", "433e85", "38598c", "2d708e", "25858e"),
    *("1e9b8a", "2ab07f", "52c569", "86d549", "c2df23", "fde725"),
]


def colour(fraction: float) -> str:
    """Interpolate viridis at a fraction from 0 to 1."""
    low, part = divmod(fraction * (len(VIRIDIS) - 1), 1)
    ends = (bytes.fromhex(VIRIDIS[min(int(low) + k, len(VIRIDIS) - 1)]) for k in (0, 1))
    return "#" + bytes(round((1 - part) * a + part * b) for a, b in zip(*ends, strict=True)).hex()


def heat_map(
    matrix: np.ndarray,
    title: str,
    labels: Sequence[str] = (),
    *,
    errors: np.ndarray | None = None,
    logarithmic: bool = False,
) -> str:
    """Draw a matrix as coloured cells; larger than 48 x 48, as means of square blocks.

    The pointer shows values with their errors, and the labels of row and column. `logarithmic` colours follow
    the logarithm of the values.
    """
    side = -(-max(matrix.shape) // 48)  # rows and columns of a block
    starts = [range(0, n, side) for n in matrix.shape]
    blocks = [[(slice(i, i + side), slice(j, j + side)) for j in starts[1]] for i in starts[0]]
    means = np.array([[matrix[block].mean() for block in row] for row in blocks])
    levels = np.log10(np.maximum(means, 1e-300)) if logarithmic else means
    low, high = float(levels.min()), float(levels.max())
    fractions = (levels - low) / (high - low) if high > low else np.full_like(levels, 0.5)
    rows, columns = levels.shape
    size = max(4.0, min(26.0, 300 / max(rows, columns)))  # pixels of a cell
    marks = [
        f'<rect class="cell" x="{j * size:.1f}" y="{i * size:.1f}" width="{size + 0.3:.1f}" '
        f'height="{size + 0.3:.1f}" fill="{colour(fractions[i, j])}">'
        f"<title>{escape(_hint(matrix, errors, labels, blocks[i][j]))}</title></rect>"
        for i in range(rows)
        for j in range(columns)
    ]
    width, height = columns * size, rows * size
    ends = [f"{10**v:.1e}" if logarithmic else f"{v:.4g}" for v in (low, high)]
    note = f"a cell is the mean of {side} x {side} entries" if side > 1 else ""
    marks += [_colour_bar(width + 14, height, ends), svg_text(0, height + 16, note)]
    return _figure(title, width + 90, height + 22, marks)


def _hint(
    matrix: np.ndarray, errors: np.ndarray | None, labels: Sequence[str], block: tuple[slice, slice]
) -> str:
    """Text that the pointer shows at a cell: the value and labels of an entry, or the range of a block."""
    values, (i, j) = matrix[block], (part.start for part in block)
    if block[0].stop - i == 1:
        first, second = (f"{labels[k]} ({k})" if k < len(labels) else str(k) for k in (i, j))
        text = f"{first}, {second}: {matrix[i, j]:.6g}"
    else:
        rows, columns = (f"{k} to {k + n - 1}" for k, n in zip((i, j), values.shape, strict=True))
        text = f"rows {rows}, columns {columns}: {values.min():.4g} to {values.max():.4g}"
    return text if errors is None else f"{text}, error {errors[block].max():.1e}"


def _colour_bar(x: float, height: float, ends: Sequence[str]) -> str:
    """Draw the colours from high to low with the numbers at both ends."""
    steps = 24
    tall = height / steps
    bar = "".join(
        f'<rect x="{x:.0f}" y="{k * tall:.1f}" width="11" height="{tall + 0.4:.1f}" '
        f'fill="{colour(1 - k / (steps - 1))}"/>'
        for k in range(steps)
    )
    return bar + svg_text(x + 15, 9, ends[1]) + svg_text(x + 15, height, ends[0])


@dataclass(frozen=True)
class Curve:
    """Points of a curve."""

    name: str  # in the legend; no entry if empty
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None  # factors by which error bars reach up and down
    dashed: bool = False  # a grey reference line without points
    hints: Sequence[str] = ()  # what the pointer shows at each point instead of its coordinates

    @property
    def ends(self) -> np.ndarray:
        """Both ends of the error bar of each point, shape (2, points)."""
        y, spread = np.asarray(self.y), np.asarray(1.0 if self.spread is None else self.spread)
        return np.stack([y * spread, y / spread])


class _Axis:
    """An axis that maps numbers to pixels, linearly or by their logarithm, with a margin of 6%."""

    def __init__(
        self, values: Sequence[float] | np.ndarray, start: float, stop: float, logarithmic: bool
    ) -> None:
        self.start, self.stop, self.logarithmic = start, stop, logarithmic
        scaled = np.log10(values) if logarithmic else np.asarray(values, float)
        low, high = float(scaled.min()), float(scaled.max())
        # Equal values need a margin, too, or the axis has no length.
        margin = max(0.06 * (high - low), 0.05 if logarithmic else 1e-3 * max(abs(low), abs(high), 1e-300))
        self.low, self.high = low - margin, high + margin

    def pixel(self, values: Any) -> Any:
        """Where one number or several are."""
        scaled = np.log10(values) if self.logarithmic else np.asarray(values)
        return self.start + (scaled - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """At most seven round numbers on the axis."""
        if not self.logarithmic:
            # The smallest step, 1, 2 or 5 times a power of ten, of which at most seven fit into the range.
            seventh = (self.high - self.low) / 7
            power = 10.0 ** math.floor(math.log10(seventh))
            step = next(m * power for m in (1, 2, 5, 10, 20) if seventh <= m * power)
            return [k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        powers = [10.0**e for e in range(math.floor(self.low), math.ceil(self.high) + 1)]
        for multiples in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
            numbers = [m * p for p in powers for m in multiples if self.low <= math.log10(m * p) <= self.high]
            if len(numbers) <= 7:
                return numbers
        return numbers[:: -(-len(numbers) // 6)]  # many decades: every second or third power


def curves(
    lines: Sequence[Curve], title: str, xlabel: str, ylabel: str, *, logarithmic: bool = True, wide: int = 360
) -> str:
    """Draw curves on two logarithmic axes, or on two linear ones, `wide` pixels in width."""
    inks = ["#80868f" if c.dashed else TIES[(k + 3) % len(TIES)] for k, c in enumerate(lines)]
    named = [(c.name, ink) for c, ink in zip(lines, inks, strict=True) if c.name]
    left, top, bottom = 58, 8 + 15 * len(named), 40  # the legend stands above the curves
    height = 232 + top
    points = sorted({x for c in lines for x in c.x})
    across = _Axis(points, left, wide - 10, logarithmic)
    up = _Axis(np.concatenate([c.ends.ravel() for c in lines]), height - bottom, top, logarithmic)
    marks = [_grid(across, up, points if len(points) <= 7 else across.ticks())]
    marks += [_marks_of(c, ink, across, up) for c, ink in zip(lines, inks, strict=True)]
    marks += [
        svg_text(wide - 12, 9 + 15 * k, name, "end", f'font-size="11" style="fill:{ink}"')
        for k, (name, ink) in enumerate(named)
    ]
    turned = f'font-size="11" transform="translate(13 {(height - bottom + top) / 2:.0f}) rotate(-90)"'
    marks.append(svg_text((left + wide) / 2, height - 6, xlabel, "middle", 'font-size="11"'))
    marks.append(svg_text(0, 0, ylabel, "middle", turned))
    return _figure(title, wide, height, marks)


def _grid(across: _Axis, up: _Axis, columns: Sequence[float]) -> str:
    """Draw grid lines and their numbers."""
    marks = ""
    for tick in columns:
        x = across.pixel(tick)
        marks += _segment(x, x, up.stop, up.start, "#80868f40")
        marks += svg_text(x, up.start + 14, f"{tick:g}", "middle")
    for tick in up.ticks():
        y = up.pixel(tick)
        marks += _segment(across.start, across.stop, y, y, "#80868f40")
        marks += svg_text(across.start - 5, y + 3, f"{tick:.6g}", "end")
    return marks


def _marks_of(c: Curve, ink: str, across: _Axis, up: _Axis) -> str:
    """Draw a line, with points and error bars if there are few points."""
    xs, ys = across.pixel(c.x), up.pixel(c.y)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    dash = ' stroke-dasharray="5 4"' if c.dashed else ""
    marks = [f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="1.8"{dash}/>']
    # Many points would hide the line; a curve with hints keeps them for the pointer.
    if c.dashed or (len(xs) > 40 and not c.hints):
        return marks[0]
    hints = c.hints or [f"{x:g}: {y:.4g}" for x, y in zip(c.x, c.y, strict=True)]
    for x, y, top, low, hint in zip(xs, ys, *up.pixel(c.ends), hints, strict=True):
        if c.spread is not None:
            marks.append(_segment(x, x, top, low, ink))
        marks.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{ink}"><title>{escape(hint)}</title></circle>'
        )
    return "".join(marks)


def _segment(x1: float, x2: float, y1: float, y2: float, ink: str) -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{ink}"/>'


def _figure(title: str, width: float, height: float, marks: Sequence[str]) -> str:
    heading = f'<text x="0" y="-6" font-size="12" font-weight="600">{escape(title)}</text>' if title else ""
    return (
        f'<svg role="img" aria-label="{escape(title)}" width="{width:.0f}" '
        f'viewBox="0 -18 {width:.0f} {height + 18:.0f}">{heading}{"".join(marks)}</svg>'
    )
