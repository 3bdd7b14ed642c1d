"""Tangent programs: the text of small ones, what is frozen, and what has no tangent kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.errors import DataError, FunctionError, LimitError, TangentError, TypeCheckError
from netsor.lang.blocks import Block
from netsor.lang.evaluate import evaluate
from netsor.lang.expr import Apply, Const, Ref
from netsor.lang.functions import MIXINGS, d_batchnorm
from netsor.lang.numerical_derivatives import DirectionalDerivative, PartialDerivative, partial_of
from netsor.lang.ops import Function
from netsor.lang.tangent import tangent
from netsor.lang.tangent_terms import NormalForm, written_out
from netsor.limits import KernelFn

LAYER = """
Input g :: G(n) ~ N(0, 1)
Input W :: A(n, n) ~ N(0, 2/n)
Input b :: G(n) ~ N(0.5, 0.1)
Input v :: G(n) ~ N(0, 1)
x := tanh(g)
k := MatMul(W, x)
h := k + b
y := relu(h)
Output v^T y / sqrt(n)
"""


def body(program: ns.Program) -> list[str]:
    """The lines of the tangent alone."""
    return [line for line in str(program).splitlines() if "d_" in line or "t_" in line]


def test_every_rule_of_the_table() -> None:
    assert body(ns.parse(LAYER).tangent({"b": 0.5})) == [
        "Input d_g :: G(n) ~ N(0, 1)",
        "Input t_W :: A(n, n) ~ N(0, 2/n)",
        "Input d_W :: A(n, n) ~ N(0, 2/n)",
        "Input d_b :: G(n) ~ N(0, 0.05)",
        "Input d_v :: G(n) ~ N(0, 1)",
        "d_x := (1 - tanh(g)^2)*d_g :: H(n)",
        "d_k_a := MatMul(d_W, x) :: G(n)",
        "d_k_b := MatMul(t_W, d_x) :: G(n)",
        "d_k := d_k_a + d_k_b :: G(n)",
        "d_h := d_k + d_b :: G(n)",
        "d_y := step(h)*d_h :: H(n)",
        "Output d_v^T y / sqrt(n) + v^T d_y / sqrt(n)",
    ]


def test_at_finite_width_the_matrix_is_its_own_copy() -> None:
    assert "d_k_b := MatMul(W, d_x) :: G(n)" in body(ns.parse(LAYER).tangent(tied=True))


def test_scalars_move_at_finite_width_only() -> None:
    text = """
    Input g :: G(n) ~ N(0, 1)
    Input v :: G(n) ~ N(0, 1)
    c := Moment(g*g)
    s := 2*c + 1
    y := g/s
    Output v^T y / sqrt(n)
    """
    program = ns.parse(text)
    assert not any("d_c" in line for line in body(program.tangent()))
    lines = body(program.tangent(scalars=True))
    assert "d_c := Moment(g*d_g + g*d_g) :: C" in lines or "d_c := Moment(g*(d_g + d_g)) :: C" in lines
    assert "d_s := 2*d_c :: C" in lines


@pytest.mark.parametrize(
    ("rates", "laws"),
    [
        (None, ["d_U :: A(n, 3) ~ N(0, 5/3)", "d_b :: G(n) ~ N(0, 0.1)", "d_v :: G(n) ~ N(0, 7)"]),
        ("unit", ["d_U :: A(n, 3) ~ N(0, 1/3)", "d_b :: G(n) ~ N(0, 1)", "d_v :: G(n) ~ N(0, 1)"]),
        (
            ("standard", 64),
            ["d_U :: A(n, 3) ~ N(0, 3/3)", "d_b :: G(n) ~ N(0, 1)", "d_v :: G(n) ~ N(0, 64)"],
        ),
        ({"U": 0.5, "b": 0.0}, ["d_U :: A(n, 3) ~ N(0, 2.5/3)", "d_v :: G(n) ~ N(0, 7)"]),
    ],
)
def test_conventions_of_what_a_parameter_is(rates: Any, laws: list[str]) -> None:
    U, b, v = ns.Matrix(5.0), ns.Vector(0.1), ns.Matrix(7.0, rows=1)
    net = ns.network(lambda x: v @ ns.relu(U @ x + b))
    lines = str(ns.program(ns.tangent(net, rates), [1.0, 2.0, 3.0])).splitlines()
    found = [
        line.removeprefix("Input ") for line in lines if line.startswith("Input d_") and "Ux" not in line
    ]
    assert found == laws


def test_the_bias_of_an_output_has_fan_in_one() -> None:
    U, b, v = ns.Matrix(), ns.Vector(0.5), ns.Matrix(rows=1)
    net = ns.network(lambda x: v @ ns.relu(U @ x) + b)
    x = np.array([[1.0, 2.0], [0.3, -1.0]])
    without = ns.network(lambda x: v @ ns.relu(U @ x))
    for rates, part in ((None, 0.5), ("unit", 1.0), (("standard", 512), 1.0)):
        np.testing.assert_allclose(ns.ntk(net, rates)(x) - ns.ntk(without, rates)(x), part, rtol=1e-12)


def test_a_frozen_network_has_a_tangent_kernel_of_zero() -> None:
    U, v = ns.Matrix(rate=0.0), ns.Matrix(rows=1, rate=0.0)
    net = ns.network(lambda x: v @ ns.relu(U @ x))
    assert ns.ntk(net)(np.eye(2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_jumps_have_derivative_zero_and_the_plan_says_so() -> None:
    net = ns.zoo.mlp(2, ns.sign)
    K = ns.ntk(net)
    x = np.random.default_rng(0).standard_normal((3, 4))
    np.testing.assert_allclose(K(x), ns.kernel(net)(x), rtol=1e-12)  # the readout alone moves anything
    assert "the derivative of sign is 0 almost everywhere" in str(K.plan(x))


def test_what_has_no_tangent_kernel_is_refused() -> None:
    with pytest.raises(TangentError, match="batchnorm over 3 members"):
        ns.ntk(ns.zoo.batchnorm_mlp(1))([np.eye(3)])
    with pytest.raises(TypeCheckError, match="has a mean"):
        ns.parse(LAYER.replace("Input v :: G(n) ~ N(0, 1)", "Input v :: G(n) ~ N(1, 1)")).tangent()
    with pytest.raises(TangentError, match="no parameter `Q`"):
        ns.parse(LAYER).tangent({"Q": 1.0})
    with pytest.raises(DataError, match="no parameter `Q`"):
        ns.ntk(ns.zoo.mlp(1), {"Q": 1.0})(np.eye(2))
    for wrong in ("units", {"W1": -1.0}, ("standard", 0), 3, {"W1": float("nan")}):
        with pytest.raises(DataError):
            ns.ntk(ns.zoo.mlp(1), wrong)
    for phi in (lambda h: ns.sqrt(ns.abs(h)), lambda h: ns.log(ns.abs(h))):
        with pytest.raises(LimitError, match="not finite"):
            ns.ntk(ns.zoo.mlp(1, phi))(np.eye(2))
    with pytest.raises(DataError, match="rate of a Matrix"):
        ns.Matrix(rate=-1.0)


def test_batchnorm_of_two_is_a_sign() -> None:
    x = [np.array([[1.0, 2.0], [0.3, -1.0]])]
    net = ns.zoo.batchnorm_mlp(1)
    np.testing.assert_allclose(ns.ntk(net)(x), ns.kernel(net)(x), rtol=1e-12)


def test_the_derivative_of_batchnorm_is_one_operation() -> None:
    """It reads back, and is what it is in arithmetic: one variable per line, and as a tangent of its own."""
    batch = np.random.default_rng(0).standard_normal((4, 2))
    program = ns.program(ns.tangent(ns.zoo.batchnorm_mlp(1)), batch)
    assert "step(batchnorm(W1x, axis=[0]))*d_batchnorm(W1x, d_W1x, axis=[0])" in str(program)
    assert ns.parse(str(program)) == program
    rng = np.random.default_rng(1)
    x, t = rng.standard_normal((2, 4, 5))
    moved = [MIXINGS["batchnorm"].fn(x + h * t) for h in (1e-6, -1e-6)]
    np.testing.assert_allclose(d_batchnorm.fn(x, t), (moved[0] - moved[1]) / 2e-6, atol=1e-8)
    blocks = {"x": Block(x, 1, True), "t": Block(t, 1, True)}
    e = Apply(d_batchnorm, (Ref("x"), Ref("t")), (("axis", (0,)),))
    form = NormalForm(lambda e: evaluate(e, blocks).index, lambda e: isinstance(e, Const))
    np.testing.assert_allclose(evaluate(written_out(form, e), blocks).array, d_batchnorm.fn(x, t), atol=1e-13)
    expanded = program.expand()
    assert "d_batchnorm" not in str(expanded)
    assert expanded.tangent().check()


def test_names_that_are_taken_get_others() -> None:
    program = ns.parse(LAYER.replace("x", "d_g"))
    assert tangent(program).directions["g"] == "d_g_"


def test_copies_are_made_of_products() -> None:
    """A transposed convolution reads copies of pixels: functions are not evaluated at each of them."""
    conv, up, v = ns.Conv1d(2), ns.Conv1d(3, 2, transposed=True), ns.Matrix(rows=1)
    net = ns.network(lambda x: v @ ns.flatten(ns.relu(up(ns.relu(conv(x)))), dims=1))
    text = str(ns.program(ns.tangent(net), np.ones((3, 1))))
    assert "take(step(h1)*d_h1" in text


# Users' functions


def hinge(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + np.maximum(x - 1.0, 0.0)


def test_differences_never_straddle_a_kink() -> None:
    slope = PartialDerivative(hinge, by_jax=False)
    x = np.concatenate([np.linspace(-5, 5, 10_001) + 1e-7, [1e-4, -1e-4, 1 + 1e-5, 1 - 1e-5]])
    np.testing.assert_allclose(slope(x), np.sign(x) + (x > 1), atol=1e-9)


def test_differences_of_smooth_functions() -> None:
    x = np.linspace(-6, 6, 1001)
    slope = PartialDerivative(lambda x, c: x / (1 + np.exp(-c * x)), by_jax=False)
    gate = 1 / (1 + np.exp(-1.5 * x))
    np.testing.assert_allclose(slope(x, 1.5), gate * (1 + 1.5 * x * (1 - gate)), atol=1e-11)
    wave = PartialDerivative(lambda x: np.sin(9 * x), by_jax=False)
    np.testing.assert_allclose(wave(x), 9 * np.cos(9 * x), atol=1e-11)
    large = 1e6 * x
    np.testing.assert_allclose(PartialDerivative(np.square, by_jax=False)(large), 2 * large, rtol=1e-10)


def test_differences_along_a_direction() -> None:
    x, d = np.random.default_rng(0).standard_normal((2, 4, 50))
    found = DirectionalDerivative(lambda m: m / np.sqrt((m * m).sum(0)), by_jax=False)(x, d)
    size = np.sqrt((x * x).sum(0))
    np.testing.assert_allclose(found, d / size - x * (x * d).sum(0) / size**3, atol=1e-10)
    assert (abs(DirectionalDerivative(np.tanh, by_jax=False)(x, 0 * d)) < 1e-12).all()


def test_jax_differentiates_what_it_can_trace() -> None:
    pytest.importorskip("jax")

    def bump(x):
        return x * x.__array_namespace__().exp(-x * x)

    found = partial_of(Function("bump", bump, user=True), 0)
    assert isinstance(found.fn, PartialDerivative)
    assert found.fn.by_jax
    x = np.linspace(-2, 2, 11)
    value = found.fn(x)
    assert isinstance(value, np.ndarray)
    np.testing.assert_allclose(value, (1 - 2 * x * x) * np.exp(-x * x), rtol=1e-14, atol=1e-15)


def swish(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def swish_slope(x: np.ndarray) -> np.ndarray:
    gate = 1 / (1 + np.exp(-x))
    return gate * (1 + x * (1 - gate))


def test_a_derivative_of_ones_own_is_used_and_checked() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    known, by_hand, by_differences = (
        ns.ntk(ns.zoo.mlp(2, phi))
        for phi in (
            ns.silu,
            lambda h: ns.nonlin(swish, h, derivative=swish_slope),
            lambda h: ns.nonlin(swish, h),
        )
    )
    np.testing.assert_allclose(by_hand(x), known(x), rtol=1e-9)
    np.testing.assert_allclose(by_differences(x), known(x), rtol=1e-9)
    assert "by differences" in str(by_differences.plan(x))
    assert "by differences" not in str(by_hand.plan(x))
    with pytest.raises(FunctionError, match="is not its derivative"):
        ns.ntk(ns.zoo.mlp(1, lambda h: ns.nonlin(swish, h, derivative=swish)))(x)
    with pytest.raises(FunctionError, match="one for each of the 1 vectors"):
        ns.ntk(ns.zoo.mlp(1, lambda h: ns.nonlin(swish, h, derivative=(swish, swish))))(x)


@pytest.mark.parametrize(
    "frequency",
    [1.0, pytest.param(10.0, marks=pytest.mark.slow), pytest.param(150.0, marks=pytest.mark.slow)],
)
def test_the_error_of_differences_counts(frequency: float) -> None:
    """The slope of a wave that differences follow well, hardly, and not at all."""
    x = np.random.default_rng(1).standard_normal((4, 3))
    wave = ns.ntk(ns.zoo.mlp(1, lambda h: ns.nonlin(lambda t: np.sin(frequency * t), h, name="wave")))
    known = ns.ntk(ns.zoo.mlp(1, lambda h: ns.sin(frequency * h))).evaluate(x)
    found = wave.evaluate(x)
    assert np.all(np.abs(found.value - known.value) <= found.error + known.error)
    if frequency == 150:
        assert found.error.max() > 1e-9 * known.value.max()
        with pytest.raises(ns.NetsorError, match="Differences"):
            ns.ntk(wave.net.net, tol=1e-6).evaluate(x)


def spike(width: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda t: np.tanh(t) + 0.01 * np.exp(-(((t - 0.3) / width) ** 2))


@pytest.mark.parametrize(
    "fn",
    [
        lambda t: np.sqrt(np.abs(np.asarray(t))),  # E[f'^2] is infinite
        pytest.param(  # half of the step leaves more than half of the error
            lambda t: np.abs(np.asarray(t)) ** 0.9, marks=pytest.mark.slow
        ),
        pytest.param(spike(1e-3), marks=pytest.mark.slow),
        pytest.param(spike(1e-4), marks=pytest.mark.slow),
    ],
)
def test_differences_that_do_not_settle_are_refused(fn: Callable[[np.ndarray], np.ndarray]) -> None:
    net = ns.zoo.mlp(1, lambda h: ns.nonlin(lambda t: np.asarray(fn(np.asarray(t))), h, name="rough"))
    for inputs in (np.eye(2), np.eye(2)[:1]):
        with pytest.raises(ns.NetsorError, match=r"d_rough.* do not settle|not finite, or too singular"):
            ns.ntk(net)(inputs)


@pytest.mark.slow
def test_differences_of_a_spike_that_is_wide_enough() -> None:
    """E[f'^2] of a Gaussian of width w in front of a line, by quadrature on its own scale."""
    w, q = 3e-3, 0.625
    W, v, x = ns.Matrix(), ns.Matrix(rows=1), np.array([[1.0, 0.5]])

    def fn(t):
        return np.asarray(t) + np.exp(-(((np.asarray(t) - 0.3) / w) ** 2))

    found = ns.ntk(ns.network(lambda x: v @ ns.nonlin(fn, W @ x)), {"v": 0.0}).evaluate(x)
    z = np.linspace(0.3 - 10 * w, 0.3 + 10 * w, 20_001)
    slope = -2 * (z - 0.3) / w**2 * np.exp(-(((z - 0.3) / w) ** 2))
    density = np.exp(-z * z / (2 * q)) / np.sqrt(2 * np.pi * q)
    known = q * (1 + np.sum((slope**2 + 2 * slope) * density) * (z[1] - z[0]))
    assert abs(found.value[0, 0] - known) <= found.error[0, 0]


@pytest.mark.parametrize("outer", [lambda h: h, ns.softplus], ids=["alone", "inside"])
def test_differences_are_looked_at_no_closer_than_their_step(outer) -> None:
    """They were evaluated twenty times as often as the function itself, which may have narrower spikes."""
    W, v, x = ns.Matrix(1.5), ns.Matrix(rows=1), np.random.default_rng(0).standard_normal((2, 3))
    seen = []

    def cube(z: np.ndarray) -> np.ndarray:
        seen.append(np.size(z))
        return np.asarray(np.tanh(z)) ** 3

    def evaluations(K: KernelFn) -> int:
        seen.clear()
        K(x)
        return sum(seen)

    net = ns.network(lambda x: v @ outer(ns.nonlin(cube, W @ x)))
    by_name = ns.network(lambda x: v @ outer(ns.tanh(W @ x) ** 3))
    slopes, known = (ns.ntk(n, {"v": 0.0}) for n in (net, by_name))
    assert evaluations(slopes) < 1.2 * evaluations(ns.kernel(net))  # what is kept between calls varies
    np.testing.assert_allclose(slopes(x), known(x), rtol=1e-11)
