"""Gradients in the variances, and the search for the largest marginal likelihood."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor import zoo
from netsor.errors import DataError
from netsor.gp import gradient
from netsor.gp.objective import Objective
from netsor.limits import KernelFn, Plan, Result
from netsor.limits.kernel import TangentKernelFn
from netsor.limits.kernel_tiles import of_params

RNG = np.random.default_rng(4)
VECTORS = RNG.standard_normal((12, 3))
SEQUENCES = [RNG.standard_normal((length, 2)) for length in (3, 1, 4, 2)]
IMAGES = RNG.standard_normal((4, 3, 3, 1))
CASES: dict[str, tuple[ns.Network, Any]] = {
    "mlp": (zoo.mlp(2, ns.erf, var_b=0.3), VECTORS[:6]),
    "rnn": (zoo.simple_rnn(var_b=0.2), [SEQUENCES[3], SEQUENCES[1], SEQUENCES[2][:2]]),
    "cnn": (zoo.cnn(2, var_w=2.0), IMAGES),
}
each_case = pytest.mark.parametrize("name", CASES)


def objective(name: str) -> Objective:
    """The likelihood of random targets, free in all variances and in the noise."""
    net, x = CASES[name]
    K = ns.kernel(net)
    y = np.random.default_rng(1).standard_normal((len(K(x)), 2))
    values = {**K.params, "noise": 0.1}
    return Objective(K, list(x), y, values, [(key,) for key in values])


# Gradients


@each_case
def test_gradient_of_the_likelihood_by_jax(name: str) -> None:
    pytest.importorskip("jax")
    made = objective(name)
    theta = made.start + 0.1
    value, slope = made.with_jax()(theta)
    want, differences = made.value(theta), gradient.central_differences(made.value, theta)
    np.testing.assert_allclose(value, want, rtol=1e-10)
    np.testing.assert_allclose(slope, differences, rtol=1e-5, atol=1e-5 * np.abs(differences).max())


@each_case
def test_gradient_of_the_kernel_by_jax(name: str) -> None:
    pytest.importorskip("jax")
    net, x = CASES[name]
    value, slopes = ns.gp.kernel_gradient(ns.kernel(net), x, method="jax")
    _, differences = ns.gp.kernel_gradient(ns.kernel(net), x, method="differences")
    np.testing.assert_allclose(slopes, differences, atol=1e-7 * np.abs(value).max())


@each_case
def test_differences_against_the_gradient_formula(name: str) -> None:
    """d log p / d theta = 1/2 tr((alpha alpha^T - K^-1) dK / d theta), for each column of y."""
    made = objective(name)
    found = gradient.central_differences(made.value, made.start)
    value, slopes = ns.gp.kernel_gradient(made.kernel, made.inputs, method="differences")
    inverse = np.linalg.inv(value + 0.1 * np.eye(len(value)))
    alpha = inverse @ made.y
    inner = alpha @ alpha.T - made.y.shape[1] * inverse
    want = [np.sum(inner * slopes[:, :, k]) / 2 for k in range(slopes.shape[2])]
    want.append(0.1 * np.trace(inner) / 2)
    np.testing.assert_allclose(-found, want, rtol=1e-5, atol=1e-5 * np.abs(found).max())


def test_kernel_gradient_of_a_homogeneous_network() -> None:
    """A relu network without biases scales with each of its variances: dK / d log var = K."""
    K = ns.kernel(zoo.mlp(2, var_b=0.0))
    value, slopes = ns.gp.kernel_gradient(K, VECTORS, method="differences")
    for k in range(3):
        np.testing.assert_allclose(slopes[:, :, k], value, rtol=1e-8, atol=1e-9)
    only, slope = ns.gp.kernel_gradient(K, VECTORS, ["v"], params={"W1": 3.0})
    np.testing.assert_allclose(only, 3.0 * value, rtol=1e-12)
    np.testing.assert_allclose(slope[:, :, 0], only, rtol=1e-7)
    with pytest.raises(DataError, match="no variance `Q`"):
        ns.gp.kernel_gradient(K, VECTORS, ["Q"])
    with pytest.raises(DataError, match="method="):
        ns.gp.kernel_gradient(K, VECTORS, method="adjoint")


class InJax(KernelFn):
    """The kernel of an erf network with one hidden layer, written in JAX by its formula (Williams 1997)."""

    def evaluate(self, x: Any, y: Any = None, *, params: Any = None) -> Result:
        import jax.numpy as jnp

        given = {**self.params, **(params or {})}
        if all(isinstance(value, float) for value in given.values()):
            return super().evaluate(x, y, params=params)
        table = np.stack(x)
        gram = given["W1"] * (table @ table.T) / table.shape[1] + given["b1"]
        root = jnp.sqrt(1 + 2 * jnp.diagonal(gram))
        value = given["v"] * 2 / np.pi * jnp.arcsin(2 * gram / (root[:, None] * root))
        return Result(value, np.zeros(value.shape), Plan((), 0, value.shape))  # type: ignore[arg-type]


def test_search_by_jax_with_a_kernel_that_jax_follows() -> None:
    pytest.importorskip("jax")
    plain = ns.kernel(zoo.mlp(1, ns.erf))
    K = InJax(plain.net, plain.options)
    y = ns.gp.sample(plain, VECTORS, 2, seed=3, params={"W1": 3.0}).T + 0.1 * RNG.standard_normal((12, 2))
    values = {**K.params, "noise": 0.1}
    made = Objective(K, list(VECTORS), y, values, [(key,) for key in values])
    value, slope = made.with_jax()(made.start + 0.1)
    theta = made.start + 0.1
    want, differences = made.value(theta), gradient.central_differences(made.value, theta)
    assert value == pytest.approx(want, rel=1e-12)
    np.testing.assert_allclose(slope, differences, rtol=1e-6, atol=1e-7)
    by_jax, by_differences = (
        ns.gp.kernel_gradient(K, VECTORS, method=method)[1] for method in ("jax", "differences")
    )
    np.testing.assert_allclose(by_jax, by_differences, atol=1e-8)
    found = ns.gp.tune(K, VECTORS, y, progress=False)
    assert found.method == "jax"
    other = ns.gp.tune(plain, VECTORS, y, method="differences", progress=False)
    assert found.value == pytest.approx(other.value, abs=1e-4)


@each_case
def test_gradient_of_the_likelihood_by_differences(name: str) -> None:
    made = objective(name)
    value, slope = made.with_differences(made.start)
    differences = gradient.central_differences(made.value, made.start)
    assert value == made.value(made.start)
    np.testing.assert_allclose(slope, differences, rtol=1e-5, atol=1e-6 * np.abs(differences).max())


SAMPLED: dict[str, tuple[ns.KernelFn, Any]] = {
    "gru": (ns.kernel(zoo.gru(), points=128, repeats=2), SEQUENCES[2:]),
    "gru, ntk": (ns.ntk(zoo.gru(), points=64, repeats=2), SEQUENCES[2:3]),
    "lstm": (ns.kernel(zoo.lstm(), points=64, repeats=2), SEQUENCES[2:3]),
    "lstm, ntk": (ns.ntk(zoo.lstm(), points=16, repeats=2), SEQUENCES[3:]),
    "max pooling": (ns.ntk(zoo.cnn(1, pool="max"), points=64, repeats=2), IMAGES[:1]),
    "batchnorm": (ns.kernel(zoo.batchnorm_mlp(1)), [VECTORS[:5]]),
    "batchnorm, ntk": (ns.ntk(zoo.batchnorm_mlp(1), "unit"), [VECTORS[:5]]),
}
DIFFERENTIATED: dict[str, tuple[ns.KernelFn, Any]] = {
    **SAMPLED,
    "mlp, erf": (ns.kernel(CASES["mlp"][0]), VECTORS[:6]),
    "mlp, erf, ntk": (ns.ntk(CASES["mlp"][0]), VECTORS[:6]),
    "cnn": (ns.kernel(CASES["cnn"][0]), IMAGES),
    "cnn, ntk": (ns.ntk(CASES["cnn"][0]), IMAGES[:2]),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n.startswith("lstm") else n for n in DIFFERENTIATED],
)
def test_gradients_in_every_variance_and_rate(name: str) -> None:
    """jax.grad against central differences of fourth order.

    Where something is sampled or integrated the gradient is itself a difference, with smaller steps.
    """
    jax = pytest.importorskip("jax")
    from netsor.lang.array_api import double_precision

    K, x = DIFFERENTIATED[name]
    params = dict(K.params)
    if isinstance(K, TangentKernelFn):
        params |= {f"{name}.rate": 0.8 for name in K.params}
    weights = np.random.default_rng(0).standard_normal(K(x, params=params).shape)
    with double_precision():
        slopes = jax.jit(jax.grad(lambda p: (weights * K(x, params=p)).sum()))(params)
    at = of_params(K, x)
    np.testing.assert_allclose(at(params), K(x, params=params), rtol=1e-12)
    for key, value in params.items():
        h = 1e-3 * value
        values = {k: np.sum(weights * at({**params, key: value + k * h})) for k in (-2, -1, 1, 2)}
        want = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * h)
        assert float(slopes[key]) == pytest.approx(want, abs=1e-7 * np.abs(weights).sum())


def test_a_sampled_kernel_is_smooth_in_its_variances() -> None:
    """Where pivots and axes are chosen anew there are jumps; held, third differences fall like a cube."""
    K, x = SAMPLED["gru"]
    at = of_params(K, x)
    for name in ("U_z", "b_z", "W_h"):
        values = [at({**K.params, name: v}) for v in np.linspace(1.0, 3.0, 41)]
        coarse, fine = (np.abs(np.diff(values[::step], 3, axis=0)).max() for step in (4, 1))
        assert fine < 0.05 * coarse + 1e-10


@pytest.mark.parametrize("noise", [0.1, 1e-20])  # the second is less than the jitter
def test_gradient_with_a_tied_noise_and_with_the_jitter(noise: float) -> None:
    net, x = CASES["mlp"]
    K = ns.kernel(net)
    values = {**K.params, "noise": noise}
    groups = [("v", "noise"), *[(name,) for name in K.params if name != "v"]]
    made = Objective(K, list(x), np.ones((len(x), 2)) * np.arange(2), values, groups)
    made.jitter = 1e-3
    _, slope = made.with_differences(made.start)
    differences = gradient.central_differences(made.value, made.start)
    np.testing.assert_allclose(slope, differences, rtol=1e-5, atol=1e-6 * np.abs(differences).max())


def test_uncertainties_are_those_of_the_curvature() -> None:
    """Where targets have the covariance of the model, the Hessian is the Fisher information."""
    made = objective("mlp")
    value, _ = ns.gp.kernel_gradient(made.kernel, made.inputs)
    made.y = np.sqrt(len(value)) * np.linalg.cholesky(value + 0.1 * np.eye(len(value)))
    h = 1e-3
    for k, uncertainty in enumerate(made.uncertainties(made.start)):
        below, at, above = (made.value(made.start + h * n * np.eye(len(made.groups))[k]) for n in (-1, 0, 1))
        assert uncertainty == pytest.approx((1 + (above - 2 * at + below) / h**2) ** -0.5, rel=1e-4)


@pytest.mark.filterwarnings("ignore::netsor.errors.NetsorWarning")
def test_inputs_of_zeros_are_tuned() -> None:
    """Their variance is 0 whatever the variances of the network are."""
    K = ns.kernel(zoo.mlp(1, ns.erf, var_b=0.0))
    x = np.vstack([VECTORS[:5], np.zeros(3)])
    found = ns.gp.tune(K, x, np.ones(6), noise=0.1, method="differences", progress=False)
    assert found.value > found.start


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::netsor.errors.NetsorWarning")
def test_searches_of_sampled_kernels_repeat() -> None:
    K, x = SAMPLED["gru"]
    y = np.sin(np.arange(len(K(x))))
    options: dict[str, Any] = {"fixed": ["W_r", "W_z", "W_h", "b_r", "U_r"], "progress": False}
    changes: list[dict[str, Any]] = [{}, {}, {"restarts": 1}, {"restarts": 1, "seed": 5}]
    one, again, more, other = (ns.gp.tune(K, x, y, **options, **change) for change in changes)
    assert (one.params, one.evaluations) == (again.params, again.evaluations)
    assert len({one.evaluations, more.evaluations, other.evaluations}) == 3
    assert min(more.value, other.value) > one.value - 0.1  # `value` is of points that are chosen anew


@pytest.mark.filterwarnings("ignore::netsor.errors.NetsorWarning")
def test_auto_takes_differences_where_something_is_sampled() -> None:
    K, x = SAMPLED["gru"]
    y = np.sin(np.arange(len(K(x))))
    found = ns.gp.tune(K, x, y, fixed=["W_r", "W_z", "W_h", "b_r", "U_r"], progress=False)
    assert found.method == "differences"
    assert found.value > found.start


# The search


@pytest.mark.parametrize(("method", "tolerance"), [("nelder-mead", 1e-3), ("differences", 1e-4)])
def test_scale_of_the_output_has_a_formula(method: str, tolerance: float) -> None:
    """With all else fixed and no noise, the best var_v is y^T K^-1 y / n."""
    K = ns.kernel(zoo.mlp(2))
    y = 3.0 * RNG.standard_normal(12)
    found = ns.gp.tune(
        K, VECTORS, y, noise=0.0, fixed=["noise", "W1", "W2", "b1", "b2"], method=method, progress=False
    )
    want = y @ np.linalg.solve(K(VECTORS), y) / 12
    assert found.converged
    assert found.method == method
    assert found.params["v"] == pytest.approx(want, rel=tolerance)
    assert found.noise == 0.0
    assert {k: v for k, v in found.params.items() if k != "v"} == dict.fromkeys(["W1", "W2", "b1", "b2"], 1.0)


def test_noise_has_a_formula_where_the_network_is_silent() -> None:
    """With a dead network the best noise is the mean square of the targets."""
    y = 0.3 * RNG.standard_normal(12)
    K = ns.kernel(zoo.mlp(1, var_v=0.0))
    found = ns.gp.tune(K, VECTORS, y, noise=1.0, fixed=["W1", "b1"], method="differences", progress=False)
    assert found.noise == pytest.approx(np.mean(y**2), rel=1e-4)
    assert found.params["v"] == 0.0


def test_methods_agree_and_runs_repeat() -> None:
    K = ns.kernel(zoo.mlp(1, ns.erf))
    y = ns.gp.sample(K, VECTORS, seed=3, params={"W1": 5.0, "v": 2.0})[0] + 0.1 * RNG.standard_normal(12)
    seen: list[tuple[int, float]] = []
    options: dict[str, Any] = {"fixed": ["b1"], "noise": 0.05, "bounds": (1e-3, 1e3)}
    one = ns.gp.tune(K, VECTORS, y, method="differences", progress=lambda *p: seen.append(p), **options)
    two = ns.gp.tune(K, VECTORS, y, method="nelder-mead", progress=False, **options)
    again = ns.gp.tune(K, VECTORS, y, method="nelder-mead", progress=False, **options)
    assert two.params == again.params
    assert one.value == pytest.approx(two.value, abs=2e-3)
    assert one.value > one.start
    assert seen[0][1] == pytest.approx(one.start)
    assert max(value for _, value in seen) == pytest.approx(one.value, abs=1e-6)
    assert seen[-1][0] == one.evaluations
    assert one.value == pytest.approx(one.model.log_marginal_likelihood())
    more = ns.gp.tune(K, VECTORS, y, method="differences", restarts=2, seed=1, progress=False, **options)
    assert more.value >= one.value - 1e-6
    assert more.evaluations > one.evaluations


@pytest.mark.filterwarnings("ignore::netsor.errors.NetsorWarning")
def test_auto_takes_jax_where_it_compiles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    options: dict[str, Any] = {"fixed": ["b1", "noise"], "steps": 2, "progress": False}
    y = RNG.standard_normal(12)
    K = ns.kernel(zoo.mlp(1, ns.erf))
    assert ns.gp.tune(K, VECTORS, y, **options).method == "jax"
    monkeypatch.setattr(gradient.jax_runs, "__defaults__", (3,))
    assert ns.gp.tune(K, VECTORS, y, **options).method == "differences"


@pytest.mark.filterwarnings("ignore::netsor.errors.NetsorWarning")
def test_tied_variances_keep_their_ratio() -> None:
    K = ns.kernel(zoo.mlp(2, ns.erf, var_w=[1.0, 4.0]))
    y = RNG.standard_normal(12)
    found = ns.gp.tune(
        K,
        VECTORS,
        y,
        tied=[["W1", "W2"]],
        fixed=["v", "b1", "b2"],
        steps=5,
        progress=False,
        method="differences",
    )
    assert found.params["W2"] / found.params["W1"] == pytest.approx(4.0)
    assert found.params["W1"] != 1.0


@pytest.mark.filterwarnings("ignore::netsor.errors.NetsorWarning")
def test_sequences_are_tuned() -> None:
    """Several rows per input; a sampled kernel is searched by differences."""
    K = ns.kernel(zoo.gru(), points=2**4)
    y = [RNG.standard_normal(len(s)) for s in SEQUENCES[:2]]
    fixed = [name for name in K.params if name != "v"]
    found = ns.gp.tune(K, SEQUENCES[:2], y, fixed=fixed, steps=4, progress=False)
    assert found.method == "differences"
    assert found.value > found.start
    assert found.model.sizes == (3, 1)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    K = ns.kernel(zoo.mlp(1))
    everything = ["W1", "b1", "v", "noise"]
    ns.gp.tune(K, VECTORS, np.zeros(12), fixed=everything[:3], steps=2, method="nelder-mead", progress=True)
    assert "tuning" in capsys.readouterr().err
    still = ns.gp.tune(K, VECTORS, np.zeros(12), fixed=everything, method="nelder-mead", progress=False)
    assert still.value == pytest.approx(still.start)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fixed": ["Q"]}, "no variance `Q`"),
        ({"tied": [["W1"], ["W1"]]}, "tied twice"),
        ({"tied": [["W1"]], "fixed": ["W1"]}, "tied and fixed"),
        ({"noise": 0.0}, "noise=0.0"),
        ({"noise": np.ones(12)}, "noise"),
        ({"bounds": (1.0, 1.0)}, "bounds="),
        ({"steps": 0}, "steps=0"),
        ({"restarts": -1}, "restarts=-1"),
        ({"method": "guess"}, "method='guess'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ns.gp.tune(ns.kernel(zoo.mlp(1)), VECTORS, np.zeros(12), **options)


def test_noise_as_a_name_is_taken() -> None:
    W, v = ns.Matrix(name="noise"), ns.Matrix(rows=1)
    K = ns.kernel(ns.network(lambda x: v @ ns.relu(W @ x)))
    with pytest.raises(DataError, match="variance named `noise`"):
        ns.gp.tune(K, VECTORS, np.zeros(12))
