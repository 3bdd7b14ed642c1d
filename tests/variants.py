"""The variant of the language that a program is in."""

from __future__ import annotations

from netsor.lang.program import Moment, Nonlin, Program, Scalar, used_by
from netsor.lang.types import H


def variant_of(program: Program) -> str:
    """Return the smallest variant that contains the program, LinComb allowed."""
    types = program.types
    takes_h = any(
        type(types.get(name)) is H
        for s in program.statements
        if isinstance(s, Nonlin | Moment)
        for name in used_by(s)
    )
    plus = "+" if program.of(Moment) or program.of(Scalar) else ""
    return ("netsor-o" if takes_h else "netsor") + plus
