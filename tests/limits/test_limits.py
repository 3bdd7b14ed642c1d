"""The limit of networks and programs: against the oracle, which shares no code with it, and by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import product
from math import asin, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

import netsor as ns
from limit_cases import CASES, SAMPLED, SEQUENCES, VECTORS, Case, assert_agree, scale_of
from netsor import zoo
from netsor.errors import LimitError, TypeCheckError
from netsor.lang.types import C, G
from netsor.limits import Result
from oracle import OracleResult
from oracle import oracle as whole_oracle
from oracle_answers import RefusalError, oracle

sys.path.insert(0, str(Path(__file__).parents[1] / "property"))
from strategies import programs

EXAMPLES = sorted(Path(__file__).parents[2].joinpath("examples", "programs").glob("*.netsor"))
LOWERINGS = ["netsor+", "netsor-minus+", "netsor-o+", "expand"]
SKIPPED = ["gru_o", "gru_set", "batchnorm_expanded", "cnn2_expanded", "transformer_expanded"]  # nothing new


@cache
def load(path: Path) -> ns.Program:
    return ns.parse(path.read_text())


@cache
def kernel_of(path: Path) -> Result:
    return ns.limit(load(path)).kernel()


def rewritten(program: ns.Program, how: str) -> ns.Program:
    return program.expand() if how == "expand" else program.lower(how)


# Against the oracle


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel_of_every_zoo_network(case: Case) -> None:
    found = ns.kernel(case.net).evaluate(case.inputs)
    wanted = oracle(ns.program(case.net, *case.inputs), samples=2**15)
    assert_agree(found, wanted.kernel, wanted.error.kernel)
    assert found.plan.exact == (case.name not in SAMPLED)
    assert np.all(found.error <= (1e-9 if found.plan.exact else 5e-3) * scale_of(found.value))
    assert np.all(wanted.error.kernel <= 0.05 * scale_of(found.value)), "the comparison says little"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_kernel_of_example_programs(path: Path) -> None:
    found = kernel_of(path)
    wanted = oracle(load(path), samples=2**14)
    assert_agree(found, wanted.kernel, wanted.error.kernel)


@pytest.mark.parametrize("how", LOWERINGS)
@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.stem not in SKIPPED], ids=lambda path: path.stem)
def test_a_lowering_has_the_same_kernel(path: Path, how: str) -> None:
    wanted = kernel_of(path)
    found = ns.limit(rewritten(load(path), how), points=2**10).kernel()
    assert_agree(found, wanted.value, wanted.error)


def members(name: str, index: tuple[int, ...]) -> list[str]:
    """The names of a block variable's members in the expanded program, in order."""
    return ["_".join([name, *map(str, i)]) for i in np.ndindex(index)]


def assert_mu_and_sigma(program: ns.Program, wanted: OracleResult) -> None:
    """All of mu, Sigma and the scalar limits that the oracle has: an expansion drops what no output uses."""
    limit = ns.limit(program)
    found: dict[object, float] = {}
    truth = {**wanted.mu, **wanted.sigma, **wanted.scalars}
    error = {**wanted.error.mu, **wanted.error.sigma, **wanted.error.scalars}
    for name, type_ in program.types.items():
        ours = members(name, getattr(type_, "index", ()))
        if isinstance(type_, C):
            found |= zip(ours, np.ravel(limit.scalar(name)), strict=True)
        if not isinstance(type_, G):
            continue
        found |= zip(ours, np.ravel(limit.mu(name)), strict=True)
        for other, second in program.types.items():
            if isinstance(second, G) and second.width == type_.width:
                pairs = product(ours, members(other, second.index))
                found |= zip(pairs, np.ravel(limit.sigma(name, other)), strict=True)
    assert set(truth) <= set(found)
    values = [found[k] for k in truth]
    assert_agree((values, 1e-13), list(truth.values()), [error[k] for k in truth], largest=np.inf)


EXACT = ["mlp", "mlp_set", "simple_rnn", "layernorm", "graph_conv", "densenet", "cnn2", "transformer"]


@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.stem in EXACT], ids=lambda path: path.stem)
def test_mu_sigma_and_scalars_of_example_programs(path: Path) -> None:
    program = load(path)
    assert_mu_and_sigma(program, whole_oracle(program, samples=2**14))


MEANS = """
Input g :: G(n)[2] ~ N([0.5, -1], [[1, 0.3], [0.3, 2]])
Input b :: G(n) ~ N(0.25, 0)
Input k :: G(m) ~ N(0, 1)
Input W :: A(n, n) ~ N(0, 2/n)
Input V :: A(n, n)[2] ~ N(0, 0.5/n)
Input v :: G(n) ~ N(0, 1)
h := 2*g - (g[0] + g[1]) / 2
x := relu(h)
Wx := MatMul(W, x)
Wg := MatMul(W, g)
Vx := MatMul(V, x, aligned=1)
y := 0.5*Wx - 3*b + Wg + sum(Vx, axis=0)
c := Moment(x*g)
d := Moment((x - c)^2)
e := sqrt(d + 1)
z := tanh(y*e + c)
Output v^T z / sqrt(n)
"""


