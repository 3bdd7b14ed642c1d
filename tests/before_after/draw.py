"""Draw the random programs of `programs.json.gz` anew: python tests/before_after/draw.py

They are drawn by the strategies of `tests/property` with fixed seeds and kept as text with their data, so
that every version of the code gets the same ones, whatever Hypothesis or the strategies do later.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hypothesis import HealthCheck, Phase, given, seed, settings

from before_after.items import PROGRAMS
from netsor.lang.expr import refs
from netsor.lang.program import LinComb, MatMul, Moment, Nonlin, Program, Scalar
from property.strategies import programs

COUNT = 500
EXAMPLES = 60  # for one seed: later examples of a seed resemble its earlier ones


def drawn(number: int) -> list[Program]:
    """The programs of one seed."""
    found: list[Program] = []

    @seed(number)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck.__members__.values()],
    )
    @given(programs())
    def keep(program: Program) -> None:
        found.append(program)

    keep()
    return found


def says_something(program: Program) -> bool:
    """Whether some output reads a nonlinearity; else the kernel is that of the inputs."""
    reached = [term.operand for output in program.outputs for term in output.terms]
    while reached:
        statement = program.definitions.get(reached.pop())
        if isinstance(statement, Nonlin):
            return True
        if isinstance(statement, MatMul):
            reached.append(statement.operand)
        elif isinstance(statement, LinComb | Nonlin | Moment | Scalar):
            reached += refs(statement.expr)
    return False


def main() -> None:
    texts: dict[str, None] = {}
    number = 0
    while len(texts) < COUNT:
        for program in drawn(number):
            if says_something(program):
                texts[program.show()] = None
        number += 1
    chosen = json.dumps(list(texts)[:COUNT], indent=0)
    PROGRAMS.write_bytes(gzip.compress(chosen.encode(), mtime=0))
    print(f"{COUNT} programs of {number} seeds, {PROGRAMS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
