"""Models on JAX are checked by their own weights, too, without being asked."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import netsor as ns

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from netsor.build.joint_program import joint  # noqa: E402
from netsor.errors import SimulationError  # noqa: E402
from netsor.models import check as check_module  # noqa: E402
from netsor.models.check import own_weights, run_with  # noqa: E402
from netsor.models.jaxpr.graph import RULES  # noqa: E402

X = np.random.default_rng(0).standard_normal((3, 4))
SINE = RULES["sin"]


def init(key, n):
    u, w, v = jax.random.split(key, 3)
    hidden = jax.random.normal(w, (n, n)) / n**0.5
    return {"x": jax.random.normal(u, (4, n)), "Input": hidden, "v": jax.random.normal(v, (n, 1)) / n**0.5}


def apply(p, x):
    return jnp.sin(jax.nn.relu(x @ p["x"]) @ p["Input"]) @ p["v"]


def scanned(p, x):
    places = jnp.cos(jnp.arange(3.0))  # numbers that JAX computes while it reads the model
    total, _ = jax.lax.scan(lambda h, c: (h + c * jax.nn.relu(x @ p["x"]), None), 0.0 * (x @ p["x"]), places)
    return total @ p["v"]


def cancelling(p, x):
    return jnp.sin(((x @ p["x"]) + 1e5) - 1e5) @ p["v"]


def halved(reader, ins, *options):
    return RULES["mul"](reader, [SINE(reader, ins, *options), 0.5], *options)


@pytest.mark.parametrize("name", ["from_torch", "from_jax", "from_flax", "from_equinox", "from_keras"])
def test_all_fronts_check(name):
    if name == "from_torch":
        pytest.importorskip("torch")
    assert inspect.signature(getattr(ns, name)).parameters["check"].default is True


def test_a_wrong_rule_is_an_error_unless_the_check_is_off(monkeypatch):
    monkeypatch.setitem(RULES, "sin", halved)
    with pytest.raises(SimulationError, match=r"differs from the model by \d"):
        ns.kernel(ns.from_jax(init, apply, 16))(X)
    assert ns.kernel(ns.from_jax(init, apply, 16, check=False))(X).shape == (3, 3)


def test_outputs_with_the_squares_of_their_terms():
    """A program run with given weights, beside the same in NumPy: v^T y, and the sum of (v_i y_i)^2."""
    net = ns.from_jax(init, apply, 16, check=False)
    read = joint(net, [X[0]])
    weights = {name: np.asarray(p, float) for name, p in net.front.numbers().items()}
    terms = np.sin(np.maximum(X[0] @ weights["x"], 0.0) @ weights["Input"]) * weights["v"][:, 0]
    outputs, squares = run_with(read.program, own_weights(net, read))
    np.testing.assert_allclose(outputs, [terms.sum()], rtol=1e-12)
    np.testing.assert_allclose(squares, [np.sum(terms**2)], rtol=1e-12)


def test_an_output_that_is_small_by_chance_is_judged_by_its_terms(monkeypatch):
    """An error of 1e-6 of the terms is rounding of float32, however small their sum; 1e-3 is none."""
    net = ns.from_jax(init, apply, 16, check=False)
    read = joint(net, [X[0]])
    outputs, squares = run_with(read.program, own_weights(net, read))
    for error, least, most in ((1e-6, 0.9e-6, 1.1e-6), (1e-3, 0.9e-3, 1.1e-3)):
        shifted = np.zeros_like(outputs) + 1e-9, squares
        monkeypatch.setattr(check_module, "run_with", lambda *_, shifted=shifted: shifted)
        theirs = shifted[0] + error * np.sqrt(squares)
        monkeypatch.setattr(check_module, "model_outputs", lambda *_, theirs=theirs: theirs)
        assert least < check_module.compare(net, read, X[0])[0] < most


def test_float64_where_float32_cancels():
    check = ns.check_import(ns.from_jax(init, cancelling, 16), X[0])
    assert check.tolerance == 1e-5
    assert check.difference < 1e-9
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("fn", [apply, scanned])
def test_under_jit(fn):
    """The model is run on numbers while JAX traces the kernel."""
    net = ns.from_jax(init, fn, 16)
    found = jax.jit(ns.kernel(net))(jnp.asarray(X))
    assert net.checked == {((4,),)}
    np.testing.assert_allclose(found, ns.kernel(ns.from_jax(init, fn, 16))(X), rtol=1e-5)


@pytest.mark.parametrize("start", [0, 1])
def test_every_second_coordinate(start):
    """tanh of half of the coordinates, read out: half of the kernel."""

    def half(p, x):
        h = jnp.tanh(x @ p["x"])[..., start::2]
        return jnp.concatenate([h, 0.0 * h], -1) @ p["v"]

    def whole(p, x):
        return jnp.tanh(x @ p["x"]) @ p["v"]

    one, two = (ns.kernel(ns.from_jax(init, fn, 16))(X) for fn in (half, whole))
    np.testing.assert_allclose(one, two / 2, rtol=1e-12)
