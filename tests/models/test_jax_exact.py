"""The own weights of models on JAX in their programs give the models' own outputs."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

jax = pytest.importorskip("jax")
os.environ.setdefault("KERAS_BACKEND", "jax")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_models import EQUINOX, FLAX, KERAS, PLAIN, SEQUENCE, VECTOR, double_precision, lecun  # noqa: E402

import netsor as ns  # noqa: E402
from netsor.errors import BuildError  # noqa: E402
from netsor.models.jaxpr.laws import read_laws  # noqa: E402

# Keras computes tanh and its norms in float32 whatever it is told; Flax the softmax of NNX's attention and
# the running statistics of Linen's batchnorm.
IN_SINGLE = [*KERAS, FLAX[2], FLAX[5]]


@pytest.fixture(autouse=True)
def _double():
    """The libraries' own precision is float32."""
    with double_precision():
        if find_spec("keras"):
            import keras

            keras.config.set_floatx("float64")
        yield


def needs(library: str):
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")


def cases(models, library: str = "jax"):
    return [pytest.param(make, id=make.__name__, marks=needs(library)) for make in models]


@pytest.mark.parametrize(
    "case", [*cases(PLAIN), *cases(FLAX, "flax"), *cases(EQUINOX, "equinox"), *cases(KERAS, "keras")]
)
@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.filterwarnings("ignore")
def test_own_weights_give_own_output(case, precision):
    with double_precision(precision == "float64"):
        if find_spec("keras"):
            import keras

            keras.config.set_floatx(precision)
        net, x = case()
        check = ns.check_import(net, x)
    assert check.difference <= (1e-5 if precision == "float32" or case in IN_SINGLE else 1e-12)
    assert abs(check.outputs).max() > 0


def test_laws_of_initialisers():
    """Against the formulas: he_normal rescales truncated normals, so that its variance is 2 / fan_in."""
    he, glorot = jax.nn.initializers.he_normal(), jax.nn.initializers.glorot_uniform()

    def init(key):
        a, b, c = jax.random.split(key, 3)
        return {
            "he": he(a, (40, 30)),
            "glorot": [glorot(b, (40, 30))],
            "shifted": 1.0 - 2 * jax.random.uniform(c, (7,), minval=1.0, maxval=2.0),
            "ones": jnp.ones(3),
            "orthogonal": jax.nn.initializers.orthogonal()(a, (50, 50)),
        }

    laws, _ = read_laws(init)
    assert laws["he"].var[0] == pytest.approx(2 / 40, rel=1e-4)
    assert laws["glorot.0"].var[0] == pytest.approx(2 / 70)
    assert (laws["shifted"].mean, laws["shifted"].var[0]) == (pytest.approx(-2), pytest.approx(4 / 12))
    assert laws["ones"].is_constant
    assert laws["orthogonal"].source == "measured"
    assert laws["orthogonal"].var[0] == pytest.approx(1 / 50, rel=0.05)


def test_kernels_of_plain_functions_equal_those_written_with_netsor():
    net, _ = PLAIN[0]()
    cell, v = ns.RNNCell(ns.tanh, var_w=1.5), ns.Matrix(1.0, rows=1)

    @ns.network
    def by_hand(tokens):
        state, states = 0, []
        for token in tokens:
            state = cell(state, token)
            states.append(state)
        return v @ ns.stack(states)

    xs = [SEQUENCE, SEQUENCE[:2] - 1]
    np.testing.assert_allclose(ns.kernel(net)(xs), ns.kernel(by_hand)(xs), rtol=1e-8)


def test_a_transformer_equals_the_one_written_with_netsor():
    net, x = PLAIN[2]()
    u, q, k, v, a = (ns.Matrix() for _ in range(5))
    o, b, head = ns.Matrix(), ns.Matrix(), ns.Matrix(rows=2)

    @ns.network
    def by_hand(x):
        h = u @ x
        z = ns.layernorm(h, eps=1e-5)
        h = h + o @ ns.attention(q @ z, k @ z, v @ z, causal=True)
        h = h + b @ ns.gelu(a @ ns.layernorm(h, eps=1e-5))
        return head @ ns.layernorm(h, eps=1e-5)

    np.testing.assert_allclose(ns.kernel(net)([x]), ns.kernel(by_hand)([x]), rtol=1e-8, atol=1e-12)


def test_masks_without_a_width_are_refused():
    def init(key, n):
        a, v = jax.random.split(key)
        return {"a": lecun(a, 5, n), "v": lecun(v, n, 1)}

    def apply(p, x):
        kept = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
        return jax.nn.relu(jnp.where(kept, x, 0) @ p["a"]) @ p["v"]

    with pytest.raises(BuildError, match="random numbers without a width are drawn"):
        ns.program(ns.from_jax(init, apply), VECTOR)


def test_arguments_are_checked():
    def init(key, n):
        return {"u": lecun(key, 5, n)}

    with pytest.raises(BuildError, match="width=1"):
        ns.from_jax(init, lambda p, x: x @ p["u"], width=1)
    with pytest.raises(BuildError, match="returns vectors"):
        ns.program(ns.from_jax(init, lambda p, x: x @ p["u"]), VECTOR)
    if find_spec("flax"):
        with pytest.raises(BuildError, match="no example"):
            ns.from_flax(lambda n: None)
