"""Which inputs are nearly equal: found without looking at all pairs."""

from __future__ import annotations

from functools import partial

import numpy as np

import netsor as ns
from effort import calls, peak
from netsor import zoo
from netsor.build.network import joint
from netsor.limits.near.search import Place, close_places

Pairs = set[tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]]


def places(net: ns.Network, inputs: list[np.ndarray]) -> Pairs:
    """Pairs of sets of (output, member)."""
    made = joint(net, inputs)

    def plain(some: list[Place]) -> tuple[tuple[int, int], ...]:
        return tuple((p.output, p.member) for p in some)

    found = close_places(made.program, made.groups, made.data)
    return {tuple(sorted((plain(a), plain(b)))) for a, b in found}  # type: ignore[misc]


def test_equal_and_near() -> None:
    x = np.random.default_rng(0).standard_normal((6, 4))
    x[3], x[5], x[4] = x[0], x[0], x[1] * (1 + 1e-9)
    equal, near = ((0, 0), (0, 3), (0, 5)), (((0, 1),), ((0, 4),))
    assert places(zoo.mlp(1), list(x)) == {(equal, equal), near}


def test_distant_inputs_have_no_pairs() -> None:
    x = np.random.default_rng(1).standard_normal((300, 5))
    assert places(zoo.mlp(2), list(x)) == set()
    assert places(zoo.mlp(2), [x[0], x[0] * (1 + 1e-3)]) == set()


def test_all_near_pairs_of_a_cluster() -> None:
    x = 1 + 1e-6 * np.random.default_rng(2).standard_normal((40, 7))
    assert len(places(zoo.mlp(1), list(x))) == 40 * 39 // 2


def test_sentences_by_what_each_output_has_read() -> None:
    """Groups of other lengths, too: outputs that have read equal tokens are one set."""
    sentence, other = np.random.default_rng(3).standard_normal((2, 4, 3))
    longer = np.concatenate([sentence[:2], other])
    found = places(zoo.simple_rnn(), [sentence, longer])
    assert found == {(((t, 0), (4 + t, 0)),) * 2 for t in range(2)}


def test_many_inputs_are_little_work() -> None:
    """Of 20,000 inputs 2 * 10^8 pairs are not looked at, whether all are far, near or equal."""
    far = np.random.default_rng(4).standard_normal((20_000, 10))
    for x in (far, 1e3 + 1e-2 * far, np.ones((20_000, 10))):
        made = joint(zoo.mlp(1), list(x))
        search = partial(close_places, made.program, made.groups, made.data)
        assert calls(search) < 100 * len(x)
        assert peak(search) < 2000 * len(x)
