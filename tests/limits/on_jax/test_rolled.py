"""Kernels under JAX as a few loops: the same numbers and slopes, and programs that do not grow with depth."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import netsor as ns
from limit_cases import CASES, SAMPLED, Case
from netsor import zoo
from netsor.build.network import Network
from netsor.limits.on_jax import kernel as on_jax
from netsor.limits.tiling import side_of, tiles

jax = pytest.importorskip("jax")

UNTRACED = SAMPLED | {"gru, random state", "batchnorm_mlp", "batchnorm_mlp, deep", "mlp, user"}
TRACED = [case for case in CASES if case.name not in UNTRACED]
# under jit a Hermite series has a fixed number of terms and nodes
FIXED_SERIES = {"mlp, tanh": 1e-10, "mlp, silu": 1e-10}
# one of each kind: compiling takes most of the time
QUICK = {
    *("mlp, relu", "mlp, tanh", "simple_rnn", "cnn, gap", "cnn, mean pool", "resnet"),
    *("graph_conv, mean", "layernorm_mlp", "transformer, tied", "transformer, two heads, untied"),
}
slow = pytest.mark.slow
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def in_double_precision():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def as_jax(inputs: list[Any]) -> list[Any]:
    asarray = jax.numpy.asarray
    return [tuple(map(asarray, x)) if isinstance(x, tuple) else asarray(x) for x in inputs]


def assert_close(found: Any, wanted: np.ndarray, tol: float = 1e-12) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tol * np.abs(wanted).max())


def equations(jaxpr: Any) -> int:
    """The number of equations of a program, those of inner programs included."""
    inner = [
        getattr(part, "jaxpr", part)
        for equation in jaxpr.eqns
        for value in equation.params.values()
        for part in (value if isinstance(value, tuple | list) else [value])
        if hasattr(part, "eqns") or hasattr(getattr(part, "jaxpr", None), "eqns")
    ]
    return len(jaxpr.eqns) + sum(map(equations, inner))


def program_size(net: Network, x: np.ndarray) -> int:
    return equations(jax.make_jaxpr(ns.kernel(net))(jax.numpy.asarray(x)).jaxpr)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=() if case.name in QUICK else slow) for case in TRACED]
)
def test_values_of_the_zoo(case: Case) -> None:
    kernel = ns.kernel(case.net)
    found = jax.jit(kernel)(as_jax(case.inputs))
    assert_close(found, kernel(case.inputs), FIXED_SERIES.get(case.name, 1e-12))


LONG = {
    "mlp": (zoo.mlp(9, var_w=1.7, var_b=0.2), RNG.standard_normal((3, 4))),
    "mlp of variances": (
        zoo.mlp(9, var_w=list(np.linspace(1.0, 2.0, 9)), var_b=list(np.linspace(0.0, 0.4, 9))),
        RNG.standard_normal((3, 4)),
    ),
    "mlp, tanh": (zoo.mlp(8, ns.tanh), RNG.standard_normal((2, 4))),
    "rnn": (zoo.simple_rnn(var_w=1.3, var_b=0.2), RNG.standard_normal((2, 9, 3))),
    "rnn of one sequence": (zoo.simple_rnn(), RNG.standard_normal((1, 9, 3))),
    "cnn": (zoo.cnn(8), RNG.standard_normal((2, 3, 3, 2))),
    "layernorm": (zoo.layernorm_mlp(8), RNG.standard_normal((2, 4))),
    "transformer": (zoo.transformer(depth=6), RNG.standard_normal((2, 3, 3))),
    "resnet": (zoo.resnet(5, var_w=0.5), RNG.standard_normal((2, 3))),
    "densenet": (zoo.densenet(7), RNG.standard_normal((2, 3))),
}


@pytest.mark.parametrize("name", LONG)
def test_values_of_deep_and_long_networks(name: str) -> None:
    net, x = LONG[name]
    kernel = ns.kernel(net)
    tol = FIXED_SERIES.get(name, 1e-12)
    assert_close(jax.jit(kernel)(jax.numpy.asarray(x)), kernel(x), tol)


@pytest.mark.parametrize("name", ["mlp", "rnn"])
def test_two_sets_of_inputs(name: str) -> None:
    net, x = LONG[name]
    kernel, y = ns.kernel(net), x[:1] + 0.5
    assert_close(jax.jit(kernel)(jax.numpy.asarray(x), jax.numpy.asarray(y)), kernel(x, y))


@pytest.mark.parametrize("equal", [pytest.param(False, marks=pytest.mark.slow), True])
def test_sequences_of_several_lengths(equal: bool) -> None:
    """Also with repeated tokens and a sequence of zeros."""
    kernel = ns.kernel(zoo.simple_rnn(var_b=0.3))
    inputs = [RNG.standard_normal((t, 3)) for t in (7, 5, 7, 1, 9)]
    if equal:
        inputs[0][:] = inputs[0][0]
        inputs[2][:] = 0.0
    assert_close(jax.jit(kernel)(as_jax(inputs)), kernel(inputs))


def test_two_sets_of_sequences_of_several_lengths() -> None:
    kernel, inputs = ns.kernel(zoo.simple_rnn()), [RNG.standard_normal((t, 3)) for t in (7, 3, 7, 1)]
    assert_close(jax.jit(kernel)(as_jax(inputs[:2]), as_jax(inputs[1:])), kernel(inputs[:2], inputs[1:]))


@pytest.mark.parametrize(
    "name",
    [pytest.param("mlp", marks=slow), "mlp of variances", "rnn", pytest.param("mlp, tanh", marks=slow)],
)
def test_slopes(name: str) -> None:
    """jax.grad against central differences, in the inputs along a line and in all variances."""
    net, x = LONG[name]
    kernel, step = ns.kernel(net), 1e-5
    weight = np.cos(np.arange(kernel(x).size)).reshape(kernel(x).shape)
    way = RNG.standard_normal(x.shape)

    def total(move: Any, params: Any, xp: Any) -> Any:
        return xp.sum(kernel(xp.asarray(x) + move * way, params=params) * weight)

    params = kernel.params
    found = jax.jit(jax.grad(lambda move, p: total(move, p, jax.numpy), argnums=(0, 1)))(0.0, params)
    slope = (total(step, params, np) - total(-step, params, np)) / (2 * step)
    assert float(found[0]) == pytest.approx(slope, rel=1e-6, abs=1e-7)
    for key in list(params)[:3]:
        up, down = (total(0.0, {**params, key: params[key] + h}, np) for h in (step, -step))
        assert float(found[1][key]) == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-7)


def test_slopes_with_repeated_and_zero_tokens_are_finite() -> None:
    kernel, x = ns.kernel(zoo.simple_rnn(var_b=0.3)), RNG.standard_normal((2, 8, 3))
    x[0, 3:] = x[0, 2]
    x[1, 4:6] = 0.0
    slopes = jax.jit(jax.grad(lambda x: jax.numpy.sum(kernel(x))))(jax.numpy.asarray(x))
    assert np.isfinite(slopes).all()


def test_vmap_over_sets_of_inputs() -> None:
    kernel, x = ns.kernel(zoo.simple_rnn()), RNG.standard_normal((2, 2, 8, 3))
    found = jax.vmap(kernel)(jax.numpy.asarray(x))
    assert_close(found, np.stack([kernel(part) for part in x]))


def test_programs_do_not_grow_with_depth_and_length() -> None:
    x = RNG.standard_normal((2, 4))
    for phi in (ns.relu, ns.tanh):
        assert program_size(zoo.mlp(50, phi), x) <= program_size(zoo.mlp(12, phi), x) + 8
    sequences = RNG.standard_normal((2, 24, 3))
    short = program_size(zoo.simple_rnn(), sequences[:, :12])
    assert program_size(zoo.simple_rnn(), sequences) <= short + 8


def test_variances_that_differ_from_layer_to_layer_are_rolled() -> None:
    def size(depth: int) -> int:
        variances = list(np.linspace(1.0, 2.0, depth))
        return program_size(zoo.mlp(depth, var_w=variances, var_b=variances), RNG.standard_normal((2, 4)))

    assert size(24) <= size(12) + 8


@pytest.mark.parametrize(
    ("name", "double"),
    [
        *((name, False) for name in ("mlp", "mlp, tanh", "rnn", "layernorm")),
        ("mlp", True),
        *(
            pytest.param(name, True, marks=slow)
            for name in ("mlp of variances", "mlp, tanh", "rnn", "layernorm")
        ),
    ],
)
def test_single_precision_stays_single(name: str, double: bool) -> None:
    jax.config.update("jax_enable_x64", double)
    net, x = LONG[name]
    kernel = ns.kernel(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = jax.jit(kernel)(jax.numpy.asarray(x, dtype=np.float32))
    assert found.dtype == np.float32
    assert_close(found, kernel(x), 1e-4)


TILED = {
    "mlp": (zoo.mlp(2, var_w=1.7), RNG.standard_normal((5, 4))),
    "cnn": (zoo.cnn(2, kernel=2), RNG.standard_normal((5, 3, 3, 2))),
    "rnn": (zoo.simple_rnn(), RNG.standard_normal((5, 3, 2))),  # several outputs for each input
}


@pytest.fixture
def in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of two inputs; a set of five has a last tile that reaches back."""
    monkeypatch.setattr(on_jax, "LARGE", 1)
    monkeypatch.setattr(on_jax, "side_of", lambda _: 2)


