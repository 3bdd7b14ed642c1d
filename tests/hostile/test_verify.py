"""Verification of networks whose kernels hardly vary: right ones are not called wrong, and wrong ones are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.errors import SimulationError

X = np.array([[1.0, 2.0], [0.5, -1.0], [0.0, 0.0]])
OPTIONS: dict[str, Any] = {"widths": (16, 64), "samples": 10, "progress": False}


def _net(f: Callable[[Any], Any]) -> ns.Network:
    W, v = ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        return v @ f(W @ x)

    return net


CONSTANT = {  # the limit is rounding, and every network 0; or both are 1
    "odd": lambda h: ns.tanh(h) + ns.tanh(-h),
    "circle": lambda h: ns.sin(h) ** 2 + ns.cos(h) ** 2 - 1,
    "sign": lambda h: ns.sign(h) ** 2,
}


@pytest.mark.parametrize("name", CONSTANT)
def test_networks_that_equal_their_limit_agree(name: str) -> None:
    found = ns.verify(_net(CONSTANT[name]), X, **OPTIONS)
    assert found.exact
    assert found.ok
    assert "agrees" in repr(found)
    assert "equal the limit" in str(found)


def test_events_that_no_network_meets_are_refused() -> None:
    """E relu(h - 8)^2 is about 1e-17, and relu(h - 8) is 0 in every network: this proves nothing."""
    net = _net(lambda h: ns.relu(h - 8))
    x = [[1.0, 1.0]]
    assert 0 < ns.kernel(net)(x)[0, 0] < 1e-15
    with pytest.raises(SimulationError, match=r"entry \(0, 0\) of the kernel is 0 in each of 10 networks"):
        ns.verify(net, x, **OPTIONS)


def test_entries_that_rounding_explains_do_not_count() -> None:
    """Such an input beside one that drives the network: its share is below the rounding of the kernel."""
    found = ns.verify(_net(lambda h: ns.relu(h - 8)), [[1.0, 1.0], [20.0, -10.0]], **OPTIONS)
    assert found.z < 3


@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_wrong_networks_are_called_wrong_at_every_scale(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = _net(lambda h: scale * ns.tanh(h))
    assert ns.verify(net, X, **OPTIONS).z < 3
    simulated = ns.empirical_kernel
    monkeypatch.setattr(
        sys.modules["netsor.verify"], "empirical_kernel", lambda *a, **o: 2 * simulated(*a, **o)
    )
    found = ns.verify(net, X, **OPTIONS)
    assert not found.exact
    assert not found.ok


def test_a_wrong_constant_is_never_called_right(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = ns.empirical_kernel
    monkeypatch.setattr(
        sys.modules["netsor.verify"], "empirical_kernel", lambda *a, **o: 1.001 * simulated(*a, **o)
    )
    with pytest.raises(SimulationError, match="without a spread"):
        ns.verify(_net(CONSTANT["sign"]), X, **OPTIONS)
