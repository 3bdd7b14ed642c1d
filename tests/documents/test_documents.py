"""Every Python block of the documents runs, every example runs, every link leads somewhere."""

from __future__ import annotations

import ast
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


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.S)


@pytest.mark.parametrize("document", DOCUMENTS, ids=short)
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
    printed = ""
    for language, block in re.findall(r"```(\w*)\n(.*?)```", document.read_text(), re.S):
        if language == "python":
            exec(compile(block, document.name, "exec"), namespace)
            printed = ""
        elif language == "console":
            printed = run_commands(block)
        else:
            if language == "text" and printed:
                assert_printed(block, printed)
            printed = ""


def run_commands(block: str) -> str:
    """Run the lines `$ netsor ...` of a block; returns what they print."""
    printed = ""
    for line in block.splitlines():
        program, *words = shlex.split(line.removeprefix("$ "))
        assert program == "netsor", line
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        printed += result.stdout
    return printed


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
ROUNDING = 1e-9  # numbers below are errors of rounding, which differ from machine to machine


def assert_printed(block: str, printed: str) -> None:
    """A text after commands is what they print, or a part of it: the same words, and the same numbers."""
    lines = iter(printed.splitlines())
    for shown in block.splitlines():
        assert any(alike(shown, line) for line in lines), f"`{shown}` is not printed:\n{printed}"


def alike(shown: str, line: str) -> bool:
    if NUMBER.sub("#", shown) != NUMBER.sub("#", line):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(line), strict=True)
    return all(near(float(a), float(b)) for a, b in pairs)


def near(a: float, b: float) -> bool:
    """Equal to 1%, for sums in another order; of rounding errors, to a factor of 30."""
    if 0 < a < ROUNDING and b > 0:
        return a / 30 < b < a * 30
    return abs(a - b) <= 0.01 * abs(a)


def test_stale_output_is_noticed() -> None:
    printed = "wrote K.npz: K (16, 16), largest error 3.6e-13\nslope -0.585 +- 0.063 (theory: -0.5)\n"
    assert_printed("slope -0.585 +- 0.063 (theory: -0.5)", printed)
    assert_printed("wrote K.npz: K (16, 16), largest error 1.9e-13", printed)
    for stale in ("slope -0.485 +- 0.063 (theory: -0.5)", "wrote K.npz: K (16, 17), largest error 3.6e-13"):
        with pytest.raises(AssertionError, match="is not printed"):
            assert_printed(stale, printed)


def test_the_tutorial_shows_the_example() -> None:
    block = blocks(ROOT / "docs" / "tutorial.md", "python")[0]
    assert block in (ROOT / "examples" / "my_network.py").read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=short)
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


@pytest.mark.parametrize("document", dict.fromkeys(LINKING), ids=short)
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


def test_the_map_names_files_that_are_there() -> None:
    """ARCHITECTURE.md says where an idea is found."""
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf8").split("## Where is it?")[1].splitlines()
    paths = [path for line in lines if line.startswith("|") for path in re.findall(r"`([\w/]+\.\w+)`", line)]
    assert len(paths) >= 40
    missing = [path for path in paths if not (ROOT / "src" / "netsor" / path).is_file()]
    assert not missing


# ARCHITECTURE.md has the table of the package itself.
PACKAGES = sorted((ROOT / "src" / "netsor").glob("*/**/__init__.py"))


@pytest.mark.parametrize("init", PACKAGES, ids=lambda init: init.parent.name)
def test_a_package_lists_its_files(init: Path) -> None:
    """A table of files in an `__init__` names each file beside it, and no other."""
    text = ast.get_docstring(ast.parse(init.read_text(encoding="utf8"))) or ""
    rows = re.search(r"\| (?:file|idea) +\|.*?\n((?:\|.*\n?)+)", text)
    files = {p.stem for p in init.parent.glob("*.py")} - {"__init__"}
    files |= {p.parent.name for p in init.parent.glob("*/__init__.py")}
    if rows is None:
        assert len(files) <= 1, "several files and no table"
        return
    missing = sorted(files - set(re.findall(r"\w+", rows[1])))
    assert not missing, f"not in the table: {missing}"
    cells = "".join(row.split("|")[1] for row in rows[1].splitlines())
    named = set(re.findall(r"`(\w+)(?:\.py)?/?`", cells))
    assert named <= files | {"__init__"}, f"not there: {sorted(named - files)}"
