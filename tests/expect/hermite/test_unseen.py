"""Functions with structure that falls between the nodes of a rule: seen, or counted in the error."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from netsor.expect.hermite.expansion import series
from netsor.expect.quadrature.kinks import find_kinks

T = (np.arange(2_000_000) + 0.5) / 2_000_000 * 28 - 14
WEIGHT = np.exp(-(T**2) / 2) / np.sqrt(2 * np.pi) * 28 / 2_000_000


def bump(x, width):
    return np.exp(-(((x - 0.3) / width) ** 2) / 2)


SEEN = {
    "fast": lambda x: np.sin(50 * x),
    "the slow wave at all nodes of a step of 1/8": lambda x: np.sin((16 * np.pi + 2) * x),
    "bump": lambda x: bump(x, 1e-2),
}
COUNTED = {
    "too fast for the terms": lambda x: np.sin(200 * x + 1),
    "tall and narrow, on tanh": lambda x: np.tanh(x) + 50 * bump(x, 1e-4),
}


@pytest.mark.parametrize("width", [1e-2, 1e-4])
def test_box(width):
    f = lambda x: (np.abs(x - 0.3) < width / 2) * 1.0  # noqa: E731
    truth = ndtr(0.3 + width / 2) - ndtr(0.3 - width / 2)
    found = series(f, np.zeros(1), np.ones(1), terms=128)
    assert abs(found.square[0] - truth) <= 2 * found.error[0] * np.sqrt(truth) + 1e-16
    assert found.error[0] <= 1e-12


@pytest.mark.parametrize("name", [*SEEN, *COUNTED])
def test_second_moment_and_mean(name):
    f = {**SEEN, **COUNTED}[name]
    found = series(f, np.zeros(1), np.ones(1), terms=128, kinks=find_kinks(f))
    values = f(T)
    square, mean = np.sum(values**2 * WEIGHT), np.sum(values * WEIGHT)
    error = float(found.error[0])
    assert abs(found.square[0] - square) <= 2 * error * np.sqrt(square) + error**2 + 1e-12
    assert abs(found.coefs[0, 0] - mean) <= error + 1e-12
    assert found.tail[0] ** 2 >= square - np.sum(found.coefs**2) - 2 * error * np.sqrt(square) - 1e-12
    assert name in COUNTED or error <= 1e-6 * np.sqrt(square)


def test_what_is_trusted_is_not_searched():
    calls = []

    def f(x):
        calls.append(x.size)
        return np.tanh(x)

    trusted = series(f, np.zeros(1), np.ones(1), trusted=True)
    few = sum(calls)
    searched = series(f, np.zeros(1), np.ones(1))
    assert few < 20_000 < sum(calls)
    np.testing.assert_allclose(trusted.square, searched.square, rtol=1e-14)
