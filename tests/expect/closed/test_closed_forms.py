"""Closed forms of E[f(x) g(y)]: against quadrature at 30 digits, and their properties.

The tests iterate over the functions that have a closed form, so that a new one is tested for free once
`make_closed_form_references.py` knows it.
"""

from __future__ import annotations

import json
import math
from itertools import combinations_with_replacement
from pathlib import Path

import array_api_strict
import numpy as np
import pytest
import scipy.special
from scipy.integrate import quad

from each_case import each_case
from netsor.expect.closed import bivariate_normal as bivariate
from netsor.expect.closed import registry as closed_forms
from netsor.expect.closed import special_functions as closed_special
from netsor.expect.closed.arrays import determinant
from netsor.expect.closed.gauss_legendre import integrate
from netsor.expect.closed.recognition import recognised
from netsor.expect.closed.registry import closed_form, find, find_mean
from netsor.lang.expr import Ref
from netsor.lang.functions import FUNCTIONS, relu, step, tanh
from netsor.lang.ops import Function
from netsor.lang.symbols import partial_derivatives

TABLE = json.loads(Path(__file__).with_name("closed_form_references.json").read_text())
LIMITS = {"ordinary": 1e-12, "close": 1e-12, "extreme": 1e-9}
NAMES = [name for name, f in FUNCTIONS.items() if find_mean(f, {})]
PAIRS = list(combinations_with_replacement(NAMES, 2))
SOME_PAIRS = [(f, f) for f in NAMES] + list(zip(NAMES, NAMES[1:] + NAMES[:1], strict=True))
WITHOUT = {"tanh", "sigmoid", "softplus", "silu", "sqrt", "log", "maximum", "minimum"}


def as_tuple(value):
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


OPTIONS = {f: {k: as_tuple(v) for k, v in o.items()} for f, o in TABLE["options"].items()}


CONTINUOUS = {
    **OPTIONS,
    "piecewise": {"knots": (-1.0, 0.5), "pieces": ((1.0, 0.5), (0.2, 0.0, 0.3), (0.175, 0.2))},
}


def the(rule):
    """The rule, which must exist."""
    assert rule is not None
    return rule


def rule(f, g, zero_mean=False, options=OPTIONS):
    return the(find(FUNCTIONS[f], options.get(f, {}), FUNCTIONS[g], options.get(g, {}), zero_mean))


def mean(f):
    return the(find_mean(FUNCTIONS[f], OPTIONS.get(f, {})))


def random_laws(n, seed=0, top=0.95):
    rng = np.random.default_rng(seed)
    m1, m2 = rng.normal(size=(2, n))
    q1, q2 = rng.uniform(0.2, 2, size=(2, n))
    return m1, m2, q1, q2, rng.uniform(-top, top, size=n) * np.sqrt(q1 * q2)


def references(f, g, kind, zero_mean):
    """Laws, values and sizes sqrt(E[f(x)^2] E[g(y)^2]) of the table.

    Without the laws under which exp has variance 1e8: its mean exp(5e7) is beyond floating point.
    """
    rows = []
    for entry in TABLE["laws"]:
        key, flip = (f"{f} {g}", False) if f"{f} {g}" in entry["values"] else (f"{g} {f}", True)
        m1, m2, q1, q2, c = entry["law"]
        law = (m2, m1, q2, q1, c) if flip else (m1, m2, q1, q2, c)
        squares = entry["squares"][f][flip] * entry["squares"][g][not flip]
        wanted = entry["kind"] == kind and not (zero_mean and (m1 or m2))
        if wanted and entry["values"][key] is not None:
            rows.append((*law, entry["values"][key], math.sqrt(squares)))
    *laws, values, sizes = np.asarray(rows).T
    return laws, values, sizes


@each_case("zero_mean", [False, True], ids=["any mean", "zero mean"])
@each_case("kind", LIMITS)
@each_case(("f", "g"), PAIRS)
def test_against_quadrature(f, g, kind, zero_mean):
    laws, values, sizes = references(f, g, kind, zero_mean)
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        errors = np.abs(rule(f, g, zero_mean)(*laws) - values)
    allowed = np.where(sizes == 0, 1e-15, LIMITS[kind] * sizes + 1e-150)
    assert np.all(errors <= allowed)


