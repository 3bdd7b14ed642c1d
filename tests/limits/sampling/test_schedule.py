"""Second moments of all vectors at once: against one pair at a time and the oracle, and what they cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import netsor as ns
from computations import computation
from limit_cases import assert_agree, largest_error, scale_of
from netsor import zoo
from netsor.expect.points import pivoted_cholesky
from netsor.expect.points.principal_axes import PrincipalAxes, Trail
from netsor.lang.expr import Ref
from netsor.lang.program import MatMul
from netsor.limits.computation import Computation
from netsor.limits.sampling import chunks as chunks_module
from netsor.limits.sampling import tables as tables_module
from netsor.limits.sampling.chunks import Workspace
from netsor.limits.sampling.tables import Tables
from netsor.limits.sampling.vectors import Vectors
from oracle_answers import oracle
from sampled_networks import (
    FEW_NAMES,
    LONG,
    NAMES,
    NETWORKS,
    SETS,
    SHORT,
    TOKENS,
    last,
    schedule,
    sequence,
    tables,
    v,
)

each = pytest.mark.parametrize("name", NAMES)
few = pytest.mark.parametrize("name", FEW_NAMES)


# Values


@each
@pytest.mark.parametrize("method", ["auto", "sample"])
def test_against_one_pair_at_a_time(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = ns.kernel(NETWORKS[name], method=method, points=2**9, seed=2)
    fits = (name, method) != ("GRU, random state", "sample")  # a sampled variable behind a matrix
    assert (schedule(NETWORKS[name], SETS, method=method) is not None) == fits
    found = kernel.evaluate(SETS)
    monkeypatch.setattr(Computation, "_tables_of", lambda *_: None)
    wanted = ns.kernel(NETWORKS[name], method=method, points=2**9, seed=3).evaluate(SETS)
    assert_agree(found, wanted.value, wanted.error)
    assert np.all(found.error <= 0.03 * scale_of(found.value)), "the comparison says little"
    assert np.linalg.norm(found.error) <= 2 * np.linalg.norm(wanted.error)


@each
def test_against_the_oracle(name: str) -> None:
    inputs = [LONG[:2], SHORT[:2]]
    found = ns.kernel(NETWORKS[name], method="sample", points=2**11).evaluate(inputs)
    wanted = oracle(ns.program(NETWORKS[name], *inputs), samples=2**13)
    assert_agree(found, wanted.kernel, wanted.error.kernel)


def by_any_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> np.ndarray:
    """A kernel, which is the same to the last bit with one, two and five threads."""
    results = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(chunks_module, "cores", lambda cores=cores: cores)
        results.append(ns.kernel(NETWORKS[name], **options)(SETS))
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])
    return results[0]


@few
def test_the_number_of_threads_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_any_number_of_threads(name, monkeypatch, points=2**6, repeats=7)


@few
def test_the_number_of_threads_changes_nothing_within_a_repeat(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One repeat at a time, and rows of tables and right-hand sides that are shared out one by one."""
    monkeypatch.setattr(chunks_module, "MEMORY", 1)
    wanted = ns.kernel(NETWORKS[name], points=2**8, repeats=2).evaluate(SETS).value
    monkeypatch.setattr(tables_module, "ENTRIES", 1)
    monkeypatch.setattr(pivoted_cholesky, "RIGHT", 1)
    monkeypatch.setattr(chunks_module, "LEAST_CHUNK", 64)
    zeros = ns.kernel(NETWORKS[name], points=2**9, repeats=4)([0 * LONG, LONG])  # without warnings
    assert np.isfinite(zeros).all()
    found = by_any_number_of_threads(name, monkeypatch, points=2**8, repeats=2)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


