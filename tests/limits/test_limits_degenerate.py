"""Limits at the edges: singular covariances, degenerate batches, zeros and extreme scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import erf, ndtr

import netsor as ns
from brute_force import arc_sine, pair_moments
from limit_cases import GRAPH, SEQUENCES, VECTORS, assert_agree
from netsor import zoo
from oracle_answers import oracle

slow = pytest.mark.slow
TOKENS, OTHERS = SEQUENCES[0], SEQUENCES[1]
A, B = VECTORS[0], VECTORS[1]
GRAM = VECTORS @ VECTORS.T / 4
Phi = Any  # a registered function, or any function of vectors


def against_oracle(net: ns.Network, inputs: list[Any], samples: int = 2**13) -> np.ndarray:
    found = ns.kernel(net).evaluate(inputs)
    wanted = oracle(ns.program(net, *inputs), samples=samples)
    assert_agree(found, wanted.kernel, wanted.error.kernel)
    return found.value


# Sequences

SEQUENCE_NETWORKS = {
    "simple_rnn": zoo.simple_rnn(),
    "gru": zoo.gru(),
    "transformer": zoo.transformer(),
    "simple_rnn, no bias": zoo.simple_rnn(var_b=0.0),
    "lstm": zoo.lstm(),
    "transformer, untied": zoo.transformer(tied=False, causal=False),
}
SEQUENCE_SETS = {
    "repeated tokens": [TOKENS[[0, 0, 0]], TOKENS[[0, 0, 1]]],
    "identical": [TOKENS[:2], TOKENS[:2]],
    "opposite": [TOKENS[:2], -TOKENS[:2]],
    "length one": [TOKENS[:1], OTHERS[:1]],
    "one of length one": [TOKENS[:1]],
}
QUICK = {
    ("simple_rnn", "repeated tokens"),
    ("simple_rnn, no bias", "identical"),
    ("gru", "opposite"),
    ("lstm", "one of length one"),
    ("transformer", "repeated tokens"),
}


def sequence_cases() -> list[Any]:
    """All pairs; by default the quick ones."""
    return [
        pytest.param(net, inputs, id=f"{n}, {s}", marks=() if (n, s) in QUICK else slow)
        for n, net in SEQUENCE_NETWORKS.items()
        for s, inputs in SEQUENCE_SETS.items()
    ]


@pytest.mark.parametrize(("net", "inputs"), sequence_cases())
def test_degenerate_sequences(net: ns.Network, inputs: list[np.ndarray]) -> None:
    against_oracle(net, inputs)


def test_a_repeated_token_is_no_new_information_for_attention() -> None:
    """Equal tokens have equal rows: attention over copies of one token is that token."""
    found = ns.kernel(zoo.transformer(causal=False))([TOKENS[[0, 0, 0]], TOKENS[:1]])
    np.testing.assert_allclose(found, np.full((4, 4), found[0, 0]), rtol=1e-12)


SAME = {
    "mlp": (zoo.mlp(3), A, B),
    "mlp, tanh": (zoo.mlp(2, ns.tanh), A, B),
    "sign": (zoo.mlp(2, ns.sign, var_b=0.0), A, B),
    "resnet": (zoo.resnet(2), A, B),
    "densenet": (zoo.densenet(3), A, B),
    "layernorm_mlp": (zoo.layernorm_mlp(2), A, B),
    "simple_rnn": (zoo.simple_rnn(), TOKENS, OTHERS),
    "gru": (zoo.gru(), TOKENS, OTHERS),
    "lstm": (zoo.lstm(), TOKENS, OTHERS),
    "transformer": (zoo.transformer(2), TOKENS, OTHERS),
    "batchnorm_mlp": (zoo.batchnorm_mlp(2), TOKENS, OTHERS),
    "batchnorm_mlp, tanh": (zoo.batchnorm_mlp(1, ns.tanh), TOKENS, OTHERS),
    "graph_conv": (zoo.graph_conv(2), (TOKENS, GRAPH), (OTHERS, GRAPH)),
    "cnn": (zoo.cnn(2), TOKENS[..., None], OTHERS[..., None]),
}


@pytest.mark.parametrize(("net", "x", "y"), SAME.values(), ids=SAME)
def test_identical_inputs_have_identical_rows(net: ns.Network, x: Any, y: Any) -> None:
    """Not only within errors: where something is sampled, both have the same samples."""
    found = ns.kernel(net, points=2**8)([x, y, x])
    third = len(found) // 3
    first, last = found[:third], found[2 * third :]
    size = np.abs(found).max()
    np.testing.assert_allclose(last, first, rtol=0, atol=1e-7 * size)
    np.testing.assert_allclose(found[:third, 2 * third :], found[:third, :third], rtol=0, atol=1e-7 * size)
    assert np.linalg.eigvalsh(found)[0] > -1e-6 * size


def test_opposite_inputs() -> None:
    """Odd functions change sign with their argument, even ones do not; relu(z) relu(-z) = 0."""
    for depth, phi in ((3, ns.erf), (2, ns.tanh), (3, ns.sign), (2, ns.hard_tanh)):
        found = ns.kernel(zoo.mlp(depth, phi, var_b=0.0))([A, -A])
        np.testing.assert_allclose(found, found[0, 0] * np.array([[1, -1], [-1, 1]]), rtol=1e-7)
    even = ns.kernel(zoo.mlp(3, ns.abs, var_b=0.0))([A, -A])
    np.testing.assert_allclose(even, np.full((2, 2), even[0, 0]), rtol=1e-7)
    rectified = ns.kernel(zoo.mlp(1, var_b=0.0))([A, -A])
    np.testing.assert_allclose(rectified, A @ A / 8 * np.eye(2), atol=1e-15)


def test_many_parallel_inputs() -> None:
    """c = +-1 everywhere, at many scales: E relu(s z) relu(t z) = s t / 2 or 0."""
    factors = np.array([1.0, -1.0, 1e-6, -3.0, 1e6, 1.0 + 1e-12])
    found = ns.kernel(zoo.mlp(1, var_b=0.0))(factors[:, None] * A)
    products = np.outer(factors, factors) * (A @ A / 8)
    assert np.all(np.abs(found - np.maximum(products, 0)) <= 1e-12 * np.abs(products))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("layers", [1, 2])
def test_jumps_after_a_series(layers: int, sign: int) -> None:
    """arcsin has a root at c = +-1: rounding of 1e-16 becomes 1e-8, then 1e-4. The error must say so."""
    W, U, v = [ns.Matrix() for _ in range(layers)], ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        h = ns.tanh(U @ x)
        for W_l in W:
            h = ns.sign(W_l @ h)
        return v @ h

    found = ns.kernel(net).evaluate([A, B, sign * A])
    assert np.all(np.abs(np.diag(found.value) - 1) <= np.diag(found.error))
    assert abs(found.value[0, 2] - sign) <= found.error[0, 2]
    assert np.all(found.error <= 1e-2)


def own_sign(h: Any) -> Any:
    return ns.nonlin(lambda x: np.where(x > 0, 1.0, -1.0), h)


@pytest.mark.parametrize(
    ("depth", "phi", "dtype"),
    [
        pytest.param(1, ns.sign, np.float64, id="1-sign"),
        pytest.param(3, ns.sign, np.float64, id="3-sign"),
        pytest.param(3, ns.sign, np.float32, id="3-sign-float32"),
        pytest.param(1, own_sign, np.float64, id="1-own", marks=slow),
        pytest.param(1, own_sign, np.float32, id="1-own-float32", marks=slow),
        pytest.param(3, own_sign, np.float64, id="3-own", marks=slow),
        pytest.param(3, own_sign, np.float32, id="3-own-float32", marks=slow),
    ],
)
def test_parallel_inputs_of_functions_with_jumps(depth: int, phi: Phi, dtype: Any) -> None:
    """However BLAS rounds their products: of any length, and images. A series says how far it may be off."""
    rng = np.random.default_rng(6)

    def assert_one(net: ns.Network, inputs: Any, sign: int) -> None:
        found, half = ns.kernel(net, dtype=dtype).evaluate(inputs), len(inputs) // 2
        allowed = 0.0 if phi is ns.sign else found.error
        off = np.abs(found.value - sign) - allowed
        assert np.diagonal(np.abs(found.value - 1) - allowed).max() <= 0
        assert np.diagonal(off[:half, half:]).max() <= 0

    count = 8 if phi is ns.sign else 2  # a series takes its time
    for dimension in (2, 30, 784):
        x, factors = rng.standard_normal((count, dimension)), rng.uniform(0.1, 10.0, (count, 1))
        net = zoo.mlp(depth, phi, var_b=0.0)
        assert_one(net, np.concatenate([x, x]), 1)
        assert_one(net, np.concatenate([x, -x]), -1)
        if dtype is np.float64:  # to which the products are rounded, coordinate by coordinate
            assert_one(net, np.concatenate([x, factors * x]), 1)
    images = rng.standard_normal((count, 4, 3, 2))
    assert_one(zoo.cnn(depth, phi=phi, readout="flatten", var_b=0.0), [*images, *images], 1)


def second_moment(phi: Phi, q: float) -> float:
    """E[f(x)^2] of a function with f^2 -> 1, by the trapezoid rule where it is not 1."""
    if phi is ns.sin:
        return -np.expm1(-2 * q) / 2
    u = np.linspace(-30, 30, 600_001)
    f = {ns.erf: erf, ns.tanh: np.tanh, ns.hard_tanh: lambda u: np.clip(u, -1, 1)}[phi](u)
    return 1 - np.trapezoid((1 - f**2) * np.exp(-(u**2) / (2 * q)), u) / np.sqrt(2 * np.pi * q)


STEEP = [
    *((phi, scale) for phi in (ns.erf, ns.hard_tanh, ns.sin) for scale in (1.0, 1e2, 1e4, 1e8)),
    *((ns.tanh, 1.0), (ns.tanh, 30.0)),
    *(pytest.param(ns.tanh, scale, marks=slow) for scale in (1e2, 1e4, 1e8)),
]


@pytest.mark.parametrize(("phi", "scale"), STEEP)
def test_equal_inputs_of_steep_functions(phi: Phi, scale: float) -> None:
    """They have the second moment of one input, however their products are rounded."""
    x = scale * np.random.default_rng(8).standard_normal((4, 30))
    K = ns.kernel(zoo.mlp(1, phi, var_b=0.0))
    result = K.evaluate(np.concatenate([x, x]))
    found, wanted = result.value, [second_moment(phi, z @ z / 30) for z in x]
    assert np.all(np.abs(np.diagonal(found) - [*wanted, *wanted]) <= np.diagonal(result.error) + 1e-9)
    assert np.diagonal(result.error).max() < (1e-13 if phi is not ns.tanh or scale < 1e4 else 1e-3)
    np.testing.assert_array_equal(np.diagonal(found[:4, 4:]), np.diagonal(found)[:4])
    np.testing.assert_array_equal(K.diag(x), np.diagonal(found)[:4])


def test_equal_inputs_of_a_step_with_a_mean() -> None:
    """P(x > 0) is the normal distribution function of mean / deviation; zero, tiny and huge inputs, too."""
    W, b, v = ns.Matrix(), ns.Vector(0.0, mean=0.3), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        return v @ ns.step(W @ x + b)

    scales = np.array([1.0, 30.0, 0.0, 1e-60, 1e60, 0.1])
    z = np.random.default_rng(9).standard_normal((6, 30))
    x, deviation = scales[:, None] * z, scales * np.linalg.norm(z, axis=1) / 30**0.5
    found = ns.kernel(net)(np.concatenate([x, x]))
    wanted = ndtr(0.3 / np.maximum(deviation, 1e-300))
    np.testing.assert_allclose(np.diagonal(found), [*wanted, *wanted], rtol=1e-13)
    np.testing.assert_array_equal(np.diagonal(found[:6, 6:]), np.diagonal(found)[:6])


@pytest.mark.parametrize("distance", [1e-1, 1e-3, 1e-5, 1e-6, 1e-7])
def test_errors_of_almost_parallel_inputs_of_functions_with_jumps(distance: float) -> None:
    """Against the angle from a cross product, which loses no digits."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        x, y = rng.standard_normal((2, 2))
        y = x + distance * np.linalg.norm(x) * y
        angle = np.arctan2(abs(x[0] * y[1] - x[1] * y[0]), x @ y)
        found = ns.kernel(zoo.mlp(1, ns.sign, var_b=0.0)).evaluate([x, y])
        if angle > 1e-7:
            assert abs(found.value[0, 1] - (1 - 2 * angle / np.pi)) <= found.error[0, 1]
            assert found.error[0, 1] < 1e-14 / angle + 1e-13
        else:  # as good as parallel
            assert abs(found.value[0, 1] - 1) <= angle + found.error[0, 1]


