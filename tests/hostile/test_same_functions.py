"""Two functions are one only where they are the same: in one process, in pickles, stores and saved models.

Every function here is y -> sin(a y), so the truth is a formula: for centred Gaussians with variances q, r and
covariance c, E[sin(a x) sin(b y)] = exp(-(a^2 q + b^2 r) / 2) sinh(a b c).
"""

import json
import math
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same_functions import CHANGING, FAMILIES, PAIRS

import netsor as ns
from each_case import each_case
from netsor.build.user_functions import UserFunction
from netsor.gp.stores.identity import differences, of_kernel

U, V, W = ns.Matrix(), ns.Matrix(rows=1), ns.Matrix(rows=1)
X = np.array([[1.0, 0.5], [0.3, -0.8]])
QUICK = {"method": "sample", "points": 16, "repeats": 2}
SOME = ("bound method", "object equal to all", "keyword-only default", "tuple with a long array", "global")


def net(*functions: Callable[[Any], Any]) -> ns.Network:
    """One output, the sum of readouts of sin(a U x)."""

    def forward(x):
        h = U @ x
        outputs = [v @ ns.nonlin(f, h, name="own") for v, f in zip((V, W), functions, strict=False)]
        return outputs[0] if len(outputs) == 1 else outputs[0] + outputs[1]

    return ns.network(forward)


def plain(*scales: float) -> ns.Network:
    """The same in the language, where a is in the program."""

    def forward(x):
        h = U @ x
        outputs = [v @ ns.sin(a * h) for v, a in zip((V, W), scales, strict=False)]
        return outputs[0] if len(outputs) == 1 else outputs[0] + outputs[1]

    return ns.network(forward)


def truth(*scales: float) -> np.ndarray:
    cov = X @ X.T / 2
    q = np.diag(cov)
    return np.sum([np.exp(-a * a * (q[:, None] + q) / 2) * np.sinh(a * a * cov) for a in scales], axis=0)


def tangent_truth(a: float) -> np.ndarray:
    cov = X @ X.T / 2
    q = np.diag(cov)
    return truth(a) + cov * a * a * np.exp(-a * a * (q[:, None] + q) / 2) * np.cosh(a * a * cov)


def simulated(network: ns.Network) -> np.ndarray:
    return ns.simulate(network, X, width=16, samples=2, seed=3)


@cache
def expected(*scales: float) -> np.ndarray:
    return simulated(plain(*scales))


def facts(f: Callable[[Any], Any]) -> dict[str, Any]:
    """What a store or a saved model knows of a kernel."""
    return json.loads(json.dumps(of_kernel(ns.kernel(net(f)), [X[0]])))


