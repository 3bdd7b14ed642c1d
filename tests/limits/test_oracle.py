"""The oracle itself: against values worked out by hand, and against networks of finite width."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import acos, asin, e, erf, exp, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor import zoo
from netsor.simulation import draw, forward

sys.path.insert(0, str(Path(__file__).parents[1]))
import oracle_answers
from oracle import OracleResult, gaussian_expectation, oracle, principal_axes, symmetric_root

ROUNDING = 1e-13  # of sums of some 1e5 numbers of order one, in float64


def assert_value(value: float, error: float, truth: float) -> None:
    """Within the error estimate, which is itself small: these integrals are in at most two directions.

    The change from fewer to all nodes is no bound (the kink of a relu may lie worse among all nodes than
    among half of them), so we allow it four times.
    """
    assert abs(value - truth) <= 4 * error + ROUNDING * max(1.0, abs(truth))
    assert error <= 1e-5 * max(1.0, abs(truth))


def assert_values(result: OracleResult, sigma: dict[tuple[str, str], float]) -> None:
    """The given entries of Sigma are right, and so are the same entries the other way round."""
    for (g, h), truth in sigma.items():
        assert_value(result.sigma[g, h], result.error.sigma[g, h], truth)
        assert result.sigma[h, g] == result.sigma[g, h]


def assert_kernel(result: OracleResult, truth: Any) -> None:
    truth = np.asarray(truth, float)
    assert result.kernel.shape == result.error.kernel.shape == truth.shape
    for i in np.ndindex(truth.shape):
        assert_value(float(result.kernel[i]), float(result.error.kernel[i]), truth[i])


def relu_moment(p: float, c: float, q: float) -> float:
    """E relu(z) relu(z') for a centred Gaussian pair with variances p, q and covariance c (arc-cosine)."""
    cosine = np.clip(c / sqrt(p * q), -1, 1)
    return sqrt(p * q) / (2 * pi) * (sqrt(1 - cosine**2) + (pi - acos(cosine)) * cosine)


def erf_moment(p: float, c: float, q: float) -> float:
    """E erf(z) erf(z') for the same pair (arcsine)."""
    return 2 / pi * asin(2 * c / sqrt((1 + 2 * p) * (1 + 2 * q)))


def normal_cdf(x: float) -> float:
    return (1 + erf(x / sqrt(2))) / 2


# Integrals


@pytest.mark.parametrize("size", [1, 2, 3])
def test_quadrature_of_a_smooth_function(size: int) -> None:
    rng = np.random.default_rng(size)
    root, mean, slope = rng.standard_normal((size, size)), rng.standard_normal(size), np.full(size, 0.4)
    cov = root @ root.T
    got = gaussian_expectation(lambda z: np.exp(slope @ z), mean, cov)
    assert got == pytest.approx(exp(slope @ mean + slope @ cov @ slope / 2), rel=1e-10)


def test_quadrature_of_a_singular_covariance_has_the_dimension_of_its_rank() -> None:
    root = np.array([[1.0, 0.5], [1.0, 0.5], [2.0, -1.0], [0.0, 0.0]])
    cov = root @ root.T
    assert principal_axes(cov).shape == (4, 2)
    mean = np.array([0.0, 1.0, 2.0, 3.0])
    got = gaussian_expectation(lambda z: z[0] * z[1] * z[3] + z[2] ** 2, mean, cov)
    assert got == pytest.approx(3 * cov[0, 1] + 4 + cov[2, 2], rel=1e-12)


def test_a_constant_has_no_dimension() -> None:
    mean = np.array([2.0, 3.0])
    assert principal_axes(np.zeros((2, 2))).shape == (2, 0)
    assert gaussian_expectation(lambda z: z[0] * z[1], mean, np.zeros((2, 2))) == 6.0


def test_sampling() -> None:
    cov = np.eye(4) + 0.25
    np.testing.assert_allclose(symmetric_root(cov) @ symmetric_root(cov), cov, atol=1e-14)
    got = gaussian_expectation(lambda z: z[0] * z[3], np.full(4, 0.5), cov, samples=2**16)
    # z0 z3 has variance Var(z)^2 + Cov^2 + 2 mean^2 (Var + Cov) = 2.375
    assert abs(got - 0.5) < 5 * sqrt(2.375 / 2**16)


def test_a_covariance_that_is_none_is_refused() -> None:
    with pytest.raises(AssertionError, match="positive semi-definite"):
        principal_axes(np.array([[1.0, 2.0], [2.0, 1.0]]))


# The appendix example: MLP on a single input

MLP = """
Data x = [1, -2, 2]
Input W1 :: A(n, 3) ~ N(0, {w}/3)
Input W1x :: G(n) ~ MatMul(W1, x)
Input b1 :: G(n) ~ N(0, {b})
Input W2 :: A(n, n) ~ N(0, {w}/n)
Input b2 :: G(n) ~ N(0, {b})
Input v :: G(n) ~ N(0, {v})
h1 := W1x + b1 :: G(n)
x1 := {phi}(h1) :: H(n)
htilde2 := MatMul(W2, x1) :: G(n)
h2 := htilde2 + b2 :: G(n)
x2 := {phi}(h2) :: H(n)
Output v^T x2 / sqrt(n)
"""


@pytest.mark.parametrize(("phi", "moment"), [("relu", relu_moment), ("erf", erf_moment)])
@pytest.mark.parametrize(("w", "b", "v"), [(1.0, 1.0, 1.0), (1.7, 0.3, 0.6), (2.0, 0.0, 1.0)])
def test_mlp_on_a_single_input(phi: str, moment, w: float, b: float, v: float) -> None:
    result = oracle(ns.parse(MLP.format(phi=phi, w=w, b=b, v=v)))
    data = w * 9 / 3
    first = data + b
    hidden = w * moment(first, first, first)
    last = hidden + b
    variables = ["W1x", "b1", "b2", "v", "h1", "htilde2", "h2"]
    truth = {(g, h): 0.0 for g in variables for h in variables}
    truth |= {("W1x", "W1x"): data, ("b1", "b1"): b, ("b2", "b2"): b, ("v", "v"): v}
    truth |= {("h1", "W1x"): data, ("h1", "b1"): b, ("h1", "h1"): first}
    truth |= {("htilde2", "htilde2"): hidden, ("h2", "htilde2"): hidden, ("h2", "b2"): b, ("h2", "h2"): last}
    truth |= {(h, g): value for (g, h), value in truth.items() if value}
    assert set(result.sigma) == set(truth)
    assert result.mu == dict.fromkeys(result.mu, 0.0)
    assert set(result.mu) == set(variables)
    assert_values(result, truth)
    assert_kernel(result, [[v * moment(last, last, last)]])


def test_exact_steps_have_no_error() -> None:
    result = oracle(ns.parse(MLP.format(phi="erf", w=1.0, b=1.0, v=1.0)))
    assert result.error.mu == dict.fromkeys(result.mu, 0.0)
    assert result.error.sigma["h1", "h1"] == result.error.sigma["h2", "h1"] == 0.0
    assert 0 <= result.error.sigma["h2", "h2"] < 1e-12


# More than one input


def test_mlp_on_two_inputs() -> None:
    x = np.array([[1.0, 0.5, -1.0], [0.25, -2.0, 0.5]])
    w, b, v = [1.5, 0.8], [0.2, 0.4], 0.7
    result = oracle(ns.program(zoo.mlp(depth=2, var_w=w, var_b=b, var_v=v), *x))
    sigma = w[0] * x @ x.T / 3 + b[0]

    def moments(s: np.ndarray) -> np.ndarray:
        return np.array([[relu_moment(s[i, i], s[i, j], s[j, j]) for j in (0, 1)] for i in (0, 1)])

    assert_kernel(result, v * moments(w[1] * moments(sigma) + b[1]))


def test_simple_rnn_on_two_tokens() -> None:
    x = np.array([[1.0, 0.5], [-0.25, 2.0]])
    w, u, b, v = 1.3, 0.9, 0.2, 1.1
    result = oracle(ns.program(zoo.simple_rnn(var_w=w, var_u=u, var_b=b, var_v=v), x))
    inner = u * x @ x.T / 2 + b
    one, cross = inner[0, 0], inner[0, 1]
    two = inner[1, 1] + w * erf_moment(one, one, one)
    first, mixed, last = erf_moment(one, one, one), erf_moment(one, cross, two), erf_moment(two, two, two)
    assert_kernel(result, v * np.array([[first, mixed], [mixed, last]]))


def test_repeated_tokens_of_two_sequences() -> None:
    """Sigma is singular; both sequences are the same network on the same tokens."""
    x = np.array([[1.0, 0.5], [1.0, 0.5]])
    result = oracle(ns.program(zoo.simple_rnn(), x, x))
    assert_kernel(result, np.tile(result.kernel[:2, :2], (2, 2)))


LAYERNORM = """
Data x = [1, 2]
Data xp = [-0.5, 0.25]
Input W1 :: A(n, 2) ~ N(0, {w}/2)
Input W1x :: G(n) ~ MatMul(W1, x)
Input W1xp :: G(n) ~ MatMul(W1, xp)
Input W2 :: A(n, n) ~ N(0, {w}/n)
Input v :: G(n) ~ N(0, {v})
nu1 := Moment(W1x) :: C
var1 := Moment(W1x^2 - nu1^2) :: C
x1 := relu((W1x - nu1) / sqrt(var1)) :: H(n)
h2 := MatMul(W2, x1) :: G(n)
nu2 := Moment(h2) :: C
var2 := Moment(h2^2 - nu2^2) :: C
x2 := relu((h2 - nu2) / sqrt(var2)) :: H(n)
nu1p := Moment(W1xp) :: C
var1p := Moment(W1xp^2 - nu1p^2) :: C
x1p := relu((W1xp - nu1p) / sqrt(var1p)) :: H(n)
h2p := MatMul(W2, x1p) :: G(n)
nu2p := Moment(h2p) :: C
var2p := Moment(h2p^2 - nu2p^2) :: C
x2p := relu((h2p - nu2p) / sqrt(var2p)) :: H(n)
Output v^T x2 / sqrt(n)
Output v^T x2p / sqrt(n)
"""


def test_layernorm() -> None:
    w, v = 1.5, 0.8
    result = oracle(ns.parse(LAYERNORM.format(w=w, v=v)))
    x, xp = np.array([1.0, 2.0]), np.array([-0.5, 0.25])
    c = float(x @ xp / sqrt((x @ x) * (xp @ xp)))
    cross = w * relu_moment(1, c, 1)
    scalars = {"nu1": 0, "nu2": 0, "nu1p": 0, "nu2p": 0, "var2": w / 2, "var2p": w / 2}
    scalars |= {"var1": w * x @ x / 2, "var1p": w * xp @ xp / 2}
    assert set(result.scalars) == set(scalars)
    for name, truth in scalars.items():
        assert_value(result.scalars[name], result.error.scalars[name], truth)
    assert_values(result, {("h2", "h2"): w / 2, ("h2p", "h2p"): w / 2, ("h2", "h2p"): cross})
    assert_values(result, {("h2", "W1x"): 0, ("h2", "W1xp"): 0, ("h2p", "W1x"): 0, ("h2p", "W1xp"): 0})
    off = 2 * v / w * relu_moment(w / 2, cross, w / 2)
    assert_kernel(result, [[v / 2, off], [off, v / 2]])


def test_batchnorm_of_two_members_is_a_comparison() -> None:
    """The normalised members are 1 and -1; the integrand jumps, and the error estimate knows."""
    batch = np.array([[1.0, 2.0], [0.5, -1.0]])
    result = oracle(ns.program(zoo.batchnorm_mlp(depth=1), batch))
    assert np.all(np.abs(result.kernel - np.eye(2) / 2) <= result.error.kernel + ROUNDING)
    assert result.error.kernel.max() < 0.01


# Single rules

MEANS = """
Input g1 :: G(n) ~ N(0.5, 1)
Input g2 :: G(n) ~ N(-1, 2, g1: 0.3)
Input W :: A(n, n) ~ N(0, 2/n)
Input V :: A(n, n) ~ N(0, 4/n)
Input b :: G(n) ~ N(0.25, 0)
Input v :: G(n) ~ N(0, 1)
h := 2*g1 - (g2 + g1*3)/2 :: G(n)
x := relu(h) :: H(n)
Wx := MatMul(W, x) :: G(n)
Wg := MatMul(W, g1) :: G(n)
Vg := MatMul(V, g1) :: G(n)
y := 0.5*Wx - 3*b + Wg :: G(n)
zero := h - 0.5*g1 + 0.5*g2 :: G(n)
Output v^T y / sqrt(n)
Output v^T zero / sqrt(n)
"""


def test_linear_combinations_with_coefficients_and_means() -> None:
    result = oracle(ns.parse(MEANS))
    mean = 0.5 * 0.5 + 0.5  # h = 0.5 g1 - 0.5 g2
    own, g1 = 0.25 * (1 + 2 - 2 * 0.3), 0.5 * 1 - 0.5 * 0.3
    means = {"g1": 0.5, "g2": -1, "b": 0.25, "h": mean, "y": -0.75} | dict.fromkeys(["v", "zero"], 0)
    assert result.mu == pytest.approx(means | dict.fromkeys(["Wx", "Wg", "Vg"], 0))
    assert_values(result, {("h", "h"): own, ("h", "g1"): g1, ("h", "g2"): 0.5 * 0.3 - 0.5 * 2})
    # For z ~ N(m, s^2): E relu(z)^2 = (m^2 + s^2) F(m/s) + m s f(m/s), and by Stein's lemma
    # E g1 relu(h) = E g1 E relu(h) + Cov(g1, h) P(h > 0).
    s = sqrt(own)
    above, density = normal_cdf(mean / s), exp(-(mean**2) / own / 2) / sqrt(2 * pi)
    square = (mean**2 + own) * above + mean * s * density
    mixed = 0.5 * (mean * above + s * density) + g1 * above
    truth = {("Wx", "Wx"): 2 * square, ("Wx", "Wg"): 2 * mixed, ("Wg", "Wg"): 2 * (1 + 0.5**2)}
    truth |= {("Vg", "Vg"): 4 * (1 + 0.5**2), ("Vg", "Wg"): 0, ("Vg", "Wx"): 0, ("Vg", "y"): 0}
    truth |= {("Wx", "h"): 0, ("Wg", "g1"): 0, ("b", "b"): 0, ("y", "b"): 0, ("y", "Wg"): mixed + 2.5}
    truth |= {("y", "y"): 0.5 * square + 2 * mixed + 2.5, ("zero", "zero"): 0, ("zero", "h"): 0}
    assert_values(result, truth)
    assert_kernel(result, [[truth["y", "y"] + 0.75**2, 0], [0, 0]])


MOMENTS = """
Input g :: G(n) ~ N(0, 1)
Input v :: G(n) ~ N(0, 1)
c1 := Moment(exp(g)) :: C
c2 := Moment(erf(g)^2 + c1) :: C
d := sqrt(c1) / (1 + c2^2) :: C
first := softmax.0(c1, c2) :: C
x := d*g + first*relu(g) :: H(n)
Output v^T x / sqrt(n)
"""


def test_moments_and_functions_of_scalars() -> None:
    result = oracle(ns.parse(MOMENTS))
    c1 = sqrt(e)
    c2 = erf_moment(1, 1, 1) + c1
    d, first = sqrt(c1) / (1 + c2**2), 1 / (1 + exp(c2 - c1))
    for name, truth in {"c1": c1, "c2": c2, "d": d, "first": first}.items():
        assert_value(result.scalars[name], result.error.scalars[name], truth)
    assert_kernel(result, [[d**2 + first**2 / 2 + d * first]])


READOUTS = """
Input g :: G(n) ~ N(0, 1)
Input v :: G(n) ~ N(0, 2)
Input u :: G(n) ~ N(0, 3, v: 0.5)
Input w :: G(n) ~ N(0, 1)
x := relu(g) :: H(n)
Output v^T x / sqrt(n) + u^T g / sqrt(n)
Output v^T g / sqrt(n)
Output w^T x / sqrt(n) + w^T g / sqrt(n)
"""


def test_outputs_with_several_correlated_readouts() -> None:
    xx, xg, gg = 0.5, 0.5, 1.0
    both = 2 * xx + 2 * 0.5 * xg + 3 * gg
    mixed = 2 * xg + 0.5 * gg
    truth = [[both, mixed, 0], [mixed, 2 * gg, 0], [0, 0, xx + 2 * xg + gg]]
    assert_kernel(oracle(ns.parse(READOUTS)), truth)


def test_a_block_of_readouts() -> None:
    """A readout with several rows, and the readout of a flattened block, are sums of plain terms."""
    x = np.array([[1.0, 0.0], [0.5, 2.0]])
    W, v, u = ns.Matrix(), ns.Matrix(1.5, rows=2), ns.Matrix(rows=1)

    @ns.network
    def net(x):
        h = W @ x
        return v @ h[0], u @ ns.flatten(h)

    gram = x @ x.T / 2
    flat = (gram[0, 0] + gram[1, 1]) / 2  # the fan-in of u counts the two members
    assert_kernel(oracle(ns.program(net, x)), np.diag([1.5 * gram[0, 0], 1.5 * gram[0, 0], flat]))


WIDTHS = """
Input g :: G(n1) ~ N(0, 1)
Input W :: A(n2, n1) ~ N(0, 2/n1)
Input b :: G(n2) ~ N(0, 1)
Input v1 :: G(n1) ~ N(0, 1)
Input v2 :: G(n2) ~ N(0, 3)
x := relu(g) :: H(n1)
h := MatMul(W, x) :: G(n2)
f := h + b :: G(n2)
y := relu(f) :: H(n2)
Output v1^T x / sqrt(n1) + v2^T y / sqrt(n2)
Output v1^T g / sqrt(n1)
"""


def test_two_widths() -> None:
    result = oracle(ns.parse(WIDTHS))
    near, far = {"g", "v1"}, {"b", "v2", "h", "f"}
    assert set(result.sigma) == {(a, b) for c in (near, far) for a in c for b in c}
    assert_values(result, {("h", "h"): 1.0, ("f", "h"): 1.0, ("f", "f"): 2.0})
    assert_kernel(result, [[0.5 + 3 * 1.0, 0.5], [0.5, 1.0]])


SAMPLED = """
Input g1 :: G(n) ~ N(0, 1)
Input g2 :: G(n) ~ N(0.5, 1)
Input g3 :: G(n) ~ N(-1, 1)
Input g4 :: G(n) ~ N(0, 1)
Input W :: A(n, n) ~ N(0, 1/n)
Input v :: G(n) ~ N(0, 1)
x := erf(g1)*(g2 + g3)*g4 :: H(n)
h := MatMul(W, x) :: G(n)
y := relu(h) :: H(n)
Output v^T y / sqrt(n)
"""


def test_errors_of_sampled_steps_reach_what_depends_on_them() -> None:
    result = oracle(ns.parse(SAMPLED), samples=2**17)
    truth = erf_moment(1, 1, 1) * (2 + 0.5**2)
    value, error = result.sigma["h", "h"], result.error.sigma["h", "h"]
    assert 0 < error < 0.02 * truth
    assert abs(value - truth) < 5 * error
    assert result.kernel[0, 0] == pytest.approx(value / 2, rel=1e-12)
    assert result.error.kernel[0, 0] == pytest.approx(error / 2, rel=1e-6)
    again = oracle(ns.parse(SAMPLED), samples=2**17)
    assert again.kernel[0, 0] == result.kernel[0, 0]
    other = oracle(ns.parse(SAMPLED), samples=2**17, seed=1)
    assert other.kernel[0, 0] != result.kernel[0, 0]


# Networks of finite width
#
# The kernel of one random network given its body differs from the limit by a random part of order
# 1/sqrt(n), and its average over networks by a bias of order 1/n (the fluctuations of earlier layers
# enter the later ones through the curvature of V_phi). So the average over S networks must agree with
# the oracle to a few standard errors, which we measure, plus the oracle's own error, plus c/n. At width
# 50, with 3,000 networks, the bias of the networks below is at most 0.4/n in units of
# sqrt(K_ii K_jj); we allow 1/n. A test costs n^2 S and its standard error falls like 1/sqrt(n S), so many
# narrow networks say more in the same time than a few wide ones: 900 networks of width 100 have the
# standard error of 45 networks of width 2,000, which the slow tests take.

BIAS = 1.0
SIGMAS = 5.0

RNG = np.random.default_rng(0)
TOKENS = RNG.standard_normal((3, 3))
IMAGES = [RNG.standard_normal((3, 3, 2)) for _ in range(2)]
CHAIN = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]) / 2
PAIR = np.array([[0.5, 1.0], [1.0, 0.5]])


