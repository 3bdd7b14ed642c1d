"""Kernels as functions of inputs: blocks, order, readouts, parameters, methods, tolerances and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import netsor as ns
from limit_cases import (
    SAMPLED,
    SEQUENCES,
    VECTORS,
    Case,
    assert_agree,
    by_name,
    largest_error,
    scale_of,
)
from netsor import zoo
from netsor.errors import LimitError
from netsor.limits.options import Options

LENGTHS = [SEQUENCES[0], SEQUENCES[1][:2], SEQUENCES[2], SEQUENCES[3][:1]]
ONE_OF_EACH = [
    "mlp, tanh",
    "simple_rnn",
    "gru",
    "lstm",
    "batchnorm_mlp",
    "cnn, gap",
    "cnn, flatten",
    "cnn, max pool",
    "resnet",
    "densenet",
    "graph_conv",
    "layernorm_mlp",
    "transformer, tied",
    "transformer, two heads, untied",
]
SHORTER = {"gru": [SEQUENCES[1][:2], SEQUENCES[0][:1]], "lstm": [SEQUENCES[0][:2], SEQUENCES[1][:1]]}


def small(name: str) -> Case:
    return Case(name, by_name(name).net, SHORTER.get(name, by_name(name).inputs))


each_network = pytest.mark.parametrize("case", [small(n) for n in ONE_OF_EACH], ids=lambda case: case.name)


def rows_of(case: Case) -> list[np.ndarray]:
    """The rows of the kernel that belong to each input."""
    sizes = [ns.simulate(case.net, [x], width=2).shape[1] for x in case.inputs]
    stops = np.cumsum(sizes)
    return [np.arange(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]


def part(case: Case, inputs: list[Any]) -> Case:
    return Case(case.name, case.net, inputs)


# Sets of inputs


@each_network
def test_between_two_sets_is_a_block_of_the_joint_kernel(case: Case) -> None:
    """Also where both sets have inputs of several shapes, and where something is sampled."""
    first = [*case.inputs, case.inputs[0]]
    second = [*case.inputs[::-1]]
    kernel = ns.kernel(case.net, points=2**8)
    joint, between = kernel.evaluate(first + second), kernel.evaluate(first, second)
    rows = sum(map(len, rows_of(part(case, first))))
    assert between.value.shape == (rows, len(joint.value) - rows)
    assert_agree(between, joint.value[:rows, rows:], joint.error[:rows, rows:])
    if case.name not in SAMPLED:
        np.testing.assert_allclose(kernel(second, first).T, between.value, rtol=1e-12, atol=1e-13)


@each_network
def test_order_of_inputs_is_order_of_rows(case: Case) -> None:
    case = part(case, [*case.inputs, case.inputs[0]])
    order = [*range(1, len(case.inputs)), 0]
    rows = rows_of(case)
    index = np.concatenate([rows[i] for i in order])
    kernel = ns.kernel(case.net, points=2**8)
    straight = kernel.evaluate(case.inputs)
    turned = kernel.evaluate([case.inputs[i] for i in order])
    wanted, error = straight.value[np.ix_(index, index)], straight.error[np.ix_(index, index)]
    assert_agree(turned, wanted, error)


@each_network
def test_kernel_is_symmetric_positive_and_has_its_diagonal(case: Case) -> None:
    kernel = ns.kernel(case.net, points=2**8)
    found = kernel.evaluate(case.inputs)
    np.testing.assert_array_equal(found.value, found.value.T)
    lowest = np.linalg.eigvalsh(found.value)[0]
    assert lowest >= -len(found.value) * found.error.max()
    variances = kernel.diag(case.inputs)
    of_diagonal, error = np.diagonal(found.value), np.diagonal(found.error)
    assert_agree((variances, error), of_diagonal, error, largest=largest_error(found))


def test_sequences_of_different_lengths() -> None:
    """A prefix gives the first rows of the whole sequence: the networks are causal."""
    for net in (zoo.simple_rnn(), zoo.gru(), zoo.lstm(), zoo.transformer()):
        found = ns.kernel(net, points=2**10).evaluate(
            [LENGTHS[0], LENGTHS[0][:1], LENGTHS[0][:2], LENGTHS[1]]
        )
        rows = np.array([0, 1, 2, 0, 0, 1])
        wanted, error = found.value[:3, :3][np.ix_(rows, rows)], found.error[:3, :3][np.ix_(rows, rows)]
        block = found.value[:6, :6], found.error[:6, :6]
        assert_agree(block, wanted, error, largest=largest_error(found))


# Readouts


def test_several_readouts_are_independent_copies() -> None:
    W, one, three = ns.Matrix(), ns.Matrix(2.0, rows=1), ns.Matrix(2.0, rows=3)
    single = ns.kernel(ns.network(lambda x: one @ ns.relu(W @ x)))(VECTORS)
    found = ns.kernel(ns.network(lambda x: three @ ns.relu(W @ x)))(VECTORS)
    np.testing.assert_allclose(found, np.kron(single, np.eye(3)), atol=1e-14)


def test_sums_of_readouts() -> None:
    """One readout on two vectors adds the vectors; two readouts add the kernels."""
    W, u, v = ns.Matrix(), ns.Matrix(0.5, rows=1), ns.Matrix(2.0, rows=1)

    def net(out: Any) -> np.ndarray:
        return ns.kernel(ns.network(lambda x: out(W @ x)))(VECTORS)

    same = net(lambda h: v @ ns.relu(h) + v @ ns.tanh(h))
    np.testing.assert_allclose(same, net(lambda h: v @ (ns.relu(h) + ns.tanh(h))), rtol=1e-10)
    other = net(lambda h: v @ ns.relu(h) + u @ ns.tanh(h))
    np.testing.assert_allclose(
        other, net(lambda h: v @ ns.relu(h)) + net(lambda h: u @ ns.tanh(h)), rtol=1e-10
    )
    both = net(lambda h: (v @ h, v @ ns.relu(h)))
    gram = 2.0 * VECTORS @ VECTORS.T / 4
    np.testing.assert_allclose(both[::2, ::2], gram, atol=1e-14)
    np.testing.assert_allclose(both[::2, 1::2], gram / 2, atol=1e-13)  # E[h relu(h')] = Cov(h, h') / 2


# Parameters


def test_params_take_the_place_of_the_networks_own() -> None:
    kernel = ns.kernel(zoo.mlp(2))
    assert kernel.params == dict.fromkeys(["W1", "b1", "W2", "b2", "v"], 1.0)
    found = kernel(VECTORS, params={"W2": 1.7, "b1": 0.3, "v": 0.6})
    wanted = ns.kernel(zoo.mlp(2, var_w=[1.0, 1.7], var_b=[0.3, 1.0], var_v=0.6))(VECTORS)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)
    cross = kernel(VECTORS[:1], VECTORS[1:], params={"W2": 1.7, "b1": 0.3, "v": 0.6})
    np.testing.assert_allclose(cross, wanted[:1, 1:], rtol=1e-14)
    np.testing.assert_allclose(
        kernel.diag(VECTORS, params={"v": 0.6}), 0.6 * kernel.diag(VECTORS), rtol=1e-14
    )


def test_params_of_several_readouts_in_place_of_zero() -> None:
    W, v = ns.Matrix(name="W"), ns.Matrix(0.0, rows=3, name="v")
    found = ns.kernel(ns.network(lambda x: v @ (W @ x)))(VECTORS[:1], params={"v": 0.5})
    np.testing.assert_allclose(found, 0.5 * VECTORS[0] @ VECTORS[0] / 4 * np.eye(3))


@pytest.mark.parametrize("params", [{"W3": 1.0}, {"W1": -1.0}, {"W1": np.nan}, {"W1": np.inf}], ids=str)
def test_params_that_are_none(params: dict[str, float]) -> None:
    with pytest.raises(ns.NetsorError):
        ns.kernel(zoo.mlp(2))(VECTORS, params=params)


# Methods


def test_exact_is_refused_with_a_reason() -> None:
    with pytest.raises(LimitError, match="no exact method") as raised:
        ns.kernel(zoo.lstm(), method="exact")([SEQUENCES[0]])
    assert "dependent variables" in str(raised.value)
    assert 'method="auto"' in str(raised.value)


@pytest.mark.parametrize("name", sorted(SAMPLED))
def test_exact_and_auto_agree_on_what_is_sampled(name: str) -> None:
    case = by_name(name)
    assert not ns.kernel(case.net, points=2**6).evaluate(case.inputs).plan.exact
    with pytest.raises(LimitError, match="no exact method"):
        ns.kernel(case.net, method="exact")(case.inputs)


@each_network
def test_sampling_everything_agrees(case: Case) -> None:
    auto = ns.kernel(case.net).evaluate(case.inputs)
    sampled = ns.kernel(case.net, method="sample", points=2**10, seed=1).evaluate(case.inputs)
    assert not sampled.plan.exact
    assert_agree(sampled, auto.value, auto.error)
    assert np.all(sampled.error <= 0.05 * scale_of(auto.value))


def test_a_seed_fixes_the_samples() -> None:
    inputs = [SEQUENCES[0][:2]]
    first, again, other = (ns.kernel(zoo.lstm(), points=2**6, seed=s)(inputs) for s in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, rtol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fast"},
        {"tol": 0.0},
        {"tol": -1.0},
        {"repeats": 1},
        {"repeats": 0},
        {"points": 0},
        {"points": 1.5},
    ],
    ids=str,
)
def test_options_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(LimitError):
        ns.kernel(zoo.lstm(), **options)([SEQUENCES[0][:1]])


# Tolerances and errors


def test_a_tolerance_is_reached() -> None:
    case = by_name("lstm")
    start = ns.kernel(case.net, points=2**8).evaluate(case.inputs)
    tol = 0.3 * float(np.max(start.error / scale_of(start.value)))
    found = ns.kernel(case.net, points=2**8, tol=tol).evaluate(case.inputs)
    assert found.plan.sampling is not None
    assert found.plan.sampling.points > 2**8
    assert np.all(2 * found.error <= tol * scale_of(found.value))
    half = case.inputs[:1]
    between = ns.kernel(case.net, points=2**8, tol=tol).evaluate(half, half)
    assert between.error.max() <= tol * between.value.max()


def test_points_and_repeats_of_a_tolerance() -> None:
    """A little is mended by repeats, much by points; as few as the error is expected to need."""
    options = Options(tol=2e-4)  # for a standard error of 1e-4
    assert options.further(1024, 16, 1e-4) is None
    assert options.further(1024, 16, 1.05e-4) == (1024, 28)  # (1.05 / 0.8)^2 times as many
    assert options.further(1024, 28, 1.05e-4) == (1024, 49)
    assert options.further(1024, 49, 1.05e-4) == (4096, 16)  # four times as many repeats are too many
    for missing in (2.0, 5.0, 30.0, 80.0):
        points, repeats = options.further(1024, 16, missing * 1e-4) or (0, 0)
        expected = missing * (1024 / points) ** 0.75
        assert repeats == 16
        assert expected <= 1.7
        assert expected >= 0.4
    with pytest.raises(LimitError, match="not reached"):
        Options(tol=2e-4, max_points=1024).further(1024, 16, 3e-4)
    assert Options(tol=2e-4, max_points=4096).further(1024, 16, 1.0) == (4096, 16)


def test_a_second_try_without_a_tolerance() -> None:
    assert Options().further(4096, 16, 4e-4) is None
    assert Options().further(4096, 16, 9e-4) == (8192, 16)
    assert Options().further(4096, 16, 9e-3) == (16384, 16)
    assert Options().further(8192, 16, 9e-3) is None
    assert Options(points=64).further(64, 16, 0.5) is None


def test_further_repeats_join_the_first() -> None:
    """Sixteen repeats and then more are the same as all of them at once."""
    inputs = [SEQUENCES[0]]
    start = ns.kernel(zoo.gru(), points=2**8).evaluate(inputs)
    tol = 2 * float(np.max(start.error / scale_of(start.value))) / 1.02
    found = ns.kernel(zoo.gru(), points=2**8, tol=tol).evaluate(inputs)
    assert found.plan.sampling is not None
    assert found.plan.sampling.points == 2**8
    assert 16 < found.plan.sampling.repeats <= 64
    whole = ns.kernel(zoo.gru(), points=2**8, repeats=found.plan.sampling.repeats).evaluate(inputs)
    np.testing.assert_allclose(found.value, whole.value, rtol=1e-12)
    np.testing.assert_allclose(found.error, whole.error, rtol=1e-9)


def test_a_tolerance_out_of_reach() -> None:
    with pytest.raises(LimitError, match="tolerance"):
        ns.kernel(zoo.lstm(), tol=1e-9, points=2**6, max_points=2**9)([SEQUENCES[0][:2]])


def test_a_tolerance_out_of_reach_of_exact_methods() -> None:
    """A batchnorm integral is good to some 1e-10, whatever tolerance is asked for."""
    case = by_name("batchnorm_mlp")
    assert ns.kernel(case.net, tol=1e-6).evaluate(case.inputs).error.max() < 1e-6
    with pytest.raises(LimitError, match="tolerance"):
        ns.kernel(case.net, tol=1e-16)(case.inputs)


def relative_deviations(net: ns.Network, inputs: list[np.ndarray], seeds: int, points: int) -> np.ndarray:
    """Deviations from a much better value, in units of the reported errors: (seeds, rows, columns)."""
    truth = ns.kernel(net, points=32 * points, seed=10**6).evaluate(inputs)
    found = [ns.kernel(net, points=points, seed=seed).evaluate(inputs) for seed in range(seeds)]
    assert np.all(truth.error < 0.3 * np.mean([f.error for f in found], axis=0))
    return np.array([(f.value - truth.value) / f.error for f in found])


@pytest.mark.parametrize("net", [zoo.gru(), pytest.param(zoo.lstm(), marks=pytest.mark.slow)], ids=str)
def test_errors_are_calibrated(net: ns.Network) -> None:
    """Sixteen repeats: Student's distribution of 15 degrees of freedom has deviation sqrt(15/13) = 1.07."""
    units = relative_deviations(net, [SEQUENCES[0]], seeds=20, points=2**8)
    assert 1 / 3 < np.sqrt(np.mean(units**2)) < 3
    each = np.sqrt(np.mean(units**2, axis=0))
    assert np.all((each > 1 / 3) & (each < 3))


