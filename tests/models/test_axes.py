"""Axes as products of factors: reshapes, common blocks, and widths that are cut."""

from __future__ import annotations

import pytest

from netsor.models.axes import (
    AxisFactor,
    CutWidth,
    WidthClass,
    common_sizes,
    finite,
    join,
    length,
    refine,
    regroup,
)
from netsor.models.scalars import ONE, WidthScale


def width(n: int) -> AxisFactor:
    return AxisFactor((n, 2 * n), WidthClass(("w", 0)))


def test_a_reshape_groups_factors():
    tokens, blocks, n = finite(6), finite(3), width(8)
    axes = regroup((tokens, (*blocks, n)), [(2, 2), (3, 3), (3, 3), (8, 16)])
    assert [length(a) for a in axes] == [(2, 2), (3, 3), (3, 3), (8, 16)]
    back = regroup(axes, [(6, 6), (24, 48)])
    assert [[f.size for f in a] for a in back] == [[(2, 2), (3, 3)], [(3, 3), (8, 16)]]


def test_a_width_that_is_cut_asks_to_be_read_again():
    with pytest.raises(CutWidth) as outer:
        regroup(((width(8),),), [(2, 2), (4, 8)])
    assert (outer.value.parts, outer.value.inner) == (2, False)
    with pytest.raises(CutWidth) as inner:
        regroup(((width(8),),), [(4, 8), (2, 2)])
    assert (inner.value.parts, inner.value.inner) == (2, True)


def test_a_reshape_that_mixes_is_refused():
    with pytest.raises(ValueError, match="mixes"):
        regroup(((width(8),), finite(3)), [(3, 3), (8, 16)])
    with pytest.raises(ValueError, match="mixes"):
        regroup((finite(3), (width(8),)), [(8, 16), (3, 3)])


def test_common_blocks():
    assert common_sizes(
        (AxisFactor((4, 4)), width(2)), (AxisFactor((2, 2)), AxisFactor((2, 2)), width(2))
    ) == [*((2, 2), (2, 2), (2, 4))]
    with pytest.raises(ValueError, match="no common blocks"):
        common_sizes(finite(6), finite(4))
    with pytest.raises(ValueError, match="lengths"):
        common_sizes(finite(2), finite(2) + finite(3))
    assert [f.size for f in refine(finite(6), [(2, 2), (3, 3)])] == [(2, 2), (3, 3)]
    assert join(finite(2) + finite(1) + finite(3)) == finite(2) + finite(3)


def test_widths_that_meet_are_one():
    a, b, c = WidthClass(("a", 0)), WidthClass(("b", 1)), WidthClass()
    a.meet(b)
    c.meet(b)
    assert a.root() is b.root() is c.root()
    assert a.root().origins == {("a", 0), ("b", 1)}


def test_scales_cancel():
    root = WidthScale(1 / 8, 1 / 16, frozenset(["w"]))
    assert (root * root.power(-1)).is_fixed
    assert root.exponent((64, 128)) == -1
    assert (root / ONE).laws == {"w"}
    assert not root.is_fixed