def test_one_input_is_the_first_block_of_two() -> None:
    for net in (zoo.mlp(2), zoo.mlp(2, ns.tanh), zoo.resnet(1), zoo.layernorm_mlp(1)):
        both = ns.kernel(net)([A, B])
        np.testing.assert_allclose(ns.kernel(net)([A]), both[:1, :1], rtol=1e-12)


# Batches

PLANE = np.random.default_rng(1).standard_normal((4, 2))
BATCHES = {
    "four members in a plane": [PLANE],
    "members on a line": [np.outer([1.0, -0.5, 2.0, 0.25], PLANE[0])],
    "two equal members": [PLANE[[0, 0, 1, 2]]],
    "two kinds of members": [PLANE[[0, 0, 1, 1]]],
    "identical": [PLANE, PLANE],
    "shifted": [PLANE, PLANE + np.array([1.0, -2.0])],  # batchnorm takes the shift away
    "opposite": [PLANE, -PLANE],
    "batches of two": [PLANE[:2], PLANE[2:]],
    "batches of two and four": [PLANE[:2], PLANE],
}


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_degenerate_batches(batches: list[np.ndarray]) -> None:
    """Exact integrals against samples of the same expectations."""
    net = zoo.batchnorm_mlp(1)
    found = ns.kernel(net).evaluate(batches)
    sampled = ns.kernel(net, method="sample", points=2**10).evaluate(batches)
    assert found.plan.exact
    assert_agree(sampled, found.value, found.error)
    assert np.all(found.error <= 1e-8)


