"""A plan made without numbers names the same expectations and methods as the computation does afterwards."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

import netsor as ns
from before_after.collect import read
from before_after.items import PROGRAMS
from composed_case import EVERYTHING
from limit_cases import CASES, Case, by_name
from netsor import zoo
from property.strategies import USER

BEFORE = read(PROGRAMS.with_name("before.npz"))
COUNT, SECONDS = 50, 0.2
TEXTS = {f"random/{k:03}": text for k, text in enumerate(json.loads(gzip.decompress(PROGRAMS.read_bytes())))}
QUICK = [name for name in TEXTS if BEFORE[name].seconds < SECONDS]
RANDOM = {name: TEXTS[name] for name in QUICK[:: len(QUICK) // COUNT]}


def methods(plan: Any) -> list[tuple[str, str]]:
    return sorted((row.what, row.method) for row in plan.expectations)


def assert_same(planned: Any, done: Any) -> None:
    assert methods(planned) == methods(done)
    assert planned.exact == done.exact
    if planned.sampling is not None:
        assert planned.sampling.families == done.sampling.families
        assert planned.sampling.reasons == done.sampling.reasons
    assert {(row.what, row.method): row.count for row in planned.expectations} == {
        (row.what, row.method): row.count for row in done.expectations
    }
    assert all(row.count > 0 for row in done.expectations)


@pytest.mark.parametrize("case", [*CASES, EVERYTHING], ids=lambda case: case.name)
def test_the_plan_of_a_network_says_what_is_done(case: Case) -> None:
    """Each row of `str(plan)` stands in `explain()`, which adds the errors."""
    K = ns.kernel(case.net)
    planned, done = K.plan(case.inputs), K.evaluate(case.inputs)
    assert_same(planned, done.plan)
    for row in planned.expectations:
        assert row.what in str(planned)
        assert row.method in str(planned)
        assert f"{row.what}: {row.method}" in done.explain()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_plan_between_two_sets_says_what_is_done(case: Case) -> None:
    K = ns.kernel(case.net)
    assert_same(K.plan(case.inputs[:1], case.inputs), K.evaluate(case.inputs[:1], case.inputs).plan)


@pytest.mark.parametrize("method", ["exact", "sample"])
@pytest.mark.parametrize("name", ["mlp, relu", "simple_rnn", "cnn, gap", "transformer, tied"])
def test_the_plan_follows_the_method(name: str, method: str) -> None:
    case = by_name(name)
    K = ns.kernel(case.net, method=method)
    planned = K.plan(case.inputs)
    assert planned.exact == (method == "exact")
    assert_same(planned, K.evaluate(case.inputs).plan)


@pytest.mark.parametrize("text", RANDOM.values(), ids=RANDOM)
def test_the_plan_of_a_program_says_what_is_done(text: str) -> None:
    limit = ns.limit(ns.parse(text, USER), points=2**8)
    assert_same(limit.plan(), limit.kernel().plan)


def test_a_plan_computes_no_kernel() -> None:
    """The kernel would have 10^10 entries, 80 GB."""
    plan = ns.kernel(ns.zoo.mlp(depth=3)).plan(np.ones((100_000, 3)))
    assert plan.exact
    assert plan.expectations


def test_what_a_plan_counts() -> None:
    """Work grows with the pairs of inputs and with the points; sampled variables are those of all inputs."""
    x = np.random.default_rng(0).standard_normal((40, 3))
    few, many = (ns.kernel(zoo.mlp(2)).plan(x[:n]) for n in (20, 40))
    assert 3 < many.work / few.work < 5
    assert many.shape == (40, 40)
    tokens = np.random.default_rng(0).standard_normal((3, 4, 2))
    plans = [ns.kernel(zoo.gru(), points=points, repeats=2).plan(tokens) for points in (2**8, 2**10)]
    assert 3.5 < plans[1].work / plans[0].work <= 4
    assert plans[0].sampling is not None
    assert plans[0].sampling.rows == 3 * 4  # the update gate of each token
    assert plans[1].bytes > plans[0].bytes
    drawn = ns.kernel(zoo.cnn(2, kernel=2, pool="max"), points=2**8).plan(np.ones((2, 4, 4, 1)))
    assert drawn.sampling is not None
    assert drawn.sampling.rows == 2 * 16  # the pixels before the pool
