"""What a network may depend on: its input and its parameters. Everything else is right, or refused."""

import functools
import random
from collections.abc import Callable

import numpy as np
import pytest

import netsor as ns

U, W, b, v = ns.Matrix(), ns.Matrix(0.5), ns.Vector(0.25), ns.Matrix(rows=1)
GENERATOR = np.random.default_rng(0)
COUNTER = [0]
SEQUENCES = np.random.default_rng(1).standard_normal((2, 4, 3))
# Inputs of one shape share a trace; of two shapes, or read by value, they do not.
GROUPINGS = {"one shape": list(SEQUENCES), "two shapes": [SEQUENCES[0], SEQUENCES[1][:3]]}


def seen_in_a_list(tokens):
    seen, state = [], 0
    for token in tokens:
        state = ns.erf(W @ state + U @ token) if token not in seen else state
        seen.append(token)
    return v @ state


def seen_in_a_set(tokens):
    seen, state = set(), 0
    for token in tokens:
        state = ns.erf(W @ state + U @ token) if token not in seen else state
        seen.add(token)
    return v @ state


def counted(tokens):
    COUNTER[0] += 1
    return v @ (COUNTER[0] * ns.relu(U @ tokens[0]))


KEPT: dict = {}


def stored(tokens):
    return v @ KEPT.setdefault("h", ns.relu(U @ tokens[0]))


REFUSED: dict[str, tuple[Callable, str]] = {
    "a list of tokens": (seen_in_a_list, "cannot be compared"),
    "a set of tokens": (seen_in_a_set, "looked up"),
    "a coin": (lambda x: v @ (U @ x if random.random() < 0.5 else W @ (U @ x)), "random numbers"),
    "a coin of NumPy": (lambda x: v @ (U @ x if np.random.rand() < 0.5 else W @ (U @ x)), "random numbers"),
    "a generator": (lambda x: v @ (GENERATOR.random() * ns.relu(U @ x)), "random numbers"),
    "a new generator": (lambda x: v @ (np.random.default_rng().random() * (U @ x)), "read again"),
    "a counter": (counted, "read again"),
    "a stored value": (stored, "another run"),
    "a matrix inside": (lambda x: v @ ns.relu(ns.Matrix() @ ns.relu(U @ x)), "Matrix is made inside"),
    "a layer inside": (lambda x: v @ ns.relu(ns.Dense()(U @ x)), "made inside"),
    "a layer inside, by value": (
        lambda x: v @ ns.relu(ns.Dense()(U @ (x / np.linalg.norm(x)))),
        "made inside",
    ),
    "a vector inside": (lambda x: v @ ns.relu(U @ x + ns.Vector()), "Vector is made inside"),
    "a bias inside": (lambda x: v @ ns.relu(U @ x) + ns.Vector(), "Vector is made inside"),
    "a readout inside": (lambda x: ns.Matrix(rows=1) @ ns.relu(U @ x), "Matrix is made inside"),
    "a short mask": (lambda x: v @ (U @ x)[[True, False]], "mask"),
    "two lists": (lambda x: v @ ns.stack([U @ x, U @ x])[[0, 1], [0, 1]], "lists"),
    "an integer of data": (lambda x: v @ (U @ x)[int(x[0, 0])], "not a number"),
}


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_trace_does_not_see_is_refused(name: str, grouping: str) -> None:
    fn, message = REFUSED[name]
    KEPT.clear()
    for read in (ns.kernel(ns.network(fn)), lambda x: ns.simulate(ns.network(fn), x, 4)):
        with pytest.raises(ns.NetsorError, match=message):
            read(GROUPINGS[grouping])


def test_layers_made_outside_are_shared_by_every_grouping() -> None:
    """Two equal inputs have one value, however they are grouped."""
    dense = ns.Dense()

    def by_value(x):
        return v @ ns.relu(dense(ns.relu(U @ (x / np.linalg.norm(x)))))

    x = SEQUENCES[0, 0]
    K = ns.kernel(ns.network(by_value))([x, x])
    assert pytest.approx(np.full((2, 2), K[0, 0])) == K


