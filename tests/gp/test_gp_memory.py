"""Copies of the kernel matrix that are in memory at one time, counted by tracemalloc."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netsor as ns
from effort import peak
from netsor import zoo
from netsor.errors import DataError
from netsor.gp import regression
from netsor.limits.on_numpy.compiled_loops import is_available

RNG = np.random.default_rng(2)
X = RNG.standard_normal((2000, 5))  # so many that the tiles of all threads are a small part of the kernel
MATRIX = 8 * len(X) ** 2
TARGETS = np.sin(X[:, 0])
TILES = 0.5 if is_available() else 1.0  # without compiled loops a tile has an array for each step


def matrices(run: Callable[[], Any]) -> float:
    """Bytes at the highest, in kernel matrices."""
    return peak(run) / MATRIX


@pytest.mark.parametrize(("phi", "copies"), [(ns.relu, 1), (ns.erf, 2)], ids=["exact", "inexact"])
def test_evaluate_keeps_the_kernel_and_what_its_errors_need(phi: Any, copies: int) -> None:
    K = ns.kernel(zoo.mlp(2, phi))
    K.evaluate(X[:1700])  # what is compiled and remembered
    assert copies <= matrices(lambda: K.evaluate(X)) < copies + TILES


def test_a_fit_keeps_one_copy() -> None:
    K = ns.kernel(zoo.mlp(2))
    ns.gp.fit(K, X[:1700], TARGETS[:1700], noise=0.1)
    assert matrices(lambda: ns.gp.fit(K, X, TARGETS, noise=0.1)) < 1 + TILES


def test_errors_are_written_out_when_they_are_asked_for() -> None:
    result = ns.kernel(zoo.mlp(2, ns.erf)).evaluate(X[:40])
    assert result.error.shape == (40, 40)
    assert result.bound.largest == result.error.max()
    assert result.bound.rms == pytest.approx(np.sqrt(np.mean(result.error**2)), rel=1e-12)
    exact = ns.kernel(zoo.mlp(2)).evaluate(X[:40])
    assert exact.bound.more is None
    assert exact.bound.largest == pytest.approx(exact.error.max(), rel=1e-12)
    assert exact.bound.rms == pytest.approx(np.sqrt(np.mean(exact.error**2)), rel=1e-12)


def test_what_does_not_fit_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression.os, "sysconf", lambda name: 1000)
    with pytest.raises(DataError, match=r"ns\.gp\.store"):
        ns.gp.fit(ns.kernel(zoo.mlp(2)), X, TARGETS, noise=0.1)
