"""Every line of the table: the right answer, or a NetsorError with a remedy; nothing else."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from world import WORLD

import netsor as ns
from netsor.limits import Result

FOLDER = Path(__file__).parent
SECONDS = 60.0  # of processor: no search is without end; what takes how long is for benchmarks


def cases() -> list[Any]:
    found = []
    for file in sorted(FOLDER.glob("*.txt")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                code, arrow, expected = line.partition(" => ")
                assert arrow, f"{file.name}:{number} has no arrow"
                found.append(pytest.param(code.strip(), expected.strip(), id=f"{file.stem}:{number}"))
    return found


CASES = cases()


@pytest.mark.parametrize(("code", "expected"), CASES)
def test_line(code: str, expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    state, start = np.random.get_state(), time.process_time()
    refused = expected == "refused" or expected.startswith("refused:")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, error = _outcome(code)
        if error is None:
            assert not refused, f"accepted: {value!r:.200}"
            _compare(value, eval(expected, WORLD))
    if error is not None:
        assert refused, f"refused: {error}"
        assert error.remedy, f"no remedy: {error}"
        assert expected.removeprefix("refused").removeprefix(":").strip() in str(error)
        assert len(str(error)) < 3000
    out, err = capfd.readouterr()
    assert not out and not err  # noqa: PT018
    assert time.process_time() - start < SECONDS
    np.random.set_state(state)


def _outcome(code: str) -> tuple[Any, ns.NetsorError | None]:
    try:
        return eval(code, WORLD), None
    except ns.NetsorError as error:
        return None, error


def _compare(value: Any, expected: Any) -> None:
    if isinstance(value, Result):
        scale = np.abs(expected).max()
        assert np.all(np.abs(value.value - expected) <= 3 * value.error + 1e-12 * scale)
    elif isinstance(value, np.ndarray | float):
        assert np.allclose(value, expected, rtol=1e-9, atol=1e-12)
    else:
        assert value == expected


def test_there_are_many_lines() -> None:
    assert len(CASES) >= 400
    assert len({case.values[0] for case in CASES}) == len(CASES)
