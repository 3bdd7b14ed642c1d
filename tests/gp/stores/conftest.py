"""Small tiles for all tests of stores."""

from __future__ import annotations

import pytest

from netsor.limits.on_numpy import recording


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own tiles have at most 8 x 8 pairs, so that small kernels have many."""
    monkeypatch.setattr(recording, "TILE", 64)
    monkeypatch.setattr(recording, "FEWEST_FOR_THREADS", 0)
