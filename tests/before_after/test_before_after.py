"""The kernels of this code beside those of a77af37: equal to rounding where exact, in law where sampled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from before_after.collect import OUT_OF_TIME, Found, compute, read, write
from before_after.compare import compare, compare_all, summary
from before_after.items import Item, items

BEFORE = read(Path(__file__).with_name("before.npz"))
SEED = 1  # other points than before, so that equality in law is what is tested
QUICK = 0.15  # seconds
MANY = 20  # kernels whose root mean square says something: entries of one kernel move together
SECONDS = 300  # of processor time, at most, for one kernel


def is_quick(name: str) -> bool:
    """Kernels that took no time before; of the random programs every fifth."""
    group, _, label = name.partition("/")
    return BEFORE[name].seconds < QUICK and (group != "random" or int(label) % 5 == 0)


def check(chosen: list[Item]) -> None:
    after = {item.name: compute(item, SECONDS, seed=SEED) for item in chosen}
    found = summary(compare_all(BEFORE, after))
    assert not found.bad, "\n".join(map(str, found.bad))
    if found.counts.get("sampled", 0) >= MANY:
        assert found.ok, f"rms of difference / combined standard error: {found.rms:.2f}"


def test_every_item_has_a_number_before() -> None:
    assert [item.name for item in items()] == list(BEFORE)


@pytest.mark.parametrize("group", sorted({name.partition("/")[0] for name in BEFORE}))
def test_quick_kernels_are_as_before(group: str) -> None:
    check([item for item in items() if item.name.startswith(group + "/") and is_quick(item.name)])


@pytest.mark.slow
def test_all_kernels_are_as_before() -> None:
    check(items())


# The comparison itself

KERNEL = np.array([[2.0, 0.5], [0.5, 1.0]])


def found(
    value: np.ndarray, error: float, exact: bool = True, failure: str = "", refused: bool = False
) -> Found:
    eps = float(np.finfo(float).eps)
    return Found("x", exact, failure, refused, 0.0, eps, value, np.full(value.shape, error))


def test_exact_kernels_may_differ_by_their_errors_only() -> None:
    before = found(KERNEL, 1e-13)
    assert compare(before, found(KERNEL + 1.5e-13, 1e-13)).ok
    assert not compare(before, found(KERNEL + 1e-12, 1e-13)).ok


def test_sampled_kernels_may_differ_by_their_standard_errors() -> None:
    before = found(KERNEL, 1e-4, exact=False)
    near, far = (found(KERNEL + gap, 1e-4, exact=False) for gap in (2e-4, 2e-3))
    assert compare(before, near).ok
    assert compare(before, near).rms == pytest.approx(2 / np.sqrt(2), rel=1e-6)
    assert not compare(before, far).ok
    assert compare(before, found(KERNEL + 2e-4, 1e-13)).kind == "method changed"


def test_many_small_differences_are_seen_together() -> None:
    before, after = found(KERNEL, 1e-4, exact=False), found(KERNEL + 3e-4, 1e-4, exact=False)
    rows = [compare(before, after)] * 10
    assert all(row.ok for row in rows)
    assert not summary(rows).ok


def test_shapes_and_failures_are_compared() -> None:
    nothing = np.zeros((0, 0))
    kernel = found(KERNEL, 0.0)
    refused, crashed = (found(nothing, 0.0, False, "Error: why", kind) for kind in (True, False))
    assert not compare(kernel, found(KERNEL[:1], 0.0)).ok
    assert [compare(kernel, other).ok for other in (refused, crashed)] == [False, False]
    assert [compare(refused, other).ok for other in (kernel, refused, crashed)] == [False, True, False]
    assert [compare(crashed, other).ok for other in (kernel, refused, crashed)] == [True, True, False]
    slow = found(nothing, 0.0, False, OUT_OF_TIME)
    assert [compare(slow, other).ok for other in (kernel, slow, crashed)] == [True, True, False]


def test_files_read_back(tmp_path: Path) -> None:
    kept = [
        replace(found(KERNEL, 1e-9), name="a"),
        replace(found(np.zeros((0, 0)), 0.0), name="b", failure="E: no"),
    ]
    write(tmp_path / "x.npz", kept, "a note")
    again = read(tmp_path / "x.npz")
    for item in kept:
        np.testing.assert_array_equal(again[item.name].value, item.value)
        np.testing.assert_array_equal(again[item.name].error, item.error)
        assert (again[item.name].exact, again[item.name].failure) == (item.exact, item.failure)


def test_a_computation_that_takes_too_long_is_a_failure() -> None:
    def forever() -> None:
        while True:
            pass

    assert compute(Item("x", forever), 1).failure.startswith(OUT_OF_TIME)