@few
def test_some_repeats_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In little memory the values are the same."""
    whole = ns.kernel(NETWORKS[name], points=2**6).evaluate(SETS)
    monkeypatch.setattr(chunks_module, "MEMORY", 1)
    parts = ns.kernel(NETWORKS[name], points=2**6).evaluate(SETS)
    size = np.abs(whole.value).max()
    np.testing.assert_allclose(parts.value, whole.value, rtol=0, atol=1e-12 * size)
    np.testing.assert_allclose(parts.error, whole.error, rtol=0, atol=1e-12 * size)


@few
def test_some_points_at_a_time(name: str) -> None:
    """With all values but not all noise in memory, and with as little as possible."""
    options: dict[str, Any] = {"points": 2**9, "repeats": 3}
    whole, memory, accepted = ns.kernel(NETWORKS[name], **options).evaluate(SETS), 2**16, 0
    size = np.abs(whole.value).max()
    while accepted < 4:
        try:
            found = ns.kernel(NETWORKS[name], memory=memory, **options).evaluate(SETS)
        except ns.NetsorError:  # too little
            assert accepted == 0
        else:
            accepted += 1
            np.testing.assert_allclose(found.value, whole.value, rtol=0, atol=1e-12 * size)
            np.testing.assert_allclose(found.error, whole.error, rtol=0, atol=1e-12 * size)
        memory = memory * 4 // 3


def test_some_inputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    net = NETWORKS["products of states"]
    whole = ns.kernel(net, points=2**6)(SETS)
    monkeypatch.setattr(chunks_module, "LARGEST_TABLE", 1)
    found = ns.kernel(net, points=2**6)(SETS)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-13 * np.abs(whole).max())


def test_the_same_tokens_have_the_same_rows() -> None:
    found = ns.kernel(zoo.gru(), points=2**8)([LONG, SHORT, LONG])
    np.testing.assert_allclose(found[:4], found[7:], rtol=0, atol=1e-9)
    np.testing.assert_allclose(found[:4, :4], found[:4, 7:], rtol=0, atol=1e-9)


def test_variances_that_are_zero_or_huge() -> None:
    for var_u, var_b in ((0.0, 0.0), (0.0, 1.0), (1e8, 1.0), (1e-8, 0.0)):
        net = zoo.gru(var_u=[var_u, 1.0, 1.0], var_b=[var_b, 1.0, 1.0])
        found = ns.kernel(net, points=2**9).evaluate([LONG, LONG, SHORT])
        wanted = ns.kernel(net, method="sample", points=2**9, seed=1).evaluate([LONG, LONG, SHORT])
        assert_agree(found, wanted.value, wanted.error)


def test_variances_by_name() -> None:
    """Parameters in place of the program's own enter everywhere."""
    x = [LONG, SHORT]
    found = ns.kernel(zoo.gru(), points=2**8)(x, params={"W_z": 2.0, "U_h": 0.5, "b_r": 0.3, "v": 3.0})
    net = zoo.gru(var_w=[2.0, 1.0, 1.0], var_u=[1.0, 1.0, 0.5], var_b=[1.0, 0.3, 1.0], var_v=3.0)
    np.testing.assert_allclose(found, ns.kernel(net, points=2**8)(x), rtol=1e-12)


def test_what_is_exact_stays_exact() -> None:
    """The second moments of a vector without sampled atoms have no error, whatever else is sampled."""
    W, U = ns.Matrix(1.0), ns.Matrix(1.0)

    @ns.network
    def net(tokens):
        states = v @ ns.erf(U @ tokens[0]), v @ zoo_state(tokens)
        return states

    def zoo_state(tokens):
        gates = [ns.erf_gate(W @ t) for t in tokens]
        return gates[0] * gates[1] * gates[2] * gates[3]

    found = ns.kernel(net, points=2**6).evaluate([LONG])
    q = LONG[0] @ LONG[0] / 3
    assert found.value[0, 0] == pytest.approx(0.7 * 2 / np.pi * np.arcsin(2 * q / (1 + 2 * q)), rel=1e-13)
    assert found.error[0, 0] < 1e-12
    assert found.error[1, 1] > 1e-8


# What is served, and what is left to the engine


def test_a_network_that_partly_fits() -> None:
    """What has index axes is sampled pair by pair, on top of the vectors that have none."""
    cell = ns.GRUCell(ns.erf, ns.erf_gate)
    net = sequence(cell, lambda states: v @ ns.max_pool(ns.stack(states), 2))
    inputs = [LONG, TOKENS[4][:4]]
    found = ns.kernel(net, points=2**9).evaluate(inputs)
    every = ns.kernel(net, method="sample", points=2**9, seed=7).evaluate(inputs)
    assert_agree(found, every.value, every.error)
    made = schedule(net, inputs)
    assert made is not None
    assert len(made.vectors) == 6  # three states, and each of them times a reset gate


