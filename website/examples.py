"""Examples of public names whose docstrings have none, and the most common mistake with each name.

Both run when the site is built, which shows what they print, and in the tests.
"""

from __future__ import annotations

import ast
import contextlib
import io
from importlib.util import find_spec
from textwrap import dedent
from typing import Any

from netsor.errors import NetsorError

__all__ = ["ERRORS", "EXAMPLES", "message", "missing", "session", "with_imports"]

IMPORTS = {"np.": "import numpy as np", "ns.": "import netsor as ns"}


# What examples of these names need besides the package itself.
NEEDS = {
    "netsor.gp.Store": "zarr",
    "netsor.gp.store": "zarr",
    "netsor.models.check_import": "jax",
    "netsor.models.from_equinox": "equinox",
    "netsor.models.from_flax": "flax",
    "netsor.models.from_jax": "jax",
    "netsor.models.from_keras": "keras",
    "netsor.models.from_torch": "torch",
    "netsor.models.report_laws": "jax",
    "netsor.plots": "matplotlib",
    "netsor.report": "jinja2",
    "netsor.sklearn": "sklearn",
}


def missing(name: str) -> str:
    """The library that the example of a name needs and that is not installed, or nothing."""
    needed = next((library for start, library in NEEDS.items() if name.startswith(start)), "")
    return needed if needed and find_spec(needed) is None else ""


def session(code: str) -> str:
    """Code as typed into an interactive session, with what it prints.

    >>> print(session("x = 2\\nx + 1"))
    >>> x = 2
    >>> x + 1
    3
    """
    lines: list[str] = []
    names: dict[str, Any] = {"__name__": "example"}
    text = with_imports(code)
    for statement in ast.parse(text).body:
        decorators = getattr(statement, "decorator_list", [])
        start = decorators[0].lineno - 1 if decorators else statement.lineno - 1
        source = "\n".join(text.splitlines()[start : statement.end_lineno])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Interactive([statement]), "<example>", "single"), names)
        first, *others = source.splitlines()
        lines += [f">>> {first}", *(f"... {line}" for line in others), *printed.getvalue().splitlines()]
    return "\n".join(lines)


def with_imports(code: str) -> str:
    """The code with the imports that it needs."""
    text = dedent(code).strip()
    return "\n".join([*(line for use, line in IMPORTS.items() if use in text), text])


def message(code: str) -> str:
    """The error that code ends with, as users see it."""
    names: dict[str, Any] = {}
    try:
        exec(compile("\n".join(IMPORTS.values()), "imports", "exec"), names)
        exec(compile(code, "my_net.py", "exec"), names)
    except NetsorError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"no error: {code}")


