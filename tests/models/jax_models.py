"""Models of JAX's libraries, and plain functions; each entry makes a network and an input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import netsor as ns

rng = np.random.default_rng(0)
VECTOR, SEQUENCE = rng.standard_normal(5), rng.standard_normal((3, 5))
IMAGE = rng.standard_normal((6, 6, 3))
TOKENS = np.array([1, 2, 7])
WIDTH = 16
HEADS: int | None = 2

Case = Callable[[], tuple[Any, Any]]


def lecun(key: Any, *shape: int, var: float = 1.0) -> Any:
    return jax.random.normal(key, shape) * jnp.sqrt(var / shape[0])


def heads(n: int) -> int:
    """The number of heads of an attention: fixed, with heads that grow in size, or heads of size 2."""
    return HEADS or n // 2


def double_precision(on: bool = True) -> Any:
    """A context of JAX in double precision; versions differ in where it is."""
    return jax.enable_x64(on) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(on)


def precision() -> dict[str, Any]:
    """Flax keeps its parameters in float32 unless told."""
    return {"param_dtype": jnp.result_type(float)}


# Plain functions


def scanned_rnn() -> tuple[Any, Any]:
    def init(key, n):
        w, u, b, v = jax.random.split(key, 4)
        return {
            "w": lecun(w, n, n, var=1.5),
            "u": lecun(u, 5, n),
            "b": jax.random.normal(b, (n,)),
            "v": lecun(v, n, 1),
        }

    def apply(p, x):
        def step(h, token):
            h = jnp.tanh(h @ p["w"] + token @ p["u"] + p["b"])
            return h, h

        _, states = jax.lax.scan(step, jnp.zeros(p["b"].shape), x)
        return states @ p["v"]

    return ns.from_jax(init, apply, WIDTH), SEQUENCE


def stacked_lstm() -> tuple[Any, Any]:
    """Four gates in one matrix; a loop of fixed length."""

    def init(key, n):
        w, u, b, v = jax.random.split(key, 4)
        return {
            "w": lecun(w, n, 4 * n),
            "u": lecun(u, 5, 4 * n),
            "b": jax.random.normal(b, (4 * n,)),
            "v": lecun(v, n, 1),
        }

    def apply(p, x):
        n = p["w"].shape[0]

        def step(t, carry):
            h, c = carry
            i, f, g, o = jnp.split(x[t] @ p["u"] + h @ p["w"] + p["b"], 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return jax.nn.sigmoid(o) * jnp.tanh(c), c

        h, _ = jax.lax.fori_loop(0, x.shape[0], step, (jnp.zeros(n), jnp.zeros(n)))
        return h @ p["v"]

    return ns.from_jax(init, apply, WIDTH), SEQUENCE


def plain_transformer() -> tuple[Any, Any]:
    """Causal attention with two heads and scores q.k/n; laws as the theory wants them."""

    def init(key, n):
        names = ("u", "q", "k", "v", "o", "a", "b")
        sizes = ((5, n), (n, n), (n, n), (n, n), (n, n), (n, 4 * n), (4 * n, n))
        keys = jax.random.split(key, 8)
        p = {name: lecun(k, *size) for name, size, k in zip(names, sizes, keys, strict=False)}
        return {**p, "head": lecun(keys[7], n, 2)}

    def norm(h):
        centred = h - h.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    def apply(p, x):
        h = x @ p["u"]
        t, n = h.shape
        q, k, v = ((norm(h) @ p[c]).reshape(t, 2, n // 2) for c in "qkv")
        scores = jnp.einsum("thd,shd->hts", q, k) / (n // 2)
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
        h = h + jnp.einsum("hts,shd->thd", jax.nn.softmax(scores), v).reshape(t, n) @ p["o"]
        h = h + jax.nn.gelu(norm(h) @ p["a"], approximate=False) @ p["b"]
        return norm(h) @ p["head"]

    return ns.from_jax(init, apply, WIDTH, scales="strict"), SEQUENCE


def plain_cnn() -> tuple[Any, Any]:
    def init(key, n):
        a, b, v = jax.random.split(key, 3)
        he = jax.nn.initializers.he_normal()
        return {"a": he(a, (3, 3, 3, n), float), "b": he(b, (3, 3, n, n), float), "v": lecun(v, n, 1)}

    def apply(p, x):
        form = ("NHWC", "HWIO", "NHWC")
        h = jax.nn.relu(jax.lax.conv_general_dilated(x[None], p["a"], (1, 1), "SAME", dimension_numbers=form))
        h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        h = jax.nn.relu(jax.lax.conv_general_dilated(h, p["b"], (2, 2), "SAME", dimension_numbers=form))
        return h.mean((1, 2)) @ p["v"]

    return ns.from_jax(init, apply, WIDTH), IMAGE


def up_and_down() -> tuple[Any, Any]:
    def init(key, n):
        a, b, v = jax.random.split(key, 3)
        return {"a": lecun(a, 5, n), "b": jax.random.normal(b, (4, n, n)) / n**0.5, "v": lecun(v, n, 1)}

    def apply(p, x):
        h = jax.nn.relu(x @ p["a"])[None]
        h = jax.lax.conv_transpose(h, p["b"], (2,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"))
        return jnp.tanh(h) @ p["v"]

    return ns.from_jax(init, apply, WIDTH), SEQUENCE


def plain_dropout() -> tuple[Any, Any]:
    """Two masks, and one for all tokens."""

    def init(key, n):
        a, b, v = jax.random.split(key, 3)
        return {"a": lecun(a, 5, n), "b": lecun(b, n, n), "v": lecun(v, n, 2)}

    def apply(p, x):
        one, two, three = jax.random.split(jax.random.key(7), 3)
        h = jax.nn.relu(x @ p["a"])
        h = jnp.where(jax.random.bernoulli(one, 0.7, h.shape), h / 0.7, 0) @ p["b"]
        h = h * jax.random.bernoulli(two, 0.8, h.shape[-1:]) / 0.8
        return (jnp.tanh(h) * jax.random.bernoulli(three, 0.5, h.shape)) @ p["v"]

    return ns.from_jax(init, apply, WIDTH), SEQUENCE


# Flax


def nnx_dropout() -> tuple[Any, Any]:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, n, rngs):
            self.a, self.b = (nnx.Linear(k, n, rngs=rngs, **precision()) for k in (5, n))
            self.drop, self.more = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)
            self.v = nnx.Linear(n, 1, rngs=rngs, **precision())

        def __call__(self, x):
            return self.v(self.more(nnx.relu(self.b(self.drop(nnx.relu(self.a(x)))))))

    return ns.from_flax(Net, WIDTH, train=True), SEQUENCE


def linen_dropout() -> tuple[Any, Any]:
    import flax.linen as nn

    class Net(nn.Module):
        n: int

        @nn.compact
        def __call__(self, x):
            h = nn.relu(nn.Dense(self.n, **precision())(x))
            return nn.Dense(1, **precision())(nn.Dropout(0.3, deterministic=False)(h))

    return ns.from_flax(Net, WIDTH, example=VECTOR, train=True), VECTOR


def nnx_mlp() -> tuple[Any, Any]:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, n, rngs):
            self.a, self.b = (
                nnx.Linear(5, n, rngs=rngs, **precision()),
                nnx.Linear(n, n, rngs=rngs, **precision()),
            )
            self.norm, self.drop = nnx.LayerNorm(n, rngs=rngs, **precision()), nnx.Dropout(0.5, rngs=rngs)
            self.v = nnx.Linear(n, 3, rngs=rngs, **precision())

        def __call__(self, x):
            return self.v(self.drop(nnx.gelu(self.norm(self.b(nnx.relu(self.a(x)))))))

    return ns.from_flax(Net, WIDTH), VECTOR


def nnx_cnn() -> tuple[Any, Any]:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, n, rngs):
            self.a, self.b = (
                nnx.Conv(3, n, (3, 3), rngs=rngs, **precision()),
                nnx.Conv(n, n, (3, 3), strides=2, rngs=rngs, **precision()),
            )
            self.norm, self.v = (
                nnx.BatchNorm(n, rngs=rngs, **precision()),
                nnx.Linear(n, 1, rngs=rngs, **precision()),
            )

        def __call__(self, x):
            x = nnx.avg_pool(nnx.relu(self.norm(self.a(x))), (2, 2), (2, 2))
            return self.v(nnx.relu(self.b(x)).mean((1, 2)))

    return ns.from_flax(Net, WIDTH), IMAGE


def nnx_transformer() -> tuple[Any, Any]:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, n, rngs):
            self.e, self.norm = (
                nnx.Linear(5, n, rngs=rngs, **precision()),
                nnx.LayerNorm(n, rngs=rngs, **precision()),
            )
            self.attention = nnx.MultiHeadAttention(heads(n), n, decode=False, rngs=rngs, **precision())
            self.f, self.g = (
                nnx.Linear(n, 4 * n, rngs=rngs, **precision()),
                nnx.Linear(4 * n, n, rngs=rngs, **precision()),
            )
            self.v = nnx.Linear(n, 1, rngs=rngs, **precision())

        def __call__(self, x):
            h = self.e(x)
            h = h + self.attention(self.norm(h))
            return self.v(h + self.g(nnx.relu(self.f(h))))

    return ns.from_flax(Net, WIDTH, scales="width"), SEQUENCE


def nnx_lstm() -> tuple[Any, Any]:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, n, rngs):
            self.rnn, self.v = (
                nnx.RNN(nnx.LSTMCell(5, n, rngs=rngs, **precision())),
                nnx.Linear(n, 1, rngs=rngs, **precision()),
            )

        def __call__(self, x):
            return self.v(self.rnn(x))

    return ns.from_flax(Net, WIDTH), SEQUENCE


def linen_mlp() -> tuple[Any, Any]:
    import flax.linen as nn

    def make(n):
        return nn.Sequential(
            [
                nn.Dense(n, **precision()),
                nn.tanh,
                nn.Dense(n, **precision()),
                nn.swish,
                nn.Dense(1, **precision()),
            ]
        )

    return ns.from_flax(make, WIDTH, example=VECTOR), VECTOR


def linen_cnn() -> tuple[Any, Any]:
    import flax.linen as nn

    class Net(nn.Module):
        n: int

        @nn.compact
        def __call__(self, x):
            x = nn.relu(
                nn.BatchNorm(use_running_average=True, **precision())(
                    nn.Conv(self.n, (3, 3), **precision())(x)
                )
            )
            x = nn.max_pool(x, (2, 2), (2, 2))
            x = nn.relu(nn.Conv(self.n, (3, 3), feature_group_count=2, **precision())(x))
            return nn.Dense(1, **precision())(x.reshape(x.shape[0], -1))

    return ns.from_flax(Net, WIDTH, example=IMAGE), IMAGE


def linen_transformer() -> tuple[Any, Any]:
    import flax.linen as nn

    class Net(nn.Module):
        n: int

        @nn.compact
        def __call__(self, tokens):
            h = nn.Embed(11, self.n, **precision())(tokens) + nn.Embed(8, self.n, **precision())(
                jnp.arange(tokens.shape[-1])
            )
            h = h + nn.SelfAttention(heads(self.n), **precision())(nn.LayerNorm(**precision())(h))
            h = h + nn.Dense(self.n, **precision())(
                nn.gelu(nn.Dense(4 * self.n, **precision())(nn.LayerNorm(**precision())(h)))
            )
            return nn.Dense(1, **precision())(h)

    return ns.from_flax(Net, WIDTH, example=TOKENS, tokens=True, scales="width"), TOKENS


def linen_lstm() -> tuple[Any, Any]:
    import flax.linen as nn

    class Net(nn.Module):
        n: int

        @nn.compact
        def __call__(self, x):
            return nn.Dense(1, **precision())(nn.RNN(nn.LSTMCell(self.n, **precision()))(x))

    return ns.from_flax(Net, WIDTH, example=SEQUENCE), SEQUENCE


# Equinox


def equinox_mlp() -> tuple[Any, Any]:
    import equinox as eqx

    return ns.from_equinox(lambda n, key: eqx.nn.MLP(5, 1, n, 2, jax.nn.silu, key=key), WIDTH), VECTOR


def equinox_cnn() -> tuple[Any, Any]:
    import equinox as eqx

    def make(n, key):
        a, b, v = jax.random.split(key, 3)
        return eqx.nn.Sequential(
            [
                *(
                    eqx.nn.Conv2d(3, n, 3, padding=1, key=a),
                    eqx.nn.Lambda(jax.nn.relu),
                    eqx.nn.MaxPool2d(2, 2),
                ),
                *(eqx.nn.ConvTranspose2d(n, n, 2, stride=2, key=b), eqx.nn.Lambda(jax.nn.relu)),
                *(eqx.nn.AdaptiveAvgPool2d(1), eqx.nn.Lambda(jnp.ravel), eqx.nn.Linear(n, 1, key=v)),
            ]
        )

    return ns.from_equinox(make, WIDTH), IMAGE.transpose(2, 0, 1)


def equinox_transformer() -> tuple[Any, Any]:
    import equinox as eqx

    class Net(eqx.Module):
        e: eqx.nn.Linear
        attention: eqx.nn.MultiheadAttention
        norm: eqx.nn.LayerNorm
        v: eqx.nn.Linear

        def __init__(self, n, key):
            a, b, c = jax.random.split(key, 3)
            self.e, self.v = eqx.nn.Linear(5, n, key=a), eqx.nn.Linear(n, 1, key=c)
            self.attention, self.norm = (
                eqx.nn.MultiheadAttention(heads(n), n, key=b),
                eqx.nn.LayerNorm(n),
            )

        def __call__(self, x):
            h = jax.vmap(self.e)(x)
            h = h + self.attention(h, h, h)
            return jax.vmap(self.v)(jax.nn.gelu(jax.vmap(self.norm)(h)))

    return ns.from_equinox(Net, WIDTH, scales="width"), SEQUENCE


def equinox_lstm() -> tuple[Any, Any]:
    import equinox as eqx

    class Net(eqx.Module):
        cell: eqx.nn.LSTMCell
        v: eqx.nn.Linear

        def __init__(self, n, key):
            a, b = jax.random.split(key)
            self.cell, self.v = eqx.nn.LSTMCell(5, n, key=a), eqx.nn.Linear(n, 1, key=b)

        def __call__(self, x):
            zero = jnp.zeros(self.cell.hidden_size)
            (h, _), _ = jax.lax.scan(lambda carry, token: (self.cell(token, carry), None), (zero, zero), x)
            return self.v(h)

    return ns.from_equinox(Net, WIDTH), SEQUENCE


def equinox_dropout() -> tuple[Any, Any]:
    import equinox as eqx

    def make(n, key):
        a, b, v = jax.random.split(key, 3)
        return eqx.nn.Sequential(
            [
                *(eqx.nn.Linear(5, n, key=a), eqx.nn.Lambda(jax.nn.relu), eqx.nn.Dropout(0.4)),
                *(eqx.nn.Linear(n, n, key=b), eqx.nn.Lambda(jnp.tanh), eqx.nn.Linear(n, 1, key=v)),
            ]
        )

    return ns.from_equinox(make, WIDTH, train=True), VECTOR


# Keras


def keras_mlp() -> tuple[Any, Any]:
    import keras

    def make(n):
        layers = keras.layers
        return keras.Sequential(
            [
                *(keras.Input((5,)), layers.Dense(n, "relu"), layers.LayerNormalization()),
                *(layers.Dropout(0.5), layers.Dense(n, "gelu"), layers.Dense(1)),
            ]
        )

    return ns.from_keras(make, WIDTH), VECTOR


def keras_cnn() -> tuple[Any, Any]:
    import keras

    def make(n):
        layers = keras.layers
        start = keras.Input((6, 6, 3))
        h = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(n, 3, padding="same")(start)))
        h = layers.MaxPooling2D()(h)
        h = layers.Add()([h, layers.Conv2D(n, 3, padding="same", activation="relu")(h)])
        return keras.Model(start, layers.Dense(1)(layers.GlobalAveragePooling2D()(h)))

    return ns.from_keras(make, WIDTH), IMAGE


def keras_transformer() -> tuple[Any, Any]:
    import keras

    def make(n):
        layers = keras.layers
        start = keras.Input((3, 5))
        h = layers.Dense(n)(start)
        h = layers.LayerNormalization()(h + layers.MultiHeadAttention(heads(n), n // heads(n))(h, h))
        return keras.Model(start, layers.Dense(1)(h + layers.Dense(n)(layers.Dense(4 * n, "relu")(h))))

    return ns.from_keras(make, WIDTH, scales="width"), SEQUENCE


def keras_lstm() -> tuple[Any, Any]:
    import keras

    def make(n):
        layers = keras.layers
        lstm = layers.LSTM(n, return_sequences=True, unit_forget_bias=False)
        return keras.Sequential([keras.Input((3, 5)), lstm, layers.Dense(1)])

    return ns.from_keras(make, WIDTH), SEQUENCE


PLAIN: list[Case] = [scanned_rnn, stacked_lstm, plain_transformer, plain_cnn, up_and_down, plain_dropout]
FLAX: list[Case] = [
    *(nnx_mlp, nnx_cnn, nnx_transformer, nnx_lstm),
    *(linen_mlp, linen_cnn, linen_transformer, linen_lstm),
    *(nnx_dropout, linen_dropout),
]
EQUINOX: list[Case] = [equinox_mlp, equinox_cnn, equinox_transformer, equinox_lstm, equinox_dropout]
KERAS: list[Case] = [keras_mlp, keras_cnn, keras_transformer, keras_lstm]
