"""Kernels of models on JAX against many initialisations of the models themselves, in standard errors."""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import pytest

jax = pytest.importorskip("jax")
os.environ.setdefault("KERAS_BACKEND", "jax")

import jax.numpy as jnp  # noqa: E402
import jax_models  # noqa: E402

import netsor as ns  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
WIDTH, SAMPLES = 128, 400


def needs(library: str):
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")


def real_outputs(net, x, by_keras: bool) -> np.ndarray:
    """Outputs (samples, outputs) of the model itself, rows of the readout first as netsor has them."""
    front = net.front
    given = jnp.asarray(x, front.dtype)
    given = given[None] if front.batch else given

    def draw(key):
        return front.init(key, WIDTH)

    def run(parameters):
        return jax.tree_util.tree_leaves(front.apply[0](parameters, given))[0]

    draw, run = draw if by_keras else jax.jit(draw), jax.jit(run)  # Keras keeps a seed of its own
    outputs = [np.asarray(run(draw(jax.random.key(s)))) for s in range(SAMPLES)]
    (order,) = net.output_orders()
    return np.array([o.transpose(order).ravel() for o in outputs])


@pytest.mark.parametrize(
    "case",
    [
        *jax_models.PLAIN,
        *(pytest.param(case, marks=needs("flax")) for case in jax_models.FLAX),
        *(pytest.param(case, marks=needs("equinox")) for case in jax_models.EQUINOX),
        *(pytest.param(case, marks=needs("keras")) for case in jax_models.KERAS),
    ],
)
def test_the_kernel_is_that_of_many_initialisations(case, monkeypatch):
    monkeypatch.setattr(jax_models, "WIDTH", WIDTH)
    monkeypatch.setattr(jax_models, "HEADS", None)  # scores q.k/sqrt(d) have a limit if heads grow in number
    net, x = case()
    result = ns.kernel(net).evaluate([x])
    outputs = real_outputs(net, x, case in jax_models.KERAS)
    diagonal = np.diag(result.value)
    error = np.sqrt((np.outer(diagonal, diagonal) + result.value**2) / SAMPLES + result.error**2)
    z = (outputs.T @ outputs / SAMPLES - result.value) / error
    assert np.sqrt((z**2).mean()) < 3
    assert np.abs(z).max() < 5
