"""Coordinatewise functions as expression trees: a reference, a constant, or an operation applied to trees.

The whole language of the nonlinearities is these three nodes; each interpreter (shapes, evaluation,
printing, expansion) is a table over the operations. Trees are immutable and hash once, so shared
subtrees cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netsor.lang.ops import Op

__all__ = ["Apply", "Attr", "Const", "Expr", "Ref", "Slice", "refs", "rename", "subtrees", "transform"]


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


@dataclass(frozen=True)
class Ref:
    """A variable or a named array of data."""

    name: str


@dataclass(frozen=True)
class Const:
    """A real number."""

    value: float


@dataclass(frozen=True)
class Apply:
    """`op(args, **attrs)`; for operations that mix several members, `pick` selects one component."""

    op: Op
    args: tuple[Expr, ...]
    attrs: tuple[tuple[str, Attr], ...] = field(default=())
    pick: int | None = None

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.args, self.attrs, self.pick))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names that the tree mentions, in order of first appearance."""
        return tuple(node.name for node in subtrees(self) if isinstance(node, Ref))

    @property
    def options(self) -> dict[str, Attr]:
        return dict(self.attrs)


Expr = Ref | Const | Apply


def transform(expr: Expr, leaf: Callable[[Ref], Expr]) -> Expr:
    """Replace every `Ref` by `leaf(ref)`; shared subtrees are visited once and stay shared."""
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if isinstance(node, Const):
            return node
        if node not in done:
            if isinstance(node, Ref):
                done[node] = leaf(node)
            else:
                args = tuple(visit(a) for a in node.args)
                same = all(a is b for a, b in zip(args, node.args, strict=True))
                done[node] = node if same else Apply(node.op, args, node.attrs, node.pick)
        return done[node]

    return visit(expr)


def rename(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The same tree with its variables renamed."""
    return transform(expr, lambda ref: Ref(names.get(ref.name, ref.name)))


def subtrees(expr: Expr, known: Container[Expr] = ()) -> Iterator[Expr]:
    """Every distinct subtree that is not known, arguments before the node that uses them."""
    found: dict[Expr, None] = {}

    def visit(node: Expr) -> None:
        if node not in found and node not in known:
            if isinstance(node, Apply):
                for arg in node.args:
                    visit(arg)
            found[node] = None

    visit(expr)
    return iter(found)


def refs(expr: Expr) -> list[str]:
    """The names that the expression mentions, in order of first appearance."""
    return list(expr.names) if isinstance(expr, Apply) else [expr.name] if isinstance(expr, Ref) else []