@pytest.mark.parametrize("name", ["cnn", "layernorm"])
def test_networks_that_do_not_fit(name: str) -> None:
    if name == "cnn":
        net, inputs = zoo.cnn(2, kernel=2, pool="max"), np.random.default_rng(0).standard_normal((2, 2, 3, 2))
    else:
        W, cell = ns.Matrix(), ns.GRUCell(ns.erf, ns.erf_gate)
        net = sequence(lambda s, x: cell(ns.layernorm(s) if not isinstance(s, int) else s, W @ x), last)
        inputs = [LONG, SHORT]
    made = schedule(net, inputs)
    assert made is None or len(made.vectors) <= 2
    found = ns.kernel(net, points=2**8).evaluate(inputs)
    assert np.isfinite(found.value).all()


def test_the_limits_of_variables() -> None:
    """`ns.limit` reads the same second moments: variances of a gate, and E[h h']."""
    limit = ns.limit(zoo.gru(), LONG, points=2**10)
    program = limit.program
    kernel = limit.kernel()
    outputs = [s.terms[0].operand for s in program.outputs]
    moments = [limit.moment(name, name) for name in outputs]
    error = np.diagonal(kernel.error)
    assert_agree((moments, error), np.diagonal(kernel.value), error, largest=largest_error(kernel))
    for s in program.of(MatMul):
        assert limit.sigma(s.name) == pytest.approx(limit.moment(s.operand, s.operand), rel=1e-12)


def test_a_value_that_is_not_finite_is_refused() -> None:
    W = ns.Matrix(1.0)
    net = sequence(lambda s, x: ns.exp(40 * (W @ (s + ns.tanh(W @ x)))) * ns.erf_gate(W @ x), last)
    with pytest.raises(ns.NetsorError):
        ns.kernel(net, points=2**6)([LONG])


