"""Settings of the whole suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# Small products everywhere: the threads of BLAS cost more than they save, the more so beside other workers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(autouse=True, scope="module")
def _forget_what_jax_compiled() -> Iterator[None]:
    """Compiled functions of all tests together would take gigabytes."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
