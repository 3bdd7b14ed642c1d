"""scikit-learn's contract: its own checks, pipelines, searches, clones, pickles, kernels, refusals."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime

import netsor as ns
from netsor import zoo
from netsor.errors import DataError

pytest.importorskip("sklearn")  # the extra `sklearn`

from sklearn.base import clone
from sklearn.exceptions import SkipTestWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import check_estimator

from netsor.sklearn import (
    Architecture,
    NNGPClassifier,
    NNGPGram,
    NNGPKernel,
    NNGPRegressor,
    NTKRegressor,
)

RNG = np.random.default_rng(2)
X = RNG.standard_normal((24, 4))
Y = np.sin(X[:, 0]) + X[:, 1] ** 2
LABELS = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")


def last_state(var_w: float = 1.0) -> ns.Network:
    """A recurrent network that reads out its last state."""
    cell, v = ns.RNNCell(ns.erf, var_w), ns.Matrix(1.0, rows=1, name="v")

    @ns.network
    def rnn(tokens: Any) -> Any:
        state: Any = 0
        for token in tokens:
            state = cell(state, token)
        return v @ state

    return rnn


# Estimators


@pytest.mark.parametrize(
    "estimator",
    [
        *(NNGPRegressor(), NNGPClassifier(), NNGPGram()),
        pytest.param(NTKRegressor(), marks=pytest.mark.slow),
    ],
    ids=lambda e: type(e).__name__,
)
def test_check_estimator(estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        results = check_estimator(estimator, on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 40


def test_regressor_is_the_gaussian_process() -> None:
    model = NNGPRegressor(noise=0.05, normalize_y=False).fit(X[:18], Y[:18])
    want = ns.gp.fit(ns.kernel(zoo.mlp(2)), X[:18], Y[:18], noise=0.05).predict(X[18:], cov=True)
    mean, std = model.predict(X[18:], return_std=True)
    np.testing.assert_allclose(mean, want.mean, rtol=1e-12)
    np.testing.assert_allclose(std, want.std, rtol=1e-9)
    np.testing.assert_allclose(model.predict(X[18:], return_cov=True)[1], want.cov, rtol=1e-9, atol=1e-12)
    shifted = NNGPRegressor(noise=0.05).fit(X[:18], 7 + 10 * Y[:18])
    plain = NNGPRegressor(noise=0.05).fit(X[:18], Y[:18])
    mean, std = plain.predict(X[18:], return_std=True)
    moved, wide = shifted.predict(X[18:], return_std=True)
    np.testing.assert_allclose(moved, 7 + 10 * mean, rtol=1e-9)
    np.testing.assert_allclose(wide, 10 * std, rtol=1e-9)


def test_several_targets() -> None:
    both = np.stack([Y, -3 * Y], axis=1)
    model = NNGPRegressor().fit(X, both)
    one = NNGPRegressor().fit(X, Y)
    mean, std = model.predict(X[:5], return_std=True)
    np.testing.assert_allclose(mean[:, 1], -3 * one.predict(X[:5]), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(std[:, 1], 3 * std[:, 0], rtol=1e-12)
    assert model.predict(X[:5], return_cov=True)[1].shape == (5, 5, 2)
    assert model.sample_y(X[:5], 3).shape == (5, 2, 3)
    np.testing.assert_array_equal(one.sample_y(X[:5], 3, 1), one.sample_y(X[:5], 3, 1))


def test_constant_target() -> None:
    np.testing.assert_allclose(NNGPRegressor().fit(X, np.full(24, 3.0)).predict(X[:3]), 3.0)


def test_tuning_inside() -> None:
    tied = {"tied": [["W1", "W2"], ["b1", "b2"]], "steps": 5, "method": "nelder-mead"}
    before = NNGPRegressor(noise=0.5).fit(X, Y)
    after = NNGPRegressor(noise=0.5, tune=True, tune_options=tied).fit(X, Y)
    assert after.log_marginal_likelihood_value_ > before.log_marginal_likelihood_value_
    assert after.params_["W1"] == after.params_["W2"] != 1.0


def test_pipeline_search_clone_and_pickle() -> None:
    model = make_pipeline(StandardScaler(), NNGPClassifier(Architecture("mlp", depth=1, phi="erf")))
    grid = {"nngpclassifier__network__depth": [1, 2], "nngpclassifier__noise": [0.01, 0.1]}
    search = GridSearchCV(model, grid, cv=3).fit(X, LABELS)
    assert search.best_score_ > 0.7
    chosen = search.best_estimator_[-1].network
    assert chosen.options["depth"] == search.best_params_["nngpclassifier__network__depth"]
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict_proba(X), search.predict_proba(X))
    copy = clone(search.best_estimator_)
    assert copy[-1].network == chosen
    assert copy[-1].network is not chosen
    assert not hasattr(copy[-1], "model_")


def test_pickle_keeps_the_fitted_network() -> None:
    """Also if the parameter was changed after the fit; a bare network is code and is refused."""
    model = NNGPRegressor(Architecture("mlp", depth=1)).fit(X, Y)
    want = model.predict(X[:4])
    model.set_params(network__depth=3)
    np.testing.assert_array_equal(model.predict(X[:4]), want)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X[:4]), want)
    with pytest.raises(pickle.PicklingError, match="Architecture"):
        pickle.dumps(NNGPRegressor(zoo.mlp(1)))


def test_ways_to_name_a_network() -> None:
    """A name, an architecture, a function and a network mean the same."""
    ways: list[Any] = ["mlp", Architecture("mlp"), zoo.mlp, zoo.mlp(), Architecture(zoo.mlp, depth=1)]
    found = [NNGPRegressor(way).fit(X, Y).predict(X[:3]) for way in ways]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    assert repr(Architecture("mlp", phi="erf")) == "Architecture('mlp', phi='erf')"
    assert cross_val_score(NNGPRegressor(zoo.mlp(2)), X, Y, cv=3).shape == (3,)


def test_images_and_sequences_from_flat_rows() -> None:
    flat = RNG.standard_normal((8, 12))
    y = RNG.standard_normal(8)
    images = NNGPRegressor(Architecture("cnn", depth=1), input_shape=(2, 3, 2), normalize_y=False).fit(
        flat, y
    )
    want = ns.gp.fit(ns.kernel(zoo.cnn(1)), flat.reshape(8, 2, 3, 2), y, noise=0.01)
    np.testing.assert_allclose(images.predict(flat), want.mean(flat.reshape(8, 2, 3, 2)), rtol=1e-12)
    tokens = NNGPRegressor(last_state, input_shape=(4, 3)).fit(flat, y)
    assert tokens.predict(flat).shape == (8,)
    with pytest.raises(DataError, match="does not fit rows of 12 features"):
        NNGPRegressor("cnn", input_shape=(2, 3)).fit(flat, y)


def test_sequences_of_different_lengths() -> None:
    x = [RNG.standard_normal((length, 2)) for length in (3, 1, 4, 2, 5)]
    y = RNG.standard_normal(5)
    model = NNGPRegressor(last_state, normalize_y=False).fit(x[:3], y[:3])
    want = ns.gp.fit(ns.kernel(last_state()), x[:3], y[:3], noise=0.01)
    np.testing.assert_allclose(model.predict(x[3:]), want.mean(x[3:]), rtol=1e-12)
    labels = NNGPClassifier(last_state).fit(x, ["a", "b", "a", "b", "b"])
    assert set(labels.predict(x)) <= {"a", "b"}


# Refusals


@pytest.mark.parametrize("adapter", [NNGPRegressor, NNGPClassifier, NNGPGram])
def test_batchnorm_is_refused_with_the_reason(adapter: Any) -> None:
    for x, network in ((X, "batchnorm_mlp"), (X.reshape(6, 4, 4), Architecture("batchnorm_mlp", depth=2))):
        with pytest.raises(DataError, match="depends on the whole batch"):
            adapter(network).fit(x, LABELS[: len(x)] if adapter is NNGPClassifier else Y[: len(x)])
    with pytest.raises(DataError, match="depends on the whole batch"):
        NNGPKernel("batchnorm_mlp")(X)


def test_other_refusals() -> None:
    with pytest.raises(DataError, match="4 outputs at one input"):
        NNGPRegressor("simple_rnn", input_shape=(4, 1)).fit(X, Y)
    with pytest.raises(DataError, match="no network `perceptron`"):
        NNGPRegressor("perceptron").fit(X, Y)
    with pytest.raises(DataError, match="cannot be built"):
        NNGPRegressor(Architecture("mlp", layers=3)).fit(X, Y)
    with pytest.raises(DataError, match="is not a network"):
        NNGPRegressor(7).fit(X, Y)
    with pytest.raises(ValueError, match="one class"):
        NNGPClassifier().fit(X, np.zeros(24))


# The kernel of sklearn.gaussian_process


@pytest.mark.parametrize(
    "kernel",
    [
        NNGPKernel(Architecture("mlp", depth=2, phi="erf")),
        NNGPKernel(Architecture("mlp", depth=2), tied=[["W1", "W2"], ["b1", "b2"]]),
        NNGPKernel("mlp", variances=[2.0, 0.5, 1.5]) + WhiteKernel(0.1),
        ConstantKernel(2.0) * NNGPKernel("mlp") + RBF(1.3) ** 2,
        NNGPKernel("mlp", variances_bounds="fixed") * RBF(2.0),
    ],
    ids=["plain", "tied", "sum", "product", "fixed"],
)
def test_kernel_contract(kernel: Any) -> None:
    """theta, bounds, diag, clones, and the gradient against differences of the kernel itself."""
    x = X[:5]
    assert len(kernel.theta) == len(kernel.bounds)
    value, slopes = kernel(x, eval_gradient=True)
    assert slopes.shape == (5, 5, len(kernel.theta))
    np.testing.assert_allclose(kernel.diag(x), np.diagonal(value), rtol=1e-10)
    np.testing.assert_allclose(kernel(x, X[5:8]), kernel(X[:8])[:5, 5:], rtol=1e-10)
    wanted = approx_fprime(kernel.theta, lambda theta: kernel.clone_with_theta(theta)(x).ravel(), 1e-6)
    np.testing.assert_allclose(slopes.reshape(25, -1), wanted, rtol=1e-4, atol=1e-4)
    moved = kernel.clone_with_theta(kernel.theta + 0.3)
    np.testing.assert_allclose(moved.theta, kernel.theta + 0.3, rtol=1e-12)
    assert clone(kernel) == kernel
    if len(kernel.theta):
        assert moved != kernel
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(kernel))(x), value)
    assert not NNGPKernel().is_stationary()


def test_kernel_is_the_networks() -> None:
    kernel = NNGPKernel(Architecture("mlp", depth=2), [3.0, 0.5, 2.0], tied=[["W1", "W2"], ["b1", "b2"]])
    want = ns.kernel(zoo.mlp(2, var_w=3.0, var_b=0.5, var_v=2.0))(X)
    np.testing.assert_allclose(kernel(X), want, rtol=1e-12)
    with pytest.raises(DataError, match="variances="):
        NNGPKernel("mlp", [1.0])(X)
    with pytest.raises(DataError, match="no variance `Q`"):
        NNGPKernel("mlp", tied=[["Q"]])(X)
    with pytest.raises(ValueError, match="Y is None"):
        kernel(X, X, eval_gradient=True)


def test_scikit_learns_gaussian_processes_use_it() -> None:
    fixed = NNGPKernel("mlp")
    theirs = GaussianProcessRegressor(fixed, alpha=0.01, optimizer=None).fit(X, Y)
    ours = NNGPRegressor("mlp", noise=0.01, normalize_y=False).fit(X, Y)
    np.testing.assert_allclose(theirs.predict(X[:4] + 0.1), ours.predict(X[:4] + 0.1), rtol=1e-8)
    tied = NNGPKernel(Architecture("mlp", depth=1, phi="erf"), variances_bounds=(1e-2, 1e2))
    tuned = GaussianProcessRegressor(tied, alpha=0.01).fit(X, Y)
    assert (
        tuned.log_marginal_likelihood_value_
        > GaussianProcessRegressor(tied, alpha=0.01, optimizer=None).fit(X, Y).log_marginal_likelihood_value_
    )
    classes = GaussianProcessClassifier(fixed, optimizer=None).fit(X, LABELS)
    assert classes.score(X, LABELS) > 0.8
    search = GridSearchCV(
        GaussianProcessRegressor(fixed, alpha=0.01, optimizer=None),
        {"kernel": [NNGPKernel("mlp"), NNGPKernel(Architecture("mlp", depth=3))], "alpha": [0.01, 0.1]},
        cv=3,
    ).fit(X, Y)
    assert search.predict(X).shape == (24,)


# Precomputed


def test_precomputed_kernels() -> None:
    """SVC and KernelRidge through the transformer, through matrices and through the kernel object agree."""
    K = ns.kernel(zoo.mlp(1))
    pipe = make_pipeline(NNGPGram("mlp"), SVC(kernel="precomputed", C=10.0)).fit(X[:18], LABELS[:18])
    plain = SVC(kernel="precomputed", C=10.0).fit(K(X[:18]), LABELS[:18])
    direct = SVC(kernel=NNGPKernel("mlp"), C=10.0).fit(X[:18], LABELS[:18])
    want = plain.decision_function(K(X[18:], X[:18]))
    np.testing.assert_allclose(pipe.decision_function(X[18:]), want, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(direct.decision_function(X[18:]), want, rtol=1e-9, atol=1e-9)
    ridge = make_pipeline(NNGPGram("mlp"), KernelRidge(0.1, kernel="precomputed")).fit(X[:18], Y[:18])
    process = ns.gp.fit(K, X[:18], Y[:18], noise=0.1)
    np.testing.assert_allclose(ridge.predict(X[18:]), process.mean(X[18:]), rtol=1e-8)
    other = KernelRidge(0.1, kernel=NNGPKernel("mlp")).fit(X[:18], Y[:18])
    np.testing.assert_allclose(other.predict(X[18:]), process.mean(X[18:]), rtol=1e-8)
    grid = {"nngpgram__network__depth": [1, 2], "svc__C": [1.0, 10.0]}
    search = GridSearchCV(
        make_pipeline(NNGPGram(Architecture("mlp", depth=1)), SVC(kernel="precomputed")), grid, cv=3
    )
    assert search.fit(X, LABELS).best_score_ > 0.7
