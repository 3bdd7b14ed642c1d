"""A few of the random networks of `networks`; `.ci/full` has two thousand."""

from __future__ import annotations

import pytest
from networks import check


@pytest.mark.parametrize("seed", range(5000, 5012))
def test_exact_sampled_and_simulated_agree(seed: int) -> None:
    assert check(seed).split(":")[0] in ("exact", "sampled", "refused")
