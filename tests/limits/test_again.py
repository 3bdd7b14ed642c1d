"""A kernel is recorded once for inputs of given shapes; later calls must not see anything of earlier ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import netsor as ns
from computations import recording
from limit_cases import CASES, SAMPLED, Case
from netsor import zoo
from netsor.errors import DataError, LimitError
from netsor.limits import assembly, tiling
from netsor.limits.assembly import Writer
from netsor.limits.computation import Computation
from netsor.limits.on_numpy import fused
from netsor.limits.on_numpy import recording as recording_module

RNG = np.random.default_rng(12)
EXACT = [case for case in CASES if case.name not in SAMPLED]
COMPILED = {"mlp, relu", "simple_rnn", "cnn, gap", "mlp, tanh"}  # compiling takes most of the time


def moved(x):
    """Another input of the same shape."""
    return tuple(map(moved, x)) if isinstance(x, tuple) else 0.5 * np.asarray(x)[::-1] + 0.1


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.name)
def test_other_values_of_the_same_shapes(case: Case) -> None:
    others = [moved(x) for x in case.inputs]
    wanted = ns.kernel(case.net)(others)
    K = ns.kernel(case.net)
    first = K(case.inputs)
    np.testing.assert_allclose(K(others), wanted, rtol=0, atol=1e-13 * np.abs(wanted).max())
    np.testing.assert_allclose(K(case.inputs), first, rtol=0, atol=1e-13 * np.abs(first).max())
    np.testing.assert_allclose(K(others), wanted, rtol=0, atol=1e-13 * np.abs(wanted).max())


@pytest.mark.parametrize("case", [c for c in CASES if c.name in SAMPLED], ids=lambda case: case.name)
def test_other_values_where_something_is_sampled(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same samples, so the same numbers to the last bit; and the network is read once."""
    others = [moved(x) for x in case.inputs]
    options: dict[str, Any] = {"points": 2**6, "repeats": 2}
    K = ns.kernel(case.net, **options)
    first = K(case.inputs)
    np.testing.assert_array_equal(K(others), ns.kernel(case.net, **options)(others))
    with monkeypatch.context() as patch:
        patch.delattr("netsor.limits.inputs.joint")
        np.testing.assert_array_equal(K(case.inputs), first)
    assert K.evaluate(others).plan == ns.kernel(case.net, **options).evaluate(others).plan


def test_other_variances() -> None:
    x, K = RNG.standard_normal((4, 3)), ns.kernel(zoo.mlp(2))
    for var in (1.0, 0.3, 2.5):
        fresh = ns.kernel(zoo.mlp(2))
        np.testing.assert_allclose(K(x, params={"W2": var}), fresh(x, params={"W2": var}), rtol=1e-14)
    np.testing.assert_allclose(K(x), ns.kernel(zoo.mlp(2))(x), rtol=1e-14)
    assert not np.allclose(K(x, params={"W2": 2.0}), K(x))


def test_two_sets_and_one_set_are_told_apart() -> None:
    x, K = RNG.standard_normal((4, 3)), ns.kernel(zoo.mlp(1))
    whole = K(x)
    for split in (1, 2, 3):
        for _ in range(2):
            np.testing.assert_allclose(K(x[:split], x[split:]), whole[:split, split:], rtol=1e-14)
    np.testing.assert_allclose(K(x), whole, rtol=1e-14)


def test_a_network_that_looks_at_values_is_read_for_every_call() -> None:
    W, v = ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        return v @ (ns.relu(W @ x) if np.asarray(x).sum() > 0 else ns.erf(W @ x))

    K, x = ns.kernel(net), np.array([[1.0, 2.0]])
    for z in (x, -x, x):
        np.testing.assert_allclose(K(z), ns.kernel(net)(z), rtol=1e-14)
    assert K(x) != K(-x)


def test_bad_values_are_refused_at_every_call() -> None:
    x, K = RNG.standard_normal((3, 2)), ns.kernel(zoo.mlp(1))
    K(x)
    with pytest.raises(DataError, match="input 1"):
        K(np.where(np.arange(3)[:, None] == 1, np.nan, x))
    with pytest.raises(LimitError, match="variance"):
        K(x, params={"W1": -1.0})


def test_a_limit_may_fail_at_a_later_call() -> None:
    K = ns.kernel(zoo.layernorm_mlp(1, var_b=0.0))
    x = RNG.standard_normal((3, 2))
    K(x)
    with pytest.raises(LimitError):
        K(0 * x)


