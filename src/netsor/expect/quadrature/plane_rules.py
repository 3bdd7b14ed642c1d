"""Rules for integrals over a square against the normal density, split at lines where the integrand has kinks.

Coordinates (u, v) are rotated so that v crosses the lines. On every line u = const, the rule is
Gauss-Legendre between the crossings. The result is smooth in u except where two crossings meet, and is
integrated in the same way (preintegration: Griewank, Kuo, Leovey and Sloan 2018). Without kinks, both rules
are trapezoid rules (Trefethen and Weideman, SIAM Review 2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, pi, sqrt

import numpy as np

from netsor.expect.quadrature.hermite_functions import gauss_legendre
from netsor.expect.quadrature.kink_lines import MOST_LINES

Array = np.ndarray
Rule = tuple[Array, Array]  # nodes (u, v), shape (2, points), sorted by u; weights times density


@dataclass(frozen=True)
class Frame:
    """Coordinates (u, v), lines v = intercepts + slopes u, and the places where the rule in u is split."""

    axes: Array  # shape (2, 2): the directions of u and v as columns
    slopes: Array  # shape (lines,)
    intercepts: Array  # shape (lines,)
    breaks: Array  # shape (breaks,)
    complete: bool = True  # false if lines were left out because there are too many

    @classmethod
    def plain(cls, complete: bool = True) -> Frame:
        """The frame of a smooth integrand."""
        none = np.zeros(0)
        return cls(np.eye(2), none, none, none, complete)

    @property
    def is_plain(self) -> bool:
        return self.complete and not len(self.slopes) + len(self.breaks)


def frame_of(normals: Array, offsets: Array, reach: float) -> Frame:
    """Return the frame for those lines normals . e = offsets that enter the square |u|, |v| < reach."""
    size = np.linalg.norm(normals, axis=1)
    near = (size > 0) & (np.abs(offsets) < sqrt(2) * reach * size)
    if not near.any() or near.sum() > MOST_LINES:
        return Frame.plain(complete=not near.any())
    normals, offsets = normals[near] / size[near, None], offsets[near] / size[near]
    v = _direction(normals)
    u = np.array([v[1], -v[0]])
    across = normals @ v
    hit = _is_nonzero(across)
    slopes, intercepts = -(normals[hit] @ u) / across[hit], offsets[hit] / across[hit]
    i, j = np.triu_indices(len(slopes), 1)
    turn, gap = slopes[i] - slopes[j], intercepts[j] - intercepts[i]
    meet = _is_nonzero(turn)
    breaks = np.concatenate([offsets[~hit] / (normals[~hit] @ u), gap[meet] / turn[meet]])
    return Frame(np.column_stack([u, v]), slopes, intercepts, breaks)


def _is_nonzero(sine: Array) -> Array:
    """Return whether two directions at an angle of this sine differ by more than rounding."""
    return np.abs(sine) > 1e-9


def _direction(normals: Array) -> Array:
    """Return the direction, of a few, that crosses lines steeply or not at all, and crosses few."""
    angles = np.linspace(0.1, pi, 17)[:-1]
    fan = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    tries = np.concatenate([normals[:, ::-1] * [1, -1], normals, fan])
    steep = np.abs(tries @ normals.T)
    hits = _is_nonzero(steep)
    return tries[np.argmax(np.where(hits, steep, 1.0).min(axis=1) - 0.01 * hits.sum(axis=1))]


def plane_rule(frame: Frame, step: float, level: int, reach: float, most: int) -> Rule | None:
    """Return a rule with approximately this step between nodes; None if it needs more than `most` nodes.

    Trapezoid rules of every level and coordinate have different shifts, multiples of the roots of
    x^(k + 1) + x = 1: a jump between the same nodes at all levels would not show in their differences.
    """
    outer = _line_rule(frame.breaks[:, None], 1, step, 0.618034 * (level + 1) % 1, reach, most)
    if outer is None:
        return None
    _, u, w = outer
    crossings = frame.intercepts[:, None] + frame.slopes[:, None] * u
    inner = _line_rule(crossings, len(u), step, 0.754878 * (level + 1) % 1, reach, most)
    if inner is None:
        return None
    at, v, weight = inner
    return np.stack([u[at], v]), w[at] * weight


def _line_rule(
    breaks: Array, lines: int, step: float, shift: float, reach: float, most: int
) -> tuple[Array, Array, Array] | None:
    """Return nodes in |t| < reach on several lines: line, position, and weight times density of each.

    Without breaks (breaks, lines), the nodes are (j + shift) step. Otherwise they are Gauss-Legendre nodes
    between the breaks, as many as the step requires.
    """
    if not len(breaks):
        t = step * (np.arange(-ceil(reach / step) - 1, ceil(reach / step) + 1) + shift)
        t = t[np.abs(t) < reach]
        if lines * len(t) > most:
            return None
        line, t, weight = (
            np.repeat(np.arange(lines), len(t)),
            np.tile(t, lines),
            np.full(lines * len(t), step),
        )
    else:
        edge = np.full((1, lines), reach)
        edges = np.concatenate([-edge, np.sort(np.clip(breaks, -reach, reach), axis=0), edge]).T
        length = np.diff(edges)
        number = np.where(length > 0, np.ceil(1.2 * (length + 1.5) / step), 0).astype(int)
        if (
            number.sum() > most or number.max(initial=0) > 256
        ):  # longer Gauss-Legendre rules are slow to compute
            return None
        rules = [gauss_legendre(n) for n in number[number > 0].tolist()]
        xi, omega = (np.concatenate([rule[k] for rule in rules]) for k in (0, 1))
        line = np.repeat(np.arange(lines), number.sum(axis=1))
        low, length = (np.repeat(x.ravel(), number.ravel()) for x in (edges[:, :-1], length))
        t, weight = low + length * (xi + 1) / 2, length * omega / 2
    return line, t, weight * np.exp(-(t**2) / 2) / sqrt(2 * pi)
