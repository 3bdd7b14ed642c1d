"""Sequences of different lengths are one group where they share their steps; nobody may see the padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import netsor as ns
from computations import computation, recording
from netsor import zoo
from netsor.build.joint_program import joint
from netsor.errors import LimitError
from netsor.limits import padding
from netsor.limits.padding import pad

RNG = np.random.default_rng(31)
U, W, B, V = ns.Matrix(0.9), ns.Matrix(1.3), ns.Vector(0.2, mean=0.3), ns.Matrix(1.1, rows=1)
HEAD, DEEP, BACK, OTHER = ns.Matrix(0.7), ns.Matrix(1.2), ns.Matrix(0.8), ns.Vector(0.2, mean=0.3)


def states(tokens, phi=ns.erf, weights=W):
    state, found = 0, []
    for token in tokens:
        state = phi(weights @ state + U @ token + B)
        found.append(state)
    return found


@ns.network
def last(tokens):
    return V @ states(tokens)[-1]


@ns.network
def average(tokens):
    found = states(tokens)
    return V @ (sum(found) / len(found))


@ns.network
def pooled(tokens):
    return V @ ns.mean(ns.stack(states(tokens, ns.relu)), axis=0)


@ns.network
def with_head(tokens):
    return V @ ns.relu(HEAD @ states(tokens)[-1] + OTHER)


@ns.network
def two_layers(tokens):
    state, found = 0, []
    for below in states(tokens):
        state = ns.tanh(DEEP @ state + HEAD @ below)
        found.append(state)
    return V @ found[-1], V @ found[0], V @ found[0]


@ns.network
def pairs_of_tokens(tokens):
    found = [ns.relu(HEAD @ ns.reshape(tokens[t : t + 2], (-1,))) for t in range(max(1, tokens.shape[0] - 1))]
    return V @ sum(found)


@ns.network
def normed(tokens):
    """Each state over its own size, a C-var."""
    state = 0
    for token in tokens:
        h = ns.relu(W @ state + U @ token)
        state = h / ns.sqrt(ns.mean(h * h))
    return V @ state


@ns.network
def starts_at_the_end(tokens):
    return V @ ns.erf(W @ ns.erf(U @ tokens[-1]) + U @ tokens[0])


@ns.network
def with_context(given):
    """Tokens, a vector of one size for all, and a number."""
    tokens, context, scale = given
    state = ns.erf(HEAD @ context) * scale
    for token in tokens:
        state = ns.erf(W @ state + U @ token)
    return V @ state


@ns.network
def backwards(tokens):
    return V @ states([tokens[t] for t in reversed(range(tokens.shape[0]))])[-1]


@ns.network
def both_ways(tokens):
    back = states([tokens[t] for t in reversed(range(tokens.shape[0]))], weights=BACK)
    return V @ (states(tokens)[-1] + back[-1])


@ns.network
def whole(tokens):
    return V @ ns.mean(ns.relu(U @ tokens), axis=0)


def sequences(*lengths: int) -> list:
    return [RNG.standard_normal((t, 3)) for t in lengths]


def in_context(*lengths: int) -> list:
    return [(x, RNG.standard_normal(2), float(RNG.uniform(0.5, 1))) for x in sequences(*lengths)]


MIXED = (4, 2, 5, 4, 1, 2, 6)
SHARED = {
    "all tokens": (zoo.simple_rnn(), sequences(*MIXED)),
    "last": (last, sequences(*MIXED)),
    "average": (average, sequences(*MIXED)),
    "pooled": (pooled, sequences(*MIXED)),
    "head": (with_head, sequences(8, 9, 5, 9, 7)),
    "two layers": (two_layers, sequences(*MIXED)),
    "normed": (normed, sequences(*MIXED)),
    "context": (with_context, in_context(*MIXED)),
    "repeated tokens": (last, [x[:1].repeat(len(x), 0) for x in sequences(*MIXED)]),
    "zeros": (last, [0 * x for x in sequences(3, 1, 2)]),
}
APART = {
    "backwards": (backwards, sequences(5, 6, 7)),
    "both ways": (both_ways, sequences(5, 6, 7)),
    "whole": (whole, sequences(5, 6, 7)),
    "one length": (last, sequences(4, 4)),
    "transformer": (zoo.transformer(1), sequences(2, 3)),
    "images": (zoo.cnn(1), [RNG.standard_normal((n, n, 1)) for n in (3, 4)]),
}
ANY = {
    **SHARED,
    **APART,
    "pairs": (pairs_of_tokens, sequences(3, 2, 4, 4)),
    "ends": (starts_at_the_end, sequences(3, 2, 4, 4)),
}


def plainly(net, *sets, **options):
    """The kernel with every length as a group of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(padding, "OVERHEAD", 0)
        return ns.kernel(net, **options)(*sets)


