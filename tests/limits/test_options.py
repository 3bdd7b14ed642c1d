"""Options that make no sense are refused at once, by an error that names the right one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netsor as ns
from each_case import each_case
from netsor.limits.limit import Limit

NET = ns.zoo.mlp(depth=1)
PROGRAM = ns.parse(
    "Input g :: G(n) ~ N(0, 1)\nInput v :: G(n) ~ N(0, 1)\nx := relu(g)\nOutput v^T x / sqrt(n)\n"
)
CALLS: dict[str, Callable[..., Any]] = {
    "kernel": lambda **options: ns.kernel(NET, **options),
    "limit": lambda **options: ns.limit(PROGRAM, **options),
    "Options": lambda **options: ns.Options(**options),
}

# what is given, and what the message must contain: the option as the user wrote it, and what would do
BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"dtype": int}, ["dtype", "float64"]),
    ({"dtype": bool}, ["dtype", "float64"]),
    ({"dtype": complex}, ["dtype", "float64"]),
    ({"dtype": np.float16}, ["dtype", "float32"]),
    ({"dtype": "double precision"}, ["dtype", "double precision"]),
    ({"seed": "a"}, ["seed", "'a'"]),
    ({"seed": -1}, ["seed", "-1"]),
    ({"seed": 1.5}, ["seed", "1.5"]),
    ({"seed": None}, ["seed", "None"]),
    ({"points": 1000}, ["points", "1000", "1024", "power of two"]),
    ({"points": 0}, ["points", "0"]),
    ({"points": -4}, ["points", "-4"]),
    ({"points": 2.0**10}, ["points", "1024.0"]),
    ({"points": True}, ["points", "True"]),
    ({"points": "many"}, ["points", "'many'"]),
    ({"max_points": -1}, ["max_points", "-1"]),
    ({"max_points": 0}, ["max_points", "0"]),
    ({"max_points": "all"}, ["max_points", "'all'"]),
    ({"max_points": None}, ["max_points", "None"]),
    ({"repeats": 1}, ["repeats", "2"]),
    ({"repeats": 16.0}, ["repeats", "16.0"]),
    ({"repeats": "x"}, ["repeats", "'x'"]),
    ({"tol": "x"}, ["tol", "'x'"]),
    ({"tol": 0.0}, ["tol", "0.0"]),
    ({"tol": -1e-3}, ["tol", "-0.001"]),
    ({"tol": float("nan")}, ["tol", "nan"]),
    ({"tol": float("inf")}, ["tol", "inf"]),
    ({"memory": "1GB"}, ["memory", "'1GB'", "2**30"]),
    ({"memory": 0}, ["memory", "0"]),
    ({"memory": -5}, ["memory", "-5"]),
    ({"memory": float("nan")}, ["memory", "nan"]),
    ({"progress": "yes"}, ["progress", "'yes'"]),
    ({"method": "exakt"}, ["method", "'exakt'", "exact"]),
    ({"method": None}, ["method", "None", "exact"]),
    ({"method": ["exact"]}, ["method", "exact"]),
    # options that contradict
    ({"points": 2**12, "max_points": 2**10}, ["points", "max_points", "4096", "1024"]),
    ({"method": "exact", "points": 2**10}, ["method", "exact", "points"]),
    ({"method": "exact", "repeats": 32}, ["method", "exact", "repeats"]),
    ({"method": "exact", "max_points": 2**12}, ["method", "exact", "max_points"]),
]

# a name that does not exist, and the one that was meant
MISSPELT = {
    "tols": "tol",
    "tolerance": "tol",
    "Points": "points",
    "n_points": "points",
    "maxpoints": "max_points",
    "repeat": "repeats",
    "methods": "method",
    "data_type": "dtype",
    "seeds": "seed",
    "memroy": "memory",
}

GOOD: list[dict[str, Any]] = [
    {},
    {"dtype": float},
    {"dtype": "float32"},
    {"dtype": np.dtype(np.float64)},
    {"seed": np.int64(7)},
    {"points": 1},
    {"points": np.int64(1024)},
    {"points": 2**18},
    {"points": 2**20, "max_points": 2**20},
    {"repeats": 2},
    {"tol": 1e-3},
    {"tol": np.float64(1e-3)},
    {"tol": 1},
    {"memory": 2**30},
    {"memory": 1e9},
    {"progress": None},
    {"progress": False},
    {"method": "exact"},
    {"method": "exact", "tol": 1e-6},
    {"method": "exact", "seed": 3},
    {"method": "sample", "points": 2, "repeats": 3, "seed": 1},
]


def label(value: Any) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in value.items()) if isinstance(value, dict) else ""


@each_case("call", CALLS)
@each_case(("options", "words"), BAD, ids=label)
def test_bad_options_are_refused(call: str, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ns.NetsorError) as caught:
        CALLS[call](**options)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert message.count("\n"), "no remedy"


@each_case("call", ["kernel", "limit"])
@each_case(("given", "meant"), MISSPELT.items())
def test_an_unknown_option_names_the_one_that_was_meant(call: str, given: str, meant: str) -> None:
    with pytest.raises(ns.NetsorError) as caught:
        CALLS[call](**{given: 1})
    message = str(caught.value)
    assert f"`{given}`" in message
    assert f"`{meant}`" in message


@each_case("call", CALLS)
@each_case("options", GOOD, ids=label)
def test_good_options_are_taken(call: str, options: dict[str, Any]) -> None:
    """What is given is what is held, and the other options have their defaults."""
    taken = CALLS[call](**options)
    match taken:
        case ns.Options():
            held = taken
        case Limit():
            held = taken.computation.options
        case _:
            held = taken.options
    for name, default in vars(ns.Options()).items():
        given, value = options.get(name, default), getattr(held, name)
        assert np.dtype(value) == np.dtype(given) if name == "dtype" else value == given, name


def test_options_are_explicit_keywords() -> None:
    """So that an editor completes them."""
    from dataclasses import fields
    from inspect import Parameter, signature

    names = [field.name for field in fields(ns.Options)]
    assert names == [
        "method",
        "tol",
        "seed",
        "dtype",
        "points",
        "repeats",
        "max_points",
        "progress",
        "memory",
        "confirm",
    ]
    for function in (ns.kernel, ns.limit):
        found = signature(function).parameters
        assert [name for name in found if name in names] == names
        assert all(found[name].kind is Parameter.KEYWORD_ONLY for name in names)
        assert all(found[name].default == getattr(ns.Options(), name) for name in names)


def test_a_kernel_has_its_precision() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    for dtype in (np.float32, "float64", float):
        assert ns.kernel(NET, dtype=dtype)(x).dtype == np.dtype(dtype)
    np.testing.assert_allclose(ns.kernel(NET, dtype="float32")(x), ns.kernel(NET)(x), rtol=1e-5)