@each
@pytest.mark.parametrize("kernel", [ns.kernel, ns.ntk])
def test_parts_that_are_odd_in_different_families(
    name: str, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no moments with each other: with the same points, all products of parts are the same."""
    options: dict[str, Any] = {"points": 2**6, "repeats": 3}
    found = kernel(NETWORKS[name], **options).evaluate(SETS)
    monkeypatch.setattr(Vectors, "odd_families", lambda *_: frozenset())
    wanted = kernel(NETWORKS[name], **options).evaluate(SETS)
    size = np.abs(wanted.value).max()
    np.testing.assert_allclose(found.value, wanted.value, rtol=0, atol=1e-11 * size)
    np.testing.assert_allclose(found.error, wanted.error, rtol=0, atol=1e-11 * size)


# Cost


def test_tables_of_the_tangent_of_a_gru() -> None:
    """The state, and the tangents of update gate and candidate; a reset gate has no moments of its own."""
    for length in (3, 5, 6):
        made = schedule(ns.tangent(zoo.gru()), [TOKENS[0][:length]])
        assert made is not None
        assert [g.size for g in made.groups] == [length] * 3
        parts = [length * (length + 1) // 2, length * (length + 1) * (length + 2) // 6]
        assert sorted({len(g.sampled) for g in made.groups}) == sorted(parts)


def test_rows_and_steps_of_a_gru() -> None:
    """T(T+1)/2 products of gates, T variables a family, and a core for both h and r h."""
    for length in (3, 5, 6):
        made = schedule(zoo.gru(), [TOKENS[0][:length]])
        assert made is not None
        assert made.pools == [length * (length + 1) // 2]
        assert [g.size for g in made.groups] == [length]
        assert {f.size for f in made.families} == {length, length - 1}
        assert sum(step.core is not None for step in made.steps) == length
        drawn = [f for f in made.families if f.drawn]
        assert [f.size for f in drawn] == [length]


def test_early_tokens_come_first() -> None:
    """Of all sequences, whatever their order in the program."""
    made = schedule(zoo.gru(), [LONG, SHORT, TOKENS[2]])
    assert made is not None
    (drawn,) = (k for k, family in enumerate(made.families) if family.drawn)
    exprs = [form.expr for step in made.steps for form in step.forms if form.family == drawn]
    names = [expr.name for expr in exprs if isinstance(expr, Ref)]
    assert len(names) == len(exprs)
    program = computation(ns.kernel(zoo.gru()), [LONG, SHORT, TOKENS[2]]).program
    data = {"x1": 0, "x2": 0, "x3": 0}
    for name in names:
        source = next(x for x in data if f"{x}_{data[x]}" in str(program.definitions[name]))
        data[source] += 1
        assert max(data.values()) - min(data.values()) <= 1 or data["x2"] == 3 or data["x1"] == 4
    assert data == {"x1": 4, "x2": 3, "x3": 6}


def test_rows_of_an_lstm() -> None:
    made = schedule(zoo.lstm(), [LONG, SHORT])
    assert made is not None
    assert made.pools == [7]
    assert sum(f.drawn for f in made.families) == 3


def test_one_row_for_each_vector_if_all_is_sampled() -> None:
    made = schedule(zoo.gru(), [LONG], method="sample")
    assert made is not None
    assert sum(made.pools) == 4 + 3


def test_values_are_dropped_when_they_are_not_needed() -> None:
    """At no time there are more values of expressions than a few for a step."""
    made = schedule(zoo.lstm(), [TOKENS[0]])
    assert made is not None
    alive, most = set(), 0
    for step in made.steps:
        alive |= {form.expr for form in step.forms if made.families[form.family].drawn}
        alive |= {expr for row in step.rows for expr in row.exprs}
        most = max(most, len(alive))
        alive -= set(step.expired)
    assert not alive
    assert most <= 8


def test_memory_bounds_how_much_is_done_at_once() -> None:
    found = tables(zoo.gru(), TOKENS)
    assert found is not None
    one = found.needs.whole(2**12, found.needs.most)
    for count in (2, 5):
        made = Workspace.within(found.needs.fixed + count * one + 100, 2**12, found.needs)
        assert (made.repeats, made.points) == (count, 2**12)
    made = Workspace.within(found.needs.fixed + one, 2**12, found.needs)
    assert (made.repeats, made.points) == (1, 2**10)
    with pytest.raises(ns.NetsorError, match="needs a workspace"):
        Workspace.within(found.needs.fixed + one // 3, 2**12, found.needs)
    assert found.workspace(2**15).repeats == 2**17 // 2**15
    assert found.workspace(2**20).repeats == 1


# Axes


def test_axes_are_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    pilot, found = Tables._pilot, []

    def noted(self: Tables, *args: Any) -> PrincipalAxes:
        found.append(pilot(self, *args))
        return found[-1]

    monkeypatch.setattr(Tables, "_pilot", noted)
    ns.kernel(zoo.lstm(), points=2**8, repeats=2)([LONG, SHORT])
    (axes,) = found
    places = np.concatenate([places for _, places in axes.rotations.values()])
    assert np.array_equal(np.sort(places), np.arange(axes.dimensions))
    for turn, _ in axes.rotations.values():
        np.testing.assert_allclose(turn @ turn.T, np.eye(len(turn)), atol=1e-12)


def test_what_variables_share_comes_first() -> None:
    """With a large bias, the first dimension moves all variables of a family together."""

    rows = [np.array([[3.0]]), np.array([[2.9, 0.8]]), np.array([[3.0, 0.1, 0.9]])]
    axes = PrincipalAxes.of({0: Trail(), 1: Trail(rows, [np.eye(1)] * 3, [0, 1, 2])})
    ((turn, places),) = axes.rotations.values()
    loadings = np.array([[3.0, 0, 0], [2.9, 0.8, 0], [3.0, 0.1, 0.9]]) @ turn
    first = loadings[:, list(places).index(0)]
    assert np.all(first**2 > 0.9 * np.sum(loadings**2, axis=1))
    rest = np.delete(loadings, list(places).index(0), axis=1)
    assert abs(rest[0, 1]) < 1e-12  # the first variable depends on one more dimension only
