"""Functions whose parameter is a member of larger data or of a larger block of C-vars, by quadrature."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss

import netsor as ns
from property.strategies import USER

DATA = np.array([[0.5, -1.0, 2.0], [0.25, 1.0, -0.5]])
PROGRAM = """
Data x = [[0.5, -1, 2], [0.25, 1, -0.5]]
Input b :: G(n)[{size}] ~ N(0, 1)
Input d :: G(n)[2, 3] ~ N([[0.5, -1, 2], [0.25, 1, -0.5]], 0)
Input v :: G(n) ~ N(0, 1)
c := Moment(d)
y := swish(b; {parameter})
Output v^T y / sqrt(n)
"""


def moments(beta: float) -> tuple[float, float]:
    """E[f(g)] and E[f(g)^2] of the user's function f(x) = x / (1 + exp(-beta x)) for a standard normal g.

    f is analytic within |Im x| < pi / |beta|; 140 nodes and 180 differ by 2e-14 for |beta| <= 2.
    """
    nodes, weights = hermegauss(140)
    values = nodes / (1 + np.exp(-beta * nodes))
    return tuple(weights @ values**k / weights.sum() for k in (1, 2))  # type: ignore[return-value]


@pytest.mark.parametrize("method", ["auto", "sample"])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", ["x", "c"])
@pytest.mark.parametrize("member", [(0, 1), (1, 2)])
def test_a_member_of_a_larger_parameter(name: str, member: tuple[int, int], size: int, method: str) -> None:
    text = PROGRAM.format(size=size, parameter=f"{name}[{member[0]}, {member[1]}]")
    found = ns.limit(ns.parse(text, USER), method=method).kernel()
    first, second = moments(float(DATA[member]))
    want = np.full((size, size), first**2)
    np.fill_diagonal(want, second)
    gap = np.abs(found.value - want)
    assert np.all(gap <= (1 if found.plan.exact else 8) * found.error + 1e-13), gap.max()
