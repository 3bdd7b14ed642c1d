"""What is sampled is decided before anything is recorded, from the program and shapes alone."""

from __future__ import annotations

import numpy as np
import pytest

import netsor as ns
from computations import computation
from limit_cases import CASES, Case
from netsor.errors import LimitError
from netsor.limits import sampled_families
from netsor.limits.on_numpy import recording
from netsor.limits.rules.setting import Setting
from netsor.limits.tape.tape import Tape

TOKENS = np.random.default_rng(0).standard_normal((2, 7, 3))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_networks_that_need_no_walk_are_found_exact_by_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of one form each: the walk, which follows every question, finds a method for all of them."""
    answers = []

    def refused(x: Setting) -> bool:
        answers.append(reads_one_form_each(x))
        return False

    reads_one_form_each = sampled_families._reads_one_form_each
    monkeypatch.setattr(sampled_families, "_reads_one_form_each", refused)
    setting = computation(ns.kernel(case.net), case.inputs).exact_setting()
    assert answers
    assert setting is not None or not any(answers)
    if case.name in ("mlp, relu", "simple_rnn", "cnn, flatten"):
        assert all(answers)
    if case.name in ("gru", "batchnorm_mlp", "cnn, max pool", "transformer, tied"):
        assert not any(answers)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_takes_no_tape(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    found = computation(ns.kernel(case.net), case.inputs)

    def refused(*_: object) -> None:
        raise AssertionError("something is recorded")

    monkeypatch.setattr(Tape, "call", refused)
    setting = found.exact_setting()
    if setting is None:
        decision = found.decision()
        assert decision.setting.sampled
        assert decision.reasons
    else:
        assert not setting.sampled


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_recording_has_what_was_decided(case: Case) -> None:
    """A recording refuses an expectation that has no method and is not sampled."""
    found = computation(ns.kernel(case.net), case.inputs)
    plan = found.plan()
    assert plan.exact == (found.exact_setting() is not None)
    if plan.sampling is not None:
        assert set(plan.sampling.families) == set(found.decision().setting.sampled)
        assert plan.sampling.reasons == found.decision().reasons


def test_one_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a network whose gates must be sampled, and of sequences of two lengths."""
    count = [0]
    original = recording._recorded

    def counted(*args: object) -> object:
        count[0] += 1
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(recording, "_recorded", counted)
    for net in (ns.zoo.simple_rnn(), ns.zoo.gru()):
        count[0] = 0
        ns.kernel(net, points=2**6, repeats=2)([TOKENS[0], TOKENS[1][:5]])
        assert count == [1]


def test_what_is_sampled_does_not_depend_on_what_was_asked_before() -> None:
    text = """
    Input g :: G(n)[2] ~ N(0, 1)
    Input h :: G(n) ~ N(0, 1)
    Input v :: G(n) ~ N(0, 1)
    y := max(g, axis=0)*relu(h)
    z := relu(h)
    c := Moment(z*z)
    Output v^T y / sqrt(n)
    """
    L = ns.limit(ns.parse(text), points=2**8)
    before = L.scalar("c")
    assert not L.plan().exact
    assert L.scalar("c") == before == pytest.approx(0.5)


def test_exact_is_refused_with_the_reason() -> None:
    with pytest.raises(LimitError, match="no exact method") as refused:
        ns.kernel(ns.zoo.gru(), method="exact")(TOKENS)
    assert "dependent variables" in str(refused.value)
