"""Tensor rules in a ball of a few dimensions, cut at planes where the integrand has kinks.

Coordinates are turned so that the innermost one crosses all planes; where two cuts meet is a plane again, in
one dimension less, and so on outwards (preintegration: Griewank, Kuo, Leovey and Sloan 2018).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import ceil, pi, sqrt

import numpy as np
from numpy.polynomial.legendre import leggauss

__all__ = ["MOST_PLANES", "Frame", "Rule", "ball_rule", "cut_rule", "frame_of"]

Array = np.ndarray
Rule = tuple[Array, Array]  # nodes e (r, points), and weights with the Gaussian density

NODES, MOST_NODES = (
    1.2,
    256,
)  # of a piece, over its length in steps; those of longer rules take too long to find
SHIFTS = [0.618034, 0.754878, 0.819173, 0.856675]  # roots of x^(k+1) + x = 1: even spread
MOST_PLANES = (128, 24, 12, 12)  # by dimension
PARALLEL = 1e-9


@dataclass(frozen=True)
class Frame:
    """Coordinates of e, the outermost first, and per coordinate the cuts intercepts + slopes @ outer ones."""

    axes: Array  # shape (r, r), orthonormal columns
    cuts: tuple[tuple[Array, Array], ...]  # slopes (cuts, outer coordinates) and intercepts (cuts,)
    whole: bool = True  # whether no cuts were left out for being too many


def ball_rule(r: int, step: float, level: int, reach: float, limit: int = 2**31) -> Rule | None:
    """The trapezoid rule in a ball of r dimensions."""
    cuts = tuple((np.zeros((0, j)), np.zeros(0)) for j in range(r))
    return cut_rule(Frame(np.eye(r), cuts), step, level, reach, limit)


def cut_rule(
    frame: Frame, step: float, level: int, reach: float, limit: int, ball: bool = True
) -> Rule | None:
    """Coordinate by coordinate from the outermost: trapezoid, or pieces between cuts; None if too large.

    The rule is in a ball, or in the cube around it, where lines that are cut alike have the same nodes.

    The trapezoid rules of every level and coordinate are shifted differently: a jump that is between the
    same nodes at all levels would not show in their differences.
    """
    x, w = np.zeros((0, 1)), np.ones(1)
    for slopes, intercepts in frame.cuts:
        half = np.sqrt(np.maximum(reach**2 - ball * np.sum(x**2, axis=0), 0.0))
        shift = SHIFTS[len(x)] * (level + 1) % 1
        cuts = intercepts[:, None] + slopes @ x
        parts = _pieces(cuts, half, step, limit) if len(cuts) else _equal(half, step, shift, limit)
        if parts is None:
            return None
        line, t, weight = parts
        x = np.concatenate([x[:, line], t[None]])
        w = w[line] * weight * np.exp(-(t**2) / 2) / sqrt(2 * pi)
    return frame.axes @ x, w


def _equal(half: Array, step: float, shift: float, limit: int) -> tuple[Array, ...] | None:
    """Nodes (j + shift) step in |t| < half: the line of each, its place, its weight."""
    if 2 * np.sum(half) / step > limit:
        return None
    most = ceil(half.max() / step)
    t = step * (np.arange(-most - 1, most + 1) + shift)
    line, node = np.nonzero(np.abs(t) < half[:, None])
    return line, t[node], np.full(len(line), step)


def _pieces(cuts: Array, half: Array, step: float, limit: int) -> tuple[Array, ...] | None:
    """Gauss-Legendre nodes between the cuts (cuts, lines) of every line, in number as the step asks."""
    edges = np.concatenate([-half[None], np.sort(np.clip(cuts, -half, half), axis=0), half[None]])
    low, length = edges[:-1].ravel(), np.diff(edges, axis=0).ravel()
    line = np.tile(np.arange(len(half)), len(cuts) + 1)
    number = np.where(length > 0, np.ceil(NODES * (length + 1.5) / step), 0).astype(int)
    if number.sum() > limit or number.max(initial=0) > MOST_NODES:
        return None
    lines, nodes, weights = [], [], []
    for n in np.unique(number[number > 0]):
        at = number == n
        xi, omega = _legendre(int(n))
        lines.append(np.repeat(line[at], n))
        nodes.append((low[at, None] + length[at, None] * xi).ravel())
        weights.append((length[at, None] * omega).ravel())
    return tuple(np.concatenate(a) for a in (lines, nodes, weights))


@lru_cache(maxsize=512)
def _legendre(n: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    xi, omega = leggauss(n)
    return (xi + 1) / 2, omega / 2


def frame_of(normals: Array, offsets: Array, reach: float) -> Frame:
    """Coordinates for the planes normals . e = offsets; where there are too many, the outer ones go uncut."""
    size, r = np.linalg.norm(normals, axis=1), normals.shape[1]
    near = (size > 0) & (np.abs(offsets) < reach * size)
    if r == 0:
        return Frame(np.zeros((0, 0)), ())
    if near.sum() > MOST_PLANES[r - 1]:
        return replace(frame_of(normals[:0], offsets[:0], reach), whole=False)
    normals, offsets = normals[near] / size[near, None], offsets[near] / size[near]
    v = _direction(normals)
    rest = np.linalg.svd(v[None])[2][1:].T
    across = normals @ v
    hit = np.abs(across) > PARALLEL
    slopes, intercepts = -(normals[hit] @ rest) / across[hit, None], offsets[hit] / across[hit]
    i, j = np.array(list(combinations(range(len(intercepts)), 2)), int).reshape(-1, 2).T
    meets, where = slopes[i] - slopes[j], intercepts[j] - intercepts[i]
    apart = np.linalg.norm(meets, axis=1) > PARALLEL
    normals = np.concatenate([normals[~hit] @ rest, meets[apart]])
    outer = frame_of(normals, np.concatenate([offsets[~hit], where[apart]]), reach)
    axes = np.column_stack([rest @ outer.axes, v])
    return Frame(axes, (*outer.cuts, (slopes @ outer.axes, intercepts)), outer.whole)


def _direction(normals: Array) -> Array:
    """A direction that crosses every plane steeply or not at all, best of a few."""
    k, r = normals.shape
    signs = np.sign(np.random.default_rng(k).standard_normal((16, k)))
    null = np.linalg.svd(normals)[2][np.linalg.matrix_rank(normals, tol=PARALLEL) :] if k else np.eye(r)
    tries = np.concatenate([null, normals, np.linalg.pinv(normals).T, signs @ normals])
    tries = tries[np.linalg.norm(tries, axis=1) > PARALLEL]
    tries = tries / np.linalg.norm(tries, axis=1, keepdims=True)
    steep = np.abs(tries @ normals.T)
    hits = steep > PARALLEL
    return tries[np.argmax(np.where(hits, steep, 1.0).min(axis=1, initial=1.0) - 0.01 * hits.sum(axis=1))]
