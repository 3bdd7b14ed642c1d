"""Loadings with landmarks: which covariances they have exactly, and that they are the same in any company."""

from __future__ import annotations

import numpy as np
import pytest

from netsor.expect.points.landmark_loadings import LandmarkLoadings, Landmarks

RNG = np.random.default_rng(3)
INPUTS, STEPS, MARKS = 9, 3, 4
STATIC = RNG.standard_normal((STEPS, INPUTS, 2))
ROOT = RNG.standard_normal((STEPS * INPUTS, 40)) / 6
REST = (ROOT @ ROOT.T).reshape(STEPS, INPUTS, STEPS, INPUTS)


def covariance(rank: int) -> np.ndarray:
    """Of all variables, (steps, inputs, steps, inputs), without the static part; `rank` are independent."""
    root = RNG.standard_normal((STEPS * INPUTS, rank))
    return (root @ root.T / rank).reshape(STEPS, INPUTS, STEPS, INPUTS)


def drawn(rest: np.ndarray, others: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The covariance that the loadings of landmarks and some others make, static part and all; `dropped`."""
    chosen = [*range(MARKS), *others]
    static = STATIC[:, chosen].reshape(-1, STATIC.shape[-1])
    made = LandmarkLoadings(Landmarks(MARKS, np.array(others, int)), [static[:0], static])
    rows, n = [], len(chosen)
    for t in range(STEPS):
        own = rest[t][chosen][:, :, chosen].reshape(n, STEPS * n)
        own = own + static[t * n : (t + 1) * n] @ static.T
        rows.append(made.extend(1, own[:, : t * n], own[:, t * n : (t + 1) * n]))
    dimensions = made.dimensions[1]
    assert len(set(dimensions.tolist())) == len(dimensions)
    width = max(row.shape[1] for row in rows)
    whole = np.concatenate([np.pad(row, [(0, 0), (0, width - row.shape[1])]) for row in rows])
    return (whole @ whole.T).reshape(STEPS, n, STEPS, n), made.dropped


def wanted(rest: np.ndarray, chosen: list[int]) -> np.ndarray:
    static = np.einsum("tif,sjf->tisj", STATIC, STATIC)
    return (rest + static)[:, chosen][:, :, :, chosen]


@pytest.mark.parametrize("rest", [REST, covariance(30)], ids=["first", "second"])
def test_what_is_exact_and_what_is_left_out(rest: np.ndarray) -> None:
    found, dropped = drawn(rest, list(range(MARKS, INPUTS)))
    exact = wanted(rest, list(range(INPUTS)))
    np.testing.assert_allclose(found[:, :MARKS, :, :MARKS], exact[:, :MARKS, :, :MARKS], atol=1e-10)
    for k in range(INPUTS):
        np.testing.assert_allclose(found[:, k, :, k], exact[:, k, :, k], atol=1e-10)
    for t in range(STEPS):  # of others with what landmarks had so far
        upto = slice(0, t + 1)
        np.testing.assert_allclose(found[t, MARKS:, upto, :MARKS], exact[t, MARKS:, upto, :MARKS], atol=1e-10)
    deviations = np.sqrt(np.einsum("titi->ti", exact))
    units = deviations[:, :, None, None] * deviations
    left = (np.abs(found - exact) / units).max(axis=(0, 2))
    assert np.all(left <= dropped + 1e-10)
    assert left[MARKS:, MARKS:].max() > 0.01


def test_nothing_is_left_out_where_landmarks_know_all() -> None:
    """As many independent variables as the landmarks have."""
    rest = covariance(3)
    found, dropped = drawn(rest, list(range(MARKS, INPUTS)))
    np.testing.assert_allclose(found, wanted(rest, list(range(INPUTS))), atol=1e-8)
    assert dropped.max() < 1e-8


def test_an_input_is_the_same_in_any_company() -> None:
    whole, _ = drawn(REST, [4, 5, 6, 7, 8])
    some, _ = drawn(REST, [5, 8])
    at = [0, 1, 2, 3, 5, 8]
    np.testing.assert_allclose(some, whole[:, at][:, :, :, at], atol=1e-12)
