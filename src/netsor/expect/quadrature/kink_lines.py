"""The lines on which a function of two variables has kinks or jumps, found from its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from netsor.expect.quadrature.hermite_functions import call
from netsor.expect.quadrature.kinks import CELL, find_kinks, rounded

Array = np.ndarray
Function = Callable[[Array], Array]

MOST_LINES = 24  # a rule is split where two lines meet, and the number of such points grows quadratically


@dataclass(frozen=True)
class Lines:
    """The lines normals . z = offsets on which a function has kinks or jumps, and the error of each."""

    normals: Array  # shape (lines, 2)
    offsets: Array  # shape (lines,)
    slack: Array  # shape (lines,): error of the offsets
    incomplete: bool = False  # whether there are further kinks, such as those on a curve

    @classmethod
    def none(cls) -> Lines:
        """The lines of a smooth function: none."""
        return cls(np.zeros((0, 2)), np.zeros(0), np.zeros(0))

    def __len__(self) -> int:
        return len(self.offsets)


def find_lines(fn: Function, centre: Array, spread: Array, before: Lines | None = None) -> Lines:
    """Return the known lines, and further lines near a point on which fn or a first derivative jumps.

    The search walks from `centre` (2,), in units of `spread` (2,), along the axes and in a few random
    directions. It follows each kink to parallel paths, where it must be on the same line. If a few kinks are
    on no line, the search stops: more paths would only find more of these.
    """
    before = Lines.none() if before is None else before
    lines = list(zip(before.normals, before.offsets, before.slack, strict=True))
    rng, failures, incomplete, points = np.random.default_rng(0), 0, before.incomplete, []

    def along(start: Array, direction: Array) -> Function:
        def f(t: Array) -> Array:
            y = start[:, None] + direction[:, None] * t.ravel()
            return (call(fn, (centre + spread * y.T).T[:, None, :]) + 0.0 * t.ravel()).reshape(t.shape)

        return f

    for v in [*np.repeat(np.eye(2), 2, axis=0), *rng.standard_normal((6, 2))]:
        start, v = rng.standard_normal(2), v / np.linalg.norm(v)
        if failures >= 4 or len(lines) > MOST_LINES:
            incomplete = True
            break
        for t in find_kinks(along(start, v), -10.0, 10.0):
            y = start + t * v
            points.append(centre + spread * y)
            if failures < 4 and len(lines) <= MOST_LINES and not _is_on_a_line(points[-1], lines, spread):
                line = _line_through(along, y, v, centre, spread)
                lines, failures = lines + line, failures + (not line)
    incomplete = incomplete or not all(_is_on_a_line(point, lines, spread) for point in points)
    if not lines:
        return replace(Lines.none(), incomplete=incomplete)
    normals, offsets, slack = (np.array(column, float) for column in zip(*lines, strict=True))
    return Lines(normals, offsets, slack, incomplete)


def _is_on_a_line(point: Array, lines: list[tuple[Array, float, float]], spread: Array) -> bool:
    return any(abs(n @ point - c) <= 1e-6 * np.abs(n) @ spread for n, c, _ in lines)


def _line_through(
    along: Callable[[Array, Array], Function], y: Array, v: Array, centre: Array, spread: Array
) -> list[tuple[Array, float, float]]:
    """Return the line through the kink at y of the path along v, if the kinks of parallel paths are on one.

    A nearby path gives the slope. A path far away, searched where the slope predicts, gives its further
    digits.
    """
    across, slope, kinks = np.array([-v[1], v[0]]), 0.0, [y]
    for distance, tolerance in ((1 / 64, 0.25), (0.5, 1e-6)):
        for side in (distance, -distance):
            f, guess = along(y + side * across, v), side * slope
            near = [t for t in find_kinks(f, guess - CELL, guess + CELL) if abs(t - guess) < tolerance]
            if near:
                t = min(near, key=lambda t: abs(t - guess))
                slope = t / side
                kinks.append(y + side * across + t * v)
                break
        else:
            return []
    normal = np.divide(v - slope * across, spread, out=np.zeros(2), where=spread > 0)
    normal = rounded(normal / np.abs(normal).max(), 1e-9)
    levels = (centre + spread * np.array(kinks)) @ normal
    offset = float(rounded(levels[0], 1e-9 * min(float(np.abs(normal) @ spread), 1.0)))
    return [(normal, offset, float(np.abs(levels - offset).max()))]
