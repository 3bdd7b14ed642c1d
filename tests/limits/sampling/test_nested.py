"""Recursions whose new parts hold others: against written-out sums, by brute force and in tangents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import netsor as ns
from computations import computation
from netsor import zoo
from netsor.limits.sampling import chains, scheduling
from netsor.limits.sampling.nested import nested_sums, nested_weights
from netsor.limits.sampling.recursions import states_shape
from netsor.limits.sampling.schedule import Core, Group, Inner, Recursion
from sampled_networks import INPUTS, NAMES, NETWORKS, SETS, last, schedule, sequence

pytest.importorskip("numba")

TANGENTS = {**NETWORKS, "gates of a leaky state": sequence(lambda s, x: leaky(s, x), last)}
Z, C = ns.RNNCell(ns.erf_gate, name="z"), ns.RNNCell(ns.erf, name="c")


def leaky(state: Any, token: Any) -> Any:
    """The gate multiplies the state alone, so that a step of its share is a held core and nothing else."""
    return Z(state, token) * state + C(state, token)


@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize("count", [1, 7, 300])
def test_sums_by_brute_force(count: int, constants: bool) -> None:
    """Chains that begin late, several parts, rows that hold nothing, and some that begin to."""
    rng = np.random.default_rng(count)
    repeats, rows, pool_size, kinds = 2, 9, 12, 5
    before = np.array([-1, -1, 0, 1, -1, 3, 2, 4, 6])
    goes_on = np.array([0, 0, 0, 0, 0, 1, 1, 0, 0], bool)  # what is held follows what the row before holds
    held_parts, plain_parts = np.array([0, 0, 1, 2, 0, 1, 2, 1, 0]), np.array([1, 2, 1, 0, 3, 2, 1, 1, 1])
    holds_at = held_parts > 0
    starts = np.concatenate([[0], np.cumsum(plain_parts + holds_at)])
    within = np.concatenate([[0], np.cumsum(held_parts)])
    holds = np.zeros(starts[-1], bool)
    holds[starts[:-1][holds_at]] = True
    draw = rng.integers
    factor = np.where(before >= 0, draw(pool_size, size=rows), -1)
    scale = np.where(goes_on, draw(pool_size, size=rows), -1)
    pool = rng.standard_normal((repeats, pool_size, count))
    pairs = [a + a.swapaxes(1, 2) for a in rng.standard_normal((2, repeats, kinds, kinds))]
    own = rng.standard_normal(starts[-1]) if constants else None
    inner_own = rng.standard_normal(within[-1]) if constants else None
    inner = Inner(
        sampled=draw(pool_size, size=within[-1]),
        atoms={1: draw(kinds, size=within[-1])},
        starts=within[:-1],
        families=frozenset({0}),
        factor=scale,
        holds=holds,
    )
    group = Group(
        pool=0,
        size=rows,
        sampled=draw(pool_size, size=starts[-1]),
        atoms={0: draw(kinds, size=starts[-1]), 1: draw(kinds, size=starts[-1])},
        starts=starts[:-1],
        recursion=Recursion.of(before, factor),
        inner=inner,
    )
    one, two = (np.ones(n) if c is None else c for n, c in ((starts[-1], own), (within[-1], inner_own)))
    ks, bs = [], []  # (repeats, f, points), and (repeats, e, f, points)
    for x in range(rows):
        k = np.zeros((repeats, kinds, count))
        if goes_on[x]:
            k += pool[:, scale[x], None] * ks[before[x]]
        for q in range(within[x], within[x + 1]):
            k[:, inner.atoms[1][q]] += two[q] * pool[:, inner.sampled[q]]
        b = np.zeros((repeats, kinds, kinds, count))
        if before[x] >= 0:
            b += pool[:, factor[x], None, None] * bs[before[x]]
        for p in range(starts[x], starts[x + 1]):
            e, f, value = group.atoms[0][p], group.atoms[1][p], one[p] * pool[:, group.sampled[p]]
            if holds[p]:
                b[:, e] += value[:, None] * k
            else:
                b[:, e, f] += value
        ks.append(k)
        bs.append(b)
    wanted = np.array(
        [[np.einsum("kefn,keg,kfh,kghn->k", a, *pairs, b, optimize=True) for b in bs] for a in bs]
    )
    states = np.full(states_shape(group, repeats, count), np.nan)
    for first, stop in ((0, 2), (2, 4), (4, 5), (5, 8), (8, 9)):
        new, held = (slice(int(s[first]), int(s[stop])) for s in (starts, within))
        core = Core(0, slice(first, stop), new, 0, False, held)
        weights = nested_weights(group, core, (own, inner_own), pairs)
        found = nested_sums(group, core, pool, weights, states)
        expected = np.moveaxis(wanted[first:stop, :stop], -1, 0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize("case", ["two lengths", "a single token", "zeros"])
@pytest.mark.parametrize("name", [*NAMES, "gates of a leaky state"])
def test_against_written_out_sums(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same points, so the same values but for rounding."""
    inputs, options = INPUTS[case], {"points": 2**8, "repeats": 2}
    with monkeypatch.context() as always:
        always.setattr(chains, "_is_worth_it", lambda *_: True)
        always.setattr(chains, "_is_less", lambda *_: True)
        found = ns.ntk(TANGENTS[name], **options).evaluate(inputs)
    monkeypatch.setattr(scheduling, "find_recursions", lambda *_: {})
    wanted = ns.ntk(TANGENTS[name], **options).evaluate(inputs)
    size = np.abs(wanted.value).max()
    np.testing.assert_allclose(found.value, wanted.value, rtol=0, atol=1e-10 * size)
    np.testing.assert_allclose(found.error, wanted.error, rtol=0, atol=1e-10 * size)


