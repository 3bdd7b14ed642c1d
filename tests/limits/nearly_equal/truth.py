"""The kernels of nearly equal inputs in 60 digits: writes `truth.csv`, which the tests read. It needs mpmath.

    python tests/limits/nearly_equal/truth.py

sign, step and erf have closed forms, which 60 digits evaluate as they are. For tanh there is a double
integral. While y given x is within 0.7, it is E[(tanh x - tanh y)^2] by the trapezoid rule, as the
integrand is analytic in a strip; else tanh = sign + g, where g falls off like exp(-2 |x|), and Gauss-
Legendre panels take the terms of E[tanh x tanh y]. Nothing of the package is used.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

Real = Any  # mpmath's numbers, whose class is made at run time
mp: Any = mpmath.mp
mpf: Any = mpmath.mpf
mp.dps = 60
X = (0.7, -1.1, 0.4)
Z = (0.3, 0.5, -0.8)
SEPARATIONS = [float(f"1e-{k}") for k in range(2, 15)]
DEPTHS = range(1, 7)
NETWORKS = {"sign": 1.0, "step": 1.0, "erf": 1e4, "tanh": 1e4}  # with the variance of their weights


def points(separation: float) -> np.ndarray:
    """x, and y at about the separation times |x| from it."""
    x, z = np.array(X), np.array(Z)
    return np.stack([x, x + separation * (np.linalg.norm(x) / np.linalg.norm(z)) * z])


# E[f(x) f(y)] of variances q, p and covariance c


def sign(q: Real, p: Real, c: Real) -> Real:
    return 2 / mp.pi * mp.asin(c / mp.sqrt(q * p))


def step(q: Real, p: Real, c: Real) -> Real:
    return mpf(1) / 4 + mp.asin(c / mp.sqrt(q * p)) / (2 * mp.pi)


def erf(q: Real, p: Real, c: Real) -> Real:
    return 2 / mp.pi * mp.asin(2 * c / mp.sqrt((1 + 2 * q) * (1 + 2 * p)))


def tanh(q: Real, p: Real, c: Real) -> Real:
    if q == p == c:
        return tanh_squared(q)
    width = mp.sqrt(p - c * c / q)
    if width > 0.7:
        return sign(q, p, c) + one_tail(q, p, c) + one_tail(p, q, c) + two_tails(q, p, c)
    return (tanh_squared(q) + tanh_squared(p) - near(q, p, c, width)) / 2


def density(x: Real, q: Real) -> Real:
    return mp.exp(-x * x / (2 * q)) / mp.sqrt(2 * mp.pi * q)


@cache
def tanh_squared(q: Real) -> Real:
    """1 - E[sech^2], by the trapezoid rule."""
    h = mpf("0.09")
    return 1 - h * mp.fsum(mp.sech(k * h) ** 2 * density(k * h, q) for k in range(-700, 701))


def near(q: Real, p: Real, c: Real, width: Real) -> Real:
    """E[(tanh x - tanh y)^2], with y = c x / q + width z and trapezoid rules over x > 0 and z."""
    h, k = mpf("0.12"), mpf("0.25")
    nodes = [(width * k * j, mp.npdf(k * j)) for j in range(-48, 49)]
    total = mpf(0)
    for i in range(334):
        x = (i + mpf(1) / 2) * h
        middle, at = c / q * x, mp.tanh(x)
        total += density(x, q) * mp.fsum(weight * (mp.tanh(middle + z) - at) ** 2 for z, weight in nodes)
    return 2 * h * k * total


@cache
def panels(length: int, order: int) -> list[tuple[Real, Real]]:
    """Gauss-Legendre nodes and weights on unit panels."""
    nodes = []
    for guess in np.polynomial.legendre.leggauss(order)[0]:
        t = mp.findroot(lambda t: mp.legendre(order, t), mpf(float(guess)))
        slope = order * (t * mp.legendre(order, t) - mp.legendre(order - 1, t)) / (t * t - 1)
        nodes.append(((1 + t) / 2, 1 / ((1 - t * t) * slope**2)))
    return [(j + t, w) for j in range(length) for t, w in nodes]


def g(x: Real) -> Real:
    """tanh x - 1 for x > 0."""
    return -2 / (mp.exp(2 * x) + 1)


def one_tail(q: Real, p: Real, c: Real) -> Real:
    """E[g(x) sign(y)]."""
    slope = c / q / mp.sqrt(2 * (p - c * c / q))
    return 2 * mp.fsum(w * g(x) * density(x, q) * mp.erf(slope * x) for x, w in panels(40, 20))


def two_tails(q: Real, p: Real, c: Real) -> Real:
    """E[g(x) g(y)], whose density is p(x, y) - p(x, -y) on x, y > 0, twice."""
    det = q * p - c * c
    scaled = [(x, w * g(x)) for x, w in panels(26, 14)]
    total = mpf(0)
    for x, a in scaled:
        parts = []
        for y, b in scaled:
            if x + y > 26:
                break
            even, odd = (p * x * x + q * y * y) / (2 * det), c * x * y / det
            parts.append(b * (mp.exp(odd - even) - mp.exp(-odd - even)))
        total += a * mp.fsum(parts)
    return 2 * total / (2 * mp.pi * mp.sqrt(det))


def kernels(name: str, separation: float) -> list[Real]:
    """K(x, y) for each depth."""
    second, var = globals()[name], mpf(NETWORKS[name])
    x, y = ([mpf(float(number)) for number in point] for point in points(separation))
    q, p, c = (var * mp.fdot(u, v) / len(x) for u, v in ((x, x), (y, y), (x, y)))
    found = []
    for _ in DEPTHS:
        moments = second(q, q, q), second(p, p, p), second(q, p, c)
        found.append(moments[2])
        q, p, c = (var * moment for moment in moments)
    return found


def main() -> None:
    with Path(__file__).with_name("truth.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["phi", "separation", "depth", "kernel"])
        for name in NETWORKS:
            for separation in SEPARATIONS:
                for depth, kernel in zip(DEPTHS, kernels(name, separation), strict=True):
                    table.writerow([name, f"{separation:g}", depth, mp.nstr(kernel, 30)])


if __name__ == "__main__":
    main()
