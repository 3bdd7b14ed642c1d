"""Large kernels tile by tile: every way to cut the pairs gives the same matrix, in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

import netsor as ns
from computations import recording
from effort import peak
from limit_cases import CASES, SAMPLED, SEQUENCES, VECTORS, Case
from netsor import zoo
from netsor.limits import computation
from netsor.limits.kernel_tiles import tile, tile_sizes
from netsor.limits.on_numpy import kernel as on_numpy
from netsor.limits.on_numpy import recording as recording_module
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.tape.tape import Tape
from netsor.limits.tape.traced import Traced

EXACT = [case for case in CASES if case.name not in SAMPLED]
RNG = np.random.default_rng(8)


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.name)
def test_tiles_of_one_pair(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one input per side every block goes through a tile on or off the diagonal."""
    inputs = [*case.inputs, *case.inputs[:1]]
    wanted = ns.kernel(case.net)(inputs)
    monkeypatch.setattr(recording_module, "TILE", 1)
    found = ns.kernel(case.net)(inputs)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-13 * np.abs(wanted).max())
    np.testing.assert_array_equal(found, found.T)
    across = ns.kernel(case.net)(inputs[1:], inputs[:2])
    rows = len(ns.kernel(case.net)(inputs[:1]))
    if len({np.shape(x) for x in case.inputs if not isinstance(x, tuple)}) == 1:
        np.testing.assert_allclose(across, wanted[rows:, : 2 * rows], rtol=0, atol=1e-13 * wanted.max())


