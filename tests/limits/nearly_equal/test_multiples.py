"""Deep jumps and inputs that are multiples of each other: errors beside 60 digits of the same recursion."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns

mp = pytest.importorskip("mpmath")

SCALES = [(1e-5, -1e-8), (1e-3, -1e-3), (0.3, -0.1), (1e-9, 0.0), (3e-5, 0.0)]
SEEDS = range(3)
FUNCTIONS = {"sign": ns.sign, "step": ns.step, "relu": ns.relu}


def exactly(functions: list[str], var_b: float, x: np.ndarray, y: np.ndarray) -> float:
    """The kernel of two inputs as they are in the computer, by arc-cosine kernels (Cho and Saul 2009)."""
    with mp.workdps(60):
        one, two = ([mp.mpf(float(t)) for t in v] for v in (x, y))
        q, p, c = (mp.fdot(a, b) / len(x) for a, b in ((one, one), (two, two), (one, two)))
        for f in functions:
            q, p, c = q + var_b, p + var_b, c + var_b
            angle = mp.acos(min(c / mp.sqrt(q * p), 1))
            if f == "sign":
                q, p, c = mp.mpf(1), mp.mpf(1), 1 - 2 * angle / mp.pi
            elif f == "step":
                q, p, c = mp.mpf(1) / 2, mp.mpf(1) / 2, (1 - angle / mp.pi) / 2
            else:
                bent = mp.sin(angle) + (mp.pi - angle) * mp.cos(angle)
                q, p, c = q / 2, p / 2, mp.sqrt(q * p) * bent / (2 * mp.pi)
        return float(c)


def network(functions: list[str], var_b: float) -> ns.Network:
    layers = [ns.Dense(1.0, var_b, name=f"{f}{k}") for k, f in enumerate(functions)]
    out = ns.Matrix(1.0, rows=1)

    @ns.network
    def net(x):
        for layer, f in zip(layers, functions, strict=True):
            x = FUNCTIONS[f](layer(x))
        return out @ x

    return net


def off(functions: list[str], var_b: float = 0.0) -> list[float]:
    """True errors in units of those reported."""
    kernel, shares = ns.kernel(network(functions, var_b)), []
    for seed in SEEDS:
        x = np.random.default_rng(seed).standard_normal(5)
        for one, two in SCALES:
            pair = np.stack([x * (1 + one), x * (1 + two)])
            result = kernel.evaluate(pair)
            shares.append(abs(result.value[0, 1] - exactly(functions, var_b, *pair)) / result.error[0, 1])
    return shares


@pytest.mark.parametrize("depth", [2, 4, 6, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 10, 20))])
@pytest.mark.parametrize("f", ["sign", "step"])
def test_errors_of_deep_jumps_are_not_below_true_ones(f: str, depth: int) -> None:
    """They are far above where few layers follow: the kernel of multiples is exact, and nobody knows."""
    assert (0.1 if depth >= 6 else 0.0) < max(off([f] * depth)) < 1


@pytest.mark.parametrize(
    ("functions", "var_b"),
    [
        (["sign", "step"] * 3, 0.0),
        (["sign", "relu"] * 4, 0.0),
        (["relu", "sign", "sign", "step", "relu", "sign"], 0.3),
    ],
)
def test_errors_of_mixed_layers_are_not_below_true_ones(functions: list[str], var_b: float) -> None:
    assert max(off(functions, var_b)) < 1
