"""Any nonlinearity in an MLP: smooth ones to 1e-9 in twenty layers, kinked ones within their reported error.

The reference is the recursion Sigma = var_w E[phi phi'] + var_b with integrals that know nothing of
Hermite series: the trapezoid rule on the plane for smooth functions, whose error falls like
exp(-2 pi d / spacing) with the distance d of the nearest pole, and panels between kinks for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, gamma, hyp2f1

import netsor as ns
from brute_force import mean_of, pair_moments
from limit_cases import VECTORS, scale_of
from netsor import zoo

slow = pytest.mark.slow
A, B, C = VECTORS
RELATED = np.array([A, A, -A, A + 1e-3 * B, 0.01 * C])
Phi = Any  # a registered function, or any function of vectors or arrays
DEPTH = 20


def recursion(x: np.ndarray, depth: int, w: float, b: float, moments: Phi) -> np.ndarray:
    """E[phi phi'] of the last layer, from Sigma = w x.x'/m + b."""
    inner = x @ x.T / x.shape[1]
    for _ in range(depth):
        inner = moments(w * inner + b)
    return inner


def on_the_plane(phi: Phi, cov: np.ndarray, spacing: float) -> np.ndarray:
    """E phi(z_i) phi(z_j) for all pairs of z ~ N(0, cov), by the trapezoid rule."""
    steps = round(9.2 / spacing)  # the weight of what is further out is 4e-20
    u = spacing * np.arange(-steps, steps + 1)
    weight = spacing * np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi)
    deviation = np.sqrt(np.diag(cov))
    out = np.diag([weight @ phi(s * u) ** 2 for s in deviation])
    for i, s in enumerate(deviation):
        for j, t in enumerate(deviation[:i]):
            c = min(1.0, max(-1.0, cov[i, j] / (s * t)))
            second = phi(t * (c * u[:, None] + np.sqrt(1 - c * c) * u)) @ weight
            out[i, j] = out[j, i] = weight @ (phi(s * u) * second)
    return out


# Smooth functions


def wavy(x: np.ndarray) -> np.ndarray:
    """Analytic, with branch points at +-i, neither odd nor even."""
    return np.arctan(x) + x * np.sin(x) / np.sqrt(4 + x * x) + 0.3


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


SMOOTH: dict[str, tuple[Phi, Phi]] = {
    "tanh": (ns.tanh, np.tanh),
    "sigmoid": (ns.sigmoid, expit),
    "silu": (ns.silu, lambda x: x * expit(x)),
    "user": (lambda h: ns.nonlin(wavy, h), wavy),
    "user, softplus": (lambda h: ns.nonlin(softplus, h), softplus),
}


def assert_deep(name: str, x: np.ndarray, w: float, b: float, goal: float = 1e-9) -> None:
    """Within the goal, and not further off than the reported error (and that of the reference) says."""
    phi, plain = SMOOTH[name]
    found = ns.kernel(zoo.mlp(DEPTH, phi, var_w=w, var_b=b)).evaluate(x)
    wanted, coarse = (
        recursion(x, DEPTH, w, b, partial(on_the_plane, plain, spacing=spacing)) for spacing in (0.04, 0.05)
    )
    scale, gap = scale_of(wanted), np.abs(found.value - wanted)
    own = np.abs(wanted - coarse)
    assert np.all(own <= 1e-10 * scale), "the reference is not good enough"
    assert np.all(gap <= goal * scale), f"{np.max(gap / scale):.1e}"
    assert np.all(gap <= found.error + own + 1e-15 * scale), f"{np.max(gap / found.error):.2g} of the error"
    assert np.all(found.error <= 10 * goal * scale), f"{np.max(found.error / scale):.1e} is reported"


@pytest.mark.parametrize("name", [pytest.param(n, marks=slow) if n.startswith("user") else n for n in SMOOTH])
def test_twenty_layers(name: str) -> None:
    assert_deep(name, np.array([A, B]), 1.5, 0.3)


@slow
@pytest.mark.parametrize(
    ("name", "w", "b"),
    [
        ("tanh", 1.0, 0.0),
        ("tanh", 1.5, 0.3),
        ("tanh", 4.0, 0.1),
        ("sigmoid", 1.5, 0.3),
        ("sigmoid", 4.0, 0.1),
        ("user", 1.0, 0.0),
        ("user", 1.5, 0.3),
    ],
)
def test_twenty_layers_of_related_inputs(name: str, w: float, b: float) -> None:
    """Equal, opposite, nearly equal and small inputs."""
    assert_deep(name, RELATED, w, b)


def amplification(name: str, x: np.ndarray, w: float, b: float) -> float:
    """How many times a relative change of the first Sigma grows in the kernel, in units of its scale."""
    moments = partial(on_the_plane, SMOOTH[name][1], spacing=0.05)
    step = 1e-9
    first = w * x @ x.T / x.shape[1] + b
    nearer = first * (1 - step * (1 - np.eye(len(x))))
    plain, moved = moments(first), moments(nearer)
    for _ in range(DEPTH - 1):
        plain, moved = moments(w * plain + b), moments(w * moved + b)
    return float(np.max(np.abs(moved - plain) / scale_of(plain)) / step)


@slow
def test_twenty_layers_that_drive_inputs_apart() -> None:
    """A change of the first layer counts more than 1e5 times as much at the end: no 1e-9 from 1e-13."""
    x = np.array([A, A + 1e-3 * B])
    growth = amplification("user", x, 4.0, 0.1)
    assert growth > 1e5
    assert_deep("user", x, 4.0, 0.1, goal=1e-12 * growth)


@slow
def test_twenty_layers_of_a_function_that_grows() -> None:
    """silu with var_w = 2 keeps its variance from layer to layer, as relu does."""
    assert_deep("silu", np.array([A, B, -A]), 2.0, 0.1)


@pytest.mark.parametrize("name", SMOOTH)
def test_one_layer_without_and_with_little_variance(name: str) -> None:
    """phi(0)^2 for a zero input, and next to it."""
    phi, plain = SMOOTH[name]
    x = np.array([0 * A, 1e-9 * B, 1e-4 * A, A])
    found = ns.kernel(zoo.mlp(1, phi, var_b=0.0)).evaluate(x)
    wanted = recursion(x, 1, 1.0, 0.0, partial(pair_moments, plain))
    np.testing.assert_allclose(found.value, wanted, rtol=1e-11, atol=0)


# Functions with kinks and jumps


@dataclass(frozen=True)
class Kinked:
    """A function of the user's with the places where it is not smooth."""

    fn: Callable[[np.ndarray], np.ndarray]
    kinks: Sequence[float]
    depth: int = 1

    @property
    def net(self) -> ns.Network:
        phi: Phi = partial(ns.nonlin, self.fn)
        return zoo.mlp(self.depth, phi, var_w=1.5, var_b=0.3)


KINKED = {
    "zigzag": Kinked(lambda x: np.abs(np.abs(x) - 1), [-1.0, 0.0, 1.0]),
    "step at sqrt(2)/3": Kinked(lambda x: np.where(x > np.sqrt(2) / 3, 1.0, -0.2), [np.sqrt(2) / 3], 3),
    "a kink far out": Kinked(lambda x: x + 3 * np.maximum(x - 4.123, 0), [4.123], 2),
}
SLOW = {
    "a jump between waves": Kinked(lambda x: np.where(x > 0.7, np.cos(x), np.sin(x)), [0.7], 2),
    "a narrow box": Kinked(lambda x: 5 * (np.abs(x - 1.2345) < 0.02) + np.tanh(x), [1.2145, 1.2545]),
    "clipped tanh": Kinked(lambda x: np.maximum(np.tanh(x), -0.3), [float(np.arctanh(-0.3))], 3),
    "a bump": Kinked(lambda x: np.maximum(1 - x * x, 0) ** 2, [-1.0, 1.0], 2),
    "many kinks": Kinked(lambda x: np.abs(np.sin(x)), [k * np.pi for k in range(-9, 10)], 2),
    "log(1 + |x|)": Kinked(lambda x: np.log1p(np.abs(x)), [0.0], 3),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=n) for n, c in KINKED.items()]
    + [pytest.param(c, id=n, marks=slow) for n, c in SLOW.items()],
)
def test_kinks_of_a_user_function(case: Kinked) -> None:
    x = np.array([A, B])
    found = ns.kernel(case.net).evaluate(x)
    wanted = recursion(x, case.depth, 1.5, 0.3, lambda cov: pair_moments(case.fn, cov, 0.0, case.kinks))
    scale, gap = scale_of(wanted), np.abs(found.value - wanted)
    assert np.all(gap <= found.error + 1e-12 * scale), f"{np.max(gap / found.error):.2g} of the error"
    assert np.all(found.error <= 1e-6 * scale), f"{np.max(found.error / scale):.1e} is reported"


