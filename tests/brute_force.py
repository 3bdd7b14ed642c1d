"""Second moments of functions of two Gaussian numbers by plain panels, split wherever a function has a kink.

For each point x of an outer rule the inner rule runs over y given x. All panels end at the kinks, so that
every piece is smooth and Gauss-Legendre converges fast; nothing here knows about Hermite series or formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

__all__ = [
    "arc_cosine",
    "arc_sine",
    "batchnorm_slopes",
    "centred",
    "mean_of",
    "on_the_sphere",
    "pair_moment",
    "pair_moments",
]

Phi = Callable[[np.ndarray], np.ndarray]
Points = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (points, B1), (points, B2) -> (points, B1, B2)
BOUND = 9.0  # a standard Gaussian is further out than this with probability 2e-19
ORDER = 12  # nodes in each panel
PANELS = 30
ONE = 1 - 1e-15  # a correlation beyond this is 1


def mean_of(f: Phi, mean: float, var: float, kinks: Sequence[float] = (), panels: int = PANELS) -> float:
    """E f(z) for z ~ N(mean, var)."""
    if var == 0:
        return float(f(np.array([mean]))[0])
    s = np.sqrt(var)
    u, w = _rule(panels, np.array([[(k - mean) / s for k in kinks]]))
    return float(np.sum(w * f(mean + s * u)))


def pair_moment(
    f: Phi,
    g: Phi,
    cov: np.ndarray,
    mean: Sequence[float] = (0.0, 0.0),
    kinks: Sequence[float] = (),
    panels: int = PANELS,
) -> float:
    """E f(x) g(y) for (x, y) ~ N(mean, cov); `kinks` are those of f and of g together."""
    s, t = np.sqrt(np.diag(cov))
    if s == 0 or t == 0:
        return mean_of(f, mean[0], cov[0, 0], kinks, panels) * mean_of(g, mean[1], cov[1, 1], kinks, panels)
    r = min(1.0, max(-1.0, cov[0, 1] / (s * t)))
    of_x, of_y = (np.array([(k - m) / d for k in kinks]) for m, d in zip(mean, (s, t), strict=True))
    there = of_y / r if abs(r) > 0.1 else of_y[:0]  # where the inner integral changes fast if |r| is near 1
    u, w = _rule(panels, np.concatenate([of_x, there])[None])
    u, w = u[0], w[0]
    if abs(r) > ONE:
        return float(np.sum(w * f(mean[0] + s * u) * g(mean[1] + t * r * u)))
    rest = np.sqrt(1 - r * r)
    v, weights = _rule(panels, (of_y - r * u[:, None]) / rest)
    inner = np.sum(weights * g(mean[1] + t * (r * u[:, None] + rest * v)), axis=1)
    return float(np.sum(w * f(mean[0] + s * u) * inner))


def pair_moments(
    f: Phi | Sequence[Phi],
    cov: np.ndarray,
    mean: Any = 0.0,
    kinks: Sequence[float] = (),
    panels: int = PANELS,
) -> np.ndarray:
    """E f_i(z_i) f_j(z_j) for all pairs of z ~ N(mean, cov); one function for all, or one for each."""
    count = len(cov)
    functions = [f] * count if callable(f) else list(f)
    means = np.broadcast_to(np.asarray(mean, float), (count,))
    out = np.empty((count, count))
    for i in range(count):
        for j in range(i + 1):
            part = np.ix_([i, j], [i, j])
            value = pair_moment(functions[i], functions[j], cov[part], means[[i, j]].tolist(), kinks, panels)
            out[i, j] = out[j, i] = value
    return out


def _rule(panels: int, breaks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points and Gaussian weights, a row for each row of breaks, which are edges of panels as well."""
    x, w = np.polynomial.legendre.leggauss(ORDER)
    rows = len(breaks)
    uniform = np.broadcast_to(np.linspace(-BOUND, BOUND, panels + 1), (rows, panels + 1))
    edges = np.sort(np.concatenate([uniform, np.clip(breaks, -BOUND, BOUND)], axis=1), axis=1)
    half = np.diff(edges, axis=1)[..., None] / 2
    z = edges[:, :-1, None] + half * (1 + x)
    weights = half * w * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return z.reshape(rows, -1), weights.reshape(rows, -1)