def test_functions_without_a_closed_form():
    assert set(FUNCTIONS) - set(NAMES) == WITHOUT
    for f in WITHOUT:
        assert find(FUNCTIONS[f], {}, relu, {}) is None
        assert find(relu, {}, FUNCTIONS[f], {}) is None


def test_a_function_of_the_user_is_not_taken_for_one_of_the_language():
    own = Function("relu", lambda x: x, user=True)
    assert find(own, {}, relu, {}) is None
    assert find_mean(own, {}) is None


@each_case("f", NAMES)
@each_case(("m", "q"), [(0.0, 1.0), (0.7, 0.3), (-2.0, 4.0)])
def test_mean_against_quadrature(f, m, q):
    def integrand(z):
        return float(FUNCTIONS[f](m + math.sqrt(q) * z, **OPTIONS.get(f, {}))) * math.exp(-z * z / 2)

    kinks = [(k - m) / math.sqrt(q) for k in (0.0, -1.0, 0.5, -0.8, 1.2)]
    expected = quad(integrand, -14, 14, points=kinks, limit=400, epsabs=1e-12)[0] / math.sqrt(2 * math.pi)
    assert float(mean(f)(m, q)) == pytest.approx(expected, abs=1e-10)


@each_case("f", NAMES)
@each_case("m", [0.0, 0.7, -1.0])
def test_mean_of_a_known_value(f, m):
    assert mean(f)(m, 0.0) == pytest.approx(float(FUNCTIONS[f](m, **OPTIONS.get(f, {}))), rel=1e-15)


@each_case("f", NAMES)
def test_mean_is_the_product_with_one(f):
    m1, _, q1, q2, c = random_laws(20)
    one = the(find(FUNCTIONS[f], OPTIONS.get(f, {}), FUNCTIONS["polynomial"], {"coefs": (1.0,)}))
    np.testing.assert_allclose(one(m1, 0.0, q1, q2, c), mean(f)(m1, q1), rtol=1e-13, atol=1e-14)


@each_case(("f", "g"), PAIRS)
def test_symmetry(f, g):
    m1, m2, q1, q2, c = random_laws(10)
    np.testing.assert_allclose(
        rule(f, g)(m1, m2, q1, q2, c), rule(g, f)(m2, m1, q2, q1, c), rtol=1e-13, atol=1e-13
    )


@each_case("zero_mean", [False, True], ids=["any mean", "zero mean"])
@each_case("f", NAMES)
def test_gram_matrices_are_positive_semidefinite(f, zero_mean):
    rng = np.random.default_rng(1)
    roots = rng.normal(size=(12, 5))
    cov, m = roots @ roots.T / 5, (0.0 if zero_mean else 1.0) * rng.normal(size=12)
    q = np.diag(cov)
    gram = rule(f, f, zero_mean)(m[:, None], m, q[:, None], q, cov)
    values = np.linalg.eigvalsh(gram)
    assert values[0] >= -1e-13 * values[-1]


def derivative_of_product(f, g, laws):
    """E[f'(x) g'(y)]; the derivatives have closed forms, too."""
    slopes = [partial_derivatives(FUNCTIONS[h], (Ref("x"),), CONTINUOUS.get(h, {}))[0] for h in (f, g)]
    (one, p), (two, q) = (the(recognised(slope, "x")) for slope in slopes)
    return the(find(one, p, two, q))(*laws)


WITHOUT_JUMPS = [f for f in NAMES if not FUNCTIONS[f].about(CONTINUOUS.get(f)).jumps]


@each_case(("f", "g"), list(combinations_with_replacement(WITHOUT_JUMPS, 2)))
def test_price_theorem(f, g):
    """dE/dc = E[f'(x) g'(y)] (Price 1958), by central differences extrapolated once."""
    m1, m2, q1, q2, c = laws = random_laws(12, top=0.7)
    expected = derivative_of_product(f, g, laws)

    def difference(step):
        up, down = (rule(f, g, options=CONTINUOUS)(m1, m2, q1, q2, c + s) for s in (step, -step))
        return (up - down) / (2 * step)

    slope = (4 * difference(1e-3) - difference(2e-3)) / 3
    np.testing.assert_allclose(slope, expected, atol=1e-7 * (1 + np.max(np.abs(expected))))


