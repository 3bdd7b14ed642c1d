"""The command line: exit codes, output, errors without tracebacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from netsor.cli import app

PROGRAMS = Path(__file__).parent.parent / "examples" / "programs"
runner = CliRunner()


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.netsor")), ids=lambda path: path.stem)
def test_check_accepts_the_examples(path: Path) -> None:
    result = runner.invoke(app, ["check", str(path)])
    assert result.exit_code == 0
    assert "OK:" in result.output


def test_check_reports_an_error_with_its_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.netsor"
    bad.write_text("Input g :: G(n) ~ N(0, 1)\nx := relu(h)\n")
    result = runner.invoke(app, ["check", str(bad)])
    assert result.exit_code == 1
    assert "line 2" in result.output
    assert "Traceback" not in result.output


def test_check_of_a_missing_file() -> None:
    result = runner.invoke(app, ["check", "no_such_file.netsor"])
    assert result.exit_code == 1
    assert "there is no file" in result.output


def test_limit_prints_the_worked_example() -> None:
    result = runner.invoke(app, ["limit", str(PROGRAMS / "mlp.netsor")])
    assert result.exit_code == 0, result.output
    assert "Sigma(h1, h1)" in result.output
    assert "K = " in result.output


def test_reproduce_rnn_writes_figure_and_tables(tmp_path: Path) -> None:
    result = runner.invoke(
        app, ["reproduce", "rnn", "--out", str(tmp_path), "--width", "20", "--samples", "200"]
    )
    assert result.exit_code == 0, result.output
    assert {p.name for p in tmp_path.iterdir()} >= {"rnn.png", "rnn.pdf", "rnn_C_covariance.csv"}
