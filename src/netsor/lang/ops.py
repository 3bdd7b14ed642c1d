"""Operations: what may stand at the node of an expression tree.

`Function`  acts coordinatewise and broadcasts over index axes (`relu`, `mul`, a user's function).
`IndexMap`  is linear on the index axes (`sum`, `window`, `stack`, indexing).
`Mixing`    is a nonlinear function of several members of a block (`max`, `softmax`, `batchnorm`).

Each knows its shape, its value on blocks, and the kind of its result:
K (known constant), C (scalar), G (Gaussian vector) or H (image of G-vars).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from netsor.lang.blocks import Block, align, broadcast_index
from netsor.lang.expr import Attr

__all__ = ["Function", "IndexMap", "Kind", "Mixing", "Op"]

Kind = str
Kinds = tuple[Kind, ...]
Index = tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """An operation; subclasses say how it acts."""

    name: str

    def shape(self, *shapes: Index, **attrs: Attr) -> Index:
        """Index shape of the result; raises ValueError where the arguments do not fit."""
        raise NotImplementedError

    def run(self, *blocks: Block, **attrs: Attr) -> Block:
        """Value of the operation on blocks."""
        raise NotImplementedError

    def is_linear(self, kinds: Kinds) -> bool:
        """Whether the result is a linear combination of the vectors among the arguments."""
        return False

    def kind(self, kinds: Kinds) -> Kind:
        """Kind of the result for arguments of these kinds."""
        if set(kinds) <= {"K"}:
            return "K"
        if set(kinds) <= {"K", "C"}:
            return "C"
        return "G" if "H" not in kinds and self.is_linear(kinds) else "H"


@dataclass(frozen=True, repr=False)
class Function(Op):
    """A function of real numbers, applied coordinatewise.

    `fn(*arrays, **attrs)` takes the vector arguments, then `params` scalar parameters (Nonlin+).
    `slots` are the patterns of kinds for which it is linear, e.g. ("K", "G") for a product.
    """

    fn: Callable[..., Any]
    arity: int = 1
    params: int = 0
    defaults: Mapping[str, float] = field(default_factory=dict, hash=False)
    slots: tuple[Kinds, ...] = ()
    infix: str | None = None
    user: bool = False

    def shape(self, *shapes: Index, **attrs: Attr) -> Index:
        if len(shapes) != self.arity:
            raise ValueError(f"`{self.name}` takes {self.arity} arguments, not {len(shapes)}")
        unknown = set(attrs) - set(self.defaults)
        if unknown:
            raise ValueError(f"`{self.name}` has no option `{sorted(unknown)[0]}`")
        return broadcast_index(*shapes)

    def run(self, *blocks: Block, **attrs: Attr) -> Block:
        arrays, rank, vector = align(blocks)
        return Block(self.fn(*arrays, **{**self.defaults, **attrs}), rank, vector)

    def is_linear(self, kinds: Kinds) -> bool:
        return kinds in self.slots

    def __call__(self, *args: Any, **options: Any) -> Any:
        """The function of traced values (inside a network) or of numbers and arrays (anywhere)."""
        attrs = {k: _as_attr(v) for k, v in options.items()}
        for x in args:
            if hasattr(x, "__netsor_apply__"):
                return x.__netsor_apply__(self, args, attrs)
        self.shape(*((),) * len(args), **attrs)
        arrays = [x if hasattr(x, "__array_namespace__") else np.asarray(x, float) for x in args]
        return self.fn(*arrays, **{**self.defaults, **attrs})

    def using(self, **options: Any) -> Callable[..., Any]:
        """The same function with options fixed: `leaky_relu.using(slope=0.2)`."""
        return partial(self, **options)

    def __repr__(self) -> str:
        return f"<function {self.name}>"


@dataclass(frozen=True)
class IndexMap(Op):
    """A linear map on index axes: `fn(*blocks, **attrs) -> Block`, the same for every coordinate."""

    fn: Callable[..., Block]
    coefficients: bool = False  # the first argument is the matrix of the map

    def shape(self, *shapes: Index, **attrs: Attr) -> Index:
        dummies = (Block(np.broadcast_to(np.int8(0), s), len(s)) for s in shapes)
        try:
            out = self.fn(*dummies, **attrs).index
        except (IndexError, TypeError) as error:
            raise ValueError(str(error)) from None
        if 0 in out:
            raise ValueError(f"`{self.name}` leaves nothing of index shape {_join(shapes)}")
        return out

    def run(self, *blocks: Block, **attrs: Attr) -> Block:
        return self.fn(*blocks, **attrs)

    def is_linear(self, kinds: Kinds) -> bool:
        if self.coefficients:
            return kinds[0] == "K"
        return set(kinds) == {"G"}


@dataclass(frozen=True)
class Mixing(Op):
    """A nonlinear function of several members of a block, coordinate by coordinate.

    `fn(members, **attrs)` takes an array whose axis 0 runs over the members and returns one with the
    same axis (or without it, if `reduces`). Written on a block it mixes the index axes `axis`;
    written on several arguments these are the members, and `pick` names the component wanted.
    `masked`: a second argument of zeros and ones says which members count.
    """

    fn: Callable[..., Any]
    reduces: bool = False
    masked: bool = False
    user: bool = False

    def shape(self, *shapes: Index, **attrs: Attr) -> Index:
        if "axis" not in attrs:
            return broadcast_index(*shapes)
        if len(shapes) > 1 + self.masked:
            raise ValueError(f"`{self.name}` along an axis takes one block, not {len(shapes)}")
        shape = broadcast_index(*shapes)
        axes = _axes(attrs["axis"], len(shape))
        return tuple(n for i, n in enumerate(shape) if not (self.reduces and i in axes))

    def run(self, *blocks: Block, **attrs: Attr) -> Block:
        if "axis" in attrs:
            return self._along(*blocks, **attrs)
        arrays, rank, vector = align(blocks)
        like = next(a for a in arrays if not isinstance(a, float))
        xp = array_namespace(like)
        arrays = [xp.asarray(a, dtype=like.dtype) if isinstance(a, float) else a for a in arrays]
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        members = xp.stack([xp.broadcast_to(a, shape) for a in arrays])
        return Block(self.fn(members, **attrs), rank, vector)

    def _along(self, *blocks: Block, axis: Attr, **attrs: Attr) -> Block:
        arrays, rank, vector = align(blocks)
        block, xp = Block(arrays[0], rank, vector), blocks[0].xp
        axes = [block.axis(a) for a in _axes(axis, rank)]
        moved = [_members_first(xp, xp.broadcast_to(a, arrays[0].shape), axes) for a in arrays]
        out = self.fn(*(m for m, _ in moved), **attrs)
        if self.reduces:
            return Block(out, rank - len(axes), vector)
        return Block(
            xp.moveaxis(xp.reshape(out, moved[0][1]), tuple(range(len(axes))), tuple(axes)), rank, vector
        )


def _members_first(xp: Any, array: Any, axes: list[int]) -> tuple[Any, tuple[int, ...]]:
    """The array with `axes` moved to the front and flattened into one, and its shape before flattening."""
    moved = xp.moveaxis(array, tuple(axes), tuple(range(len(axes))))
    return xp.reshape(moved, (-1, *moved.shape[len(axes) :])), moved.shape


def _axes(axis: Attr, rank: int) -> tuple[int, ...]:
    axes = axis if isinstance(axis, tuple) else (axis,)
    for a in axes:
        if not isinstance(a, int) or not -rank <= a < rank:
            raise ValueError(f"axis {a} does not exist in a block with {rank} index axes")
    return tuple(a % rank for a in axes if isinstance(a, int))


def _as_attr(value: Any) -> Any:
    """An option as it stands in an expression: numbers are floats, sequences tuples."""
    return tuple(map(_as_attr, value)) if isinstance(value, list | tuple | np.ndarray) else float(value)


def _join(shapes: tuple[Index, ...]) -> str:
    return ", ".join(map(str, shapes))