def close(found: np.ndarray, wanted: np.ndarray, part: float = 1e-13) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=part * np.abs(wanted).max())


@pytest.mark.parametrize("name", SHARED)
def test_what_shares_its_steps_is_one_group(name: str) -> None:
    net, inputs = SHARED[name]
    padded = pad(joint(net, inputs))
    assert padded is not None
    assert len(padded.joint.groups) == 1
    assert padded.joint.program.check()


@pytest.mark.parametrize("name", APART)
def test_what_does_not_stays_apart(name: str) -> None:
    net, inputs = APART[name]
    assert pad(joint(net, inputs)) is None


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("new", [padding.NEW, 1.0])
def test_values_are_those_of_groups_apart(name: str, new: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where little is shared and everything is joined all the same."""
    monkeypatch.setattr(padding, "NEW", new)
    net, inputs = ANY[name]
    K, wanted = ns.kernel(net), plainly(net, inputs)
    for _ in range(2):
        close(K(inputs), wanted)
    close(K.evaluate(inputs).value, wanted)
    close(K.diag(inputs), np.diagonal(wanted))


@pytest.mark.parametrize("name", ["all tokens", "last", "two layers", "context"])
def test_two_sets(name: str) -> None:
    net, inputs = SHARED[name]
    K = ns.kernel(net)
    for split in range(1, len(inputs)):
        sets = inputs[:split], inputs[split:]
        wanted = plainly(net, *sets)
        for _ in range(2):
            close(K(*sets), wanted)


def test_other_values_variances_and_types() -> None:
    net, inputs = SHARED["all tokens"]
    K, others = ns.kernel(net), [0.3 * x[::-1] + 0.1 for x in inputs]
    K(inputs)
    close(K(others), plainly(net, others))
    close(K(others, params={"W": 0.4}), ns.kernel(zoo.simple_rnn(var_w=0.4))(others))
    for kept in K._computations.values():
        assert kept.padded is not None
        for own in (kept, kept.padded[1]):
            assert not any(sum(array.strides) for array in own.made.data.values()), "keeps inputs"
    small = ns.kernel(net, dtype=np.float32)(inputs)
    assert small.dtype == np.float32
    close(small, K(inputs), 1e-5)


def test_small_tiles_and_several_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs = zoo.simple_rnn(), sequences(*MIXED, *MIXED, 7, 7, 7)
    wanted = plainly(net, inputs)
    close(ns.kernel(net, memory=3000)(inputs), wanted)
    monkeypatch.setattr(padding, "OVERHEAD", 20)
    padded = pad(joint(net, inputs))
    assert padded is not None
    assert 1 < len(padded.joint.groups) < len(set(map(len, inputs)))
    close(ns.kernel(net)(inputs), wanted)


def test_large_groups_stay_apart() -> None:
    """There padding costs more than it saves."""
    few, many = sequences(2, 9), [x for x in sequences(2, 9) for _ in range(200)]
    assert pad(joint(last, few)) is not None
    assert pad(joint(last, many)) is None


def test_one_computation_for_all_lengths() -> None:
    """Pairs of tokens, and not pairs of tokens of pairs of lengths."""
    inputs = sequences(*range(1, 11))
    K = ns.kernel(zoo.simple_rnn())
    assert computation(K, inputs).padded is not None
    (tiles,), (one,) = recording(K, inputs).tiles, recording(K, inputs[-1:]).tiles
    assert len(tiles.prepared.order) <= 1.5 * len(one.prepared.order)


def test_padding_that_has_no_limit_does_not_matter() -> None:
    """A state that a short sequence would reach only if it were longer."""

    @ns.network
    def net(tokens):
        first = ns.relu(U @ tokens[0])
        if tokens.shape[0] == 1:
            return V @ first
        differ = U @ (tokens[1] - tokens[0])
        return V @ (first + ns.relu(differ / ns.sqrt(ns.mean(differ * differ))))

    inputs = sequences(1, 2, 1)
    assert pad(joint(net, inputs)) is None or np.isfinite(ns.kernel(net)(inputs)).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(padding, "NEW", 1.0)
        assert pad(joint(net, inputs)) is not None
        close(ns.kernel(net)(inputs), plainly(net, inputs))
    with pytest.raises(LimitError):
        ns.kernel(net)([inputs[1][:1].repeat(2, 0), inputs[0]])


def test_what_must_be_sampled_is_sampled_as_before() -> None:
    net, inputs = zoo.lstm(), sequences(2, 1)
    options: dict[str, Any] = {"points": 64, "repeats": 4}
    close(ns.kernel(net, **options)(inputs), plainly(net, inputs, **options))
