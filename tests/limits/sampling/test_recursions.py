"""Second moments of linear recursions: against written-out sums, by brute force and in networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import netsor as ns
from computations import computation
from effort import peak
from netsor import zoo
from netsor.limits.sampling import recursions
from netsor.limits.sampling.recursions import Core, CoreGroup, in_order, recursive_sums, states_shape
from netsor.limits.sampling.schedule import Schedule
from sampled_networks import FEW_NAMES, INPUTS, NAMES, NETWORKS, SETS, schedule

pytest.importorskip("numba")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recursions wherever there are any."""
    monkeypatch.setattr(recursions, "_is_worth_it", lambda *_: True)


def row(k: int) -> slice:
    return slice(int(k), int(k) + 1)


@pytest.mark.parametrize("count", [1, 7, 512, 1300])
def test_sums_by_brute_force(count: int) -> None:
    """Chains that begin late, several parts of one's own, and rows that others share."""
    rng = np.random.default_rng(count)
    repeats, rows = 3, 9
    before = np.array([-1, -1, 0, 1, -1, 3, 2, 4, 6])
    sizes = np.array([1, 2, 1, 1, 3, 2, 1, 1, 1])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    pool = rng.standard_normal((repeats, 12, count))
    sampled, factor = (
        rng.integers(12, size=starts[-1]),
        np.where(before >= 0, rng.integers(12, size=rows), -1),
    )
    factor[3] = factor[2]  # two chains with the same factor
    weights = rng.standard_normal((repeats, starts[-1], starts[-1]))
    weights = weights + weights.swapaxes(1, 2)
    cores = []  # a core for each row
    for x in range(rows):
        own, follows = sampled[starts[x] : starts[x + 1]], before[x] >= 0
        cores.append(
            Core(
                group=0,
                rows=row(x),
                parts=slice(int(starts[x]), int(starts[x + 1])),
                constants=[()] * len(own),
                sampled=[row(k) for k in own],
                atoms=[{}] * len(own),
                before=row(before[x]) if follows else None,
                factor=row(factor[x]) if follows else None,
            )
        )
    group = CoreGroup.of(0, cores)
    assert group.recursion is not None
    assert group.recursion.chain.tolist() == [0, 1, 0, 1, 2, 1, 0, 2, 0]
    states = np.full(states_shape(group, repeats, count), 7.0)  # of another run
    parts: list[np.ndarray] = []  # of each row, (repeats, all parts, points)
    for x in range(rows):
        own = np.zeros((repeats, starts[-1], count))
        own[:, starts[x] : starts[x + 1]] = pool[:, sampled[starts[x] : starts[x + 1]]]
        parts.append(own if before[x] < 0 else own + pool[:, factor[x], None] * parts[before[x]])
    wanted = np.array([[np.einsum("kpn,kpq,kqn->k", a, weights, b) for b in parts] for a in parts])
    for first, last in ((0, 2), (2, 4), (4, 5), (5, 8), (8, 9)):
        new = slice(int(starts[first]), int(starts[last]))
        core = Core(0, slice(first, last), new, [], [], [])
        found = recursive_sums(group, core, pool, weights[:, new][:, :, in_order(group, core)], states)
        size = np.abs(wanted).max()
        np.testing.assert_allclose(
            found, np.moveaxis(wanted[first:last, :last], -1, 0), rtol=0, atol=1e-12 * size
        )