@dataclass(frozen=True)
class Case:
    name: str
    net: ns.Network
    inputs: list[Any]


CASES = [
    Case("gru", zoo.gru(var_w=[1.5, 1.0, 2.0], mean_b=[0.5, 0.0, -0.5]), [TOKENS]),
    Case("lstm", zoo.lstm(var_w=[1.0, 2.0, 1.5, 1.0], mean_b=[0.0, 1.0, 0.5, 0.0]), [TOKENS[:2]]),
    Case("batchnorm", zoo.batchnorm_mlp(depth=2, var_w=[1.0, 2.0]), [TOKENS]),
    Case("transformer", zoo.transformer(), [TOKENS]),
    Case("transformer, untied", zoo.transformer(heads=2, causal=False, tied=False, var_u=2.0), [TOKENS]),
    Case("cnn", zoo.cnn(depth=2, readout="gap", var_w=[1.0, 2.0]), IMAGES),
    Case("graph_conv", zoo.graph_conv(depth=2), [(TOKENS, CHAIN), (TOKENS[:2], PAIR)]),
]


@pytest.mark.parametrize(
    ("width", "networks"), [(100, 900), pytest.param(2000, 45, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel_of_finite_width(case: Case, width: int, networks: int) -> None:
    result = oracle_answers.oracle(ns.program(case.net, *case.inputs), samples=2**19)
    kernels = ns.empirical_kernel(case.net, case.inputs, width, networks, seed=0, dtype=np.float32)
    scale = np.sqrt(np.diag(result.kernel))
    standard_error = kernels.std(axis=0, ddof=1) / sqrt(networks)
    allowed = SIGMAS * (standard_error + result.error.kernel) + BIAS / width * np.outer(scale, scale)
    assert np.all(np.abs(kernels.mean(axis=0) - result.kernel) <= allowed)
    assert np.all(allowed <= 0.07 * np.outer(scale, scale)), "the comparison says little"


def test_all_second_moments_of_finite_width() -> None:
    """g.g'/n against mu mu' + Sigma, for all pairs of G-vars of a GRU and not for the outputs alone."""
    width, networks = 200, 300
    net = zoo.gru(var_w=[1.5, 1.0, 2.0], mean_b=[0.5, 0.0, -0.5])
    program = ns.program(net, TOKENS[:2]).expand()
    result = oracle(program, samples=2**18)
    names = list(result.mu)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(networks):
        values = forward(program, draw(program, dict.fromkeys(program.widths, width), rng), keep=True)
        vectors = np.stack([values[g].array for g in names])
        found.append(vectors @ vectors.T / width)
    mu = np.array([result.mu[g] for g in names])
    truth = np.array([[result.sigma[g, h] for h in names] for g in names]) + np.outer(mu, mu)
    error = np.array([[result.error.sigma[g, h] for h in names] for g in names])
    standard_error = np.std(found, axis=0, ddof=1) / sqrt(networks)
    scale = np.sqrt(np.outer(np.diag(truth), np.diag(truth)))
    allowed = SIGMAS * (standard_error + error) + BIAS / width * scale
    assert np.all(np.abs(np.mean(found, axis=0) - truth) <= allowed)
