"""Tangents of random programs at finite width, against differences of what the program itself computes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import assume, given
from strategies import programs
from test_programs import outputs, widths_of

from netsor.errors import TangentError
from netsor.lang.program import Program
from netsor.lang.tangent import Tangent, tangent
from netsor.simulation import draw

STEP = 1e-5


def moved(weights: Mapping[str, np.ndarray], made: Tangent, step: float) -> dict[str, np.ndarray]:
    """The weights of a program, moved along the direction that those of its tangent hold."""
    names = {s.name for s in made.source.inputs} & weights.keys()
    still = {name: weights[name] for name in names}
    return still | {p: still[p] + step * weights[d] for p, d in made.directions.items()}


def differences(made: Tangent, weights: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The derivative along the direction by central differences, and what kinks may do to it."""
    left, here, right = (outputs(made.source, moved(weights, made, k * STEP)) for k in (-1, 0, 1))
    return (right - left) / (2 * STEP), abs(right - 2 * here + left) / STEP


def all_weights(made: Tangent) -> dict[str, np.ndarray]:
    """Weights of a program and directions of all its parameters, dead ones too."""
    rng = np.random.default_rng(0)
    weights = draw(made.source, widths_of(made.source), rng)
    return weights | {
        k: w for k, w in draw(made.program, widths_of(made.source), rng).items() if k not in weights
    }


def tangent_or_none(program: Program) -> Tangent | None:
    try:
        return tangent(program, "unit", tied=True, scalars=True)
    except TangentError:
        return None


@given(programs())
def test_a_tangent_is_the_derivative_along_its_direction(program: Program) -> None:
    made = tangent_or_none(program)
    assume(made is not None and made.program.widths.keys() == program.widths.keys())
    assert made is not None
    weights = all_weights(made)
    found, (wanted, bend) = outputs(made.program, weights), differences(made, weights)
    scale = 1 + abs(wanted) + abs(outputs(program, weights))
    assert (abs(found - wanted) <= 1e-6 * scale + bend).all()


@given(programs())
def test_a_tangent_of_the_limit_is_a_program_whose_text_reads_back(program: Program) -> None:
    made = tangent_or_none(program)
    assume(made is not None)
    limit = program.tangent("unit")
    assert limit.check()
    assert {s.name for s in limit.inputs} <= set(limit.types)
