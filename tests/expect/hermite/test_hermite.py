"""Hermite series of one-variable functions, against quadrature in the plane and known answers."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import array_api_strict
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import erf, expit
from scipy.stats import multivariate_normal

from each_case import each_case
from netsor.expect.hermite import expansion as hermite
from netsor.expect.hermite.expansion import concat, series_like
from netsor.expect.hermite.mehler import pair_sum
from netsor.expect.quadrature.kinks import find_kinks

series = partial(hermite.series, trusted=True)  # test_unseen has functions of which nothing is known
SLACK = 8e-15  # rounding of the references, relative to the norms


def silu(x):
    return x * expit(x)


def softplus(x):
    return np.logaddexp(0, x)


def wavy(x):
    return np.exp(-x * x / 3) * np.cos(2 * x) + 0.1 * x


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def hard_swish(x):
    return x * np.clip(x / 6 + 0.5, 0, 1)


def broken(x):
    return np.where(x > 0.3, np.exp(-x), np.sin(2 * x))


SMOOTH = {"tanh": np.tanh, "sigmoid": expit, "silu": silu, "softplus": softplus, "sin": np.sin, "wavy": wavy}


def gauss_grid(step: float) -> tuple[np.ndarray, np.ndarray]:
    count = int(11 / step)
    t = step * np.arange(-count, count + 1)
    return t, np.exp(-t * t / 2) * step / np.sqrt(2 * np.pi)


def plane(f, g, m1, m2, q1, q2, rho) -> float:
    """E[f g] by the trapezoid rule for x = m1 + s1 t and y = m2 + s2 (rho t + sqrt(1 - rho^2) w)."""
    steep, root = max(q1, q2, 1.0) ** 0.5, np.sqrt((1 - rho) * (1 + rho))
    t, dt = gauss_grid(2.0 ** np.floor(np.log2(0.25 / steep)))
    w, dw = gauss_grid(2.0 ** np.floor(np.log2(0.25 / max(1.0, steep * root))))
    left = f(m1 + np.sqrt(q1) * t) * dt
    right = [g(m2 + np.sqrt(q2) * (rho * part[:, None] + root * w)) @ dw for part in np.array_split(t, 64)]
    return float(left @ np.concatenate(right))


def nested(f, g, law, kinks) -> float:
    """E[f g] by nested adaptive quadrature between the kinks of f and g."""
    m1, m2, q1, q2, rho = law
    root, points = np.sqrt(1 - rho**2), [(k - m1) / np.sqrt(q1) for k in kinks]

    def inner(t):
        cuts = sorted(((k - m2) / np.sqrt(q2) - rho * t) / root for k in kinks)
        edges = [-9.0, *np.clip(cuts, -9, 9), 9.0]
        parts = [
            pieces(lambda w: g(m2 + np.sqrt(q2) * (rho * t + root * w)), a, b) for a, b in pairwise(edges)
        ]
        return f(m1 + np.sqrt(q1) * t) * sum(parts)

    edges = [-9.0, *np.clip(sorted(points), -9, 9), 9.0]
    return sum(pieces(inner, a, b) for a, b in pairwise(edges))


def pieces(f, a, b) -> float:
    if b - a < 1e-14:
        return 0.0
    return quad(
        lambda t: f(t) * np.exp(-t * t / 2) / np.sqrt(2 * np.pi), a, b, epsabs=1e-11, epsrel=1e-11, limit=200
    )[0]


def law(fn, gn, m, q, kinks=(), **options):
    """The series of f at (m[0], q[0]) and of g at (m[1], q[1])."""
    a = series(fn, np.asarray(m[0]), np.asarray(q[0]), kinks=kinks, **options)
    return a, series(gn, np.asarray(m[1]), np.asarray(q[1]), kinks=kinks, **options)


def assert_honest(a, b, rho, truth, most=1e-12, slack=SLACK):
    """The value is right within the reported error, and that is small, relative to the norms of f and g."""
    value, error = pair_sum(a, b, np.asarray(rho))
    size = np.sqrt(a.square * b.square)
    assert np.abs(value - truth) <= error + slack * size
    assert error <= most * size


# Smooth functions.


@each_case("name", SMOOTH)
@each_case("rho", [-1.0, -0.999, -0.4, 0.0, 0.7, 0.9999, 1.0])
def test_smooth_functions_agree_with_quadrature_in_the_plane(name, rho):
    f = SMOOTH[name]
    m, q = np.array([0.0, 0.7, -2.0, 0.3]), np.array([1.0, 1e-8, 4.0, 0.1])
    found = series(f, m, q)
    for i, j in [(0, 0), (0, 1), (0, 2), (1, 1), (2, 3), (2, 2)]:
        truth = plane(f, f, m[i], m[j], q[i], q[j], rho)
        assert_honest(found[i], found[j], rho, truth)


@each_case(("name", "most"), [("tanh", 1e-9), ("sigmoid", 1e-12), ("silu", 1e-12), ("softplus", 1e-12)])
def test_variance_a_hundred(name, most):
    f = SMOOTH[name]
    a, b = law(f, f, (0.0, 1.0), (100.0, 100.0))
    for rho in (-0.999, 0.99, 1.0):
        assert_honest(a, b, rho, plane(f, f, 0.0, 1.0, 100.0, 100.0, rho), most=most)
    assert max(a.error, b.error) <= 1e-12 * np.sqrt(a.square)


def test_tanh_at_standard_deviation_a_hundred():
    a, b = law(np.tanh, np.tanh, (0.0, 3.0), (1e4, 1e4))
    assert_honest(a, b, 0.99, plane(np.tanh, np.tanh, 0.0, 3.0, 1e4, 1e4, 0.99), most=1e-11)
    assert_honest(a, b, 0.9999, plane(np.tanh, np.tanh, 0.0, 3.0, 1e4, 1e4, 0.9999), most=1e-2)
    assert_honest(a, a, 1.0, plane(np.tanh, np.tanh, 0.0, 0.0, 1e4, 1e4, 1.0))


@each_case("terms", [1, 3, 16, 40, 128])
@each_case("name", SMOOTH)
def test_short_series_report_their_rest(name, terms):
    f = SMOOTH[name]
    a, b = law(f, f, (0.2, -1.0), (9.0, 2.0), terms=terms)
    assert a.coefs.shape == (terms,)
    for rho in (-1.0, 0.5, 0.99):
        assert_honest(a, b, rho, plane(f, f, 0.2, -1.0, 9.0, 2.0, rho), most=2.0)


def test_two_different_functions():
    a, b = law(np.tanh, wavy, (0.5, -0.3), (2.0, 1.5))
    assert_honest(a, b, 0.8, plane(np.tanh, wavy, 0.5, -0.3, 2.0, 1.5, 0.8))
    kinked = series(lambda x: np.maximum(x, 0), np.asarray(0.0), np.asarray(1.0), kinks=(0.0,))
    smooth = series(np.tanh, np.asarray(0.0), np.asarray(1.0))
    truth = 0.5 * plane(np.tanh, lambda x: x, 0.0, 0.0, 1.0, 1.0, 1.0)
    assert_honest(smooth, kinked, 1.0, truth)


def test_error_functions_give_the_arcsine():
    a, b = law(erf, erf, (0.0, 0.0), (0.8, 3.0))
    for rho in (-1.0, -0.3, 0.999, 1.0):
        sine = 2 * rho * np.sqrt(0.8 * 3.0) / np.sqrt((1 + 2 * 0.8) * (1 + 2 * 3.0))
        assert_honest(a, b, rho, 2 / np.pi * np.arcsin(sine))


def test_sines_and_exponentials():
    m, q = np.array([0.3, -0.9]), np.array([0.5, 2.0])
    for rho in (-1.0, 0.2, 1.0):
        cov = rho * np.sqrt(q[0] * q[1])
        waves = [np.exp(-(q.sum() - sign * 2 * cov) / 2) * np.cos(m[0] - sign * m[1]) for sign in (1, -1)]
        assert_honest(*law(np.sin, np.sin, m, q), rho, (waves[0] - waves[1]) / 2)
        assert_honest(*law(np.exp, np.exp, m, q), rho, np.exp(m.sum() + q.sum() / 2 + cov))


def test_zero_variance_is_a_constant():
    found = series(np.tanh, np.array([0.4, 0.4, 0.0]), np.array([0.0, 1e-8, 1.0]))
    value, error = pair_sum(found[0], found[2], np.asarray(0.0))
    assert value == np.tanh(0.4) * found.coefs[2, 0]
    assert found.coefs[0, 0] == np.tanh(0.4)
    assert not found.coefs[0, 1:].any()
    assert error <= 1e-14
    assert_honest(found[1], found[1], 0.5, plane(np.tanh, np.tanh, 0.4, 0.4, 1e-8, 1e-8, 0.5))


def test_rounded_correlations_are_clipped():
    found = series(np.tanh, np.zeros(()), np.ones(()))
    assert pair_sum(found, found, np.asarray(1 + 1e-15))[0] == found.square


def test_parameters_per_input():
    slope = np.array([[0.5], [2.0]])
    found = series(lambda x: np.tanh(slope * x), np.zeros(2), np.ones(2))
    value, _ = pair_sum(found[:, None], found[None, :], np.asarray([[1.0, 0.3], [0.3, 1.0]]))
    truth = plane(lambda x: np.tanh(0.5 * x), lambda x: np.tanh(2 * x), 0.0, 0.0, 1.0, 1.0, 0.3)
    np.testing.assert_allclose([value[0, 1], value[1, 0]], truth, atol=1e-14)


def test_blocks_of_pairs_do_not_matter():
    rng = np.random.default_rng(0)
    found = series(np.tanh, rng.normal(size=300), rng.uniform(0.1, 2, 300))
    rho = rng.uniform(-1, 1, (300, 300))
    value, error = pair_sum(found[:, None], found[None, :], rho)
    assert value.shape == error.shape == (300, 300)
    for i, j in [(0, 0), (17, 205), (299, 3)]:
        np.testing.assert_allclose(value[i, j], pair_sum(found[i], found[j], rho[i, j])[0], atol=2e-15)


def test_no_inputs():
    found = series(np.tanh, np.zeros(0), np.zeros(0))
    assert pair_sum(found[:, None], found[None, :], np.zeros((0, 0)))[0].shape == (0, 0)


@each_case("name", SMOOTH)
def test_a_rule_serves_again(name):
    """At smaller means and variances the rule of a model gives the series, within the bounds it had."""
    f = SMOOTH[name]
    model = series(f, np.array([-0.6, 0.0, 0.6]), np.full(3, 3.0), terms=256, tol=1e-11)
    m, q = np.array([0.5, -0.2, 0.0, 0.6]), np.array([2.0, 0.3, 0.0, 3.0])
    found, wanted = series_like(model, f, m, q), series(f, m, q, terms=256, tol=1e-13)
    size = np.sqrt(wanted.square)
    np.testing.assert_allclose(found.coefs, wanted.coefs, rtol=0, atol=1e-11 * size.max())
    np.testing.assert_allclose(found.square, wanted.square, rtol=1e-11)
    assert np.all(found.tail + 1e-7 * size >= wanted.tail)
    rho = np.array([0.9, -0.5, 0.3, 0.99])
    value, error = pair_sum(found, found, rho)
    for k in range(4):
        assert abs(value[k] - plane(f, f, m[k], m[k], q[k], q[k], rho[k])) <= error[k] + 1e-11 * size[k] ** 2


@each_case(("f", "kinks"), [(np.tanh, ()), (elu, (0.0,)), (broken, (0.3,))])
def test_series_of_more_inputs(f, kinks):
    """Series of different lengths side by side give the sums of each pair."""
    m, q = np.array([0.2, -0.4, 0.0]), np.array([0.5, 1.5, 3.0])
    parts = [series(f, m[k : k + 1], q[k : k + 1], terms=64 * 2**k, kinks=kinks) for k in range(3)]
    whole, rho = concat(parts, 0), np.array([[1.0, 0.5, 0.2], [0.5, 1.0, -0.7], [0.2, -0.7, 1.0]])
    value, _ = pair_sum(whole[:, None], whole[None, :], rho)
    for i in range(3):
        for j in range(3):
            one, error = pair_sum(parts[i], parts[j], rho[i : i + 1, j])
            rest = parts[i].tail[0] * parts[j].tail[0]
            assert abs(value[i, j] - one[0]) <= error[0] + rest + 1e-13
    assert concat(parts[:1], 0) is parts[0]


def test_the_rest_of_a_series():
    """What a sum of two series leaves out at rho = 1 is what Parseval's equality says."""
    for terms in (8, 32, 64):
        found = series(np.tanh, np.zeros(2), np.array([1.0, 2.0]), terms=terms)
        missing = 1 - np.sum(found.coefs**2, axis=-1) / found.square
        assert found.rest == pytest.approx(missing.max(), rel=1e-6, abs=1e-12)


