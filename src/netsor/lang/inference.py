"""Inference of kind, index shape and width of expressions, from those of their variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from netsor.errors import NetsorError
from netsor.lang.expr import Apply, Const, Expr, Ref, subtrees
from netsor.lang.program import Program
from netsor.lang.types import MOST_MEMBERS, TOO_LARGE, A, H, Index, Type


@dataclass(frozen=True)
class Inferred:
    """The kind (K, C, G or H) of an expression, its index shape and, for vectors, its width."""

    kind: str
    index: Index
    width: str | None = None


def as_inferred(type_: Type) -> Inferred:
    """Convert the type of a variable."""
    if isinstance(type_, A):
        raise TypeError(f"{type_} is not the type of an expression")
    return Inferred(type(type_).__name__, type_.index, type_.width if isinstance(type_, H) else None)


def type_of(program: Program, name: str) -> Inferred:
    """Return kind, index shape and width of a variable or array of a well-typed program."""
    data = program.data.get(name)
    return as_inferred(program.types[name]) if data is None else Inferred("K", data.shape)


def _ill_typed(what: str, *_: object) -> NetsorError:
    return NetsorError(f"an expression is ill-typed: {what}")


def infer(
    expr: Expr,
    variable: Callable[[str], Inferred],
    refuse: Callable[[str, str, Expr], NetsorError] = _ill_typed,
    memo: dict[Expr, Inferred] | None = None,
) -> Inferred:
    """Infer an expression from its variables; `refuse` creates the error about an ill-typed subexpression."""
    memo = {} if memo is None else memo
    for node in subtrees(expr, memo):
        match node:
            case Ref(name):
                memo[node] = variable(name)
            case Const():
                memo[node] = Inferred("K", ())
            case Apply(op, args, _, pick):
                parts = [memo[a] for a in args]
                try:
                    index = op.shape(*(p.index for p in parts), **node.options)
                    op.check_kinds(tuple(p.kind for p in parts))
                    op.check_pick(pick, len(args), **node.options)
                except (ValueError, TypeError) as error:
                    raise refuse(str(error), op.usage(), node) from None
                if prod(index) > MOST_MEMBERS:
                    raise refuse(f"a block of index shape {index}", TOO_LARGE, node)
                width = _common_width(args, parts, refuse)
                memo[node] = Inferred(op.kind(tuple(p.kind for p in parts)), index, width)
    return memo[expr]


def _common_width(args: tuple[Expr, ...], parts: list[Inferred], refuse: Callable) -> str | None:
    """The common width of all vectors among the arguments; None without vectors."""
    vectors = [(a, p.width) for a, p in zip(args, parts, strict=True) if p.width is not None]
    for arg, width in vectors:
        if width != vectors[0][1]:
            raise refuse(
                f"vectors of different widths meet: {vectors[0][1]} and {width}",
                "Coordinatewise functions, sums and moments combine vectors of one width (one Common "
                f"Dimension Class). A MatMul changes the width: `Input W :: A({vectors[0][1]}, {width}) ~ "
                f"N(0, 1/{width})`.",
                arg,
            )
    return vectors[0][1] if vectors else None
