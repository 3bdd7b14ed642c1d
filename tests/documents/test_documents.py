"""Every Python block of the documents runs, every example runs, every link leads somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from netsor.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
LINKING = [*DOCUMENTS, *sorted(ROOT.glob("[A-Z]*.md")), *sorted((ROOT / "tests").rglob("README.md"))]
# what their code blocks import
EXTRAS = {
    "docs/gp.md": "sklearn",
    "docs/look.md": "matplotlib",
    "docs/scale.md": "zarr",
    "docs/tutorial.md": "matplotlib",
}
names = {"ids": lambda path: str(path.relative_to(ROOT))}


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.S)


@pytest.mark.parametrize("document", DOCUMENTS, **names)
def test_code_blocks_and_commands_run(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the text, in an empty folder beside a copy of the examples."""
    needed = EXTRAS.get(document.relative_to(ROOT).as_posix())
    if needed is not None:
        pytest.importorskip(needed)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for language, block in re.findall(r"```(python|console)\n(.*?)```", document.read_text(), re.S):
        if language == "python":
            exec(compile(block, document.name, "exec"), namespace)
        else:
            run_commands(block)


def run_commands(block: str) -> None:
    """The lines `$ netsor ...` of a block."""
    for line in block.splitlines():
        program, *words = shlex.split(line.removeprefix("$ "))
        assert program == "netsor", line
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{line}\n{result.output}"


def test_the_tutorial_shows_the_example() -> None:
    block = blocks(ROOT / "docs" / "tutorial.md", "python")[0]
    assert block in (ROOT / "examples" / "my_network.py").read_text()


@pytest.mark.parametrize("script", SCRIPTS, **names)
def test_examples_run(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_whole_idea_is_short_and_stands_alone() -> None:
    text = (ROOT / "examples" / "whole_idea.py").read_text()
    assert len(text.splitlines()) <= 200
    imports = re.findall(r"^(?:from|import) (\w+)", text, re.M)
    assert set(imports) <= {"__future__", "collections", "dataclasses", "math", "numpy"}


@pytest.mark.parametrize("document", dict.fromkeys(LINKING), **names)
def test_links_lead_to_files(document: Path) -> None:
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
        if "://" not in link and not link.startswith("reference/"):  # generated; the site checks those
            assert (document.parent / link).exists(), link


def test_every_network_of_the_zoo_has_a_page() -> None:
    from netsor import zoo

    pages = "".join(path.read_text() for path in (ROOT / "docs" / "architectures").glob("*.md"))
    for name in zoo.__all__:
        assert f"ns.zoo.{name}(" in pages, name


def test_readme_keeps_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    for marker, command in (("main job", "netsor reproduce rnn"), ("tests", "-m pytest")):
        block = re.search(rf"<!-- {marker} -->\n```bash\n(.*?)```", text, re.S)
        assert block is not None
        assert command in block[1]