@each_case(("name", "a", "b"), PAIRS)
def test_pairs(name: str, a: float, b: float) -> None:
    f, g = FAMILIES[name](a), FAMILIES[name](b)
    one, two = UserFunction(f), UserFunction(g)
    assert one == UserFunction(f)
    if a != b:
        assert one != two
        assert len(ns.program(net(f, g), X[0]).functions) == 2
        assert differences(facts(f), facts(g))
    else:
        assert not differences(facts(f), facts(g))
    if a != b and b - a < 1e-9:  # too near for numbers to tell
        return
    np.testing.assert_allclose(simulated(net(g)), expected(b), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(simulated(net(f, g)), expected(a, b), rtol=1e-12, atol=1e-12)


ANEW = [  # what a function holds that the network makes anew whenever it is read
    *("closure", "closure over a tuple", "tuple with a long array", "long array", "list", "dictionary"),
    *("partial", "partial with keyword", "partial over an array", "default", "keyword-only default"),
    *("inner function", "function inside", "deque", "set", "bytes", "complex number", "NumPy number"),
]


@each_case("name", ANEW)
def test_a_function_that_is_made_anew_is_the_same(name: str) -> None:
    make = FAMILIES[name]
    assert UserFunction(make(1.3)) == UserFunction(make(1.3))
    assert len(ns.program(net(make(1.3), make(1.3)), X[0]).functions) == 1


@each_case("name", FAMILIES)
def test_a_function_may_be_written_inside_the_network(name: str) -> None:
    network = ns.network(lambda x: V @ ns.nonlin(FAMILIES[name](1.3), U @ x))
    assert len(ns.program(network, *X).functions) >= 1
    np.testing.assert_allclose(simulated(network), expected(1.3), rtol=1e-12, atol=1e-12)


@each_case("values", [(1, 1.0), (1, True), (1.0, True), (0.0, -0.0), (0, False), (1.0, "1.0")])
def test_plain_values_are_told_apart(values: tuple[Any, Any]) -> None:
    def make(held):
        return lambda y: np.sin(y * 1.1) if held is None else np.sin(y)

    f, g = map(make, values)
    assert UserFunction(f) != UserFunction(g)


def test_not_a_number_is_itself() -> None:
    def make(held):
        return lambda y: np.where(y > 2, held, np.sin(y))

    assert UserFunction(make(float("nan"))) == UserFunction(make(float("nan")))


def test_a_difference_that_no_probe_shows_counts() -> None:
    """Two functions whose values differ between 1000 and 1000.5 alone are two."""

    def make(most):
        return lambda y: np.where(np.abs(y) > most, 0.0, np.sin(y))

    f, g = make(1000.0), make(1000.5)
    assert UserFunction(f).values == UserFunction(g).values
    assert UserFunction(f) != UserFunction(g)
    assert differences(facts(f), facts(g))


@pytest.mark.parametrize("name", CHANGING)
def test_what_changes_between_two_kernels(name: str) -> None:
    """The numbers are those of the function as it is now; a program of before is refused."""
    f, change = CHANGING[name](1.1)
    network = net(f)
    kernel = ns.kernel(network, **QUICK)
    before = kernel(X)
    program, begun = ns.program(network, X[0]), facts(f)
    np.testing.assert_allclose(simulated(network), expected(1.1), rtol=1e-12, atol=1e-12)
    assert not differences(facts(f), begun)
    change(1.7)
    np.testing.assert_allclose(simulated(network), expected(1.7), rtol=1e-12, atol=1e-12)
    assert differences(facts(f), begun)
    for use in (lambda: ns.limit(program).kernel(), lambda: ns.simulate(program, width=8)):
        with pytest.raises(ns.errors.FunctionError, match="gives other values than when it was applied"):
            use()
    after = kernel(X)
    np.testing.assert_allclose(after, ns.kernel(net(FAMILIES["closure"](1.7)), **QUICK)(X), rtol=1e-9)
    assert np.abs(after / before - 1).max() > 0.01
    change(1.1)
    np.testing.assert_allclose(kernel(X), before, rtol=1e-12)


def test_a_function_that_was_equal_to_one_that_has_changed() -> None:
    first, change = CHANGING["cell"](1.23)
    before = ns.program(net(first), X[0])  # it keeps the expressions of the first function alive
    change(1.9)
    second, _ = CHANGING["cell"](1.23)
    assert not ns.program(net(second), X[0]).changed
    assert before.changed


def test_a_function_that_changes_while_the_network_is_read() -> None:
    f, change = CHANGING["attribute"](1.1)

    def forward(x):
        change(1.1)
        h = ns.nonlin(f, U @ x)
        change(1.7)
        return V @ (h + ns.nonlin(f, U @ x))

    with pytest.raises(ns.errors.FunctionError, match="gives other values than when it was applied"):
        ns.program(ns.network(forward), X[0])


def test_a_derivative_counts() -> None:
    def make(factor):
        return ns.network(
            lambda x: V @ ns.nonlin(np.sin, U @ x, name="own", derivative=lambda y: factor * np.cos(y))
        )

    one, two = (ns.program(make(factor), X[0]) for factor in (1.0, 1.0 + 1e-7))
    assert one != two
    assert one == ns.program(make(1.0), X[0])


def test_functions_of_several_arguments() -> None:
    def make(a, **options):
        def forward(x):
            h = U @ x
            if "axes" in options:
                out = ns.nonlin(
                    lambda m: np.sin(a * m).sum(axis=0), ns.stack([h, 2.0 * h]), axes=0, name="own"
                )
            else:
                out = ns.nonlin(
                    lambda y, z, c: np.sin(a * y) + c * z, h, 2.0 * h, params=[ns.dot(h, h)], name="own"
                )
            return V @ out

        return ns.kernel(ns.network(forward))

    for options in ({}, {"axes": 0}):
        one, two, again = (of_kernel(make(a, **options), [X[0]]) for a in (1.1, 1.7, 1.1))
        assert differences(one, two)
        assert not differences(one, again)


def test_the_parameters_of_our_own_networks_count() -> None:
    network = ns.zoo.mlp(1, var_b=0.0)
    kernel = ns.kernel(network)
    before = kernel(X)
    for parameter in network.parameters():
        parameter.var *= 2
    np.testing.assert_allclose(kernel(X), 4 * before, rtol=1e-12)


def test_what_a_network_reads_of_a_class() -> None:
    class Config:
        scale = 1.0

    kernel = ns.kernel(ns.network(lambda x: V @ (Config.scale * ns.relu(U @ x))))
    before = kernel(X)
    Config.scale = 2.0
    np.testing.assert_allclose(kernel(X), 4 * before, rtol=1e-12)


@pytest.mark.parametrize("name", CHANGING)
def test_a_model_does_not_predict_with_a_network_that_changed(name: str) -> None:
    f, change = CHANGING[name](1.1)
    network, y = net(f), np.array([1.0, -1.0])
    model = ns.gp.fit(ns.kernel(network, **QUICK), X, y, noise=0.1)
    before = model.predict(X).mean
    change(1.7)
    for use in (model.predict, model.mean, model.sample):
        with pytest.raises(ns.NetsorError, match="has changed since its kernel matrix"):
            use(X)
    if name == "attribute":
        change(1.1)
        np.testing.assert_allclose(model.predict(X).mean, before, rtol=1e-12)


def test_a_trained_ensemble_does_not_predict_with_a_network_that_changed() -> None:
    network = ns.zoo.mlp(1)
    trained = ns.gp.train(network, X, np.array([1.0, -1.0]))
    next(iter(network.parameters())).var *= 2
    with pytest.raises(ns.NetsorError, match="has changed since its kernel matrix"):
        trained.predict(X)


def test_a_store_is_not_used_with_a_network_that_changed(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    network, y = ns.zoo.mlp(1), np.array([1.0, -1.0])
    store = ns.gp.store(ns.kernel(network), X, tmp_path / "K.zarr", progress=False)
    model = ns.gp.fit(store, y, noise=0.1)
    next(iter(network.parameters())).var *= 2
    with pytest.raises(ns.NetsorError, match="has changed since its kernel matrix"):
        model.predict(X)


# Kernels


@pytest.mark.parametrize("name", SOME)
def test_kernels(name: str) -> None:
    f, g = FAMILIES[name](1.1), FAMILIES[name](1.7)
    for functions, scales in (((f,), (1.1,)), ((g,), (1.7,)), ((f, g), (1.1, 1.7))):
        np.testing.assert_allclose(ns.kernel(net(*functions))(X), truth(*scales), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "a", "b"), PAIRS)
def test_all_kernels(name: str, a: float, b: float, tmp_path: Path) -> None:
    """Kernels, tangent kernels, pickles, stores and saved models of every pair."""
    cloudpickle = pytest.importorskip("cloudpickle")
    f, g = FAMILIES[name](a), FAMILIES[name](b)
    _check_files(net(f), net(g), a == b, tmp_path)
    if a != b and b - a < 1e-9:  # too near for numbers to tell
        return
    for functions, scales in (((f,), (a,)), ((g,), (b,)), ((f, g), (a, b))):
        np.testing.assert_allclose(ns.kernel(net(*functions))(X), truth(*scales), rtol=1e-10)
    for own, scale in ((f, a), (g, b)):
        np.testing.assert_allclose(ns.ntk(net(own))(X), tangent_truth(scale), rtol=1e-8)
        kernel = ns.kernel(net(own))
        kernel(X)
        try:
            with warnings.catch_warnings():  # cloudpickle asks every module for the name of a function
                warnings.simplefilter("ignore", DeprecationWarning)
                packed = cloudpickle.dumps(kernel)
        except (AttributeError, TypeError, pickle.PicklingError):  # nobody can pickle it
            continue
        np.testing.assert_allclose(cloudpickle.loads(packed)(X), truth(scale), rtol=1e-10)


@pytest.mark.parametrize("name", ["bound method", "global"])
def test_stores_and_saved_models(name: str, tmp_path: Path) -> None:
    f, g, again = (FAMILIES[name](a) for a in (1.1, 1.7, 1.1))
    _check_files(net(f), net(g), False, tmp_path / "different")
    _check_files(net(f), net(again), True, tmp_path / "same")


def _check_files(one: ns.Network, two: ns.Network, same: bool, folder: Path) -> None:
    """A store and a model of one network are of the other where that is the same."""
    model = ns.gp.fit(ns.kernel(one), X, np.array([1.0, -1.0]), noise=1e-3)
    folder.mkdir(exist_ok=True)
    model.save(folder / "model.npz")
    ns.gp.load(folder / "model.npz", one)
    opens = [lambda: ns.gp.load(folder / "model.npz", two)]
    if _has_stores():
        ns.gp.store(ns.kernel(one), X, folder / "K.zarr")
        opens += [
            lambda: ns.gp.store(ns.kernel(two), X, folder / "K.zarr"),
            lambda: ns.gp.Store(folder / "K.zarr", ns.kernel(two)),
        ]
    for use in opens:
        if same:
            use()
        else:
            with pytest.raises(ns.errors.DataError, match="the function `own`"):
                use()


def _has_stores() -> bool:
    try:
        import cloudpickle  # noqa: F401
        import zarr  # noqa: F401
    except ImportError:
        return False
    return True


# Pickles


def test_a_derivative_travels() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    own = UserFunction(np.sin, (UserFunction(np.cos),))
    assert cloudpickle.loads(cloudpickle.dumps(own)).derivatives == own.derivatives


def test_a_pickled_function_that_does_something_else_is_refused() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    held = _GLOBAL["a"]
    try:
        kernel = ns.kernel(net(_of_a_global), **QUICK)
        kernel(X)
        packed = cloudpickle.dumps(kernel)
        cloudpickle.loads(packed)
        _GLOBAL["a"] = 1.7  # as in another process, where the module has been changed
        with pytest.raises(ns.errors.FunctionError, match="than where it was pickled"):
            cloudpickle.loads(packed)
    finally:
        _GLOBAL["a"] = held


_GLOBAL = {"a": 1.1}


def _of_a_global(y):
    return np.sin(_GLOBAL["a"] * y)


def test_functions_that_numpy_vectorises() -> None:
    """They fail on arrays without entries, and are made anew inside the network."""
    network = ns.network(lambda x: V @ ns.nonlin(np.vectorize(math.sin), U @ x))
    np.testing.assert_allclose(ns.kernel(network)(X), truth(1.0), rtol=1e-10)
