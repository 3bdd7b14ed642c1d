"""Random functions as users write them, and the expectations of their products by a rule of a million points.

Waves, spikes, steps, combs, powers, and sums and products of these. Each knows where it is rough, which the
library is not told. Nothing here is imported from the library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

REACH = 10.0  # standard deviations
CELLS = 2**19  # of two nodes each: a million
LINE = 40.0  # places beyond it are out of reach


@dataclass(frozen=True)
class Rough:
    """A function of arrays, where it is rough (and how narrow there), and its name."""

    name: str
    f: Callable[[np.ndarray], np.ndarray]
    places: tuple[float, ...] = ()


def waves(rng: np.random.Generator) -> Rough:
    count = int(rng.integers(1, 5))
    rate, shift = np.exp(rng.uniform(np.log(0.5), np.log(300.0), count)), rng.uniform(0, 2 * np.pi, count)
    size = rng.uniform(0.2, 1.0, count)
    name = " + ".join(f"sin({r:.3g} x)" for r in rate)
    return Rough(name, lambda x: np.sin(np.multiply.outer(x, rate) + shift) @ size)


def spike(rng: np.random.Generator) -> Rough:
    width, height = 10 ** rng.uniform(-4, -1), 10 ** rng.uniform(-0.5, 1.5)
    centre, kind = rng.normal(), rng.integers(3)
    near = tuple(centre + width * np.arange(-40, 41) / 4)
    shapes = [
        ("bump", lambda z: np.exp(-z * z / 2)),
        ("box", lambda z: (np.abs(z) < 0.5) * 1.0),
        ("tent", lambda z: np.maximum(1 - np.abs(z), 0.0)),
    ]
    name, shape = shapes[kind]
    near = (*near, centre - width / 2, centre + width / 2)
    return Rough(
        f"{height:.3g} {name}(width {width:.1e} at {centre:.2g})",
        lambda x: height * shape((x - centre) / width),
        near,
    )


def steps(rng: np.random.Generator) -> Rough:
    places, sizes = rng.normal(size=(2, int(rng.integers(1, 13))))
    return Rough(
        f"{len(places)} steps",
        lambda x: sum(a * (x > p) for a, p in zip(sizes, places, strict=True)) + 0.0 * x,
        tuple(places),
    )


def comb(rng: np.random.Generator) -> Rough:
    rate, kind = 10 ** rng.uniform(0, 1.7), rng.integers(5)
    whole, half = np.arange(-np.ceil(LINE * rate), np.ceil(LINE * rate) + 1) / rate, 0.5 / rate
    kinds = [
        ("sign(sin)", lambda x: np.sign(np.sin(np.pi * rate * x)), whole),
        ("round", lambda x: np.round(x * rate) / rate, whole + half),
        ("floor", lambda x: np.floor(x * rate) / rate, whole),
        (
            "triangle wave",
            lambda x: np.abs(x * rate - np.round(x * rate)),
            np.concatenate([whole, whole + half]),
        ),
        ("sawtooth", lambda x: x * rate - np.floor(x * rate), whole),
    ]
    name, f, places = kinds[kind]
    return Rough(f"{name}({rate:.3g} x)", f, tuple(places))


def power(rng: np.random.Generator) -> Rough:
    p, kind = rng.uniform(0.2, 4.0), rng.integers(4)
    near = (0.0, *(sign * 2.0**-k for k in range(60) for sign in (-1, 1)))
    kinds = [
        (f"|x|^{p:.2g}", lambda x: np.abs(x) ** p, near),
        (f"sign(x) |x|^{p:.2g}", lambda x: np.sign(x) * np.abs(x) ** p, near),
        ("x^5", lambda x: x**5 / 10, ()),
        ("log|x|", lambda x: np.log(np.abs(x)), near),
    ]
    return Rough(*kinds[kind])


def usual(rng: np.random.Generator) -> Rough:
    kinds = [
        Rough("tanh", np.tanh),
        Rough("relu", lambda x: np.maximum(x, 0.0), (0.0,)),
        Rough("x exp(-x^2)", lambda x: x * np.exp(-x * x)),
        Rough("clip", lambda x: np.clip(x, -1.0, 1.0), (-1.0, 1.0)),
    ]
    return kinds[rng.integers(len(kinds))]


KINDS = (waves, spike, steps, comb, power, usual)


def random_function(seed: int) -> Rough:
    """A sum or product of up to three functions; all kinds occur as the first one in turn."""
    rng = np.random.default_rng([seed, 13])
    made = KINDS[seed % (len(KINDS) - 1)](rng)
    for _ in range(int(rng.integers(0, 3))):
        made = _joined(made, KINDS[rng.integers(len(KINDS))](rng), "+*"[int(rng.integers(2))])
    return made


def _joined(a: Rough, b: Rough, sign: str) -> Rough:
    f = (lambda x: a.f(x) + b.f(x)) if sign == "+" else (lambda x: a.f(x) * b.f(x))
    return Rough(f"({a.name} {sign} {b.name})", f, a.places + b.places)


def line(rough: Rough, deviation: float, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes t in standard deviations and their weights: two in a cell, eight near 0 and at rough places."""
    even, places = np.linspace(-REACH, REACH, cells + 1), np.asarray(rough.places) / deviation
    ends = np.unique(np.concatenate([even, places[np.abs(places) < REACH]]))
    middle, half = (ends[1:] + ends[:-1]) / 2, np.diff(ends) / 2
    cut = (half < 0.999 * REACH / cells) | (np.abs(middle) < 0.01)
    nodes, weights = [], []
    for at, count in ((~cut, 2), (cut, 8)):
        xi, omega = np.polynomial.legendre.leggauss(count)
        nodes.append((middle[at, None] + half[at, None] * xi).ravel())
        weights.append((half[at, None] * omega).ravel())
    return np.concatenate(nodes), np.concatenate(weights)


