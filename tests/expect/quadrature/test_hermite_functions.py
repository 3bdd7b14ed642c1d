"""Tables of Hermite functions: their values, and which of them are kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermeval

from netsor.expect.quadrature.hermite_functions import Panels, hermite_table

BLOCKS = [
    Panels(-0.125, 0.25, 56, 1),
    Panels(0.0, 0.5, 2),
    Panels(1.0, 0.5, 2),
    Panels(9.0, 0.5, 2),
]  # 56 nodes each


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("terms", [1, 2, 12])
def test_values(block: Panels, terms: int) -> None:
    t = block.nodes
    density = np.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)
    for k in range(terms):
        wanted = hermeval(t, [0.0] * k + [1.0]) / math.sqrt(math.factorial(k)) * np.sqrt(density)
        np.testing.assert_allclose(hermite_table(block, terms)[:, k], wanted, rtol=1e-11, atol=1e-14)
