"""Settings of the whole suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# Small products everywhere: the threads of BLAS cost more than they save, the more so beside other workers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(autouse=True, scope="module")
def _reset_jax() -> Iterator[None]:
    """Compiled functions of all tests together would take gigabytes; double precision is for one module."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        sys.modules["jax"].config.update("jax_enable_x64", False)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own tiles have at most 8 x 8 pairs, so that small kernels have many."""
    from netsor.limits.on_numpy import recording

    monkeypatch.setattr(recording, "TILE", 64)
    monkeypatch.setattr(recording, "LITTLE_WORK", 0)
    monkeypatch.setattr(recording, "FEWEST_FOR_THREADS", 0)
