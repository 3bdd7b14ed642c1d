"""Tangent kernels against the recursions of the literature, written out here, and against finite networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import netsor as ns
from brute_force import batchnorm_slopes, on_the_sphere, pair_moments
from composed_case import EVERYTHING
from limit_cases import CASES, SEQUENCES, VECTORS, Case, assert_agree
from netsor.errors import LimitError

Phi = Callable[[np.ndarray], np.ndarray]


# Formulas


def dense(
    x: np.ndarray, phi: Phi, slope: Phi, depth: int, var: tuple[float, float, float], kinks: Any = ()
) -> np.ndarray:
    """Theta of a multilayer perceptron, layer by layer (Jacot et al. 2018), by plain quadrature."""
    var_w, var_b, var_v = var
    sigma = theta = var_w * x @ x.T / x.shape[1] + var_b
    for layer in range(1, depth + 1):
        images, slopes = pair_moments(phi, sigma, 0.0, kinks), pair_moments(slope, sigma, 0.0, kinks)
        if layer == depth:
            return var_v * (images + slopes * theta)
        sigma = var_w * images + var_b
        theta = sigma + var_w * slopes * theta
    raise AssertionError


def gelu_slope(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return (1 + erf(x / np.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def erf_slope(x: np.ndarray) -> np.ndarray:
    return 2 / np.sqrt(np.pi) * np.exp(-x * x)


def hard_slope(x: np.ndarray) -> np.ndarray:
    return 1.0 * (np.abs(x) < 1)


ACTIVATIONS = [
    (ns.relu, lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0), (0.0,)),
    (ns.abs, np.abs, np.sign, (0.0,)),
    (ns.erf, ns.erf.fn, erf_slope, ()),
    (ns.gelu, ns.gelu.fn, gelu_slope, ()),
    (ns.tanh, np.tanh, lambda x: 1 - np.tanh(x) ** 2, ()),
    (ns.sin, np.sin, np.cos, ()),
    (ns.hard_tanh, lambda x: np.clip(x, -1, 1), hard_slope, (-1.0, 1.0)),
]


@pytest.mark.parametrize(("phi", "f", "slope", "kinks"), ACTIVATIONS, ids=lambda x: getattr(x, "name", ""))
def test_perceptrons_of_three_layers(phi: Any, f: Phi, slope: Phi, kinks: Any) -> None:
    found = ns.ntk(ns.zoo.mlp(3, phi, var_w=1.7, var_b=0.3, var_v=0.8)).evaluate(VECTORS)
    wanted = dense(VECTORS, f, slope, 3, (1.7, 0.3, 0.8), kinks)
    assert_agree(found, wanted, 1e-10)
    assert found.plan.exact


Variances = tuple[float, float, float, float]
UNIT = (1.0, 1.0, 1.0, 1.0)


def rnn(x: np.ndarray, y: np.ndarray, var: Variances, moves: Variances | None = None) -> float:
    """Theta of the last states of an erf network over time: a sum over steps back from both ends.

    At each step forward times backward covariance (Tensor Programs II, section 3): gradients that have gone
    back by different numbers of steps are independent. Parameters move by `moves`, or as they vary.
    """
    var_w, var_v = var[0], var[3]

    def sigma(a: np.ndarray, b: np.ndarray, var: Variances = var) -> float:
        """The covariance of the last preactivations of two sequences, or of their directions."""
        past = state(a[:-1], b[:-1]) if len(a) > 1 and len(b) > 1 else 0.0
        return var[0] * past + var[1] * a[-1] @ b[-1] / a.shape[1] + var[2]

    def state(a: np.ndarray, b: np.ndarray) -> float:
        root = np.sqrt((1 + 2 * sigma(a, a)) * (1 + 2 * sigma(b, b)))
        return 2 / np.pi * np.arcsin(2 * sigma(a, b) / root)

    def slope(a: np.ndarray, b: np.ndarray) -> float:
        square = (1 + 2 * sigma(a, a)) * (1 + 2 * sigma(b, b)) - 4 * sigma(a, b) ** 2
        return 4 / np.pi / np.sqrt(square)

    moves = moves or var
    total, back = moves[3] * state(x, y), var_v
    for k in range(min(len(x), len(y))):
        a, b = x[: len(x) - k], y[: len(y) - k]
        back *= slope(a, b)
        total += back * sigma(a, b, moves)
        back *= var_w
    return total


def last_state(var: tuple[float, float, float, float]) -> ns.Network:
    cell = ns.RNNCell(ns.erf, *var[:3])
    v = ns.Matrix(var[3], rows=1)

    @ns.network
    def last(tokens):
        state = 0
        for token in tokens:
            state = cell(state, token)
        return v @ state

    return last


@pytest.mark.parametrize("lengths", [(3, 3), (3, 2), (1, 3), (1, 1)])
def test_recurrent_networks_with_tied_weights(lengths: tuple[int, int]) -> None:
    var = (1.3, 0.7, 0.2, 1.1)
    sequences = [s[:n] for s, n in zip(SEQUENCES, lengths, strict=False)]
    found = ns.ntk(last_state(var)).evaluate(sequences)
    wanted = np.array([[rnn(x, y, var) for y in sequences] for x in sequences])
    assert_agree(found, wanted, 1e-13)


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_recurrent_networks_as_in_tensor_programs_two(pool: str) -> None:
    """The last state and the average of all states, in the convention that all parameters have variance 1."""
    var = (1.3, 0.7, 0.2, 1.1)
    cell, v = ns.RNNCell(ns.erf, *var[:3]), ns.Matrix(var[3], rows=1)

    @ns.network
    def reader(tokens):
        states = [cell(0, tokens[0])]
        for token in tokens[1:]:
            states.append(cell(states[-1], token))
        return v @ (states[-1] if pool == "last" else ns.mean(ns.stack(states), axis=0))

    def theta(x: np.ndarray, y: np.ndarray) -> float:
        if pool == "last":
            return rnn(x, y, var, UNIT)
        ends = [(i, j) for i in range(1, len(x) + 1) for j in range(1, len(y) + 1)]
        return float(np.mean([rnn(x[:i], y[:j], var, UNIT) for i, j in ends]))

    sequences = [SEQUENCES[0][:3], SEQUENCES[1][:2]]
    found = ns.ntk(reader, "unit").evaluate(sequences)
    wanted = np.array([[theta(x, y) for y in sequences] for x in sequences])
    assert_agree(found, wanted, 1e-12)


def test_a_transformer_as_in_tensor_programs_two() -> None:
    """Two sequences of different lengths; attention weights and norms do not move."""
    var_u, var_w, var_b, var_v = 1.5, 1.3, 0.4, 0.7
    sequences = [SEQUENCES[0][:3], SEQUENCES[1][:2]]
    x = np.concatenate(sequences)
    base = x @ x.T / x.shape[1]
    mixing, start = np.eye(len(x)), 0
    for n in map(len, sequences):
        logits = np.exp(var_u * base[start : start + n, start : start + n]) * np.tri(n)
        mixing[start : start + n, start : start + n] += logits / logits.sum(1, keepdims=True)
        start += n

    def normed(sigma: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        root = np.sqrt(np.outer(np.diagonal(sigma), np.diagonal(sigma)))
        return sigma / root, theta / root

    h, d_h = normed(mixing @ (var_u * base) @ mixing.T, mixing @ base @ mixing.T)
    y, d_y = var_w * h, h + var_w * d_h
    root = np.sqrt(np.outer(np.diagonal(y) + var_b, np.diagonal(y) + var_b))
    angle = np.arccos(np.clip((y + var_b) / root, -1, 1))
    images = root * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    slopes = (np.pi - angle) / (2 * np.pi)
    z = var_w * images + var_b + y
    last, d_last = normed(z, images + var_w * slopes * (d_y + 1) + 1 + d_y)
    net = ns.zoo.transformer(var_u=var_u, var_w=var_w, var_b=var_b, var_v=var_v)
    found = ns.ntk(net, "unit").evaluate(sequences)
    assert_agree(found, last + var_v * d_last, 1e-12)


def test_batchnorm_within_and_across_batches() -> None:
    """Batches of 4 and 5 members that are functions of one Gaussian vector in 3 dimensions, by quadrature."""
    rng = np.random.default_rng(0)
    batches, var_w, var_v = [rng.standard_normal((n, 3)) for n in (4, 5)], 1.7, 0.6
    maps = [x - x.mean(0) for x in batches]

    def images(y: np.ndarray, z: np.ndarray) -> np.ndarray:
        left, right = (np.maximum(b, 0) / b.std(axis=1)[:, None] for b in (y, z))
        return left[:, :, None] * right[:, None, :]

    wanted = np.block(
        [
            [
                on_the_sphere(var_w / 3 * np.eye(3), (maps[i], maps[j]), images, 0)
                + var_v
                * on_the_sphere(
                    var_w / 3 * np.eye(3),
                    (maps[i], maps[j]),
                    batchnorm_slopes(batches[i] @ batches[j].T / 3, (1.0, 0.0), (1.0, 0.0)),
                    -2,
                )
                for j in (0, 1)
            ]
            for i in (0, 1)
        ]
    )
    found = ns.ntk(ns.zoo.batchnorm_mlp(1, var_w=var_w, var_v=var_v), "unit").evaluate(batches)
    assert found.plan.exact
    assert_agree(found, wanted, 1e-8)


def test_batches_that_are_multiples_or_permuted() -> None:
    """A multiple is the same batch; a permuted one is, up to its order: the second layer is steep there."""
    batch = np.random.default_rng(3).standard_normal((6, 8))
    found = ns.ntk(ns.zoo.batchnorm_mlp(2)).evaluate([batch, 1e3 * batch, batch[::-1]])
    own, multiple, permuted = (found.value[:6, k : k + 6] for k in (0, 6, 12))
    np.testing.assert_allclose(multiple, own, rtol=0, atol=1e-12)
    assert (np.abs(permuted[:, ::-1] - own) <= found.error[:6, 12:][:, ::-1]).all()
    assert found.error[:6, 12:].max() < 1e-3


def test_batchnorm_that_is_sampled() -> None:
    """Integrals and samples agree; what has an infinite variance is not sampled."""
    batches = [np.random.default_rng(1).standard_normal((7, 6))]
    net = ns.zoo.batchnorm_mlp(1)
    exact, sampled = ns.ntk(net)(batches), ns.ntk(net, method="sample").evaluate(batches)
    assert np.abs(exact - sampled.value).max() < 4 * sampled.error.max()
    for bad in (batches[0][:5], batches[0][:, :4]):
        with pytest.raises(LimitError, match="spans 4 dimensions cannot be sampled"):
            ns.ntk(ns.zoo.batchnorm_mlp(1, ns.tanh))([bad])
    W, v = ns.Matrix(), ns.Matrix(rows=1)
    nested = ns.network(lambda x: v @ ns.tanh(ns.relu(ns.batchnorm(W @ x))[0]))
    assert ns.ntk(nested, points=2**10)(batches).shape == (1, 1)
    with pytest.raises(LimitError, match="cannot be sampled"):
        ns.ntk(nested)([batches[0][:5]])


def test_batchnorm_of_members_and_means() -> None:
    W, v = ns.Matrix(1.3), ns.Matrix(rows=1)

    @ns.network
    def mixed(batch):
        h = ns.abs(ns.batchnorm(W @ batch))
        return v @ (h[0] - 2 * h[3] + ns.mean(h, axis=0))

    batches = [np.random.default_rng(2).standard_normal((5, 6))]
    found = ns.ntk(mixed).evaluate(batches)
    simulated = ns.empirical_ntk(mixed, batches, 400, 200)
    assert found.plan.exact
    deviation = simulated.std(0) / np.sqrt(200)
    assert np.abs(found.value - simulated.mean(0)) < 4 * deviation + 4 / 400 * found.value


def test_two_matrices_in_a_row_count_twice() -> None:
    """Two matrices in a row are one for the kernel, but the tangent kernel counts both."""
    V, W, v = ns.Matrix(1.0), ns.Matrix(1.0), ns.Matrix(rows=1)
    net = ns.network(lambda x: v @ (W @ (V @ x)))
    x = VECTORS
    np.testing.assert_allclose(ns.ntk(net)(x), 3 * x @ x.T / x.shape[1], rtol=1e-13)


# Rates


def test_rates_are_linear_and_parts_add_up() -> None:
    net = ns.zoo.mlp(2, ns.erf, var_w=1.5, var_b=0.3)
    K, other = ns.ntk(net), VECTORS[:2]
    for y in (None, other):
        parts = K.parts(VECTORS, y)
        assert list(parts) == ["W1", "b1", "W2", "b2", "v"]
        np.testing.assert_allclose(sum(parts.values()), K(VECTORS, y), rtol=1e-13)
    for name, part in K.parts(VECTORS).items():
        alone = ns.ntk(net, {p: 1.0 * (p == name) for p in K.params})
        np.testing.assert_allclose(alone(VECTORS), part, rtol=1e-13)
        doubled = K(VECTORS, params={f"{name}.rate": 2.0})
        np.testing.assert_allclose(doubled, K(VECTORS) + part, rtol=1e-13)
    np.testing.assert_allclose(K.parts(VECTORS)["v"], ns.kernel(net)(VECTORS), rtol=1e-13)


@pytest.mark.parametrize("name", ["mlp, relu", "mlp, tanh", "simple_rnn", "transformer", "cnn, flatten"])
def test_both_kernels_from_one_pass(name: str) -> None:
    case = next(case for case in CASES if case.name.startswith(name))
    K, plain = ns.ntk(case.net), ns.kernel(case.net)
    for sets in ((case.inputs,), (case.inputs, case.inputs[:1])):
        nngp, theta = K.both(*sets)
        np.testing.assert_allclose(nngp, plain(*sets), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(theta, K(*sets), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(sum(K.parts(*sets).values()), K(*sets), rtol=1e-12, atol=1e-14)


def test_both_kernels_where_they_take_two_passes() -> None:
    net = ns.zoo.mlp(2, var_b=0.3)
    for rates in ({"v": 0.0}, {"W1": 0.0, "v": 2.0}, "unit", ("standard", 64)):
        K = ns.ntk(net, rates)
        nngp, theta = K.both(VECTORS, params={"W2": 1.5})
        np.testing.assert_allclose(nngp, ns.kernel(net)(VECTORS, params={"W2": 1.5}), rtol=1e-13)
        np.testing.assert_allclose(theta, K(VECTORS, params={"W2": 1.5}), rtol=1e-13)
    gru = next(case for case in CASES if case.name == "gru")
    sampled = ns.ntk(gru.net, points=2**8)
    nngp, theta = sampled.both(gru.inputs)
    np.testing.assert_allclose(nngp, ns.kernel(gru.net, points=2**8)(gru.inputs))
    np.testing.assert_allclose(theta, sampled(gru.inputs))


def test_equal_inputs_in_one_pass() -> None:
    x = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0 + 1e-9]])
    K = ns.ntk(ns.zoo.mlp(3))
    nngp, theta = K.both(x)
    np.testing.assert_allclose(theta, K(x), rtol=1e-12)
    np.testing.assert_allclose(nngp, ns.kernel(ns.zoo.mlp(3))(x), rtol=1e-12)
    np.testing.assert_allclose(sum(K.parts(x).values()), K(x), rtol=1e-12)


@pytest.mark.slow
def test_gradients_in_every_variance_and_rate() -> None:
    jax = pytest.importorskip("jax")
    from netsor.lang.array_api import double_precision

    K = ns.ntk(ns.zoo.mlp(2, ns.erf, var_w=1.4, var_b=0.3))
    names = [*K.params, *(f"{name}.rate" for name in K.params)]
    start = {**K.params, **{f"{name}.rate": 1.0 for name in K.params}}
    weights = np.random.default_rng(0).standard_normal((3, 3))
    with double_precision():
        found = jax.grad(lambda p: (weights * K(VECTORS, params=p)).sum())(start)
    for name in names:
        ends = [np.sum(weights * K(VECTORS, params={**start, name: start[name] + h})) for h in (1e-5, -1e-5)]
        assert float(found[name]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-7, abs=1e-9)


def test_a_variance_is_one_number_for_a_matrix_its_copy_and_its_direction() -> None:
    K = ns.ntk(ns.zoo.mlp(2, var_w=1.0, var_b=0.3))
    wanted = ns.ntk(ns.zoo.mlp(2, var_w=[1.0, 2.5], var_b=0.3))(VECTORS)
    np.testing.assert_allclose(K(VECTORS, params={"W2": 2.5}), wanted, rtol=1e-13)
    assert K.params == {"W1": 1.0, "W2": 1.0, "b1": 0.3, "b2": 0.3, "v": 1.0}
    with pytest.raises(LimitError, match="no variance `d_W2`"):
        K(VECTORS, params={"d_W2": 1.0})
    unit = ns.ntk(ns.zoo.mlp(2, var_w=1.0, var_b=0.3), "unit")
    wanted = ns.ntk(ns.zoo.mlp(2, var_w=[1.0, 2.5], var_b=0.3), "unit")(VECTORS)
    np.testing.assert_allclose(unit(VECTORS, params={"W2": 2.5}), wanted, rtol=1e-13)


def test_the_standard_parametrisation_of_a_perceptron() -> None:
    """d_W has entries of variance 1: n E[y y'] from the readout, n E[h h'] E[phi' phi'] from the layer."""
    n, net = 64, ns.zoo.mlp(2, ns.relu, var_w=1.7, var_b=0.3, var_v=0.8)
    parts = ns.ntk(net, ("standard", n)).parts(VECTORS)
    plain = ns.ntk(net).parts(VECTORS)
    for name, factor in {"v": n / 0.8, "W2": n / 1.7, "b2": 1 / 0.3, "W1": 4 / 1.7, "b1": 1 / 0.3}.items():
        np.testing.assert_allclose(parts[name], factor * plain[name], rtol=1e-12)


# Degenerate inputs


@pytest.mark.parametrize("phi", [ns.relu, ns.erf, ns.tanh, ns.gelu], ids=lambda f: f.name)
def test_equal_and_zero_inputs(phi: Any) -> None:
    x = np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [-1.0, -2.0]])
    K = ns.ntk(ns.zoo.mlp(3, phi, var_b=0.5))(x)
    np.testing.assert_allclose(K[0], K[1], rtol=1e-12)
    np.testing.assert_array_equal(K, K.T)
    assert np.linalg.eigvalsh(K)[0] > -1e-12 * np.trace(K)
    assert np.isfinite(ns.ntk(ns.zoo.mlp(2, phi, var_b=0.0))(x)).all()
    np.testing.assert_allclose(ns.ntk(ns.zoo.mlp(3, phi, var_b=0.5)).diag(x), np.diagonal(K), rtol=1e-12)
    np.testing.assert_allclose(ns.ntk(ns.zoo.mlp(3, phi, var_b=0.5))(x[:2], x[1:]), K[:2, 1:], rtol=1e-12)
    np.testing.assert_allclose(ns.ntk(ns.zoo.mlp(3, phi, var_b=0.5))(x[:1]), K[:1, :1], rtol=1e-12)


# Finite networks


def assert_mean_of_finite_networks(case: Case, width: int = 128, networks: int = 60) -> None:
    found = ns.ntk(case.net).evaluate(case.inputs)
    simulated = ns.empirical_ntk(case.net, case.inputs, width, networks, seed=0)
    spread = simulated.std(axis=0, ddof=1) / np.sqrt(networks)
    scale = np.sqrt(np.outer(*[np.diagonal(found.value)] * 2))
    allowed = 5 * spread + 3 * found.error + 4 / width * scale
    gap = np.abs(simulated.mean(axis=0) - found.value)
    assert (gap <= allowed).all(), f"off by {np.max(gap / allowed):.2f} of what is allowed"
    assert (allowed <= 0.35 * scale.max()).all()


QUICK = [
    case for case in CASES if case.name in ("mlp, user", "cnn, max pool", "gru", "transformer", "graph_conv")
]


@pytest.mark.parametrize("case", QUICK, ids=lambda c: c.name)
def test_the_mean_of_finite_networks(case: Case) -> None:
    assert_mean_of_finite_networks(case, networks=40)


# Derivatives of batchnorm over few members have heavy tails: no mean of so many networks says much there.
LARGE_BATCHES = list(np.random.default_rng(6).standard_normal((2, 10, 12)))
FINITE = [
    replace(case, inputs=LARGE_BATCHES) if case.name.startswith("batchnorm") else case for case in CASES
]


@pytest.mark.slow
@pytest.mark.parametrize("case", [*FINITE, EVERYTHING], ids=lambda c: c.name)
def test_the_mean_of_finite_networks_of_every_kind(case: Case) -> None:
    assert_mean_of_finite_networks(case)


def test_correlated_branches() -> None:
    """relu(h + layernorm(h)) and g * g: functions of one vector that occurs twice."""
    U, W, v = ns.Matrix(1.0), ns.Matrix(1.0), ns.Matrix(rows=1)

    @ns.network
    def branches(x):
        h = W @ ns.relu(U @ x)
        return v @ ns.relu(h + ns.layernorm(h))

    @ns.network
    def square(x):
        h = W @ ns.relu(U @ x)
        return v @ (h * h)

    for net in (branches, square):
        assert_mean_of_finite_networks(Case(net.name, net, list(VECTORS)), width=256, networks=40)


def test_exact_and_sampled_agree() -> None:
    for case in (CASES[0], CASES[6]):
        exact, sampled = ns.ntk(case.net), ns.ntk(case.net, method="sample", points=2**12)
        one, two = exact.evaluate(case.inputs), sampled.evaluate(case.inputs)
        assert_agree(one, two.value, two.error)


def test_max_pooling_with_padding_shares_the_derivative_among_repeated_members() -> None:
    """Places outside a block repeat a member, which must not count twice."""
    W, v = ns.Matrix(), ns.Matrix(rows=1)
    x = SEQUENCES[:2]
    net = ns.network(lambda x: v @ ns.max_pool(W @ x, 3, 1, padding="same").mean(axis=0))
    assert_mean_of_finite_networks(Case("max pool", net, list(x)), networks=80)


def test_verify_compares_tangent_kernels() -> None:
    found = ns.verify(ns.tangent(ns.zoo.mlp(2)), VECTORS, widths=(32, 128, 512), samples=30)
    assert found.ok
    np.testing.assert_allclose(found.result.value, ns.ntk(ns.zoo.mlp(2))(VECTORS))


def test_simulated_tangents_have_the_tangent_kernel_as_covariance() -> None:
    net, x = ns.zoo.mlp(2, ns.tanh), VECTORS[:2]
    outputs = ns.simulate(ns.tangent(net), x, width=64, samples=4000, seed=0)
    exact = ns.empirical_ntk(net, x, width=64, samples=400, seed=1)
    products = np.einsum("si,sj->sij", outputs, outputs)
    error = 5 * np.hypot(products.std(0) / np.sqrt(4000), exact.std(0) / np.sqrt(400))
    assert (abs(products.mean(0) - exact.mean(0)) < error).all()
