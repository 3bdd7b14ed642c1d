"""Tensors of PyTorch as inputs of networks written by hand: computed, or refused with a remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netsor as ns

torch = pytest.importorskip("torch")

NET = ns.zoo.mlp(depth=2)
X = np.random.default_rng(0).standard_normal((4, 3))
CALLS: dict[str, Callable[[Any], Any]] = {
    "kernel": lambda x: ns.kernel(NET)(x),
    "kernel of a list": lambda x: ns.kernel(NET)([x[0], x[1]]),
    "kernel of two sets": lambda x: ns.kernel(NET)(X, x),
    "diag": lambda x: ns.kernel(NET).diag(x),
    "evaluate": lambda x: ns.kernel(NET).evaluate(x),
    "plan": lambda x: ns.kernel(NET).plan(x),
    "tangent": lambda x: ns.ntk(NET)(x),
    "program": lambda x: ns.program(NET, x[0]),
    "limit": lambda x: ns.limit(NET, x[0]),
    "simulate": lambda x: ns.simulate(NET, [x[0]], 10),
    "targets": lambda x: ns.gp.fit(ns.kernel(NET), X, x[:, 0]),
    "variance": lambda x: ns.Matrix(x[0, 0] ** 2),
    "params": lambda x: ns.kernel(NET)(X, params={"W1": x[0, 0] ** 2}),
}


def test_tensor_gives_the_kernel_of_its_numbers_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = ns.kernel(NET)(torch.tensor(X))
    np.testing.assert_allclose(value.numpy(), ns.kernel(NET)(X), rtol=1e-12)


@pytest.mark.parametrize("call", CALLS)
def test_tensor_that_requires_gradients_is_refused(call: str) -> None:
    with pytest.raises(ns.NetsorError, match="requires gradients") as caught:
        CALLS[call](torch.tensor(X, requires_grad=True))
    assert "detach()" in str(caught.value)


@pytest.mark.parametrize("kind", ["bfloat16", "sparse", "meta"])
def test_tensor_that_cannot_become_an_array_is_refused(kind: str) -> None:
    tensor = torch.tensor(X)
    hostile = {"bfloat16": tensor.bfloat16(), "sparse": tensor.to_sparse(), "meta": tensor.to("meta")}
    with pytest.raises(ns.NetsorError, match="cannot become a NumPy array"):
        ns.kernel(NET)(hostile[kind])