def test_deep_tanh_network():
    """Twenty layers K -> 1.5 E[tanh tanh] + 0.1, each by quadrature in the plane."""
    inputs = np.array([[1.0, 0.2, -0.5], [-0.3, 0.9, 0.4], [1.1, 0.2, -0.4]])
    kernel = exact = 1.5 * inputs @ inputs.T / 3 + 0.1
    for _ in range(20):
        q = np.diag(kernel)
        found = series(np.tanh, np.zeros(3), q)
        rho = kernel / np.sqrt(q[:, None] * q[None, :])
        kernel = 1.5 * pair_sum(found[:, None], found[None, :], rho)[0] + 0.1
        exact = np.array([[1.5 * plane_of(exact, i, j) + 0.1 for j in range(3)] for i in range(3)])
    np.testing.assert_allclose(kernel, exact, rtol=0, atol=1e-11)


def plane_of(kernel, i, j) -> float:
    q1, q2 = kernel[i, i], kernel[j, j]
    rho = 1.0 if i == j else min(1.0, kernel[i, j] / np.sqrt(q1 * q2))
    return plane(np.tanh, np.tanh, 0.0, 0.0, q1, q2, rho)


# Kinks and jumps.


@each_case("rho", [-1.0, -0.9999, -0.5, 0.0, 0.9, 0.999999, 1.0])
def test_relu_gives_the_arc_cosine_kernel(rho):
    def relu(x):
        return np.maximum(x, 0)

    a, b = law(relu, relu, (0.0, 0.0), (1.0, 4.0), kinks=(0.0,))
    root = np.sqrt((1 - rho) * (1 + rho))
    assert_honest(a, b, rho, (root + (np.pi - np.arctan2(root, rho)) * rho) / np.pi)


