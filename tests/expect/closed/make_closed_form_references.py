"""Writes closed_form_references.json: E[f(x) g(y)] by quadrature with mpmath at 30 digits.

The value is the integral over x of f(x) E[g(y) | x], on panels that end at the kinks of f and where the mean
of y given x passes a kink of g. E[g(y) | x] is a formula of one variable, written out below for each
function and itself compared with quadrature. Waves times g are E[g] at a complex mean.

    python tests/expect/closed/make_closed_form_references.py        # some minutes
"""

from __future__ import annotations

import json
import multiprocessing
from functools import cache
from itertools import combinations_with_replacement, pairwise
from pathlib import Path

import pytest

mp = pytest.importorskip("mpmath")

mp.mp.dps = 30
NODES = 16
OPTIONS = {
    "leaky_relu": {"slope": 0.2},
    "gaussian": {"rate": 0.7},
    "elu": {"alpha": 1.3},
    "hard_tanh": {"low": -0.8, "high": 1.2},
    "polynomial": {"coefs": [0.3, -1.0, 0.5, 0.2]},
    "piecewise": {"knots": [-1.0, 0.5], "pieces": [[1.0, 0.5], [0.2, 0.0, 0.3], [-1.0, 0.2]]},
}
KINKS = {"hard_tanh": [-0.8, 1.2], "piecewise": [-1.0, 0.5]}
NAMES = [
    "identity",
    "relu",
    "leaky_relu",
    "abs",
    "step",
    "sign",
    "erf",
    "erf_gate",
    "exp",
    "sin",
    "cos",
    "gaussian",
    "gelu",
    "elu",
    "hard_tanh",
    "polynomial",
    "piecewise",
]

ORDINARY = [  # m1, m2, q1, q2, correlation
    (0, 0, 1, 1, 0.5),
    (0, 0, 0.1, 10, -0.99),
    (0.7, 0.7, 1, 1, 0.9),
    (0.7, -2, 0.5, 3, -0.3),
    (-2, 3, 0.1, 10, 0.99),
    (-2, -2, 0.1, 0.2, 0.95),
    (3, -3, 10, 10, -0.6),
    (-3, -3, 10, 10, 0.99),
    (3, 3, 2, 0.3, 0),
]
CLOSE = [
    (0, 0, 1, 2, 1 - 1e-9),
    (0.7, -2, 1, 2, -1 + 1e-13),
    (0.7, 0.7, 3, 3, 1 - 1e-15),
    (0, 0, 0.3, 7, -1 + 1e-15),
]
EXTREME = [  # m1, m2, q1, q2, covariance
    (0, 0, 1, 1, 1),
    (0, 0, 2, 2, -2),
    (0.7, 0.7, 0.3, 0.3, 0.3),
    (0.7, -0.7, 3, 3, -3),
    (-2, 0.7, 3, 12, 6),
    (0.7, -2, 0.1, 0.7, (0.1 * 0.7) ** 0.5),
    (0, 0, 0.1, 0.7, -((0.1 * 0.7) ** 0.5)),
    (0.7, 0.7, 1.7, 1.7, 1.7 * (1 + 1e-15)),
    (0, 0, 0, 0, 0),
    (0, 0, 0, 1, 0),
    (0.7, 0, 2, 0, 0),
    (-2, 0.7, 0, 0, 0),
    (-2, 0.7, 0, 2, 0),
    (0, 0, 1e-8, 1e-8, 5e-9),
    (0, 0, 1e-8, 1e-8, -1e-8),
    (0, 0, 1e-8, 2e-8, 1e-8),
    (1e-4, -1e-4, 1e-8, 1e-8, 9e-9),
    (0, 0.7, 1e-8, 1, 5e-5),
    (0.7, -2, 1e-8, 1e-8, 3e-9),
    (0, 0, 1e8, 1e8, 5e7),
    (0, 0, 1e8, 1e8, 1e8),
    (0.7, -2, 1e8, 1e8, 99e6),
    (0.7, 0.7, 1e8, 1e8, -1e8),
    (0.7, -2, 1e8, 1, 5e3),
    (0, 0, 1e8, 1e-8, 0.7),
]


