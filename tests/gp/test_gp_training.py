"""Training at infinite width, against the differential equation that it solves and real networks."""

from __future__ import annotations

import pickle
from math import inf

import numpy as np
import pytest
from scipy.linalg import expm

import netsor as ns
from netsor.errors import DataError
from netsor.gp import InferenceError

RNG = np.random.default_rng(5)
X, NEW = RNG.standard_normal((6, 3)), RNG.standard_normal((4, 3))
Y = np.sin(X[:, 0]) + X[:, 1]
NET = ns.zoo.mlp(2, ns.erf, var_w=1.5, var_b=0.2)


def flow(theta: np.ndarray, rows: int, y: np.ndarray, speed: float, noise: float, steps: int) -> np.ndarray:
    """The linear map from (f_0, y) on all inputs to f at the end, by the classical Runge-Kutta method.

    f = f_0 + Theta_*X a with a' = -speed (f_0 - y + (Theta + noise) a) on the training inputs.
    """
    ridge = theta[:rows, :rows] + noise * np.eye(rows)
    weights, dt = np.zeros((rows, rows)), speed / steps
    for _ in range(steps):  # a = weights (y - f_0)
        slope = [np.eye(rows) - ridge @ weights]
        for h in (dt / 2, dt / 2, dt):
            slope.append(np.eye(rows) - ridge @ (weights + h * slope[-1]))
        weights = weights + dt / 6 * (slope[0] + 2 * slope[1] + 2 * slope[2] + slope[3])
    return theta[:, :rows] @ weights


@pytest.mark.parametrize("layers", ["all", "last"])
@pytest.mark.parametrize(("time", "noise"), [(0.0, 0.0), (1.0, 0.0), (40.0, 0.0), (40.0, 0.3)])
def test_any_time_solves_the_differential_equation(time: float, noise: float, layers: str) -> None:
    model = ns.gp.train(NET, X, Y, rate=0.7, noise=noise, layers=layers)
    every = np.concatenate([X, NEW])
    K = ns.kernel(NET)(every)
    theta = K if layers == "last" else ns.ntk(NET)(every)
    step = flow(theta, len(X), Y, 0.7 * time / len(Y), noise, 2000)
    moved = np.eye(len(every)) - np.pad(step, ((0, 0), (0, len(NEW))))  # f_t = f_0 + step (y - f_0)
    found = model.predict(every, time, cov=True)
    assert found.cov is not None
    np.testing.assert_allclose(found.mean, step @ Y, atol=1e-9)
    np.testing.assert_allclose(found.cov, moved @ K @ moved.T, atol=1e-9)
    np.testing.assert_allclose(found.std, np.sqrt(np.clip(np.diag(found.cov), 0, None)), atol=1e-9)


def test_the_end_of_training() -> None:
    """Theta_*X Theta^-1 y, and the covariance of Lee et al. 2019, equation 16, written out."""
    model = ns.gp.train(NET, X, Y)
    theta, K = ns.ntk(NET), ns.kernel(NET)
    A = theta(NEW, X) @ np.linalg.inv(theta(X))
    found = model.predict(NEW, cov=True)
    assert found.cov is not None
    np.testing.assert_allclose(found.mean, A @ Y, atol=1e-9)
    wanted = K(NEW) + A @ K(X) @ A.T - (A @ K(X, NEW) + K(NEW, X) @ A.T)
    np.testing.assert_allclose(found.cov, wanted, atol=1e-9)
    np.testing.assert_allclose(model.predict(X).mean, Y, atol=1e-8)
    np.testing.assert_allclose(model.predict(NEW, 1e12).mean, found.mean, atol=1e-8)


@pytest.mark.parametrize("time", [1.0, 100.0, inf])
@pytest.mark.parametrize("layers", ["all", "last"])
def test_formulas_of_the_mean_and_covariance_of_the_ensemble(time: float, layers: str) -> None:
    """The formulas behind gradient_descent_mse_ensemble of neural-tangents, with matrix exponentials."""
    K = ns.kernel(NET)
    theta = K if layers == "last" else ns.ntk(NET)
    decay = np.zeros((len(X), len(X))) if time == inf else expm(-0.7 * time / len(X) * theta(X))
    A = theta(NEW, X) @ np.linalg.solve(theta(X), np.eye(len(X)) - decay)
    found = ns.gp.train(NET, X, Y, rate=0.7, layers=layers).predict(NEW, time, cov=True)
    cross = A @ K(X, NEW)
    assert found.cov is not None
    np.testing.assert_allclose(found.mean, A @ Y, atol=1e-10)
    np.testing.assert_allclose(found.cov, K(NEW) + A @ K(X) @ A.T - cross - cross.T, atol=1e-10)


def test_the_last_layer_alone_ends_in_the_posterior_mean() -> None:
    for noise in (0.0, 0.1):
        model = ns.gp.train(NET, X, Y, layers="last", noise=noise)
        posterior = ns.gp.fit(ns.kernel(NET), X, Y, noise=noise)
        np.testing.assert_allclose(model.predict(NEW).mean, posterior.mean(NEW), atol=1e-8)
    found = ns.gp.train(NET, X, Y, layers="last").predict(NEW)
    np.testing.assert_allclose(found.std, ns.gp.fit(ns.kernel(NET), X, Y).predict(NEW).std, atol=1e-6)