@pytest.mark.parametrize(
    ("case", "compiled"),
    [(case, False) for case in EXACT]
    + [pytest.param(c, True, marks=[] if c.name in COMPILED else pytest.mark.slow) for c in EXACT],
    ids=lambda value: getattr(value, "name", value),
)
def test_float32_stays_float32(case: Case, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array of the computation is float32, and the errors are those of its rounding."""
    if compiled:
        pytest.importorskip("numba")
        monkeypatch.setattr(recording_module, "FEWEST_ENTRIES", 0)
        monkeypatch.setattr(fused, "LEAST_ELEMENTS", 2)
    wanted = ns.kernel(case.net)(case.inputs)
    K = ns.kernel(case.net, dtype=np.float32)
    made = recording(K, case.inputs)
    for prepared in (made.single, *(t.prepared for t in made.tiles)):
        assert not any(d == np.float64 for d in prepared.tape.dtypes)
    found = K(case.inputs)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def holds_data(kept: Computation) -> bool:
    """Whether a computation keeps the values of the inputs that it was made for."""
    return any(sum(array.strides) for array in kept.made.data.values())


def test_few_computations_are_kept() -> None:
    K = ns.kernel(zoo.mlp(1))
    for count in range(1, 16):
        K(RNG.standard_normal((count, 2)))
    assert len(K._computations) == 8
    assert all(not holds_data(kept) for kept in K._computations.values())


def test_a_workspace_that_is_too_small_is_refused_or_kept() -> None:
    x = RNG.standard_normal((40, 3))
    wanted = ns.kernel(zoo.mlp(2))(x)
    small = ns.kernel(zoo.mlp(2), memory=20_000)
    np.testing.assert_allclose(small(x), wanted, rtol=0, atol=1e-14)
    made = recording(small, x)
    assert max(t.prepared.peak() for t in made.tiles) * made.workers <= 20_000
    assert max(len(t.places) for t in made.tiles) > 1
    with pytest.raises(LimitError, match="workspace"):
        ns.kernel(zoo.mlp(2), memory=16)(x)
    with pytest.raises(LimitError, match="bytes"):
        ns.kernel(zoo.mlp(2), memory=0)


def test_single_inputs_are_computed_some_at_a_time() -> None:
    """A layer after pooling needs the covariances of all pairs of pixels of every image."""
    convolution, W, v = ns.Conv2d(3), ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def net(image):
        pooled = ns.mean(ns.relu(convolution(image)), axis=(0, 1))
        return v @ ns.relu(W @ pooled)

    x = RNG.standard_normal((9, 6, 5, 2))
    y = RNG.standard_normal((4, 5, 5, 2))
    pixels = 30
    allowed = 6 * 8 * pixels**2  # of all pairs of pixels, for three images at a time at most
    for inputs in (x, [*x[:5], *y, *x[5:]]):
        wanted = ns.kernel(net)(inputs)
        K = ns.kernel(net, memory=allowed)
        np.testing.assert_allclose(K(inputs), wanted, rtol=0, atol=1e-14)
        np.testing.assert_allclose(K(inputs), wanted, rtol=0, atol=1e-14)
        made = recording(K, inputs)
        assert made.single.peak() <= allowed
        assert max(x.shape[0] for x in made.single.tape.inputs.values()) <= 3


@pytest.mark.parametrize("elements", [1, 9, 10**6])
@pytest.mark.parametrize("strips", [1, 3, 20])
def test_every_tile_is_written_once(elements: int, strips: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles at the end overlap those before them; what they have in common is not written again."""
    counts = np.zeros((1, 7, 7))
    write = Writer._numbers

    def counted(self: Writer, out: np.ndarray, block: np.ndarray, place: Any) -> None:
        once = np.zeros_like(out)
        write(self, once, np.ones_like(block), place)
        counts[...] += once
        write(self, out, block, place)

    monkeypatch.setattr(recording_module, "TILE", elements)
    monkeypatch.setattr(tiling, "STRIP", 1)
    monkeypatch.setattr(tiling, "STRIPS", strips)
    monkeypatch.setattr(Writer, "_numbers", counted)
    x = RNG.standard_normal((7, 3))
    found = ns.kernel(zoo.mlp(1))(x)
    np.testing.assert_array_equal(counts, 1)
    np.testing.assert_array_equal(found, found.T)
    monkeypatch.undo()
    np.testing.assert_allclose(found, ns.kernel(zoo.mlp(1))(x), rtol=1e-13)


def test_every_block_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where an input has several outputs."""
    W, v, w = ns.Matrix(), ns.Matrix(rows=1), ns.Matrix(rows=1)

    @ns.network
    def two_outputs(x):
        h = W @ x
        return v @ ns.relu(h), w @ ns.erf(h)

    counts = np.zeros((14, 14))
    write = assembly._write

    def counted(out: np.ndarray, lines: np.ndarray, columns: np.ndarray, block: np.ndarray) -> None:
        counts[np.ix_(lines.reshape(-1), columns.reshape(-1))] += 1
        write(out, lines, columns, block)

    monkeypatch.setattr(recording_module, "TILE", 9)
    monkeypatch.setattr(assembly, "_write", counted)
    ns.kernel(two_outputs)(RNG.standard_normal((7, 3)))
    inputs = np.arange(14) // 2
    off = ~np.equal.outer(inputs // 3, inputs // 3)
    assert (counts[off] == 1).all()
    assert set(counts[~off]) == {1, 2}  # on the diagonal, and its mirror image


def test_a_residual_layer_adds_the_same_number_of_steps_at_any_depth() -> None:
    x = RNG.standard_normal((3, 2))

    def steps(depth: int) -> int:
        return sum(len(t.prepared.order) for t in recording(ns.kernel(zoo.resnet(depth)), x).tiles)

    counts = [steps(depth) for depth in (4, 6, 8, 10)]
    assert len(set(np.diff(counts))) == 1
