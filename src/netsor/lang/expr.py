"""Coordinatewise functions as expressions: a reference, a constant, or an operation applied to expressions.

The whole language of the nonlinearities is these three nodes; each interpreter (shapes, evaluation,
printing, expansion) is a table over the operations. Every expression exists once (hash-consing, Ershov
1958): what is spelled alike is one object, so an expression is a graph in which equality is identity, and
every pass visits a shared part once, with a stack of its own instead of Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from netsor.lang.ops import Op

__all__ = [
    "Apply",
    "Attr",
    "Const",
    "Expr",
    "Ref",
    "Slice",
    "count_terms",
    "once",
    "refs",
    "rename",
    "subtrees",
    "transform",
]


@dataclass(frozen=True)
class Slice:
    """`start:stop:step` in an index (a hashable `slice`)."""

    start: int | None = None
    stop: int | None = None
    step: int | None = None

    @property
    def builtin(self) -> slice:
        return slice(self.start, self.stop, self.step)


Attr = Any  # None, bool, int, float, str, Slice, or a tuple of these

_KNOWN: WeakValueDictionary[Any, Any] = WeakValueDictionary()


def once(cls: type, key: tuple[Any, ...], **fields: Any) -> Any:
    """The one object with this key, made now if there is none."""
    found = _KNOWN.get(key)
    if found is None:
        made = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(made, name, value)
        found = _KNOWN.setdefault(key, made)
    return found


class _Node:
    """What the three nodes share: one object for each value, and a short text."""

    def __repr__(self) -> str:
        from netsor.lang.show import shown_short

        return f"{type(self).__name__}({shown_short(self)})"  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Ref(_Node):
    """A variable or a named array of data."""

    name: str

    def __new__(cls, name: str) -> Ref:
        return once(cls, (Ref, name), name=name)

    def __reduce__(self):
        return Ref, (self.name,)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Const(_Node):
    """A real number; 0.0 and -0.0 are two."""

    value: float

    def __new__(cls, value: float) -> Const:
        number = float(value)
        return once(cls, (Const, repr(number)), value=number)

    def __reduce__(self):
        return Const, (self.value,)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Apply(_Node):
    """`op(args, **attrs)`; for operations that mix several members, `pick` selects one component."""

    op: Op
    args: tuple[Expr, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    pick: int | None = None

    def __new__(
        cls,
        op: Op,
        args: tuple[Expr, ...],
        attrs: tuple[tuple[str, Attr], ...] = (),
        pick: int | None = None,
    ) -> Apply:
        attrs = op.canonical(attrs) if attrs else ()
        # The text of the options tells 0 from 0.0, False and -0.0, which are equal keys of a dictionary.
        key = (op, args, repr(attrs) if attrs else "", pick)
        return once(cls, key, op=op, args=args, attrs=attrs, pick=pick)

    def __reduce__(self):
        """All nodes in order, so that an expression of any depth travels."""
        number = {node: k for k, node in enumerate(subtrees(self))}
        parts = [
            (node.op, tuple(number[a] for a in node.args), node.attrs, node.pick)
            if isinstance(node, Apply)
            else node
            for node in number
        ]
        return _assembled, (parts,)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the expression mentions, in order of first appearance."""
        if "_names" not in self.__dict__:
            for node in subtrees(self, _Named()):
                if isinstance(node, Apply):
                    found: dict[str, None] = {}
                    for arg in node.args:
                        found |= dict.fromkeys(refs(arg))
                    object.__setattr__(node, "_names", tuple(found))
        return self.__dict__["_names"]

    @property
    def options(self) -> dict[str, Attr]:
        return dict(self.attrs)


Expr = Ref | Const | Apply


class _Named:
    """The expressions whose names are known, as a container."""

    def __contains__(self, expr: object) -> bool:
        return "_names" in getattr(expr, "__dict__", ())


def _assembled(parts: list[Any]) -> Expr:
    """The expression of nodes whose arguments are given by their numbers."""
    made: list[Expr] = []
    for part in parts:
        if isinstance(part, tuple):
            op, numbers, attrs, pick = part
            part = Apply(op, tuple(made[k] for k in numbers), attrs, pick)
        made.append(part)
    return made[-1]


def subtrees(expr: Expr, known: Container[Expr] = ()) -> Iterator[Expr]:
    """Every distinct subexpression that is not known, arguments before the node that uses them.

    Nothing below a known node is visited unless it stands elsewhere, too.
    """
    if not isinstance(expr, Apply):
        return iter(() if expr in known else (expr,))
    found: dict[Expr, None] = {}
    path: list[tuple[Expr, Iterator[Expr]]] = []
    if expr not in known:
        path.append((expr, iter(expr.args)))
    while path:
        node, rest = path[-1]
        for arg in rest:
            if arg in found or arg in known:
                continue
            if isinstance(arg, Apply):
                path.append((arg, iter(arg.args)))
                break
            found[arg] = None
        else:
            found[node] = None
            path.pop()
    return iter(found)


def transform(expr: Expr, leaf: Callable[[Ref], Expr], known: Mapping[Expr, Expr] | None = None) -> Expr:
    """Replace every `Ref` by `leaf(ref)`, and every node of `known` by what it stands for there."""
    done: dict[Expr, Expr] = dict(known or {})
    for node in subtrees(expr, done):
        match node:
            case Ref():
                done[node] = leaf(node)
            case Apply(op, args, attrs, pick):
                done[node] = Apply(op, tuple(done.get(a, a) for a in args), attrs, pick)
    return done.get(expr, expr)


def rename(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The same expression with its variables renamed."""
    return transform(expr, lambda ref: Ref(names.get(ref.name, ref.name)))


def refs(expr: Expr) -> list[str]:
    """The names that the expression mentions, in order of first appearance."""
    return list(expr.names) if isinstance(expr, Apply) else [expr.name] if isinstance(expr, Ref) else []


def count_terms(expr: Expr, memo: dict[Expr, int] | None = None) -> int:
    """The number of nodes of the expression written out as a tree, where shared parts count each time."""
    sizes: dict[Expr, int] = {} if memo is None else memo
    for node in subtrees(expr, sizes):
        sizes[node] = 1 + sum(sizes[a] for a in node.args) if isinstance(node, Apply) else 1
    return sizes[expr]