@each_case("rho", [-0.9, 0.0, 0.5, 0.99, 0.99999])
def test_a_jump_gives_the_bivariate_normal_distribution(rho):
    def step(x):
        return np.where(x > 0.3, 1.0, 0.0)

    a, b = law(step, step, (0.0, 0.7), (1.0, 2.0), kinks=(0.3,))
    law_of_two: Any = multivariate_normal
    corner = [(m - 0.3) / np.sqrt(q) for m, q in ((0.0, 1.0), (0.7, 2.0))]
    truth = law_of_two.cdf(corner, cov=[[1, rho], [rho, 1]], abseps=1e-15, releps=1e-15)
    assert_honest(a, b, rho, truth, slack=1e-13)


@each_case(
    ("f", "kinks", "most"),
    [(hard_swish, (-3.0, 3.0), 1e-12), (elu, (0.0,), 1e-10), (broken, (0.3,), 1e-6)],
)
@each_case("rho", [-0.6, 0.99])
def test_kinks_agree_with_nested_quadrature(f, kinks, most, rho):
    m, q = (0.2, -0.5), (1.5, 4.0)
    a, b = law(f, f, m, q, kinks=kinks)
    assert_honest(a, b, rho, nested(f, f, (*m, *q, rho), kinks), most=most, slack=1e-10)


