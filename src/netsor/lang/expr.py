"""Expressions: a reference, a constant, or an operation applied to expressions.

All nonlinearities and linear combinations are built of these three nodes. Expressions are hash-consed
(Ershov 1958): structurally equal expressions are one object. So an expression is a graph, equality is
identity, and each pass visits shared parts once. Passes use explicit stacks, because expressions may be
deeper than Python's stack.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from netsor.lang.ops import Op


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
Attrs = tuple[tuple[str, Attr], ...]

T = TypeVar("T")

_KNOWN: WeakValueDictionary[Any, Any] = WeakValueDictionary()


def once(cls: type, key: tuple[Any, ...], **fields: object) -> Any:
    """Return the object with this key, or create it (hash consing)."""
    node = _KNOWN.get(key)
    if node is None:
        fresh = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(fresh, name, value)
        node = _KNOWN.setdefault(key, fresh)
    return node


class _Node:
    """The common base of the three nodes."""

    def __repr__(self) -> str:
        from netsor.lang.show import shown_short

        return f"{type(self).__name__}({shown_short(self)})"  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), tuple(vars(self).values())


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Ref(_Node):
    """A variable or a named array of data."""

    name: str

    def __new__(cls, name: str) -> Ref:
        return once(cls, (Ref, name), name=name)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Const(_Node):
    """A real number; 0.0 and -0.0 are different."""

    value: float

    def __new__(cls, value: float) -> Const:
        number = float(value)
        return once(cls, (Const, repr(number)), value=number)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Apply(_Node):
    """`op(args, **attrs)`; for a Mixing of several arguments, `pick` selects one component."""

    op: Op
    args: tuple[Expr, ...]
    attrs: Attrs = ()
    pick: int | None = None
    names: tuple[str, ...] = field(init=False)  # in the expression, in order of first appearance

    def __new__(cls, op: Op, args: tuple[Expr, ...], attrs: Attrs = (), pick: int | None = None) -> Apply:
        attrs = op.canonical(attrs) if attrs else ()
        # Use the text of the options, because 0, 0.0, False and -0.0 are equal as keys of a dictionary.
        key = (op, args, repr(attrs) if attrs else "", pick)
        node = once(cls, key, op=op, args=args, attrs=attrs, pick=pick)
        if "names" not in node.__dict__:
            object.__setattr__(node, "names", tuple(dict.fromkeys(n for a in args for n in refs(a))))
        return node

    def __reduce__(self):
        """Pickle the nodes as a list; recursion would limit the depth of expressions."""
        number = {node: k for k, node in enumerate(subtrees(self))}
        parts: list[Any] = list(number)
        for node, k in number.items():
            if isinstance(node, Apply):
                parts[k] = node.op, tuple(number[a] for a in node.args), node.attrs, node.pick
        return _assembled, (parts,)

    @property
    def options(self) -> dict[str, Attr]:
        return dict(self.attrs)


Expr = Ref | Const | Apply


def _assembled(parts: list[Any]) -> Expr:
    """Rebuild an expression from a pickled list of nodes, whose arguments are numbers of earlier nodes."""
    nodes: list[Expr] = []
    for part in parts:
        if isinstance(part, tuple):
            op, numbers, attrs, pick = part
            part = Apply(op, tuple(nodes[k] for k in numbers), attrs, pick)
        nodes.append(part)
    return nodes[-1]


def subtrees(expr: Expr, skipped: Container[Expr] = ()) -> Iterator[Expr]:
    """Iterate over the distinct subexpressions, arguments first, without `skipped` and what only they use."""
    visited: dict[Expr, None] = {}
    path: list[tuple[Expr | None, Iterator[Expr]]] = [(None, iter((expr,)))]
    while path:
        node, arguments = path[-1]
        for arg in arguments:
            if arg in visited or arg in skipped:
                continue
            if isinstance(arg, Apply):
                path.append((arg, iter(arg.args)))
                break
            visited[arg] = None
        else:
            path.pop()
            if node is not None:
                visited[node] = None
    return iter(visited)


def fold(
    expr: Expr,
    leaf: Callable[[Ref | Const], T],
    apply: Callable[[Apply, tuple[T, ...]], T],
    memo: dict[Expr, T] | None = None,
) -> T:
    """Compute a value for each subexpression: `leaf(e)`, or `apply(e, values of its arguments)`."""
    values: dict[Expr, T] = {} if memo is None else memo
    for node in subtrees(expr, values):
        if isinstance(node, Apply):
            values[node] = apply(node, tuple([values[a] for a in node.args]))
        else:
            values[node] = leaf(node)
    return values[expr]


def transform(
    expr: Expr,
    leaf: Callable[[Ref], Expr] = lambda ref: ref,
    changes: Mapping[Expr, Expr] | None = None,
    head: Callable[[Apply], Expr] = lambda node: node,
) -> Expr:
    """Replace `Ref`s by `leaf(ref)`, keys of `changes` by their values, and other nodes by `head(node)`."""
    return fold(
        expr,
        lambda e: leaf(e) if isinstance(e, Ref) else e,
        lambda e, args: head(Apply(e.op, args, e.attrs, e.pick)),
        dict(changes or {}),
    )


def rename(expr: Expr, names: Mapping[str, str]) -> Expr:
    """Rename the variables of an expression."""
    return transform(expr, lambda ref: Ref(names.get(ref.name, ref.name)))


def refs(expr: Expr) -> list[str]:
    """Return the names in an expression, in order of first appearance."""
    return list(expr.names) if isinstance(expr, Apply) else [expr.name] if isinstance(expr, Ref) else []


def count_terms(expr: Expr, memo: dict[Expr, int] | None = None) -> int:
    """Count the nodes of the expression as a tree, in which shared parts count each time."""
    return fold(expr, lambda _: 1, lambda _, sizes: 1 + sum(sizes), memo)