@dataclass(frozen=True)
class Truth:
    """E[f(a t) f(b u)] for standard normal t, u, by a rule with so many cells."""

    rough: Rough
    cells: int = CELLS
    _known: dict[float, tuple[np.ndarray, ...]] = field(default_factory=dict)

    def values(self, deviation: float) -> tuple[np.ndarray, ...]:
        """Nodes, weights and values of the function."""
        if deviation not in self._known:
            t, weight = line(self.rough, deviation, self.cells)
            self._known[deviation] = t, weight, self.rough.f(deviation * t)
        return self._known[deviation]

    def second_moment(self, one: float, two: float, rho: float) -> float:
        """The expectation at correlation rho.

        The density of (t, u) is w(t) w(u) k(t - u) with w(t) = exp(-t^2 / 2 (1 + rho)), if rho >= 0. So it is
        a convolution, once every node is moved to its two neighbours on a grid, with linear weights. For
        rho < 0, u changes its sign; rho = 1 is a sum over the line.
        """
        t, weight, f = self.values(one)
        if rho == 1.0 and one == two:
            return float(np.sum(f * f * weight * np.exp(-(t**2) / 2)) / np.sqrt(2 * np.pi))
        u, weight_u, g = self.values(two)
        c, cells = abs(rho), self.cells
        left = on_grid(t, f * weight * np.exp(-(t**2) / (2 * (1 + c))), cells)
        right = on_grid(np.sign(rho) * u, g * weight_u * np.exp(-(u**2) / (2 * (1 + c))), cells)
        gap = 2 * REACH / cells * np.arange(-cells, cells + 1)
        k = np.exp(-c * gap**2 / (2 * (1 - c * c))) / (2 * np.pi * np.sqrt(1 - c * c))
        size = next_fast_len(2 * cells + 1, real=True)  # what it wraps around is not read
        masses, kernel = (np.asarray(rfft(x, size)) for x in (right, k))
        convolved = np.asarray(irfft(masses * kernel, size))

        return float(left @ convolved[cells : 2 * cells + 1])


def on_grid(t: np.ndarray, mass: np.ndarray, cells: int) -> np.ndarray:
    """Masses at the points of a grid that have the same sum and centre as those at t."""
    place = (t + REACH) / (2 * REACH) * cells
    low = np.clip(place.astype(int), 0, cells - 1)
    share = place - low
    return np.bincount(low, mass * (1 - share), cells + 1) + np.bincount(low + 1, mass * share, cells + 1)


def truth(rough: Rough) -> Callable[[float, float, float], tuple[float, float]]:
    """The expectation, and how far it is from that of half as many cells; errors fall like their square."""
    fine, coarse = Truth(rough), Truth(rough, CELLS // 2)

    def both(one: float, two: float, rho: float) -> tuple[float, float]:
        value = fine.second_moment(one, two, rho)
        return value, abs(value - coarse.second_moment(one, two, rho))

    return both