def test_identical_and_shifted_batches_are_equal() -> None:
    found = ns.kernel(zoo.batchnorm_mlp(1)).evaluate([PLANE, PLANE, PLANE + np.array([1.0, -2.0])])
    blocks = found.value.reshape(3, 4, 3, 4)
    for i in range(3):
        for j in range(3):
            np.testing.assert_allclose(blocks[i, :, j], blocks[0, :, 0], rtol=0, atol=1e-8)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_batch_of_two_is_normalised_to_plus_and_minus_one(depth: int) -> None:
    found = ns.kernel(zoo.batchnorm_mlp(depth)).evaluate([PLANE[:2]])
    np.testing.assert_allclose(found.value, np.eye(2) / 2, rtol=0, atol=1e-8)
    assert np.all(np.abs(found.value - np.eye(2) / 2) <= found.error)


def test_two_batches_of_two_by_hand() -> None:
    """bn(z) = sign(z1 - z2) (1, -1), so E relu relu' is the probability of a quadrant."""
    first, second = PLANE[0] - PLANE[1], PLANE[2] - PLANE[3]
    both = np.array([first, second])
    signs = arc_sine(both @ both.T)
    same, other = (1 + signs) / 4, (1 - signs) / 4  # both signs equal and positive, or opposite
    wanted = np.block([[_turned(same[i, j], other[i, j]) for j in range(2)] for i in range(2)])
    found = ns.kernel(zoo.batchnorm_mlp(1)).evaluate([PLANE[:2], PLANE[2:]])
    np.testing.assert_allclose(found.value, wanted, rtol=0, atol=1e-8)


