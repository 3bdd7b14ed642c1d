"""The comparison of two checkouts on tiny inputs: no statement about time, only about the table."""

from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("compare")


@pytest.mark.slow
def test_the_command(compare: Any, tmp_path: Path) -> None:
    """This checkout beside itself: the same values, and three ratios for each row."""
    out = tmp_path / "table.md"
    arguments = ["--base", str(ROOT), "--quick", "--rounds", "1", "--rows", "cnn-flatten,startup"]
    assert compare.main([*arguments, "--out", str(out)]) == 0
    report = out.read_text()
    rows = [
        line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith(("| CNN", "| from"))
    ]
    assert [row[8] for row in rows] == ["0.0e+00", "-"]
    for row in rows:
        assert all(float(ratio) > 0 for ratio in (row[2], row[4], row[6]))
        assert row[7] in ("yes", "no")
    assert str(ROOT) not in report


def test_the_first_process_counts_apart(compare: Any) -> None:
    assert compare.summary([(9.0, 0.4), (2.0, 0.5), (3.0, 0.3)]) == compare.Times(9.0, 2.0, 0.3)


def test_a_revision_is_checked_out_and_removed(compare: Any) -> None:
    inside = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True)
    if inside.returncode:
        pytest.skip("not a git repository")
    with compare.checkout("HEAD") as tree:
        assert (tree / "src" / "netsor").is_dir()
    assert not tree.exists()


def test_a_base_that_is_nothing(compare: Any) -> None:
    with pytest.raises(SystemExit, match="no-such-thing"), compare.checkout("no-such-thing"):
        pass