def test_mu_sigma_and_scalars_of_a_program_with_means_and_blocks() -> None:
    program = ns.parse(MEANS)
    assert_mu_and_sigma(program, whole_oracle(program))


ALIGNED = """
Input g :: G(n)[2] ~ N(0, [[1, 0.5], [0.5, 1]])
Input W :: A(n, n)[2] ~ N(0, 1/n)
Input v :: G(n) ~ N(0, 1)
x := relu(g)
a := MatMul(W, x, aligned=1)
b := MatMul(W, x)
y := relu(sum(a, axis=0) + sum(b[0], axis=0))
Output v^T y / sqrt(n)
"""


def test_one_block_of_matrices_with_and_without_aligned_axes() -> None:
    """Different members of W are independent, whichever way they are used."""
    program = ns.parse(ALIGNED)
    assert_mu_and_sigma(program, whole_oracle(program))


def test_moments_of_vectors() -> None:
    limit = ns.limit(ns.parse(MEANS))
    assert limit.moment("b") == 0.25
    assert limit.moment("b", "b") == pytest.approx(0.0625)
    assert limit.moment("x").shape == (2,)
    assert limit.moment("x", "g").shape == (2, 2)
    np.testing.assert_allclose(np.diagonal(limit.moment("x", "g")), limit.scalar("c"), rtol=1e-12)
    with pytest.raises(LimitError, match="different widths"):
        limit.sigma("k", "b")
    with pytest.raises(LimitError, match="no variable"):
        limit.mu("nothing")
    with pytest.raises(LimitError, match="mu is defined"):
        limit.mu("c")


# The strategy of random programs, of which the oracle can do the smaller ones.


@given(programs())
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
def test_kernel_of_random_programs(program: ns.Program) -> None:
    try:
        plain = program.expand()
        small = sum(isinstance(t, G) for t in plain.types.values()) <= 30
    except TypeCheckError:
        small = False  # a member of a block that is a constant has no line of its own
    assume(small)
    found = ns.limit(program, points=2**10).kernel()
    try:
        wanted = oracle(program, samples=2**13)
    except RefusalError:
        assume(False)
    assert_agree(found, wanted.kernel, wanted.error.kernel)


# By hand


def recursion(x: np.ndarray, depth: int, w: float, b: float, moment: Callable) -> np.ndarray:
    """Sigma = w E[phi phi'] + b, layer after layer, from Sigma = w x.x'/m + b; out E[phi phi']."""
    inner = x @ x.T / x.shape[1]
    for _ in range(depth):
        inner = moment(w * inner + b)
    return inner


def arc_cosine(s: np.ndarray) -> np.ndarray:
    """E relu(z) relu(z') for all pairs of a Gaussian vector."""
    scale = np.sqrt(np.outer(np.diag(s), np.diag(s)))
    c = np.clip(s / scale, -1, 1)
    return scale / (2 * np.pi) * (np.sqrt(1 - c**2) + (np.pi - np.arccos(c)) * c)


def arc_sine(s: np.ndarray) -> np.ndarray:
    """E erf(z) erf(z') for all pairs of a Gaussian vector."""
    d = 1 + 2 * np.diag(s)
    return 2 / np.pi * np.arcsin(2 * s / np.sqrt(np.outer(d, d)))


