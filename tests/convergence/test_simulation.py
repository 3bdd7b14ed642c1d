"""Networks of finite width converge to the limit: their mean kernel, and the rate 1/sqrt(width)."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns
from composed_case import EVERYTHING
from limit_cases import CASES, Case, assert_simulated, by_name, scale_of
from netsor.verify import Verification

slow = pytest.mark.slow
ALL = [EVERYTHING, *CASES]
QUICK = {"gru", "batchnorm_mlp, deep"}


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=() if c.name in QUICK else slow) for c in ALL]
)
def test_mean_kernel_of_finite_width(case: Case) -> None:
    assert_simulated(case)


@slow
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_mean_kernel_of_many_networks(case: Case) -> None:
    assert_simulated(case, width=400, networks=1000, seed=1)


@slow
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_kernel_of_outputs(case: Case) -> None:
    """Outputs are Gaussian in the limit: their covariance is the kernel, their mean and skewness are 0."""
    networks, width = 2000, 200
    limit = ns.kernel(case.net).evaluate(case.inputs)
    out = ns.simulate(case.net, case.inputs, width, networks, seed=2, dtype=np.float32)
    scale = scale_of(limit.value)
    unit = out / np.sqrt(np.diagonal(limit.value))
    spread = np.sqrt((scale**2 + limit.value**2) / networks)  # of a covariance of Gaussians
    gap = np.abs(out.T @ out / networks - limit.value)
    assert np.all(gap <= 5 * (spread + limit.error) + 3 / width * scale)
    assert np.all(np.abs(unit.mean(0)) <= 5 / np.sqrt(networks))
    assert np.all(np.abs((unit**3).mean(0)) <= 5 * np.sqrt(15 / networks))


def assert_root_of_width(found: Verification) -> None:
    """The distances fall with slope -1/2, and the slope is known well enough to tell it from -1/4 or -1."""
    assert abs(found.slope + 0.5) < 3 * found.slope_error + 0.05, str(found)
    assert 3 * found.slope_error + 0.05 < 0.25, str(found)
    assert found.ok, str(found)


def test_distance_of_everything_falls_like_one_over_the_root_of_the_width() -> None:
    widths = (32, 64, 128, 256)
    assert_root_of_width(ns.verify(EVERYTHING.net, EVERYTHING.inputs, widths, 40, seed=1, progress=False))


@slow
@pytest.mark.parametrize(
    "name", ["everything", "mlp, relu", "gru", "lstm", "batchnorm_mlp", "cnn, gap", "transformer, tied"]
)
def test_distance_falls_like_one_over_the_square_root_of_the_width(name: str) -> None:
    case = EVERYTHING if name == "everything" else by_name(name)
    widths = (64, 128, 256, 512, 1024)
    found = ns.verify(case.net, case.inputs, widths, samples=60, seed=1, progress=False)
    assert_root_of_width(found)
    means = found.distances.mean(1)
    assert np.all(np.diff(means) < 0)
    assert means[-1] < 0.25 * means[0] * 1.5  # a factor of four in theory
