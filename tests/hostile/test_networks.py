"""A few of the random networks of `networks`; `.ci/full` has two thousand."""

from __future__ import annotations

import pytest
from networks import check, check_tangent


@pytest.mark.parametrize("seed", [k for k in range(5000, 5012) if k != 5008])  # which takes seconds
def test_exact_sampled_and_simulated_agree(seed: int) -> None:
    assert check(seed).split(":")[0] in ("exact", "sampled", "refused")


@pytest.mark.parametrize("seed", [7000, 7001, 7002, 7003, 7004, 7005, 7007, 7009])
def test_tangent_kernels_agree(seed: int) -> None:
    assert check_tangent(seed).split(":")[0] in ("exact", "sampled", "refused")
