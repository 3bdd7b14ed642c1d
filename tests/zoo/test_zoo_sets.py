"""Zoo networks on sets of inputs: shared weights, kernels given the body, precision, seeds and widths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import plain_zoo as plain
import pytest
from plain_zoo import assert_close

import netsor as ns
from netsor import zoo
from netsor.simulation import draw, forward
from netsor.simulation.simulate import SimulationRun

RNG = np.random.default_rng(11)
VECTORS = RNG.standard_normal((3, 4))
TOKENS = RNG.standard_normal((6, 5, 4))
IMAGES = RNG.standard_normal((3, 6, 5, 2))
WIDTH = 40

# Shapes come mixed, and equal ones apart from each other, so that the order of the columns counts.
SEQUENCES = [TOKENS[0], TOKENS[1, :3], TOKENS[2], TOKENS[3, :1], TOKENS[4], TOKENS[1, :3], TOKENS[5, :1]]
PICTURES = [IMAGES[0], IMAGES[1, :4, :4], IMAGES[2], IMAGES[2, :1, :1], IMAGES[0, 2:, 1:]]
ADJACENCY = ns.normalized_adjacency(RNG.random((5, 5)) < 0.5)
GRAPHS = [
    (TOKENS[0], ADJACENCY),
    (TOKENS[1, :3], ADJACENCY[:3, :3]),
    (TOKENS[2], ADJACENCY.T),
    (TOKENS[2], np.eye(5)),
]

SETS: dict[str, tuple[ns.Network, Callable[..., np.ndarray], Any]] = {
    "mlp": (zoo.mlp(2), partial(plain.mlp, depth=2), VECTORS),
    "mlp, repeated": (zoo.mlp(2), partial(plain.mlp, depth=2), VECTORS[[0, 1, 0, 0]]),
    "resnet": (zoo.resnet(2), partial(plain.resnet, depth=2), VECTORS),
    "densenet": (zoo.densenet(3), partial(plain.densenet, depth=3), VECTORS),
    "layernorm": (zoo.layernorm_mlp(2), partial(plain.layernorm_mlp, depth=2), VECTORS),
    "batchnorm": (zoo.batchnorm_mlp(2), partial(plain.batchnorm_mlp, depth=2), [*TOKENS, TOKENS[0, 1:]]),
    "rnn, equal": (zoo.simple_rnn(), plain.simple_rnn, TOKENS),
    "rnn, mixed": (zoo.simple_rnn(), plain.simple_rnn, SEQUENCES),
    "gru, equal": (zoo.gru(), plain.gru, TOKENS),
    "gru, mixed": (zoo.gru(), plain.gru, SEQUENCES),
    "gru, mixed, h0": (zoo.gru(var_h0=0.5), plain.gru, SEQUENCES),
    "lstm, mixed": (zoo.lstm(), plain.lstm, SEQUENCES),
    "cnn, equal": (zoo.cnn(), plain.cnn, IMAGES),
    "cnn, mixed": (zoo.cnn(), plain.cnn, PICTURES),
    "cnn, circular": (zoo.cnn(padding="circular"), partial(plain.cnn, padding="circular"), PICTURES),
    "cnn, stride": (zoo.cnn(stride=2), partial(plain.cnn, stride=2), PICTURES),
    "cnn, max pool": (zoo.cnn(pool="max"), partial(plain.cnn, pool="max"), PICTURES[:3]),
    "cnn, mean pool": (zoo.cnn(pool="mean"), partial(plain.cnn, pool="mean"), PICTURES[:3]),
    "graph, node": (zoo.graph_conv(2), partial(plain.graph_conv, depth=2), GRAPHS),
    "graph, mean": (zoo.graph_conv(readout="mean"), partial(plain.graph_conv, readout="mean"), GRAPHS),
    "transformer, equal": (zoo.transformer(2), partial(plain.transformer, depth=2), TOKENS),
    "transformer, mixed": (zoo.transformer(2), partial(plain.transformer, depth=2), SEQUENCES),
    "transformer, heads": (
        zoo.transformer(heads=4, tied=False, causal=False),
        partial(plain.transformer, heads=4, tied=False, causal=False),
        SEQUENCES,
    ),
}
FLAT = zoo.cnn(readout="flatten", var_v=1.5), partial(plain.cnn, readout="flatten"), IMAGES


def sample_weights(net: ns.Network, x: Any, width: Any, seed: int, sample: int) -> dict[str, np.ndarray]:
    """The weights of one sample; readouts are drawn last, so a kernel of this seed has the same body."""
    run = SimulationRun(net, x, width, float)
    stream = np.random.SeedSequence(seed).spawn(sample + 1)[sample]
    return draw(run.program, run.widths, np.random.default_rng(stream))


@pytest.mark.parametrize(("net", "alone", "inputs"), [*SETS.values(), FLAT], ids=[*SETS, "cnn, flatten"])
def test_columns_are_the_outputs_of_each_input_alone(net, alone, inputs) -> None:
    got = ns.simulate(net, inputs, WIDTH, samples=2, seed=5)
    for i, row in enumerate(got):
        w = sample_weights(net, inputs, WIDTH, 5, i)
        assert_close(row, np.concatenate([SimulationRun(net, [x], WIDTH, float).outputs(w) for x in inputs]))
        assert_close(row, np.concatenate([plain.outputs(w["v"], alone(w, x)) for x in inputs]))


@pytest.mark.parametrize(("net", "alone", "inputs"), SETS.values(), ids=SETS)
def test_kernel_is_the_product_of_features(net, alone, inputs) -> None:
    got = ns.empirical_kernel(net, inputs, WIDTH, samples=2, seed=5)
    for i, kernel in enumerate(got):
        w = sample_weights(net, inputs, WIDTH, 5, i)
        h = np.concatenate([alone(w, x) for x in inputs])
        assert_close(kernel, h @ h.T / WIDTH)


@pytest.mark.parametrize(("net", "alone", "inputs"), [*SETS.values(), FLAT], ids=[*SETS, "cnn, flatten"])
def test_a_joint_program_by_itself_has_the_same_outputs(net, alone, inputs) -> None:
    program = ns.program(net, *inputs[:2])
    weights = draw(program, dict.fromkeys(program.widths, WIDTH), np.random.default_rng(3))
    h = [alone(weights, x) for x in inputs[:2]]
    run = SimulationRun(program, None, WIDTH, float)
    assert_close(run.outputs(weights), np.concatenate([plain.outputs(weights["v"], h_i) for h_i in h]))


# Other readouts of two layers. By hand, an output is the list of what it reads: for each member of a
# readout (its name and index) the vector it is multiplied with.

Reads = dict[tuple[str, tuple[int, ...]], np.ndarray]
W, W2, b = ns.Matrix(name="W"), ns.Matrix(name="W2"), ns.Vector(name="b")
v, v3, u = (
    ns.Matrix(2.0, rows=1, name="v"),
    ns.Matrix(2.0, rows=3, name="v3"),
    ns.Matrix(3.0, rows=1, name="u"),
)


def layers(x: Any) -> tuple[Any, Any]:
    h = ns.relu(W @ x + b)
    return h, ns.relu(W2 @ h)


READOUTS: dict[str, tuple[Callable, Callable, dict[str, float]]] = {
    "three rows": (
        lambda x: v3 @ layers(x)[1],
        lambda h, g: [{("v3", (a,)): g_t} for a in range(3) for g_t in g],
        {"v3": 2.0},
    ),
    "flatten": (
        lambda x: v @ ns.flatten(layers(x)[1]),
        lambda h, g: [{("v", (t,)): g_t for t, g_t in enumerate(g)}],
        {"v": 2.0 / 5},
    ),
    "flatten, three rows": (
        lambda x: v3 @ ns.flatten(layers(x)[1]),
        lambda h, g: [{("v3", (t, a)): g_t for t, g_t in enumerate(g)} for a in range(3)],
        {"v3": 2.0 / 5},
    ),
    "sum of two readouts": (
        lambda x: (v @ layers(x)[0]) + (u @ layers(x)[1]),
        lambda h, g: [{("v", ()): h_t, ("u", ()): g_t} for h_t, g_t in zip(h, g, strict=True)],
        {"v": 2.0, "u": 3.0},
    ),
    "sum with one readout": (
        lambda x: (v @ layers(x)[0]) + (v @ layers(x)[1]),
        lambda h, g: [{("v", ()): h_t + g_t} for h_t, g_t in zip(h, g, strict=True)],
        {"v": 2.0},
    ),
    "two outputs": (
        lambda x: (v @ layers(x)[0], u @ layers(x)[1]),
        lambda h, g: [*({("v", ()): h_t} for h_t in h), *({("u", ()): g_t} for g_t in g)],
        {"v": 2.0, "u": 3.0},
    ),
}


def covariance(p: Reads, q: Reads, variances: dict[str, float]) -> float:
    """What two outputs have in common: var h.h' / n, summed over the members that both are read by."""
    return sum(float(variances[key[0]] * p[key] @ q[key] / len(p[key])) for key in p if key in q)


