"""Programs that repeat a step: planning grows at most like the square of their length, and values stay right.

Work is counted, not timed: expressions that are made, and quantities that rules are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import numpy as np
import pytest

import netsor as ns
from netsor.errors import LimitError
from netsor.lang import expr as expressions
from netsor.limits.rules import atoms, forms
from netsor.limits.rules.recorder import Recorder
from netsor.limits.tape.tape import Tape

X = np.random.default_rng(3).standard_normal((2, 4))
U, W, v = ns.Matrix(), ns.Matrix(), ns.Matrix(rows=1)
EACH = [ns.Matrix() for _ in range(200)]
SIZES = (20, 40)
MOST = 2.1  # the exponent of n, with a little for what does not grow
Step = Callable[[Any, Any, int], Any]

STEPS: dict[str, Step] = {
    "y*y": lambda y, h, k: y * y,
    "tanh(y)*tanh(y)": lambda y, h, k: ns.tanh(y) * ns.tanh(y),
    "y*y + y": lambda y, h, k: y * y + y,
    "y*z + y": lambda y, h, k: y * (EACH[k] @ ns.tanh(h)) + y,
    "(y + z)*(y - z)": lambda y, h, k: (y + EACH[k] @ ns.tanh(h)) * (y - EACH[k] @ ns.tanh(h)),
    "max(y, z)": lambda y, h, k: ns.maximum(y, EACH[k] @ ns.tanh(h)),
    "max(y, W y)": lambda y, h, k: ns.maximum(y, W @ y),
    "max(y, 1 - y)": lambda y, h, k: ns.maximum(2 * y, 1 - y),
    "tanh(W y)*y + y": lambda y, h, k: ns.tanh(W @ y) * y + y,
    "tanh(W_k y)*y + y": lambda y, h, k: ns.tanh(EACH[k] @ y) * y + y,
    "y*sigmoid(W_k y)": lambda y, h, k: y * ns.sigmoid(EACH[k] @ y),
    "y*(W_k tanh(y))": lambda y, h, k: y * (EACH[k] @ ns.tanh(y)),
    "tanh(mean(y*y)*y)": lambda y, h, k: ns.tanh(ns.mean(y * y) * y),
    "sin(y + tanh(y))": lambda y, h, k: ns.sin(y + ns.tanh(y)),
    "y + y": lambda y, h, k: (y + W @ h) + (y - W @ h),
}
# Steps whose tangents are planned in every run; those of all others are among the slow tests.
TANGENTS = ("y*y", "y*z + y", "max(y, z)")
TEXT = """Input g :: G(n) ~ N(0, 1)
Input v :: G(n) ~ N(0, 1)
Input W :: A(n, n) ~ N(0, 1/n)
h := MatMul(W, g)
c0 := Moment(g*g)
y0 := 0.5*g + 0.5*h
"""
LINES = {
    "y*y": "{1} := {0}*{0}",
    "y*tanh(h) + y": "{1} := {0}*tanh(h) + {0}",
    "Moments": "c{1} := Moment(tanh({0})*{0})\n{1} := tanh(c{1}*{0})",
    "c*y + c*h": "c{1} := Moment({0}*tanh({0}))\n{1} := c{1}*{0} + c{1}*h",
}


def chain(name: str, n: int) -> ns.Network:
    @ns.network
    def net(x: Any) -> Any:
        h = y = U @ x
        for k in range(n):
            y = STEPS[name](y, h, k)
        return v @ y

    return net


def text(name: str, n: int) -> ns.Program:
    body = "\n".join(LINES[name].format(f"y{k}", f"y{k + 1}") for k in range(n))
    return ns.parse(f"{TEXT}{body}\nOutput v^T y{n} / sqrt(n)")


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], int]:
    """Counts expressions, answers of rules and steps on tapes."""
    count = [0]

    def counting(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            count[0] += 1
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    counting(expressions, "once")
    counting(Recorder, "_keep")
    counting(Tape, "call")

    def measure(run: Callable[[], Any]) -> int:
        before = count[0]
        run()
        return count[0] - before

    return measure


def _exponent(work: Callable[[Callable[[], Any]], int], run: Callable[[int], Any]) -> float:
    small, large = (work(lambda n=n: run(n)) for n in SIZES)
    return log(large / small) / log(SIZES[1] / SIZES[0])


@pytest.mark.parametrize("name", STEPS)
def test_planning_a_kernel_is_quadratic(name: str, work: Callable[..., int]) -> None:
    assert _exponent(work, lambda n: ns.kernel(chain(name, n)).plan(X)) < MOST


@pytest.mark.parametrize(
    "name", [name if name in TANGENTS else pytest.param(name, marks=pytest.mark.slow) for name in STEPS]
)
def test_planning_a_tangent_kernel_is_quadratic(name: str, work: Callable[..., int]) -> None:
    assert _exponent(work, lambda n: ns.ntk(chain(name, n)).plan(X)) < MOST


@pytest.mark.parametrize("name", LINES)
def test_planning_a_text_is_quadratic(name: str, work: Callable[..., int]) -> None:
    assert _exponent(work, lambda n: ns.limit(text(name, n)).plan()) < MOST


def test_two_hundred_lines_of_everything_are_planned() -> None:
    for name in ("y*y", "y*z + y", "(y + z)*(y - z)", "tanh(W_k y)*y + y"):
        assert ns.kernel(chain(name, 200)).plan(X).statements >= 200


def test_a_value_that_overflows_is_refused() -> None:
    for name in ("y*y", "(y + z)*(y - z)"):
        with pytest.raises(ns.NetsorError) as refused:
            ns.kernel(chain(name, 30), points=256).evaluate(X)
        assert refused.value.remedy


def test_independent_factors_of_many_products_are_exact() -> None:
    """y_n = y_0 prod_k (1 + z_k) with independent z_k: E[y y'] = q (1 + c)^n, c = E[tanh tanh']."""
    n, nodes = 60, np.arange(-12.0, 12.0, 0.03)  # the trapezoidal rule, whose error is far below 1e-12 here
    weights = np.exp(-(nodes**2) / 2)
    weights /= weights.sum()
    q = X @ X.T / X.shape[1]
    found = ns.kernel(chain("y*z + y", n)).evaluate(X)
    assert found.plan.exact
    for i, j in np.ndindex(q.shape):
        g = np.sqrt(q[i, i]) * nodes
        rest = np.sqrt(max(q[j, j] - q[i, j] ** 2 / q[i, i], 0.0))
        h = q[i, j] / q[i, i] * g[:, None] + rest * nodes
        c = weights @ (np.tanh(g)[:, None] * np.tanh(h)) @ weights
        assert found.value[i, j] == pytest.approx(q[i, j] * (1 + c) ** n, rel=1e-8)


@pytest.mark.parametrize(
    ("name", "tangent"),
    [
        ("tanh(W_k y)*y + y", False),
        ("tanh(W y)*y + y", False),
        ("tanh(W_k y)*y + y", True),
        ("y*z + y", True),
    ],
)
def test_what_is_sampled_past_the_budget_agrees(
    name: str, tangent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, n = ns.ntk if tangent else ns.kernel, 2
    exact = kind(chain(name, n)).evaluate(X)
    for module, budget in ((atoms, "MOST_PRODUCTS"), (atoms, "MANY_PRODUCTS"), (forms, "FEW_NODES")):
        monkeypatch.setattr(module, budget, 0)
    bounded = kind(chain(name, n), seed=1, points=512).evaluate(X)
    error = exact.error + bounded.error
    assert np.all(np.abs(exact.value - bounded.value) <= 5 * error + 1e-9 * np.abs(exact.value).max())


def test_the_plan_says_why_a_product_is_sampled() -> None:
    plan = ns.kernel(chain("(y + z)*(y - z)", 12)).plan(X)
    assert not plan.exact
    assert "is not multiplied out: that takes" in str(plan)
    with pytest.raises(LimitError, match="not multiplied out"):
        ns.kernel(chain("(y + z)*(y - z)", 12), method="exact").plan(X)


def test_a_run_of_more_than_an_hour_asks() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 3))
    K = ns.kernel(ns.zoo.gru(), repeats=10**9)
    assert K.plan(x).seconds > 3600
    with pytest.raises(LimitError, match="takes about") as refused:
        K(x)
    assert "confirm=True" in refused.value.remedy
    assert ns.kernel(ns.zoo.gru(), repeats=2, points=16, confirm=True)(x).shape == (10, 10)


def test_a_kernel_far_larger_than_the_image() -> None:
    """Only the positions that touch the image count: a kernel of 101 is one of 15 with other variances."""
    image = np.random.default_rng(1).standard_normal((2, 8, 8, 2))
    wide, narrow = (
        ns.network(lambda x, conv=conv: v @ ns.mean(ns.relu(conv(x)), axis=(0, 1)))
        for conv in (ns.Conv2d(101, var_w=1.0), ns.Conv2d(15, var_w=(15 / 101) ** 2))
    )
    assert np.allclose(ns.kernel(wide)(image), ns.kernel(narrow)(image), rtol=1e-12)
    assert np.isfinite(ns.simulate(wide, image, 4, 2, 0)).all()
