"""Runs of tiles: what is not finite is found on any thread, and memory is used again."""

from __future__ import annotations

import platform
import subprocess
import sys

import numpy as np
import pytest

import netsor as ns
from netsor.errors import LimitError
from netsor.limits.on_numpy import kernel, recording

RNG = np.random.default_rng(6)
FAULTS = """
import resource
import numpy as np, netsor as ns

down, up, v = ns.Conv2d(3, 2), ns.Conv2d(3, 2, transposed=True), ns.Matrix(rows=1)
K = ns.kernel(ns.network(lambda x: v @ ns.global_mean_pool(ns.relu(up(ns.relu(down(x)))))))
x = np.random.default_rng(0).standard_normal((12, 10, 10, 3))
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    K(x)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize("bad", [0, 300, 699])
@pytest.mark.parametrize("workers", [1, 2])
def test_one_input_without_a_limit(bad: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "cores", lambda: workers)
    U, v = ns.Matrix(), ns.Matrix(rows=1)
    K, x = ns.kernel(ns.network(lambda x: v @ ns.relu(ns.layernorm(U @ x)))), RNG.standard_normal((700, 3))
    assert np.isfinite(K(x)).all()
    x[bad] = 0.0
    with pytest.raises(LimitError, match="not finite"):
        K(x)


def test_numbers_whose_sum_is_too_large() -> None:
    """E[exp(h) exp(h')] = exp(2 q) of equal inputs."""
    U, v = ns.Matrix(), ns.Matrix(rows=1)
    found = ns.kernel(ns.network(lambda x: v @ ns.exp(U @ x)))(np.full((64, 1), np.sqrt(353.0)))
    np.testing.assert_allclose(found, np.exp(706.0), rtol=1e-12)
    with np.errstate(over="ignore"):
        assert np.isinf(found.sum())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_tiles_use_the_memory_of_tiles_before_them() -> None:
    """A page that is new to the process is a fault: there were 8,000 in a call."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert min(map(int, done.stdout.split())) < 500
    assert kernel.KEPT > 8 * recording.LARGER * recording.TILE