# One readout of a flattened block has as many vectors as the block, so its inputs have one shape.
INPUTS = {"equal": TOKENS[:3], "mixed": SEQUENCES, "vectors": VECTORS}
READ = [
    (kind, shapes) for kind in READOUTS for shapes in INPUTS if shapes == "equal" or "flatten" not in kind
]


@pytest.mark.parametrize(("kind", "shapes"), READ)
def test_outputs_and_kernels_of_other_readouts(kind: str, shapes: str) -> None:
    fn, by_hand, variances = READOUTS[kind]
    net, inputs = ns.network(fn), INPUTS[shapes]
    w = sample_weights(net, inputs, WIDTH, 8, 0)
    reads: list[Reads] = []
    for x in inputs:
        h = plain.relu(np.atleast_2d(x) @ w["W"].T + w["b"])
        reads += by_hand(h, plain.relu(h @ w["W2"].T))
    outputs = [sum(w[name][i] @ h / np.sqrt(WIDTH) for (name, i), h in read.items()) for read in reads]
    kernel = [[covariance(p, q, variances) for q in reads] for p in reads]
    assert_close(ns.simulate(net, inputs, WIDTH, seed=8)[0], np.array(outputs))
    assert_close(ns.empirical_kernel(net, inputs, WIDTH, seed=8)[0], np.array(kernel))


