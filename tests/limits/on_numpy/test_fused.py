"""Compiled loops give what NumPy gives, and are not used where they do not pay."""

from __future__ import annotations

import numpy as np
import pytest

import computations
import netsor as ns
from limit_cases import CASES, SAMPLED, Case
from netsor import zoo
from netsor.limits.kernel_tiles import tile_sizes
from netsor.limits.on_numpy import compiled_loops, fused, recording
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.tape.tape import Tape

pytest.importorskip("numba")
RNG = np.random.default_rng(4)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "FEWEST_ENTRIES", 0)
    monkeypatch.setattr(fused, "LEAST_ELEMENTS", 2)


@pytest.mark.parametrize("case", [c for c in CASES if c.name not in SAMPLED], ids=lambda case: case.name)
def test_every_exact_network(case: Case, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ns.kernel(case.net)([*case.inputs, *case.inputs[:1]])
    monkeypatch.setattr(recording, "FEWEST_ENTRIES", 10**9)
    wanted = ns.kernel(case.net)([*case.inputs, *case.inputs[:1]])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14 * np.abs(wanted).max())


PHIS = [
    ns.relu,
    ns.abs,
    ns.sign,
    ns.step,
    ns.erf,
    ns.erf_gate,
    ns.gelu,
    ns.leaky_relu.using(slope=0.2),
    ns.sin,
]


