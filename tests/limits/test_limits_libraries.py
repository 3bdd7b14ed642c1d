"""The limit on arrays of other libraries: the same numbers in their own arrays; gradients by JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import netsor as ns
from limit_cases import CASES, SAMPLED, SEQUENCES, VECTORS, Case, by_name
from netsor import zoo
from netsor.errors import FunctionError, LimitError

strict = pytest.importorskip("array_api_strict")

DIFFERENTIATED = [
    *("mlp, relu", "simple_rnn", "cnn, gap"),
    pytest.param("transformer, tied", marks=pytest.mark.slow),
]
UNTRACED = {"mlp, user", "batchnorm_mlp", "batchnorm_mlp, deep"}


@pytest.fixture(scope="module")
def jax():
    found = pytest.importorskip("jax")
    found.config.update("jax_enable_x64", True)
    return found


def converted(inputs: list[Any], asarray: Any) -> list[Any]:
    return [tuple(map(asarray, x)) if isinstance(x, tuple) else asarray(x) for x in inputs]


def weighted(case: Case, kernel: Any, xp: Any, params: dict[str, Any], inputs: list[Any]) -> Any:
    """A number that depends on every entry of the kernel."""
    size = kernel(inputs, params=params)
    return xp.sum(size * xp.asarray(np.cos(np.arange(size.size)).reshape(size.shape)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_strict_arrays(case: Case) -> None:
    """A library that has the array API's functions and no more."""
    kernel = ns.kernel(case.net, points=2**5 if case.name in SAMPLED else None)
    found = kernel(converted(case.inputs, strict.asarray))
    assert type(found) is type(strict.asarray(0.0))
    wanted = kernel(case.inputs)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=1e-14 * np.abs(wanted).max())


def test_a_whole_set_of_strict_arrays() -> None:
    kernel = ns.kernel(zoo.mlp(2))
    found = kernel(strict.asarray(VECTORS[:2]), strict.asarray(VECTORS))
    np.testing.assert_allclose(np.asarray(found), kernel(VECTORS[:2], VECTORS), rtol=1e-14)
    with pytest.raises(ns.NetsorError):
        kernel(strict.asarray(1.0))


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_in_the_variances(name: str, jax: Any) -> None:
    """jax.jit of jax.grad against central differences, whose own error is of order h^2."""
    case, step = by_name(name), 1e-5
    kernel, inputs = ns.kernel(case.net), converted(case.inputs, jax.numpy.asarray)
    found = jax.jit(jax.grad(lambda p: weighted(case, kernel, jax.numpy, p, inputs)))(kernel.params)
    for key, value in kernel.params.items():
        up, down = (
            weighted(case, kernel, np, {**kernel.params, key: value + h}, case.inputs) for h in (step, -step)
        )
        assert float(found[key]) == pytest.approx((up - down) / (2 * step), rel=1e-7, abs=1e-7)


def test_gradients_in_the_inputs(jax: Any) -> None:
    kernel, step = ns.kernel(zoo.mlp(2, ns.tanh)), 1e-5
    found = np.asarray(jax.grad(lambda x: kernel(x)[0, 1])(jax.numpy.asarray(VECTORS)))
    for i, k in np.ndindex(2, 4):
        nudge = np.zeros_like(VECTORS)
        nudge[i, k] = step
        slope = (kernel(VECTORS + nudge)[0, 1] - kernel(VECTORS - nudge)[0, 1]) / (2 * step)
        assert found[i, k] == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_jit_and_vmap(jax: Any) -> None:
    kernel = ns.kernel(zoo.simple_rnn())
    wanted = kernel(SEQUENCES)
    found = jax.jit(kernel)(jax.numpy.asarray(SEQUENCES))
    np.testing.assert_allclose(found, wanted, rtol=1e-13)
    variances = jax.numpy.asarray([0.5, 2.0])
    many = jax.vmap(lambda v: kernel(jax.numpy.asarray(SEQUENCES[:1]), params={"v": v}))(variances)
    np.testing.assert_allclose(many, np.multiply.outer([0.5, 2.0], wanted[:3, :3]), rtol=1e-13)


@pytest.mark.parametrize("net", [zoo.lstm(), zoo.batchnorm_mlp(1)], ids=["lstm", "batchnorm"])
def test_what_jax_calls_back_for(net: ns.Network, jax: Any) -> None:
    sequence, K = jax.numpy.asarray(SEQUENCES[:1]), ns.kernel(net, points=64, repeats=2)
    np.testing.assert_allclose(jax.jit(K)(sequence), K(SEQUENCES[:1]), rtol=1e-12)
    with pytest.raises(LimitError, match="no derivative in its inputs"):
        jax.grad(lambda x: K(x).sum())(sequence)


def test_what_jax_cannot_trace(jax: Any) -> None:
    with pytest.raises(FunctionError, match="array API"):
        jax.jit(ns.kernel(by_name("mlp, user").net))(jax.numpy.asarray(VECTORS))
    W, v = ns.Matrix(), ns.Matrix(rows=1)

    @ns.network
    def looks(x):
        return v @ (W @ x) if np.asarray(x).sum() > 0 else v @ ns.relu(W @ x)

    with pytest.raises(LimitError, match="looks at the values"):
        jax.jit(ns.kernel(looks))(jax.numpy.asarray(VECTORS))


@pytest.mark.parametrize("name", sorted(UNTRACED | {"lstm"}))
def test_jax_arrays_outside_jit(name: str, jax: Any) -> None:
    case = by_name(name)
    kernel = ns.kernel(case.net, points=2**5)
    found = kernel(converted(case.inputs, jax.numpy.asarray))
    assert isinstance(found, jax.Array)
    np.testing.assert_allclose(found, kernel(case.inputs), rtol=1e-12)