@each_case("zero_mean", [False, True], ids=["any mean", "zero mean"])
@each_case(("f", "g"), SOME_PAIRS)
def test_strict_arrays(f, g, zero_mean):
    laws = random_laws(3)
    strict = rule(f, g, zero_mean)(*map(array_api_strict.asarray, laws))
    assert strict.dtype == array_api_strict.float64
    np.testing.assert_allclose(np.asarray(strict), rule(f, g, zero_mean)(*laws), rtol=1e-13, atol=1e-14)


@each_case("zero_mean", [False, True], ids=["any mean", "zero mean"])
@each_case(("f", "g"), SOME_PAIRS)
def test_single_precision(f, g, zero_mean):
    laws = [v.astype(np.float32) for v in random_laws(20)]
    single = rule(f, g, zero_mean)(*laws)
    assert single.dtype == np.float32
    double = rule(f, g, zero_mean)(*(v.astype(float) for v in laws))
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-5)


@each_case(("f", "g"), SOME_PAIRS)
def test_broadcasting(f, g):
    m, _, q, _, _ = random_laws(3)
    cov = 0.4 * np.sqrt(q[:, None] * q)
    whole = rule(f, g)(m[:, None], m, q[:, None], q, cov)
    assert whole.shape == (3, 3)
    assert whole[1, 2] == pytest.approx(float(rule(f, g)(m[1], m[2], q[1], q[2], cov[1, 2])), rel=1e-13)


@each_case(("f", "g"), SOME_PAIRS)
def test_zero_mean_ignores_the_means(f, g):
    m1, m2, q1, q2, c = random_laws(5)
    at_zero = rule(f, g, zero_mean=True)
    np.testing.assert_array_equal(at_zero(m1, m2, q1, q2, c), at_zero(0.0, 0.0, q1, q2, c))
    np.testing.assert_allclose(at_zero(m1, m2, q1, q2, c), rule(f, g)(0.0, 0.0, q1, q2, c), atol=1e-14)


def test_a_new_rule_serves_both_orders(monkeypatch):
    monkeypatch.setattr(closed_forms, "_PAIRS", {})

    @closed_form(step, relu, elementary=True)
    def entered(m1, m2, q1, q2, c):
        return m1 + 10 * q2

    law = (1.0, 2.0, 3.0, 4.0, 0.5)
    assert the(find(step, {}, relu, {}))(*law) == 41
    assert the(find(relu, {}, step, {}))(*law) == 32
    assert find(step, {}, tanh, {}) is None


# What the rules are made of.


def corners():
    levels = [-9.0, -2.5, -1.0, 0.0, 0.3, 2.0, 6.0]
    angles = [-1.57, -1.0, -0.1, 0.0, 0.5, 1.5, 1.5707]
    h, k, angle = np.meshgrid(levels, levels, angles, indexing="ij")
    return h, k, np.sin(angle), np.cos(angle)


def test_four_quadrants_make_the_plane():
    h, k, rho, sigma = corners()
    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    total = sum(bivariate.orthant(a * h, b * k, a * b * rho, sigma, 0.0 * h) for a, b in signs)
    np.testing.assert_allclose(total, 1, atol=4e-15)


def test_two_quadrants_make_a_half_plane():
    h, k, rho, sigma = corners()
    parts = [bivariate.orthant(h, s * k, s * rho, sigma, 0.0 * h) for s in (1, -1)]
    np.testing.assert_allclose(sum(parts), scipy.special.ndtr(-h), rtol=2e-13)


def test_independent_quadrants_far_out():
    h, k = np.meshgrid([0.5, 3.0, 12.0, 20.0], [0.2, 8.0, 25.0])
    expected = scipy.special.ndtr(-h) * scipy.special.ndtr(-k)
    np.testing.assert_allclose(bivariate.orthant(h, k, 0 * h, 1 + 0 * h, 0 * h), expected, rtol=2e-13)


