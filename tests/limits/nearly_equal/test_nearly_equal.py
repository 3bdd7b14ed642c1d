"""Nearly equal inputs of steep functions: the reported error covers the true one.

A jump takes a distance d from correlation 1 to its root, so that few digits are left after some layers. The
truth is in `truth.csv`, which `truth.py` writes with 60 digits.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import erf, ndtr

import netsor as ns
from netsor import zoo

slow = pytest.mark.slow
FUNCTIONS = {"sign": ns.sign, "step": ns.step, "erf": ns.erf, "tanh": ns.tanh}
VARIANCES = {"sign": 1.0, "step": 1.0, "erf": 1e4, "tanh": 1e4}
X, Z = np.array([0.7, -1.1, 0.4]), np.array([0.3, 0.5, -0.8])


def _truth() -> dict[tuple[str, int], dict[float, float]]:
    result: dict[tuple[str, int], dict[float, float]] = {}
    with Path(__file__).with_name("truth.csv").open() as file:
        for row in csv.DictReader(file):
            of_network = result.setdefault((row["phi"], int(row["depth"])), {})
            of_network[float(row["separation"])] = float(row["kernel"])
    return result


TRUTH = _truth()
SEPARATIONS = np.array(list(TRUTH["sign", 1]))
INPUTS = np.stack([X, *(X + s * (np.linalg.norm(X) / np.linalg.norm(Z)) * Z for s in SEPARATIONS)])


def network(name: str, depth: int) -> ns.Network:
    return zoo.mlp(depth, FUNCTIONS[name], var_w=VARIANCES[name], var_b=0.0)


# A correlation of three products has an allowance of 3 (8 + sqrt 3) = 29 units in the last place
# (`Recorder.rounding`). How much of it is used depends on the order in which a processor adds the products.
# The largest rounding error of 13 pairs is at least a quarter of a unit.
LEAST_SHARE = 0.25 / (3 * (8 + 3**0.5))

CASES = [pytest.param(name, depth, 1, marks=slow if name == "tanh" else ()) for name, depth in TRUTH] + [
    ("tanh", 1, 6)
]


@pytest.mark.parametrize(("name", "depth", "every"), CASES)
def test_true_errors_are_below_reported_ones(name: str, depth: int, every: int) -> None:
    K = ns.kernel(network(name, depth))
    x = np.concatenate([INPUTS[:1], INPUTS[1::every]])
    result, wanted = K.evaluate(x), np.array(list(TRUTH[name, depth].values()))[::every]
    shares = np.abs(result.value[0, 1:] - wanted) / result.error[0, 1:]
    assert LEAST_SHARE < shares.max() < 1
    np.testing.assert_array_equal(K(x), result.value)


@pytest.mark.parametrize("depth", [1, 4])
def test_two_inputs_at_a_time(depth: int) -> None:
    K = ns.kernel(network("sign", depth))
    for separation, point in zip(SEPARATIONS, INPUTS[1:], strict=True):
        result = K.evaluate(INPUTS[:1], point[None])
        assert abs(result.value[0, 0] - TRUTH["sign", depth][separation]) <= result.error[0, 0]
        assert result.error[0, 0] <= (1e-6 if separation >= 1e-4 else 0.3)


def test_equal_inputs_have_equal_rows() -> None:
    x = np.concatenate([INPUTS, np.random.default_rng(0).standard_normal((4, 3)), INPUTS])
    for name in ("sign", "erf"):
        result, n = ns.kernel(network(name, 4)).evaluate(x), len(INPUTS)
        np.testing.assert_allclose(result.value[:n], result.value[-n:], rtol=0, atol=1e-12)
        assert np.diagonal(result.error).max() <= 1e-12


@pytest.mark.parametrize("factor", [-1.0, 2.0, -3.0])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_nearly_parallel_inputs_of_other_length_and_sign(depth: int, factor: float) -> None:
    """sign does not see the length of its argument, and changes sign with it."""
    result = ns.kernel(network("sign", depth)).evaluate(INPUTS[:1], factor * INPUTS[1:])
    wanted = np.sign(factor) * np.array(list(TRUTH["sign", depth].values()))
    assert np.all(np.abs(result.value[0] - wanted) <= result.error[0])


def _angle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of vectors of a plane, without cancellation."""
    return np.arctan2(np.abs(x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]), np.sum(x * y, axis=-1))


def _next(distance: np.ndarray) -> np.ndarray:
    """1 - E[sign sign] from 1 - rho."""
    return 4 / np.pi * np.arcsin(np.sqrt(distance / 2))


PLANE = np.array([0.6, -0.9]) + np.outer([0.0, 1e-3, 1e-5, 1e-7, 1e-9, 1e-12], [0.3, 0.8])
PLANE_ANGLES = _angle(PLANE[:1], PLANE[1:])


def residual(tied: bool) -> ns.Network:
    W0, W1, W2, W3, v = ns.Matrix(), ns.Matrix(), ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def net(x: Any) -> Any:
        h = W1 @ ns.sign(W0 @ x)
        h = h + (W1 if tied else W2) @ ns.sign(h)
        return v @ ns.sign(W3 @ ns.sign(h))

    return net