@each_case("f", [elu, hard_swish, broken])
def test_kinks_on_the_line(f):
    """At rho = 1 the expectation is an integral over one variable."""
    kinks = find_kinks(f)
    m, q = (0.2, -0.5), (1.5, 4.0)
    a, b = law(f, f, m, q, kinks=kinks)

    def product(t):
        return f(m[0] + np.sqrt(q[0]) * t) * f(m[1] + np.sqrt(q[1]) * t)

    cuts = sorted((k - mean) / np.sqrt(var) for k in kinks for mean, var in zip(m, q, strict=True))
    truth = sum(pieces(product, lo, hi) for lo, hi in pairwise([-12.0, *cuts, 12.0]))
    assert_honest(a, b, 1.0, truth, most=1e-5, slack=1e-10)


def test_kinks_far_away_and_close_together():
    def pulse(x):
        return np.where((x > 0.5) & (x < 0.5001), 1.0, 0.0)

    found = series(pulse, np.array([0.5, 0.0, 30.0]), np.array([1e-6, 1.0, 1.0]), kinks=(0.5, 0.5001))
    truth = [expected_pulse(0.5, 1e-3), expected_pulse(0.0, 1.0), 0.0]
    np.testing.assert_allclose(found.square, truth, rtol=1e-9, atol=1e-16)
    np.testing.assert_allclose(found.coefs[:, 0], truth, rtol=1e-9, atol=1e-16)


