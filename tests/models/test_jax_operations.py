"""JAX primitives that have a rule, several in each small model: its own weights give its own output."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax, nn  # noqa: E402
from jax_models import SEQUENCE, double_precision, lecun  # noqa: E402

import netsor as ns  # noqa: E402


def functions(h):
    a = jnp.where(h > 0.1, h, -2 * h) + jnp.where(h < 0, 1.0, jnp.abs(h)) + jnp.maximum(h, h[::-1])
    b = jnp.clip(h, -0.3, 0.4) + h**3 + (1 + h * h) ** -1 + (1 + h * h) ** 1.5 + jnp.minimum(h, 0.2)
    c = nn.sigmoid(h) + nn.softplus(h) + nn.elu(h) + nn.gelu(h) + nn.silu(h) + nn.selu(h) + nn.relu6(h)
    d = jnp.expm1(h) + jnp.log1p(h * h) + jnp.sign(h) + lax.erf(h) + lax.erfc(h) + jnp.sin(h) * jnp.cos(h)
    return 0.1 * (a + b + c + d + lax.rsqrt(1 + h * h) + jnp.exp2(h) + nn.leaky_relu(h, 0.2))


def tokens(h):
    a = jnp.pad(h, ((1, 2), (0, 0)))[1:4] + jnp.concatenate([h[1:], h[:1]]) + jnp.roll(h, 1, 0)
    b = lax.dynamic_slice(h, (1, 0), (1, h.shape[1])) + h[jnp.array([2, 0, 1])] + h.min(0) + h.max(0)
    c = lax.reduce_window(h, 0.0, lax.add, (3, 1), (1, 1), "SAME") + jnp.tile(h[:1], (3, 1))
    d = nn.softmax(h @ h.T / h.shape[1]) @ h + jnp.stack([h, -h]).sum(0) + jnp.unstack(h[None])[0]
    return a + b + c + d


def blocks(h):
    first, second = jnp.split(h, 2, -1)
    joined = jnp.concatenate([second, first * second], -1)
    cut = h.reshape(3, 2, -1)
    return joined + (cut * cut.sum(1, keepdims=True)).reshape(h.shape) + nn.standardize(h)


def steps(h):
    grid = jnp.stack([h, h * h, jnp.sin(h), -h], 1)
    a = grid[::2, 1::2].sum((0, 1)) + grid[1::2, 3] + grid[::2, 1:3].sum((0, 1)) + grid[2, ::3].sum(0)
    b = grid[jnp.array([[0, 2], [1, 1]])].sum((0, 1, 2))
    swapped = jnp.stack([h[..., 1::2], h[..., ::2]], -1).reshape(h.shape)
    return a + b + swapped * h


def loops(h):
    def body(state):
        k, x = state
        return k + 1, jnp.tanh(x) + 0.1 * h

    _, x = lax.while_loop(lambda state: state[0] < 3, body, (0, h))
    _, sums = lax.scan(lambda total, row: (total + row, total), jnp.zeros(h.shape[1]), h, reverse=True)
    return x + sums + lax.fori_loop(0, 2, lambda k, y: y * (k + 1.0), h)


@pytest.mark.parametrize("fn", [functions, tokens, blocks, steps, loops])
def test_operations(fn):
    def init(key, n):
        a, b, c = jax.random.split(key, 3)
        return {"a": lecun(a, 5, n), "b": lecun(b, n, n), "c": lecun(c, n, 1)}

    with double_precision():
        net = ns.from_jax(init, lambda p, x: jnp.tanh(fn(x @ p["a"]) @ p["b"]) @ p["c"], width=8)
        check = ns.check_import(net, SEQUENCE)
    assert check.tolerance == 1e-12
    assert np.abs(check.outputs).max() > 0


@pytest.mark.parametrize("taken", [np.s_[::2], np.s_[1:, 0], np.array([2, 0, 0])])
def test_members_of_outputs(taken):
    def init(key, n):
        a, b = jax.random.split(key)
        return {"a": lecun(a, 5, n), "b": lecun(b, n, 1)}

    with double_precision():
        net = ns.from_jax(init, lambda p, x: (jnp.tanh(x @ p["a"]) @ p["b"])[taken])
        check = ns.check_import(net, SEQUENCE)
    assert check.outputs.shape == (2 if isinstance(taken, slice | tuple) else 3,)


def test_members_at_pairs_of_places_are_refused():
    def init(key, n):
        return {"a": lecun(key, 5, n)}

    def apply(p, x):
        return jnp.stack([x @ p["a"], -x @ p["a"]])[jnp.array([0, 1]), jnp.array([1, 2])]

    with pytest.raises(ns.NetsorError, match=r"gather: members are taken on several axes at once"):
        ns.program(ns.from_jax(init, apply), SEQUENCE)


def test_members_that_depend_on_the_data_are_refused():
    def init(key, n):
        return {"a": lecun(key, 5, n)}

    def apply(p, x):
        first = (x[:2, 0] > 0).astype(int)
        return jnp.stack([x @ p["a"], -x @ p["a"]])[first, 1 - first]

    with pytest.raises(
        ns.NetsorError, match=r"gather: members are taken at positions that depend on the data"
    ):
        ns.program(ns.from_jax(init, apply), SEQUENCE)


def test_a_loop_that_depends_on_values_is_refused():
    def init(key, n):
        return {"a": lecun(key, 5, n)}

    def apply(p, x):
        h = x @ p["a"]
        return lax.while_loop(lambda y: y.sum() > 0, lambda y: y - 1, h)

    with pytest.raises(ns.NetsorError, match=r"test_jax_operations\.py.*number of steps depends on values"):
        ns.program(ns.from_jax(init, apply), SEQUENCE)