# Explanations


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mlp, relu", ["E[relu relu]", "closed form"]),
        ("mlp, tanh", ["E[tanh tanh]", "Hermite series"]),
        ("batchnorm_mlp, deep", ["E[abs(batchnorm(", "1-D and 2-D integrals"]),
        (
            "lstm",
            ["Hermite series", "sampled", "dimensions", "Sobol points", "because", "dependent variables"],
        ),
        ("cnn, max pool", ["sampled", "because", "max"]),
    ],
)
def test_explain_names_the_methods(name: str, words: list[str]) -> None:
    case = by_name(name)
    text = ns.kernel(case.net, points=2**6).evaluate(case.inputs).explain()
    assert "Largest error of an entry" in text
    for word in words:
        assert word in text


def test_explain_products_of_gaussians() -> None:
    """A product of three forms of one family on each side would be six Gaussians; of two, it is four."""
    W, v = ns.Matrix(), ns.Matrix(rows=1)
    net = ns.network(lambda x: v @ ((W @ x[0]) * (W @ x[1])))
    found = ns.kernel(net).evaluate([VECTORS[:2], VECTORS[1:]])
    assert "Isserlis" in found.explain()
    g = VECTORS @ VECTORS.T / 4
    pairs = [(0, 1), (1, 2)]
    wanted = [[g[a, b] * g[c, d] + g[a, c] * g[b, d] + g[a, d] * g[b, c] for c, d in pairs] for a, b in pairs]
    np.testing.assert_allclose(found.value, wanted, rtol=1e-12)