@pytest.mark.parametrize("elements", [4, 9, 25, 10**6])
@pytest.mark.parametrize("phi", [ns.relu, ns.tanh], ids=["relu", "tanh"])
def test_tiles_that_overlap(elements: int, phi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven inputs in tiles of two, three and five: the last tile shares inputs with the one before."""
    x = RNG.standard_normal((7, 3))
    single = ns.kernel(zoo.mlp(2, phi))
    wanted = np.array([[single([a, b])[0, 1] for b in x] for a in x])
    monkeypatch.setattr(recording_module, "TILE", elements)
    found = ns.kernel(zoo.mlp(2, phi)).evaluate(x)
    np.testing.assert_allclose(found.value, wanted, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(found.value, found.value.T)
    assert np.all(found.error < 1e-11)
    np.testing.assert_allclose(single(x[:3], x), wanted[:3], rtol=0, atol=1e-13)


def test_sequences_of_different_lengths_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [SEQUENCES[0], SEQUENCES[1][:1], SEQUENCES[2], SEQUENCES[3][:1], SEQUENCES[3][:2]]
    wanted = ns.kernel(zoo.simple_rnn())(inputs)
    monkeypatch.setattr(recording_module, "TILE", 1)
    np.testing.assert_allclose(ns.kernel(zoo.simple_rnn())(inputs), wanted, rtol=0, atol=1e-14)


def test_one_core_and_several_agree() -> None:
    x = RNG.standard_normal((400, 3))
    made = recording(ns.kernel(zoo.mlp(2)), x)
    assert sum(len(t.places) for t in made.tiles) > 1
    one, three = (
        on_numpy.run(replace(made, workers=workers), {"x1": x}, np.float64, 1, lambda: None)
        for workers in (1, 3)
    )
    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.name)
def test_the_diagonal_alone(case: Case) -> None:
    kernel = ns.kernel(case.net)
    wanted = np.diagonal(kernel(case.inputs))
    np.testing.assert_allclose(kernel.diag(case.inputs), wanted, rtol=0, atol=1e-13 * wanted.max())


def peak_bytes(length: int) -> int:
    """For the kernel of the last states of 400 sequences."""
    x = RNG.standard_normal((400, length, 2))
    W, U, v = ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def last_state(tokens):
        state = 0
        for token in tokens:
            state = ns.erf(W @ state + U @ token)
        return v @ state

    kernel = ns.kernel(last_state)
    kernel(x[:2])
    return peak(lambda: kernel(x))


def test_memory_does_not_grow_with_the_length_of_a_sequence() -> None:
    """Blocks are dropped after their last use; the record of the steps, and variances, are all that grows."""
    short, long = peak_bytes(8), peak_bytes(40)
    blocks = 32 * 400**2 * 8  # one block of all pairs for each further token
    assert long - short < 0.2 * blocks


def test_a_tape_runs_what_its_outputs_need() -> None:
    tape, calls = Tape(), []

    def noted(name: str):
        def fn(x: np.ndarray) -> np.ndarray:
            calls.append(name)
            return x + 1

        return fn

    x = tape.leaf("x", (2, 2), np.float64, (), lambda spans: np.full((2, 2), float(spans[0, 2][0])))
    used = tape.elementwise(noted("used"), x) * 2
    tape.elementwise(noted("unused"), x)
    assert isinstance(used, Traced)
    assert used.shape == (2, 2)
    ((_, value),) = Prepared(tape, [used]).run({}, {(0, 2): (5, 7)})
    np.testing.assert_array_equal(value, np.full((2, 2), 12.0))
    assert calls == ["used"]
    with pytest.raises(TypeError, match="no values"):
        bool(used)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_or_error_ends_all_threads(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever thread it meets, no further tile begins. There are some 1,300 tiles."""
    begun, x, honest = [], RNG.standard_normal((200, 3)), computation.bar

    @contextmanager
    def interrupted(*_):
        def advance() -> None:
            begun.append(1)
            raise error

        yield advance

    monkeypatch.setattr(recording_module, "TILE", 16)
    monkeypatch.setattr(recording_module, "LITTLE_WORK", 0)
    monkeypatch.setattr(recording_module, "FEWEST_FOR_THREADS", 0)
    monkeypatch.setattr(recording_module, "cores", lambda: 3)
    K = ns.kernel(zoo.mlp(2))
    K(x)
    before = threading.active_count()  # those that help stay, and serve the next kernel
    monkeypatch.setattr(computation, "bar", interrupted)
    with pytest.raises(error):
        K(x)
    assert len(begun) <= 3
    monkeypatch.setattr(computation, "bar", honest)
    assert np.isfinite(K(x)).all()
    assert threading.active_count() == before


def test_kernels_share_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels at the same time have the same helpers, and all are finished."""
    monkeypatch.setattr(recording_module, "TILE", 16)
    monkeypatch.setattr(recording_module, "LITTLE_WORK", 0)
    monkeypatch.setattr(recording_module, "FEWEST_FOR_THREADS", 0)
    monkeypatch.setattr(recording_module, "cores", lambda: 3)
    x = RNG.standard_normal((60, 3))
    wanted = ns.kernel(zoo.mlp(2))(x)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: ns.kernel(zoo.mlp(2))(x), range(8)):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_has_helpers_of_its_own() -> None:
    """In a process without the threads of other libraries, which may not be forked."""
    code = """
import os
from netsor.threads import helpers
mine = helpers(1)
assert mine.submit(lambda: 1).result() == 1
child = os.fork()
if child == 0:
    done = helpers(1) is not mine and helpers(1).submit(lambda: 1).result(timeout=60) == 1
    os._exit(0 if done else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=120).returncode == 0


def test_a_failure_in_a_tile_is_reported() -> None:
    """An exception inside a worker is the caller's: here a user's function that fails far out."""

    def picky(t: np.ndarray) -> np.ndarray:
        return np.where(np.abs(t) > 3.0, np.nan, t)

    W, v = ns.Matrix(), ns.Matrix(rows=1)
    net = ns.network(lambda x: v @ ns.nonlin(picky, W @ x))
    with pytest.raises(ns.NetsorError):
        ns.kernel(net)(VECTORS)


@pytest.mark.parametrize("net", [zoo.mlp(3), zoo.mlp(2, ns.erf), zoo.resnet(2), zoo.simple_rnn()], ids=str)
def test_a_part_has_the_numbers_of_the_whole(net: ns.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where loops are compiled for the whole, and the part alone is too small for them."""
    monkeypatch.setattr(recording_module, "TILE", 900)
    monkeypatch.setattr(recording_module, "FEWEST_FOR_THREADS", 0)
    monkeypatch.setattr(recording_module, "FEWEST_ENTRIES", 100)
    x = RNG.standard_normal((1100, 3)) if net.name != "simple_rnn" else RNG.standard_normal((200, 3, 2))
    K = ns.kernel(net)
    whole, cut = K(x), tile_sizes(K, x, None, {})
    rows = len(whole) // len(x)
    assert cut is not None
    a, b, c = 2 * cut.rows, 4 * cut.rows, 7 * cut.rows
    parts = tile(K, x[a:b], x[b:c], cut, {}), tile(K, x[a:b], None, cut, {})
    np.testing.assert_array_equal(parts[0].value, whole[a * rows : b * rows, b * rows : c * rows])
    np.testing.assert_array_equal(parts[1].value, whole[a * rows : b * rows, a * rows : b * rows])
    ends = tile(K, x[a:b], x[-cut.rows :], cut, {}).value
    np.testing.assert_array_equal(ends, whole[a * rows : b * rows, -cut.rows * rows :])


@pytest.mark.parametrize("rule", ["SMALL_STEPS", "LITTLE_WORK"])
def test_light_tiles_are_larger(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """A convolution with few results, many steps of which are small: the same numbers in fewer calls."""
    if rule == "LITTLE_WORK":
        pytest.importorskip("numba")  # it is for compiled loops
    net = zoo.cnn(2, padding="valid")
    images = np.random.default_rng(0).standard_normal((14, 10, 10, 2))
    for name in ("SMALL_STEPS", "LITTLE_WORK"):
        monkeypatch.setattr(recording_module, name, 0)
    small = ns.kernel(net)
    wanted, count = small(images), small.plan(images).tiles
    monkeypatch.undo()
    monkeypatch.setattr(recording_module, "SMALL_STEPS" if rule == "LITTLE_WORK" else "LITTLE_WORK", 0)
    large = ns.kernel(net)
    np.testing.assert_allclose(large(images), wanted, rtol=1e-12)
    assert count > recording_module.FEW_TILES
    assert large.plan(images).tiles < count / 2
    assert ns.kernel(net, memory=2**19).plan(images).bytes <= 2**19
