"""The planes on which a function of a few variables has kinks or jumps, found from its values on lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from netsor.expect.quadrature.kinks import CELL, find_kinks
from netsor.expect.quadrature.nodes import call

__all__ = ["Planes", "find_planes"]

Array = np.ndarray
Function = Callable[[Array], Array]

LINES, TRIES = 6, 4


@dataclass(frozen=True)
class Planes:
    """The planes normals . z = offsets where a function has kinks or jumps, and how far each may be off."""

    normals: Array  # shape (planes, d)
    offsets: Array  # shape (planes,)
    slack: Array  # shape (planes,), in the unit of the offsets
    curved: bool = False  # whether there are kinks on no plane

    @classmethod
    def none(cls, d: int) -> Planes:
        """Those of a smooth function of d variables."""
        return cls(np.zeros((0, d)), np.zeros(0), np.zeros(0))

    def __len__(self) -> int:
        return len(self.offsets)


def find_planes(
    fn: Function, centre: Array, spread: Array, known: Planes | None = None, most: int = 128
) -> Planes:
    """The planes near a point on which fn, or one of its first derivatives, jumps, with the known ones.

    `centre` and `spread` (d,) are a mean and standard deviations. Kinks are looked for on a few lines, random
    and along the axes; each is followed to parallel lines, where it must be on the same plane. The search
    ends where there are more than `most` planes.
    """
    d, moving = len(centre), np.flatnonzero(spread > 0)
    rng = np.random.default_rng(0)
    planes = [] if known is None else list(zip(known.normals, known.offsets, known.slack, strict=True))

    def z(y: Array) -> Array:
        return centre[:, None] + np.eye(d)[:, moving] @ (spread[moving, None] * y)

    def along(p: Array, v: Array) -> Function:
        def f(t: Array) -> Array:
            values = call(fn, z(p[:, None] + v[:, None] * t.ravel())[:, None, :])
            return (values + 0.0 * t.ravel()).reshape(t.shape)

        return f

    points, failed, lost = [], 0, known is not None and known.curved
    for v in [*np.repeat(np.eye(len(moving)), 2, axis=0), *rng.standard_normal((LINES, len(moving)))]:
        p, v = rng.standard_normal(len(moving)), v / np.linalg.norm(v)
        if failed >= TRIES or len(planes) > most:  # on no plane, or on too many: more lines would find more
            lost = True
            break
        for t in find_kinks(along(p, v), -10.0, 10.0):
            x = p + t * v
            points.append(z(x[:, None])[:, 0])
            if failed < TRIES and len(planes) <= most and not _explained(points[-1], planes, spread):
                new = _plane(along, x, v, centre, spread, moving)
                planes, failed = planes + new, failed + (not new)
    lost = lost or not all(_explained(point, planes, spread) for point in points)
    if not planes:
        return replace(Planes.none(d), curved=lost)
    normals, offsets, slack = (np.array(column, float) for column in zip(*planes, strict=True))
    return Planes(normals, offsets, slack, lost)


def _explained(point: Array, planes: list[tuple[Array, float, float]], spread: Array) -> bool:
    """Whether a kink at this point is on one of the planes."""
    return any(abs(n @ point - c) <= 1e-6 * np.abs(n) @ spread for n, c, _ in planes)


def _plane(
    along: Callable[[Array, Array], Function], x: Array, v: Array, centre: Array, spread: Array, moving: Array
) -> list[tuple[Array, float, float]]:
    """The plane through the kink at x of the line along v, if the kinks of parallel lines are on one."""
    across = np.linalg.svd(v[None])[2][1:]
    slopes, found = np.zeros(len(across)), [x]
    for far, near in ((1 / 64, 0.25), (0.5, 1e-6)):
        for j, w in enumerate(across):
            for side in (far, -far):
                f, guess = along(x + side * w, v), side * slopes[j]
                kinks = [t for t in find_kinks(f, guess - CELL, guess + CELL) if abs(t - guess) < near]
                if kinks:
                    t = min(kinks, key=lambda t: abs(t - guess))
                    slopes[j] = t / side
                    found.append(x + side * w + t * v)
                    break
            else:
                return []
    normal = np.zeros(len(centre))
    normal[moving] = (v - slopes @ across) / spread[moving]
    normal = _snap(normal / np.abs(normal).max(), 1.0)
    places = centre[moving] + spread[moving] * np.array(found)
    levels = places @ normal[moving] + normal @ np.where(spread > 0, 0.0, centre)
    offset = float(_snap(levels[:1], float(np.abs(normal) @ spread))[0])
    return [(normal, offset, float(np.abs(levels - offset).max()))]


def _snap(x: Array, scale: float) -> Array:
    """Numbers with six decimals where they are that to 1e-9 of the scale."""
    return np.where(np.abs(x - np.round(x, 6)) < 1e-9 * min(scale, 1.0), np.round(x, 6) + 0.0, x)