def _turned(same: float, other: float) -> np.ndarray:
    return np.array([[same, other], [other, same]])


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("depth", [1, 2])
def test_batchnorm_has_no_scale(depth: int, scale: float) -> None:
    net, batches = zoo.batchnorm_mlp(depth), [TOKENS, OTHERS]
    plain = ns.kernel(net)(batches)
    np.testing.assert_allclose(ns.kernel(net)([scale * b for b in batches]), plain, rtol=0, atol=1e-10)
    mixed = ns.kernel(net)([scale * batches[0], batches[1]])
    np.testing.assert_allclose(mixed, plain, rtol=0, atol=1e-10)


# Zeros


def test_zero_input() -> None:
    """What is left is the bias, or nothing at all."""
    zero = np.zeros(4)
    against_oracle(zoo.mlp(2), [zero, A])
    against_oracle(zoo.mlp(2, ns.tanh, var_b=0.5), [zero, A])
    for phi in (ns.relu, ns.tanh, ns.erf, ns.gelu, ns.sin):
        found = ns.kernel(zoo.mlp(2, phi, var_b=0.0)).evaluate([zero, A])
        np.testing.assert_array_equal(found.value[0], [0.0, 0.0])
        assert found.value[1, 1] > 0
    constant = ns.kernel(zoo.mlp(1, ns.sigmoid, var_b=0.0))([zero, A])
    np.testing.assert_allclose(constant[0], [0.25, 0.25], rtol=1e-12)  # sigmoid(0) = E sigmoid = 1/2
    against_oracle(zoo.graph_conv(2), [(TOKENS, 0 * GRAPH)])


@slow
def test_zero_sequences_and_images() -> None:
    against_oracle(zoo.simple_rnn(), [0 * TOKENS, TOKENS[:2]])
    against_oracle(zoo.gru(), [0 * TOKENS[:2], TOKENS[:2]])
    against_oracle(zoo.lstm(), [0 * TOKENS[:2], TOKENS[:1]])
    against_oracle(zoo.cnn(2), [np.zeros((2, 2, 1)), np.ones((2, 2, 1))])
    against_oracle(zoo.gru(var_w=0.0, var_b=0.0), [TOKENS[:2]])
    against_oracle(zoo.lstm(var_w=0.0), [TOKENS[:2]])