def expected_pulse(m, s) -> float:
    return (erf((0.5001 - m) / s / np.sqrt(2)) - erf((0.5 - m) / s / np.sqrt(2))) / 2


# Where the kinks are.


@each_case(
    ("f", "kinks"),
    [
        (lambda x: np.maximum(x, 0), [0.0]),
        (lambda x: np.where(x > 0, x, 0.01 * x), [0.0]),
        (lambda x: np.clip(x, -1, 1), [-1.0, 1.0]),
        (hard_swish, [-3.0, 3.0]),
        (lambda x: np.where(x > 0.3, 1.0, 0.0), [0.3]),
        (lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0), [-0.5, 0.5]),
        (lambda x: x * (np.abs(x) > 0.5), [-0.5, 0.5]),
        (lambda x: x * np.abs(x), [0.0]),
        (elu, [0.0]),
        (lambda x: x / (1 + np.abs(x)), [0.0]),
        (lambda x: np.exp(-(np.maximum(x - np.pi, 0) ** 2)), [np.pi]),
        (lambda x: np.maximum(np.sin(x), np.sqrt(2)) + np.maximum(x, np.e), [np.e]),
        (lambda x: np.floor(x / 40), [-40.0, 0.0, 40.0]),
        (lambda x: np.abs(np.sin(x / 10)), [-10 * np.pi, 0.0, 10 * np.pi]),
    ],
)
def test_kinks_are_found(f, kinks):
    np.testing.assert_allclose(find_kinks(f), kinks, rtol=0, atol=2e-12)


@each_case(
    "f",
    [
        *SMOOTH.values(),
        lambda x: np.sin(3 * x),
        lambda x: np.sin(100 * x),
        lambda x: np.exp(-(x**2)),
        lambda x: softplus(20 * x),
        lambda x: softplus(2000 * x),
        lambda x: np.tanh(1e5 * x),
        lambda x: 1 / (1 + 1e4 * x**2),
        lambda x: 0.5 * x * (1 + np.tanh(0.79788456 * (x + 0.044715 * x**3))),
        lambda x: np.log(1 + np.exp(x)),
        lambda x: 1 / (1 + np.exp(-x)),
        lambda x: x**3 - x,
        np.exp,
        lambda x: np.exp(x**2),
        np.ones_like,
        np.zeros_like,
    ],
)
def test_smooth_functions_have_no_kinks(f):
    assert find_kinks(f) == ()


# Means: the first coefficient.


