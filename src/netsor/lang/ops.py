"""Operations at the nodes of expressions. Each defines index shape, value and kind of its result.

Kinds are K (data), C (scalar), G (Gaussian vector) and H (image of G-vars).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import Parameter, signature
from typing import Any

import numpy as np

from netsor.errors import FunctionError
from netsor.lang.array_api import array_namespace, is_traced
from netsor.lang.blocks import Block, align, broadcast, broadcast_index
from netsor.lang.expr import Attr, Attrs, Expr, Ref, fold
from netsor.lang.facts import UNKNOWN, Facts
from netsor.lang.types import Index

_signature = cache(signature)
Kind = str
Kinds = tuple[Kind, ...]

BROADCAST = "Index shapes broadcast by NumPy's rule: counted from the last axis, lengths are equal or 1."


@dataclass(frozen=True)
class Op:
    """An operation; subclasses define its action."""

    name: str

    def shape(self, *shapes: Index, **attrs: Attr) -> Index:
        """Return the index shape of the result; raise ValueError if the arguments do not fit."""
        raise NotImplementedError

    def run(self, *blocks: Block, **attrs: Attr) -> Block:
        """Apply the operation to blocks."""
        raise NotImplementedError

    def usage(self) -> str:
        """Describe the syntax of the operation, for error messages."""
        raise NotImplementedError

    def canonical(self, attrs: Attrs) -> Attrs:
        """Normalise options: real numbers become floats, axes stay integers."""
        return tuple((k, v if k == "axis" else _as_attr(v)) for k, v in attrs)

    def check_kinds(self, kinds: Kinds) -> None:
        """Raise ValueError if an argument is a vector that must not be one."""

    def check_pick(self, pick: int | None, count: int, **attrs: Attr) -> None:
        """Raise ValueError unless `op.pick(...)` with `count` arguments selects one value."""
        if pick is not None:
            raise ValueError(f"`{self.name}` has one value, so `{self.name}.{pick}` picks nothing")

    def is_linear(self, kinds: Kinds) -> bool:
        """Whether the result is a linear combination of the vectors among the arguments."""
        return False

    def kind(self, kinds: Kinds) -> Kind:
        """Return the kind of the result for arguments of these kinds."""
        if set(kinds) <= {"K"}:
            return "K"
        if set(kinds) <= {"K", "C"}:
            return "C"
        return "G" if "H" not in kinds and self.is_linear(kinds) else "H"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle operations of the language by name, because facts and rules refer to the object itself."""
        return (_known, (self.name,)) if _known(self.name) is self else super().__reduce_ex__(protocol)


def _known(name: str) -> Op | None:
    """The operation of the language with this name."""
    from netsor.lang.functions import named

    return named().get(name)


@dataclass(frozen=True, repr=False)
class Function(Op):
    """A function of real numbers, applied coordinatewise (`relu`, `mul`, a user's function)."""

    fn: Callable[..., Any]  # takes `arity` arrays and options
    arity: int = 1
    params: int = 0  # how many of the last arguments are scalar parameters (Nonlin+)
    defaults: Mapping[str, float] = field(default_factory=dict, hash=False)  # of the options
    slots: tuple[Kinds, ...] = ()  # kinds of arguments for which it is linear, e.g. ("K", "G") for a product
    infix: str | None = None  # its sign, for arithmetic
    user: bool = False  # whether it is a user's function
    facts: Facts | Callable[..., Facts] = field(default=UNKNOWN, compare=False)  # or from options to facts

    def about(self, options: Mapping[str, Attr] | None = None) -> Facts:
        """Return the facts of the function with these options; others have their defaults."""
        if isinstance(self.facts, Facts):
            return self.facts
        return self.facts(**{**self.defaults, **(options or {})})

    def shape(self, *shapes: Index, **attrs: Attr) -> Index:
        if len(shapes) != self.arity:
            plural = "s" if self.arity != 1 else ""
            raise ValueError(f"`{self.name}` takes {self.arity} argument{plural}, not {len(shapes)}")
        _check_options(self, [np.array([-1.5, 0.0, 2.0])] * self.arity, attrs, self.defaults)
        return broadcast_index(*shapes)

    def usage(self) -> str:
        if self.infix:
            return BROADCAST
        names = [f"x{i + 1}" for i in range(self.arity)] if self.arity > 1 else ["x"]
        call = ", ".join([*names, *(f"{option}=..." for option in self.defaults)])
        return f"It is written `{self.name}({call})`." + (f" {BROADCAST}" if self.arity > 1 else "")

    def run(self, *blocks: Block, **attrs: Attr) -> Block:
        arrays, rank, vector = align(blocks)
        options = {**self.defaults, **attrs}
        value = _users_own(self, arrays, options) if self.user else self.fn(*arrays, **options)
        return Block(value, rank, vector)

    def is_linear(self, kinds: Kinds) -> bool:
        return kinds in self.slots

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Apply the function to traced values (inside a network), or to numbers and arrays."""
        attrs = {k: _as_attr(v) for k, v in options.items()}
        for x in args:
            if hasattr(x, "__netsor_apply__"):
                return x.__netsor_apply__(self, args, attrs)
        try:
            self.shape(*((),) * len(args), **attrs)
            arrays = [_real_argument(x) for x in args]
        except (TypeError, ValueError, OverflowError) as error:
            raise FunctionError(str(error), remedy=self.usage()) from None
        return self.fn(*arrays, **{**self.defaults, **attrs})

    def using(self, **options: object) -> Callable[..., Any]:
        """Return the function with fixed options: `leaky_relu.using(slope=0.2)`."""
        return partial(self, **options)

    def __repr__(self) -> str:
        return f"<function {self.name}>"


def _users_own(op: Function, arrays: list[Any], options: dict[str, Any]) -> Any:
    """Call a user's function with NumPy arrays or JAX tracers, never with arrays of other libraries."""
    foreign = [a for a in arrays if hasattr(a, "dtype") and not isinstance(a, np.ndarray | np.generic)]
    if foreign and not is_traced(*foreign):
        plain = [np.asarray(a) if hasattr(a, "dtype") else a for a in arrays]
        return array_namespace(*foreign).asarray(op.fn(*plain, **options))
    try:
        return op.fn(*arrays, **options)
    except Exception as error:
        if not foreign:
            raise
        what = f"`{op.name}` fails on arrays that JAX traces: {type(error).__name__}"
        remedy = "Write it with functions of the array API: `xp = x.__array_namespace__()`, `xp.exp(x)`."
        raise FunctionError(what, remedy=remedy) from error


