"""Hermite series at many inputs, interpolated in the variance."""

from __future__ import annotations

from math import lgamma

import numpy as np
import pytest

from netsor.expect.hermite import variance_interpolation as many_inputs
from netsor.expect.hermite.expansion import Series, series
from netsor.expect.hermite.mehler import pair_sum
from netsor.expect.hermite.variance_interpolation import MANY, series_of_many


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def sine_coefs(q: np.ndarray, terms: int) -> np.ndarray:
    """E[sin(sqrt(q) t) h_k(t)] = +-q^(k/2) exp(-q/2) / sqrt(k!), by k integrations by parts; 0 for even k."""
    k = np.arange(terms)
    size = np.exp(k / 2 * np.log(q)[:, None] - q[:, None] / 2 - np.array([lgamma(n + 1) for n in k]) / 2)
    return np.where(k % 4 == 1, 1.0, np.where(k % 4 == 3, -1.0, 0.0)) * size


def test_it_is_the_closed_form_for_a_sine(rng: np.random.Generator) -> None:
    q = rng.uniform(0.3, 4.0, 1000)
    found = series_of_many(np.sin, np.zeros(1000), q)
    off = np.linalg.norm(found.coefs - sine_coefs(q, found.coefs.shape[-1]), axis=1)
    assert (off <= found.error).all()
    assert (found.error <= 2e-13 * np.sqrt(found.square)).all()
    np.testing.assert_allclose(found.square, (1 - np.exp(-2 * q)) / 2, rtol=1e-13)


@pytest.mark.parametrize("mean", [0.0, -1.5])
@pytest.mark.parametrize(
    "span", [(0.8, 1.3), (1.0, 1.0), (1e-6, 2e-6), (0.05, 5.0), (1.0, 1.0 + 1e-15)], ids=str
)
def test_it_is_what_single_integrals_give(
    span: tuple[float, float], mean: float, rng: np.random.Generator
) -> None:
    m, q = np.full((1, 300, 2), mean), rng.uniform(*span, (1, 300, 2))
    many, one = series_of_many(np.tanh, m, q), series(np.tanh, m, q)
    assert many.tail.shape == many.mark.shape == (1, 300, 2)
    assert distance(many, one) <= 1e-13
    np.testing.assert_allclose(many.square, one.square, rtol=2e-13)
    rho = np.linspace(-0.9, 0.9, 600).reshape(1, 300, 2)
    value, error = pair_sum(many, many[:, ::-1], rho)
    want, doubt = pair_sum(one, one[:, ::-1], rho)
    assert (abs(value - want) <= error + doubt).all()


def distance(a: Series, b: Series) -> float:
    """The largest distance of two series, relative to the norm of f."""
    terms = max(a.coefs.shape[-1], b.coefs.shape[-1])
    x, y = (np.pad(s.coefs, [(0, 0)] * 2 + [(0, 0), (0, terms - s.coefs.shape[-1])]) for s in (a, b))
    return float((np.linalg.norm(x - y, axis=-1) / np.sqrt(b.square)).max())


def integrated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many inputs the series are asked for, call by call."""
    asked: list[int] = []

    def counted(fn, m, q, **options):
        asked.append(m.size)
        return series(fn, m, q, **options)

    monkeypatch.setattr(many_inputs, "series", counted)
    return asked


def test_few_integrals_serve_many_inputs(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    asked = integrated(monkeypatch)
    series_of_many(np.tanh, np.zeros(5000), rng.uniform(0.5, 2.0, 5000))
    assert sum(asked) < 100


@pytest.mark.parametrize(
    ("m", "q"),
    [
        (np.zeros(MANY - 1), np.ones(MANY - 1)),
        (np.arange(MANY) * 1e-3, np.ones(MANY)),
        (np.zeros(MANY), np.where(np.arange(MANY) == 7, 0.0, 1.0)),
    ],
    ids=["few", "different means", "a constant"],
)
def test_where_interpolation_does_not_apply_each_input_is_integrated(
    m: np.ndarray, q: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = integrated(monkeypatch)
    found = series_of_many(np.tanh, m, q, trusted=True)
    assert asked == [m.size]
    assert np.isfinite(found.coefs).all()


def test_variances_too_far_apart_are_integrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norms differ by 1e8, so rounding of the large ones would spoil the small ones."""
    asked, q = integrated(monkeypatch), np.geomspace(1e-16, 1.0, 300)
    found = series_of_many(np.tanh, np.zeros(300), q)
    assert asked[-1] == 300
    assert found.square[0] == pytest.approx(1e-16, rel=1e-12)


def test_equal_variances_have_the_same_mark(rng: np.random.Generator) -> None:
    """Then a pair of equal inputs is recognised, also where E[f^2] has no rest."""
    q = np.repeat(rng.uniform(0.5, 2.0, 200), 2)
    found = series_of_many(np.tanh, np.zeros(400), q)
    value = pair_sum(found[::2], found[1::2], np.ones(200))[0]
    np.testing.assert_allclose(value, found.square[::2], rtol=1e-15)


def test_a_function_that_is_zero(rng: np.random.Generator) -> None:
    found = series_of_many(lambda x: 0 * x, np.zeros(300), rng.uniform(0.5, 2.0, 300))
    for array in (found.coefs, found.square, found.tail, found.error):
        np.testing.assert_array_equal(array, 0.0)


def test_single_precision(rng: np.random.Generator) -> None:
    q = rng.uniform(0.5, 2.0, 400).astype(np.float32)
    found = series_of_many(np.tanh, np.zeros(400, np.float32), q)
    want = series(np.tanh, np.zeros(400), q.astype(float))
    assert found.coefs.dtype == found.square.dtype == found.mark.dtype == np.float32
    np.testing.assert_allclose(found.square, want.square, rtol=1e-5)


@pytest.mark.parametrize("trusted", [True, False])
def test_kinks(trusted: bool, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """Few integrals, and what single integrals give, to correlation 1."""
    asked, q = integrated(monkeypatch), rng.uniform(0.5, 2.0, 300)

    def f(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0.3, x, 0.1 * np.sin(x))

    found = series_of_many(f, np.zeros(300), q, (0.3,), trusted)
    assert sum(asked) < 150
    some = np.arange(0, 300, 60)
    one, rho = (
        series(f, np.zeros(5), q[some], kinks=(0.3,), trusted=True),
        np.array([-1.0, 0.3, 0.9, 0.9999, 1.0]),
    )
    value, error = pair_sum(found[some], found[some[::-1]], rho)
    want, doubt = pair_sum(one, one[::-1], rho)
    assert (abs(value - want) <= error + doubt).all()
    assert (error <= 1e-8).all()
