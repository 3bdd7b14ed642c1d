"""One test of each main capability, for every commit: formulas written out here beside what netsor says."""

from __future__ import annotations

import numpy as np
from scipy.special import erf

import netsor as ns

X = np.random.default_rng(3).standard_normal((3, 4))
PROGRAM = """\
Input W :: A(n, n) ~ N(0, 2/n)
Input g :: G(n) ~ N(0, 1)
Input v :: G(n) ~ N(0, 1)
x := relu(g)
h := MatMul(W, x)
y := tanh(h)*x
Output v^T y / sqrt(n)
"""


def relu_moments(sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E relu relu and E relu' relu' of Gaussians with this covariance (Cho and Saul, 2009)."""
    scale = np.sqrt(np.outer(np.diag(sigma), np.diag(sigma)))
    angle = np.arccos(np.clip(sigma / scale, -1, 1))
    product = scale * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    return product, (np.pi - angle) / (2 * np.pi)


def relu_kernels(x: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and tangent kernel of a relu MLP, all variances 1."""
    sigma = x @ x.T / x.shape[1] + 1
    tangent = sigma
    for _ in range(depth - 1):
        product, slope = relu_moments(sigma)
        sigma, tangent = product + 1, product + 1 + tangent * slope
    product, slope = relu_moments(sigma)
    return product, product + tangent * slope


def test_kernel_of_an_mlp_is_the_arc_cosine_recursion() -> None:
    result = ns.kernel(ns.zoo.mlp(depth=3)).evaluate(X)
    wanted, _ = relu_kernels(X, depth=3)
    np.testing.assert_allclose(result.value, wanted, rtol=1e-12)
    assert result.plan.exact
    assert result.error.max() < 1e-12


def test_tangent_kernel_of_an_mlp_is_its_recursion() -> None:
    _, wanted = relu_kernels(X, depth=2)
    np.testing.assert_allclose(ns.ntk(ns.zoo.mlp(depth=2))(X), wanted, rtol=1e-12)


def test_kernel_of_a_gru_of_two_tokens_is_its_integrals() -> None:
    """States z c and (1 - z') z c + z' c', where gates (z, z') and candidates (c, c') are independent."""
    sigma = X[:2] @ X[:2].T / 4 + 1
    nodes, weights = np.polynomial.legendre.leggauss(200)
    nodes, weights = 9 * nodes, 9 * weights * np.exp(-((9 * nodes) ** 2) / 2) / np.sqrt(2 * np.pi)
    first, second = np.meshgrid(nodes, nodes, indexing="ij")

    def values_of(function, added):
        """The function of two Gaussians; to the variance of the second comes that of the state."""
        root = np.linalg.cholesky(sigma + np.diag([0.0, added]))
        return function(root[0, 0] * first), function(root[1, 0] * first + root[1, 1] * second)

    def gate(x):
        return (1 + erf(x)) / 2

    def mean(values):
        return weights @ values @ weights

    c, _ = values_of(erf, 0.0)
    z, _ = values_of(gate, 0.0)
    state = mean(z**2) * mean(c**2)  # E h^2 after the first token
    z, z2 = values_of(gate, state)
    _, reset = values_of(gate, state)
    c, c2 = values_of(erf, mean(reset**2) * state)
    both = mean((1 - z2) * z**2) * mean(c**2) + mean(z * z2) * mean(c * c2)
    last = (
        mean(((1 - z2) * z) ** 2) * mean(c**2)
        + 2 * mean((1 - z2) * z * z2) * mean(c * c2)
        + mean(z2**2) * mean(c2**2)
    )
    result = ns.kernel(ns.zoo.gru()).evaluate([X[:2]])
    np.testing.assert_allclose(result.value, [[state, both], [both, last]], rtol=1e-9)


def test_sampled_kernel_of_a_gru_is_that_of_finite_networks() -> None:
    """From the third token on: 50 networks of width 200, whose mean has a bias of order 1 / 200."""
    result = ns.kernel(ns.zoo.gru()).evaluate([X])
    kernels = ns.empirical_kernel(ns.zoo.gru(), [X], 200, 50, seed=0)
    allowed = 5 * kernels.std(axis=0, ddof=1) / np.sqrt(50) + 8 * result.error + result.value.max() / 200
    assert np.all(np.abs(kernels.mean(axis=0) - result.value) <= allowed)
    assert 0 < result.error.max() < 0.01 * result.value.max()


def test_text_of_a_program_reads_back_and_has_its_limits() -> None:
    program = ns.parse(PROGRAM)
    assert ns.parse(program.show()) == program
    assert [str(program.types[name]) for name in "Wghxy"] == ["A(n, n)", "G(n)", "G(n)", "H(n)", "H(n)"]
    np.testing.assert_allclose(ns.limit(program).sigma("h"), 1.0, rtol=1e-12)  # 2 E relu(g)^2


def test_simulated_networks_have_the_covariance_of_the_limit() -> None:
    """400 outputs of networks of width 500: a covariance has a standard error of about its size / 20."""
    outputs = ns.simulate(ns.zoo.mlp(), X, width=500, samples=400, seed=0)
    wanted, _ = relu_kernels(X, depth=1)
    variances = np.diag(wanted)
    spread = np.sqrt((np.outer(variances, variances) + wanted**2) / 400)
    assert np.all(np.abs(np.cov(outputs.T) - wanted) <= 5 * spread)


def test_posterior_mean_is_the_formula_of_regression() -> None:
    y = np.array([1.0, -1.0, 0.5])
    model = ns.gp.fit(ns.kernel(ns.zoo.mlp()), X, y, noise=0.1)
    joint, _ = relu_kernels(np.vstack([X, X[:1] / 2]), depth=1)
    weights = np.linalg.solve(joint[:3, :3] + 0.1 * np.eye(3), joint[:3, 3])
    np.testing.assert_allclose(model.predict(X[:1] / 2).mean, weights @ y, rtol=1e-10)
