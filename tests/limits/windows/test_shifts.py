"""Sums over kernel positions on both sides of a pair, by all the ways that there are, against exact sums."""

from __future__ import annotations

from math import fsum
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.lang.index_maps import window_positions
from netsor.limits.on_numpy import loops
from netsor.limits.on_numpy.prepared import Prepared
from netsor.limits.tape.tape import Tape
from netsor.limits.windows import shifts
from netsor.limits.windows.shifts import Window, sum_of_shifts, sum_over_windows
from netsor.limits.windows.sliding import sliding_sum

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
    made = sum_of_shifts(tape.input("x", block.shape, block.dtype), windows)
    return dict(Prepared(tape, [made]).run({"x": block}))[made.step]


def in_jax(block: np.ndarray, windows: list[Window]) -> np.ndarray:
    jax = pytest.importorskip("jax")
    with jax.enable_x64() if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        return np.asarray(jax.jit(lambda x: sum_of_shifts(x, windows))(jax.numpy.asarray(block)))


def compiled(block: np.ndarray, windows: list[Window]) -> np.ndarray:
    if not loops.is_available():
        pytest.skip("needs numba")
    return recorded(block, windows, True)


WAYS = {
    "numpy": sum_of_shifts,
    "recorded": lambda block, windows: recorded(block, windows, False),
    "compiled": compiled,
    "jax": in_jax,
}
KERNELS = [
    *((k, 1, 1, padding) for k in (1, 2, 3, 7, 8, 20, 31, 40) for padding in ("same", "circular")),
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
    block, other = positive((1, 9, 2, 9, 2), dtype), positive((1, 9, 2, 12, 1), dtype)
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
    """Rows and columns at once, or one after the other where images change their size."""
    image = positive((2, 3, *shape), dtype)
    passes = 0
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
                passes += len(tape.steps) == 2
    assert passes > 20 or not loops.is_available()


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 9, 30])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("axes", [(0, 2), (0,), (2,)])
def test_sliding_sums_of_short_windows(kernel: int, padding: str, axes: tuple[int, ...]) -> None:
    """Also where they are not worth it."""
    block = positive((9, 2, 11))
    if padding == "valid" and kernel > 9:
        return
    windows = [Window(axis, block.shape[axis], kernel, padding=padding) for axis in axes]
    rtol = (kernel + 1) * np.finfo(float).eps
    np.testing.assert_allclose(sliding_sum(block, windows), exact(block, windows), rtol=rtol, atol=0)


def test_infinite_entries_stay_in_their_windows() -> None:
    block = np.ones((12, 12))
    block[4, 5] = np.inf
    windows = [Window(axis, 12, 7) for axis in (0, 1)]
    assert np.array_equal(sliding_sum(block, windows), exact(block, windows))


class Counted:
    """A number that counts its additions."""

    additions = 0

    def __add__(self, other: Any) -> Counted:
        Counted.additions += 1
        return self

    __radd__ = __add__


def test_long_kernels_do_not_cost_more() -> None:
    """Three additions per entry at most."""
    block = np.empty((32, 32), object)
    block[...] = Counted()
    for kernel in (7, 15, 31, 63):
        Counted.additions = 0
        sum_of_shifts(block, [Window(axis, 32, kernel) for axis in (0, 1)])
        assert 0 < Counted.additions <= 3 * block.size


@pytest.mark.parametrize("padding", ["same", "circular", "valid"])
def test_kernels_of_networks_with_large_kernels(padding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = RNG.standard_normal((2, 9, 8, 2))
    net = ns.zoo.cnn(2, 7 if padding != "valid" else (3, 2), padding=padding)
    wanted = ns.kernel(net)(x)
    for limit in (1, 10**6):
        monkeypatch.setattr(shifts, "LONG", limit)
        np.testing.assert_allclose(ns.kernel(net)(x), wanted, rtol=1e-14)


def test_slices_read_what_positions_say() -> None:
    for kernel in KERNELS:
        for size in (9, 12):
            window = Window(0, size, *kernel)
            if window.padding == "circular":
                continue
            where, exists = window_positions(size, *kernel)
            for (read, write), spots, there in zip(window.slices(), where, exists, strict=True):
                assert np.array_equal(np.arange(size)[read], spots[there])
                assert np.array_equal(np.arange(window.count)[write], np.flatnonzero(there))