def test_an_output_may_ignore_its_input() -> None:
    """A readout of an initial state, say: the same number for every input."""
    net = ns.network(lambda x: (u @ ns.relu(b), v @ ns.relu(W @ x + b)))
    w = sample_weights(net, VECTORS, WIDTH, 8, 0)
    h0 = plain.relu(w["b"])
    h = plain.relu(VECTORS @ w["W"].T + w["b"])
    outputs = np.array([[w["u"] @ h0, w["v"] @ h_i] for h_i in h]) / np.sqrt(WIDTH)
    kernel = 3 * np.kron(np.ones((3, 3)), [[h0 @ h0, 0], [0, 0]]) + 2 * np.kron(h @ h.T, [[0, 0], [0, 1]])
    assert_close(ns.empirical_kernel(net, VECTORS, WIDTH, seed=8)[0], kernel / WIDTH)
    assert_close(ns.simulate(net, VECTORS, WIDTH, seed=8)[0], outputs.ravel())


def test_kernel_of_the_flatten_readout_averages_over_pixels() -> None:
    net, alone, images = FLAT
    w = sample_weights(net, images, WIDTH, 5, 0)
    h = np.array([alone(w, x) for x in images])
    by_hand = np.array([[1.5 * np.mean(np.sum(p * q, axis=-1)) / WIDTH for q in h] for p in h])
    assert_close(ns.empirical_kernel(net, images, WIDTH, seed=5)[0], by_hand)