@slow
@pytest.mark.parametrize("power", [0.5, 1.5])
def test_a_root_at_zero(power: float) -> None:
    """E |x y|^a = (2^a / pi) Gamma((a + 1) / 2)^2 (s t)^a F(-a/2, -a/2; 1/2; c^2)."""
    x = np.array([A, B])
    W, v = ns.Matrix(), ns.Matrix(rows=1)
    net = ns.network(lambda x: v @ ns.nonlin(lambda t: np.abs(t) ** power, W @ x))
    found = ns.kernel(net).evaluate(x)
    scale = scale_of(x @ x.T / 4)
    c = np.minimum(np.abs(x @ x.T / 4 / scale), 1.0)
    wanted = 2**power / np.pi * gamma((power + 1) / 2) ** 2 * scale**power
    wanted = wanted * hyp2f1(-power / 2, -power / 2, 0.5, c**2)
    assert np.all(np.abs(found.value - wanted) <= found.error)
    assert np.all(found.error <= 1e-3 * wanted.max())


@slow
def test_a_kink_in_a_function_with_parameters() -> None:
    """tanh(layernorm(relu(z))), whose parameters are nu = sqrt(q / 2 pi), sigma^2 = q (1/2 - 1 / 2 pi)."""
    W, v = ns.Matrix(), ns.Matrix(rows=1)
    found = ns.kernel(ns.network(lambda x: v @ ns.tanh(ns.layernorm(ns.relu(W @ x))))).evaluate([A, B])

    def layer(q: float) -> Phi:
        nu, sigma = np.sqrt(q / (2 * np.pi)), np.sqrt(q * (0.5 - 0.5 / np.pi))
        return lambda z: np.tanh((np.maximum(z, 0) - nu) / sigma)

    x = np.array([A, B])
    q = x @ x.T / 4
    wanted = pair_moments([layer(q[0, 0]), layer(q[1, 1])], q, 0.0, [0.0])
    assert np.all(np.abs(found.value - wanted) <= found.error)
    assert np.all(found.error <= 1e-6)


def test_the_reference_for_smooth_functions() -> None:
    """The trapezoid rule and the panels agree with E cos cos', and with each other."""
    cov = np.array([[1.5, -0.7], [-0.7, 2.0]])
    q = np.add.outer(np.diag(cov), np.diag(cov)) / 2
    wanted = np.exp(-q) * np.cosh(cov)
    for found in (on_the_plane(np.cos, cov, 0.05), pair_moments(np.cos, cov)):
        np.testing.assert_allclose(found, wanted, rtol=1e-13)
    np.testing.assert_allclose(on_the_plane(wavy, cov, 0.05), pair_moments(wavy, cov), rtol=1e-12)
    assert mean_of(softplus, 0.0, 0.0) == pytest.approx(np.log(2))
