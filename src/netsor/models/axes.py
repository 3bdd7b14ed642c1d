"""Axes of a model's arrays as products of finite and infinite factors.

A model is traced at two widths. An axis of lengths (192, 384) may be one width of (192, 384), or three
blocks of a width (64, 128): stacked gates, heads, or a concatenation. A factor whose two lengths differ is a
width: its positions are coordinates of vectors, not members of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from netsor.models.scalars import Size, product

Origin = tuple[str, int]  # a parameter's name and one of its axes


class WidthClass:
    """A class of widths that must be equal (union-find).

    home     the axis of a parameter that defines this width
    origins  the axes of all parameters in the class
    """

    def __init__(self, home: Origin | None = None) -> None:
        self.parent: WidthClass | None = None
        self.home = home
        self.origins = {home} if home else set()

    def root(self) -> WidthClass:
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def meet(self, other: WidthClass) -> None:
        a, b = self.root(), other.root()
        if a is not b:
            b.parent = a
            a.origins |= b.origins


@dataclass(frozen=True)
class AxisFactor:
    """One factor of an axis.

    width  its class, if it is a width
    real   False: all values along it are equal
    rows   the rows of a readout that is not applied yet
    """

    size: Size
    width: WidthClass | None = None
    real: bool = True
    rows: bool = False

    @property
    def is_index(self) -> bool:
        """Whether a node has an index axis for this factor."""
        return self.real and not self.rows and self.width is None

    @property
    def is_vector(self) -> bool:
        """Whether this factor is the coordinate axis of vectors."""
        return self.real and self.width is not None


Axis = tuple[AxisFactor, ...]
Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class AxisLayout:
    """The layout of a parameter's axis: `outer` blocks of a width, with `inner` members per coordinate."""

    outer: int = 1
    inner: int = 1


class CutWidth(Exception):  # noqa: N818 -- no error: a width turned out to be cut, so the model is read again
    """Signals that a width is a product of a finite number of parts and a smaller width."""

    def __init__(self, width: WidthClass, parts: int, inner: bool) -> None:
        super().__init__(f"a width is cut into {parts}")
        self.width, self.parts, self.inner = width, parts, inner


def length(axis: Axis) -> Size:
    return product([f.size for f in axis])


def shape_of(axes: Axes) -> list[Size]:
    return [length(a) for a in axes]


def finite(size: int, real: bool = True) -> Axis:
    """An axis of finite length; an axis of length 1 has no factors."""
    return () if size == 1 else (AxisFactor((size, size), None, real),)


def unknown(size: Size) -> Axis:
    """An axis along which all values are equal."""
    if size == (1, 1):
        return ()
    return (AxisFactor(size, WidthClass() if size[0] != size[1] else None, real=False),)


def split(f: AxisFactor, first: Size) -> tuple[AxisFactor, AxisFactor]:
    """Split a factor into two, the first of this size; splitting a width restarts the reading (CutWidth)."""
    second = (f.size[0] // first[0], f.size[1] // first[1])
    if f.is_vector:
        assert f.width is not None
        if first[0] == first[1]:
            raise CutWidth(f.width, first[0], inner=False)
        if second[0] == second[1]:
            raise CutWidth(f.width, second[0], inner=True)
        raise ValueError("a width is cut into two widths")
    return _piece(f, first), _piece(f, second)


def _piece(f: AxisFactor, size: Size) -> AxisFactor:
    """A part of a finite factor, or of a width along which all values are equal."""
    wide = size[0] != size[1]
    return replace(f, size=size, width=(f.width or WidthClass()) if wide else None)


def divides(a: Size, b: Size) -> bool:
    return b[0] % a[0] == 0 and b[1] % a[1] == 0


def common_sizes(a: Axis, b: Axis) -> list[Size]:
    """Return the coarsest list of factor sizes that refines both axes.

    >>> common_sizes(finite(6), finite(2) + finite(3))
    [(2, 2), (3, 3)]
    """
    left, right = [f.size for f in a], [f.size for f in b]
    out: list[Size] = []
    while left and right:
        f, g = left.pop(0), right.pop(0)
        if f == g:
            out.append(f)
        elif divides(f, g):
            out.append(f)
            right.insert(0, (g[0] // f[0], g[1] // f[1]))
        elif divides(g, f):
            out.append(g)
            left.insert(0, (f[0] // g[0], f[1] // g[1]))
        else:
            raise ValueError(f"axes made of {f} and of {g} have no common blocks")
    if any(s != (1, 1) for s in left + right):
        raise ValueError(f"axes of lengths {length(a)} and {length(b)} meet")
    return out


def refine(axis: Axis, sizes: Sequence[Size]) -> Axis:
    """Refine an axis to factors of exactly these sizes."""
    todo, out = list(axis), []
    for size in sizes:
        f = todo.pop(0)
        if f.size != size:
            f, behind = split(f, size)
            todo.insert(0, behind)
        out.append(f)
    return tuple(out)


def join(axis: Iterable[AxisFactor]) -> Axis:
    """Remove factors of size 1, and merge neighbouring factors along which values are equal."""
    out: list[AxisFactor] = []
    for f in axis:
        if f.size == (1, 1):
            continue
        if out and not out[-1].real and not f.real:
            size = product([out[-1].size, f.size])
            out[-1] = replace(_piece(out[-1], size), width=out[-1].width or f.width)
        else:
            out.append(f)
    return tuple(out)


def regroup(axes: Axes, shape: Sequence[Size]) -> Axes:
    """Group the factors of `axes` into axes of other lengths: a reshape."""
    if any(0 in size for size in shape):
        return tuple(unknown(size) for size in shape)
    todo = [f for a in axes for f in a]
    out: list[Axis] = []
    for target in shape:
        group: list[AxisFactor] = []
        have: Size = (1, 1)
        while have != target:
            if not todo or target[0] % have[0] or target[1] % have[1]:
                raise ValueError("a reshape mixes finite axes with a width")
            f, need = todo.pop(0), (target[0] // have[0], target[1] // have[1])
            if not divides(f.size, need):
                if not divides(need, f.size):
                    raise ValueError("a reshape mixes finite axes with a width")
                f, behind = split(f, need)
                todo.insert(0, behind)
            group.append(f)
            have = product([have, f.size])
        out.append(join(group))
    if any(f.size != (1, 1) for f in todo):
        raise ValueError("a reshape mixes finite axes with a width")
    return tuple(out)
