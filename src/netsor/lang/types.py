"""The types of the language: A (matrix), G (Gaussian vector), H (its image), C (scalar) and K (data).

A variable is a *block*: an array of the paper's variables that are defined by one statement. `index` is the
shape of that array; `()` is a single variable, as in the paper. A width (`str`) is a Common Dimension Class
and goes to infinity; an `int` is a finite dimension of data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from netsor.errors import NetsorError
from netsor.lang.expr import Apply, Const, Expr, Ref, subtrees

if TYPE_CHECKING:
    from netsor.lang.program import Program

# The most members of a block. Each takes at least one number in memory, so larger blocks cannot be evaluated.
MOST_MEMBERS = 10**8
TOO_LARGE = (
    f"A block has at most {MOST_MEMBERS:,} members, and so has a dimension of data. The width is not among "
    "them: write one vector for many coordinates that have the same law."
)

Dim = str | int
Index = tuple[int, ...]


class _Shaped:
    """Shows a type as text: `G(n)[7]`."""

    index: Index

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions: all fields but the index shape."""
        return tuple(size for name, size in vars(self).items() if name != "index")

    def __str__(self) -> str:
        dims = f"({', '.join(map(str, self.dims))})" if self.dims else ""
        index = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return f"{type(self).__name__}{dims}{index}"


@dataclass(frozen=True)
class A(_Shaped):
    """A matrix with iid Gaussian entries, or a block of independent such matrices."""

    rows: Dim
    cols: Dim
    index: Index = ()


@dataclass(frozen=True)
class H(_Shaped):
    """A vector that is a coordinatewise image of G-vars."""

    width: str
    index: Index = ()


@dataclass(frozen=True)
class G(H):
    """A vector that is asymptotically Gaussian; every G-var is also an H-var."""


@dataclass(frozen=True)
class C(_Shaped):
    """A scalar with a deterministic limit."""

    index: Index = ()


@dataclass(frozen=True)
class K(_Shaped):
    """Numbers, and data by name."""

    index: Index = ()


Type = A | H | C | K
TYPES: dict[str, Any] = {type_.__name__: type_ for type_ in (A, G, H, C, K)}


def type_of(program: Program, name: str) -> Type:
    """The type of a variable or array of a well-typed program."""
    data = program.data.get(name)
    return program.types[name] if data is None else K(data.shape)


def _ill_typed(what: str, *_: object) -> NetsorError:
    return NetsorError(f"an expression is ill-typed: {what}")


def infer(
    expr: Expr,
    variable: Callable[[str], Type],
    refuse: Callable[[str, str, Expr], NetsorError] = _ill_typed,
    memo: dict[Expr, Type] | None = None,
) -> Type:
    """Infer the type of an expression; `refuse` creates the error about an ill-typed subexpression."""
    memo = {} if memo is None else memo
    for node in subtrees(expr, memo):
        match node:
            case Ref(name):
                memo[node] = variable(name)
            case Const():
                memo[node] = K()
            case Apply(op, args, _, pick):
                parts = [memo[a] for a in args]
                kinds = tuple(type(p).__name__ for p in parts)
                try:
                    index = op.shape(*(p.index for p in parts), **node.options)
                    op.check_kinds(kinds)
                    op.check_pick(pick, len(args), **node.options)
                except (ValueError, TypeError) as error:
                    raise refuse(str(error), op.usage(), node) from None
                if prod(index) > MOST_MEMBERS:
                    raise refuse(f"a block of index shape {index}", TOO_LARGE, node)
                memo[node] = TYPES[op.kind(kinds)](*_common_width(args, parts, refuse), index=index)
    return memo[expr]


def _common_width(args: tuple[Expr, ...], parts: list[Type], refuse: Callable) -> list[str]:
    """The common width of all vectors among the arguments; an empty list without vectors."""
    vectors = [(a, p.width) for a, p in zip(args, parts, strict=True) if isinstance(p, H)]
    for arg, width in vectors:
        if width != vectors[0][1]:
            raise refuse(
                f"vectors of different widths meet: {vectors[0][1]} and {width}",
                "Coordinatewise functions, sums and moments combine vectors of one width (one Common "
                f"Dimension Class). A MatMul changes the width: `Input W :: A({vectors[0][1]}, {width}) ~ "
                f"N(0, 1/{width})`.",
                arg,
            )
    return [width for _, width in vectors[:1]]