@pytest.mark.parametrize("mask", [[True, False, True, False], np.array([True, False, True, False])])
def test_truth_values_are_a_mask(mask) -> None:
    masked = ns.network(lambda x: (v @ (U @ x)[mask], v @ (U @ x[mask])))
    chosen = ns.network(lambda x: (v @ (U @ x)[[0, 2]], v @ (U @ x[[0, 2]])))
    assert np.array_equal(
        ns.simulate(masked, SEQUENCES, 4, seed=0), ns.simulate(chosen, SEQUENCES, 4, seed=0)
    )


def test_lists_along_any_axis() -> None:
    pairs = ns.network(lambda x: v @ ns.stack([U @ x, 2 * (U @ x)])[:, [0, 0, 1]])
    plain = ns.simulate(ns.network(lambda x: v @ (U @ x)), SEQUENCES[:1], 4, seed=0)[0]
    expected = np.concatenate([plain[[0, 0, 1]], 2 * plain[[0, 0, 1]]])
    assert ns.simulate(pairs, SEQUENCES[:1], 4, seed=0)[0] == pytest.approx(expected)


def test_aligned_matrices_on_data() -> None:
    """Matrix i meets data i: independent outputs of variance |x_i|^2 / m."""
    block, x = ns.Matrix(index=(4,)), SEQUENCES[0]
    K = ns.kernel(ns.network(lambda x: v @ block.times(x, aligned=1)))([x])
    assert pytest.approx(np.diag((x**2).sum(1) / 3)) == K
    with pytest.raises(ns.NetsorError, match="aligned=2"):
        ns.program(ns.network(lambda x: v @ block.times(x, aligned=2)), x)


# Parameters


def helper(x):
    return ns.relu(W @ x + b)


def helper_of_helper(x):
    def inner(y):
        return helper(y)

    return inner(x)


class Block:
    def __init__(self) -> None:
        self.matrix = ns.Matrix(2.0)

    def __call__(self, x):
        return self.step(self.matrix @ x)

    def step(self, x):
        return helper(x)


class Slotted:
    __slots__ = ("matrix",)

    def __init__(self) -> None:
        self.matrix = ns.Matrix(2.0)

    def run(self, x):
        return helper(self.matrix @ x)


def through_default(x, layer=helper):
    return layer(x)


BLOCK, SLOTTED = Block(), Slotted()
USERS: dict[str, tuple[Callable, set[str]]] = {
    "inline": (lambda x: v @ ns.relu(W @ (U @ x) + b), {"U", "W", "b", "v"}),
    "helper": (lambda x: v @ helper(U @ x), {"U", "W", "b", "v"}),
    "helper of a helper": (lambda x: v @ helper_of_helper(U @ x), {"U", "W", "b", "v"}),
    "object": (lambda x: v @ BLOCK(U @ x), {"U", "W", "b", "v", "BLOCK_matrix"}),
    "method": (lambda x: v @ SLOTTED.run(U @ x), {"U", "W", "b", "v", "SLOTTED_matrix"}),
    "partial": (functools.partial(lambda layer, x: v @ layer(U @ x), helper), {"U", "W", "b", "v"}),
    "default": (lambda x: v @ through_default(U @ x), {"U", "W", "b", "v"}),
    "dictionary": (lambda x, layers={"first": helper}: v @ layers["first"](U @ x), {"U", "W", "b", "v"}),
}


@pytest.mark.parametrize("name", USERS)
def test_every_parameter_is_seen(name: str) -> None:
    fn, expected = USERS[name]
    x = SEQUENCES[0, 0]
    net = ns.network(fn)
    assert set(net.parameters().values()) >= expected
    assert set(net.parameters(x).values()) == expected
    program = ns.program(net, x)
    assert {s.name for s in program.inputs if s.name in expected} == expected
    assert ns.kernel(net).params.keys() >= expected