@dataclass(frozen=True)
class IndexMap(Op):
    """A linear map on index axes (`sum`, `window`, `stack`, indexing): `fn(*blocks, **attrs) -> Block`."""

    fn: Callable[..., Block]
    coefficients: bool = False  # whether the first argument is the matrix of the map
    measure: Callable[..., Index] | None = None  # the result's shape, where running `fn` would take memory

    def shape(self, *shapes: Index, **attrs: Attr) -> Index:
        # Broadcast zeros have any shape and take no memory.
        dummies = [Block(np.broadcast_to(np.int8(0), s), len(s)) for s in shapes]
        try:
            _signature(self.fn).bind(*dummies, **attrs)
        except TypeError as error:
            raise ValueError(f"`{self.name}`: {error}") from None
        try:
            out = self.measure(*shapes, **attrs) if self.measure else self.fn(*dummies, **attrs).index
        except (AttributeError, IndexError, OverflowError, TypeError) as error:
            raise ValueError(str(error)) from None
        if 0 in out:
            raise ValueError(f"nothing is left of index shape {', '.join(map(str, shapes))}")
        return out

    def usage(self) -> str:
        if self.name == "at":
            return "Index axes are taken by integers, slices and None: `x[0]`, `x[1:3]`, `x[:, None]`."
        several = {Parameter.VAR_POSITIONAL: "x1, x2, ...", Parameter.KEYWORD_ONLY: "{}=..."}
        call = (several.get(p.kind, "{}").format(p.name) for p in _signature(self.fn).parameters.values())
        return f"It is written `{self.name}({', '.join(call)})` and acts on index axes, counted from 0."

    def run(self, *blocks: Block, **attrs: Attr) -> Block:
        return self.fn(*blocks, **attrs)

    def canonical(self, attrs: Attrs) -> Attrs:
        """Keep options unchanged: they are positions and sizes, hence integers."""
        return attrs

    def check_kinds(self, kinds: Kinds) -> None:
        if self.coefficients and kinds[0] in ("G", "H"):
            raise ValueError(f"the matrix of `{self.name}` holds numbers or C-vars, not vectors")

    def is_linear(self, kinds: Kinds) -> bool:
        if self.coefficients:
            return kinds[0] == "K"
        return set(kinds) == {"G"}


