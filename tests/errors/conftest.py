"""Snapshots of error messages; `pytest tests/errors --update-snapshots` writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SNAPSHOTS = Path(__file__).parent / "snapshots"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-snapshots",
        action="store_true",
        dest="update_error_messages",
        help="write the snapshots of error messages anew",
    )


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`snapshot(name, text)`: the text equals the file of that name, or becomes it."""

    def compare(name: str, text: str) -> None:
        file = SNAPSHOTS / f"{name}.txt"
        if request.config.getoption("update_error_messages", default=False):
            file.write_text(text + "\n", encoding="utf-8")
        assert file.exists(), f"no snapshot of {name}; run pytest tests/errors --update-snapshots"
        assert text + "\n" == file.read_text(encoding="utf-8")

    return compare