EXAMPLES = {
    "netsor.Network": """
        net = ns.zoo.mlp(depth=2)
        net
        list(net.parameters().values())
    """,
    "netsor.stack": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.stack([ns.relu(W @ x), ns.tanh(W @ x)]))
        ns.kernel(net)([[1.0, 2.0]]).round(3)
    """,
    "netsor.concat": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.concat([W @ x[:1], ns.relu(W @ x[1:])]))
        ns.kernel(net)([np.eye(3)]).shape
    """,
    "netsor.sum": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.sum(ns.relu(W @ x), axis=0))
        ns.kernel(net)([np.eye(3)]).round(4)
    """,
    "netsor.mean": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        pooled = ns.network(lambda x: v @ ns.mean(ns.relu(W @ x), axis=0))  # over tokens
        ns.kernel(pooled)([np.eye(3)]).round(4)
        centred = ns.network(lambda x: v @ (ns.relu(W @ x) - ns.mean(ns.relu(W @ x))))  # over the width
        ns.kernel(centred)([[1.0, 0.0, 0.0]]).round(4)
    """,
    "netsor.dot": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ (ns.relu(W @ x) / ns.sqrt(ns.dot(W @ x, W @ x))))
        print(ns.program(net, [3.0, 4.0]))
    """,
    "netsor.max": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.max(W @ x, axis=0))
        ns.kernel(net)([np.eye(2)]).round(4)
    """,
    "netsor.min": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.min(W @ x, axis=0))
        ns.kernel(net)([np.eye(2)]).round(4)
    """,
    "netsor.softmax": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)

        @ns.network
        def attend(x):
            h = W @ x
            weights = ns.softmax(ns.dot(h[:, None], h[None, :]))
            return v @ ns.contract(weights, h)

        ns.kernel(attend)([np.eye(2)]).round(4)
    """,
    "netsor.flatten": """
        W, V, v = ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.relu(V @ ns.flatten(ns.relu(W @ x))))
        ns.kernel(net)([np.eye(3)]).round(4)
    """,
    "netsor.reshape": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.max(ns.reshape(W @ x, (2, 2)), axis=1))
        ns.kernel(net)([np.eye(4)]).shape
    """,
    "netsor.pad": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.pad(W @ x, [(1, 0)]))
        ns.kernel(net)([np.eye(2)])
    """,
    "netsor.contract": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        blur = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
        net = ns.network(lambda x: v @ ns.contract(blur, W @ x))
        ns.kernel(net)([3 * np.eye(3)])
    """,
    "netsor.Conv1d": """
        conv, v = ns.Conv1d(3), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.global_mean_pool(ns.relu(conv(x))))
        ns.kernel(net)([np.eye(5), np.ones((5, 5))]).round(4)
    """,
    "netsor.Conv2d": """
        conv, v = ns.Conv2d(3, padding="circular"), ns.Matrix(rows=1)
        net = ns.network(lambda image: v @ ns.global_mean_pool(ns.relu(conv(image))))
        ns.kernel(net)([np.ones((4, 4, 3))]).round(4)
    """,
    "netsor.mean_pool": """
        conv, v = ns.Conv2d(3), ns.Matrix(rows=1)
        net = ns.network(lambda image: v @ ns.flatten(ns.mean_pool(ns.relu(conv(image)), 2)))
        ns.kernel(net)([np.ones((4, 4, 3))]).round(4)
    """,
    "netsor.max_pool": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.max_pool(W @ x, 2))
        ns.kernel(net)([np.eye(4)]).round(3)
    """,
    "netsor.global_mean_pool": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.global_mean_pool(ns.relu(W @ x)))
        ns.kernel(net)([np.eye(3)]).round(4)
    """,
    "netsor.global_max_pool": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.global_max_pool(W @ x))
        ns.kernel(net)([np.eye(2)]).round(4)
    """,
    "netsor.upsample": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.upsample(W @ x, 2))
        ns.kernel(net)([np.eye(2)])
    """,
    "netsor.Conv3d": """
        conv, v = ns.Conv3d(2), ns.Matrix(rows=1)
        net = ns.network(lambda video: v @ ns.global_mean_pool(ns.relu(conv(video))))
        ns.kernel(net)([np.ones((2, 3, 3, 1))]).round(4)
    """,
    "netsor.sum_pool": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.sum_pool(W @ x, 2))
        ns.kernel(net)([np.eye(4)])
    """,
    "netsor.abrelu": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.abrelu(W @ x, -0.5, 2.0))
        ns.kernel(net)([[1.0, 0.0], [0.0, 1.0]]).round(4)
    """,
    "netsor.gabor": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.gabor(W @ x))
        ns.kernel(net)([[1.0, 0.0], [0.6, 0.8]]).round(4)
    """,
    "netsor.gelu_tanh": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.gelu_tanh(W @ x))
        ns.kernel(net)([[1.0, 0.0], [0.6, 0.8]]).round(4)
    """,
    "netsor.monomial": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.monomial(W @ x, 3))
        ns.kernel(net)([[1.0, 1.0]]).round(4)  # E[h^6] = 15
    """,
    "netsor.rectified_monomial": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.rectified_monomial(W @ x, 2))
        ns.kernel(net)([[1.0, 1.0]]).round(4)  # E[h^4] / 2
    """,
    "netsor.sigmoid_like": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.sigmoid_like(W @ x))
        ns.kernel(net)([[1.0, 0.0], [0.6, 0.8]]).round(4)
    """,
    "netsor.batchnorm": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda batch: v @ ns.relu(ns.batchnorm(W @ batch)))  # one input is a batch
        ns.kernel(net)([np.eye(4)]).round(4)
    """,
    "netsor.layernorm": """
        W, v = ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.layernorm(ns.relu(W @ x)))
        ns.kernel(net)([[1.0, 0.0], [0.0, 5.0]]).round(4)
    """,
    "netsor.Attention": """
        attend, v = ns.Attention(heads=2), ns.Matrix(rows=1)
        net = ns.network(lambda tokens: v @ attend(tokens))
        ns.kernel(net)([np.eye(3)]).round(3)
    """,
    "netsor.attention": """
        Q, K, V, v = ns.Matrix(), ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)
        net = ns.network(lambda x: v @ ns.attention(Q @ x, K @ x, V @ x, causal=True))
        ns.kernel(net)([np.eye(3)]).round(3)
    """,
    "netsor.RNNCell": """
        cell, v = ns.RNNCell(ns.tanh, var_w=1.5), ns.Matrix(rows=1)

        @ns.network
        def last(tokens):
            state = 0
            for token in tokens:
                state = cell(state, token)
            return v @ state

        ns.kernel(last)([np.eye(3), np.eye(3)[::-1]]).round(4)
    """,
    "netsor.GRUCell": """
        cell, v = ns.GRUCell(), ns.Matrix(rows=1)

        @ns.network
        def last(tokens):
            state = 0
            for token in tokens:
                state = cell(state, token)
            return v @ state

        ns.kernel(last)([np.eye(2)]).round(3)
    """,
    "netsor.LSTMCell": """
        cell, v = ns.LSTMCell(), ns.Matrix(rows=1)

        @ns.network
        def last(tokens):
            state = (0, 0)
            for token in tokens:
                state = cell(state, token)
            return v @ state[0]

        ns.kernel(last)([np.eye(2)]).round(2)
    """,
    "netsor.GraphConv": """
        path = ns.normalized_adjacency([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
        conv, v = ns.GraphConv(), ns.Matrix(rows=1)
        net = ns.network(lambda features: v @ ns.relu(conv(features, path)))
        ns.kernel(net)([np.eye(3)]).round(4)
    """,
    "netsor.zoo.mlp": """
        ns.kernel(ns.zoo.mlp(depth=3, phi=ns.erf, var_w=2.0, var_b=0.1))([[1.0, 0.0], [0.0, 1.0]]).round(4)
    """,
    "netsor.zoo.resnet": """
        ns.kernel(ns.zoo.resnet(depth=3))([[1.0, 0.0], [0.0, 1.0]]).round(4)
    """,
    "netsor.zoo.densenet": """
        ns.kernel(ns.zoo.densenet(depth=3))([[1.0, 0.0], [0.0, 1.0]]).round(4)
    """,
    "netsor.zoo.layernorm_mlp": """
        ns.kernel(ns.zoo.layernorm_mlp(depth=2))([[1.0, 0.0], [0.0, 1.0]]).round(4)
    """,
    "netsor.zoo.batchnorm_mlp": """
        batch = np.eye(4)
        ns.kernel(ns.zoo.batchnorm_mlp(depth=2))([batch]).round(4)
    """,
    "netsor.zoo.cnn": """
        ns.kernel(ns.zoo.cnn(depth=2, readout="gap"))([np.ones((4, 4, 1)), np.zeros((4, 4, 1))]).round(4)
    """,
    "netsor.zoo.graph_conv": """
        square = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]) / 2
        ns.kernel(ns.zoo.graph_conv(depth=2, readout="mean"))([(np.eye(4), square)]).round(4)
    """,
    "netsor.zoo.simple_rnn": """
        ns.kernel(ns.zoo.simple_rnn(phi=ns.tanh))([np.eye(3)]).round(4)
    """,
    "netsor.zoo.gru": """
        ns.kernel(ns.zoo.gru())([np.eye(2)]).round(3)
    """,
    "netsor.zoo.lstm": """
        ns.kernel(ns.zoo.lstm())([np.eye(2)]).round(2)
    """,
    "netsor.zoo.transformer": """
        ns.kernel(ns.zoo.transformer(depth=2))([np.eye(3)]).round(3)
    """,
    "netsor.program": """
        print(ns.program(ns.zoo.mlp(depth=1), [1.0, 2.0]))
    """,
    "netsor.Options": """
        ns.Options(method="exact", seed=1)
    """,
    "netsor.limits.KernelFn": """
        K = ns.kernel(ns.zoo.mlp(depth=2))
        x, y = np.eye(3), np.ones((2, 3))
        K(x).shape, K(x, y).shape, K.diag(x).shape
        K.params
        K(x, params={"W2": 2.0})[0, 0].round(4)
        K.evaluate(x).error.max() < 1e-12
    """,
    "netsor.limits.Limit": """
        L = ns.limit(ns.zoo.mlp(depth=1), [1.0, 2.0])
        L.sigma("h1"), L.mu("h1")
    """,
    "netsor.limits.Plan": """
        plan = ns.kernel(ns.zoo.gru()).plan([np.eye(3)])
        plan.exact, plan.sampling.families
        plan.methods["E[erf erf]"]
    """,
    "netsor.limits.Result": """
        found = ns.kernel(ns.zoo.mlp(depth=2, phi=ns.tanh)).evaluate(np.eye(2))
        found.value.round(4)
        found.error.max() < 1e-12
        print(found.explain())
    """,
    "netsor.limits.TangentKernelFn": """
        theta = ns.ntk(ns.zoo.mlp(depth=2))
        nngp, ntk = theta.both(np.eye(2))
        nngp.round(4), ntk.round(4)
        list(theta.parts(np.eye(2)))
    """,
    "netsor.empirical_kernel": """
        found = ns.empirical_kernel(ns.zoo.mlp(2), np.eye(2), width=200, samples=20, seed=0)
        found.mean(0).round(2), ns.kernel(ns.zoo.mlp(2))(np.eye(2)).round(2)
    """,
    "netsor.verify.Verification": """
        found = ns.verify(ns.zoo.mlp(2), np.eye(2), widths=(32, 128), samples=20)
        print(found)
        found.ok
    """,
    "netsor.gp.fit": """
        x = np.linspace(-2, 2, 9)[:, None]
        model = ns.gp.fit(ns.kernel(ns.zoo.mlp(depth=3)), x, np.sin(x[:, 0]), noise=1e-4)
        model.predict([[0.3]]).mean.round(3), np.sin(0.3).round(3)
    """,
    "netsor.gp.GP": """
        x = np.linspace(-2, 2, 9)[:, None]
        model = ns.gp.fit(ns.kernel(ns.zoo.mlp(depth=3)), x, np.sin(x[:, 0]), noise=1e-4)
        model
        round(model.log_marginal_likelihood(), 2)
        model.leave_one_out().mean.shape, model.sample([[0.3]], samples=5, seed=0).shape
    """,
    "netsor.gp.Prediction": """
        x = np.linspace(-2, 2, 9)[:, None]
        model = ns.gp.fit(ns.kernel(ns.zoo.mlp(depth=3)), x, np.sin(x[:, 0]), noise=1e-4)
        found = model.predict([[0.3], [5.0]], cov=True)
        found.std.round(3), found.cov.shape
    """,
    "netsor.gp.sample": """
        x = np.linspace(-2, 2, 50)[:, None]
        ns.gp.sample(ns.kernel(ns.zoo.mlp(depth=3)), x, samples=4, seed=0).shape
    """,
    "netsor.gp.tune": """
        x = np.linspace(-2, 2, 9)[:, None]
        options = {"noise": 0.1, "method": "nelder-mead", "steps": 20}
        found = ns.gp.tune(ns.kernel(ns.zoo.mlp(1)), x, np.sin(x[:, 0]), **options)
        found.value > found.start
    """,
    "netsor.gp.Tuned": """
        x = np.linspace(-2, 2, 9)[:, None]
        options = {"noise": 0.1, "method": "nelder-mead", "steps": 20}
        found = ns.gp.tune(ns.kernel(ns.zoo.mlp(1)), x, np.sin(x[:, 0]), **options)
        found.method, found.model
    """,
    "netsor.gp.kernel_gradient": """
        K = ns.kernel(ns.zoo.mlp(1))
        value, slope = ns.gp.kernel_gradient(K, np.eye(2))
        value.shape, slope.shape
    """,
    "netsor.gp.Trained": """
        x = np.linspace(-1, 1, 6)[:, None]
        model = ns.gp.train(ns.zoo.mlp(2), x, np.sin(3 * x[:, 0]))
        model.predict([[0.5]], time=10.0).mean.round(3), model.predict([[0.5]]).mean.round(3)
        model.loss([0.0, 10.0, 1000.0]).round(4)
    """,
    "netsor.gp.Classifier": """
        x, labels = np.eye(4), ["a", "a", "b", "b"]
        model = ns.gp.classify(ns.kernel(ns.zoo.mlp(2)), x, labels, noise=0.1)
        model.predict(x)
        model.probabilities(x).round(2)
    """,
    "netsor.gp.save": """
        import tempfile, pathlib
        model = ns.gp.fit(ns.kernel(ns.zoo.mlp(2)), np.eye(3), [1.0, 2.0, 3.0], noise=0.1)
        path = pathlib.Path(tempfile.mkdtemp()) / "model.npz"
        ns.gp.save(model, path)
        path.exists()
    """,
    "netsor.gp.load": """
        import tempfile, pathlib
        model = ns.gp.fit(ns.kernel(ns.zoo.mlp(2)), np.eye(3), [1.0, 2.0, 3.0], noise=0.1)
        path = pathlib.Path(tempfile.mkdtemp()) / "model.npz"
        ns.gp.save(model, path)
        again = ns.gp.load(path, ns.zoo.mlp(2))
        np.array_equal(again.predict(np.eye(3)).mean, model.predict(np.eye(3)).mean)
    """,
    "netsor.sklearn.NNGPClassifier": """
        from netsor.sklearn import NNGPClassifier
        model = NNGPClassifier(ns.zoo.mlp(2), noise=0.1).fit(np.eye(4), ["a", "a", "b", "b"])
        model.predict(np.eye(4))
    """,
    "netsor.sklearn.NNGPGram": """
        from netsor.sklearn import NNGPGram
        NNGPGram(ns.zoo.mlp(2)).fit_transform(np.eye(3)).round(4)
    """,
    "netsor.models.from_torch": """
        import torch
        make = lambda n: torch.nn.Sequential(torch.nn.Linear(3, n), torch.nn.ReLU(), torch.nn.Linear(n, 1))
        net = ns.from_torch(make)
        ns.kernel(net)(np.eye(3)).round(4)
    """,
    "netsor.models.from_jax": """
        import jax
        def init(key, n):
            first, second = jax.random.split(key)
            return jax.random.normal(first, (n, 3)), jax.random.normal(second, (n,)) / n**0.5
        def apply(params, x):
            return params[1] @ jax.numpy.maximum(params[0] @ x, 0)
        net = ns.from_jax(init, apply)
        ns.kernel(net)(np.eye(3)).round(4)
    """,
    "netsor.models.from_flax": """
        from flax import nnx
        def make(n, rngs):
            return nnx.Sequential(nnx.Linear(3, n, rngs=rngs), nnx.relu, nnx.Linear(n, 1, rngs=rngs))
        net = ns.from_flax(make)
        ns.kernel(net)(np.eye(3)).round(4)
    """,
    "netsor.models.from_equinox": """
        import equinox, jax
        make = lambda n, key: equinox.nn.MLP(3, 1, n, 1, jax.nn.relu, key=key)
        net = ns.from_equinox(make)
        ns.kernel(net)(np.eye(3)).round(4)
    """,
    "netsor.models.from_keras": """
        import os
        os.environ["KERAS_BACKEND"] = "jax"
        from keras import Input, Sequential, layers
        make = lambda n: Sequential([Input((3,)), layers.Dense(n, "relu"), layers.Dense(1)])
        net = ns.from_keras(make)
        ns.kernel(net)(np.eye(3)).round(4)
    """,
    "netsor.models.check_import": """
        import jax
        normal = jax.random.normal
        init = lambda key, n: {"w": normal(key, (n, 3)), "v": normal(key, (n,)) / n**0.5}
        net = ns.from_jax(init, lambda p, x: p["v"] @ jax.numpy.tanh(p["w"] @ x))
        print(ns.check_import(net, [1.0, 2.0, 2.0]))
    """,
    "netsor.models.report_laws": """
        import jax
        normal = jax.random.normal
        init = lambda key, n: {"w": normal(key, (n, 3)), "v": normal(key, (n,)) / n**0.5}
        net = ns.from_jax(init, lambda p, x: p["v"] @ jax.numpy.tanh(p["w"] @ x))
        print(ns.report_laws(net))
    """,
    "netsor.gp.store": """
        import tempfile, pathlib
        path = pathlib.Path(tempfile.mkdtemp()) / "K.zarr"
        store = ns.gp.store(ns.kernel(ns.zoo.mlp(2)), np.eye(6), path, tile=3, progress=False)
        print(store.status())
    """,
    "netsor.gp.Store": """
        import tempfile, pathlib
        path = pathlib.Path(tempfile.mkdtemp()) / "K.zarr"
        made = ns.gp.store(ns.kernel(ns.zoo.mlp(2)), np.eye(6), path, tile=3, progress=False)
        opened = ns.gp.Store(path)
        opened.shape
    """,
    "netsor.gp.StoredGP": """
        import tempfile, pathlib
        path = pathlib.Path(tempfile.mkdtemp()) / "K.zarr"
        store = ns.gp.store(ns.kernel(ns.zoo.mlp(2)), np.eye(6), path, tile=3, progress=False)
        model = ns.gp.fit(store, np.arange(6.0), noise=0.1, progress=False)
        model.predict(np.eye(6)[:1]).mean.round(3), model.residual < 1e-8
    """,
    "netsor.plots.Picture": """
        import tempfile, pathlib
        found = ns.plots.angle(ns.zoo.mlp(3))
        found.caption
        found.save(pathlib.Path(tempfile.mkdtemp()) / "angle.png").name
    """,
    "netsor.report": """
        page = ns.report(ns.zoo.mlp(2), np.eye(3), widths=(8, 16), samples=4)
        page.startswith("<!doctype html>")
    """,
    "netsor.data.cifar10": """
        import tempfile, pathlib
        from netsor.data import cifar10
        path = pathlib.Path(tempfile.mkdtemp()) / "images.npy"
        np.save(path, np.zeros((3, 32, 32, 3)))  # yours: data_batch_1 of CIFAR-10, or its folder
        cifar10(path, count=2).shape
    """,
    "netsor.NetsorError": """
        try:
            ns.kernel(ns.zoo.mlp(2))([[float("nan"), 1.0]])
        except ns.NetsorError as error:
            print(error.what)
            print(error.remedy)
    """,
    "netsor.NetsorWarning": """
        import warnings
        x = np.random.default_rng(0).standard_normal((4, 3, 2))
        K = ns.kernel(ns.zoo.gru(), points=2**6)  # sampled, with few points
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            ns.gp.fit(K, x, np.ones(12), noise=1e-6)
        print(seen[0].message)
    """,
    "netsor.errors.Place": """
        try:
            ns.parse("Input g :: G(n) ~ N(0, 1)\\nx := relu(h)")
        except ns.NetsorError as error:
            print(error.place.title)
            print(error.place.picture())
    """,
    "netsor.data.Sentence": """
        from netsor.data import sentences
        sentences()[0].words
    """,
    "netsor.data.Digits": """
        from netsor.data import digits
        digits().labels[:10]
    """,
}

# The commonest mistake with a name. Names without an entry take anything, or raise what they are given.
ERRORS = {
    "netsor.network": "ns.network(3)",
    "netsor.Matrix": "ns.Matrix(-1.0)",
    "netsor.Vector": "ns.Vector(-1.0)",
    "netsor.Network": "ns.zoo.mlp(2)([1.0, 2.0])",
    "netsor.stack": "ns.stack([])",
    "netsor.concat": "W = ns.Matrix()\nns.program(ns.network(lambda x: ns.concat([W @ x])), [1.0])",
    "netsor.softmax": "W = ns.Matrix()\nns.program(ns.network(lambda x: ns.softmax(W @ x)), [[1.0], [2.0]])",
    "netsor.nonlin": "W, v = ns.Matrix(), ns.Matrix(rows=1)\n"
    "ns.program(ns.network(lambda x: v @ ns.nonlin(np.cumsum, W @ x)), [1.0])",
    "netsor.pad": "W = ns.Matrix()\nns.program(ns.network(lambda x: ns.pad(W @ x, 1)), [[1.0], [2.0]])",
    "netsor.reshape": "W = ns.Matrix()\n"
    "ns.program(ns.network(lambda x: ns.reshape(W @ x, (3,))), [[1.0], [2.0]])",
    "netsor.Embedding": "E, v = ns.Embedding(3), ns.Matrix(rows=1)\n"
    "ns.kernel(ns.network(lambda t: v @ E(t)))([[0, 7]])",
    "netsor.Conv2d": "c, v = ns.Conv2d(3), ns.Matrix(rows=1)\n"
    "ns.kernel(ns.network(lambda x: v @ c(x)))([np.ones(3)])",
    "netsor.batchnorm": "W, v = ns.Matrix(), ns.Matrix(rows=1)\n"
    "ns.kernel(ns.network(lambda b: v @ ns.batchnorm(W @ b)))([np.ones((3, 2))])",
    "netsor.layernorm": "W, v = ns.Matrix(), ns.Matrix(rows=1)\n"
    "ns.kernel(ns.network(lambda x: v @ ns.layernorm(W @ x)))([[0.0, 0.0]])",
    "netsor.zoo.mlp": "ns.zoo.mlp(0)",
    "netsor.program": "ns.program(lambda x: x, [1.0])",
    "netsor.parse": 'ns.parse("x := relu(g)")',
    "netsor.Program": 'ns.parse("Input g :: G(n) ~ N(0, 1)\\nx := relu(g)").lower("netsor-plus")',
    "netsor.kernel": "ns.kernel(3)",
    "netsor.limit": 'ns.limit(ns.zoo.mlp(1), [1.0]).sigma("h9")',
    "netsor.Options": 'ns.Options.of(method="fast")',
    "netsor.limits.KernelFn": 'ns.kernel(ns.zoo.mlp(1))([[1.0]], params={"W9": 1.0})',
    "netsor.limits.Limit": 'ns.limit(ns.zoo.mlp(1), [1.0]).mu("nothing")',
    "netsor.tangent": 'ns.ntk(ns.zoo.mlp(1), rates={"W9": 0.0})([[1.0]])',
    "netsor.ntk": "ns.ntk(ns.zoo.batchnorm_mlp(1))([np.eye(3)])",
    "netsor.simulate": "ns.simulate(ns.zoo.mlp(1), [[1.0]], width=0, samples=1, seed=0)",
    "netsor.empirical_kernel": "ns.empirical_kernel(ns.zoo.mlp(1), [[1.0]], width=10, samples=0, seed=0)",
    "netsor.empirical_ntk": "ns.empirical_ntk(ns.zoo.mlp(1), [[1.0]], width=10, samples=0, seed=0)",
    "netsor.verify": "ns.verify(ns.zoo.mlp(1), [[1.0]], widths=(64,))",
    "netsor.gp.fit": "ns.gp.fit(ns.kernel(ns.zoo.mlp(1)), [[1.0], [1.0]], [0.0, 1.0])",
    "netsor.gp.GP": "m = ns.gp.fit(ns.kernel(ns.zoo.mlp(1)), [[1.0], [2.0]], [0.0, 1.0], noise=[0.1, 0.2])\n"
    "m.predict([[3.0]], observed=True)",
    "netsor.gp.sample": "ns.gp.sample(ns.kernel(ns.zoo.mlp(1)), [[1.0]], samples=0)",
    "netsor.gp.tune": 'ns.gp.tune(ns.kernel(ns.zoo.mlp(1)), [[1.0]], [1.0], method="adam")',
    "netsor.gp.kernel_gradient": 'ns.gp.kernel_gradient(ns.kernel(ns.zoo.mlp(1)), [[1.0]], ["W9"])',
    "netsor.gp.train": "ns.gp.train(ns.zoo.mlp(1), [[1.0]], [1.0], rate=-1.0)",
    "netsor.gp.Trained": "ns.gp.train(ns.zoo.mlp(1), [[1.0]], [1.0]).predict([[1.0]], time=-1.0)",
    "netsor.gp.classify": 'ns.gp.classify(ns.kernel(ns.zoo.mlp(1)), [[1.0], [2.0]], ["a", "a"])',
    "netsor.gp.load": 'ns.gp.load("nothing.npz", ns.zoo.mlp(1))',
    "netsor.gp.InferenceError": "ns.gp.fit(ns.kernel(ns.zoo.mlp(1)), [[1.0], [1.0]], [1.0, 1.0], jitter=0.0)",
    "netsor.plots.Picture": 'ns.plots.angle(ns.zoo.mlp(3)).save("angle.gif")',
    "netsor.plots.kernel_map": 'ns.plots.kernel_map(np.eye(3), ["a", "b"])',
    "netsor.plots.angle": "ns.plots.angle(ns.zoo.simple_rnn())",
    "netsor.plots.samples": "ns.plots.samples(ns.kernel(ns.zoo.mlp(1)), np.eye(3))",
    "netsor.plots.spectrum": "ns.plots.spectrum(np.ones((2, 3)))",
    "netsor.errors.ParseError": 'ns.parse("x := relu(")',
    "netsor.errors.TypeCheckError": 'ns.parse("Input g :: G(n) ~ N(0, 1)\\nx := relu(g)\\ny := x + g")',
    "netsor.errors.BuildError": "ns.program(ns.network(lambda x: x), [1.0])",
    "netsor.errors.DataError": 'ns.kernel(ns.zoo.mlp(1))([[float("nan")]])',
    "netsor.errors.FileError": "model = ns.gp.fit(ns.kernel(ns.zoo.mlp(1)), [[1.0]], [1.0], noise=0.1)\n"
    'model.save("/dev/null/model.npz")',
    "netsor.errors.FunctionError": "W, v = ns.Matrix(), ns.Matrix(rows=1)\n"
    "ns.program(ns.network(lambda x: v @ ns.nonlin(np.sort, W @ x)), [1.0])",
    "netsor.errors.LoweringError": 'ns.program(ns.zoo.layernorm_mlp(1), [1.0, 2.0]).lower("netsor")',
    "netsor.errors.LimitError": 'ns.kernel(ns.zoo.lstm(), method="exact")([np.eye(2)])',
    "netsor.errors.SimulationError": "ns.simulate(ns.zoo.mlp(1), [[1.0]], width=0, samples=1, seed=0)",
    "netsor.errors.TangentError": "ns.ntk(ns.zoo.batchnorm_mlp(1))([np.eye(3)])",
    "netsor.data.cifar10": 'from netsor.data import cifar10\ncifar10("nowhere")',
}