@pytest.mark.usefixtures("in_tiles")
@pytest.mark.parametrize("name", TILED)
def test_tiles_of_large_kernels(name: str) -> None:
    net, x = TILED[name]
    kernel, array = ns.kernel(net), jax.numpy.asarray(x)
    found = np.asarray(jax.jit(kernel)(array))
    assert_close(found, kernel(x))
    assert np.array_equal(found, found.T)
    assert_close(jax.jit(kernel)(array[:3], array[1:]), kernel(x[:3], x[1:]))


@pytest.mark.slow
@pytest.mark.usefixtures("in_tiles")
def test_slopes_and_batches_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = TILED["cnn"]
    kernel, array = ns.kernel(net), jax.numpy.asarray(x)

    def total(x: Any, var: Any) -> Any:
        return jax.numpy.sum(kernel(x, params={"W1": var}) ** 2)

    slopes = jax.jit(jax.grad(total, (0, 1)))(array, 1.3)
    many = jax.vmap(lambda scale: kernel(scale * array))(jax.numpy.asarray([1.0, 2.0]))
    monkeypatch.setattr(on_jax, "LARGE", 2**60)
    for found, wanted in zip(slopes, jax.jit(jax.grad(total, (0, 1)))(array, 1.3), strict=True):
        assert_close(found, np.asarray(wanted), 1e-11)
    assert_close(many[1], kernel(2.0 * x))


def test_how_many_inputs_make_a_tile() -> None:
    """As many as fit in a tile, evenly; small kernels have none."""
    all_inputs = (0, 2000)
    assert {place.counts for place in tiles(all_inputs, all_inputs, side_of(1), False)} == {(250, 250)}
    assert side_of(2**17) == 1
    for count, tiled in ((2000, True), (30, False), (1, False)):
        found = jax.make_jaxpr(ns.kernel(zoo.mlp(1)))(jax.numpy.ones((count, 1))).jaxpr
        assert any(equation.primitive.name == "scan" for equation in found.eqns) == tiled


def test_nine_lengths_under_jit() -> None:
    """A loop may read fewer values than it has members; the kernel of nine lengths raised a ValueError."""
    rng = np.random.default_rng(0)
    sequences = [rng.standard_normal((length, 2)) for length in range(1, 10)]
    K = ns.kernel(zoo.simple_rnn())
    assert_close(jax.jit(lambda params: K(sequences, params=params))(dict(K.params)), K(sequences))