def test_zero_variances() -> None:
    biases = ns.kernel(zoo.mlp(2, var_w=[1.0, 0.0], var_b=[0.0, 0.8]))(VECTORS)
    np.testing.assert_allclose(biases, np.full((3, 3), 0.4), rtol=1e-12)
    phis: list[Phi] = [ns.relu, ns.tanh, lambda h: ns.nonlin(np.arctan, h)]
    for phi in phis:
        nothing = ns.kernel(zoo.mlp(2, phi, var_w=0.0, var_b=0.0))(VECTORS)
        np.testing.assert_array_equal(nothing, np.zeros((3, 3)))
    np.testing.assert_array_equal(ns.kernel(zoo.mlp(2, var_v=0.0))(VECTORS), np.zeros((3, 3)))
    against_oracle(zoo.simple_rnn(var_u=0.0), [TOKENS[:2]])


# Scales


def test_relu_is_homogeneous() -> None:
    for net, power in (
        (zoo.mlp(3, var_b=0.0), 2),
        (zoo.resnet(2, var_b=0.0), 2),
        (zoo.layernorm_mlp(2, var_b=0.0), 0),
    ):
        plain = ns.kernel(net)(VECTORS)
        for scale in (1e-50, 1e-4, 1e4, 1e50):
            np.testing.assert_allclose(ns.kernel(net)(scale * VECTORS), scale**power * plain, rtol=1e-12)


SATURATED = [pytest.param(ns.tanh, id="tanh", marks=slow), pytest.param(ns.erf, id="erf")]


@pytest.mark.parametrize("phi", SATURATED)
def test_a_variance_of_1e8_saturates(phi: Phi) -> None:
    """tanh and erf become sign, up to the chance that |z| is of order one."""
    size = 1e4
    found = ns.kernel(zoo.mlp(1, phi, var_b=0.0)).evaluate(size * VECTORS)
    near = 1.6 / size / np.sqrt(np.diag(GRAM).min())  # E[1 - tanh(z)^2] is about 0.8 / deviation
    assert np.all(np.abs(found.value - arc_sine(GRAM)) <= near + found.error)
    assert np.all(found.error < 1e-3)


def test_large_gelu_is_relu() -> None:
    size = 1e4
    rectified_twice = ns.kernel(zoo.mlp(2, var_b=0.0))(size * VECTORS)
    found = ns.kernel(zoo.mlp(2, ns.gelu, var_b=0.0))(size * VECTORS)
    np.testing.assert_allclose(found, rectified_twice, rtol=1e-6)


def test_a_variance_of_1e_8_is_linear() -> None:
    """phi(z) = phi'(0) z up to O(size^2); with nothing lost to cancellation."""
    size = 1e-4
    for phi, slope in ((ns.tanh, 1.0), (ns.erf, 2 / np.sqrt(np.pi)), (ns.silu, 0.5), (ns.gelu, 0.5)):
        found = ns.kernel(zoo.mlp(2, phi, var_b=0.0)).evaluate(size * VECTORS)
        np.testing.assert_allclose(found.value, slope**4 * size**2 * GRAM, rtol=0, atol=1e-3 * size**2)
        assert np.all(found.error < 1e-6 * size**2)
    against_oracle(zoo.gru(), [size * TOKENS[:1]])


def test_large_and_small_variances_in_one_network() -> None:
    """A layer of variance 1e8 between layers of 1e-8: relu is homogeneous, so only the product counts."""
    plain = ns.kernel(zoo.mlp(3, var_b=0.0))(VECTORS)
    found = ns.kernel(zoo.mlp(3, var_w=[1e-8, 1e8, 1.0], var_b=0.0)).evaluate(VECTORS)
    np.testing.assert_allclose(found.value, plain, rtol=1e-12)
    far = ns.kernel(zoo.gru(var_u=[1e8, 1.0, 1e-8])).evaluate([TOKENS[:2]])
    wanted = oracle(ns.program(zoo.gru(var_u=[1e8, 1.0, 1e-8]), TOKENS[:2]), samples=2**13)
    assert_agree(far, wanted.kernel, wanted.error.kernel)


def test_one_sided_hard_tanh() -> None:
    """low=-inf: min(z, 1) is 1 - relu(1 - z)."""
    W, v = ns.Matrix(), ns.Matrix(rows=1)
    found = ns.kernel(ns.network(lambda x: v @ ns.hard_tanh(W @ x, low=-np.inf))).evaluate(VECTORS)
    wanted = pair_moments(lambda z: np.minimum(z, 1), GRAM, 0.0, [1.0])
    np.testing.assert_allclose(found.value, wanted, rtol=0, atol=1e-12)
