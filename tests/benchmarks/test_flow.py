"""The counts of calls, files and recordings: of this checkout, and of two beside each other."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = import_module("flow")
    monkeypatch.setattr(module, "TASKS", {"mlp": "MLP"})  # the GRU takes seconds
    return module


def cells(report: str) -> list[str]:
    return report.splitlines()[-1].strip("| ").split(" | ")


def test_this_checkout_alone(flow: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert flow.main([]) == 0
    title, calls, files, switches, recordings = cells(capsys.readouterr().out.strip())
    assert title == "MLP"
    assert int(calls.replace(",", "")) > int(switches.replace(",", "")) > int(files) > 10
    assert recordings == "1"


def test_two_checkouts(flow: Any, tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    assert flow.main(["--base", str(ROOT), "--out", str(out)]) == 0
    for cell in cells(out.read_text())[1:]:
        base, _, this = cell.partition(" -> ")
        assert base == this
