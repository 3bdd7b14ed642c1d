"""Exact inference: against scikit-learn's, against refitting, against formulas; bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor import zoo
from netsor.errors import DataError, NetsorError
from netsor.gp import InferenceError
from netsor.gp.factor import cholesky, needed_jitter

RNG = np.random.default_rng(11)
VECTORS = RNG.standard_normal((14, 3))
SEQUENCES = [RNG.standard_normal((length, 2)) for length in (3, 1, 4, 2, 3, 5, 2)]
IMAGES = RNG.standard_normal((8, 3, 3, 2))
CASES = {
    "mlp": (zoo.mlp(2, var_b=0.3), VECTORS[:9], VECTORS[9:]),
    "tanh": (zoo.mlp(2, ns.tanh), VECTORS[:9], VECTORS[9:]),
    "rnn": (zoo.simple_rnn(var_b=0.2), SEQUENCES[:4], SEQUENCES[4:]),
    "cnn": (zoo.cnn(2, var_w=2.0), IMAGES[:5], IMAGES[5:]),
}


def lookup(matrix: np.ndarray) -> Any:
    """scikit-learn's view of a matrix: inputs are row numbers."""
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")

    class Lookup(kernels.Kernel):
        def __init__(self, matrix: np.ndarray) -> None:
            self.matrix = matrix

        def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
            rows, cols = (np.asarray(a)[:, 0].astype(int) for a in (X, X if Y is None else Y))
            block = self.matrix[np.ix_(rows, cols)]
            return (block, np.zeros((*block.shape, 0))) if eval_gradient else block

        def diag(self, X: Any) -> Any:
            return np.diagonal(self.matrix)[np.asarray(X)[:, 0].astype(int)].copy()

        def is_stationary(self) -> Any:
            return False

    return Lookup(matrix)


def data(name: str, columns: int | None = None) -> tuple[ns.Network, Any, Any, int, np.ndarray]:
    """A network, training and new inputs, the number of training rows, targets."""
    net, old, new = CASES[name]
    rows = len(ns.kernel(net)(old))
    shape = (rows,) if columns is None else (rows, columns)
    return net, old, new, rows, np.random.default_rng(5).standard_normal(shape)


# Against scikit-learn


@pytest.mark.parametrize(
    ("name", "columns", "noise"),
    [("mlp", 3, 1e-3), ("mlp", None, 0.3), ("tanh", None, 1e-3), ("rnn", 1, 1e-3), ("cnn", None, 1e-3)],
)
def test_posterior_and_likelihood_are_scikit_learns(name: str, columns: int | None, noise: float) -> None:
    regressor = pytest.importorskip("sklearn.gaussian_process").GaussianProcessRegressor
    net, old, new, rows, y = data(name, columns)
    matrix = ns.kernel(net)([*old, *new])
    index = np.arange(len(matrix))[:, None]
    theirs = regressor(lookup(matrix), alpha=noise, optimizer=None).fit(index[:rows], y)
    model = ns.gp.fit(ns.kernel(net), old, y, noise=noise)
    mean, cov = theirs.predict(index[rows:], return_cov=True)
    found = model.predict(new, cov=True)
    ours = {"mean": found.mean, "std": model.predict(new).std, "cov": found.cov}
    std = theirs.predict(index[rows:], return_std=True)[1]
    if columns == 3:  # scikit-learn repeats them for each column
        std, cov = std[:, 0], cov[:, :, 0]
    want = {"mean": mean.reshape(found.mean.shape), "std": np.squeeze(std), "cov": np.squeeze(cov)}
    for key, value in want.items():
        np.testing.assert_allclose(ours[key], value, rtol=1e-8, atol=1e-8, err_msg=key)
    np.testing.assert_allclose(model.mean(new), found.mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        model.log_marginal_likelihood(), theirs.log_marginal_likelihood_value_, rtol=1e-8
    )


def test_noise_of_each_target() -> None:
    net, old, new, rows, y = data("mlp")
    noise = np.linspace(0.01, 1.0, rows)
    matrix = ns.kernel(net)([*old, *new])
    weights = np.linalg.solve(matrix[:rows, :rows] + np.diag(noise), y)
    model = ns.gp.fit(ns.kernel(net), old, y, noise=noise)
    np.testing.assert_allclose(model.mean(new), matrix[rows:, :rows] @ weights, rtol=1e-9)
    with pytest.raises(DataError, match="noise of new observations"):
        model.predict(new, observed=True)