@pytest.mark.parametrize("phi", PHIS, ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_correlations_of_one_and_zero_inputs(phi, scale: float, always: None, monkeypatch) -> None:
    x = scale * RNG.standard_normal((4, 3))
    x = np.concatenate([x, x[:1], -x[:1], 0 * x[:1]])
    net = zoo.mlp(2, phi, var_b=[0.0, 0.5])
    found = ns.kernel(net)(x)
    monkeypatch.setattr(recording, "FEWEST_ENTRIES", 10**9)
    wanted = ns.kernel(net)(x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14 * np.abs(wanted).max())


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_images_with_few_channels(channels: int, dtype: type, always: None, monkeypatch) -> None:
    """Their products are added one by one; inputs that are equal, opposite and zero among them."""
    x = RNG.standard_normal((3, 4, 5, channels)).astype(dtype)
    x = np.concatenate([x, x[:1], -x[:1], 0 * x[:1]])
    net = zoo.cnn(2, readout="flatten", var_b=0.2)
    found, across = ns.kernel(net, dtype=dtype)(x), ns.kernel(net, dtype=dtype)(x[:2], x)
    monkeypatch.setattr(recording, "FEWEST_ENTRIES", 10**9)
    wanted = ns.kernel(net, dtype=dtype)(x)
    error = 45 * np.finfo(dtype).eps * wanted.max()  # as 1e-14 for numbers of 64 bits
    np.testing.assert_allclose(found, wanted, rtol=0, atol=error)
    np.testing.assert_allclose(across, wanted[:2], rtol=0, atol=error)


def test_the_angle() -> None:
    """Against the library, on both axes and in all quadrants, to two units in the last place."""
    values = np.concatenate([RNG.standard_normal(200), [0.0, 1.0, -1.0, 1e-300, 1e300, 0.41421356237309503]])
    atan2 = compiled_loops.make_atan2(np.float64)
    found = np.array([[atan2(y, x) for x in values] for y in values])
    wanted = np.arctan2(values[:, None], values)
    np.testing.assert_allclose(found, wanted, rtol=5e-16, atol=0)


def test_equal_layers_are_compiled_once(always: None) -> None:
    x = RNG.standard_normal((5, 3))
    ns.kernel(zoo.mlp(3, ns.gelu, var_b=0.3))(x)
    before = compiled_loops.compiled_loop.cache_info().currsize
    ns.kernel(zoo.mlp(6, ns.gelu, var_b=0.3))(x)
    assert compiled_loops.compiled_loop.cache_info().currsize == before


@pytest.mark.parametrize("depth", [1, 3])
def test_what_stands_around_the_loops(depth: int, always: None) -> None:
    """Each layer is a loop; before the first stand the multiples of data."""
    K = ns.kernel(zoo.mlp(depth, ns.relu, var_w=1.7, var_b=0.3))
    prepared = computations.recording(K, RNG.standard_normal((6, 3))).tiles[0].prepared
    alone = [k for k in prepared.order if isinstance(k, int) and k not in prepared.tape.leaves]
    assert len(alone) == 2


@pytest.mark.parametrize("gamma", [0.3, 5.0])
def test_waves_of_known_phase(gamma: float, always: None) -> None:
    """One exponential of the squared distance, also where it is far below the rounding of 1."""
    x = np.concatenate([RNG.standard_normal((6, 3)), np.full((1, 3), 4.0), np.full((1, 3), -4.0)])
    U, v = ns.Matrix(1.2), ns.Matrix(rows=1)
    found = ns.kernel(ns.network(lambda x: v @ ns.rbf(U @ x, gamma)))(x)
    squares = 1.2 * np.sum((x[:, None] - x) ** 2, axis=-1) / 3
    np.testing.assert_allclose(found, np.exp(-gamma * squares), rtol=1e-13, atol=0)


def test_a_loop_with_several_outputs_and_axes() -> None:
    """Left and right quantities of a block with an index: four axes, of which each side has two."""
    tape = Tape(compiled=True)
    left, right = RNG.standard_normal((1, 5, 1, 6, 1)), RNG.standard_normal((1, 1, 7, 1, 8))
    a = tape.leaf("a", left.shape, left.dtype, (), lambda _: left)
    b = tape.leaf("b", right.shape, right.dtype, (), lambda _: right)
    c = a * b + 2.0
    d = tape.namespace.where(c > a, tape.namespace.sqrt(tape.namespace.abs(c)), b)
    e = d - c
    prepared = Prepared(tape, [d, e])
    assert sum(isinstance(part, fused.Fused) for part in prepared.order) == 1
    found = dict(prepared.run({}))
    c_ = left * right + 2.0
    d_ = np.where(c_ > left, np.sqrt(np.abs(c_)), right)
    np.testing.assert_allclose(found[d.step], d_, rtol=1e-15)
    np.testing.assert_allclose(found[e.step], d_ - c_, rtol=0, atol=1e-14)


def test_small_work_is_not_compiled() -> None:
    before = compiled_loops.compiled_loop.cache_info().currsize
    ns.kernel(zoo.mlp(2, ns.relu, var_b=0.7))(RNG.standard_normal((20, 3)))
    assert compiled_loops.compiled_loop.cache_info().currsize == before


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_exp_of_loops(dtype) -> None:
    """Against NumPy: to the last places in the whole range, and what is beyond it."""
    body = "        {0}[i] = {1}(a[i])\n"
    source = "def loop(one, two, a):\n    for i in range(a.shape[0]):\n"
    loop = compiled_loops.compiled_loop(
        source + body.format("one", "exp") + body.format("two", "expm1"), np.dtype(dtype)
    )
    rng, most = np.random.default_rng(0), 87 if dtype == "float32" else 708
    x = np.concatenate([rng.uniform(-most, most, 20_000), rng.uniform(-1, 1, 20_000), [0, 1e-30, -1e-20]])
    x, eps = x.astype(dtype), np.finfo(dtype).eps
    found = np.empty_like(x), np.empty_like(x)
    loop(*found, x)
    for value, function in zip(found, (np.exp, np.expm1), strict=True):
        want = function(x.astype(np.longdouble))
        assert np.all(np.abs(value - want) <= 2 * eps * np.abs(want))
    ends = np.array([np.inf, -np.inf, np.nan, 2.0 * most, -2.0 * most], dtype)
    found = np.empty_like(ends), np.empty_like(ends)
    loop(*found, ends)
    np.testing.assert_array_equal(found[0], [np.inf, 0, np.nan, np.inf, 0])
    np.testing.assert_array_equal(found[1], [np.inf, -1, np.nan, np.inf, -1])


def test_repeated_expressions_are_computed_once() -> None:
    body = ["t0 = x0 * x1", "t1_0 = x0 * x1", "t1_1 = sqrt(t1_0)", "t2 = t1_1 * number(1.0)", "out0[i0] = t2"]
    assert fused._simplified(tuple(body)) == ["t0 = x0 * x1", "t1_1 = sqrt(t0)", "out0[i0] = t1_1"]


def test_many_pairs_for_each_input_leave_single_inputs_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values are the same, also of a part that is cut as the whole is."""
    pytest.importorskip("numba")
    monkeypatch.setattr(recording, "FEWEST_ENTRIES", 0)
    x = np.random.default_rng(0).standard_normal((40, 3))
    K = ns.kernel(ns.zoo.mlp(3))
    monkeypatch.setattr(recording, "_pays_for_singles", lambda *_: True)
    compiled, in_numpy = K(x), ns.kernel(ns.zoo.mlp(3))
    monkeypatch.setattr(recording, "_pays_for_singles", lambda *_: False)
    np.testing.assert_allclose(in_numpy(x), compiled, rtol=1e-13)
    cut = tile_sizes(in_numpy, x, None, {})
    assert cut is not None
    assert cut.compiled
    assert not cut.singles
