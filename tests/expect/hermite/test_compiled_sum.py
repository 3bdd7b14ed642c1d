"""The compiled sum over Hermite terms against a plain sum of powers."""

from __future__ import annotations

import numpy as np
import pytest

from netsor.expect.hermite import mehler

pytest.importorskip("numba")
RNG = np.random.default_rng(2)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mehler, "LEAST_ELEMENTS", 1)


def plain(a: np.ndarray, b: np.ndarray, rho: np.ndarray) -> np.ndarray:
    return np.sum([a[..., k] * b[..., k] * rho**k for k in range(a.shape[-1])], axis=0)


@pytest.mark.parametrize("zero", [None, 0, 1], ids=["all terms", "odd function", "even function"])
@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 5, 1), (1, 1, 70)), ((1, 3, 1, 4, 1), (1, 1, 1, 1, 33)), ((2, 3, 1, 1), (1, 1, 5, 2))],
    ids=["vectors", "with an index on the left", "several axes"],
)
def test_sum(left: tuple[int, ...], right: tuple[int, ...], zero: int | None) -> None:
    a, b = (RNG.standard_normal((*shape, 9)) for shape in (left, right))
    if zero is not None:
        a[..., zero::2] = 0
    rho = RNG.uniform(-1, 1, np.broadcast_shapes(left, right))
    rho.flat[:2] = 1.0, -1.0
    found = mehler.horner(a, b, rho)
    assert found is not None
    np.testing.assert_allclose(found, plain(a, b, rho), rtol=0, atol=1e-13)


def test_blocks_that_are_not_left_times_right_are_left_to_numpy() -> None:
    rho = RNG.uniform(-1, 1, (1, 3, 4, 5, 6))
    a, b = RNG.standard_normal((1, 3, 1, 5, 1, 9)), RNG.standard_normal((1, 1, 4, 1, 6, 9))
    assert mehler.horner(a, b, rho) is None
    same = RNG.standard_normal((1, 3, 9))
    assert mehler.horner(same, same, RNG.uniform(-1, 1, (1, 3))) is None


def test_float32() -> None:
    a, b = (RNG.standard_normal((*shape, 9)).astype(np.float32) for shape in ((1, 3, 1), (1, 1, 5)))
    rho = RNG.uniform(-1, 1, (1, 3, 5)).astype(np.float32)
    found = mehler.horner(a, b, rho)
    assert found is not None
    assert found.dtype == np.float32
    wide = plain(*(x.astype(np.float64) for x in (a, b, rho)))
    np.testing.assert_allclose(found, wide, rtol=0, atol=1e-5)