@pytest.mark.parametrize("tied", [False, True])
def test_residual_networks(tied: bool) -> None:
    """The two signs are independent, so that 1 - rho is the mean of theirs, tied or not."""
    first = 2 / np.pi * PLANE_ANGLES
    second = _next(first)
    wanted = 1 - _next(_next((first + second) / 2))
    result = ns.kernel(residual(tied)).evaluate(PLANE)
    assert np.all(np.abs(result.value[0, 1:] - wanted) <= result.error[0, 1:])


def test_layernorm() -> None:
    """sign takes the scale away, and the mean over the width is 0."""
    W, U, v = ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def net(x: Any) -> Any:
        return v @ ns.sign(ns.layernorm(U @ ns.sign(ns.layernorm(W @ x))))

    result = ns.kernel(net).evaluate(PLANE)
    wanted = 1 - _next(2 / np.pi * PLANE_ANGLES)
    assert np.all(np.abs(result.value[0, 1:] - wanted) <= result.error[0, 1:])


def test_pixels() -> None:
    """A convolution with one pixel is a network for each of them."""
    rng = np.random.default_rng(3)
    image, change = rng.standard_normal((2, 3, 3, 2))
    images = np.stack([image + s * change for s in (0.0, 1e-5, 1e-8, 1e-11)])
    net = zoo.cnn(2, kernel=1, phi=ns.sign, readout="flatten", var_b=0.0)
    result = ns.kernel(net).evaluate(images)
    angles = _angle(images[:1], images[1:])
    wanted = np.mean(1 - _next(2 / np.pi * angles), axis=(1, 2))
    assert np.all(np.abs(result.value[0, 1:] - wanted * result.value[0, 0]) <= result.error[0, 1:])


def test_sentences_with_a_common_beginning() -> None:
    """Up to there the outputs are the same."""
    rng = np.random.default_rng(5)
    sentence, other = rng.standard_normal((2, 5, 3))
    longer = np.concatenate([sentence[:3], other])
    K = ns.kernel(zoo.simple_rnn(ns.sign))
    result = K.evaluate([sentence, longer])
    same = np.arange(3)
    np.testing.assert_allclose(
        result.value[same, 5 + same], np.diagonal(result.value)[:3], rtol=0, atol=1e-13
    )
    assert np.diagonal(result.error).max() <= 1e-12
    np.testing.assert_array_equal(K([sentence, longer]), result.value)


def test_a_jump_at_a_mean() -> None:
    """P(x < 0 < y or y < 0 < x) is the density of x at 0 times E|y - x| given x = 0, to first order."""
    W, b, v = ns.Matrix(), ns.Vector(0.4, mean=0.3), ns.Matrix(rows=1)

    @ns.network
    def net(x: Any) -> Any:
        return v @ ns.step(W @ x + b)

    x, near = PLANE[0], PLANE[2:]
    q, p = x @ x / 2 + 0.4, np.sum(near**2, axis=1) / 2 + 0.4
    d = np.sum((near - x) ** 2, axis=1) / 2
    change = np.sum((near - x) * (near + x), axis=1) / 2  # p - q
    shift = -0.3 * (change - d) / (2 * q)
    width = np.sqrt(d - change**2 / (4 * q))
    apart = width * np.sqrt(2 / np.pi) * np.exp(-((shift / width) ** 2) / 2) + shift * erf(
        shift / width / 2**0.5
    )
    gap = np.exp(-(0.3**2) / (2 * q)) / np.sqrt(2 * np.pi * q) * apart
    variances = [ndtr(0.3 / np.sqrt(a)) for a in (q, p)]
    result = ns.kernel(net).evaluate(PLANE)
    wanted = (variances[0] + variances[1] - gap) / 2
    assert np.all(np.abs(result.value[0, 2:] - wanted) <= result.error[0, 2:] + 1e-4 * gap)


def test_kinks_before_jumps() -> None:
    """relu keeps the gap: 1 - rho is that of (sin a + (pi - a) cos a) / pi, by its series at small angles."""
    W, U, v = ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def net(x: Any) -> Any:
        return v @ ns.sign(U @ ns.relu(W @ x))

    a, norms = PLANE_ANGLES[1:], np.linalg.norm(PLANE, axis=1)
    distance = a**2 / 2 - a**3 / (3 * np.pi)
    result = ns.kernel(net).evaluate(PLANE)
    assert norms.std() < 1e-3
    assert np.all(np.abs(result.value[0, 2:] - (1 - _next(distance))) <= result.error[0, 2:] + 1e-15)


def test_float32() -> None:
    x = PLANE.astype(np.float32).astype(float)
    result = ns.kernel(network("sign", 2), dtype=np.float32).evaluate(x)
    wanted = 1 - _next(2 / np.pi * _angle(x[:1], x[1:]))
    assert np.all(np.abs(result.value[0, 1:] - wanted) <= result.error[0, 1:])
