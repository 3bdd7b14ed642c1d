"""Sums over the windows of convolutions, by slices and in one pass, against exact sums."""

from __future__ import annotations

from math import fsum
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.lang.index_maps import window_positions
from netsor.limits.on_numpy import compiled_loops as loops
from netsor.limits.on_numpy import fused, recording
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.tape.tape import Tape
from netsor.limits.window_sums import Window, sum_over_window, sum_over_windows

RNG = np.random.default_rng(3)


def positive(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """Numbers of all magnitudes."""
    most = np.log10(np.finfo(dtype).max) - 8
    return (10.0 ** RNG.uniform(-most, most, shape)).astype(dtype)


def exact(block: np.ndarray, windows: list[Window]) -> np.ndarray:
    """Entry by entry, each sum rounded once."""
    spots = [window_positions(w.size, w.kernel, w.stride, w.dilation, w.padding) for w in windows]
    moved = np.moveaxis(block, [w.axis for w in windows], range(len(windows)))
    out = np.empty((*(w.count for w in windows), *moved.shape[len(windows) :]), block.dtype)
    for o in np.ndindex(*out.shape[: len(windows)]):
        terms = []
        for j in range(windows[0].kernel):
            if all(exists[j, k] for (_, exists), k in zip(spots, o, strict=True)):
                terms.append(moved[tuple(where[j, k] for (where, _), k in zip(spots, o, strict=True))])
        for rest in np.ndindex(*out.shape[len(windows) :]):
            out[(*o, *rest)] = fsum(float(term[rest]) for term in terms)
    return np.moveaxis(out, range(len(windows)), [w.axis for w in windows])


def recorded(block: np.ndarray, windows: list[Window], compiled: bool) -> np.ndarray:
    tape = Tape(compiled, block.dtype)
    made = sum_over_window(tape.input("x", block.shape, block.dtype), windows)
    return dict(Prepared(tape, [made]).run({"x": block}))[made.step]


def in_jax(block: np.ndarray, windows: list[Window]) -> np.ndarray:
    jax = pytest.importorskip("jax")
    with jax.enable_x64() if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        return np.asarray(jax.jit(lambda x: sum_over_window(x, windows))(jax.numpy.asarray(block)))


def compiled(block: np.ndarray, windows: list[Window]) -> np.ndarray:
    if not loops.is_available():
        pytest.skip("needs numba")
    return recorded(block, windows, True)


WAYS = {
    "numpy": sum_over_window,
    "recorded": lambda block, windows: recorded(block, windows, False),
    "compiled": compiled,
    "jax": in_jax,
}
KERNELS = [
    *((k, 1, 1, padding) for k in (1, 2, 3, 8, 20) for padding in ("same", "circular")),
    *((k, 1, 1, "valid") for k in (1, 2, 3, 7)),
    *((k, 2, 1, padding) for k in (2, 3, 8) for padding in ("same", "circular", "valid")),
    *((k, 1, 2, padding) for k in (2, 3, 4) for padding in ("same", "circular", "valid")),
    (2, 3, 2, "same"),
    (1, 4, 1, "same"),
]
OF_IMAGES = [
    *((k, 1, 1, "same") for k in (1, 2, 3, 4, 7, 20)),
    *((k, 1, 2, "same") for k in (3, 4)),
    *((3, 2, 1, "same"), (2, 1, 1, "valid"), (3, 1, 1, "circular")),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sums_of_all_kernels(way: str, dtype: Any) -> None:
    """Two sides of equal and different lengths, and one side; errors as of adding the terms of a window."""
    block, other = positive((1, 9, 4, 9, 2), dtype), positive((1, 9, 6, 12, 1), dtype)
    for kernel in KERNELS if way != "jax" else KERNELS[4::4]:  # which compile long
        for array, axes in ((block, (1, 3)), (other, (1, 3)), (block, (1,)), (other[..., 0], (3,))):
            windows = [Window(axis, array.shape[axis], *kernel) for axis in axes]
            found, wanted = WAYS[way](array, windows), exact(array, windows)
            assert found.dtype == dtype
            error = (kernel[0] + 1) * np.finfo(dtype).eps
            np.testing.assert_allclose(found, wanted, rtol=error, atol=0, err_msg=f"{kernel} {axes}")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(5, 7), (1, 6), (6, 1), (1, 1), (2, 3)])