@pytest.mark.parametrize("depth", [1, 3, 20])
@pytest.mark.parametrize(("w", "b"), [(2.0, 0.0), (1.5, 0.3)])
@pytest.mark.parametrize(("phi", "moment"), [(ns.relu, arc_cosine), (ns.erf, arc_sine)], ids=["relu", "erf"])
def test_mlp_by_its_recursion(depth: int, w: float, b: float, phi, moment: Callable) -> None:
    x = np.concatenate([VECTORS, -VECTORS[:1], VECTORS[:1] + VECTORS[1:2]])
    found = ns.kernel(zoo.mlp(depth, phi, var_w=w, var_b=b)).evaluate(x)
    wanted = recursion(x, depth, w, b, moment)
    np.testing.assert_allclose(found.value, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    assert np.all(found.error < 1e-11 * np.abs(wanted).max())


def erf_rnn(x: list[np.ndarray], w: float, u: float, b: float) -> np.ndarray:
    """The kernel of all states of an erf RNN: preactivation h_t has Cov = w E[s s'] + u x.x'/m + b."""

    @cache
    def cov(i: int, s: int, j: int, t: int) -> float:
        before = w * moment(i, s - 1, j, t - 1) if s and t else 0.0
        return before + u * float(x[i][s] @ x[j][t]) / len(x[i][s]) + b

    def moment(i: int, s: int, j: int, t: int) -> float:
        variances = (1 + 2 * cov(i, s, i, s)) * (1 + 2 * cov(j, t, j, t))
        return 2 / np.pi * asin(2 * cov(i, s, j, t) / sqrt(variances))

    places = [(i, t) for i, tokens in enumerate(x) for t in range(len(tokens))]
    return np.array([[moment(*p, *q) for q in places] for p in places])


def test_erf_rnn_by_its_recursion() -> None:
    x = [SEQUENCES[0], SEQUENCES[1][:2], SEQUENCES[2][:1], np.concatenate(SEQUENCES[:2])]
    found = ns.kernel(zoo.simple_rnn(var_w=1.3, var_u=0.9, var_b=0.2, var_v=0.7)).evaluate(x)
    wanted = 0.7 * erf_rnn(x, 1.3, 0.9, 0.2)
    np.testing.assert_allclose(found.value, wanted, rtol=0, atol=1e-12)


def test_layernorm_of_relu_by_hand() -> None:
    """(relu(h) - nu) / sqrt(var) with nu = sqrt(q / 2 pi) and var = q (1/2 - 1 / 2 pi)."""
    q = VECTORS @ VECTORS.T / 4 + 1.0
    d = np.sqrt(np.diag(q) / (2 * np.pi))
    wanted = (arc_cosine(q) - np.outer(d, d)) / (
        np.sqrt(np.outer(np.diag(q), np.diag(q))) * (0.5 - 0.5 / np.pi)
    )
    found = ns.kernel(zoo.layernorm_mlp(1, order="phi-norm")).evaluate(VECTORS)
    np.testing.assert_allclose(found.value, wanted, rtol=0, atol=1e-9)
    assert np.all(found.error < 1e-8)


def test_residual_network_by_hand() -> None:
    """x + relu(W x + b): the branch has its own matrix, so the two are independent."""
    q = VECTORS @ VECTORS.T / 4
    wanted = q + arc_cosine(0.5 * q + 0.3)
    found = ns.kernel(zoo.resnet(1, var_w=0.5, var_b=0.3))(VECTORS)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_convolution_with_global_average_pooling_by_hand() -> None:
    """Two pixels in a row, kernel of three: the covariance of two pixels sums over shared positions."""
    image = np.array([[[1.0], [-0.5]]])
    a, b = image[0, :, 0]
    # Positions j = -1, 0, 1: pixel 0 sees (none, a, b), pixel 1 sees (a, b, none).
    sigma = 2.0 / 3 * np.array([[a * a + b * b, a * b], [a * b, a * a + b * b]]) + 0.1
    wanted = arc_cosine(sigma).sum() / 4
    found = ns.kernel(zoo.cnn(1, kernel=(1, 3), var_w=2.0, var_b=0.1))([image])
    np.testing.assert_allclose(found, [[wanted]], rtol=1e-12)


# Found by random programs


WITHIN = """
Input g :: G(n)[2] ~ N(-1, [[1, 0.5], [0.5, 2]])
Input k :: G(n) ~ N(-0.5, 2)
Input W :: A(n, n) ~ N(0, 0.5/n)
Input v :: G(n) ~ N(0, 1)
h := MatMul(W, g)
y := softplus(tanh(h)*(k + h)*erf(k))
Output sum(v^T y, axes=0) / sqrt(n)
"""


def test_a_form_inside_another_one() -> None:
    """h stands alone and in k + h: when they are sampled, k + h is one variable, not the mean of k plus h."""
    program = ns.parse(WITHIN)
    found, wanted = ns.limit(program).kernel(), oracle(program)
    assert not found.plan.exact
    assert_agree(found, wanted.kernel, wanted.error.kernel)


EXTRA = """
Input g :: G(n)[1, 3] ~ N(-1, 0.25)
Input W :: A(n, n)[3, 1] ~ N(0, 2/n)
Input v :: G(n)[1] ~ N(0, 1)
h := MatMul(W, g)
y := window(h, dims=1, padding="same")
Output sum(v^T y, axes=1) / sqrt(n)
"""


def test_a_window_over_some_axes_of_a_block_of_matrices() -> None:
    program = ns.parse(EXTRA)
    found, wanted = ns.limit(program).kernel(), oracle(program)
    assert_agree(found, wanted.kernel, wanted.error.kernel)


PARAMETERS = """
Data c = [[0.75, 1], [1, 0]]
Input b :: G(n)[2] ~ N(0.2, 0.25)
Input v :: G(n) ~ N(0, 1)
y := sum(tanh(c*tanh(b)), axis=-2)
Output v^T y / sqrt(n)
"""


def test_parameters_with_an_index_of_their_own() -> None:
    """A function of one variable that is different for each member of a block of constants."""
    program = ns.parse(PARAMETERS)
    found, wanted = ns.limit(program).kernel(), oracle(program)
    assert found.plan.exact
    assert_agree(found, wanted.kernel, wanted.error.kernel)


TWICE = """
Data c = [0.5, -1]
Input b :: G(n)[2] ~ N(0.2, 0.25)
Input k :: G(n) ~ N(0, 1)
Input v :: G(n) ~ N(0, 1)
y := tanh((b + c)*k*c)
Output v^T y / sqrt(n)
"""


def test_a_constant_inside_and_outside_a_form() -> None:
    """c is part of the variable b + c and a parameter of the function beside it."""
    program = ns.parse(TWICE)
    found, wanted = ns.limit(program).kernel(), oracle(program)
    assert_agree(found, wanted.kernel, wanted.error.kernel)