# Precision, seeds, widths


@pytest.mark.parametrize(("net", "alone", "inputs"), [*SETS.values(), FLAT], ids=[*SETS, "cnn, flatten"])
def test_float32_stays_float32(net, alone, inputs) -> None:
    double, single = (
        SimulationRun(net, inputs, WIDTH, np.float64),
        SimulationRun(net, inputs, WIDTH, np.float32),
    )
    weights = draw(double.program, double.widths, np.random.default_rng(2))
    halved = {name: w.astype(np.float32) for name, w in weights.items()}
    values = forward(single.program, halved, single.data, keep=True)
    assert {block.array.dtype for block in values.values()} == {np.dtype(np.float32)}
    for want, got in [
        (double.outputs(weights), single.outputs(halved)),
        (double.kernel(weights), single.kernel(halved)),
    ]:
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("run", [ns.simulate, ns.empirical_kernel])
def test_dtype_is_that_of_the_result(run) -> None:
    assert run(zoo.mlp(), VECTORS, 10, seed=0).dtype == np.float64
    assert run(zoo.mlp(), VECTORS, 10, seed=0, dtype=np.float32).dtype == np.float32


@pytest.mark.parametrize("run", [ns.simulate, ns.empirical_kernel])
@pytest.mark.parametrize("net", [zoo.gru(var_h0=0.5), zoo.transformer(heads=2)], ids=["gru", "transformer"])
def test_a_sample_depends_on_the_seed_and_its_number_alone(run, net) -> None:
    four = run(net, SEQUENCES, 16, samples=4, seed=9)
    np.testing.assert_array_equal(four, run(net, SEQUENCES, 16, samples=4, seed=np.random.SeedSequence(9)))
    np.testing.assert_array_equal(four[:2], run(net, SEQUENCES, 16, samples=2, seed=9))
    assert len({sample.tobytes() for sample in four}) == 4
    assert not np.array_equal(four, run(net, SEQUENCES, 16, samples=4, seed=10))
    unseeded = [run(net, SEQUENCES, 16) for _ in range(2)]
    assert not np.array_equal(*unseeded)


def test_one_seed_sequence_serves_twice() -> None:
    """A run leaves the seed sequence as it was."""
    seed = np.random.SeedSequence(4)
    first = ns.simulate(zoo.mlp(), VECTORS, 16, samples=2, seed=seed)
    np.testing.assert_array_equal(first, ns.simulate(zoo.mlp(), VECTORS, 16, samples=2, seed=seed))


@pytest.mark.parametrize("widths", [{"n1": 32, "n2": 48}, {"n1": 48, "n2": 1}])
def test_each_width_has_its_own_size(widths: dict[str, int]) -> None:
    net = zoo.mlp(2, var_v=2.0)
    w = sample_weights(net, VECTORS, widths, 6, 0)
    n1, n2 = widths["n1"], widths["n2"]
    shapes = {name: array.shape for name, array in w.items()}
    assert shapes == {"W1": (n1, 4), "b1": (n1,), "W2": (n2, n1), "b2": (n2,), "v": (n2,)}
    h = np.concatenate([plain.mlp(w, x, depth=2) for x in VECTORS])
    assert_close(ns.simulate(net, VECTORS, widths, seed=6)[0], h @ w["v"] / np.sqrt(n2))
    assert_close(ns.empirical_kernel(net, VECTORS, widths, seed=6)[0], 2 * h @ h.T / n2)


@pytest.mark.parametrize("widths", [{"n1": 32}, {"n1": 32, "n2": 48, "n3": 8}, {"n1": 32, "n2": 0}, 2.5])
def test_wrong_widths_are_refused(widths: Any) -> None:
    with pytest.raises(ns.NetsorError, match="width"):
        ns.simulate(zoo.mlp(2), VECTORS, widths)