def test_params_and_observed() -> None:
    net, old, new, _, y = data("mlp")
    other = zoo.mlp(2, var_w=[1.0, 1.7], var_b=0.3)
    moved = ns.gp.fit(ns.kernel(net), old, y, noise=0.1, params={"W2": 1.7})
    plain = ns.gp.fit(ns.kernel(other), old, y, noise=0.1)
    one, two = moved.predict(new, cov=True), plain.predict(new, cov=True)
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-12)
    np.testing.assert_allclose(one.std, two.std, rtol=1e-12)
    noisy = plain.predict(new, cov=True, observed=True)
    np.testing.assert_allclose(noisy.std**2, two.std**2 + 0.1, rtol=1e-12)
    assert two.cov is not None
    assert noisy.cov is not None
    np.testing.assert_allclose(noisy.cov, two.cov + 0.1 * np.eye(len(two.std)), rtol=1e-12)


# Leaving out


@pytest.mark.parametrize("name", ["mlp", "rnn"])
def test_leave_one_out_is_refitting(name: str) -> None:
    """All outputs of an input are left out together."""
    net, old, _, _, y = data(name)
    model = ns.gp.fit(ns.kernel(net), old, y, noise=0.2)
    found = model.leave_one_out().by_input()
    stops = np.cumsum(model.sizes)
    for i, stop in enumerate(stops):
        rows = np.arange(stop - model.sizes[i], stop)
        others = ns.gp.fit(ns.kernel(net), [*old[:i], *old[i + 1 :]], np.delete(y, rows), noise=0.2)
        want = others.predict([old[i]], observed=True)
        np.testing.assert_allclose(found[i].mean, want.mean, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(found[i].std, want.std, rtol=1e-9)


# Sequences


def test_sequences_of_other_lengths() -> None:
    """A GP with variable-dimensional output: lists in, one prediction per input out."""
    net, old, new, rows, y = data("rnn")
    parts = np.split(y, np.cumsum([len(s) for s in old])[:-1])
    model = ns.gp.fit(ns.kernel(net), old, parts, noise=0.05)
    np.testing.assert_array_equal(model.y[:, 0], y)
    found = model.predict(new).by_input()
    assert [len(part.mean) for part in found] == [len(s) for s in new]
    matrix = ns.kernel(net)([*old, *new])
    weights = np.linalg.solve(matrix[:rows, :rows] + 0.05 * np.eye(rows), y)
    want = matrix[rows:, :rows] @ weights
    np.testing.assert_allclose(np.concatenate([part.mean for part in found]), want, rtol=1e-9)


def test_targets_per_input_in_one_array() -> None:
    x = RNG.standard_normal((4, 3, 2))
    y = RNG.standard_normal((4, 3))
    K = ns.kernel(zoo.simple_rnn())
    table, flat = (ns.gp.fit(K, x, t, noise=0.1) for t in (y, y.reshape(-1)))
    np.testing.assert_array_equal(table.alpha, flat.alpha)


def test_lists_of_targets_for_single_outputs() -> None:
    """Numbers are targets, rows are columns of targets; one sequence of one token has a list of its own."""
    K, x, y = ns.kernel(zoo.mlp(1)), VECTORS[:3], RNG.standard_normal((3, 2))
    for given, want in ((y[:, 0].tolist(), y[:, 0]), (y.tolist(), y), (list(y), y)):
        one, two = (ns.gp.fit(K, x, t, noise=0.1).mean(VECTORS[3:5]) for t in (given, want))
        np.testing.assert_array_equal(one, two)
    rnn = ns.kernel(zoo.simple_rnn())
    mixed = ns.gp.fit(rnn, [SEQUENCES[1], SEQUENCES[3]], [2.0, [0.5, 1.0]], noise=0.1)
    np.testing.assert_array_equal(mixed.y[:, 0], [2.0, 0.5, 1.0])


def test_single_precision_kernel() -> None:
    """The jitter grows with the rounding of the kernel; the posterior agrees to that rounding."""
    net, old, new, _, y = data("mlp")
    half = ns.gp.fit(ns.kernel(net, dtype=np.float32), old, y, noise=0.1)
    full = ns.gp.fit(ns.kernel(net), old, y, noise=0.1)
    assert 1e-7 < half.jitter < 1e-2
    assert half.jitter > 1e4 * full.jitter
    np.testing.assert_allclose(half.mean(new), full.mean(new), atol=1e-4)


def test_several_readouts() -> None:
    """Independent readouts are independent processes."""
    W, one, two = ns.Matrix(), ns.Matrix(rows=1), ns.Matrix(rows=2)
    single = ns.kernel(ns.network(lambda x: one @ ns.relu(W @ x)))
    double = ns.kernel(ns.network(lambda x: two @ ns.relu(W @ x)))
    y = RNG.standard_normal((9, 2))
    both = ns.gp.fit(double, VECTORS[:9], list(y), noise=0.1).predict(VECTORS[9:])
    columns = ns.gp.fit(single, VECTORS[:9], y, noise=0.1).predict(VECTORS[9:])
    np.testing.assert_allclose(both.mean.reshape(-1, 2), columns.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(both.std.reshape(-1, 2)[:, 1], columns.std, rtol=1e-9)


# Sampling


def _within(sampled: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> None:
    """Mean and covariance of samples within five of their standard errors."""
    count, deviation = len(sampled), np.sqrt(np.diagonal(cov))
    assert np.all(np.abs(sampled.mean(0) - mean) <= 5 * deviation / np.sqrt(count))
    spread = np.sqrt((cov**2 + np.outer(deviation, deviation) ** 2) / count)
    assert np.all(np.abs(np.cov(sampled.T) - cov) <= 5 * spread)


def test_samples_have_the_moments() -> None:
    net, old, new, _, y = data("rnn")
    model = ns.gp.fit(ns.kernel(net), old, y, noise=0.1)
    found = model.predict(new, cov=True)
    assert found.cov is not None
    drawn = model.sample(new, 4000, seed=1)
    _within(drawn, found.mean, found.cov)
    np.testing.assert_array_equal(drawn[:7], model.sample(new, 4000, seed=1)[:7])
    prior = ns.gp.sample(ns.kernel(net), new, 4000, seed=2)
    _within(prior, np.zeros(len(found.mean)), ns.kernel(net)(new))
    assert ns.gp.fit(ns.kernel(net), old, np.stack([y, y], 1), noise=0.1).sample(new, 3).shape == (3, 10, 2)


def test_samples_where_the_posterior_is_singular() -> None:
    """At the training inputs without noise, and at a repeated input, nothing or one thing is random."""
    net, old, new, _, y = data("mlp")
    model = ns.gp.fit(ns.kernel(net), old, y)
    np.testing.assert_allclose(model.sample(old, 5, seed=0), np.tile(y, (5, 1)), atol=1e-3)
    twice = model.sample([new[0], new[0]], 20, seed=0)
    np.testing.assert_allclose(twice[:, 0], twice[:, 1], atol=1e-6)
    assert twice[:, 0].std() > 0.01


# Noise, jitter, degenerate kernels


def test_noise_above_the_jitter_is_all_that_is_added() -> None:
    net, old, _, _, y = data("mlp")
    model = ns.gp.fit(ns.kernel(net), old, y, noise=1e-6)
    assert model.jitter < 1e-6
    assert model.nugget == 1e-6
    bare = ns.gp.fit(ns.kernel(net), old, y)
    assert 0 < bare.nugget == bare.jitter < 1e-10
    assert ns.gp.fit(ns.kernel(net), old, y, jitter=0.5).nugget == 0.5


def test_interpolation_without_noise() -> None:
    net, old, _, _, y = data("mlp")
    found = ns.gp.fit(ns.kernel(net), old, y).predict(old)
    np.testing.assert_allclose(found.mean, y, atol=1e-6)
    assert np.all(found.std < 1e-5)


@pytest.mark.filterwarnings("ignore::netsor.errors.NetsorWarning")
def test_jitter_follows_the_sampling_error() -> None:
    """Errors of n rows move eigenvalues by about 2 sqrt(n) of their size; fewer points need more."""
    assert needed_jitter(np.ones(100), 1e-3) == pytest.approx(2e-2, rel=1e-6)
    x = SEQUENCES[:3]
    y = RNG.standard_normal(8)
    rough, fine = (ns.gp.fit(ns.kernel(zoo.gru(), points=p), x, y) for p in (2**6, 2**10))
    assert not rough.exact
    assert rough.jitter > 2 * fine.jitter > 1e-6


def test_sampled_kernel_predicts() -> None:
    """Blocks of one joint evaluation: agrees with the dense formula on it, and variances are positive."""
    K = ns.kernel(zoo.gru(), points=2**8)
    old, new = SEQUENCES[:3], SEQUENCES[3:5]
    y = RNG.standard_normal(8)
    model = ns.gp.fit(K, old, y, noise=0.1)
    found = model.predict(new, cov=True)
    joint = K([*old, *new])
    weights = np.linalg.solve(joint[:8, :8] + np.eye(8) * 0.1, joint[:8, 8:])
    np.testing.assert_allclose(found.mean, weights.T @ y, rtol=1e-8, atol=1e-10)
    assert found.cov is not None
    np.testing.assert_allclose(found.cov, joint[8:, 8:] - joint[8:, :8] @ weights, rtol=1e-7, atol=1e-10)
    np.testing.assert_array_equal(model.mean(new), found.mean)
    assert np.linalg.eigvalsh(found.cov)[0] > 0


def test_one_training_point() -> None:
    K = ns.kernel(zoo.mlp(1))
    x, z = VECTORS[:1], VECTORS[1:3]
    k, cross = K(x)[0, 0], K(z, x)[:, 0]
    found = ns.gp.fit(K, x, [2.0], noise=0.5).predict(z)
    np.testing.assert_allclose(found.mean, cross / (k + 0.5) * 2.0, rtol=1e-12)
    np.testing.assert_allclose(found.std**2, K.diag(z) - cross**2 / (k + 0.5), rtol=1e-12)
    alone = ns.gp.fit(K, x, [2.0], noise=0.5).leave_one_out()
    np.testing.assert_allclose([alone.mean[0], alone.std[0]], [0.0, np.sqrt(k + 0.5)], atol=1e-12)


def test_repeated_inputs() -> None:
    """Conflicting targets need noise, and then count as their mean with half the noise; equal ones do not."""
    K, x = ns.kernel(zoo.mlp(1)), np.vstack([VECTORS[:3], VECTORS[:1]])
    y = np.array([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(DataError, match="inputs 0 and 3 are equal"):
        ns.gp.fit(K, x, y)
    found = ns.gp.fit(K, x, y, noise=0.2).predict(VECTORS[5:7])
    merged = ns.gp.fit(K, x[:3], [2.5, 2.0, 3.0], noise=np.array([0.1, 0.2, 0.2])).predict(VECTORS[5:7])
    np.testing.assert_allclose(found.mean, merged.mean, rtol=1e-10)
    np.testing.assert_allclose(found.std, merged.std, rtol=1e-10)
    y[3] = 1.0
    same = ns.gp.fit(K, x, y).predict(VECTORS[5:7])
    np.testing.assert_allclose(same.mean, ns.gp.fit(K, x[:3], y[:3]).mean(VECTORS[5:7]), atol=1e-5)


def test_singular_kernel() -> None:
    """A linear network has a kernel of rank 3: with noise it is ridge regression."""
    K = ns.kernel(zoo.mlp(1, ns.identity, var_b=0.0))
    y = RNG.standard_normal(9)
    x, z = VECTORS[:9], VECTORS[9:]
    ridge = np.linalg.solve(x.T @ x / 3 + 0.1 * np.eye(3), x.T @ y / 3)
    np.testing.assert_allclose(ns.gp.fit(K, x, y, noise=0.1).mean(z), z @ ridge, rtol=1e-10)
    exact = ns.gp.fit(K, x, x @ [1.0, -2.0, 0.5]).predict(z)
    np.testing.assert_allclose(exact.mean, z @ [1.0, -2.0, 0.5], atol=1e-5)
    assert np.all(exact.std < 1e-3)
    with pytest.raises(InferenceError, match="not positive definite"):
        ns.gp.fit(K, np.vstack([x, x]), np.tile(x @ [1.0, -2.0, 0.5], 2), jitter=0.0)


def test_not_positive_definite_says_what_to_do() -> None:
    with pytest.raises(InferenceError, match=r"smallest eigenvalue is -1") as caught:
        cholesky(np.array([[1.0, 2.0], [2.0, 1.0]]), 1e-9)
    assert "Give a noise above 2" in str(caught.value)
    dead = ns.kernel(zoo.mlp(1, var_v=0.0))
    with pytest.raises(InferenceError, match="zero on these inputs"):
        ns.gp.fit(dead, VECTORS, np.zeros(14))
    assert ns.gp.fit(dead, VECTORS, np.ones(14), noise=0.1).mean(VECTORS[:1]) == 0


# Bad input


def _nan(x: np.ndarray) -> np.ndarray:
    return np.where(np.arange(x.size).reshape(x.shape) == 4, np.nan, x)


BAD: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "NaN in x": (_nan(VECTORS), np.zeros(14), {}, "NaN"),
    "NaN in y": (VECTORS, _nan(np.zeros(14)), {}, r"first at \(4,\)"),
    "too few targets": (VECTORS, np.zeros(13), {}, r"shape \(13,\)"),
    "targets with three axes": (VECTORS, np.zeros((14, 1, 1)), {}, r"shape \(14, 1, 1\)"),
    "no columns": (VECTORS, np.zeros((14, 0)), {}, r"shape \(14, 0\)"),
    "words": (VECTORS, ["a"] * 14, {}, "not real numbers"),
    "complex": (VECTORS, np.zeros(14) + 1j, {}, "not real numbers"),
    "a number": (VECTORS, 1.0, {}, r"shape \(\)"),
    "no inputs": ([], [], {}, "empty"),
    "one number as inputs": (np.array(1.0), np.zeros(1), {}, "single number"),
    "negative noise": (VECTORS, np.zeros(14), {"noise": -1.0}, "negative"),
    "noise of another shape": (VECTORS, np.zeros(14), {"noise": np.ones(3)}, r"shape \(3,\)"),
    "noise in words": (VECTORS, np.zeros(14), {"noise": "low"}, "noise='low'"),
    "unknown variance": (VECTORS, np.zeros(14), {"params": {"Q": 1.0}}, "no variance `Q`"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    x, y, options, message = BAD[name]
    with pytest.raises(NetsorError, match=message):
        ns.gp.fit(ns.kernel(zoo.mlp(1)), x, y, **options)


def test_more_bad_input() -> None:
    K = ns.kernel(zoo.simple_rnn())
    with pytest.raises(DataError, match="targets of input 1 have shape"):
        ns.gp.fit(K, SEQUENCES[:2], [np.zeros(3), np.zeros(2)])
    with pytest.raises(DataError, match="different numbers of columns"):
        ns.gp.fit(K, SEQUENCES[:2], [np.zeros((3, 2)), np.zeros((1, 3))])
    with pytest.raises(DataError, match="is not a kernel"):
        ns.gp.fit(zoo.mlp(1), VECTORS, np.zeros(14))  # type: ignore[arg-type]
    model = ns.gp.fit(ns.kernel(zoo.mlp(1)), VECTORS, np.zeros(14), noise=0.1)
    with pytest.raises(NetsorError, match="NaN"):
        model.predict(_nan(VECTORS))
    with pytest.raises(NetsorError):
        model.predict(VECTORS[:, :2])
    with pytest.raises(DataError, match="samples=0"):
        model.sample(VECTORS, 0)


def test_batches_as_inputs() -> None:
    """A batchnorm network is a process over batches: each has one output per member."""
    batches = RNG.standard_normal((3, 4, 5))
    K = ns.kernel(zoo.batchnorm_mlp(1))
    y = RNG.standard_normal((2, 4))
    found = ns.gp.fit(K, batches[:2], y, noise=0.1).predict(batches[2:])
    matrix = K(batches)
    weights = np.linalg.solve(matrix[:8, :8] + 0.1 * np.eye(8), y.reshape(-1))
    np.testing.assert_allclose(found.mean, matrix[8:, :8] @ weights, rtol=1e-6)