def test_sums_over_images(shape: tuple[int, int], dtype: Any) -> None:
    """Rows and columns one after the other, also where images change their size."""
    image = positive((2, 3, *shape), dtype)
    for down in OF_IMAGES:
        for across in OF_IMAGES:
            if any(
                k[3] == "valid" and n < (k[0] - 1) * k[2] + 1
                for k, n in zip((down, across), shape, strict=True)
            ):
                continue
            windows = [[Window(2, shape[0], *down)], [Window(3, shape[1], *across)]]
            wanted = exact(exact(image, windows[0]), windows[1])
            error = (down[0] + across[0] + 2) * np.finfo(dtype).eps
            for compiled in {False, loops.is_available()}:
                tape = Tape(compiled, dtype)
                made = sum_over_windows(tape.input("x", image.shape, dtype), windows)
                found = dict(Prepared(tape, [made]).run({"x": image}))[made.step]
                assert found.dtype == dtype
                np.testing.assert_allclose(found, wanted, rtol=error, atol=0, err_msg=f"{down} {across}")


def test_infinite_entries_stay_in_their_windows() -> None:
    block = np.ones((12, 12))
    block[4, 5] = np.inf
    windows = [Window(axis, 12, 7) for axis in (0, 1)]
    assert np.array_equal(sum_over_window(block, windows), exact(block, windows))


def test_one_pass_where_lines_are_long_and_keep_their_length() -> None:
    pytest.importorskip("numba")

    def is_one_pass(shape: tuple[int, ...], *kernel: Any, axes: tuple[int, ...] = (1, 3)) -> bool:
        tape = Tape(compiled=True)
        windows = [Window(axis, shape[axis], *kernel) for axis in axes]
        total = sum_over_window(tape.input("x", shape, float), windows)
        return tape.steps[total.step].kind is None

    assert is_one_pass((1, 9, 4, 9, 2), 3)
    assert is_one_pass((1, 9, 6, 12, 1), 4, 1, 2)
    assert is_one_pass((5, 100), 3, axes=(1,))
    assert not is_one_pass((1, 9, 4, 9, 1), 3)
    assert not is_one_pass((1, 9, 4, 9, 2), 3, 2)
    assert not is_one_pass((1, 9, 4, 9, 2), 3, 1, 1, "circular")


def test_a_run_may_have_fewer_repeats_than_were_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of exact steps come from one repeat of a kernel that is sampled with two repeats at a time."""
    pytest.importorskip("numba")
    U, V, v = ns.Conv2d(3), ns.Conv2d(3), ns.Matrix(rows=1)

    @ns.network
    def net(image):
        h = U(image)
        return v @ ns.mean(ns.relu(V(ns.relu(h) - ns.sigmoid(h))), axis=(0, 1))

    x = RNG.standard_normal((2, 8, 8, 1))
    options: dict[str, Any] = {"method": "sample", "points": 2**4, "repeats": 2}
    by_slices = ns.kernel(net, **options).evaluate(x)
    monkeypatch.setattr(recording, "FEWEST_ENTRIES", -1)
    monkeypatch.setattr(fused, "LEAST_ELEMENTS", 10**9)  # other loops would take seconds to compile
    in_one_pass = ns.kernel(net, **options).evaluate(x)
    assert in_one_pass.plan.compiled > by_slices.plan.compiled
    np.testing.assert_allclose(in_one_pass.value, by_slices.value, rtol=1e-12)
    np.testing.assert_allclose(in_one_pass.error, by_slices.error, rtol=1e-6)
