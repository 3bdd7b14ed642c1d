"""The oracle's answers, kept in a file: the oracle takes minutes, and its answers do not change.

`pytest --oracle=check` asks the oracle itself and compares, as `.ci/full slow` does; `pytest --oracle=write`,
in one process, adds the answers that the file lacks. Otherwise the oracle answers what the file lacks.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np

import oracle as literal
from netsor.lang import Program

__all__ = ["ANSWERS", "Answers", "RefusalError", "oracle"]

FILE = Path(__file__).with_suffix(".json")
Answer = tuple[np.ndarray, np.ndarray] | None  # a kernel and its error; None where the oracle refuses


class RefusalError(Exception):
    """The oracle has no answer: an integrand overflows, or errors make a covariance indefinite."""


class Answers:
    """Kernels and their errors by the text of the program."""

    def __init__(self, mode: str = "stored") -> None:
        self.mode, self.asked = mode, 0
        self.table: dict[str, list[list[list[float]]] | None] = json.loads(FILE.read_text())

    def of(self, program: Program, samples: int, seed: int) -> Answer:
        """The kernel that the oracle finds, with its error."""
        if program.functions:  # the text does not say what functions of users do
            return computed(program, samples, seed)
        program = program.canonical()
        key = sha256(f"{samples} {seed}\n{program.show()}".encode()).hexdigest()[:24]
        if key in self.table and self.mode != "check":
            return unpacked(self.table[key])
        answer = computed(program, samples, seed)
        if self.mode == "check" and key in self.table:
            compare(unpacked(self.table[key]), answer)
        self.table[key] = None if answer is None else [part.tolist() for part in answer]
        self.asked += 1
        return answer

    def write(self) -> None:
        if self.mode == "write" and self.asked:
            rows = (f'"{key}": {json.dumps(self.table[key])}' for key in sorted(self.table))
            FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def computed(program: Program, samples: int, seed: int) -> Answer:
    try:
        result = literal.oracle(program, samples=samples, seed=seed)
    except AssertionError:
        return None
    return result.kernel, result.error.kernel


def unpacked(entry: list[list[list[float]]] | None) -> Answer:
    return None if entry is None else (np.array(entry[0]), np.array(entry[1]))


def compare(stored: Answer, answer: Answer) -> None:
    """Equal but for rounding, which differs between machines."""
    assert (stored is None) == (answer is None)
    if stored is not None and answer is not None:
        scale = np.abs(answer[0]).max(initial=0.0)
        np.testing.assert_allclose(stored[0], answer[0], rtol=0, atol=1e-9 * scale)
        np.testing.assert_allclose(stored[1], answer[1], rtol=1e-3, atol=1e-9 * scale)


ANSWERS = Answers()


def oracle(program: Program, *, samples: int = 2**20, seed: int = 0) -> literal.OracleResult:
    """The kernel of `oracle.oracle`, from the file; it raises a RefusalError where the oracle fails."""
    answer = ANSWERS.of(program, samples, seed)
    if answer is None:
        raise RefusalError
    kernel, error = answer
    return literal.OracleResult({}, {}, {}, kernel, literal.Limits({}, {}, {}, error))