class Forgetful(set):
    """A set that has nothing."""

    def __contains__(self, _: object) -> bool:
        return False


def test_what_is_held_may_begin_anew_at_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the row before holds nothing: all parts of a held core are its own then."""
    options = {"points": 2**7, "repeats": 2}
    monkeypatch.setattr(chains, "_is_worth_it", lambda *_: True)
    monkeypatch.setattr(chains, "_is_less", lambda *_: True)
    wanted = ns.ntk(NETWORKS["GRU"], **options)(SETS)
    made, begun = scheduling._Scheduler.__init__, []

    def forget(own: Any, *given: Any) -> None:
        made(own, *given)
        own.holding = Forgetful()
        begun.append(own.holding)

    monkeypatch.setattr(scheduling._Scheduler, "__init__", forget)
    found = ns.ntk(NETWORKS["GRU"], **options)(SETS)
    assert any(map(len, begun)), "nothing is held"
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["GRU", "two GRU layers", "gates of a leaky state"])
def test_the_update_gate_holds_the_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a recursion has as many parts at the end as at the beginning, not one for each token.

    But for vectors that no other one follows, as a sum that is read out.
    """
    tokens = np.random.default_rng(0).standard_normal((3, 20, 3))
    monkeypatch.setattr(chains, "_is_worth_it", lambda *_: True)
    made = schedule(ns.tangent(TANGENTS[name]), list(tokens), points=2**6)
    assert made is not None
    assert any(group.inner for group in made.groups)
    for group in (group for group in made.groups if group.size > len(tokens)):
        assert group.recursion is not None
        assert len(group.sampled) <= 5 * group.size


def test_work_grows_like_the_square_of_the_tokens() -> None:
    def work(count: int) -> int:
        tokens = np.random.default_rng(0).standard_normal((2, count, 3))
        made = schedule(ns.tangent(zoo.gru()), list(tokens), points=2**6)
        assert made is not None
        return made.work

    assert work(48) <= 4.5 * work(24)


@pytest.mark.parametrize("name", NAMES)
def test_all_moments_of_a_tangent_are_in_tables(name: str) -> None:
    """Also where an average over states meets a single one, which is a sum that could come apart first."""
    made = computation(ns.kernel(ns.tangent(NETWORKS[name]), points=2**6), SETS)
    assert not made.plan().exact
    repeats = made.sampled.repeats
    assert repeats.tables is not None
    assert repeats.variables(2**6) == repeats.tables.rows