def test_means():
    q = np.array([0.0, 1e-8, 1.0, 9.0, 100.0])
    found = series(softplus, np.zeros(5), q)
    truth = [plane(softplus, np.ones_like, 0.0, 0.0, v, 0.0, 0.0) for v in q]
    assert np.all(np.abs(found.coefs[:, 0] - truth) <= found.error + SLACK * found.coefs[:, 0])
    assert np.all(found.error <= 1e-13 * np.sqrt(found.square))


def test_mean_with_a_kink():
    q = np.array([0.0, 1e-8, 1.0, 4.0])
    found = series(lambda x: np.maximum(x, 0), np.zeros(4), q, kinks=(0.0,))
    assert np.all(np.abs(found.coefs[:, 0] - np.sqrt(q / (2 * np.pi))) <= found.error)
    assert np.all(found.error <= 1e-14)


# Array libraries and dtypes.


def test_float32():
    single = series(np.tanh, np.zeros(2, "float32"), np.array([1, 4], "float32"))
    double = series(np.tanh, np.zeros(2), np.array([1.0, 4.0]))
    value, error = pair_sum(single[0], single[1], np.asarray(0.5, "float32"))
    assert value.dtype == error.dtype == single.coefs.dtype == np.float32
    assert np.abs(value - pair_sum(double[0], double[1], np.asarray(0.5))[0]) <= error <= 1e-5


def test_strict_arrays():
    xp = array_api_strict
    m, q, rho = [0.1, 0.5], [1.0, 2.0], [[1.0, 0.5], [0.5, 1.0]]
    for f, g, kinks in [
        (xp.tanh, np.tanh, ()),
        (lambda x: xp.clip(x, -1.0, 1.0), lambda x: np.clip(x, -1, 1), (-1.0, 1.0)),
    ]:
        strict = series(f, xp.asarray(m), xp.asarray(q), kinks=kinks)
        plain = series(g, np.asarray(m), np.asarray(q), kinks=kinks)
        value, _ = pair_sum(strict[:, None], strict[None, :], xp.asarray(rho))
        truth, _ = pair_sum(plain[:, None], plain[None, :], np.asarray(rho))
        np.testing.assert_allclose(np.asarray(value), truth, atol=1e-13)


@pytest.mark.slow
def test_jit_and_gradient():
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)

    def kernel(q, rho):
        found = series(jax.numpy.tanh, 0 * q, q, terms=48)
        return pair_sum(found, found, rho)[0]

    def plain(q, rho):
        found = series(np.tanh, np.asarray(0.0), np.asarray(q))
        return pair_sum(found, found, np.asarray(rho))[0]

    q, rho, step = 0.4, 0.7, 1e-4
    np.testing.assert_allclose(jax.jit(kernel)(q, rho), plain(q, rho), atol=1e-13)
    slopes = jax.grad(kernel, argnums=(0, 1))(q, rho)
    np.testing.assert_allclose(
        slopes[0], (plain(q + step, rho) - plain(q - step, rho)) / (2 * step), atol=1e-7
    )
    np.testing.assert_allclose(
        slopes[1], (plain(q, rho + step) - plain(q, rho - step)) / (2 * step), atol=1e-7
    )


def test_few_of_many_inputs_tell_the_rule_for_all():
    """The same series as without, to the errors of both, and it goes on where the few were not enough."""
    rng = np.random.default_rng(3)
    m, q = rng.normal(size=260), rng.uniform(0.1, 2.0, 260)
    q[17] = 30.0  # one input far from the others
    for fn in (np.tanh, lambda x: np.exp(-np.sqrt(1 + x**2))):
        plain, quick = series(fn, m, q), series(fn, m, q, alone=True)
        terms = min(plain.coefs.shape[-1], quick.coefs.shape[-1])
        gap = np.abs(plain.coefs[:, :terms] - quick.coefs[:, :terms]).max(-1)
        assert (gap <= plain.error + quick.error).all()
        assert (quick.tail <= 2 * plain.tail + 1e-12).all()
