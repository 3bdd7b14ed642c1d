"""Linear combinations of outputs and constants, and the bias of an output layer."""

from collections.abc import Callable

import numpy as np
import pytest

import netsor as ns

U, v, w, v3 = ns.Matrix(), ns.Matrix(rows=1), ns.Matrix(2.0, rows=1), ns.Matrix(rows=3)
b, b3 = ns.Vector(0.3), ns.Vector([[0.3, 0.1, 0], [0.1, 0.2, 0], [0, 0, 0.5]], index=(3,))
x = np.random.default_rng(0).standard_normal((2, 3))


def h(x):
    return ns.relu(U @ x)


def kernel(fn: Callable) -> np.ndarray:
    return ns.kernel(ns.network(fn))(x)


PLAIN = kernel(lambda x: v @ h(x))
SIGNS = np.array([[1, -1], [-1, 1]])


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: v @ h(x) + b, PLAIN + 0.3),
        (lambda x: b + v @ h(x), PLAIN + 0.3),
        (lambda x: b - v @ h(x), PLAIN + 0.3),
        (lambda x: v @ h(x) - b, PLAIN + 0.3),
        (lambda x: 2 * (v @ h(x)), 4 * PLAIN),
        (lambda x: (v @ h(x)) / 2, PLAIN / 4),
        (lambda x: -(v @ h(x)) + 7, PLAIN),
        (lambda x: v @ h(x) - v @ h(3 * x), 4 * PLAIN),
        (lambda x: v @ h(x) - w @ h(x), 3 * PLAIN),
        (lambda x: (v @ h(x)) * ns.mean(ns.step(U @ x)), PLAIN / 4),
        (lambda x: v3 @ h(x) + b3, np.kron(PLAIN, np.eye(3)) + np.kron(np.ones((2, 2)), b3.var)),
        (lambda x: v3 @ h(x) + b, np.kron(PLAIN, np.eye(3)) + 0.3),
        (lambda x: ns.stack([v @ h(x), -(v @ h(x))]), np.kron(PLAIN, SIGNS)),
        (lambda x: 2 * ns.stack([v @ h(x), v @ h(x)]) - 1, np.kron(4 * PLAIN, np.ones((2, 2)))),
    ],
)
def test_kernel_of_a_combination(fn: Callable, expected: np.ndarray) -> None:
    assert kernel(fn) == pytest.approx(expected, abs=1e-12)
    net = ns.network(fn)
    program = ns.program(net, x[0])
    assert ns.parse(program.show()) == program
    seen = ns.empirical_kernel(net, x, width=512, samples=64, seed=0)
    error = seen.std(0, ddof=1) / 8 + 1e-12
    assert np.all(np.abs(seen.mean(0) - expected) < 6 * error)


def test_constants_are_the_mean_of_the_outputs() -> None:
    c = ns.Vector(0.5, mean=1.0)
    net = ns.network(lambda x: (3 - (v @ h(x))) * 2 + c)
    program = ns.program(net, x[0])
    assert program.outputs[0].shift == 7.0
    assert "+ 7\n" in program.show()
    seen = ns.simulate(net, x, width=32, samples=4000, seed=0)
    assert np.all(np.abs(seen.mean(0) - 7) < 5 * seen.std(0) / np.sqrt(4000))


def test_a_negative_shift_reads_back() -> None:
    program = ns.parse("Input v :: G(n) ~ N(0, 1)\nInput g :: G(n) ~ N(0, 1)\nOutput v^T g / sqrt(n) - 2.5\n")
    assert program.outputs[0].shift == -2.5
    assert ns.parse(program.show()) == program


def test_values_have_short_names() -> None:
    seen = []

    @ns.network
    def net(x):
        h = U @ x
        seen.extend([repr(x), repr(h), repr(ns.relu(ns.stack([h] * 6))), repr(ns.mean(h)), repr(v @ h)])
        return v @ h

    ns.program(net, x[0])
    assert seen[:5] == ["data[3]", "G(n)", "H(n)[6]", "C", "output"]
