"""The variants of the language, and how to write a program in each.

| variant        | Nonlin takes     | LinComb |                                                        |
| -------------- | ---------------- | ------- | ------------------------------------------------------ |
| `netsor`       | G-vars           | yes     | nonlinearities are unwound down to G-vars              |
| `netsor-minus` | G-vars           | no      | sums are absorbed into the nonlinearity that uses them |
| `netsor-o`     | G-vars or H-vars | yes     | a function of an H-var refers to it by name            |

With a `+` at the end C-vars are allowed (Moment, and Nonlin with parameters); functions of C-vars are
written where they are used, as in the paper. No lowering changes a value or a limit.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from netsor.errors import LoweringError
from netsor.lang.controlled import Unwinder
from netsor.lang.expr import Apply, Expr, Ref, transform
from netsor.lang.program import LinComb, MatMul, Moment, Nonlin, Output, Program, Scalar, Statement, used_by
from netsor.lang.type_checker import LEFT, place_of
from netsor.lang.types import H

VARIANTS = ("netsor", "netsor-minus", "netsor-o", "netsor+", "netsor-minus+", "netsor-o+")


def lower(program: Program, variant: str) -> Program:
    """Write the same computation in another variant.

    >>> from netsor.lang import parse
    >>> program = parse('''
    ... Input g :: G(n) ~ N(0, 1)
    ... Input b :: G(n) ~ N(0, 1)
    ... h := g + b
    ... x := relu(h)
    ... y := x*x
    ... ''')
    >>> print(program.lower("netsor-minus"))
    Input g :: G(n) ~ N(0, 1)
    Input b :: G(n) ~ N(0, 1)
    y := relu(g + b)*relu(g + b) :: H(n)
    <BLANKLINE>
    """
    if variant not in VARIANTS:
        near = difflib.get_close_matches(str(variant), VARIANTS, 1)
        guess = f"Did you mean {near[0]!r}? " if near else ""
        raise LoweringError(
            f"there is no variant {variant!r}", remedy=f"{guess}The variants are {', '.join(VARIANTS)}."
        )
    scalars = program.of(Moment) or program.of(Scalar)
    if scalars and not variant.endswith("+"):
        raise LoweringError(
            f"`{scalars[0].name}` is a C-var, which {variant!r} does not have",
            place=place_of(program, scalars[0], LEFT),
            remedy="Moments, and functions with C-vars as parameters, belong to Netsor+: lower to "
            f"{variant + '+'!r}.",
        )
    base = variant.removesuffix("+")
    unwind = Unwinder(program, (Nonlin, Scalar, LinComb) if base == "netsor-minus" else (Nonlin, Scalar))
    types = program.types
    lowered: list[Statement] = []
    for s in program.statements:
        match s:
            case Nonlin() | Moment() | Scalar():
                s = replace(s, expr=unwind(s.expr), type=types[s.name])
            case LinComb() if base == "netsor-minus":
                image = H(*types[s.name].dims, types[s.name].index)  # type: ignore[arg-type]
                s = Nonlin(s.name, unwind(s.expr), image, place=s.place, notes=s.notes)
            case LinComb() | MatMul():
                s = replace(s, type=types[s.name])
        lowered.append(s)
    if base == "netsor-o":
        lowered = _fold(lowered)
    once_used = {name for s in program.statements for name in used_by(s)}
    return drop_dead(replace(program, statements=tuple(lowered)), once_used)


def _fold(statements: list[Statement]) -> list[Statement]:
    """Replace copies of earlier definitions by the names of their H-vars (or functions of C-vars)."""
    names: dict[Expr, Expr] = {}
    out: list[Statement] = []
    for s in statements:
        if isinstance(s, Nonlin | Scalar | Moment):
            folded = replace(s, expr=transform(s.expr, changes=names))
            if not isinstance(s, Moment) and isinstance(s.expr, Apply):
                names.setdefault(s.expr, Ref(s.name))
            s = folded
        out.append(s)
    return out


def drop_dead(program: Program, once_used: set[str]) -> Program:
    """Remove the variables and data among `once_used` that nothing uses any more."""
    live: set[str] = set()
    kept: list[Statement] = []
    for s in reversed(program.statements):
        if isinstance(s, Output) or s.name in live or s.name not in once_used:
            kept.append(s)
            live.update(used_by(s))
    data = {name: x for name, x in program.data.items() if name in live or name not in once_used}
    return replace(program, statements=tuple(reversed(kept)), data=data)