def test_a_large_scale_makes_up_for_a_small_quadrant():
    h, k = np.asarray([50.0, 1e4]), np.asarray([50.0, 1e4])
    scaled = bivariate.orthant(h, k, 0 * h, 1 + 0 * h, (h * h + k * k) / 2)
    expected = (scipy.special.erfcx(h / math.sqrt(2)) / 2) ** 2
    np.testing.assert_allclose(scaled, expected, rtol=1e-12)


def test_equal_variables():
    h, k = np.asarray([-1.0, 0.3, 0.3, 2.0]), np.asarray([0.5, 0.3, -3.0, 1.9999])
    one, zero = np.ones(4), np.zeros(4)
    ndtr = scipy.special.ndtr
    np.testing.assert_allclose(bivariate.orthant(h, k, one, zero, zero), ndtr(-np.maximum(h, k)), rtol=1e-14)
    opposite = np.maximum(ndtr(-k) - ndtr(h), 0)
    np.testing.assert_allclose(bivariate.orthant(h, k, -one, zero, zero), opposite, atol=1e-16)


def test_covariance_of_indicators_with_small_correlation():
    rho = np.asarray([1e-12, -1e-9])
    value = bivariate.covariance(0 * rho, 0 * rho, rho, np.sqrt(1 - rho**2))
    np.testing.assert_allclose(value, rho / (2 * np.pi), rtol=1e-13)


def test_determinant_has_no_cancellation():
    eps = 2.0**-30
    assert determinant(*map(np.asarray, (1 + eps, 1 - eps, 1.0))) == 0
    assert determinant(*map(np.asarray, (1 + eps, 1 + eps, 1.0))) == 2 * eps + eps**2
    third = np.asarray(1 / 3)
    assert determinant(third, third, third) == 0


def test_scaled_error_functions():
    x = np.concatenate([[0.0], np.logspace(-8, 8, 300)])
    np.testing.assert_allclose(closed_special._erfcx_sum(x), scipy.special.erfcx(x), rtol=3e-15)
    angle = np.linspace(0, np.pi, 41)
    z = x[:, None] * np.exp(1j * angle)
    upper = x[:, None] * (np.cos(angle) + 1j * np.abs(np.sin(angle)))
    np.testing.assert_allclose(closed_special._wofz_sum(upper), scipy.special.wofz(z), rtol=3e-14)


@each_case("n", [12, 14, 20, 26])
def test_quadrature_is_exact_for_polynomials(n):
    degree = 2 * n - 1
    assert integrate(lambda x: (degree + 1) * x**degree, n, np.asarray(0.0)) == pytest.approx(1, rel=1e-14)


# JAX: compiled, and differentiated with respect to the covariance.


JAX_PAIRS = [
    ("relu", "relu"),
    ("erf", "erf"),
    ("gelu", "step"),
    ("sin", "erf_gate"),
    ("exp", "abs"),
    ("gaussian", "cos"),
]


@pytest.fixture
def jax():
    """JAX in double precision."""
    library = pytest.importorskip("jax")
    before = library.config.jax_enable_x64
    library.config.update("jax_enable_x64", True)
    yield library
    library.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("zero_mean", [False, True], ids=["any mean", "zero mean"])
@pytest.mark.parametrize(("f", "g"), JAX_PAIRS)
def test_jax(jax, f, g, zero_mean):
    laws = random_laws(4)
    arrays = [jax.numpy.asarray(v) for v in laws]
    compiled = jax.jit(rule(f, g, zero_mean))(*arrays)
    slopes = jax.jit(jax.vmap(jax.grad(rule(f, g, zero_mean), argnums=4)))(*arrays)
    *rest, c = laws
    up, down = (rule(f, g, zero_mean)(*rest, c + s) for s in (1e-5, -1e-5))
    np.testing.assert_allclose(compiled, rule(f, g, zero_mean)(*laws), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(slopes, (up - down) / 2e-5, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("f", ["relu", "erf", "gelu", "abs"])
@pytest.mark.parametrize("law", [(0.0, 0.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 1.0, 0.0)])
def test_jax_derivatives_are_finite_where_the_law_is_degenerate(jax, f, law):
    assert math.isfinite(jax.grad(rule(f, f, zero_mean=True), argnums=4)(*law))