def test_a_parameter_that_only_the_trace_finds() -> None:
    made = iter([ns.Matrix(3.0)] * 100)
    net = ns.network(lambda x: v @ ns.relu(next(made) @ x))
    assert set(net.parameters(SEQUENCES[0, 0]).values()) == {"v", "W1"}
    assert set(net.parameters().values()) == {"v", "W1"}
    assert "Input W1 ::" in ns.program(net, SEQUENCES[0, 0]).show()


def test_the_state_of_a_network_changes_with_what_it_mentions() -> None:
    scale = np.array([1.0, 2.0])
    net = ns.network(lambda x: v @ ns.relu(scale * (U @ x)))
    before = net.state()
    assert net.state() == before
    scale[0] = 5.0
    assert net.state() != before


def test_the_state_of_a_network_changes_with_any_number_of_a_mean() -> None:
    b = ns.Vector(0.1, mean=np.zeros(3000), index=(3000,))
    net = ns.network(lambda x: v @ ns.relu(U @ x + b))
    before = net.state()
    assert net.state() == before
    b.mean[1500] = 1.0
    assert net.state() != before


# Functions of the user's own


def zero_below(x):
    x[x < 0] = 0
    return x


def test_a_function_may_change_its_argument() -> None:
    ours, plain = (
        ns.network(lambda x, phi=phi: v @ (phi(U @ x) + ns.tanh(U @ x)))
        for phi in (functools.partial(ns.nonlin, zero_below), ns.relu)
    )
    x = SEQUENCES[0]
    assert np.allclose(ns.simulate(ours, x, 8, 3, seed=0), ns.simulate(plain, x, 8, 3, seed=0))
    mixed = ns.network(lambda x: v @ (ns.nonlin(zero_below, U @ x, axes=0) + ns.tanh(U @ x)))
    both = ns.network(lambda x: v @ (ns.relu(U @ x) + ns.tanh(U @ x)))
    assert np.allclose(ns.simulate(mixed, [x], 8, 3, seed=0), ns.simulate(both, [x], 8, 3, seed=0))


CALLS = [0]


def sometimes(x):
    CALLS[0] += 1
    return np.tanh(x) + (CALLS[0] % 100 == 0)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x / len(x), "coordinatewise"),
        (lambda x: x - x.mean(), "coordinatewise"),
        (lambda x: x * (x.size > 1000), "coordinatewise"),
        (lambda x: np.sort(x, axis=-1), "coordinatewise"),
        (lambda x: np.cumsum(x, axis=0), "coordinatewise"),
        (lambda x: x * (np.abs(x).max() < 20), "coordinatewise"),
        (lambda x: x + (random.random() < 0.01), "called again|coordinatewise"),
        (sometimes, "called again|coordinatewise"),
        (lambda x: np.float32(x), "float32"),
        (lambda x: x + 1j, "complex"),
        (lambda x: "a", "not real numbers"),
        (lambda x: x[:1], "turns shape"),
    ],
)
def test_functions_that_are_not_coordinatewise(fn: Callable, message: str) -> None:
    with pytest.raises(ns.NetsorError, match=message):
        ns.program(ns.network(lambda x: v @ ns.nonlin(fn, U @ x)), SEQUENCES[0])


@pytest.mark.parametrize("fn", [lambda x: x > 0, lambda x: (x > 0).astype(np.int8)])
def test_truth_values_and_integers_are_real_numbers(fn: Callable) -> None:
    own, plain = (
        ns.network(lambda x, phi=phi: v @ phi(U @ x)) for phi in (functools.partial(ns.nonlin, fn), ns.step)
    )
    x = SEQUENCES[0]
    assert np.array_equal(ns.simulate(own, x, 8, seed=0), ns.simulate(plain, x, 8, seed=0))


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other):
        return self is other

    def __call__(self, x):
        return np.tanh(x)


def test_a_function_need_not_be_hashable() -> None:
    phi = Unhashable()
    net = ns.network(lambda x: v @ ns.nonlin(phi, U @ x))
    plain = ns.network(lambda x: v @ ns.tanh(U @ x))
    x = SEQUENCES[0]
    assert np.allclose(ns.simulate(net, x, 8, seed=0), ns.simulate(plain, x, 8, seed=0))