OTHER_INPUTS = [case for case in INPUTS if case != "two lengths"]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("name", "case"),
    [
        *(pytest.param(*name.values, "two lengths", marks=name.marks) for name in NAMES),
        *(pytest.param(*name.values, case, marks=name.marks) for name in FEW_NAMES for case in OTHER_INPUTS),
    ],
)
def test_against_written_out_sums(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same points, so the same values but for rounding."""
    inputs = INPUTS[case]
    found = ns.kernel(NETWORKS[name], points=2**6, repeats=5).evaluate(inputs)
    monkeypatch.setattr("netsor.limits.sampling.schedule.find_recursions", lambda *_: {})
    wanted = ns.kernel(NETWORKS[name], points=2**6, repeats=5).evaluate(inputs)
    size = np.abs(wanted.value).max()
    np.testing.assert_allclose(found.value, wanted.value, rtol=0, atol=1e-10 * size)
    np.testing.assert_allclose(found.error, wanted.error, rtol=0, atol=1e-10 * size)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", ["GRU", pytest.param("several functions", marks=pytest.mark.slow)])
def test_in_little_memory(name: str) -> None:
    """What does not stay is computed again from the first stage on, and with it the recursion."""
    options: dict[str, Any] = {"points": 2**9, "repeats": 3}
    whole = ns.kernel(NETWORKS[name], **options).evaluate(SETS)
    size, memory, accepted = np.abs(whole.value).max(), 2**19, 0
    while accepted < 3:
        try:
            found = ns.kernel(NETWORKS[name], memory=memory, **options).evaluate(SETS)
        except ns.NetsorError:  # too little
            assert accepted == 0
        else:
            accepted += 1
            np.testing.assert_allclose(found.value, whole.value, rtol=0, atol=1e-12 * size)
            np.testing.assert_allclose(found.error, whole.error, rtol=0, atol=1e-12 * size)
        memory = memory * 5 // 4


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", NAMES)
def test_tangents_against_written_out_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same points, so the same values but for rounding."""
    options: dict[str, Any] = {"points": 2**7, "repeats": 2}
    recursive = ns.ntk(NETWORKS[name], **options).evaluate(SETS)
    monkeypatch.setattr("netsor.limits.sampling.schedule.find_recursions", lambda *_: {})
    written_out = ns.ntk(NETWORKS[name], **options).evaluate(SETS)
    size = np.abs(written_out.value).max()
    np.testing.assert_allclose(recursive.value, written_out.value, rtol=0, atol=1e-10 * size)
    np.testing.assert_allclose(recursive.error, written_out.error, rtol=0, atol=1e-10 * size)


@pytest.mark.parametrize("name", NAMES)
def test_all_moments_of_a_tangent_are_in_tables(name: str) -> None:
    """Also where an average over states meets a single one, which is a sum that could come apart first."""
    tangent = computation(ns.kernel(ns.tangent(NETWORKS[name]), points=2**6), SETS)
    assert not tangent.plan().exact
    repeats = tangent.sampled.repeats
    assert repeats.tables is not None
    assert repeats.variables(2**6) == repeats.tables.rows


def schedule_of(inputs: np.ndarray, **options: Any) -> Schedule:
    made = schedule(zoo.gru(), list(inputs), **options)
    assert made is not None
    return made


def test_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """For long sequences, unless there are so many that keeping all pairs of them takes more memory."""
    tokens = np.random.default_rng(0).standard_normal((30, 14, 3))
    for inputs, expected in ((tokens[:2], True), (tokens[:2, :6], False), (tokens, True)):
        assert [g.recursion is not None for g in schedule_of(inputs, points=2**6).groups] == [expected]
    for memory, expected in ((2**29, True), (2**27, False)):
        assert (schedule_of(tokens, points=2**10, memory=memory).groups[0].recursion is not None) == expected
    assert "compiled by Numba" in ns.kernel(zoo.gru(), points=2**6).evaluate(list(tokens[:2])).explain()
    monkeypatch.setattr(recursions, "is_available", lambda: False)
    assert schedule_of(tokens[:2]).groups[0].recursion is None
    assert "compiled by Numba" not in ns.kernel(zoo.gru(), points=2**6).evaluate(list(tokens[:2])).explain()


def test_the_memory_of_a_tangent() -> None:
    """A step of the tangent has many parts, all of which have weights with all parts so far."""
    tokens, allowed = np.random.default_rng(0).standard_normal((12, 11, 3)), 2**26
    K = ns.ntk(zoo.gru(), points=2**6, repeats=2, memory=allowed)
    told = K.plan(tokens).bytes
    K.evaluate(tokens)  # compiles loops
    assert peak(lambda: K.evaluate(tokens)) <= told <= allowed