def cdf(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def density(x):
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def poly(coefs, x):
    return mp.polyval([mp.mpf(c) for c in reversed(coefs)], x)


def piece(x):
    knots, pieces = OPTIONS["piecewise"]["knots"], OPTIONS["piecewise"]["pieces"]
    return poly(pieces[sum(x > k for k in knots)], x)


SLOPE, RATE, ALPHA = (mp.mpf(o) for o in (0.2, 0.7, 1.3))
LOW, HIGH = mp.mpf(-0.8), mp.mpf(1.2)
VALUES = {
    "identity": lambda x: x,
    "relu": lambda x: x if x > 0 else mp.mpf(0),
    "leaky_relu": lambda x: x if x > 0 else SLOPE * x,
    "abs": abs,
    "step": lambda x: mp.mpf(x > 0),
    "sign": mp.sign,
    "erf": mp.erf,
    "erf_gate": lambda x: mp.erfc(-x) / 2,
    "exp": mp.exp,
    "sin": mp.sin,
    "cos": mp.cos,
    "gaussian": lambda x: mp.exp(-RATE * x * x),
    "gelu": lambda x: x * cdf(x),
    "elu": lambda x: x if x > 0 else ALPHA * mp.expm1(x),
    "hard_tanh": lambda x: min(max(x, LOW), HIGH),
    "polynomial": lambda x: poly(OPTIONS["polynomial"]["coefs"], x),
    "piecewise": piece,
}


def ramp(m, s):
    """E[max(x, 0)]."""
    return m * cdf(m / s) + s * density(m / s)


def polynomial_mean(coefs, m, q):
    moments = [mp.mpf(1), m]
    for n in range(2, len(coefs)):
        moments.append(m * moments[-1] + (n - 1) * q * moments[-2])
    return sum(mp.mpf(c) * e for c, e in zip(coefs, moments, strict=False))


def upper_mean(coefs, m, q, knot):
    """E[p(x) 1[x > knot]], by integration by parts of x^n times the density."""
    s = mp.sqrt(q)
    h = (mp.mpf(knot) - m) / s
    moments = [cdf(-h), m * cdf(-h) + s * density(h)]
    for n in range(2, len(coefs)):
        boundary = s * density(h) * mp.mpf(knot) ** (n - 1)
        moments.append(m * moments[-1] + (n - 1) * q * moments[-2] + boundary)
    return sum(mp.mpf(c) * e for c, e in zip(coefs, moments, strict=False))


def piecewise_mean(knots, pieces, m, q):
    total = polynomial_mean(pieces[0], m, q)
    for knot, before, after in zip(knots, pieces, pieces[1:], strict=False):
        total += upper_mean(after, m, q, knot) - upper_mean(before, m, q, knot)
    return total


def gaussian_mean(rate, m, q):
    spread = 1 + 2 * rate * q
    return mp.exp(-rate * m * m / spread) / mp.sqrt(spread)


def gelu_mean(m, q):
    s = mp.sqrt(1 + q)
    return m * cdf(m / s) + q / s * density(m / s)


def elu_mean(m, q):
    s = mp.sqrt(q)
    return ramp(m, s) + ALPHA * (mp.exp(m + q / 2) * cdf(-(m + q) / s) - cdf(-m / s))


MEANS = {  # E[f(x)] for q > 0; analytic in m, so that m may be complex
    "identity": lambda m, q: m,
    "relu": lambda m, q: ramp(m, mp.sqrt(q)),
    "leaky_relu": lambda m, q: ramp(m, mp.sqrt(q)) - SLOPE * ramp(-m, mp.sqrt(q)),
    "abs": lambda m, q: ramp(m, mp.sqrt(q)) + ramp(-m, mp.sqrt(q)),
    "step": lambda m, q: cdf(m / mp.sqrt(q)),
    "sign": lambda m, q: mp.erf(m / mp.sqrt(2 * q)),
    "erf": lambda m, q: mp.erf(m / mp.sqrt(1 + 2 * q)),
    "erf_gate": lambda m, q: mp.erfc(-m / mp.sqrt(1 + 2 * q)) / 2,
    "exp": lambda m, q: mp.exp(m + q / 2),
    "sin": lambda m, q: mp.sin(m) * mp.exp(-q / 2),
    "cos": lambda m, q: mp.cos(m) * mp.exp(-q / 2),
    "gaussian": lambda m, q: gaussian_mean(RATE, m, q),
    "gelu": gelu_mean,
    "elu": elu_mean,
    "hard_tanh": lambda m, q: LOW + ramp(m - LOW, mp.sqrt(q)) - ramp(m - HIGH, mp.sqrt(q)),
    "polynomial": lambda m, q: polynomial_mean(OPTIONS["polynomial"]["coefs"], m, q),
    "piecewise": lambda m, q: piecewise_mean(**OPTIONS["piecewise"], m=m, q=q),
}


def expected(name, m, q):
    return MEANS[name](m, q) if q > 0 else VALUES[name](m)


@cache
def legendre():
    """Nodes and weights on [0, 1] (Newton's method at the working precision)."""
    out = []
    for k in range(1, NODES + 1):
        x = mp.cos(mp.pi * (k - mp.mpf(1) / 4) / (NODES + mp.mpf(1) / 2))
        slope = mp.mpf(0)
        for _ in range(8):
            p0, p1 = mp.mpf(1), x
            for n in range(1, NODES):
                p0, p1 = p1, ((2 * n + 1) * x * p1 - n * p0) / (n + 1)
            slope = NODES * (x * p1 - p0) / (x * x - 1)
            x -= p1 / slope
        out.append(((1 + x) / 2, 1 / ((1 - x * x) * slope * slope)))
    return out


def integral(h, ends):
    total = mp.mpf(0)
    for a, b in pairwise(ends):
        total += (b - a) * sum(w * h(a + (b - a) * x) for x, w in legendre())
    return total


def panels(f, g, m1, m2, q1, v, slope):
    """Ends of the panels in x ~ N(m1, q1), for y given x of mean m2 + slope (x - m1) and variance v."""
    s, reach = mp.sqrt(q1), 22 if {f, g} & {"exp", "elu"} else 12
    ends = {m1 + s * k for k in range(-reach, reach + 1, 2)}
    scales = [0, 1, 2.5, 5, 10, 20, 40, 80]
    for knot in KINKS.get(f, [0]):
        ends |= {knot + sign * k for k in scales for sign in (1, -1)}
    if slope:
        for knot in KINKS.get(g, [0]):
            centre = m1 + (knot - m2) / slope
            for width in (mp.sqrt(v) / abs(slope), mp.sqrt(v + 1) / abs(slope)):
                ends |= {centre + sign * k * width for k in scales for sign in (1, -1)}
    low, high = m1 - reach * s, m1 + reach * s
    return sorted({mp.mpf(e) for e in ends if low <= e <= high})


def product(f, g, m1, m2, q1, q2, c):
    """E[f(x) g(y)]; a covariance beyond sqrt(q1 q2) counts as that."""
    m1, m2, q1, q2, c = map(mp.mpf, (m1, m2, q1, q2, c))
    if q1 == 0 or q2 == 0:
        return expected(f, m1, q1) * expected(g, m2, q2)
    c = mp.sign(c) * min(abs(c), mp.sqrt(q1 * q2))
    if f in ("sin", "cos"):
        return wave(f, m1, lambda m: MEANS[g](m, q2), m2, q1, c, g)
    if g in ("sin", "cos"):
        return product(g, f, m2, m1, q2, q1, c)
    slope, v, s = c / q1, max(q2 - c * c / q1, mp.mpf(0)), mp.sqrt(q1)
    if v < mp.mpf(10) ** -25 * q2:
        v = mp.mpf(0)

    def integrand(x):
        return VALUES[f](x) * density((x - m1) / s) / s * expected(g, m2 + slope * (x - m1), v)

    return integral(integrand, panels(f, g, m1, m2, q1, v, slope))


def wave(f, m1, mean_of_g, m2, q1, c, g):
    """E[exp(i x) g(y)] = exp(i m1 - q1 / 2) E[g(y + i c)], and of the conjugate for waves in g."""
    up = mp.exp(1j * m1 - q1 / 2) * mean_of_g(m2 + 1j * c)
    down = mp.exp(-1j * m1 - q1 / 2) * mean_of_g(m2 - 1j * c)
    return mp.re((up - down) / 2j if f == "sin" else (up + down) / 2)


@cache
def square(f, m, q):
    """E[f(x)^2]."""
    m, q = mp.mpf(m), mp.mpf(q)
    if f in ("sin", "cos"):
        turn = mp.cos(2 * m) * mp.exp(-2 * q) / 2
        return mp.mpf(1) / 2 + (turn if f == "cos" else -turn)
    return product(f, f, m, m, q, q, q)


def settings():
    for m1, m2, q1, q2, r in ORDINARY:
        yield "ordinary", m1, m2, q1, q2, r * (q1 * q2) ** 0.5
    for m1, m2, q1, q2, r in CLOSE:
        yield "close", m1, m2, q1, q2, r * (q1 * q2) ** 0.5
    for law in EXTREME:
        yield "extreme", *law


def overflows(f, q):
    return f == "exp" and q > 1e3


def reference(job):
    """E[f(x) g(y)] as a float, or None where it overflows."""
    f, g, (_, *law) = job
    return None if overflows(f, law[2]) or overflows(g, law[3]) else float(product(f, g, *law))


def second_moments(job):
    """E[f(x)^2] and E[f(y)^2] as floats (inf where they overflow)."""
    f, (_, m1, m2, q1, q2, _) = job
    return [float("inf") if overflows(f, q) else float(square(f, m, q)) for m, q in ((m1, q1), (m2, q2))]


def check_means():
    """The formulas of one variable against quadrature of the functions themselves."""
    for f in NAMES:
        for m, q in ((0.3, 0.7), (-1.1, 2.3)):
            m, q, s = mp.mpf(m), mp.mpf(q), mp.sqrt(mp.mpf(q))
            ends = panels(f, f, m, m, q, q, 0)
            quadrature = integral(lambda x: VALUES[f](x) * density((x - m) / s) / s, ends)  # noqa: B023
            assert abs(quadrature - MEANS[f](m, q)) < 1e-22, f


def check_waves():
    """E[wave g] at a complex mean against quadrature over x of wave(x) E[g(y) | x]."""
    m1, m2, q1, q2, c = map(mp.mpf, (0.3, -0.4, 0.7, 1.3, 0.5))
    slope, v, s = c / q1, q2 - c * c / q1, mp.sqrt(q1)
    for f in ("sin", "cos"):
        for g in NAMES:
            ends = panels(f, g, m1, m2, q1, v, slope)
            by_x = integral(
                lambda x: VALUES[f](x) * density((x - m1) / s) / s * MEANS[g](m2 + slope * (x - m1), v),  # noqa: B023
                ends,
            )
            assert abs(by_x - product(f, g, m1, m2, q1, q2, c)) < 1e-22, (f, g)


def main():
    check_means()
    check_waves()
    laws, pairs = list(settings()), list(combinations_with_replacement(NAMES, 2))
    with multiprocessing.Pool() as pool:
        values = iter(pool.map(reference, [(f, g, law) for law in laws for f, g in pairs], chunksize=8))
        squares = iter(pool.map(second_moments, [(f, law) for law in laws for f in NAMES], chunksize=8))
    table = [
        {
            "kind": kind,
            "law": [float(v) for v in law],
            "squares": {f: next(squares) for f in NAMES},
            "values": {f"{f} {g}": next(values) for f, g in pairs},
        }
        for kind, *law in laws
    ]
    text = json.dumps({"options": OPTIONS, "laws": table}, indent=1)
    Path(__file__).with_name("closed_form_references.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