def test_losses_and_the_largest_rate() -> None:
    model = ns.gp.train(NET, X, Y)
    times = np.array([0.0, 1.0, 10.0, inf])
    losses = model.loss(times)
    prior = np.trace(ns.kernel(NET)(X)) + np.sum(Y**2)
    assert losses[0] == pytest.approx(prior / (2 * len(Y)))
    assert np.all(np.diff(losses) < 0)
    assert abs(losses[-1]) < 1e-8
    assert model.loss(1.0).shape == ()
    assert model.loss(times, NEW, np.zeros(4)).shape == (4,)
    top = np.linalg.eigvalsh(ns.ntk(NET)(X))[-1]
    assert model.max_rate == pytest.approx(2 * len(Y) / top)


def test_several_targets_and_outputs_with_a_mean() -> None:
    columns = np.stack([Y, -2 * Y], axis=1)
    both = ns.gp.train(NET, X, columns, rate=2.0, time=3.0)  # the loss is a mean over both columns
    one = ns.gp.train(NET, X, Y, rate=1.0, time=3.0)
    np.testing.assert_allclose(both.predict(NEW).mean[:, 0], one.predict(NEW).mean, atol=1e-12)
    np.testing.assert_allclose(both.predict(NEW).mean[:, 1], -2 * one.predict(NEW).mean, atol=1e-12)
    v, W = ns.Matrix(rows=1), ns.Matrix()
    shifted = ns.network(lambda x: v @ ns.erf(W @ x) + 3.0)
    plain = ns.network(lambda x: v @ ns.erf(W @ x))
    found = ns.gp.train(shifted, X, Y + 3.0).predict(NEW, 5.0)
    np.testing.assert_allclose(found.mean, ns.gp.train(plain, X, Y).predict(NEW, 5.0).mean + 3.0, atol=1e-9)


def test_sampled_kernels_are_sampled_jointly() -> None:
    sequences = list(RNG.standard_normal((3, 2, 3)))
    v, cell = ns.Matrix(rows=1), ns.GRUCell(ns.erf, ns.sigmoid)

    @ns.network
    def last(tokens):
        state = 0
        for token in tokens:
            state = cell(state, token)
        return v @ state

    model = ns.gp.train(last, sequences, [1.0, -1.0, 0.5], noise=1e-3)
    found = model.predict([*sequences, RNG.standard_normal((2, 3))])
    assert np.all(np.isfinite(found.mean))
    assert np.abs(found.mean[:3] - [1.0, -1.0, 0.5]).max() < 0.2


def test_what_cannot_be_trained() -> None:
    with pytest.raises(DataError, match="layers="):
        ns.gp.train(NET, X, Y, layers="first")
    with pytest.raises(DataError, match="rate="):
        ns.gp.train(NET, X, Y, rate=0.0)
    with pytest.raises(DataError, match="time="):
        ns.gp.train(NET, X, Y).predict(NEW, -1.0)
    with pytest.raises(DataError, match="is trained"):
        ns.gp.train(ns.tangent(NET), X, Y)
    with pytest.raises(DataError, match="equal and have different targets"):
        ns.gp.train(NET, [X[0], X[0]], [0.0, 1.0])
    W, v = ns.Matrix(rate=0.0), ns.Matrix(rows=1, rate=0.0)
    frozen = ns.network(lambda x: v @ ns.relu(W @ x))
    with pytest.raises(InferenceError, match="singular"):
        ns.gp.train(frozen, X, Y).predict(NEW)


def hidden(x: np.ndarray, U: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.tanh(x @ U.T / np.sqrt(x.shape[1]) + np.sqrt(0.5) * b)


def real_networks(count: int, width: int, rate: float, steps: int) -> np.ndarray:
    """Outputs on NEW of networks of one hidden layer after gradient descent, in plain NumPy."""
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        U, b = rng.standard_normal((width, X.shape[1])), rng.standard_normal(width)
        v = rng.standard_normal(width)

        for _ in range(steps):
            h = hidden(X, U, b)
            error = (h @ v / np.sqrt(width) - Y) / len(Y)
            delta = error[:, None] * v / np.sqrt(width) * (1 - h * h)
            v = v - rate * h.T @ error / np.sqrt(width)
            U = U - rate * delta.T @ X / np.sqrt(X.shape[1])
            b = b - rate * np.sqrt(0.5) * delta.sum(axis=0)
        found.append(hidden(NEW, U, b) @ v / np.sqrt(width))
    return np.array(found)


def test_real_networks_follow_the_mean_of_the_ensemble() -> None:
    count, width, rate, steps = 40, 2000, 0.5, 60
    model = ns.gp.train(ns.zoo.mlp(1, ns.tanh, var_b=0.5), X, Y, rate=rate)
    assert rate < 0.1 * model.max_rate  # steps are small, so that flow and descent agree
    found, wanted = real_networks(count, width, rate, steps), model.predict(NEW, steps)
    error = 4 * wanted.std / np.sqrt(count) + 0.01
    assert (abs(found.mean(0) - wanted.mean) < error).all()
    spread = found.std(0, ddof=1) / wanted.std
    assert (abs(spread - 1) < 4 / np.sqrt(2 * count)).all()


def test_an_estimator_is_pickled_with_its_training() -> None:
    pytest.importorskip("sklearn")
    from netsor.sklearn import NTKRegressor

    model = NTKRegressor(time=5.0, noise=0.1, rates={"W1": 0.0}).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))
    assert model.predict(NEW, return_std=True)[1].shape == (4,)