@dataclass(frozen=True)
class Mixing(Op):
    """A nonlinear function of several members of a block (`max`, `softmax`, `batchnorm`).

    On a block it mixes the members along the index axes `axis`. On several arguments it mixes these, and
    `pick` selects one component of the result.
    """

    fn: Callable[..., Any]  # maps an array (members, ...) to (members, ...), or to (...) if `reduces`
    reduces: bool = False
    masked: bool = False  # whether it accepts a second block: a mask of zeros and ones, or directions
    user: bool = False  # whether it is a user's function

    def shape(self, *shapes: Index, **attrs: Attr) -> Index:
        options = [] if self.user else list(_signature(self.fn).parameters)[1 + self.masked :]
        _check_options(self, [np.ones((2, 1))], {k: v for k, v in attrs.items() if k != "axis"}, options)
        if "axis" not in attrs:
            return broadcast_index(*shapes)
        if len(shapes) > 1 + self.masked:
            raise ValueError(f"`{self.name}` along an axis takes one block, not {len(shapes)}")
        shape = shapes[0]
        if broadcast_index(*shapes) != shape:
            raise ValueError(f"a mask of shape {shapes[1]} does not fit a block of shape {shape}")
        axes = axes_of(attrs["axis"], len(shape))
        return tuple(n for i, n in enumerate(shape) if not (self.reduces and i in axes))

    def usage(self) -> str:
        return f"It is written `{self.name}(x, axis=...)` and mixes index axes, counted from 0."

    def check_pick(self, pick: int | None, count: int, **attrs: Attr) -> None:
        if self.reduces or "axis" in attrs:
            return super().check_pick(pick, count)
        if pick is None or pick >= count:
            what = f"`{self.name}` of {count} members has {count} values"
            raise ValueError(f"{what}; name one: `{self.name}.0(...)` to `{self.name}.{count - 1}(...)`")

    def run(self, *blocks: Block, **attrs: Attr) -> Block:
        if "axis" in attrs:
            return self._along(*blocks, **attrs)
        arrays, rank, vector = broadcast(blocks)
        members = array_namespace(*arrays).stack(arrays)
        return Block(self.fn(members, **attrs), rank, vector)

    def _along(self, *blocks: Block, axis: Attr, **attrs: Attr) -> Block:
        arrays, rank, vector = align(blocks)
        block, xp = Block(arrays[0], rank, vector), blocks[0].xp
        axes = [block.axis(a) for a in axes_of(axis, rank)]
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        first = tuple(range(len(axes)))
        moved = [xp.moveaxis(xp.broadcast_to(a, shape), tuple(axes), first) for a in arrays]
        # members first: (m, ...)
        out = self.fn(*(xp.reshape(m, (-1, *m.shape[len(axes) :])) for m in moved), **attrs)
        if self.reduces:
            return Block(out, rank - len(axes), vector)
        return Block(xp.moveaxis(xp.reshape(out, moved[0].shape), first, tuple(axes)), rank, vector)


def kind_of(expr: Expr, kind: Callable[[str], Kind]) -> Kind:
    """Return the kind of an expression; `kind` returns the kinds of its variables."""
    return fold(
        expr, lambda e: kind(e.name) if isinstance(e, Ref) else "K", lambda e, kinds: e.op.kind(kinds)
    )


def _check_options(op: Any, args: list[Any], attrs: Mapping[str, Attr], options: Iterable[str]) -> None:
    """Raise ValueError for an unknown option, or for a value that the operation cannot use."""
    if not attrs:
        return
    # Only the function itself knows which values are valid, so call it on `args`.
    unknown = sorted(set(attrs) - set(options))
    if unknown:
        raise ValueError(f"`{op.name}` has no option `{unknown[0]}`")
    try:
        if not all(_is_real(value) for value in attrs.values()):
            raise ValueError
        with np.errstate(all="ignore"):
            out = op.fn(*args, **{**getattr(op, "defaults", {}), **attrs})
        if not np.isfinite(out).all():
            raise ValueError
    except (TypeError, ValueError, IndexError, OverflowError):
        given = ", ".join(f"{k}={v!r:.60}" for k, v in attrs.items())
        raise ValueError(f"`{op.name}` cannot use {given}") from None


def _is_real(value: Attr) -> bool:
    """Whether a value consists of real numbers; infinities count, NaN does not."""
    if isinstance(value, tuple):
        return all(map(_is_real, value))
    return isinstance(value, int | float) and value == value


def axes_of(axis: Attr, rank: int) -> tuple[int, ...]:
    """Return one or several index axes as a tuple of numbers from 0 to rank - 1."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    for a in axes:
        if not isinstance(a, int) or not -rank <= a < rank:
            raise ValueError(f"there is no axis {a}: the number of index axes is {rank}")
    return tuple(a % rank for a in axes if isinstance(a, int))


def _real_argument(x: Any) -> Any:
    """Convert an argument outside a network to an array of real numbers; keep arrays of other libraries."""
    array = x if hasattr(x, "__array_namespace__") else np.asarray(x)
    kind = array.dtype.kind if isinstance(array, np.ndarray | np.generic) else "f"
    if kind not in "biuf" or np.ma.is_masked(array):
        raise ValueError(
            f"a function of real numbers meets {f'an array of {array.dtype}' if x is not None else x}"
        )
    return np.asarray(array, float) if kind in "biu" else array


def _as_attr(value: object) -> Any:
    """Normalise an option: numbers become floats, sequences tuples."""
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(map(_as_attr, value))
    return float(value) if isinstance(value, int | float | np.number) else value