# Two formulas of the literature, for covariance matrices without a zero on the diagonal


def arc_cosine(s: np.ndarray) -> np.ndarray:
    """E relu(z) relu(z') for all pairs (Cho & Saul 2009)."""
    scale = np.sqrt(np.outer(np.diag(s), np.diag(s)))
    c = np.clip(s / scale, -1, 1)
    return scale / (2 * np.pi) * (np.sqrt(1 - c**2) + (np.pi - np.arccos(c)) * c)


def arc_sine(s: np.ndarray) -> np.ndarray:
    """E sign(z) sign(z') for all pairs (Sheppard 1899)."""
    scale = np.sqrt(np.outer(np.diag(s), np.diag(s)))
    return 2 / np.pi * np.arcsin(np.clip(s / scale, -1, 1))


# Batchnorm of a batch that spans three dimensions


def centred(m: np.ndarray) -> np.ndarray:
    """A matrix less the means of its rows and of its columns."""
    return m - m.mean(0) - m.mean(1)[:, None] + m.mean()


def batchnorm_slopes(theta: np.ndarray, one: tuple[float, float], two: tuple[float, float]) -> Points:
    """phi'(y_i) J(y)_i T J(z)_j^T psi'(z_j) for the Jacobian J of batchnorm, of batches of mean 0.

    theta     T, the covariance of the directions
    one, two  the values of phi' and of psi' above and below 0
    """

    def jacobians(y: np.ndarray, own: tuple[float, float]) -> np.ndarray:
        size = y.shape[1]
        radius = np.linalg.norm(y, axis=1)[:, None, None]
        J = np.sqrt(size) * (np.eye(size) / radius - y[:, :, None] * y[:, None, :] / radius**3)
        return np.where(y > 0, own[0], own[1])[:, :, None] * J

    return lambda y, z: jacobians(y, one) @ centred(theta) @ np.swapaxes(jacobians(z, two), 1, 2)


def on_the_sphere(
    sigma: np.ndarray, maps: tuple[np.ndarray, np.ndarray], f: Points, degree: int
) -> np.ndarray:
    """E[f(maps[0] x, maps[1] x)], (B1, B2), for x ~ N(0, sigma) in 3 dimensions and f of degree 0 or -2.

    The radius is integrated out. For each entry the two planes where f jumps meet in an axis: around it the
    rule of Gauss and Legendre between the jumps, along it the same.
    """
    nodes, weights = np.polynomial.legendre.leggauss(60)
    inverse, scale = np.linalg.inv(sigma), (2 * np.pi) ** -1.5 / np.sqrt(np.linalg.det(sigma))
    out = np.empty((len(maps[0]), len(maps[1])))
    for i, j in np.ndindex(out.shape):
        a, b = maps[0][i], maps[1][j]
        other = np.roll(a, 1) if np.allclose(a, b) else b
        axes = np.linalg.qr(np.stack([a, other], axis=1), mode="complete")[0]
        jumps = []
        for normal in (a, b):
            u, v = normal @ axes[:, 0], normal @ axes[:, 1]
            jumps += [np.arctan2(-u, v), np.arctan2(u, -v)]
        cuts = np.sort(np.mod(jumps, 2 * np.pi))
        total = 0.0
        for low, high in pairwise([*cuts, cuts[0] + 2 * np.pi]):
            angle = (low + high) / 2 + (high - low) / 2 * nodes
            around = np.stack([np.cos(angle), np.sin(angle)]) * np.sqrt(1 - nodes[:, None, None] ** 2)
            unit = np.concatenate([around, np.broadcast_to(nodes[:, None, None], (60, 1, 60))], axis=1)
            x = (axes @ unit).transpose(0, 2, 1).reshape(-1, 3)
            w = (high - low) / 2 * np.outer(weights, weights).ravel()
            radial = np.sqrt(np.pi / 2) * np.einsum("ni,ij,nj->n", x, inverse, x) ** (-1.5 - degree / 2)
            total += np.sum(w * radial * f(x @ maps[0].T, x @ maps[1].T)[:, i, j])
        out[i, j] = scale * total
    return out
